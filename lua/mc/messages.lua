--- messages.lua: a conversation as clients send it, made what templates expect.
--
-- Histories come in spellings that break templates: arguments as JSON text,
-- content null or in parts, empty lists of calls, reasoning under three names,
-- call ids of another server. `prepare` returns a copy (shapes of data.lua)
-- that has one spelling; the messages given are left as they are. No state, any
-- VM.

local data = require "mc.data"

local M = {}

-- In the order in which transformers looks for it.
local REASONING = { "reasoning_content", "thinking", "reasoning" }

local function copy(map)
  local out = data.map()
  for _, k in ipairs(data.keys(map)) do out[k] = map[k] end
  return out
end

local function present(v)
  return v ~= nil and v ~= data.null
end

local function shape(v)
  return type(v) == "table" and data.kind(v) or type(v)
end

local function empty(t)
  return t[1] == nil and data.keys(t)[1] == nil
end

-- A refusal; the format `param` names the field, counting from 0 as JSON does.
local function wrong(message, param, i, j)
  return nil, {
    message = message, param = param:format(i and i - 1, j and j - 1),
  }
end

-- The text of content: a string, nothing, or parts of type text, a line each.
local function text_of(content, i)
  if not present(content) then return "" end
  if type(content) == "string" then return content end
  local kind = shape(content)
  if kind ~= "array" and not (kind == "object" and empty(content)) then
    return wrong("content must be a string or an array of parts",
                 "messages[%d].content", i)
  end
  local out = {}
  for j, part in ipairs(content) do
    if shape(part) == "object" and part.type == "text" then
      part = part.text
    end
    if type(part) ~= "string" then
      return wrong("only parts of type text can be read",
                   "messages[%d].content[%d]", i, j)
    end
    out[j] = part
  end
  return table.concat(out, "\n")
end

-- One call: arguments parsed where they are the text of an object (no text at
-- all: no arguments), kept as they are where they are not.
local function call_of(call, decode, i, j)
  local fn = shape(call) == "object" and call["function"]
  if shape(fn) ~= "object" or type(fn.name) ~= "string" then
    return wrong("a tool call needs a function with a name",
                 "messages[%d].tool_calls[%d]", i, j)
  end
  local args = fn.arguments
  if not present(args) or (type(args) == "string" and not args:find("%S")) then
    args = data.map()
  elseif type(args) == "string" then
    local value = decode(args)
    if shape(value) == "object" then args = value end
  end
  local out = copy(call)
  out["function"] = copy(fn)
  out["function"].arguments = args
  return out
end

local function calls_of(calls, decode, i)
  if not present(calls) then return nil end
  if type(calls) == "table" and empty(calls) then return nil end
  if shape(calls) ~= "array" then
    return wrong("tool_calls must be an array", "messages[%d].tool_calls", i)
  end
  local out = data.array()
  for j, call in ipairs(calls) do
    local made, err = call_of(call, decode, i, j)
    if not made then return nil, err end
    out[j] = made
  end
  return out
end

-- Gives every call the id functions.NAME:N, N counting over the conversation,
-- and every answer the new id of its call: Kimi's models were trained on no
-- other.
local function number_calls(messages)
  local new, n = {}, 0
  for _, m in ipairs(messages) do
    for _, call in ipairs(m.tool_calls or {}) do
      local id = ("functions.%s:%d"):format(call["function"].name, n)
      if type(call.id) == "string" then new[call.id] = id end
      call.id = id
      n = n + 1
    end
    local answered = m.tool_call_id
    if type(answered) == "string" and new[answered] then
      m.tool_call_id = new[answered]
    end
  end
end

local function prepare_one(m, opts, i)
  if shape(m) ~= "object" or type(m.role) ~= "string" then
    return wrong("a message needs a role", "messages[%d]", i)
  end
  local out = copy(m)
  local text, err = text_of(m.content, i)
  if not text then return nil, err end
  out.content = text
  local calls
  calls, err = calls_of(m.tool_calls, opts.decode, i)
  if err then return nil, err end
  out.tool_calls = calls
  for _, name in ipairs(REASONING) do
    if present(m[name]) then
      out.thinking = present(m.thinking) and m.thinking or m[name]
      out.reasoning_content = m[name]
      break
    end
  end
  return out
end

--- The form of call ids that a template wants (source: its text), for opts of
-- prepare: "functions" where it writes Kimi's calls, else nil, ids as they are.
function M.call_ids(source)
  if source:find("<|tool_call_argument_begin|>", 1, true) then
    return "functions"
  end
end

--- A copy of messages in one spelling, or nil, {message, param}.
-- opts.decode(text) parses JSON and returns nil when it cannot; opts.call_ids =
-- "functions" renames calls to functions.NAME:N.
function M.prepare(messages, opts)
  if shape(messages) ~= "array" or messages[1] == nil then
    return wrong("messages must be an array of at least one", "messages")
  end
  local out = data.array()
  for i, m in ipairs(messages) do
    local made, err = prepare_one(m, opts, i)
    if not made then return nil, err end
    out[i] = made
  end
  if opts.call_ids == "functions" then number_calls(out) end
  return out
end

return M
