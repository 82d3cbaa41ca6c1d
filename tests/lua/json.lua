--- json.lua: JSON to the shapes of mc/data.lua, for tests: what the C binding
-- does in the product. Valid input only.

local data = require "mc.data"

local M = {}

local ESCAPES = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }

local function utf8(cp)
  return require "mc.jinja.text".encode(cp)
end

-- The characters of one escape, or of a pair of surrogates.
local function unescape(s)
  local hi, lo = s:match("^\\u(%x+)\\?u?(%x*)$")
  if not hi then
    local c = s:sub(2)
    return ESCAPES[c] or c
  elseif lo == "" then
    return utf8(tonumber(hi, 16))
  end
  return utf8(0x10000 + (tonumber(hi, 16) - 0xD800) * 1024
    + tonumber(lo, 16) - 0xDC00)
end

local value

local function string_at(s, i)
  local parts, j = {}, i + 1
  while true do
    local k = s:find('["\\]', j)
    parts[#parts + 1] = s:sub(j, k - 1)
    if s:sub(k, k) == '"' then return table.concat(parts), k + 1 end
    local stop = s:match("^\\u[dD][89abAB]%x%x\\u[dD][c-fC-F]%x%x()", k)
      or s:match("^\\u%x%x%x%x()", k) or k + 2
    parts[#parts + 1] = unescape(s:sub(k, stop - 1))
    j = stop
  end
end

local function number_at(s, i)
  local text, stop = s:match("^([-+%deE.]+)()", i)
  local n = tonumber(text)
  local whole = not text:find("[.eE]")
  if (whole and math.abs(n) >= 2^53) or (not whole and n % 1 == 0) then
    return setmetatable({ value = n, text = text }, data.NUMBER), stop
  end
  return n, stop
end

local function skip(s, i) return s:match("^[ \t\r\n]*()", i) end

local function array_at(s, i)
  local out = data.array()
  i = skip(s, i + 1)
  while s:sub(i, i) ~= "]" do
    out[#out + 1], i = value(s, i)
    i = skip(s, i)
    if s:sub(i, i) == "," then i = skip(s, i + 1) end
  end
  return out, i + 1
end

local function object_at(s, i)
  local out, key, v = data.map()
  i = skip(s, i + 1)
  while s:sub(i, i) ~= "}" do
    key, i = string_at(s, i)
    v, i = value(s, skip(s, skip(s, i) + 1))
    out[key] = v
    i = skip(s, i)
    if s:sub(i, i) == "," then i = skip(s, i + 1) end
  end
  return out, i + 1
end

local WORDS = { t = { true, 4 }, f = { false, 5 }, n = { data.null, 4 } }

function value(s, i)
  i = skip(s, i)
  local c = s:sub(i, i)
  if c == "{" then return object_at(s, i) end
  if c == "[" then return array_at(s, i) end
  if c == '"' then return string_at(s, i) end
  local word = WORDS[c]
  if word then return word[1], i + word[2] end
  return number_at(s, i)
end

--- The value of a JSON text.
function M.decode(s)
  return (value(s, 1))
end

--- The values of a file of JSON lines.
function M.lines(path)
  local out = {}
  for line in assert(io.open(path)):lines() do
    out[#out + 1] = M.decode(line)
  end
  return out
end

return M
