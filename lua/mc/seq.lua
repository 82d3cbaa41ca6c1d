--- seq.lua: mc.submit and the methods of a sequence.
--
-- Trusted. host.seq reads and never waits; the waiting is here.

local data = require "mc.data"
local host = require "mc.host"
local wait = require("mc.wait").wait

local ids, seq = host.ids, host.seq
local meta = seq.meta

local M = {}

--- Token ids of {text, special, text, special, ...}, one text of several origins: control
-- tokens are found where special is true. bos: what the model wants in front. Waits.
function M.encode(parts, bos)
  local job, err = ids.encode(parts, bos)
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
local function prompt_of(opts)
  if opts.ids then return opts.ids end
  if opts.tokens then
    return ids.list(opts.tokens, "tokens")
  end
  if opts.messages then
    return M.render(opts.messages, opts.chat)
  end
  if type(opts.prompt) == "string" then
    return M.encode({ opts.prompt, true }, true)
  end
  if type(opts.prompt) == "table" then
    return ids.list(opts.prompt, "prompt")
  end
  return missing("one of prompt, messages and tokens is needed")
end

local OURS = { ids = true, tokens = true, messages = true, chat = true, prompt = true,
  model = true }

-- What the request's router and key have decided holds unless opts says otherwise.
local INHERITED = { "name", "tenant", "lane", "priority", "deadline", "due_first",
  "slo_token" }

local function open(opts, list)
  local context, fields = host.task.context(), {}
  for _, k in ipairs(INHERITED) do fields[k] = context[k] end
  for k, v in pairs(opts) do
    if not OURS[k] then fields[k] = v end
  end
  return seq.open(fields, list)
end

--- mc.submit: see lua/mc/meta. Waits while the prompt is tokenised.
function M.submit(opts)
  if type(opts) ~= "table" then error("mc.submit takes a table", 2) end
  if opts.model and not M.is_model(opts.model) then
    return nil, host.error("model_not_found", "there is no model '" ..
      tostring(opts.model):sub(1, 80) .. "' here", "model")
  end
  local list, err = prompt_of(opts)
  if not list then return nil, err end
  return open(opts, list)
end

--- The model's own id, and "default".
function M.is_model(name)
  return name == "default" or name == host.server.model
end

-- ---- methods ---------------------------------------------------------------------------

local Seq = {}

--- The next token {id, text, logprob}; nil at the end; nil, err when it failed. Waits.
function Seq.next(s)
  while true do
    local id, text, logprob = seq.take(s)
    if id then return { id = id, text = text, logprob = logprob } end
    if id == nil then
      local done, err = seq.result(s)
      if done then return nil end
      return nil, err
    end
    wait("seq:next")
  end
end

--- for t in seq:tokens() do ... end. An error ends the loop: seq:wait() tells it.
function Seq.tokens(s)
  return Seq.next, s
end

--- Runs to the end: {text, finish, n, mean_logprob, usage}, or nil, err. Waits.
function Seq.wait(s)
  while true do
    local id = seq.take(s)
    if id == nil then return seq.result(s) end
    if not id then wait("seq:wait") end
  end
end

--- A new sequence that continues this one's prompt and text so far: their KV pages are
-- shared. opts as in mc.submit, without a prompt.
function Seq.fork(s, opts)
  local list = seq.ids(s)
  return open(opts or {}, list)
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
  local id, state = seq.state(s)
  if key == "id" then return id end
  if key == "state" then return state end
  if key == "ids" then return data.array(ids.table((seq.ids(s)))) end
  return nil
end
meta.__tostring = function(s)
  local id, state = seq.state(s)
  return ("seq %s (%s)"):format(id, state)
end

M.methods = Seq
return M
