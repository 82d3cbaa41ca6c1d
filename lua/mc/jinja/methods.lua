--- methods.lua: the methods of strings, dicts and lists that a template may
-- call.
--
-- Loading this fills STR.methods and so on; false stands for a method that
-- Python has and the sandbox refuses because it would change its object. Beyond
-- ASCII, isalpha takes for a letter what is no white space and lies outside the
-- blocks of punctuation and symbols, and isdigit knows ASCII's digits only.

local access = require "mc.jinja.access"
local format = require "mc.jinja.format"
local ops = require "mc.jinja.ops"
local rt_ = require "mc.jinja.rt"
local show = require "mc.jinja.show"
local sig = require "mc.jinja.sig"
local str = require "mc.jinja.str"
local strings = require "mc.jinja.strings"
local text = require "mc.jinja.text"
local V = require "mc.jinja.values"

local M = {}

local fail = rt_.fail
local text_of = str.text

-- strings ---------------------------------------------------------------------

local function strip(left, right)
  return { "chars?", function(rt, v, chars)
    return strings.strip(rt, v, chars, left, right)
  end }
end

local function pad(share)
  return { "width fillchar?", function(rt, v, width, fill)
    return strings.pad(rt, v, width, fill, share)
  end }
end

local function case(fn)
  return { "", function(_, v) return str.map(v, fn) end }
end

local CHAR = text.CHAR

local function title(s)
  local inside = false
  return (s:gsub(CHAR, function(c)
    local up, low = text.upper(c), text.lower(c)
    local new = inside and low or up
    inside = up ~= low
    return new
  end))
end

local function swapcase(s)
  return (s:gsub(CHAR, function(c)
    local up = text.upper(c)
    return up ~= c and up or text.lower(c)
  end))
end

local function is_digit(c)
  return c:find("^%d$") ~= nil
end

local NO_LETTERS = { -- from .. before: punctuation, symbols, pictures
  { 0x80, 0xAA }, { 0x2000, 0x2070 }, { 0x2190, 0x2C00 }, { 0x3000, 0x3005 },
  { 0x3008, 0x3021 }, { 0xFF01, 0xFF21 }, { 0x1F000, 0x20000 },
}

local function is_alpha(c)
  if #c == 1 then return c:find("%a") ~= nil end
  local cp = text.decode(c)
  for i = 1, #NO_LETTERS do
    if cp >= NO_LETTERS[i][1] and cp < NO_LETTERS[i][2] then return false end
  end
  return not text.space_at(c, 1)
end

-- Whether there are characters and all of them fit.
local function every(fits)
  return { "", function(_, v)
    local s = text_of(v)
    for c in s:gmatch(CHAR) do
      if not fits(c) then return false end
    end
    return s ~= ""
  end }
end

--- str.isupper and, the other way round, str.islower.
function M.is_upper(s) return text.upper(s) == s and text.lower(s) ~= s end
function M.is_lower(s) return text.lower(s) == s and text.upper(s) ~= s end

local function is_case(fn)
  return { "", function(_, v) return fn(text_of(v)) end }
end

local function join(rt, v, iterable)
  local items, n = access.items(rt, iterable)
  for i = 1, n do
    if not text_of(items[i]) then
      fail("sequence item %d: expected str instance, %s found", i - 1,
           V.typename(items[i]))
    end
  end
  return strings.join(rt, v, items, n)
end

V.STR.methods = sig.table {
  strip = strip(true, true),
  lstrip = strip(true, false),
  rstrip = strip(false, true),
  split = { "sep? maxsplit?", strings.split },
  rsplit = { "sep? maxsplit?", strings.rsplit },
  splitlines = { "keepends?", strings.splitlines },
  partition = { "sep", strings.partition },
  rpartition = { "sep", strings.rpartition },
  replace = { "old new count?", strings.replace },
  join = { "iterable", join },
  startswith = { "prefix start? end?", strings.startswith },
  endswith = { "suffix start? end?", strings.endswith },
  removeprefix = { "prefix", strings.removeprefix },
  removesuffix = { "suffix", strings.removesuffix },
  find = { "sub start? end?", strings.finder(false, false) },
  rfind = { "sub start? end?", strings.finder(true, false) },
  index = { "sub start? end?", strings.finder(false, true) },
  rindex = { "sub start? end?", strings.finder(true, true) },
  count = { "sub start? end?", strings.count },
  center = pad(strings.middle),
  ljust = pad(function() return 0 end),
  rjust = pad(function(room) return room end),
  zfill = { "width", strings.zfill },
  format = { "*", format.format },
  upper = case(text.upper),
  lower = case(text.lower),
  casefold = case(text.lower),
  title = case(title),
  capitalize = case(text.capitalize),
  swapcase = case(swapcase),
  isspace = every(function(c) return text.space_at(c, 1) ~= nil end),
  isdigit = every(is_digit),
  isdecimal = every(is_digit),
  isnumeric = every(is_digit),
  isalpha = every(is_alpha),
  isalnum = every(function(c) return is_digit(c) or is_alpha(c) end),
  isascii = { "", function(_, v) return text.ascii(text_of(v)) end },
  isupper = is_case(M.is_upper),
  islower = is_case(M.is_lower),
}

-- dicts and lists -------------------------------------------------------------

--- The pairs of a dict, an array of tuples.
function M.pairs_of(rt, d)
  local out = {}
  for i, k in ipairs(d.k) do
    out[i] = V.tuple { k, V.lookup(d, k) }
  end
  rt_.spend(rt, #out)
  return out
end

local function view(name, items)
  return { t = V.VIEW, name = name, items = items }
end

local function values_of(_, d)
  local out = {}
  for i, k in ipairs(d.k) do
    out[i] = V.lookup(d, k)
  end
  return view("dict_values", out)
end

local function get(_, d, key, default)
  if V.hash(key) == nil then
    fail("unhashable type: '%s'", V.typename(key))
  end
  local v = V.lookup(d, key)
  if v ~= nil then return v end
  return default == nil and V.none or default
end

local function index(rt, v, needle)
  for i = 1, #v do
    if ops.eq(v[i], needle) then return i - 1 end
  end
  fail("%s is not in list", text_of(show.repr(rt, needle)))
end

local function count(_, v, needle)
  local n = 0
  for i = 1, #v do
    if ops.eq(v[i], needle) then n = n + 1 end
  end
  return n
end

local function same(_, v) return v end

V.DICT.methods = sig.table {
  get = { "key default?", get },
  items = { "", function(rt, d)
    return view("dict_items", M.pairs_of(rt, d))
  end },
  keys = { "", function(_, d) return view("dict_keys", d.k) end },
  values = { "", values_of },
  copy = { "", same },
}
for _, name in ipairs { "clear", "pop", "popitem", "setdefault", "update" } do
  V.DICT.methods[name] = false
end

V.TUPLE.methods = sig.table {
  index = { "value", index },
  count = { "value", count },
}
V.RANGE.methods = V.TUPLE.methods

V.LIST.methods = sig.table {
  index = { "value", index },
  count = { "value", count },
  copy = { "", same },
}
for _, name in ipairs {
  "append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove",
} do
  V.LIST.methods[name] = false
end

return M
