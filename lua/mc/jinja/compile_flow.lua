--- compile_flow.lua: loops and macros.
--
-- What a `for ... if` leaves out is settled before the first turn (Jinja
-- settles it turn by turn, which only a test that reads a namespace set by the
-- body could tell). A loop that reads `loop` has one such value, whose index
-- moves.

local access = require "mc.jinja.access"
local body_ = require "mc.jinja.compile_body"
local callables = require "mc.jinja.callables"
local expr = require "mc.jinja.compile_expr"
local rt_ = require "mc.jinja.rt"
local scope_ = require "mc.jinja.scope"
local show = require "mc.jinja.show"
local str = require "mc.jinja.str"
local V = require "mc.jinja.values"

local fail, spend, truth = rt_.fail, rt_.spend, V.truth
local write, BREAK, CONTINUE = body_.write, body_.BREAK, body_.CONTINUE
local STATEMENT = body_.statements

-- loops -----------------------------------------------------------------------

local function jump(signal)
  return function(c, n)
    if c.loops == 0 then
      error({
        message = "'" .. n.k .. "' outside loop", line = n.line, syntax = true,
      }, 0)
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
  return body_.inside(c, scope, function()
    local before = c.cost
    local assign, test = body_.target(c, n.target), expr.compile(c, n.test)
    local enter, cost = body_.entry(scope), c.cost - before
    return function(f, items, count)
      local out, k = {}, 0
      spend(f.rt, count * cost)
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

-- The parts of a loop, compiled inside c.scope: test, assign, enter and body of
-- a turn, otherwise, and the slot of `loop` when anything reads it.
local function compile_loop_parts(c, n)
  body_.no_loop_target(n.target)
  local part = { test = compile_test(c, n) }
  local scope = scope_.inner(c.scope)
  local slot = scope_.param(scope, "loop")
  slot.uses = function() part.slot = slot.i end
  scope_.param_target(scope, n.target)
  c.loops = c.loops + 1
  part.turn = body_.block(c, scope, n.body)
  c.loops = c.loops - 1
  part.assign = body_.inside(c, scope, function()
    return body_.target(c, n.target)
  end)
  if n.otherwise then
    part.otherwise = body_.block(c, scope_.inner(c.scope), n.otherwise)
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
  local completed = false -- a turn that break or continue ends does not count
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
  local part = body_.inside(c, scope_.inner(c.scope, true), function()
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

-- macros ----------------------------------------------------------------------

-- A function from the frame around it to the value of a macro or caller.
local function compile_macro(c, n, name)
  local scope = scope_.inner(c.scope, true)
  local def = { name = name, params = {}, special = {} }
  for i, p in ipairs(n.params) do
    def.params[i] = { name = p.name, i = scope_.param(scope, p.name).i }
  end
  for _, extra in ipairs { "caller", "kwargs", "varargs" } do
    if not scope.refs[extra] then
      local slot = scope_.param(scope, extra)
      local outer = scope_.find(c.scope, extra)
      slot.uses = function() -- a macro around it counts as reading it too
        def.special[extra] = slot.i
        if outer and outer.uses then outer.uses() end
      end
    end
  end
  for _, p in ipairs(n.params) do
    if p.default then scope_.visit(scope, p.default) end
  end
  local loops, before = c.loops, c.cost
  c.loops = 0
  def.enter, def.body = body_.scope(c, scope, n.body)
  body_.inside(c, scope, function()
    for i, p in ipairs(n.params) do
      def.params[i].default = p.default and expr.compile(c, p.default)
    end
  end)
  c.loops, def.cost = loops, c.cost - before
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
