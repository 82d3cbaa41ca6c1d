-- Nothing is compressed: a GGUF or an fp8 checkpoint is written out in bf16,
-- for programs that read nothing else.
return {
  about = "all linears bf16",
  rules = {
    {
      role = { "expert", "attention", "indexer", "mlp", "shared" },
      to = "bf16",
    },
  },
}
