--- lexer.lua: a template's text to tokens {k = kind, v = value, line =}.
--
-- Kinds: data, name, string, integer, float, the text of an operator, and
-- block_begin, block_end, variable_begin, variable_end, eof. White space
-- control is done with here, as Jinja does it under trim_blocks and
-- lstrip_blocks: the newline after a block or comment goes, and so do blanks
-- before one that stands first on its line, unless a sign (`-`, `+`) says
-- otherwise.

local rt_ = require "mc.jinja.rt"
local text = require "mc.jinja.text"

local M = {}

local find, sub, byte = string.find, string.sub, string.byte

local CLOSER = { ["("] = ")", ["["] = "]", ["{"] = "}" }
local OPERATORS = {}
for op in ("// ** == != >= <= + - / * % ~ [ ] ( ) { } > < = . : | , ;")
  :gmatch("%S+") do
  OPERATORS[op] = true
end

-- A lexer is {src, pos, line, seen = bytes whose newlines are counted, out, n}.

local function fail(lx, fmt, ...)
  error({ message = fmt:format(...), line = lx.line, syntax = true }, 0)
end

-- Brings lx.line to that of byte `to`.
local function count_lines(lx, to)
  local src, i, line = lx.src, lx.seen, lx.line
  while true do
    i = find(src, "\n", i, true)
    if not i or i >= to then break end
    line, i = line + 1, i + 1
  end
  lx.line, lx.seen = line, math.max(lx.seen, to)
end

local function push(lx, kind, value)
  lx.n = lx.n + 1
  lx.out[lx.n] = { k = kind, v = value, line = lx.line }
end

-- Adds text before a tag with that sign; a variable keeps the blanks before it.
local function push_data(lx, data, sign, is_variable, at_line_start)
  if sign == "-" then
    data = sub(data, 1, text.trim_end(data, #data))
  elseif sign ~= "+" and not is_variable then
    local nl = #data
    while nl > 0 and byte(data, nl) ~= 10 do nl = nl - 1 end
    if (nl > 0 or at_line_start) and text.skip_space(data, nl + 1) > #data then
      data = sub(data, 1, nl)
    end
  end
  if data ~= "" then push(lx, "data", data) end
end

-- Moves past the end of a tag whose `%}` or `#}` begins at byte i; `sign`
-- stands before it.
local function pass_end(lx, i, sign)
  local pos = i + 2
  if sign == "-" then
    pos = text.skip_space(lx.src, pos)
  elseif sign ~= "+" and byte(lx.src, pos) == 10 then
    pos = pos + 1
  end
  lx.pos = pos
end

local SIMPLE = {
  n = "\n", t = "\t", r = "\r", a = "\a", b = "\b", f = "\f", v = "\v",
  ["\\"] = "\\", ["'"] = "'", ['"'] = '"', ["\n"] = "",
}
local HEX_DIGITS = { x = 2, u = 4, U = 8 }

-- The escape that begins at byte i of s: its value and the byte after it.
local function unescape(lx, s, i)
  local c = sub(s, i + 1, i + 1)
  local digits = HEX_DIGITS[c]
  if SIMPLE[c] then
    return SIMPLE[c], i + 2
  elseif digits then
    local hex = sub(s, i + 2, i + 1 + digits)
    local cp = #hex == digits and find(hex, "^%x+$") and tonumber(hex, 16)
    if not cp or cp >= 0x110000 or (cp >= 0xD800 and cp < 0xE000) then
      fail(lx, "cannot decode the escape \\%s%s", c, hex)
    end
    return text.encode(cp), i + 2 + digits
  end
  local octal = s:match("^[0-7][0-7]?[0-7]?", i + 1)
  if octal then
    return text.encode(tonumber(octal, 8)), i + 1 + #octal
  elseif c == "N" then
    fail(lx, "\\N escapes are not supported")
  end
  return "\\" .. c, i + 2
end

local function string_value(lx, s)
  if not find(s, "\\", 1, true) then return s end
  local out, i = {}, 1
  while true do
    local j = find(s, "\\", i, true)
    out[#out + 1] = sub(s, i, (j or #s + 1) - 1)
    if not j then return table.concat(out) end
    out[#out + 1], i = unescape(lx, s, j)
  end
end

-- Each reader returns the byte after its token, or nil when it sees none.

local function read_string(lx, i)
  local src = lx.src
  local quote = sub(src, i, i)
  if quote ~= "'" and quote ~= '"' then return nil end
  local j = i + 1
  while true do
    j = find(src, "[\\" .. quote .. "]", j)
    if not j then return nil end
    if byte(src, j) ~= 92 then break end
    j = j + 2
  end
  push(lx, "string", string_value(lx, sub(src, i + 1, j - 1)))
  return j + 1
end

local BASES = {
  { "^0[xX]_?%x[%x_]*", 16 }, { "^0[bB]_?[01][01_]*", 2 },
  { "^0[oO]_?[0-7][0-7_]*", 8 },
}

local function push_integer(lx, digits, base)
  local n = tonumber((digits:gsub("_", "")), base)
  if n > 2^53 then fail(lx, "the integer %s is too large", digits) end
  push(lx, "integer", n)
end

local function read_number(lx, i)
  local src = lx.src
  if not find(src, "^%d", i) then return nil end
  for _, b in ipairs(BASES) do
    local _, e = find(src, b[1], i)
    if e then
      push_integer(lx, sub(src, i + 2, e), b[2])
      return e + 1
    end
  end
  local _, whole = find(src, "^[%d_]*%d", i)
  local _, frac = find(src, "^%.[%d_]*%d", whole + 1)
  local _, exp = find(src, "^[eE][-+]?[%d_]*%d", (frac or whole) + 1)
  local stop = exp or frac
  if stop and byte(src, i - 1) ~= 46 then
    push(lx, "float", tonumber((sub(src, i, stop):gsub("_", ""))))
    return stop + 1
  end
  push_integer(lx, sub(src, i, whole), 10)
  return whole + 1
end

local function read_name(lx, i)
  local name = lx.src:match("^[%a_\128-\255][%w_\128-\255]*", i)
  if not name then return nil end
  push(lx, "name", name)
  return i + #name
end

local function read_operator(lx, i, open)
  local op = sub(lx.src, i, i + 1)
  if not OPERATORS[op] then op = sub(op, 1, 1) end
  if not OPERATORS[op] then return nil end
  if CLOSER[op] then
    open[#open + 1] = CLOSER[op]
    if #open > rt_.MAX_DEPTH then
      fail(lx, "brackets nest deeper than %d", rt_.MAX_DEPTH)
    end
  elseif op == ")" or op == "]" or op == "}" then
    local want = table.remove(open)
    if not want then fail(lx, "unexpected '%s'", op) end
    if want ~= op then fail(lx, "unexpected '%s', expected '%s'", op, want) end
  end
  push(lx, op, op)
  return i + #op
end

-- Reads the inside of a tag up to its end, `%}` or `}}`.
local function read_tag(lx, close)
  local src, open = lx.src, {}
  local is_block = close == "%}"
  while true do
    local i = text.skip_space(src, lx.pos)
    count_lines(lx, i)
    if i > #src then return end -- the parser meets eof
    local sign = sub(src, i, i)
    if sign ~= "-" and (sign ~= "+" or not is_block) then sign = "" end
    if #open == 0 and sub(src, i + #sign, i + #sign + 1) == close then
      push(lx, is_block and "block_end" or "variable_end", close)
      if is_block or sign == "-" then
        pass_end(lx, i + #sign, sign)
      else
        lx.pos = i + 2
      end
      return
    end
    lx.pos = read_number(lx, i) or read_name(lx, i) or read_string(lx, i)
      or read_operator(lx, i, open)
      or fail(lx, "unexpected char '%s'", src:match(text.CHAR_AT, i))
  end
end

local function read_comment(lx, from)
  local i = find(lx.src, "#}", from, true)
  if not i then fail(lx, "Missing end of comment tag") end
  local sign = i > from and sub(lx.src, i - 1, i - 1) or ""
  pass_end(lx, i, sign)
end

local function read_raw(lx)
  local from = lx.pos
  local i, e, sign, tail =
    find(lx.src, "{%%([-+]?)%s*endraw%s*([-+]?)%%}", from)
  if not i then fail(lx, "Missing end of raw directive") end
  local at_line_start = from == 1 or byte(lx.src, from - 1) == 10
  push_data(lx, sub(lx.src, from, i - 1), sign, false, at_line_start)
  pass_end(lx, e - 1, tail)
end

-- Reads text up to the next tag, and that tag.
local function read_root(lx)
  local src, from = lx.src, lx.pos
  local i = find(src, "{[{%%#]", from)
  if not i then
    push(lx, "data", sub(src, from))
    lx.pos = #src + 1
    return
  end
  local at_line_start = from == 1 or byte(src, from - 1) == 10
  local kind = sub(src, i + 1, i + 1)
  local sign = src:match("^[-+]", i + 2) or ""
  push_data(lx, sub(src, from, i - 1), sign, kind == "{", at_line_start)
  count_lines(lx, i)
  local _, raw_end, dash = find(src, "^{%%[-+]?%s*raw%s*(%-?)%%}", i)
  if raw_end then
    lx.pos = dash == "-" and text.skip_space(src, raw_end + 1) or raw_end + 1
    read_raw(lx)
  elseif kind == "#" then
    read_comment(lx, i + 2 + #sign)
  else
    push(lx, kind == "{" and "variable_begin" or "block_begin", "{" .. kind)
    lx.pos = i + 2 + #sign
    read_tag(lx, kind == "{" and "}}" or "%}")
  end
  count_lines(lx, lx.pos)
end

--- The tokens of a template, the last of kind eof.
function M.tokens(source)
  source = source:gsub("\r\n?", "\n"):gsub("\n$", "")
  local lx = { src = source, pos = 1, line = 1, seen = 1, out = {}, n = 0 }
  while lx.pos <= #source do
    read_root(lx)
  end
  push(lx, "eof", "end of template")
  return lx.out
end

return M
