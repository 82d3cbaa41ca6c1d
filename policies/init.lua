-- init.lua: what runs on this server. A file that is not named here does not
-- run.
--
-- Save any policy file and it is live at the next step. The whole directory is
-- read, checked and tried on made-up steps first; a mistake leaves what is
-- running untouched, and the log, `mascon status` and `mascon reload` say file
-- and line. A kind that is not named here comes from the set inside the
-- program. Names are files of this directory without ".lua"; routes lie in
-- routes/.
return {
  scheduler = "scheduler", -- or "sched_fair", "sched_due"
  sampler = "sampler",
  -- Which cached prefixes go first; without this, the least recently used:
  -- cache = "cache_hits",
  routes = { "openai", "embeddings" },
  -- What is passed to a file's init():
  -- opts = { scheduler = { chunk = 512 } },
}
