--- edge.lua: an edge VM's files: which ones init.lua names, what they must look
-- like.
--
-- Trusted; run once a VM by lua/host/edge.c, which calls what it returns.

local api = require "mc.api"
local chosen = require "mc.chosen"
local host = require "mc.host"
local http = require "mc.http"
local near = require "mc.near"
local routes = require "mc.routes"
local test = require "mc.test"
local test_edge = require "mc.test_edge"
local wait = require "mc.wait"

local M = { mc = api.mc, coroutine = wait.coroutine }

local modules, loading = {}, {}

--- require, as files of the policy directory see it: "recipes.x" is
-- recipes/x.lua there.
function M.require(name)
  if type(name) ~= "string" or not name:find("^[%w_%-]+[%w_%-.]*$") then
    error("require takes the name of a file beside init.lua", 2)
  end
  if modules[name] ~= nil then return modules[name] end
  if loading[name] then
    error("require: '" .. name .. "' requires itself", 2)
  end
  local chunk = host.load((name:gsub("%.", "/")))
  if not chunk then error("require: there is no " .. name .. ".lua here", 2) end
  loading[name] = true
  local value = chunk()
  loading[name] = nil
  modules[name] = value == nil and true or value
  return modules[name]
end

local KEYS = { api = true, kind = true, init = true, tests = true }

local function check(file, kind, t)
  if type(t) ~= "table" then error(file .. ": must return a table", 0) end
  if t.api ~= 1 then error(file .. ": api must be 1", 0) end
  if t.kind ~= kind then
    error(("%s: kind must be \"%s\""):format(file, kind), 0)
  end
  for k in pairs(t) do
    local ok = KEYS[k] or (kind == "router" and k == "route")
      or (kind == "routes" and type(k) == "string" and k:find("^%u+ /%S*$"))
    if not ok then
      error(("%s: unknown key '%s'%s")
        :format(file, tostring(k), near.hint(k, KEYS)), 0)
    end
  end
end

-- Runs a file that init.lua names: its table, checked, with init and tests run.
local function start(kind, name, opts)
  local chunk, file = host.load(name)
  if not chunk then
    error(("init.lua names '%s', but there is no %s.lua"):format(name, name), 0)
  end
  local t = chunk()
  check(file, kind, t)
  if t.init then t.init(opts or {}) end
  if t.tests and test.wanted(kind) then
    test.run(file, t, test_edge.new(file, t))
  end
  return t, file
end

--- Loads what init.lua names for edge VMs.
function M.load()
  local choice = chosen.merge((chosen.init()))
  local opts, router = choice.opts, choice.router
  if router then
    local t, file = start("router", router, opts[router])
    if type(t.route) ~= "function" then
      error(file .. ": hook 'route' is missing", 0)
    end
    http.set_router(t.route)
  end
  for _, name in ipairs(choice.routes) do
    local t, file = start("routes", chosen.route(name), opts[name])
    routes.add(file, t)
  end
  api.loading = false
end

M.handle = http.handle
M.start = api.start_timers
return M
