-- Finer groups: half a bit more a weight in the experts, less lost.
return {
  about = "experts int4 in groups of 32, other linears fp8 in blocks of 128",
  rules = {
    { role = "expert", to = "int4", group = 32 },
    { role = { "attention", "indexer", "mlp", "shared" }, to = "fp8" },
  },
}
