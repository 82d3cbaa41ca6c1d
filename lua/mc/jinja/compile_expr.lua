--- compile_expr.lua: expressions to closures.
--
-- A closure takes a frame f {rt, up = the frame around it, slots 1..n} and
-- returns a value. The compiler c is {scope, soft, cost}: soft, inside `if`,
-- lets an unknown filter be an error only when it runs; cost counts the
-- closures made, which is what a body later takes from the budget each time it
-- runs.

local access = require "mc.jinja.access"
local filters = require "mc.jinja.filters"
local format = require "mc.jinja.format"
local ops = require "mc.jinja.ops"
local rt_ = require "mc.jinja.rt"
local scope_ = require "mc.jinja.scope"
local show = require "mc.jinja.show"
local sig = require "mc.jinja.sig"
local str = require "mc.jinja.str"
local tests = require "mc.jinja.tests"
local V = require "mc.jinja.values"

local M = {}

local type = type
local fail, spend = rt_.fail, rt_.spend
local truth, typeof = V.truth, V.typeof
local DICT, STR = V.DICT, V.STR

local EXPR = {}

--- The closure of an expression.
local function compile(c, n)
  c.cost = c.cost + 1
  return EXPR[n.k](c, n)
end
M.compile = compile

local function compile_all(c, list)
  local out = {}
  for i = 1, #list do out[i] = compile(c, list[i]) end
  return out
end

-- names and literals ----------------------------------------------------------

--- A function that reads a slot: frame -> value or nil.
function M.reader(scope, slot)
  local i, hops = slot.i, scope_.hops(scope, slot)
  if hops == 0 then
    return function(f) return f[i] end
  elseif hops == 1 then
    return function(f) return f.up[i] end
  end
  return function(f)
    for _ = 1, hops do f = f.up end
    return f[i]
  end
end

function EXPR.name(c, n)
  local name = n.name
  local slot = scope_.find(c.scope, name)
  if slot.uses then slot.uses() end
  local read = M.reader(c.scope, slot)
  return function(f)
    local v = read(f)
    if v == nil then return V.undefined(name) end
    return v
  end
end

function EXPR.const(_, n)
  local v = n.v
  return function() return v end
end

local function sequence(kind)
  return function(c, n)
    local parts, count = compile_all(c, n), #n
    return function(f)
      local out = { t = kind }
      for i = 1, count do out[i] = parts[i](f) end
      return out
    end
  end
end

EXPR.list = sequence(V.LIST)
EXPR.tuple = sequence(V.TUPLE)

function EXPR.dict(c, n)
  local keys, values = compile_all(c, n.keys), compile_all(c, n.values)
  local count = #keys
  return function(f)
    local d = V.dict()
    for i = 1, count do V.put(d, keys[i](f), values[i](f)) end
    return d
  end
end

-- operators -------------------------------------------------------------------

local function binary(op)
  return function(c, n)
    local a, b = compile(c, n[1]), compile(c, n[2])
    return function(f)
      return op(f.rt, a(f), b(f))
    end
  end
end

local function add(rt, a, b)
  if type(a) == "string" and type(b) == "string" then
    return str.join2(rt, a, b)
  end
  return ops.add(rt, a, b)
end

local function mod(rt, a, b)
  if typeof(a) == STR then return format.percent(rt, a, b) end
  return ops.mod(rt, a, b)
end

EXPR.add, EXPR.sub, EXPR.mul = binary(add), binary(ops.sub), binary(ops.mul)
EXPR.div, EXPR.floordiv = binary(ops.div), binary(ops.floordiv)
EXPR.mod, EXPR.pow = binary(mod), binary(ops.pow)

function EXPR.neg(c, n)
  local a = compile(c, n[1])
  return function(f) return ops.neg(f.rt, a(f)) end
end

function EXPR.pos(c, n)
  local a = compile(c, n[1])
  return function(f)
    return ops.neg(f.rt, ops.neg(f.rt, a(f)))
  end
end

EXPR["not"] = function(c, n)
  local a = compile(c, n[1])
  return function(f) return not truth(a(f)) end
end

-- `and` stops at the first false operand, `or` at the first true one.
local function junction(stop)
  return function(c, n)
    local parts, count = compile_all(c, n), #n
    return function(f)
      for i = 1, count - 1 do
        local v = parts[i](f)
        if truth(v) == stop then return v end
      end
      return parts[count](f)
    end
  end
end

EXPR["and"], EXPR["or"] = junction(false), junction(true)

function EXPR.concat(c, n)
  local parts, count = compile_all(c, n), #n
  return function(f)
    local rt, list = f.rt, {}
    for i = 1, count do
      local v = parts[i](f)
      list[i] = type(v) == "string" and v or show.str(rt, v)
    end
    return str.concat(rt, list, count)
  end
end

local COMPARE = {
  ["=="] = function(_, a, b) return a == b or ops.eq(a, b) end,
  ["!="] = function(_, a, b) return not ops.eq(a, b) end,
  ["<"] = function(_, a, b) return ops.lt(a, b, "<") end,
  ["<="] = function(_, a, b) return ops.le(a, b, "<=") end,
  [">"] = function(_, a, b) return ops.lt(b, a, ">") end,
  [">="] = function(_, a, b) return ops.le(b, a, ">=") end,
  ["in"] = function(rt, a, b) return access.contains(rt, b, a) end,
  ["not in"] = function(rt, a, b) return not access.contains(rt, b, a) end,
}

function EXPR.compare(c, n)
  local parts, count, tests_ = compile_all(c, n), #n, {}
  for i, op in ipairs(n.ops) do tests_[i] = COMPARE[op] end
  if count == 2 then
    local a, b, test = parts[1], parts[2], tests_[1]
    return function(f) return test(f.rt, a(f), b(f)) end
  end
  return function(f)
    local left = parts[1](f)
    for i = 2, count do
      local right = parts[i](f)
      if not tests_[i - 1](f.rt, left, right) then return false end
      left = right
    end
    return true
  end
end

function EXPR.cond(c, n)
  local soft = c.soft
  c.soft = true
  local test, yes = compile(c, n.test), compile(c, n.yes)
  local no = n.no and compile(c, n.no)
  c.soft = soft
  local hint = ("the inline if-expression on line %d evaluated to false and "
    .. "no else section was defined."):format(n.line)
  return function(f)
    if truth(test(f)) then return yes(f) end
    if no then return no(f) end
    return V.undefined(nil, nil, hint)
  end
end

-- subscripts ------------------------------------------------------------------

function EXPR.getattr(c, n)
  local object, name = compile(c, n[1]), n.name
  return function(f)
    return access.getattr(object(f), name)
  end
end

function EXPR.getitem(c, n)
  local object, key = compile(c, n[1]), compile(c, n[2])
  return function(f)
    return access.getitem(f.rt, object(f), key(f))
  end
end

function EXPR.slice(c, n)
  local object = compile(c, n[1])
  local lo, hi = n.lo and compile(c, n.lo), n.hi and compile(c, n.hi)
  local step = n.step and compile(c, n.step)
  return function(f)
    local v = object(f)
    return access.slice(f.rt, v, lo and lo(f), hi and hi(f), step and step(f))
  end
end

-- calls -----------------------------------------------------------------------

local NO_ARGS = { names = {}, values = {} }

-- A function from a frame to (args, kw) in the form of V.func. `caller`, for
-- call blocks, reads the value that goes along as the keyword of that name.
local function arguments(c, n, caller)
  local args = compile_all(c, n)
  local names, values = n.names, compile_all(c, n.values)
  local star = n.star and compile(c, n.star)
  local star2 = n.star2 and compile(c, n.star2)
  local keywords = names[1] or star2 or caller
  local function add_keyword(kw, name, v)
    if kw[name] ~= nil then
      fail("got multiple values for keyword argument '%s'", name)
    end
    kw[#kw + 1], kw[name] = name, v
  end
  local function keywords_of(f)
    local kw = {}
    for i = 1, #names do add_keyword(kw, names[i], values[i](f)) end
    if caller then add_keyword(kw, "caller", caller(f)) end
    local more = star2 and star2(f)
    if more and typeof(more) ~= DICT then
      fail("argument after ** must be a mapping")
    end
    for _, k in ipairs(more and more.k or {}) do
      local name = str.text(k) or fail("keywords must be strings")
      add_keyword(kw, name, V.lookup(more, k))
    end
    return kw
  end
  return function(f)
    local out = { n = #args }
    for i = 1, #args do out[i] = args[i](f) end
    if star then
      local items, count = access.items(f.rt, star(f))
      for i = 1, count do out[#args + i] = items[i] end
      out.n = #args + count
    end
    return out, keywords and keywords_of(f) or nil
  end
end

-- Takes from the budget what walking a text costs.
local function charge(rt, v)
  local s = str.text(v)
  if s and #s > 128 then rt_.walk(rt, #s) end
end

-- Whether arguments are few, positional only, and what s takes.
local function fits(s, args)
  local plain = not (args.names[1] or args.star or args.star2 or s.variadic)
  return plain and #args <= 3 and #args <= s.n and #args >= s.min
end

-- A closure for s(subject, args) when s is known and the arguments are simple
-- and fit it; nil otherwise.
local function direct(c, s, subject, args)
  if not fits(s, args) then return nil end
  local fn = s.fn
  local a, b, d = unpack(compile_all(c, args))
  if not a then
    return function(f)
      local v = subject(f)
      charge(f.rt, v)
      return fn(f.rt, v)
    end
  elseif not b then
    return function(f)
      local v = subject(f)
      charge(f.rt, v)
      return fn(f.rt, v, a(f))
    end
  end
  return function(f)
    local v = subject(f)
    charge(f.rt, v)
    return fn(f.rt, v, a(f), b(f), d and d(f))
  end
end

-- A filter or test applied to what `subject` gives.
local function apply(c, n, what, all, subject)
  local name, args = n.name, n.args or NO_ARGS
  local s = all[name]
  if not s then
    local message = ("No %s named '%s'."):format(what, name)
    if not c.soft then
      error({ message = message, line = n.line, syntax = true }, 0)
    end
    return function() fail("%s", message) end
  end
  local closure = direct(c, s, subject, args)
  if closure then return closure end
  local given = arguments(c, args)
  return function(f)
    local v = subject(f)
    charge(f.rt, v)
    return sig.call(f.rt, s, name, v, given(f))
  end
end

--- A filter; `subject` gives what is filtered when the node says nothing.
function M.filter(c, n, subject)
  if n[1] and n[1].k == "filter" then
    subject = M.filter(c, n[1], subject)
  elseif n[1] then
    subject = compile(c, n[1])
  end
  c.cost = c.cost + 1
  return apply(c, n, "filter", filters, subject)
end

function EXPR.filter(c, n)
  return M.filter(c, n, nil)
end

function EXPR.test(c, n)
  return apply(c, n, "test", tests, compile(c, n[1]))
end

-- object.name(...): a method of a string, dict or list is called without being
-- made a value first.
local function method_call(c, n, caller)
  local object, name = compile(c, n[1][1]), n[1].name
  local given = arguments(c, n.args, caller)
  return function(f)
    local rt, v = f.rt, object(f)
    local t = typeof(v)
    local m = t.methods and t.methods[name]
    charge(rt, v)
    if m then
      return sig.call(rt, m, name .. "()", v, given(f))
    end
    local fn = access.getattr(v, name)
    return access.call(rt, fn, given(f))
  end
end

--- A call; `caller` as in a call block.
function M.call(c, n, caller)
  if n[1].k == "getattr" then return method_call(c, n, caller) end
  local fn, given = compile(c, n[1]), arguments(c, n.args, caller)
  return function(f)
    local v = fn(f)
    spend(f.rt, 1)
    return access.call(f.rt, v, given(f))
  end
end

function EXPR.call(c, n)
  return M.call(c, n, nil)
end

return M
