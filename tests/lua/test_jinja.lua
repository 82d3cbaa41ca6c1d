--- test_jinja.lua: the chat-template engine against python's jinja2 as
-- transformers sets it up (tests/golden/), its marks, its caps.

package.path = "lua/?.lua;tests/lua/?.lua;" .. package.path

local json = require "json"
local tap = require "tap"
local template = require "mc.template"

jit.off() -- as in the VMs where templates run

-- Feature cases ---------------------------------------------------------------

-- Fri 2024-07-26 09:05:03, as jinja_cases.py has it.
local function clock() return 1721984703 end

local function check_error(want, err, row)
  tap.equal(err.internal, nil, row.template .. "\n  " .. err.message)
  local kind = want.type
  if kind == "TemplateError" then
    tap.equal(err.raised, true, row.template)
  elseif kind == "TemplateSyntaxError" or kind == "TemplateAssertionError"
    or kind == "SyntaxError" then
    tap.equal(err.syntax, true, row.template)
  end
  if kind == "TemplateError" or kind == "UndefinedError"
    or kind == "SecurityError" then
    tap.equal(err.message, want.message, row.template)
  end
end

local rows = json.lines("tests/golden/jinja_cases.jsonl")
local context = rows[1].C

for i = 2, #rows do
  local row = rows[i]
  local name = row.template:gsub("%c", " "):gsub("#", ""):sub(1, 60)
  tap.test("jinja_renders_like_python " .. name, function()
    local t, err = template.compile(row.template, { clock = clock })
    local pieces
    if t then
      local vars = {}
      for _, k in ipairs(context) do vars[k] = context[k] end
      pieces, err = t:render(vars)
    end
    if row.error then
      if pieces then
        error(("%s\n  rendered %q, python raised %s: %s"):format(row.template,
          template.text(pieces), row.error.type, row.error.message))
      end
      return check_error(row.error, err, row)
    end
    if not pieces then error(row.template .. "\n  " .. err.message) end
    tap.equal(template.text(pieces), row.rendered, row.template)
  end)
end

tap.done()
