-- Four-bit floats with a scale every 16 columns: for cards that multiply them
-- natively.
return {
  about = "experts nvfp4, other linears fp8 in blocks of 128",
  rules = {
    { role = "expert", to = "nvfp4" },
    { role = { "attention", "indexer", "mlp", "shared" }, to = "fp8" },
  },
}
