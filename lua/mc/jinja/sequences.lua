--- sequences.lua: the filters over sequences and mappings, and sorting.
--
-- Where Python returns a generator, so does this (V.gen), with the items already
-- made: what a template can tell is its truth, its missing length and that it is
-- walked once. Sorting is stable and compares with Python's `<`. Stateless.

local methods = require "mc.jinja.methods"
local ops = require "mc.jinja.ops"
local rt_ = require "mc.jinja.rt"
local show = require "mc.jinja.show"
local sig = require "mc.jinja.sig"
local str = require "mc.jinja.str"
local strings = require "mc.jinja.strings"
local tests = require "mc.jinja.tests"
local text = require "mc.jinja.text"
local V = require "mc.jinja.values"

local M = {}

local fail, spend, text_of = rt_.fail, rt_.spend, str.text

local filters -- name -> signature, given by install

local function set(v)
  return v ~= nil and V.truth(v)
end

local function given(v)
  return v ~= nil and v ~= V.none
end

-- attributes ------------------------------------------------------------------------

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

-- A function from an item to what a path names in it, changed by `after`.
local function getter(attribute, after, default)
  local path = path_of(attribute)
  return function(rt, v)
    for i = 1, #path do
      v = ops.getitem(rt, v, path[i])
      if given(default) and V.typeof(v) == V.UNDEF then v = default end
    end
    return after(v)
  end
end

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

-- sorting ---------------------------------------------------------------------------

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

--- items[1..n] in the order of keys[1..n], a new array; equals keep their order.
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
  local items, n = ops.items(rt, v)
  local get = multi_getter(attribute, set(case_sensitive) and same or lower_case)
  return V.list(M.sorted(rt, items, n, keys_of(rt, items, n, get), set(reverse)))
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
    keys[i] = set(case_sensitive) and key or lower_case(key)
  end
  return V.list(M.sorted(rt, pairs_, #pairs_, keys, set(reverse)))
end

local function extreme(before)
  return function(rt, v, case_sensitive, attribute)
    local items, n = ops.items(rt, v)
    if n == 0 then
      return V.undefined(nil, nil, "No aggregated item, sequence was empty.")
    end
    local get = getter(attribute, set(case_sensitive) and same or lower_case)
    local keys, best = keys_of(rt, items, n, get), 1
    for i = 2, n do
      if before(keys[i], keys[best]) then best = i end
    end
    return items[best]
  end
end

local function groupby(rt, v, attribute, default, case_sensitive)
  local items, n = ops.items(rt, v)
  local get = getter(attribute, set(case_sensitive) and same or lower_case, default)
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
  grouper = function(v) return v.group and v[1] or nil end,
  list = function(v) return v.group and v[2] or nil end,
}

local function unique(rt, v, case_sensitive, attribute)
  local items, n = ops.items(rt, v)
  local get = getter(attribute, set(case_sensitive) and same or lower_case)
  local keys, seen, out = keys_of(rt, items, n, get), {}, {}
  for i = 1, n do
    local h = V.hash(keys[i])
    if h == nil then fail("unhashable type: '%s'", V.typename(keys[i])) end
    if not seen[h] then
      seen[h] = true
      out[#out + 1] = items[i]
    end
  end
  return V.gen(out)
end

-- map, select and their kin ---------------------------------------------------------

-- The arguments after the first `skip` ones.
local function rest(args, skip)
  local out = { n = math.max(args.n - skip, 0) }
  for i = 1, out.n do out[i] = args[i + skip] end
  return out
end

-- Keywords without those named.
local function without(kw, a, b)
  local out
  for _, k in ipairs(kw or {}) do
    if k ~= a and k ~= b then
      out = out or {}
      out[#out + 1], out[k] = k, kw[k]
    end
  end
  return out
end

-- What map(args, kw) does to one item.
local function mapper(args, kw)
  if args.n == 0 and kw and kw.attribute ~= nil then
    local extra = without(kw, "attribute", "default")
    if extra then fail("Unexpected keyword argument '%s'", extra[1]) end
    return getter(kw.attribute, same, kw.default)
  elseif args.n == 0 then
    fail("map requires a filter argument")
  end
  local name = text_of(args[1]) or fail("map requires the name of a filter")
  local f = filters[name] or fail("No filter named '%s'.", name)
  return function(rt, v)
    return sig.call(rt, f, name, v, rest(args, 1), without(kw))
  end
end

local function map(rt, v, args, kw)
  if not V.truth(v) then return V.gen({}, 0) end
  local fn = mapper(args, kw)
  local items, n = ops.items(rt, v)
  local out = {}
  spend(rt, n)
  for i = 1, n do out[i] = fn(rt, items[i]) end
  return V.gen(out, n)
end

-- select, reject and, with an attribute first, selectattr, rejectattr.
local function selector(keep, by_attribute)
  local off = by_attribute and 1 or 0
  return function(rt, v, args, kw)
    if not V.truth(v) then return V.gen({}, 0) end
    if args.n < off then fail("Missing parameter for attribute name") end
    local get = getter(by_attribute and args[1] or nil, same)
    local name = args.n > off and text_of(args[off + 1])
    local test = name and (tests[name] or fail("No test named '%s'.", name))
    local items, n = ops.items(rt, v)
    local out = {}
    spend(rt, n)
    for i = 1, n do
      local x = get(rt, items[i])
      if test then x = sig.call(rt, test, name, x, rest(args, off + 1), without(kw)) end
      if V.truth(x) == keep then out[#out + 1] = items[i] end
    end
    return V.gen(out)
  end
end

-- the ends and the whole ----------------------------------------------------------------

local function first(rt, v)
  if V.typeof(v) == V.GEN then
    if v.at < #v.items then
      v.at = v.at + 1
      return v.items[v.at]
    end
  else
    local x
    if V.typeof(v) == V.STR then
      x = text_of(v) ~= "" and ops.slice(rt, v, nil, 1) or nil
    else
      x = ops.items(rt, v)[1]
    end
    if x ~= nil then return x end
  end
  return V.undefined(nil, nil, "No first item, sequence was empty.")
end

local function last(rt, v)
  if V.typeof(v) == V.GEN then fail("'generator' object is not reversible") end
  local items, n = ops.items(rt, v)
  if n > 0 then return items[n] end
  return V.undefined(nil, nil, "No last item, sequence was empty.")
end

local function reverse(rt, v)
  if V.typeof(v) == V.STR then return ops.slice(rt, v, nil, nil, -1) end
  local items, n = ops.items(rt, v)
  local out = {}
  for i = 1, n do out[i] = items[n + 1 - i] end
  if V.typeof(v) == V.GEN then return V.list(out) end
  return V.gen(out, n)
end

local function list(rt, v)
  local items, n = ops.items(rt, v)
  local out = {}
  for i = 1, n do out[i] = items[i] end
  out.user = v.user
  return V.list(out)
end

local function items(rt, v)
  local t = V.typeof(v)
  if t == V.UNDEF then return V.gen({}, 0) end
  if t ~= V.DICT then fail("Can only get item pairs from a mapping.") end
  return V.gen(methods.pairs_of(rt, v))
end

local function join(rt, v, sep, attribute)
  local get = getter(attribute, same)
  local from, n = ops.items(rt, v)
  local out = {}
  spend(rt, n)
  for i = 1, n do out[i] = show.str(rt, get(rt, from[i])) end
  return strings.join(rt, show.str(rt, sep == nil and "" or sep), out, n)
end

local function sum(rt, v, attribute, start)
  local get = getter(attribute, same)
  local from, n = ops.items(rt, v)
  local total = start == nil and 0 or start
  if text_of(total) then fail("sum() can't sum strings") end
  spend(rt, n)
  for i = 1, n do total = ops.add(rt, total, get(rt, from[i])) end
  return total
end

local function batch(rt, v, size, fill)
  local from, n = ops.items(rt, v)
  size = V.int(size, "the size of a batch")
  if size < 1 then fail("the size of a batch must be at least 1") end
  local out, row = {}, nil
  for i = 1, n do
    if (i - 1) % size == 0 then
      row = V.list {}
      out[#out + 1] = row
    end
    row[#row + 1] = from[i]
  end
  if row and given(fill) then
    spend(rt, size)
    for i = #row + 1, size do row[i] = fill end
  end
  return V.gen(out)
end

local function slice(rt, v, slices, fill)
  local from, n = ops.items(rt, v)
  slices = V.int(slices, "the number of slices")
  if slices < 1 then fail("the number of slices must be at least 1") end
  spend(rt, slices)
  local each, extra, at, out = math.floor(n / slices), n % slices, 0, {}
  for k = 1, slices do
    local row = V.list {}
    for _ = 1, each + (k <= extra and 1 or 0) do
      at = at + 1
      row[#row + 1] = from[at]
    end
    if given(fill) and k > extra then row[#row + 1] = fill end
    out[k] = row
  end
  return V.gen(out)
end

--- Adds these filters to the table of all filters, among which map looks.
function M.install(all)
  filters = all
  for name, s in pairs(sig.table {
    batch = { "linecount fill_with?", batch },
    dictsort = { "case_sensitive? by? reverse?", dictsort },
    first = { "", first },
    groupby = { "attribute default? case_sensitive?", groupby },
    items = { "", items },
    join = { "d? attribute?", join },
    last = { "", last },
    list = { "", list },
    map = { "*", map },
    max = { "case_sensitive? attribute?", extreme(function(a, b) return ops.lt(b, a, ">") end) },
    min = { "case_sensitive? attribute?", extreme(ops.lt) },
    reject = { "*", selector(false, false) },
    rejectattr = { "*", selector(false, true) },
    reverse = { "", reverse },
    select = { "*", selector(true, false) },
    selectattr = { "*", selector(true, true) },
    slice = { "slices fill_with?", slice },
    sort = { "reverse? case_sensitive? attribute?", sort },
    sum = { "attribute? start?", sum },
    unique = { "case_sensitive? attribute?", unique },
  }) do
    all[name] = s
  end
end

return M
