--- compile.lua: a template to one closure; no source is ever made.
--
-- Here: output, assignment, `if` and blocks. Loops and macros:
-- compile_flow.lua; expressions: compile_expr.lua.

local body_ = require "mc.jinja.compile_body"
local expr = require "mc.jinja.compile_expr"
local parser = require "mc.jinja.parser"
local rt_ = require "mc.jinja.rt"
local scope_ = require "mc.jinja.scope"
local show = require "mc.jinja.show"
local V = require "mc.jinja.values"
require "mc.jinja.compile_flow"

local M = {}

local type = type
local fail, truth, write = rt_.fail, V.truth, body_.write
local STATEMENT = body_.statements

-- output ----------------------------------------------------------------------

local function output_part(c, part)
  if part.k == "data" then
    local text = part.v
    return function(f) write(f.rt, text) end
  end
  local value, line = expr.compile(c, part), part.line
  return function(f)
    local rt = f.rt
    rt.line = line
    local v = value(f)
    if type(v) ~= "string" then v = show.str(rt, v) end
    write(rt, v)
  end
end

function STATEMENT.output(c, n)
  local parts, count = {}, #n
  for i = 1, count do parts[i] = output_part(c, n[i]) end
  if count == 1 then return parts[1] end
  return function(f)
    for i = 1, count do parts[i](f) end
  end
end

-- assignment ------------------------------------------------------------------

local function check_namespaces(f, list)
  for i = 1, #list do
    if V.typeof(list[i](f)) ~= V.NS then
      fail("cannot assign attribute on non-namespace object")
    end
  end
end

function STATEMENT.set(c, n)
  if c.loops > 0 then body_.no_loop_target(n.target) end
  local value, assign = expr.compile(c, n.value), body_.target(c, n.target)
  local line = n.line
  local spaces = body_.namespaces(c, n.target, {})
  return function(f)
    f.rt.line = line
    check_namespaces(f, spaces)
    assign(f, value(f))
  end
end

function STATEMENT.setblock(c, n)
  local scope = scope_.inner(c.scope)
  if n.filter then scope_.visit(scope, n.filter) end
  local body = body_.block(c, scope, n.body)
  local filter = n.filter and body_.filter(c, scope, n.filter)
  local assign, line = body_.target(c, n.target), n.line
  return function(f)
    local written, signal = body_.capture(f, body)
    if signal then return signal end
    f.rt.line = line
    if filter then written = filter(f, written) end
    assign(f, written)
  end
end

-- if, with, blocks ------------------------------------------------------------

STATEMENT["if"] = function(c, n)
  local soft = c.soft
  c.soft = true
  local tests, bodies, lines, count = {}, {}, {}, #n.branches
  for i, b in ipairs(n.branches) do
    tests[i], lines[i] = expr.compile(c, b.test), b.test.line
    bodies[i] = body_.list(c, b.body)
  end
  local otherwise = n.otherwise and body_.list(c, n.otherwise)
  c.soft = soft
  return function(f)
    for i = 1, count do
      f.rt.line = lines[i]
      if truth(tests[i](f)) then return bodies[i](f) end
    end
    if otherwise then return otherwise(f) end
  end
end

STATEMENT["with"] = function(c, n)
  local values, count, targets = {}, #n.values, {}
  for i = 1, count do values[i] = expr.compile(c, n.values[i]) end
  local scope = scope_.inner(c.scope)
  for i = 1, count do scope_.param_target(scope, n.targets[i]) end
  local body = body_.block(c, scope, n.body)
  body_.inside(c, scope, function()
    for i = 1, count do targets[i] = body_.target(c, n.targets[i]) end
  end)
  return function(f)
    f.rt.line = n.line
    for i = 1, count do targets[i](f, values[i](f)) end
    return body(f)
  end
end

function STATEMENT.scope(c, n)
  local loops = c.loops
  c.loops = 0
  local body = body_.block(c, scope_.inner(c.scope), n.body)
  c.loops = loops
  return body
end

function STATEMENT.filterblock(c, n)
  local scope = scope_.inner(c.scope)
  scope_.visit(scope, n.filter)
  local body = body_.block(c, scope, n.body)
  local filter = body_.filter(c, scope, n.filter)
  return function(f)
    local written, signal = body_.capture(f, body)
    if signal then return signal end
    f.rt.line = n.line
    write(f.rt, show.str(f.rt, filter(f, written)))
  end
end

--- Compiles a template's text; returns a function(rt) that runs it. Raises
-- {message, line, syntax}.
function M.compile(source)
  local tree = parser.parse(source)
  local c = { scope = scope_.root(), cost = 0, loops = 0, soft = false }
  local body = body_.block(c, c.scope, tree)
  return function(rt)
    body({ rt = rt })
  end
end

return M
