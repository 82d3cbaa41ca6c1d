--- text.lua: what Python knows about characters: code points, white space,
-- case.
--
-- Plain Lua strings of UTF-8 in and out, positions in bytes unless said. A
-- character is a byte that is no continuation, with the continuation bytes
-- after it, so broken UTF-8 is walked too and never raises. Stateless.

local case = require "mc.jinja.case"

local M = {}

local byte, char, find, sub = string.byte, string.char, string.find, string.sub
local floor = math.floor

M.CHAR = "[^\128-\191][\128-\191]*" -- for gmatch and gsub
local CHAR_AT = "^[^\128-\191]?[\128-\191]*" -- at a position inside a text
M.CHAR_AT = CHAR_AT

--- UTF-8 of a code point.
local function encode(cp)
  if cp < 0x80 then
    return char(cp)
  elseif cp < 0x800 then
    return char(0xC0 + floor(cp / 64), 0x80 + cp % 64)
  elseif cp < 0x10000 then
    return char(0xE0 + floor(cp / 4096), 0x80 + floor(cp / 64) % 64,
                0x80 + cp % 64)
  end
  return char(0xF0 + floor(cp / 262144), 0x80 + floor(cp / 4096) % 64,
              0x80 + floor(cp / 64) % 64, 0x80 + cp % 64)
end
M.encode = encode

--- Code point of a character.
function M.decode(c)
  local a, b, d, e = byte(c, 1, 4)
  if a >= 0xF0 and e then
    return (a - 0xF0) * 262144 + (b - 128) * 4096 + (d - 128) * 64 + e - 128
  elseif a >= 0xE0 and d then
    return (a - 0xE0) * 4096 + (b - 128) * 64 + d - 128
  elseif a >= 0xC0 and b then
    return (a - 0xC0) * 64 + b - 128
  end
  return a
end

--- Whether every byte is ASCII.
local function ascii(s)
  local _, e = find(s, "^[^\128-\255]*") -- half the time of a search
  return e == #s
end
M.ascii = ascii

--- Number of characters.
function M.len(s)
  local bare = s:gsub("[\128-\191]+", "")
  return #bare + (find(s, "^[\128-\191]") and 1 or 0)
end

--- First bytes of the characters, then #s + 1: character k (from 0) is the
-- bytes starts[k + 1] .. starts[k + 2] - 1. Returns the list and the number of
-- characters.
function M.starts(s)
  local out, n, at, stop = {}, 0, 1, #s
  while at <= stop do
    local _, e = find(s, CHAR_AT, at)
    n = n + 1
    out[n], at = at, e + 1
  end
  out[n + 1] = stop + 1
  return out, n
end

--- Number of characters before byte `at`.
function M.index(s, at)
  return M.len(sub(s, 1, at - 1))
end

local SPACE = {}
for _, cp in ipairs {
  0x85, 0xA0, 0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006,
  0x2007, 0x2008, 0x2009, 0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000,
} do
  SPACE[encode(cp)] = true
end

-- Length of the white space character that begins at byte i, or nil.
local function space_at(s, i)
  local b = byte(s, i)
  if not b then return nil end
  if b == 32 or (b >= 9 and b <= 13) or (b >= 28 and b <= 31) then return 1 end
  if b == 0xC2 and SPACE[sub(s, i, i + 1)] then return 2 end
  if b >= 0xE1 and b <= 0xE3 and SPACE[sub(s, i, i + 2)] then return 3 end
  return nil
end
M.space_at = space_at

--- First byte at or after i that is no white space (#s + 1 when there is none).
function M.skip_space(s, i)
  while true do
    local n = space_at(s, i)
    if not n then return i end
    i = i + n
  end
end

--- Last byte of s, at most j, when white space is taken off its end; 0 for
-- none.
function M.trim_end(s, j)
  while j > 0 do
    if space_at(s, j) == 1 then
      j = j - 1
    elseif SPACE[sub(s, j - 1, j)] and j > 1 then
      j = j - 2
    elseif SPACE[sub(s, j - 2, j)] and j > 2 then
      j = j - 3
    else
      break
    end
  end
  return j
end

--- First byte at or after i that is white space, or nil.
function M.find_space(s, i)
  while true do
    i = find(s, "[\9-\13\28-\32\194\225-\227]", i)
    if not i or space_at(s, i) then return i end
    i = i + 1
  end
end

local LINE_END = {
  [encode(0x85)] = true, [encode(0x2028)] = true, [encode(0x2029)] = true,
}

--- The next line end at or after byte i: its first and last byte, or nil.
function M.find_line_end(s, i)
  while true do
    i = find(s, "[\10-\13\28-\30\194\226]", i)
    if not i then return nil end
    local b = byte(s, i)
    if b == 13 and byte(s, i + 1) == 10 then return i, i + 1 end
    if b < 32 then return i, i end
    local n = b == 194 and 1 or 2
    if LINE_END[sub(s, i, i + n)] then return i, i + n end
    i = i + 1
  end
end

local to_upper, to_lower -- made when first needed

local function change(s, which)
  if not to_upper then
    to_upper, to_lower = case.maps(encode)
  end
  return (s:gsub(M.CHAR, which == "upper" and to_upper or to_lower))
end

--- Python's str.upper, but for the context rules of a few scripts.
function M.upper(s)
  s = s:upper()
  return ascii(s) and s or change(s, "upper")
end

--- Python's str.lower; a capital sigma always becomes the inner one.
function M.lower(s)
  s = s:lower()
  return ascii(s) and s or change(s, "lower")
end

--- First character in upper case, the others in lower.
function M.capitalize(s)
  local _, e = find(s, CHAR_AT)
  return M.upper(sub(s, 1, e)) .. M.lower(sub(s, e + 1))
end

return M
