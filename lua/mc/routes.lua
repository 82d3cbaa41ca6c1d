--- routes.lua: the table of routes: what a file may say of one, and which one a
-- path means.
--
-- Trusted. A key is "METHOD /path"; in the path {x} is one part and {x*} the
-- rest. A route is a handler or a table of it and its limits:
--   handler      function(req, res); or files = a folder beside init.lua
--   auth         false: no API key is asked for
--   tenants      { "acme" }: only their keys
--   rate         { 5, 20 }: requests a second of one caller, and at once
--   concurrency  that run at once; more get 429
--   body_max     bytes; timeout: seconds
--   schema       what the body must look like; the handler finds it in req.data

local near = require "mc.near"

local M = {}

local exact = {} -- path -> method -> route
local shaped = {} -- list of {parts, rest, methods}

-- "/v1/models/{id*}" -> {"v1", "models", "{id*}"}
local function split(path)
  local parts = {}
  for part in path:gmatch("[^/]+") do parts[#parts + 1] = part end
  return parts
end

local ROUTE = {
  handler = true, files = true, body_max = true, timeout = true, auth = true,
  concurrency = true, rate = true, tenants = true, schema = true,
}

-- The handler of a route that shows a folder: the part of the path that "{x*}"
-- takes.
local function show_files(folder, path)
  local rest = path:match("{(%w+)%*}")
  return function(req, res) return res:file(folder, req.params[rest] or "") end
end

local function check_rate(rate)
  return type(rate) == "table" and type(rate[1]) == "number" and rate[1] > 0
    and (rate[2] == nil or type(rate[2]) == "number" and rate[2] >= 1)
end

local function set_of(list)
  local set = {}
  for _, name in ipairs(list) do set[name] = true end
  return set
end

local function check_route(file, key, route)
  if type(route) == "function" then route = { handler = route } end
  local function wrong(fmt, ...)
    error(("%s: '%s' %s"):format(file, key, fmt:format(...)), 0)
  end
  local what = type(route) == "table" and (route.handler or route.files)
  if type(what) ~= "function" and (type(what) ~= "string" or route.handler) then
    wrong("must be a function or a table with a handler, or with files = a"
      .. " folder")
  end
  for k in pairs(route) do
    if not ROUTE[k] then
      wrong("has an unknown key '%s'%s", tostring(k), near.hint(k, ROUTE))
    end
  end
  for _, k in ipairs { "body_max", "timeout", "concurrency" } do
    local v = route[k]
    if v ~= nil and not (type(v) == "number" and v > 0) then
      wrong("%s must be a positive number", k)
    end
  end
  if route.rate ~= nil and not check_rate(route.rate) then
    wrong("rate must be { requests a second, burst }")
  end
  if route.tenants ~= nil and type(route.tenants) ~= "table" then
    wrong("tenants must be a list of names")
  end
  return {
    handler = route.handler or show_files(route.files, key),
    auth = route.auth ~= false,
    body_max = route.body_max,
    concurrency = route.concurrency,
    timeout = route.timeout,
    rate = route.rate,
    tenants = route.tenants and set_of(route.tenants),
    schema = route.schema,
    key = key,
  }
end

local function methods_of(path)
  if not path:find("{", 1, true) then
    exact[path] = exact[path] or {}
    return exact[path]
  end
  for _, s in ipairs(shaped) do
    if s.path == path then return s.methods end
  end
  local s = { path = path, parts = split(path), methods = {} }
  shaped[#shaped + 1] = s
  return s.methods
end

--- Adds the routes of one file: keys "METHOD /path".
function M.add(file, t)
  for key, route in pairs(t) do
    local method, path = tostring(key):match("^(%u+) (/%S*)$")
    if method then
      local methods = methods_of(path)
      if methods[method] then
        error(("%s: '%s' is a route of another file too"):format(file, key), 0)
      end
      methods[method] = check_route(file, key, route)
    end
  end
end

local function match(s, parts)
  local params = {}
  for i, want in ipairs(s.parts) do
    local name, rest = want:match("^{(%w+)(%*?)}$")
    if rest == "*" and parts[i] then
      params[name] = table.concat(parts, "/", i)
      return params
    end
    if not parts[i] or (not name and parts[i] ~= want) then return nil end
    if name then params[name] = parts[i] end
  end
  return #parts == #s.parts and params or nil
end

--- The methods of a path, each a route, and its parameters; nil when there are
-- none.
function M.find(path)
  if exact[path] then return exact[path], {} end
  local parts = split(path)
  for _, s in ipairs(shaped) do
    local params = match(s, parts)
    if params then return s.methods, params end
  end
end

--- What the header allow says.
function M.allow(methods)
  local names = {}
  for name in pairs(methods) do names[#names + 1] = name end
  table.sort(names)
  return table.concat(names, ", ")
end

return M
