--- render.lua: one chat template and what it makes of conversations, for the
-- command line.
--
-- Trusted; used by lua/host/render.c, without a server around it.

local json = require "mc.host".json
local messages = require "mc.messages"
local template = require "mc.template"

local M = {}
local compiled, tokens, call_ids

local function decode(text)
  return (json.decode(text, true))
end

--- Compiles source; bos, eos: texts of the model's tokens. clock: Unix seconds
-- to show.
function M.open(source, bos, eos, clock)
  local t, err = template.compile(source, { clock = clock })
  if not t then
    error(("line %s: %s"):format(err.line or "?", err.message), 0)
  end
  compiled, tokens = t, { bos_token = bos, eos_token = eos }
  call_ids = messages.call_ids(source)
end

--- Pieces {text, from_user} of input: {messages, tools, ...}, the template's
-- variables. asis: messages go in as they are.
function M.render(input, asis)
  local vars = {}
  for k, v in pairs(input) do
    if type(k) == "string" then vars[k] = v end
  end
  if not asis then
    local list, err = messages.prepare(input.messages,
      { decode = decode, call_ids = call_ids })
    if not list then error(err.message, 0) end
    vars.messages = list
  end
  if vars.add_generation_prompt == nil then
    vars.add_generation_prompt = true
  end
  local pieces, err = compiled:render(vars, tokens)
  if not pieces then
    error(("line %s: %s"):format(err.line or "?", err.message), 0)
  end
  return pieces
end

return M
