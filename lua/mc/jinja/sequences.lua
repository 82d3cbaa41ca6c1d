--- sequences.lua: the filters that walk sequences and mappings.
--
-- Where Python returns a generator, so does this: always true, without a
-- length, walked once, and nothing is done, no error raised, before somebody
-- walks it (then all at once, where Python goes item by item). Stateless.

local access = require "mc.jinja.access"
local methods = require "mc.jinja.methods"
local ops = require "mc.jinja.ops"
local rt_ = require "mc.jinja.rt"
local show = require "mc.jinja.show"
local sig = require "mc.jinja.sig"
local sorting = require "mc.jinja.sorting"
local str = require "mc.jinja.str"
local strings = require "mc.jinja.strings"
local tests = require "mc.jinja.tests"
local V = require "mc.jinja.values"

local M = {}

local fail, spend, text_of = rt_.fail, rt_.spend, str.text

local lazy, given = sig.lazy, sig.given
local getter, same = sorting.getter, sorting.same

-- map, select and their kin ---------------------------------------------------

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

-- What map(args, kw) does to one item; filters are all there are.
local function mapper(filters, args, kw)
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

local function map(filters)
  return function(rt, v, args, kw)
    if not V.truth(v) then return {} end
    local fn = mapper(filters, args, kw)
    local items, n = access.items(rt, v)
    local out = {}
    spend(rt, n)
    for i = 1, n do out[i] = fn(rt, items[i]) end
    return out
  end
end

-- select, reject and, with an attribute first, selectattr, rejectattr.
local function selector(keep, by_attribute)
  local off = by_attribute and 1 or 0
  return function(rt, v, args, kw)
    if not V.truth(v) then return {} end
    if args.n < off then fail("Missing parameter for attribute name") end
    local get = getter(by_attribute and args[1] or nil, same)
    local name, test
    if args.n > off then
      name = text_of(show.str(rt, args[off + 1]))
      test = tests[name] or fail("No test named '%s'.", name)
    end
    local items, n = access.items(rt, v)
    local out = {}
    spend(rt, n)
    for i = 1, n do
      local x = get(rt, items[i])
      if test then
        x = sig.call(rt, test, name, x, rest(args, off + 1), without(kw))
      end
      if V.truth(x) == keep then out[#out + 1] = items[i] end
    end
    return out
  end
end

-- the ends and the whole ------------------------------------------------------

local function first(rt, v)
  if V.typeof(v) == V.GEN then
    local made = V.made(v)
    if v.at < #made then
      v.at = v.at + 1
      return made[v.at]
    end
  else
    local x
    if V.typeof(v) == V.STR then
      x = text_of(v) ~= "" and access.slice(rt, v, nil, 1) or nil
    else
      x = access.items(rt, v)[1]
    end
    if x ~= nil then return x end
  end
  return V.undefined(nil, nil, "No first item, sequence was empty.")
end

local function last(rt, v)
  if V.typeof(v) == V.GEN then fail("'generator' object is not reversible") end
  local items, n = access.items(rt, v)
  if n > 0 then return items[n] end
  return V.undefined(nil, nil, "No last item, sequence was empty.")
end

local function reverse(rt, v)
  if V.typeof(v) == V.STR then return access.slice(rt, v, nil, nil, -1) end
  local items, n = access.items(rt, v)
  local out = {}
  for i = 1, n do out[i] = items[n + 1 - i] end
  if V.typeof(v) == V.GEN then return V.list(out) end
  return V.gen(function() return out end)
end

local function list(rt, v)
  local items, n = access.items(rt, v)
  local out = {}
  for i = 1, n do out[i] = items[i] end
  out.user = v.user
  return V.list(out)
end

local function items(rt, v)
  local t = V.typeof(v)
  if t == V.UNDEF then return {} end
  if t ~= V.DICT then fail("Can only get item pairs from a mapping.") end
  return methods.pairs_of(rt, v)
end

local function join(rt, v, sep, attribute)
  local get = getter(attribute, same)
  local from, n = access.items(rt, v)
  local out = {}
  spend(rt, n)
  for i = 1, n do out[i] = show.str(rt, get(rt, from[i])) end
  return strings.join(rt, show.str(rt, sep == nil and "" or sep), out, n)
end

local function sum(rt, v, attribute, start)
  local get = getter(attribute, same)
  local from, n = access.items(rt, v)
  local total = start == nil and 0 or start
  if text_of(total) then fail("sum() can't sum strings") end
  spend(rt, n)
  for i = 1, n do total = ops.add(rt, total, get(rt, from[i])) end
  return total
end

local function batch(rt, v, size, fill)
  local from, n = access.items(rt, v)
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
  return out
end

local function slice(rt, v, slices, fill)
  local from, n = access.items(rt, v)
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
  return out
end

--- The signatures of these filters; map looks in `all`.
function M.filters(all)
  return sig.table {
    batch = { "linecount fill_with?", lazy(batch) },
    first = { "", first },
    items = { "", lazy(items) },
    join = { "d? attribute?", join },
    last = { "", last },
    list = { "", list },
    map = { "*", lazy(map(all)) },
    reject = { "*", lazy(selector(false, false)) },
    rejectattr = { "*", lazy(selector(false, true)) },
    reverse = { "", reverse },
    select = { "*", lazy(selector(true, false)) },
    selectattr = { "*", lazy(selector(true, true)) },
    slice = { "slices fill_with?", lazy(slice) },
    sum = { "attribute? start?", sum },
  }
end

return M
