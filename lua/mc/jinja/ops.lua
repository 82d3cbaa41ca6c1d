--- ops.lua: Python's operators over values: equality and order, arithmetic,
-- membership, iteration, subscripts, slices and attributes.
--
-- Everything is strict where Python is: a wrong type raises, and so does an
-- integer that leaves the 53 bits which a Lua number holds exactly. Stateless.

local rt_ = require "mc.jinja.rt"
local str = require "mc.jinja.str"
local text = require "mc.jinja.text"
local V = require "mc.jinja.values"
local sig = require "mc.jinja.sig"

local M = {}

local type, floor = type, math.floor
local fail, spend = rt_.fail, rt_.spend
local typeof, text_of = V.typeof, str.text
local STR, LIST, TUPLE, RANGE, DICT = V.STR, V.LIST, V.TUPLE, V.RANGE, V.DICT
local UNDEF, VIEW, GEN = V.UNDEF, V.VIEW, V.GEN

-- equality and order ----------------------------------------------------------

local eq

local function eq_list(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do
    if not eq(a[i], b[i]) then return false end
  end
  return true
end

local function eq_dict(a, b)
  if #a.k ~= #b.k then return false end
  for i = 1, #a.k do
    local h = V.hash(a.k[i])
    local w = b.h[h]
    if w == nil or not eq(a.h[h], w) then return false end
  end
  return true
end

--- a == b
function eq(a, b)
  if a == b then return true end
  local s = text_of(a)
  if s then return s == text_of(b) end
  local ta, tb = typeof(a), typeof(b)
  if ta == V.BIG or tb == V.BIG then
    return ta == tb and a.s == b.s
  end
  local x = V.number(a)
  if x then return x == V.number(b) end
  if ta ~= tb then return false end
  if ta == UNDEF then return true end
  if ta == LIST or ta == TUPLE or ta == RANGE then return eq_list(a, b) end
  if ta == DICT then return eq_dict(a, b) end
  return false
end
M.eq = eq

local lt

-- Whether list a comes before list b.
local function lt_list(a, b)
  local n = math.min(#a, #b)
  for i = 1, n do
    if not eq(a[i], b[i]) then return lt(a[i], b[i]) end
  end
  return #a < #b
end

--- a < b; `sign` is what the message shows.
function lt(a, b, sign)
  local x, y = text_of(a), text_of(b)
  if x and y then return x < y end
  local ta, tb = typeof(a), typeof(b)
  if ta == UNDEF then V.fail_undefined(a) end
  if tb == UNDEF then V.fail_undefined(b) end
  x, y = V.number(a), V.number(b)
  if x and y then return x < y end
  if ta == tb and (ta == LIST or ta == TUPLE) then return lt_list(a, b) end
  fail("'%s' not supported between instances of '%s' and '%s'", sign or "<",
       V.typename(a), V.typename(b))
end
M.lt = lt

--- a <= b, likewise.
local function le(a, b, sign)
  local x, y = V.is_float(a) and V.number(a), V.is_float(b) and V.number(b)
  if (x and x ~= x) or (y and y ~= y) then return false end
  return not lt(b, a, sign)
end
M.le = le

-- arithmetic ------------------------------------------------------------------

local function wrong(op, a, b)
  if typeof(a) == UNDEF then V.fail_undefined(a) end
  if typeof(b) == UNDEF then V.fail_undefined(b) end
  fail("unsupported operand type(s) for %s: '%s' and '%s'", op, V.typename(a), V.typename(b))
end

-- The value of a result that is a float when `is_float`.
local function result(x, is_float)
  if is_float then return V.float(x) end
  if x < -2^53 or x > 2^53 then
    fail("an integer result is beyond 2^53")
  end
  return x
end

local function plus_list(rt, a, b)
  local n, m, out = #a, #b, {}
  spend(rt, (n + m) / 8)
  for i = 1, n do out[i] = a[i] end
  for i = 1, m do out[n + i] = b[i] end
  out.t, out.user = a.t, a.user or b.user
  return out
end

--- a + b
function M.add(rt, a, b)
  local x, y = V.number(a), V.number(b)
  if x and y then
    return result(x + y, V.is_float(a) or V.is_float(b))
  end
  local ta, tb = typeof(a), typeof(b)
  if ta == STR and tb == STR then return str.join2(rt, a, b) end
  if ta == tb and (ta == LIST or ta == TUPLE) then return plus_list(rt, a, b) end
  wrong("+", a, b)
end

--- a - b
function M.sub(_, a, b)
  local x, y = V.number(a), V.number(b)
  if not (x and y) then wrong("-", a, b) end
  return result(x - y, V.is_float(a) or V.is_float(b))
end

local function times(rt, v, n)
  if typeof(v) == STR then return str.rep(rt, v, n) end
  spend(rt, math.max(n, 0) * (1 + #v / 8))
  local out, len = { t = v.t, user = v.user }, #v
  for i = 0, n - 1 do
    for j = 1, len do out[i * len + j] = v[j] end
  end
  return out
end

local REPEATS = { [STR] = true, [LIST] = true, [TUPLE] = true }

--- a * b
function M.mul(rt, a, b)
  local x, y = V.number(a), V.number(b)
  if x and y then
    return result(x * y, V.is_float(a) or V.is_float(b))
  elseif REPEATS[typeof(a)] and y and not V.is_float(b) then
    return times(rt, a, y)
  elseif REPEATS[typeof(b)] and x and not V.is_float(a) then
    return times(rt, b, x)
  end
  wrong("*", a, b)
end

local function operands(op, a, b)
  local x, y = V.number(a), V.number(b)
  if not (x and y) then wrong(op, a, b) end
  if y == 0 then fail("division by zero") end
  return x, y, V.is_float(a) or V.is_float(b)
end

--- a / b
function M.div(_, a, b)
  local x, y = operands("/", a, b)
  return V.float(x / y)
end

-- x mod y with the sign of y, exact where x - floor(x / y) * y is not.
local function modulo(x, y)
  local r = math.fmod(x, y)
  if r ~= 0 and (r < 0) ~= (y < 0) then r = r + y end
  return r
end

--- a // b
function M.floordiv(_, a, b)
  local x, y, is_float = operands("//", a, b)
  return result(floor((x - modulo(x, y)) / y + 0.5), is_float)
end

--- a % b of numbers; text % values is format.lua's.
function M.mod(_, a, b)
  local x, y, is_float = operands("%", a, b)
  return result(modulo(x, y), is_float)
end

--- a ** b
function M.pow(_, a, b)
  local x, y = V.number(a), V.number(b)
  if not (x and y) then wrong("** or pow()", a, b) end
  if x == 0 and y < 0 then fail("0.0 cannot be raised to a negative power") end
  local z = x ^ y
  if z ~= z and x == x and y == y then fail("a power is not a real number") end
  return result(z, V.is_float(a) or V.is_float(b) or y < 0)
end

--- -a
function M.neg(_, a)
  local x = V.number(a)
  if not x then
    if typeof(a) == UNDEF then V.fail_undefined(a) end
    fail("bad operand type for unary -: '%s'", V.typename(a))
  end
  return V.is_float(a) and V.float(-x) or 0 - x
end

-- iteration and membership ------------------------------------------------------

-- The first bytes of the characters of a text, as text.starts; for ASCII, where
-- they are their own numbers, nothing is built.
local BYTES = setmetatable({}, { __index = function(_, i) return i end })

local function starts_of(rt, s)
  if text.ascii(s) then
    rt_.walk(rt, #s)
    return BYTES, #s
  end
  spend(rt, #s / 16)
  return text.starts(s)
end

--- The characters of a string value, each with its mark.
function M.chars(rt, v)
  local starts, n = starts_of(rt, text_of(v))
  spend(rt, n)
  local out = {}
  for i = 1, n do
    out[i] = str.sub(rt, v, starts[i], starts[i + 1] - 1)
  end
  return out
end

local NOTHING = {}

--- What iterating over v gives: an array, not to be written, and its length.
-- A generator is used up by it.
function M.items(rt, v)
  local t = typeof(v)
  local list
  if t == LIST or t == TUPLE or t == RANGE then
    list = v
  elseif t == DICT then
    list = v.k
  elseif t == VIEW then
    list = v.items
  elseif t == STR then
    list = M.chars(rt, v)
  elseif t == UNDEF then
    list = NOTHING
  elseif t == GEN then
    list = {}
    for i = v.at + 1, #v.items do list[#list + 1] = v.items[i] end
    v.at = #v.items
  else
    fail("'%s' object is not iterable", V.typename(v))
  end
  local n = #list
  spend(rt, n / 8)
  return list, n
end

--- Whether M.items would work.
function M.iterable(v)
  local t = typeof(v)
  return t == LIST or t == TUPLE or t == RANGE or t == DICT or t == VIEW or
    t == STR or t == UNDEF or t == GEN
end

--- len(v)
function M.len(v)
  local t = typeof(v)
  if t == STR then return text.len(text_of(v)) end
  if t == LIST or t == TUPLE or t == RANGE then return #v end
  if t == DICT then return #v.k end
  if t == VIEW then return #v.items end
  if t == UNDEF then return 0 end
  if t.len then return t.len(v) end
  fail("object of type '%s' has no len()", V.typename(v))
end

--- needle in v
function M.contains(rt, v, needle)
  local t = typeof(v)
  if t == STR then
    local s, find = text_of(v), text_of(needle)
    if not find then
      fail("'in <string>' requires string as left operand, not %s", V.typename(needle))
    end
    rt_.search(rt, #s, #find)
    return s:find(find, 1, true) ~= nil
  elseif t == DICT then
    if V.hash(needle) == nil then
      fail("unhashable type: '%s'", V.typename(needle))
    end
    return V.lookup(v, needle) ~= nil
  elseif not M.iterable(v) then
    fail("argument of type '%s' is not iterable", V.typename(v))
  end
  local list, n = M.items(rt, v)
  for i = 1, n do
    if eq(list[i], needle) then return true end
  end
  return false
end

-- subscripts and attributes -------------------------------------------------------

-- A method as a value of its own.
local function bound(s, name, v)
  return V.func(name, function(rt, args, kw)
    return sig.call(rt, s, name .. "()", v, args, kw)
  end)
end

-- What attribute access finds that is no key, or nil.
local function attribute(v, t, name)
  local m = t.methods and t.methods[name]
  if m == false then
    return V.undefined(name, nil, ("access to attribute '%s' of '%s' object is unsafe.")
      :format(name, V.typename(v)))
  elseif m then
    return bound(m, name, v)
  end
  local a = t.attrs and t.attrs[name]
  if a then return a(v) end
  if t == V.NS then return v.h[name] end
  return nil
end

--- v.name: an attribute, else a key, else undefined.
function M.getattr(v, name)
  local t = typeof(v)
  local found
  if t == DICT then
    if not t.methods[name] then
      found = v.h[name]
      if found ~= nil then return found end
    end
  elseif t == UNDEF then
    V.fail_undefined(v)
  end
  found = attribute(v, t, name)
  if found == nil then return V.undefined(name, v) end
  return found
end

--- v.name where keys do not count, as the filter attr has it.
function M.attr(v, name)
  local t = typeof(v)
  if t == UNDEF then V.fail_undefined(v) end
  local found = attribute(v, t, name)
  if found == nil then return V.undefined(name, v) end
  return found
end

-- Where in 1..n the Python index key points, or nil.
local function index(n, key)
  local i = type(key) == "boolean" and (key and 1 or 0) or key
  if type(i) ~= "number" or i % 1 ~= 0 then return nil end
  if i < 0 then i = i + n end
  return i >= 0 and i < n and i + 1 or nil
end

--- v[key]: an element, else an attribute, else undefined.
function M.getitem(rt, v, key)
  local t = typeof(v)
  local found
  if t == DICT then
    found = V.lookup(v, key)
  elseif t == LIST or t == TUPLE or t == RANGE then
    local i = index(#v, key)
    found = i and v[i]
  elseif t == STR and type(key) ~= "string" then
    local starts, n = starts_of(rt, text_of(v))
    local i = index(n, key)
    found = i and str.sub(rt, v, starts[i], starts[i + 1] - 1) or nil
  elseif t == UNDEF then
    V.fail_undefined(v)
  end
  if found == nil and text_of(key) then
    found = attribute(v, t, text_of(key))
  end
  if found == nil then
    return V.undefined(key, v)
  end
  return found
end

-- Python's reading of [lo:hi:step] over n elements.
local function bounds(n, lo, hi, step)
  local function clip(x, default)
    if x == nil or x == V.none then return default end
    x = V.int(x, "a slice index")
    if x < 0 then x = x + n end
    if step > 0 then return math.max(0, math.min(x, n)) end
    return math.max(-1, math.min(x, n - 1))
  end
  if step > 0 then return clip(lo, 0), clip(hi, n) end
  return clip(lo, n - 1), clip(hi, -1)
end

--- v[lo:hi:step]; each may be nil.
function M.slice(rt, v, lo, hi, step)
  local t = typeof(v)
  if t == UNDEF then V.fail_undefined(v) end
  if t ~= STR and t ~= LIST and t ~= TUPLE and t ~= RANGE then
    fail("'%s' object cannot be sliced", V.typename(v))
  end
  step = (step == nil or step == V.none) and 1 or V.int(step, "a slice step")
  if step == 0 then fail("slice step cannot be zero") end
  local starts, n
  if t == STR then
    starts, n = starts_of(rt, text_of(v))
  else
    n = #v
  end
  local from, to = bounds(n, lo, hi, step)
  if t == STR and step == 1 then
    if from >= to then return "" end
    return str.sub(rt, v, starts[from + 1], starts[to + 1] - 1)
  end
  local out, k = {}, 0
  for i = from, step > 0 and to - 1 or to + 1, step do
    k = k + 1
    out[k] = starts and str.sub(rt, v, starts[i + 1], starts[i + 2] - 1) or v[i + 1]
  end
  spend(rt, k / 8)
  if starts then return k == 0 and "" or str.concat(rt, out, k) end
  out.t, out.user = t == TUPLE and TUPLE or LIST, v.user
  return out
end

--- fn(args, keywords) of any callable value.
function M.call(rt, fn, args, kw)
  local call = type(fn) == "table" and fn.call
  if not call then
    if typeof(fn) == UNDEF then V.fail_undefined(fn) end
    fail("'%s' object is not callable", V.typename(fn))
  end
  return call(rt, args, kw)
end

return M
