--- api.lua: the global mc of edge and REPL VMs.
--
-- Trusted. Built out of host's bindings; the reference with types is
-- lua/mc/meta/mc.lua. Scripts get proxies: what one writes, no other sees.

local apart = require "mc.apart"
local chat = require "mc.chat"
local data = require "mc.data"
local embed = require "mc.embed"
local help = require "mc.help"
local host = require "mc.host"
local kv = require "mc.kv"
local metrics = require "mc.metrics"
local near = require "mc.near"
local seq = require "mc.seq"
local tensor = require "mc.tensor"
local wait = require("mc.wait").wait

local ids, verb, task = host.ids, host.engine.verb, host.task

local mc = {
  submit = seq.submit,
  embed = embed.embed,
  tensor = { zeros = tensor.zeros, from = tensor.from, stats = tensor.stats },
  time = host.time,
  now = host.now,
  config = host.config,
  shared = apart.shared(host.shared),
  msgpack = host.msgpack,
  json = {
    decode = host.json.decode,
    encode = host.json.encode,
    null = data.null,
    array = data.array,
    map = data.map,
    keys = data.keys,
    kind = data.kind,
  },
}

-- ---- verbs ------------------------------------------------------------------

-- Functions whose arguments or answer differ from their verb's.
local shaped = {}

local FILTER = { model = true, state = true, tenant = true, older = true }

function shaped.seqs(filter)
  near.options("mc.seqs", filter, FILTER)
  local rows, err = verb("seqs")
  if not rows or not filter then return rows, err end
  local kept = data.array {}
  for _, row in ipairs(rows) do
    if (not filter.model or row.model == filter.model)
      and (not filter.state or row.state == filter.state)
      and (not filter.tenant or row.tenant == filter.tenant)
      and (not filter.older or row.age > filter.older) then
      kept[#kept + 1] = row
    end
  end
  return kept
end

shaped["kv.stats"] = function(model)
  return verb("kv", model or host.server.models[1])
end

-- The prompt is read in a sequence of its own, which waits; the verb then finds
-- its pages.
local function read_prompt(o)
  local s, err = seq.submit {
    prompt = o.prompt,
    limit = 0,
    tenant = o.tenant,
    model = o.model,
  }
  if not s then return nil, err end
  return s:wait()
end

local Kv = {}

function Kv.tokens(k) return k.n_tokens end

function Kv.bytes(k) return k.n_bytes end

function Kv.drop(k) return verb("unpin", k.id, k.model) end

local kv_meta = {
  __index = Kv,
  __tostring = function(k) return "kv " .. k.id end,
}

local PIN = { prompt = true, ttl = true, tenant = true, model = true }

local function text(x) return x and tostring(x) or "" end

shaped["kv.pin"] = function(o)
  near.options("mc.kv.pin", o, PIN)
  if type(o) ~= "table" or type(o.prompt) ~= "string" then
    error("mc.kv.pin takes a table with a prompt", 2)
  end
  local done, failed = read_prompt(o)
  if not done then return nil, failed end
  local p, err = verb("pin", o.prompt, text(o.ttl), text(o.tenant), o.model)
  if not p then return nil, err end
  return setmetatable({
    id = p.id,
    n_tokens = p.tokens,
    n_bytes = p.bytes,
    model = p.model,
  }, kv_meta)
end

shaped["kv.cached"] = function(prompt, tenant, model)
  local c, err = verb("cached", prompt, text(tenant), model)
  return c and c.cached, err
end

shaped["engine.set"] = function(settings)
  for k, v in pairs(settings) do
    local ok, err = verb("set", k, tostring(v))
    if not ok then return nil, err end
  end
  return true
end

shaped["policy.diff"] = function(from, to)
  local d, err = verb("policy.diff", from, to)
  return d and d.text, err
end

-- What only someone at a REPL may do says so in routes and routers.
local function refuse(path)
  return function()
    error(("mc.%s is not available in a route or router, only in the REPL")
      :format(path), 2)
  end
end

for _, v in ipairs(host.engine.verbs) do
  local space, name = v.lua:match("^(%w+)%.(%w+)$")
  local fn = shaped[v.lua] or function(...) return verb(v.name, ...) end
  if v.repl and host.mode ~= "repl" then fn = refuse(v.lua) end
  if space then
    mc[space] = mc[space] or {}
    mc[space][name] = fn
  else
    mc[v.lua] = fn
  end
end

mc.kv.load = kv.load

function mc.tensor.weight(model, name)
  if type(name) ~= "string" then
    error("mc.tensor.weight takes a model's id (or nil) and a tensor's name", 2)
  end
  local id, err = seq.model(model)
  if not id then return nil, err end
  return tensor.weight(id, name)
end

function mc.engine.model(name)
  local id, err = seq.model(name)
  if not id then return nil, err end
  local rows
  rows, err = verb("models")
  for _, row in ipairs(rows or {}) do
    if row.id == id then return row end
  end
  return nil, err
end

function mc.seq(id)
  for _, row in ipairs(verb("seqs") or {}) do
    if row.id == id then return row end
  end
  return nil, host.error("not_found",
    "no sequence '" .. tostring(id) .. "' is alive", "id")
end

-- ---- text -------------------------------------------------------------------

mc.chat = { render = chat.render, pieces = chat.pieces }

local function as_list(tokens)
  if type(tokens) ~= "table" then return tokens end
  return ids.list(tokens, "tokens")
end

mc.vocab = {
  encode = function(text, opts)
    opts = near.options("mc.vocab.encode", opts,
      { bos = true, special = true, model = true })
    local model, err = seq.model(opts.model)
    if not model then return nil, err end
    local list
    list, err = seq.encode({ text, opts.special ~= false },
      opts.bos ~= false, model)
    if not list then return nil, err end
    return data.array(ids.table(list))
  end,
  decode = function(tokens, special, model)
    local id, err = seq.model(model)
    if not id then return nil, err end
    local list
    list, err = as_list(tokens)
    if not list then return nil, err end
    return ids.decode(list, special, id)
  end,
  table = function(list) return data.array(ids.table(list)) end,
}

-- ---- tasks ------------------------------------------------------------------

function mc.sleep(s)
  if type(s) ~= "number" or not (s >= 0 and s < 1e9) then
    error("mc.sleep takes seconds, less than 1e9", 2)
  end
  local till = host.now() + s
  while host.now() < till do
    task.sleep(till - host.now())
    wait("mc.sleep")
  end
end

-- What runs by the clock, of one process once: in the task VM, which starts it
-- (edge.lua).
local timers = {}

local M = { tables = {}, -- tables: proxy -> what it shows
  loading = host.mode == "edge" }

--- Runs fn every so many seconds; a run that takes longer delays the next.
function mc.every(s, fn)
  if type(s) ~= "number" or not (s >= 0.01) or type(fn) ~= "function" then
    error("mc.every takes seconds (from 0.01) and a function", 2)
  end
  if not M.loading then
    error("mc.every is for a file's top level and init, where it says what runs"
      .. " all the time", 2)
  end
  timers[#timers + 1] = { seconds = s, fn = fn }
end

local results = setmetatable({}, { __mode = "k" }) -- task -> {n, values...}

function mc.spawn(fn, ...)
  if type(fn) ~= "function" then error("mc.spawn takes a function", 2) end
  if not task.context() then
    error("mc.spawn is for requests, tasks and sessions: not for a file's top"
      .. " level or init", 2)
  end
  local n, args = select("#", ...), { ... }
  local box = {}
  local t = task.spawn(function()
    local function keep(...) box.n, box.values = select("#", ...), { ... } end
    keep(fn(unpack(args, 1, n)))
  end)
  results[t] = box
  return t
end

local Task = {}

function Task.join(t)
  while true do
    local ended, err = task.ended(t)
    if err then return nil, err end
    if ended then
      local box = results[t]
      return unpack(box.values, 1, box.n)
    end
    wait("task:join")
  end
end

function Task.cancel(t) task.cancel(t) end

--- Starts what mc.every was given: each is a task that goes on whatever a run
-- of it does.
function M.start_timers()
  for _, t in ipairs(timers) do
    task.spawn(function()
      task.context().name = "timer" -- of its requests
      while true do
        mc.sleep(t.seconds)
        Task.join(mc.spawn(t.fn)) -- how it failed is in the log
      end
    end)
  end
end

task.meta.__index = Task
task.meta.__doc = "task"
task.meta.__tostring = function() return "task" end

-- ---- logs and metrics -------------------------------------------------------

local function log_line(level, message, fields)
  local parts = { tostring(message) }
  if type(fields) == "table" then
    local names = {}
    for k in pairs(fields) do names[#names + 1] = tostring(k) end
    table.sort(names)
    for _, k in ipairs(names) do
      parts[#parts + 1] = k .. "=" .. tostring(fields[k])
    end
  end
  host.log.write(level, table.concat(parts, " "))
end

for level, name in pairs { [0] = "debug", "info", "warn", "error" } do
  mc.log[name] = function(message, fields) log_line(level, message, fields) end
end

mc.metrics = metrics.build(host.metrics)

-- ---- frozen -----------------------------------------------------------------

local function freeze(name, t)
  for k, v in pairs(t) do
    if type(v) == "table" and v ~= data.null then
      t[k] = freeze(name .. "." .. k, v)
    end
    if type(v) == "function" then help.named[v] = name .. "." .. k end
  end
  local proxy = host.freeze(t, name)
  M.tables[proxy], help.named[proxy] = t, name .. "."
  return proxy
end

M.mc = freeze("mc", mc)
return M
