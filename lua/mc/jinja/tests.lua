--- tests.lua: what may stand after `is`. The module is name -> signature.
--
-- A test answers true or false, never a value. Stateless.

local access = require "mc.jinja.access"
local methods = require "mc.jinja.methods"
local ops = require "mc.jinja.ops"
local show = require "mc.jinja.show"
local sig = require "mc.jinja.sig"
local str = require "mc.jinja.str"
local V = require "mc.jinja.values"

-- Whether v is of one of these kinds.
local function of(...)
  local set = {}
  for i = 1, select("#", ...) do
    set[select(i, ...)] = true
  end
  return { "", function(_, v) return set[V.typeof(v)] == true end }
end

local function exactly(what)
  return { "", function(_, v) return v == what end }
end

local function remainder(by, is)
  return { "", function(rt, v) return V.number(ops.mod(rt, v, by)) == is end }
end

local function is_case(fn)
  return { "", function(rt, v) return fn(str.text(show.str(rt, v))) end }
end

local function callable(_, v)
  return type(v) == "table" and (v.call ~= nil or v.t == V.UNDEF)
end

local function sameas(_, v, other)
  if type(v) == "table" and v.t == V.STR then return ops.eq(v, other) end
  return v == other
end

local function compare(fn)
  return { "other", function(_, a, b) return fn(a, b) end }
end

local eq = compare(ops.eq)
local ne = compare(function(a, b) return not ops.eq(a, b) end)
local lt = compare(function(a, b) return ops.lt(a, b, "<") end)
local le = compare(function(a, b) return ops.le(a, b, "<=") end)
local gt = compare(function(a, b) return ops.lt(b, a, ">") end)
local ge = compare(function(a, b) return ops.le(b, a, ">=") end)

local T = sig.table {
  odd = remainder(2, 1),
  even = remainder(2, 0),
  divisibleby = { "num", function(rt, v, n)
    return V.number(ops.mod(rt, v, n)) == 0
  end },
  defined = { "", function(_, v) return V.typeof(v) ~= V.UNDEF end },
  undefined = of(V.UNDEF),
  none = exactly(V.none),
  ["true"] = exactly(true),
  ["false"] = exactly(false),
  boolean = of(V.BOOL),
  integer = { "", function(_, v) return V.typename(v) == "int" end },
  float = { "", function(_, v) return V.typename(v) == "float" end },
  number = of(V.NUMBER, V.FLOAT, V.BIG, V.BOOL),
  string = of(V.STR),
  mapping = of(V.DICT),
  sequence = of(V.STR, V.LIST, V.TUPLE, V.RANGE, V.DICT, V.UNDEF),
  iterable = { "", function(_, v) return access.iterable(v) end },
  callable = { "", callable },
  lower = is_case(methods.is_lower),
  upper = is_case(methods.is_upper),
  sameas = { "other", sameas },
  escaped = { "", function() return false end },
  ["in"] = { "seq", function(rt, v, seq)
    return access.contains(rt, seq, v)
  end },
  ["=="] = eq, eq = eq, equalto = eq,
  ["!="] = ne, ne = ne,
  ["<"] = lt, lt = lt, lessthan = lt,
  ["<="] = le, le = le,
  [">"] = gt, gt = gt, greaterthan = gt,
  [">="] = ge, ge = ge,
}

T.test = sig.new("", function(_, v)
  local name = str.text(v)
  return name ~= nil and T[name] ~= nil
end)

return T
