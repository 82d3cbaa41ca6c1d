--- values.lua: the values a template computes with.
--
-- Lua strings, booleans and numbers are themselves: a number without a fraction
-- is Python's int, one with a fraction its float. Everything else is a table
-- whose field t is its kind, one of the tables below (no metatables):
--   STR    {s, f}            a string with marks (str.lua)
--   NONE   V.none            UNDEF {name, obj, hint}
--   FLOAT  {v}               a float that is whole, infinite or nan
--   BIG    {s}               an integer beyond 2^53: carried and printed only
--   LIST, TUPLE {v1, v2..}   RANGE {v1.., start, stop, step}
--   DICT   {k = keys, h = hash of key -> value}
--   VIEW   {items, name}     dict.items() and its like
--   GEN    {make, items, at} what Python makes a generator: walked once
--   NS     {k, h}            namespace(), the one value that changes
--   others {call = function(rt, args, kw)}: functions, macros, `loop`, cyclers
-- Lists and dicts that came from a request have user = true. No value but NS
-- changes after it is made, so parts are shared freely. A kind may hold
-- `methods` (name -> signature, sig.lua), `attrs` (name -> function(v)), len,
-- repr.

local data = require "mc.data"
local rt_ = require "mc.jinja.rt"
local str = require "mc.jinja.str"

local V = {}

local type = type
local fail, text, user = rt_.fail, str.text, str.user

local function kind(name, more)
  local k = more or {}
  k.name = name
  return k
end

local STR = str.STR
local NONE, UNDEF = kind "NoneType", kind "Undefined"
local BOOL, NUMBER = kind "bool", kind "int"
local FLOAT, BIG = kind "float", kind "int"
local LIST, TUPLE = kind "list", kind "tuple"
local RANGE, DICT = kind "range", kind "dict"
local VIEW, GEN = kind "dict_view", kind "generator"
local NS, FUNC = kind "Namespace", kind "function"
V.STR, V.NONE, V.UNDEF, V.BOOL, V.NUMBER = STR, NONE, UNDEF, BOOL, NUMBER
V.FLOAT, V.BIG, V.LIST, V.TUPLE, V.RANGE = FLOAT, BIG, LIST, TUPLE, RANGE
V.DICT, V.VIEW, V.GEN, V.NS, V.FUNC = DICT, VIEW, GEN, NS, FUNC
V.kind = kind

local none = { t = NONE }
V.none = none

local PRIMITIVE = {
  string = STR, number = NUMBER, boolean = BOOL,
}

--- The kind of a value.
local function typeof(v)
  if type(v) == "table" then return v.t end
  return PRIMITIVE[type(v)]
end
V.typeof = typeof

--- Python's name of a value's type, for messages.
function V.typename(v)
  if type(v) == "number" and v % 1 ~= 0 then return "float" end
  local t = typeof(v)
  return t == VIEW and v.name or t.name
end

--- Turns an array of values, which the caller gives up, into a list.
function V.list(items)
  items.t = LIST
  return items
end

--- As V.list, a tuple.
function V.tuple(items)
  items.t = TUPLE
  return items
end

--- What Python would return as a generator: make() gives its items, all of them
-- when the first is asked for.
function V.gen(make)
  return { t = GEN, make = make, at = 0 }
end

--- The items of a generator; those up to g.at have been taken.
function V.made(g)
  if not g.items then g.items = g.make() end
  return g.items
end

--- A function value; call(rt, args, kw): args is {n =, ...}; kw is nil or, like
-- an object of data.lua, names in order and name -> value.
function V.func(name, call)
  return { t = FUNC, name = name, call = call }
end

--- A float: plain when its fraction tells it from an int, else boxed.
local function float(x)
  if x % 1 == 0 or x - x ~= 0 then
    return { t = FLOAT, v = x }
  end
  return x
end
V.float = float

--- Undefined, as for a variable of that name, or an element of obj.
function V.undefined(name, obj, hint)
  return { t = UNDEF, name = name, obj = obj, hint = hint }
end

--- What Jinja says about an undefined value.
function V.undefined_message(u)
  if u.hint then return u.hint end
  local name = text(u.name)
  if u.obj == nil then
    return ("'%s' is undefined"):format(name)
  end
  local what = u.obj == none and "None" or V.typename(u.obj) .. " object"
  if name then
    return ("'%s' has no attribute '%s'"):format(what, name)
  end
  local is_number = type(u.name) == "number"
  local key = is_number and u.name or "of type " .. V.typename(u.name)
  return ("%s has no element %s"):format(what, key)
end

--- Raises for an operation that undefined values do not allow.
function V.fail_undefined(u)
  fail("%s", V.undefined_message(u))
end

--- Python's truth of a value.
function V.truth(v)
  if type(v) == "boolean" then return v end
  if type(v) == "string" then return v ~= "" end
  if type(v) == "number" then return v ~= 0 end
  local t = v.t
  if t == NONE or t == UNDEF then return false end
  if t == LIST or t == TUPLE or t == RANGE then return v[1] ~= nil end
  if t == DICT then return v.k[1] ~= nil end
  if t == FLOAT then return v.v ~= 0 end
  if t == VIEW then return v.items[1] ~= nil end
  return true
end

--- A number as Lua's, booleans included; nil when v is none. BIG raises: what
-- it stands for does not fit.
function V.number(v)
  if type(v) == "number" then return v end
  if type(v) == "boolean" then return v and 1 or 0 end
  if type(v) ~= "table" then return nil end
  if v.t == FLOAT then return v.v end
  if v.t == BIG then
    fail("the integer %s is too large to compute with", v.s)
  end
  return nil
end

--- Whether a number value is a float.
function V.is_float(v)
  if type(v) == "number" then return v % 1 ~= 0 end
  return type(v) == "table" and v.t == FLOAT
end

--- An int for uses that need one (index, width, count); raises otherwise.
function V.int(v, what)
  if type(v) == "boolean" then return v and 1 or 0 end
  if type(v) == "number" and v % 1 == 0 then return v end
  if type(v) == "table" and v.t == UNDEF then V.fail_undefined(v) end
  fail("%s must be an integer, not '%s'", what, V.typename(v))
end

-- A key of a composite: distinct for distinct elements.
local function part(v)
  local k = V.hash(v)
  if type(k) == "string" then return "s" .. #k .. ":" .. k end
  return type(k) == "number" and "n" .. k .. ";" or "x" .. V.typename(v) .. ";"
end

--- The Lua value under which a dict keeps key v (equal keys, equal hashes), or
-- nil when Python cannot hash it.
function V.hash(v)
  if type(v) == "string" or type(v) == "number" then return v end
  if type(v) == "boolean" then return v and 1 or 0 end
  local t = v.t
  if t == STR then return v.s end
  if t == FLOAT then return v.v == v.v and v.v or v end
  if t == UNDEF then return UNDEF end
  if t == TUPLE then
    local parts = {}
    for i = 1, #v do
      if V.hash(v[i]) == nil then return nil end
      parts[i] = part(v[i])
    end
    return "\0(" .. table.concat(parts) .. ")"
  end
  if t == LIST or t == DICT or t == NS then return nil end
  return v
end

--- An empty dict, to be filled with V.put before anyone sees it.
function V.dict()
  return { t = DICT, k = {}, h = {} }
end

--- Sets a key of a new dict or of a namespace.
function V.put(d, key, value)
  local h = V.hash(key)
  if h == nil then
    fail("unhashable type: '%s'", V.typename(key))
  end
  if d.h[h] == nil then
    d.k[#d.k + 1] = key
  end
  d.h[h] = value
end

--- The value of key in a dict, or nil.
function V.lookup(d, key)
  local h = V.hash(key)
  if h == nil then return nil end
  return d.h[h]
end

local import

local function import_object(v, mark, depth)
  local d = V.dict()
  d.user = mark
  local keys, n = d.k, 0
  for _, k in ipairs(data.keys(v)) do
    n = n + 1
    keys[n] = mark and user(k) or k
    d.h[k] = import(v[k], mark, depth)
  end
  return d
end

--- An engine value of what data.lua describes. mark: its strings are a user's.
function import(v, mark, depth)
  depth = depth or 0
  if type(v) == "string" then
    return mark and user(v) or v
  elseif type(v) == "number" then
    if v % 1 == 0 and v >= -2^53 and v <= 2^53 then return v end
    return float(v)
  elseif type(v) == "boolean" then
    return v
  elseif v == nil or v == data.null then
    return none
  elseif type(v) ~= "table" then
    fail("a %s cannot be given to a template", type(v))
  elseif depth >= rt_.MAX_DEPTH then
    fail("the data given to the template nests deeper than %d", rt_.MAX_DEPTH)
  end
  local shape = data.kind(v)
  if shape == "number" then
    if v.text:find("[.eE]") then return float(v.value) end
    return { t = BIG, s = v.text }
  elseif shape == "object" then
    return import_object(v, mark, depth + 1)
  end
  local list = { t = LIST, user = mark }
  for i = 1, #v do
    list[i] = import(v[i], mark, depth + 1)
  end
  return list
end
V.import = import

return V
