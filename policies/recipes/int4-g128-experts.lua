-- The default: experts, which are nearly all of a large model, in four bits;
-- every other linear in eight, or attention would eat what the experts gain.
-- Norms, router, indexer gates, embeddings and head stay as they are.
return {
  about = "experts int4 in groups of 128, other linears fp8 in blocks of 128",
  rules = {
    { role = "expert", to = "int4", group = { 128, 64, 32 } },
    { role = { "attention", "indexer", "mlp", "shared" }, to = "fp8" },
  },
}
