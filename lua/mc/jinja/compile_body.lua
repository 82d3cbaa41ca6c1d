--- compile_body.lua: what all statements share: bodies, scopes, buffers,
-- targets.
--
-- A statement's closure takes a frame and returns nothing, or BREAK or CONTINUE
-- for the loop around it; text goes to rt.out. A body takes its cost from the
-- budget each time it runs, so nothing runs unpaid. `statements` is the table
-- kind -> function(c, node) that compile.lua and compile_flow.lua fill; c is
-- the compiler of compile_expr.lua with loops, the number of loops around.

local access = require "mc.jinja.access"
local expr = require "mc.jinja.compile_expr"
local globals = require "mc.jinja.globals"
local rt_ = require "mc.jinja.rt"
local scope_ = require "mc.jinja.scope"
local str = require "mc.jinja.str"

local M = { BREAK = 1, CONTINUE = 2, statements = {} }

local fail, spend = rt_.fail, rt_.spend

--- The closure of a list of statements.
function M.list(c, list)
  local outer = c.cost
  c.cost = #list
  local parts, n = {}, #list
  for i = 1, n do
    parts[i] = M.statements[list[i].k](c, list[i])
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

--- A closure that sets a scope's slots at its entry.
function M.entry(scope)
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

--- Runs fn with c inside a scope, where an `if` around it no longer counts.
function M.inside(c, scope, fn)
  local outer, soft = c.scope, c.soft
  c.scope, c.soft = scope, false
  local a, b = fn()
  c.scope, c.soft = outer, soft
  return a, b
end

--- A body as a scope of its own: what to run at its entry, and the statements.
function M.scope(c, scope, list)
  scope_.visit_all(scope, list)
  return M.inside(c, scope, function()
    return M.entry(scope), M.list(c, list)
  end)
end

--- The same in one closure.
function M.block(c, scope, list)
  local enter, body = M.scope(c, scope, list)
  return function(f)
    enter(f)
    return body(f)
  end
end

--- Runs a body with a buffer of its own; returns what it wrote, and its signal.
function M.capture(f, body)
  local rt = f.rt
  local out = rt.out
  rt.out = { n = 0 }
  local signal = body(f)
  local written = rt.out
  rt.out = out
  return str.concat(rt, written, written.n), signal
end

--- A function(f, text) that applies the filters of a block to what it wrote.
function M.filter(c, scope, n)
  local filter = M.inside(c, scope, function()
    return expr.filter(c, n, function(f) return f.rt.captured end)
  end)
  return function(f, text)
    f.rt.captured = text -- read before anything else is captured
    return filter(f)
  end
end

--- Appends a string value to what is being written.
function M.write(rt, v)
  local out = rt.out
  local n = out.n + 1
  out[n], out.n = v, n
end

-- targets ---------------------------------------------------------------------

--- Refuses a target named `loop`, which belongs to the loop.
function M.no_loop_target(n)
  if n.k == "name" and n.name == "loop" then
    error({
      message = "Can't assign to special loop variable in for-loop target",
      line = n.line, syntax = true,
    }, 0)
  end
  for i = 1, #n do M.no_loop_target(n[i]) end
end

--- Closures that read the namespaces which a target sets.
function M.namespaces(c, target, out)
  if target.k == "nsref" then
    out[#out + 1] = expr.compile(c, { k = "name", name = target.name })
  elseif target.k ~= "name" then
    for i = 1, #target do M.namespaces(c, target[i], out) end
  end
  return out
end

--- A function(f, value) that assigns to a target.
function M.target(c, target)
  if target.k == "name" then
    local i = scope_.find(c.scope, target.name).i
    return function(f, v) f[i] = v end
  elseif target.k == "nsref" then
    local read, attr = M.namespaces(c, target, {})[1], target.attr
    return function(f, v) globals.set_attr(read(f), attr, v) end
  end
  local parts, n = {}, #target
  for i = 1, n do parts[i] = M.target(c, target[i]) end
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

return M
