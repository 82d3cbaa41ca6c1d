-- Only the experts are compressed. At one sequence this reads more bytes a
-- token than an fp8 checkpoint does: attention in bf16 is what costs.
return {
  about = "experts int4 in groups of 32, all else bf16",
  rules = {
    { role = "expert", to = "int4", group = 32 },
    { role = { "attention", "indexer", "mlp", "shared" }, to = "bf16" },
  },
}
