--- edge.lua: builds an edge VM: the global mc, the environment's own values, the hooks.
--
-- Trusted; run once a VM by lua/host/edge.c, which calls what it returns.

local chat = require "mc.chat"
local data = require "mc.data"
local host = require "mc.host"
local http = require "mc.http"
local near = require "mc.near"
local seq = require "mc.seq"
local wait = require "mc.wait"

local M = {}

-- ---- mc --------------------------------------------------------------------------------

local ids, verb = host.ids, host.engine.verb

local mc = {
  submit = seq.submit,
  json = { decode = host.json.decode, encode = host.json.encode, null = data.null,
    array = data.array, keys = data.keys },
  chat = { render = chat.render },
  time = host.time,
  now = host.now,
}

--- Live sequences: rows {id, request, state, lane, tenant, n_prompt, n_gen, age}.
function mc.seqs() return verb("seqs") end

--- Ends a sequence, or all of a request.
function mc.cancel(id, why) return verb("cancel", id, why) end

mc.engine = {
  status = function() return verb("status") end,
  stats = function() return verb("stats") end,
  models = function() return verb("models") end,
}
mc.kv = {
  --- Pages: total, free, held, cached, pending, page_tokens.
  stats = function() return verb("kv") end,
}

local function as_list(tokens)
  if type(tokens) ~= "table" then return tokens end
  return ids.list(tokens)
end

mc.vocab = {
  --- Token ids of text. opts: bos (true), special (control tokens in the text; true). Waits.
  encode = function(text, opts)
    opts = opts or {}
    local list, err = seq.encode({ text, opts.special ~= false }, opts.bos ~= false)
    if not list then return nil, err end
    return data.array(ids.table(list))
  end,
  --- Text of token ids. special: control tokens too.
  decode = function(tokens, special)
    local list, err = as_list(tokens)
    if not list then return nil, err end
    return ids.decode(list, special)
  end,
  --- The ids of a prompt as mc.chat.render made it.
  table = function(list) return data.array(ids.table(list)) end,
}

--- Waits for so many seconds.
function mc.sleep(s)
  if type(s) ~= "number" or not (s >= 0) then error("mc.sleep takes seconds", 2) end
  local till = host.now() + s
  while host.now() < till do
    host.task.sleep(till - host.now())
    wait.wait("mc.sleep")
  end
end

if host.mode == "repl" then
  mc.policy = {
    --- What runs: files, generation, numbers.
    list = function() return verb("policy.list") end,
    --- Tries the files without running them.
    check = function(name) return verb("policy.check", name) end,
    reload = function() return verb("reload") end,
    rollback = function() return verb("rollback") end,
  }
end

M.tables = {} -- proxy -> what it shows, for completion

-- Scripts get proxies: what one writes, no other sees.
local function freeze(name, t)
  for k, v in pairs(t) do
    if type(v) == "table" and v ~= data.null then t[k] = freeze(name .. "." .. k, v) end
  end
  local proxy = host.freeze(t, name)
  M.tables[proxy] = t
  return proxy
end

M.mc = freeze("mc", mc)
M.coroutine = wait.coroutine

-- ---- files -----------------------------------------------------------------------------

local router

local function load(name)
  local chunk, file = host.load(name)
  if not chunk then error(("init.lua names '%s', but there is no such file"):format(name), 0) end
  return chunk(), file
end

local KNOWN = { api = true, kind = true, init = true, tests = true, state = true }

local function check(file, kind, t)
  if type(t) ~= "table" then error(file .. ": must return a table", 0) end
  if t.api ~= 1 then error(file .. ": api must be 1", 0) end
  if t.kind ~= kind then error(("%s: kind must be \"%s\""):format(file, kind), 0) end
  for k in pairs(t) do
    local ok = KNOWN[k] or (kind == "router" and k == "route")
      or (kind == "routes" and type(k) == "string" and k:find("^%u+ /%S*$"))
    if not ok then
      error(("%s: unknown key '%s'%s"):format(file, tostring(k), near.hint(k, KNOWN)), 0)
    end
  end
end

local function start(file, kind, t, opts)
  check(file, kind, t)
  if t.init then t.init(opts or {}) end
  if t.tests then t.tests() end
end

--- Loads what init.lua names for edge VMs.
function M.load()
  local chunk = host.load("init")
  local init = chunk and chunk() or {}
  local default = host.load("builtin/init")()
  local opts = init.opts or default.opts or {}
  local name = init.router or default.router
  if name then
    local t, file = load(name)
    start(file, "router", t, opts[name])
    router = t.route
  end
  for _, route in ipairs(init.routes or default.routes or {}) do
    local t, file = load("routes/" .. route)
    start(file, "routes", t, opts[route])
    http.add_routes(file, t)
  end
end

M.handle = http.handle
return M
