--- chat.lua: messages to token ids by the model's chat template.
--
-- Trusted. Messages are brought to one spelling first (messages.lua); a model's
-- template is compiled once a VM, at its first use. Only the template's own
-- text can become control tokens: what a request brought stays text
-- (template.lua marks it).

local host = require "mc.host"
local messages_ = require "mc.messages"
local near = require "mc.near"
local seq = require "mc.seq"

local M = {}
local OPTIONS = {
  add_generation_prompt = true,
  kwargs = true,
  tools = true,
  model = true,
}

local compiled = {} -- model -> {template, trusted, call_ids}

local function compile(model)
  local source, bos, eos = host.engine.template(model)
  if not source then
    return nil, bos or host.error("unsupported_parameter",
      "this model has no chat template: use /v1/completions", "messages")
  end
  local template = require "mc.template" -- large: only VMs that chat load it
  local t, err = template.compile(source, { clock = host.time })
  if not t then
    return nil, host.error("internal_error",
      ("the model's chat template: %s (line %s)")
        :format(err.message, err.line or "?"))
  end
  compiled[model] = {
    template = t,
    trusted = { bos_token = bos, eos_token = eos },
    call_ids = messages_.call_ids(source),
  }
  return compiled[model]
end

local function decode(text)
  return (host.json.decode(text, true))
end

--- The pieces {text, from_user} that messages become. opts:
-- add_generation_prompt (true), kwargs (more variables of the template), tools,
-- model.
function M.pieces(messages, opts)
  opts = near.options("mc.chat.pieces", opts, OPTIONS)
  local model, err = seq.model(opts.model)
  if not model then return nil, err end
  local c = compiled[model]
  if not c then c, err = compile(model) end
  if not c then return nil, err end
  local list, wrong = messages_.prepare(messages,
    { decode = decode, call_ids = c.call_ids })
  if not list then
    return nil, host.error("invalid_value", wrong.message, wrong.param)
  end
  local vars = {}
  for k, v in pairs(opts.kwargs or {}) do
    if type(k) == "string" then vars[k] = v end
  end
  vars.messages, vars.tools = list, opts.tools
  vars.add_generation_prompt = opts.add_generation_prompt ~= false
  local pieces, why = c.template:render(vars, c.trusted)
  if pieces then return pieces end
  return nil, host.error(why.internal and "internal_error" or "invalid_value",
    "the chat template: " .. why.message, "messages")
end

--- The ids that messages become, as mc.submit{ids =} takes them. Waits.
function M.render(messages, opts)
  opts = near.options("mc.chat.render", opts, OPTIONS)
  local pieces, err = M.pieces(messages, opts)
  if not pieces then return nil, err end
  local parts = {}
  for i, p in ipairs(pieces) do
    parts[2 * i - 1], parts[2 * i] = p.text, not p.from_user
  end
  if #parts == 0 then parts = { "", false } end
  return seq.encode(parts, false, (seq.model(opts.model)))
end

seq.render = M.render
return M
