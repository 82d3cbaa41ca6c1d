--- compile.lua: statements to closures; no source is ever made.
--
-- A closure takes a frame and returns nothing, or BREAK or CONTINUE for the loop
-- around it. Text goes to rt.out. Bodies take their cost from the budget each
-- time they run, loops on each turn, so nothing runs unpaid. What a `for ... if`
-- filters out is settled before its first turn (Jinja settles it turn by turn,
-- which only a test that reads a namespace set by the body could tell).

local access = require "mc.jinja.access"
local callables = require "mc.jinja.callables"
local expr = require "mc.jinja.compile_expr"
local globals = require "mc.jinja.globals"
local parser = require "mc.jinja.parser"
local rt_ = require "mc.jinja.rt"
local scope_ = require "mc.jinja.scope"
local show = require "mc.jinja.show"
local str = require "mc.jinja.str"
local V = require "mc.jinja.values"

local M = {}

local type = type
local fail, spend = rt_.fail, rt_.spend
local truth = V.truth
local BREAK, CONTINUE = 1, 2

local STATEMENT = {}

-- bodies and scopes -----------------------------------------------------------------

-- The closure of a list of statements.
local function compile_body(c, list)
  local outer = c.cost
  c.cost = #list
  local parts, n = {}, #list
  for i = 1, n do
    parts[i] = STATEMENT[list[i].k](c, list[i])
  end
  local cost = c.cost
  c.cost = outer
  return function(f)
    spend(f.rt, cost)
    for i = 1, n do
      local signal = parts[i](f)
      if signal then return signal end
    end
  end
end

-- A closure that sets a scope's slots at its entry.
local function compile_entry(scope)
  local steps, n = {}, 0
  for _, e in ipairs(scope.entry) do
    n = n + 1
    local i, name = e.i, e.name
    if e.action == "alias" then
      local read = expr.reader(scope, e.from)
      steps[n] = function(f) f[i] = read(f) end
    elseif e.action == "resolve" then
      steps[n] = function(f)
        local v = f.rt.vars[name]
        if v == nil then v = f.rt.globals[name] end
        f[i] = v
      end
    else
      steps[n] = function(f) f[i] = nil end
    end
  end
  return function(f)
    for k = 1, n do steps[k](f) end
  end
end

-- Runs fn with c inside a scope, where `if` around it no longer counts.
local function inside(c, scope, fn)
  local outer, soft = c.scope, c.soft
  c.scope, c.soft = scope, false
  local a, b = fn()
  c.scope, c.soft = outer, soft
  return a, b
end

-- A body as a scope of its own: what to run at its entry, and the statements.
local function compile_scope(c, scope, list)
  scope_.visit_all(scope, list)
  return inside(c, scope, function()
    return compile_entry(scope), compile_body(c, list)
  end)
end

-- The same in one closure.
local function compile_block(c, scope, list)
  local enter, body = compile_scope(c, scope, list)
  return function(f)
    enter(f)
    return body(f)
  end
end

-- Runs a body with a buffer of its own; returns what was written, and its signal.
local function capture(f, body)
  local rt = f.rt
  local out = rt.out
  rt.out = { n = 0 }
  local signal = body(f)
  local written = rt.out
  rt.out = out
  return str.concat(rt, written, written.n), signal
end

-- A function(f, text) that applies the filters of a block to what it wrote.
local function compile_block_filter(c, scope, n)
  local filter = inside(c, scope, function()
    return expr.filter(c, n, function(f) return f.rt.captured end)
  end)
  return function(f, text)
    f.rt.captured = text -- read before anything else is captured
    return filter(f)
  end
end

-- output --------------------------------------------------------------------------

local function write(rt, v)
  local out = rt.out
  local n = out.n + 1
  out[n], out.n = v, n
end

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

-- assignment ------------------------------------------------------------------------

local function no_target_named_loop(n)
  if n.k == "name" and n.name == "loop" then
    error({
      message = "Can't assign to special loop variable in for-loop target",
      line = n.line, syntax = true,
    }, 0)
  end
  for i = 1, #n do no_target_named_loop(n[i]) end
end

-- Namespaces that a target sets are checked before anything is assigned.
local function namespaces_of(c, target, out)
  if target.k == "nsref" then
    out[#out + 1] = expr.compile(c, { k = "name", line = target.line, name = target.name })
  elseif target.k ~= "name" then
    for i = 1, #target do namespaces_of(c, target[i], out) end
  end
  return out
end

-- A function(f, value) that assigns to a target.
local function compile_target(c, target)
  if target.k == "name" then
    local i = scope_.find(c.scope, target.name).i
    return function(f, v) f[i] = v end
  elseif target.k == "nsref" then
    local read, attr = namespaces_of(c, target, {})[1], target.attr
    return function(f, v) globals.set_attr(read(f), attr, v) end
  end
  local parts, n = {}, #target
  for i = 1, n do parts[i] = compile_target(c, target[i]) end
  return function(f, v)
    local items, count = access.items(f.rt, v)
    if count < n then
      fail("not enough values to unpack (expected %d, got %d)", n, count)
    elseif count > n then
      fail("too many values to unpack (expected %d)", n)
    end
    for i = 1, n do parts[i](f, items[i]) end
  end
end

local function check_namespaces(f, list)
  for i = 1, #list do
    if V.typeof(list[i](f)) ~= V.NS then
      fail("cannot assign attribute on non-namespace object")
    end
  end
end

function STATEMENT.set(c, n)
  if c.loops > 0 then no_target_named_loop(n.target) end
  local value, assign, line = expr.compile(c, n.value), compile_target(c, n.target), n.line
  local spaces = namespaces_of(c, n.target, {})
  return function(f)
    f.rt.line = line
    check_namespaces(f, spaces)
    assign(f, value(f))
  end
end

function STATEMENT.setblock(c, n)
  local scope = scope_.inner(c.scope)
  if n.filter then scope_.visit(scope, n.filter) end
  local body = compile_block(c, scope, n.body)
  local filter = n.filter and compile_block_filter(c, scope, n.filter)
  local assign, line = compile_target(c, n.target), n.line
  return function(f)
    local written, signal = capture(f, body)
    if signal then return signal end
    f.rt.line = line
    assign(f, filter and filter(f, written) or written)
  end
end

-- if, with, blocks ------------------------------------------------------------------

STATEMENT["if"] = function(c, n)
  local soft = c.soft
  c.soft = true
  local tests, bodies, lines, count = {}, {}, {}, #n.branches
  for i, b in ipairs(n.branches) do
    tests[i], bodies[i], lines[i] = expr.compile(c, b.test), compile_body(c, b.body), b.test.line
  end
  local otherwise = n.otherwise and compile_body(c, n.otherwise)
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
  local body = compile_block(c, scope, n.body)
  inside(c, scope, function()
    for i = 1, count do targets[i] = compile_target(c, n.targets[i]) end
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
  local body = compile_block(c, scope_.inner(c.scope), n.body)
  c.loops = loops
  return body
end

function STATEMENT.filterblock(c, n)
  local scope = scope_.inner(c.scope)
  scope_.visit(scope, n.filter)
  local body = compile_block(c, scope, n.body)
  local filter = compile_block_filter(c, scope, n.filter)
  return function(f)
    local written, signal = capture(f, body)
    if signal then return signal end
    f.rt.line = n.line
    write(f.rt, show.str(f.rt, filter(f, written)))
  end
end

-- loops ---------------------------------------------------------------------------

local function jump(signal)
  return function(c, n)
    if c.loops == 0 then
      error({ message = "'" .. n.k .. "' outside loop", line = n.line, syntax = true }, 0)
    end
    return function() return signal end
  end
end

STATEMENT["break"], STATEMENT["continue"] = jump(BREAK), jump(CONTINUE)

-- The items for which a loop's test holds, as a new array; nil without a test.
local function compile_test(c, n)
  if not n.test then return nil end
  local scope = scope_.inner(c.scope)
  scope_.param_target(scope, n.target)
  scope_.visit(scope, n.test)
  return inside(c, scope, function()
    local assign, test = compile_target(c, n.target), expr.compile(c, n.test)
    local enter = compile_entry(scope)
    return function(f, items, count)
      local out, k = {}, 0
      spend(f.rt, count * 4)
      for i = 1, count do
        assign(f, items[i])
        enter(f)
        if truth(test(f)) then
          k = k + 1
          out[k] = items[i]
        end
      end
      return out, k
    end
  end)
end

-- The parts of a loop, compiled inside c.scope: test, assign, enter and body of a
-- turn, otherwise, and the slot of `loop` when anything reads it.
local function compile_loop_parts(c, n)
  no_target_named_loop(n.target)
  local part = { test = compile_test(c, n) }
  local scope = scope_.inner(c.scope)
  local slot = scope_.param(scope, "loop")
  slot.uses = function() part.slot = slot.i end
  scope_.param_target(scope, n.target)
  c.loops = c.loops + 1
  part.turn = compile_block(c, scope, n.body)
  c.loops = c.loops - 1
  part.assign = inside(c, scope, function() return compile_target(c, n.target) end)
  if n.otherwise then
    part.otherwise = compile_block(c, scope_.inner(c.scope), n.otherwise)
  end
  return part
end

-- Runs a loop over v. recurse: what calling `loop` does, with depth0 the level.
local function run_loop(f, part, v, recurse, depth0)
  local rt = f.rt
  local items, n = access.items(rt, v)
  if part.test then items, n = part.test(f, items, n) end
  local loop = part.slot and callables.loop(items, n, recurse, depth0)
  local assign, turn, slot = part.assign, part.turn, part.slot
  local completed = false -- a turn that ends in break or continue does not count
  for i = 1, n do
    spend(rt, 1)
    if loop then
      loop.i = i
      f[slot] = loop
    end
    assign(f, items[i])
    local signal = turn(f)
    if signal == BREAK then break end
    completed = completed or not signal
  end
  if part.otherwise and not completed then return part.otherwise(f) end
end

local function recursive_for(c, n, iter)
  local part = inside(c, scope_.inner(c.scope, true), function()
    local loops = c.loops
    c.loops = 0
    local p = compile_loop_parts(c, n)
    c.loops = loops
    return p
  end)
  local function run(f, v, depth0)
    local rt = f.rt
    local out, line = rt_.enter(rt)
    run_loop({ rt = rt, up = f }, part, v, function(_, args)
      if args.n ~= 1 then fail("loop() takes one argument") end
      return run(f, args[1], depth0 + 1)
    end, depth0)
    local written = rt_.leave(rt, out, line)
    return str.concat(rt, written, written.n)
  end
  return function(f)
    f.rt.line = n.line
    write(f.rt, run(f, iter(f), 0))
  end
end

STATEMENT["for"] = function(c, n)
  local iter = expr.compile(c, n.iter)
  if n.recursive then return recursive_for(c, n, iter) end
  local part, line = compile_loop_parts(c, n), n.line
  return function(f)
    f.rt.line = line
    return run_loop(f, part, iter(f), nil, 0)
  end
end

-- macros --------------------------------------------------------------------------

-- A function from the frame around it to the value of a macro or caller.
local function compile_macro(c, n, name)
  local scope = scope_.inner(c.scope, true)
  local def = { name = name, params = {}, special = {} }
  for i, p in ipairs(n.params) do
    def.params[i] = { name = p.name, i = scope_.param(scope, p.name).i }
  end
  for _, extra in ipairs { "caller", "kwargs", "varargs" } do
    if not scope.refs[extra] then
      local slot, outer = scope_.param(scope, extra), scope_.find(c.scope, extra)
      slot.uses = function() -- a macro around it counts as reading it too
        def.special[extra] = slot.i
        if outer and outer.uses then outer.uses() end
      end
    end
  end
  for _, p in ipairs(n.params) do
    if p.default then scope_.visit(scope, p.default) end
  end
  local loops = c.loops
  c.loops = 0
  def.enter, def.body = compile_scope(c, scope, n.body)
  inside(c, scope, function()
    for i, p in ipairs(n.params) do
      def.params[i].default = p.default and expr.compile(c, p.default)
    end
  end)
  c.loops = loops
  return callables.macro(def)
end

function STATEMENT.macro(c, n)
  local make = compile_macro(c, n, n.name)
  local i = scope_.find(c.scope, n.name).i
  return function(f) f[i] = make(f) end
end

function STATEMENT.callblock(c, n)
  local call, line = expr.call(c, n.call, compile_macro(c, n, nil)), n.line
  return function(f)
    f.rt.line = line
    write(f.rt, show.str(f.rt, call(f)))
  end
end

--- Compiles a template's text; returns a function(rt) that runs it. Raises
-- {message, line, syntax}.
function M.compile(source)
  local tree = parser.parse(source)
  local c = { scope = scope_.root(), cost = 0, loops = 0, soft = false }
  local body = compile_block(c, c.scope, tree)
  return function(rt)
    body({ rt = rt })
  end
end

return M
