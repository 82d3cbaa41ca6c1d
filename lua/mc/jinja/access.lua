--- access.lua: what is inside a value: iteration, membership, subscripts,
-- slices, attributes, calls.
--
-- Strict where Python is: a wrong type raises; what is not there is undefined
-- and raises only when it is used. Stateless.

local ops = require "mc.jinja.ops"
local rt_ = require "mc.jinja.rt"
local sig = require "mc.jinja.sig"
local str = require "mc.jinja.str"
local text = require "mc.jinja.text"
local V = require "mc.jinja.values"

local M = {}

local type = type
local fail, spend = rt_.fail, rt_.spend
local typeof, text_of, eq = V.typeof, str.text, ops.eq
local STR, LIST, TUPLE, RANGE, DICT = V.STR, V.LIST, V.TUPLE, V.RANGE, V.DICT
local UNDEF, VIEW, GEN = V.UNDEF, V.VIEW, V.GEN

-- iteration and membership ----------------------------------------------------

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
    local made = V.made(v)
    list = {}
    for i = v.at + 1, #made do list[#list + 1] = made[i] end
    v.at = #made
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
      fail("'in <string>' requires string as left operand, not %s",
           V.typename(needle))
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

-- subscripts and attributes ---------------------------------------------------

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
    local hint = "access to attribute '%s' of '%s' object is unsafe."
    return V.undefined(name, nil, hint:format(name, V.typename(v)))
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
  for i = from + 1, step > 0 and to or to + 2, step do
    k = k + 1
    out[k] = v[i]
    if starts then out[k] = str.sub(rt, v, starts[i], starts[i + 1] - 1) end
  end
  spend(rt, k / 8)
  if starts then return k == 0 and "" or str.concat(rt, out, k) end
  out.t, out.user = t, v.user
  if t == RANGE then
    out.start, out.stop = v.start + from * v.step, v.start + to * v.step
    out.step = v.step * step
  end
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
