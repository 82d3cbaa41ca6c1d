return {
  about = "all linears fp8 (e4m3) in blocks of 128 x 128",
  rules = {
    {
      role = { "expert", "attention", "indexer", "mlp", "shared" },
      to = "fp8",
    },
  },
}
