--- strings.lua: what Python's str methods do, on strings that keep their marks.
--
-- Functions take (rt, v, ...), v a string value, and positions that Python
-- would count in characters are counted so. Optional arguments are nil or none.
-- Stateless.

local access = require "mc.jinja.access"
local rt_ = require "mc.jinja.rt"
local str = require "mc.jinja.str"
local text = require "mc.jinja.text"
local V = require "mc.jinja.values"

local M = {}

local fail, spend = rt_.fail, rt_.spend
local text_of, sub = str.text, str.sub

-- The text of a string argument; nil for nil and none.
local function optional(v, what)
  if v == nil or v == V.none then return nil end
  local s = text_of(v)
  if not s then
    fail("%s must be str, not %s", what, V.typename(v))
  end
  return s
end

local function required(v, what)
  return optional(v, what) or fail("%s must be str, not NoneType", what)
end

local function count_of(v)
  return v == nil and -1 or V.int(v, "a count")
end

-- stripping -------------------------------------------------------------------

-- The bytes of s that are left without the characters of `chars` at its sides.
local function strip_chars(s, chars, left, right)
  local set, i, j = {}, 1, #s
  for c in chars:gmatch(text.CHAR) do set[c] = true end
  while left and i <= j do
    local _, e = s:find(text.CHAR_AT, i)
    if not set[s:sub(i, e)] then break end
    i = e + 1
  end
  while right and j >= i do
    local k = j
    while k > i and s:find("^[\128-\191]", k) do k = k - 1 end
    if not set[s:sub(k, j)] then break end
    j = k - 1
  end
  return i, j
end

--- str.strip and its halves.
function M.strip(rt, v, chars, left, right)
  local s, set = text_of(v), optional(chars, "the argument of strip")
  local i, j = 1, #s
  if set then
    i, j = strip_chars(s, set, left, right)
  else
    if left then i = text.skip_space(s, 1) end
    if right then j = math.max(text.trim_end(s, #s), i - 1) end
  end
  if i == 1 and j == #s then return v end
  return sub(rt, v, i, j)
end

-- splitting -------------------------------------------------------------------

-- First bytes of sep in s, from the left and apart; at most max, -1 for all.
local function occurrences(rt, s, sep, max)
  local at, n, i = {}, 0, 1
  rt_.search(rt, #s, #sep)
  while n ~= max do
    local j = s:find(sep, i, true)
    if not j then break end
    n = n + 1
    at[n], i = j, j + #sep
  end
  spend(rt, n)
  return at
end

-- The same from the right, ascending.
local function occurrences_right(rt, s, sep, max)
  local all, i = {}, 1
  rt_.search(rt, #s, #sep)
  while true do
    local j = s:find(sep, i, true)
    if not j then break end
    all[#all + 1], i = j, j + 1
  end
  spend(rt, #all)
  local taken, stop = {}, #s -- the last one first
  for k = #all, 1, -1 do
    if #taken ~= max and all[k] + #sep - 1 <= stop then
      taken[#taken + 1], stop = all[k], all[k] - 1
    end
  end
  local at, n = {}, #taken
  for k = 1, n do at[k] = taken[n + 1 - k] end
  return at
end

-- The parts of v between separators that begin at `at`.
local function between(rt, v, at, width)
  local out, i = {}, 1
  for k = 1, #at do
    out[k] = sub(rt, v, i, at[k] - 1)
    i = at[k] + width
  end
  out[#at + 1] = sub(rt, v, i, #text_of(v))
  return out
end

-- First and last bytes of the words of s.
local function words(rt, s)
  local from, to, n = {}, {}, 0
  local i = text.skip_space(s, 1)
  while i <= #s do
    local j = text.find_space(s, i) or #s + 1
    n = n + 1
    from[n], to[n] = i, j - 1
    i = text.skip_space(s, j)
  end
  rt_.walk(rt, #s * 4)
  spend(rt, n)
  return from, to, n
end

-- Split at white space; at most max splits, counted from the left or the right.
-- When there are that many, the part that is left keeps its outer white space.
local function split_words(rt, v, max, right)
  local s, out, first = text_of(v), {}, 1
  local from, to, n = words(rt, s)
  if max >= 0 and n > max then
    if right then
      first = n - max
      from[first] = 1
    else
      n, to[max + 1] = max + 1, #s
    end
  end
  for k = first, n do
    out[#out + 1] = sub(rt, v, from[k], to[k])
  end
  return out
end

local function splitter(find, right)
  return function(rt, v, sep, max)
    local by = optional(sep, "sep")
    max = count_of(max)
    if not by then return V.list(split_words(rt, v, max, right)) end
    if by == "" then fail("empty separator") end
    return V.list(between(rt, v, find(rt, text_of(v), by, max), #by))
  end
end

M.split = splitter(occurrences, false)
M.rsplit = splitter(occurrences_right, true)

--- The lines of v, their ends left out unless keep.
function M.splitlines(rt, v, keep)
  local s, out, i = text_of(v), {}, 1
  keep = keep ~= nil and V.truth(keep)
  while i <= #s do
    local a, b = text.find_line_end(s, i)
    if not a then a, b = #s + 1, #s end
    out[#out + 1] = sub(rt, v, i, keep and b or a - 1)
    i = b + 1
  end
  spend(rt, #out)
  return V.list(out)
end

local function partitioner(find, whole)
  return function(rt, v, sep)
    local s, by = text_of(v), required(sep, "sep")
    if by == "" then fail("empty separator") end
    local i = find(rt, s, by, 1)[1]
    if not i then return V.tuple(whole(v)) end
    return V.tuple { sub(rt, v, 1, i - 1), sep, sub(rt, v, i + #by, #s) }
  end
end

M.partition = partitioner(occurrences, function(v)
  return { v, "", "" }
end)
M.rpartition = partitioner(occurrences_right, function(v)
  return { "", "", v }
end)

-- building --------------------------------------------------------------------

--- items[1..n], string values, with sep between them.
function M.join(rt, sep, items, n)
  if n == 0 then return "" end
  local out = { items[1] }
  for i = 2, n do
    out[2 * i - 2], out[2 * i - 1] = sep, items[i]
  end
  return str.concat(rt, out, 2 * n - 1)
end

-- str.replace("", new): new before every character and at the end.
local function spread(rt, v, new, max)
  local chars, out = access.chars(rt, v), {}
  local n = #chars + 1
  for i = 1, n do
    if max < 0 or i <= max then out[#out + 1] = new end
    out[#out + 1] = chars[i]
  end
  return str.concat(rt, out, #out)
end

--- str.replace
function M.replace(rt, v, old, new, max)
  local s, find = text_of(v), required(old, "the text to replace")
  required(new, "the replacement")
  max = count_of(max)
  if find == "" then
    return max == 0 and v or spread(rt, v, new, max)
  end
  local at = occurrences(rt, s, find, max)
  if #at == 0 then return v end
  local parts = between(rt, v, at, #find)
  return M.join(rt, new, parts, #parts)
end

--- v padded to width characters; share(room, width) of the padding comes first.
function M.pad(rt, v, width, fill, share)
  width = V.int(width, "a width")
  local room = width - text.len(text_of(v))
  if room <= 0 then return v end
  fill = fill or " "
  if text.len(required(fill, "the fill character")) ~= 1 then
    fail("the fill character must be exactly one character long")
  end
  local left = share(room, width)
  return str.concat(rt, {
    str.rep(rt, fill, left), v, str.rep(rt, fill, room - left),
  }, 3)
end

--- Where Python puts the odd character of str.center.
function M.middle(room, width)
  return math.floor(room / 2) + (room % 2) * (width % 2)
end

--- str.zfill
function M.zfill(rt, v, width)
  local s = text_of(v)
  local room = V.int(width, "a width") - text.len(s)
  if room <= 0 then return v end
  local sign = s:find("^[-+]") and 1 or 0
  return str.concat(rt, {
    sub(rt, v, 1, sign), str.rep(rt, "0", room), sub(rt, v, sign + 1, #s),
  }, 3)
end

-- searching -------------------------------------------------------------------

-- The text of v[start:stop], and how many characters lie before it.
local function window(rt, v, start, stop)
  if start == nil and stop == nil then return text_of(v), 0 end
  local s = text_of(access.slice(rt, v, start, stop))
  local before = start and text_of(access.slice(rt, v, nil, start)) or ""
  return s, text.len(before)
end

--- The methods find and index, or their mirrors when `last`; with `must` an
-- absent text raises.
function M.finder(last, must)
  return function(rt, v, needle, start, stop)
    local s, base = window(rt, v, start, stop)
    local by = required(needle, "the text to find")
    rt_.search(rt, #s * 2, #by)
    local i = s:find(by, 1, true)
    while i and last do
      local j = i <= #s and s:find(by, i + 1, true)
      if not j then break end
      i = j
    end
    if not i and must then fail("substring not found") end
    return i and base + text.index(s, i) or -1
  end
end

--- str.count
function M.count(rt, v, needle, start, stop)
  local s = window(rt, v, start, stop)
  local by = required(needle, "the text to count")
  if by == "" then return text.len(s) + 1 end
  return #occurrences(rt, s, by, -1)
end

local function starts(s, p) return s:sub(1, #p) == p end
local function ends(s, p) return p == "" or s:sub(-#p) == p end

local function edge(fits)
  return function(rt, v, what, start, stop)
    local s = window(rt, v, start, stop)
    if V.typeof(what) ~= V.TUPLE then
      return fits(s, required(what, "a prefix or suffix"))
    end
    for i = 1, #what do
      if fits(s, required(what[i], "a prefix or suffix")) then return true end
    end
    return false
  end
end

M.startswith = edge(starts)
M.endswith = edge(ends)

--- str.removeprefix
function M.removeprefix(rt, v, prefix)
  local s, p = text_of(v), required(prefix, "the prefix")
  return starts(s, p) and sub(rt, v, #p + 1, #s) or v
end

--- str.removesuffix
function M.removesuffix(rt, v, suffix)
  local s, p = text_of(v), required(suffix, "the suffix")
  return ends(s, p) and sub(rt, v, 1, #s - #p) or v
end

return M
