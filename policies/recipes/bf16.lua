-- Nothing is compressed: what a GGUF or an fp8 checkpoint says, for who reads no other.
return {
  about = "all linears bf16",
  rules = {
    { role = { "expert", "attention", "indexer", "mlp", "shared" }, to = "bf16" },
  },
}
