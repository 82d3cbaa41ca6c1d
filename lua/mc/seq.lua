--- seq.lua: mc.submit and the methods of a sequence.
--
-- Trusted. host.seq reads and never waits; the waiting is here.

local data = require "mc.data"
local host = require "mc.host"
local near = require "mc.near"
local taps = require "mc.taps"
local wait = require("mc.wait").wait

local ids, kv, seq = host.ids, host.kv, host.seq
local meta = seq.meta

local M = {}

--- Token ids of {text, special, text, special, ...}, one text of several
-- origins: control tokens are found where special is true. bos: what the model
-- wants in front. Waits.
function M.encode(parts, bos, model)
  local job, err = ids.encode(parts, bos, model)
  if not job then return nil, err end
  while true do
    local list, why = ids.take(job)
    if list ~= false then return list, why end
    wait("mc.submit")
  end
end

local function missing(message)
  return nil, host.error("invalid_value", message, "prompt")
end

-- The fields that say what to run; everything else goes to host.seq.open.
local function prompt_of(opts, model)
  if opts.from then
    local list = kv.ids(opts.from)
    if not opts.prompt then return list end
    local more, err = M.encode({ opts.prompt, true }, false, model)
    if not more then return nil, err end
    return ids.join(list, more)
  end
  if opts.ids then return opts.ids end
  if opts.tokens then
    return ids.list(opts.tokens, "tokens")
  end
  if opts.messages then
    local chat = { model = model }
    for k, v in pairs(opts.chat or {}) do chat[k] = v end
    return M.render(opts.messages, chat)
  end
  if type(opts.prompt) == "string" then
    return M.encode({ opts.prompt, true }, true, model)
  end
  if type(opts.prompt) == "table" then
    return ids.list(opts.prompt, "prompt")
  end
  return missing("one of prompt, messages and tokens is needed")
end

local SUBMIT = {
  ids = true, tokens = true, messages = true, chat = true, prompt = true,
  model = true, from = true, capture = true, steer = true,
}
local FORK = { capture = true, steer = true }
for k in pairs(seq.fields) do SUBMIT[k], FORK[k] = true, true end

local WHO = { salt = true, tenant = true }

-- What the request's router and key have decided holds unless opts says
-- otherwise.
local INHERITED = {
  "name", "tenant", "lane", "priority", "deadline", "due_first", "slo_token",
}

local function open(opts, list, model, parent)
  local context, fields = host.task.context(), {}
  if not context then return seq.open(opts, list, model) end -- which raises
  for _, k in ipairs(INHERITED) do fields[k] = context[k] end
  for k, v in pairs(opts) do
    if seq.fields[k] then fields[k] = v end
  end
  local capture, kept =
    taps.capture(opts.capture, ids.count(list), opts.limit, model)
  if not capture and kept then return nil, kept end
  local steer, why = taps.steer(opts.steer, model)
  if why then return nil, why end
  local s, err = seq.open(fields, list, model, capture, steer, parent)
  if s and capture then taps.keep(s, kept) end
  return s, err
end

--- mc.submit: see lua/mc/meta. Waits while the prompt is tokenised.
function M.submit(opts)
  if type(opts) ~= "table" then error("mc.submit takes a table", 2) end
  near.options("mc.submit", opts, SUBMIT)
  local model, err = M.model(opts.model)
  if not model then return nil, err end
  local list
  list, err = prompt_of(opts, model)
  if not list then return nil, err end
  return open(opts, list, model)
end

--- The id of the model that is meant: what the router chose, else the one of
-- this name ("default": the first), else the first; nil, err when there is
-- none.
function M.model(name)
  local models = host.server.models
  if name == nil then
    local context = host.task.context()
    return context and context.model or models[1] or "default"
  end
  for _, id in ipairs(models) do
    if id == name then return id end
  end
  if name == "default" then return models[1] or "default" end
  return nil, host.error("model_not_found",
    "The model '" .. tostring(name):sub(1, 80) .. "' does not exist", "model")
end

-- ---- methods ----------------------------------------------------------------

local Seq = {}

--- The next token {id, text, logprob}; nil at the end; nil, err when it failed.
-- Waits.
function Seq.next(s)
  while true do
    local id, text, logprob = seq.take(s)
    if id then
      return {
        id = id,
        text = text,
        logprob = logprob,
        hidden = taps.behind(s),
      }
    end
    if id == nil then
      local done, err = seq.result(s)
      if done then return nil end
      return nil, err
    end
    wait("seq:next")
  end
end

--- for t in seq:tokens() do ... end. An error ends the loop: seq:wait() tells
-- it.
function Seq.tokens(s)
  return Seq.next, s
end

--- Runs to the end: {text, finish, n, mean_logprob, usage}, or nil, err. Waits.
function Seq.wait(s)
  while true do
    local id = seq.take(s)
    if id == nil then
      local r, err = seq.result(s)
      if r then taps.show(s, r) end
      return r, err
    end
    if not id then wait("seq:wait") end
  end
end

--- A new sequence that continues this one's prompt and text so far: their KV
-- pages are shared. opts as in mc.submit, without a prompt.
function Seq.fork(s, opts)
  opts = near.options("seq:fork", opts, FORK)
  local list = seq.ids(s)
  local _, _, model = seq.state(s)
  return open(opts, list, model, s)
end

--- A new sequence that continues this one's prompt and tokens with a text
-- behind them. Waits.
function Seq.append(s, text, opts)
  if type(text) ~= "string" then error("seq:append takes a text", 2) end
  opts = near.options("seq:append", opts, FORK)
  local _, _, model = seq.state(s)
  local more, err = M.encode({ text, false }, false, model)
  if not more then return nil, err end
  return open(opts, ids.join(seq.ids(s), more), model, s)
end

--- The context of a sequence's tokens so far, as far as it is in whole pages
-- that are done. opts: {salt, tenant} where mc.submit had them.
function Seq.snapshot(s, opts)
  opts = near.options("seq:snapshot", opts, WHO)
  local context = host.task.context() or {}
  local _, _, model = seq.state(s)
  return kv.hold((seq.ids(s)), model, opts.tenant or context.tenant, opts.salt)
end

function Seq.usage(s)
  return seq.usage(s)
end

function Seq.cancel(s, why)
  seq.cancel(s, why)
end

--- Goes on after the request or session that made it has ended.
function Seq.detach(s)
  seq.detach(s)
end

meta.__index = function(s, key)
  local method = Seq[key]
  if method then return method end
  local id, state, model = seq.state(s)
  if key == "id" then return id end
  if key == "model" then return model end
  if key == "state" then return state end
  if key == "ids" then return data.array(ids.table((seq.ids(s)))) end
  return nil
end
meta.__tostring = function(s)
  local id, state = seq.state(s)
  return ("seq %s (%s)"):format(id, state)
end

meta.__doc = "seq"

return M
