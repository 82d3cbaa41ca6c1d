-- Every linear in four bits: the smallest and fastest, and what loses most.
return {
  about = "all linears int4, in the largest group that divides their columns",
  rules = {
    {
      role = { "expert", "attention", "indexer", "mlp", "shared" },
      to = "int4",
      group = { 128, 64, 32 },
    },
    -- What no group divides:
    {
      role = { "expert", "attention", "indexer", "mlp", "shared" },
      to = "fp8",
    },
  },
}
