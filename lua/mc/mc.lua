--- mc.lua - the global `mc` of a step VM, frozen.
--
-- Trusted. What other VMs have and this one has not is refused by name, so that
-- a script that is in the wrong place says so.

local abi = require "mc.abi"
local host = require "mc.host"
local metrics = require "mc.metrics"
local near = require "mc.near"
local vocab = require "mc.pick".vocab

local IO = abi.at("const struct mc_hook_io *", "io")
local HOST = abi.at("void *", "host")
local wall_time = abi.leaf("double (*)(void *)", "wall_time")

local ELSEWHERE = {}
for _, name in ipairs {
  "submit", "seqs", "seq", "cancel", "why", "engine", "top", "kv", "tensor",
  "shared", "spawn", "sleep", "every", "policy", "json", "msgpack",
} do
  ELSEWHERE[name] = true
end

-- Which script runs.
local function where()
  if IO.picking ~= 0 then return "a sampler hook" end
  if IO.epoch ~= 0 then
    return IO.n_block ~= 0 and "a cache hook" or "a scheduler hook"
  end
  return host.kind and "a " .. host.kind .. "'s file" or "init.lua"
end

local function refuse_declare()
  if IO.loading == 0 then
    return "is for a file's top and init, not for a hook"
  end
end

-- A table that can be read and not changed; unknown(k) raises for what is not
-- there.
local function frozen(name, fields, unknown)
  return setmetatable({}, {
    __index = function(_, k)
      local v = fields[k]
      if v == nil then unknown(k) end
      return v
    end,
    __newindex = function(_, k)
      error(("%s.%s can't be changed"):format(name, tostring(k)), 2)
    end,
    __metatable = false,
  })
end

local function unknown_in(name, fields)
  return function(k)
    error(("%s has no '%s'"):format(name, tostring(k))
      .. near.hint(k, fields), 3)
  end
end

local log = {}
for level, name in pairs { [0] = "debug", "info", "warn", "error" } do
  --- A line in the server's log, unit "policy"; fields: strings, numbers,
  -- booleans.
  log[name] = function(message, fields)
    if type(message) ~= "string"
      or (fields ~= nil and type(fields) ~= "table") then
      error(("log.%s takes a message and a table of fields"):format(name), 2)
    end
    host.log(level, message, fields)
  end
end

local counters = metrics.build(host.metrics, refuse_declare)

local mc = {
  model = host.model,
  config =
    frozen("mc.config", host.config, unknown_in("mc.config", host.config)),
  metrics = frozen("mc.metrics", counters, unknown_in("mc.metrics", counters)),
  log = frozen("mc.log", log, unknown_in("mc.log", log)),
  vocab = frozen("mc.vocab", vocab, unknown_in("mc.vocab", vocab)),
}

--- Seconds on the clock of view.now and the rows' times; does not move within a
-- step.
function mc.now()
  return IO.now
end

--- Seconds since 1970.
function mc.time()
  return wall_time(HOST)
end

return frozen("mc", mc, function(k)
  if ELSEWHERE[k] then
    error(("mc.%s is not available in %s"):format(k, where()), 3)
  end
  unknown_in("mc", mc)(k)
end)
