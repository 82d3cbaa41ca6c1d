--- policy.lua - loads a generation's files into a step VM: what is there, is it
-- right.
--
-- Trusted. The host gives files as compiled functions that run in the scripts'
-- environment (host.load) and is told what it must know outside this VM
-- (host.note).

local cache = require "mc.cache"
local chosen = require "mc.chosen"
local host = require "mc.host"
local near = require "mc.near"
local pick = require "mc.pick"
local state = require "mc.state"
local step = require "mc.step"
local test = require "mc.test"
local test_step = require "mc.test_step"

-- The hooks of each kind that runs in this VM; the first is required.
local KINDS = { "scheduler", "sampler", "cache" }
local HOOKS = {
  scheduler = { "plan", "evict", "admit" },
  sampler = { "chain", "pick" },
  cache = { "keep" },
}
local BIND = { scheduler = step.bind, sampler = pick.bind, cache = cache.bind }
local INIT = { scheduler = "string", sampler = "string", cache = "string",
  router = "string", routes = "table", opts = "table" }
local MAX_STATE, MAX_WHY = ffi.C.MC_N_STATE, 256

local function fail(file, ...)
  error(file .. ": " .. string.format(...), 0)
end

-- Where a value was written, when it is a function: "sched.lua:12".
local function place(file, v)
  if type(v) ~= "function" then return file end
  local info = debug.getinfo(v, "S")
  return info.what == "Lua"
    and ("%s:%d"):format(info.short_src, info.linedefined) or file
end

local function set_of(...)
  local set = {}
  for _, k in ipairs { ... } do set[k] = true end
  return set
end

-- A policy's name: a file's basename.
local function check_name(file, key, name)
  if type(name) ~= "string" or not name:find("^[%w_][%w_-]*$")
    or #name > 48 then
    fail(file, "%s must name a file of letters, digits, _ and -, not '%s'", key,
      tostring(name))
  end
end

--- What init.lua returned.
local function check_init(file, t)
  if type(t) ~= "table" then
    fail(file, "must return a table, not a %s", type(t))
  end
  for k, v in pairs(t) do
    local want = INIT[k]
    if not want then
      fail(file, "unknown key '%s'%s", tostring(k), near.hint(k, INIT))
    end
    if type(v) ~= want then
      fail(file, "%s must be a %s, not a %s", k, want, type(v))
    end
    if want == "string" then check_name(file, k, v) end
  end
  for i, name in pairs(t.routes or {}) do
    if type(i) ~= "number" then fail(file, "routes must be a list of names") end
    check_name(file, "routes", name)
  end
  for name, opts in pairs(t.opts or {}) do
    if type(opts) ~= "table" then
      fail(file, "opts.%s must be a table", tostring(name))
    end
  end
end

local function check_state(file, declared)
  if type(declared) ~= "table" then
    fail(file, "state must be a table of numbers")
  end
  local n = 0
  for k, v in pairs(declared) do
    if type(k) ~= "string" or not k:find("^[%a_][%w_]*$") or #k > 31 then
      fail(file, "state's names must be Lua names, not '%s'", tostring(k))
    end
    if type(v) ~= "number" then fail(file, "state.%s must be a number", k) end
    n = n + 1
  end
  if n > MAX_STATE then
    fail(file, "state has %d names, at most %d", n, MAX_STATE)
  end
end

local function check_why(file, why)
  if type(why) ~= "table" then fail(file, "why must be a list of texts") end
  local n = 0
  for i, text in pairs(why) do
    n = n + 1
    if type(i) ~= "number" or type(text) ~= "string" or #text > 120 then
      fail(file, "why must be a list of texts of at most 120 bytes")
    end
  end
  if n ~= #why or n > MAX_WHY then
    fail(file, "why must be a list of at most %d texts without gaps", MAX_WHY)
  end
end

--- What a policy's file returned.
local function check_policy(file, kind, t)
  if type(t) ~= "table" then
    fail(file, "must return a table, not a %s", type(t))
  end
  local hooks = HOOKS[kind]
  local known = set_of("api", "kind", "init", "tests", unpack(hooks))
  if kind ~= "cache" then known.state, known.why = true, true end
  for k, v in pairs(t) do
    if not known[k] then
      fail(place(file, v), "unknown key '%s'%s", tostring(k),
        near.hint(k, known))
    end
  end
  if t.api ~= 1 then fail(file, "api must be 1, not '%s'", tostring(t.api)) end
  if t.kind ~= kind then
    fail(file, "kind must be \"%s\", not '%s'", kind, tostring(t.kind))
  end
  for _, k in ipairs { "init", "tests", unpack(hooks) } do
    if t[k] ~= nil and type(t[k]) ~= "function" then
      fail(file, "%s must be a function, not a %s", k, type(t[k]))
    end
  end
  if not t[hooks[1]] then fail(file, "hook '%s' is missing", hooks[1]) end
  if t.state ~= nil then check_state(file, t.state) end
  if t.why ~= nil then check_why(file, t.why) end
end

-- Runs a policy's file and returns its checked table.
local function load_policy(kind, name)
  host.kind = kind -- for messages
  local chunk, file = host.load(name)
  if not chunk then
    fail("init.lua", "%s names '%s', but there is no %s.lua", kind, name, name)
  end
  local t = chunk()
  check_policy(file, kind, t)
  return t, file
end

local function note_state(kind, declared)
  for i, name in ipairs(state.names(declared)) do
    host.note("state", kind, i - 1, name, declared[name])
  end
end

local policy = {}

--- Loads everything that init.lua names, and what it lacks from the built-in
-- set. Returns the functions that the host calls for hooks.
function policy.build()
  local init, file = chosen.init()
  check_init(file, init)
  local choice, used = chosen.merge(init), {}
  local opts, run = choice.opts, {}
  local function load_kind(kind, name)
    local t, file_of = load_policy(kind, name)
    used[name] = true
    host.note("kind", kind, 0, name, 0)
    note_state(kind, t.state)
    for i, text in ipairs(kind == "scheduler" and t.why or {}) do
      host.note("why", kind, i, text, 0)
    end
    if t.init then t.init(opts[name] or {}) end
    for hook, fn in pairs(BIND[kind](t)) do
      run[hook] = fn
      host.note("place", hook, 0, place(file_of, t[hook]), 0)
    end
    if t.tests and test.wanted(kind) then
      test.run(file_of, t, test_step.new(file_of, kind, run))
    end
  end
  for _, kind in ipairs(KINDS) do -- without a cache policy the oldest page goes
    if choice[kind] then load_kind(kind, choice[kind]) end
  end
  -- The edge VMs' files are read and compiled here too: a generation is refused
  -- whole.
  local function keep(kind, name, path)
    if not host.load(path) then
      fail("init.lua", "%s names '%s', but there is no %s.lua", kind, name,
        path)
    end
    used[name] = true
    host.note("kind", kind, 0, name, 0)
  end
  if choice.router then keep("router", choice.router, choice.router) end
  for _, name in ipairs(choice.routes) do
    keep("routes", name, chosen.route(name))
  end
  for name in pairs(opts) do
    if not used[name] and not host.only then
      fail(file, "opts.%s is for no file that runs%s", tostring(name),
        near.hint(name, used))
    end
  end
  return run
end

return policy
