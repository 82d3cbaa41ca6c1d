--- sorting.lua: the filters that order, group and pick by a key: sort,
-- dictsort, groupby, unique, min, max; and paths such as "function.name" into
-- items.
--
-- Sorting is stable and compares with Python's `<`. Stateless.

local access = require "mc.jinja.access"
local methods = require "mc.jinja.methods"
local ops = require "mc.jinja.ops"
local rt_ = require "mc.jinja.rt"
local sig = require "mc.jinja.sig"
local str = require "mc.jinja.str"
local text = require "mc.jinja.text"
local V = require "mc.jinja.values"

local M = {}

local fail, spend, text_of = rt_.fail, rt_.spend, str.text
local flag, given = sig.flag, sig.given

-- keys ------------------------------------------------------------------------

-- The parts of a path such as "function.arguments.0".
local function path_of(attribute)
  if not given(attribute) then return {} end
  local s, out = text_of(attribute), {}
  if not s then return { attribute } end
  for part in (s .. "."):gmatch("([^.]*)%.") do
    out[#out + 1] = part:find("^%d+$") and tonumber(part) or part
  end
  return out
end

local function lower_case(v)
  return text_of(v) and str.map(v, text.lower) or v
end

local function same(v) return v end
M.same = same

-- How keys are made alike under the argument case_sensitive.
local function fold(case_sensitive)
  return flag(case_sensitive) and same or lower_case
end

--- A function from an item to what a path names in it, changed by `after`.
local function getter(attribute, after, default)
  local path = path_of(attribute)
  return function(rt, v)
    for i = 1, #path do
      v = access.getitem(rt, v, path[i])
      if given(default) and V.typeof(v) == V.UNDEF then v = default end
    end
    return after(v)
  end
end

M.getter = getter

-- As getter, of the several paths in "a,b": gives a list, which is how Python
-- compares them.
local function multi_getter(attribute, after)
  local s, parts = given(attribute) and text_of(attribute), {}
  if s then
    for path in (s .. ","):gmatch("([^,]*),") do
      parts[#parts + 1] = getter(path, after)
    end
  else
    parts[1] = getter(attribute, after)
  end
  return function(rt, v)
    local out = {}
    for i = 1, #parts do out[i] = parts[i](rt, v) end
    return V.list(out)
  end
end

-- sorting ---------------------------------------------------------------------

-- Merges the sorted runs idx[lo..mid] and idx[mid+1..hi] by keys.
local function merge(idx, tmp, lo, mid, hi, keys)
  local i, j = lo, mid + 1
  for k = lo, hi do
    if j > hi or (i <= mid and not ops.lt(keys[idx[j]], keys[idx[i]])) then
      tmp[k], i = idx[i], i + 1
    else
      tmp[k], j = idx[j], j + 1
    end
  end
  for k = lo, hi do idx[k] = tmp[k] end
end

--- items[1..n] in the order of keys[1..n], a new array; equals keep their
-- order.
function M.sorted(rt, items, n, keys, reverse)
  local idx, tmp, out = {}, {}, {}
  for i = 1, n do idx[i] = reverse and n + 1 - i or i end
  local width = 1
  while width < n do
    spend(rt, n / 4)
    for lo = 1, n - width, 2 * width do
      merge(idx, tmp, lo, lo + width - 1, math.min(lo + 2 * width - 1, n), keys)
    end
    width = width * 2
  end
  for i = 1, n do out[i] = items[idx[reverse and n + 1 - i or i]] end
  return out
end

local function keys_of(rt, items, n, get)
  local keys = {}
  spend(rt, n)
  for i = 1, n do keys[i] = get(rt, items[i]) end
  return keys
end

local function sort(rt, v, reverse, case_sensitive, attribute)
  local items, n = access.items(rt, v)
  local get = multi_getter(attribute, fold(case_sensitive))
  local keys = keys_of(rt, items, n, get)
  return V.list(M.sorted(rt, items, n, keys, flag(reverse)))
end

local function dictsort(rt, v, case_sensitive, by, reverse)
  if V.typeof(v) ~= V.DICT then
    if V.typeof(v) == V.UNDEF then V.fail_undefined(v) end
    fail("'%s' object has no attribute 'items'", V.typename(v))
  end
  by = by == nil and "key" or text_of(by)
  if by ~= "key" and by ~= "value" then
    fail('You can only sort by either "key" or "value"')
  end
  local pairs_, keys = methods.pairs_of(rt, v), {}
  for i = 1, #pairs_ do
    local key = pairs_[i][by == "key" and 1 or 2]
    keys[i] = fold(case_sensitive)(key)
  end
  return V.list(M.sorted(rt, pairs_, #pairs_, keys, flag(reverse)))
end

local function extreme(before)
  return function(rt, v, case_sensitive, attribute)
    local items, n = access.items(rt, v)
    if n == 0 then
      return V.undefined(nil, nil, "No aggregated item, sequence was empty.")
    end
    local get = getter(attribute, fold(case_sensitive))
    local keys, best = keys_of(rt, items, n, get), 1
    for i = 2, n do
      if before(keys[i], keys[best]) then best = i end
    end
    return items[best]
  end
end

local function after(a, b) return ops.lt(b, a, ">") end

local function groupby(rt, v, attribute, default, case_sensitive)
  local items, n = access.items(rt, v)
  local get = getter(attribute, fold(case_sensitive), default)
  local real = getter(attribute, same, default)
  local sorted = M.sorted(rt, items, n, keys_of(rt, items, n, get))
  local out, key = {}, nil
  for i = 1, n do
    local k = get(rt, sorted[i])
    if i == 1 or not ops.eq(k, key) then
      out[#out + 1] = V.tuple { real(rt, sorted[i]), V.list {}, group = true }
      key = k
    end
    local list = out[#out][2]
    list[#list + 1] = sorted[i]
  end
  return V.list(out)
end

V.TUPLE.attrs = { -- of the pairs that groupby makes
  grouper = function(v) if v.group then return v[1] end end,
  list = function(v) if v.group then return v[2] end end,
}

local function unique(rt, v, case_sensitive, attribute)
  local items, n = access.items(rt, v)
  local get = getter(attribute, fold(case_sensitive))
  local keys, seen, out = keys_of(rt, items, n, get), {}, {}
  for i = 1, n do
    local h = V.hash(keys[i])
    if h == nil then fail("unhashable type: '%s'", V.typename(keys[i])) end
    if not seen[h] then
      seen[h] = true
      out[#out + 1] = items[i]
    end
  end
  return out
end


M.filters = sig.table {
  dictsort = { "case_sensitive? by? reverse?", dictsort },
  groupby = { "attribute default? case_sensitive?", groupby },
  max = { "case_sensitive? attribute?", extreme(after) },
  min = { "case_sensitive? attribute?", extreme(ops.lt) },
  sort = { "reverse? case_sensitive? attribute?", sort },
  unique = { "case_sensitive? attribute?", sig.lazy(unique) },
}

return M
