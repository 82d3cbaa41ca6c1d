--- ops.lua: Python's operators over values: equality, order, arithmetic.
--
-- Strict where Python is: a wrong type raises, and so does an integer that
-- leaves the 53 bits which a Lua number holds exactly. Stateless.

local rt_ = require "mc.jinja.rt"
local str = require "mc.jinja.str"
local V = require "mc.jinja.values"

local M = {}

local floor = math.floor
local fail, spend = rt_.fail, rt_.spend
local typeof, text_of = V.typeof, str.text
local STR, LIST, TUPLE, RANGE, DICT = V.STR, V.LIST, V.TUPLE, V.RANGE, V.DICT
local UNDEF = V.UNDEF

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
  fail("unsupported operand type(s) for %s: '%s' and '%s'", op,
       V.typename(a), V.typename(b))
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
  if ta == STR and tb == STR then
    return str.join2(rt, a, b)
  elseif ta == tb and (ta == LIST or ta == TUPLE) then
    return plus_list(rt, a, b)
  end
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

return M
