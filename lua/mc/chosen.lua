--- chosen.lua - what init.lua names, what it lacks, and the one file that is
-- being tried.
--
-- Trusted; the step and the edge VMs of a generation read the same.

local host = require "mc.host"

local chosen = {}

--- What init.lua returned, before anything is made of it; its name in messages.
-- When one file is tried, it runs whatever init.lua says.
function chosen.init()
  local chunk, file = host.load("init")
  if not chunk then return {}, file end
  return chunk(), file
end

--- What runs: {scheduler =, sampler =, cache =, router =, routes =, opts =} out
-- of a checked init.
function chosen.merge(init)
  local default = host.load("builtin/init")()
  local run = { opts = init.opts or default.opts or {} }
  for _, kind in ipairs {
    "scheduler", "sampler", "cache", "router", "routes",
  } do
    run[kind] = init[kind] or default[kind]
  end
  run.routes = run.routes or {}
  local only = host.only
  if only then
    local name = only.name:match("[^/]+$")
    run[only.kind] = only.kind == "routes" and { name } or name
  end
  return run
end

--- The name to load a route's file by.
function chosen.route(name)
  local only = host.only
  return only and only.kind == "routes" and only.name or "routes/" .. name
end

return chosen
