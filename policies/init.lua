-- init.lua: what runs on this server. A file that is not named here does not run.
--
-- Save any policy file and it is live at the next step: the whole directory is read, checked
-- and tried on made-up steps first, and a mistake leaves what is running untouched (the log,
-- `mascon status` and `mascon reload` say file and line). A kind that is not named here
-- comes from the set inside the program. Names are files of this directory without ".lua";
-- routes lie in routes/.
return {
  scheduler = "scheduler", -- or "sched_fair", "sched_due"
  sampler = "sampler",
  -- cache = "cache_hits", -- which cached prefixes go first; else the least recently used
  routes = { "openai", "embeddings" },
  -- opts = { scheduler = { chunk = 512 } }, -- passed to that file's init()
}
