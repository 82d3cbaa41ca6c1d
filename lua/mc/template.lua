--- template.lua: a model's chat template, compiled once and rendered often.
--
--   local t, err = template.compile(source, { clock = seconds })
--   local pieces, err = t:render({ messages = m, tools = tools,
--                                  add_generation_prompt = true },
--                                { bos_token = "<s>" })
--
-- The template language is Jinja2's as transformers sets it up (sandboxed,
-- nothing mutable, trim_blocks, lstrip_blocks, loop controls, generation
-- blocks); values come and go in the shapes of data.lua. What a request brought
-- is marked, what the template says is not, and each piece of the result tells
-- which it is, so that only a template's own text can become a special token. A
-- tokenizer must still join the text between two special tokens before it
-- splits it.
--
-- Errors are nil, {message =, line =} and more: `syntax` for a template that
-- does not compile, `raised` for one that refuses a conversation by
-- raise_exception. Nothing else leaves: no Lua error, no endless loop. Any VM;
-- a compiled template never changes.

local compile = require "mc.jinja.compile"
local globals = require "mc.jinja.globals"
local rt_ = require "mc.jinja.rt"
local str = require "mc.jinja.str"
local V = require "mc.jinja.values"

local M = {}

M.MAX_STEPS = 1e6 -- closures run and items walked in one rendering
M.MAX_BYTES = 16 * 1024 * 1024 -- of output, and of any string on the way

local Template = {}
Template.__index = Template

-- Roles are words of the format, not of the user: some templates spell their
-- special tokens with them ("<|" + role + "|>"). Only these, only here.
local ROLES = {
  system = true, user = true, assistant = true, tool = true, developer = true,
  ["function"] = true,
}

local function trust_roles(messages)
  if V.typeof(messages) ~= V.LIST then return end
  for i = 1, #messages do
    local m = messages[i]
    local role = V.typeof(m) == V.DICT and str.text(m.h.role)
    if role and ROLES[role] then m.h.role = role end
  end
end

local TRANSFORMERS = {
  tools = V.none, documents = V.none, add_generation_prompt = false,
}

-- The variables of a rendering: what transformers always passes, the trusted
-- ones, and over both what the request brought.
local function variables(given, trusted)
  local vars = {}
  for name, v in pairs(TRANSFORMERS) do vars[name] = v end
  for name, v in pairs(trusted or {}) do vars[name] = V.import(v, false) end
  for name, v in pairs(given) do
    if type(name) == "string" then vars[name] = V.import(v, true) end
  end
  if vars.messages then trust_roles(vars.messages) end
  return vars
end

-- An error as callers see it.
local function report(e, line)
  if type(e) == "table" and e.message then
    e.line = e.line or line
    return e
  end
  local s = tostring(e)
  if s:find("stack overflow", 1, true) then
    return { message = "the template nests too deeply", line = line }
  end
  return { message = "internal error: " .. s, line = line, internal = true }
end

--- Compiles a template. opts.clock() is the time that strftime_now shows:
-- seconds since 1970, moved by the zone's offset where local time is wanted.
function M.compile(source, opts)
  local ok, run = pcall(compile.compile, source)
  if not ok then return nil, report(run) end
  return setmetatable({
    run = run, globals = globals.new(opts and opts.clock),
  }, Template)
end

--- Renders with the request's variables (marked as a user's) and trusted ones
-- (special tokens). limits: max_steps, max_bytes. Returns a list of
-- {text =, from_user =}.
function Template:render(given, trusted, limits)
  limits = limits or {}
  local rt
  local ok, result = pcall(function()
    rt = rt_.new(variables(given, trusted), self.globals, {
      max_steps = limits.max_steps or M.MAX_STEPS,
      max_bytes = limits.max_bytes or M.MAX_BYTES,
    })
    self.run(rt)
    return str.pieces(str.concat(rt, rt.out, rt.out.n))
  end)
  if not ok then return nil, report(result, rt and rt.line) end
  return result
end

--- The text of pieces, marks forgotten.
function M.text(pieces)
  local out = {}
  for i = 1, #pieces do out[i] = pieces[i].text end
  return table.concat(out)
end

return M
