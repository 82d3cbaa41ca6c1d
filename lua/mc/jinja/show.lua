--- show.lua: values as text: str(), repr() and JSON, as Python writes them.
--
-- Text made of several values is marked whole when any of them is a user's: a
-- container has no bytes of its own to tell apart. Approximation: repr()
-- escapes Unicode's controls, format characters, separators and private use,
-- not its unassigned code points. Stateless.

local rt_ = require "mc.jinja.rt"
local str = require "mc.jinja.str"
local text = require "mc.jinja.text"
local V = require "mc.jinja.values"

local M = {}

local type, format = type, string.format
local fail, spend = rt_.fail, rt_.spend
local STR, LIST, TUPLE, RANGE, DICT = V.STR, V.LIST, V.TUPLE, V.RANGE, V.DICT

--- repr(float): the fewest digits that read back as the same number.
local function float_repr(x)
  if x ~= x then return "nan" end
  if x - x ~= 0 then return x > 0 and "inf" or "-inf" end
  local s
  for p = 0, 16 do
    s = format("%." .. p .. "e", x)
    if tonumber(s) == x then break end
  end
  local sign, a, b, e = s:match("^(%-?)(%d)%.?(%d*)e([-+]%d+)$")
  local digits, exp = a .. b, tonumber(e)
  if exp < -4 or exp >= 16 then
    local tail = b ~= "" and "." .. b or ""
    return format("%s%s%se%s%02d", sign, a, tail, e:sub(1, 1), math.abs(exp))
  elseif exp < 0 then
    return sign .. "0." .. ("0"):rep(-exp - 1) .. digits
  end
  digits = digits .. ("0"):rep(exp + 1 - #digits)
  local frac = digits:sub(exp + 2)
  return sign .. digits:sub(1, exp + 1) .. "." .. (frac == "" and "0" or frac)
end

--- Python's "%.nf": LuaJIT's, but that a tie goes to the even digit.
function M.fixed(x, n)
  local s = ("%." .. n .. "f"):format(x)
  local exact = ("%.99f"):format(x)
  local cut, rest = exact:match("^(%-?%d+%." .. ("%d"):rep(n) .. ")(%d+)$")
  if rest and rest:find("^50*$") and cut:find("[02468]%.?$") then
    return (cut:gsub("%.$", ""))
  end
  return s
end

--- A number value in Python's notation.
local function number(v)
  if type(v) == "table" then
    return v.t == V.BIG and v.s or float_repr(v.v)
  end
  return v % 1 == 0 and format("%d", v) or float_repr(v)
end
M.number = number

local NAMED = {
  ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\\"] = "\\\\",
}

local HIDDEN = { -- ranges of code points that repr() escapes
  { 0x80, 0xA0 }, { 0xAD, 0xAD }, { 0x600, 0x605 }, { 0x61C, 0x61C },
  { 0x6DD, 0x6DD }, { 0x70F, 0x70F }, { 0x1680, 0x1680 }, { 0x180E, 0x180E },
  { 0x2000, 0x200F }, { 0x2028, 0x202F }, { 0x205F, 0x206F },
  { 0x3000, 0x3000 }, { 0xE000, 0xF8FF }, { 0xFEFF, 0xFEFF },
  { 0xFFF0, 0xFFFB }, { 0xFFFE, 0xFFFF }, { 0xE0000, 0x10FFFF },
}

local function escape_char(c)
  local cp = text.decode(c)
  for i = 1, #HIDDEN do
    if cp < HIDDEN[i][1] then return c end
    if cp <= HIDDEN[i][2] then
      if cp < 0x100 then return format("\\x%02x", cp) end
      return format(cp < 0x10000 and "\\u%04x" or "\\U%08x", cp)
    end
  end
  return c
end

local function string_repr(s)
  local quote = "'"
  if s:find("'", 1, true) and not s:find('"', 1, true) then
    quote = '"'
  end
  s = s:gsub("[%c\\" .. quote .. "]", function(c)
    if c == quote then return "\\" .. c end
    return NAMED[c] or format("\\x%02x", c:byte())
  end)
  if not text.ascii(s) then
    s = s:gsub("[\194-\244][\128-\191]+", escape_char)
  end
  return quote .. s .. quote
end

-- A writer gathers parts of text; `user` says that one of them was a user's.
local function put(w, s)
  w.n = w.n + 1
  w[w.n] = s
  w.room = w.room - #s
  if w.room < 0 then fail("a value to be written is too large") end
end

local function finish(rt, w)
  local s = str.concat(rt, w, w.n)
  return w.user and str.user(s) or s
end

local repr

local function repr_items(rt, w, items, open, close)
  put(w, open)
  for i = 1, #items do
    if i > 1 then put(w, ", ") end
    repr(rt, w, items[i])
  end
  put(w, close)
end

local function repr_dict(rt, w, d)
  put(w, "{")
  for i, k in ipairs(d.k) do
    if i > 1 then put(w, ", ") end
    repr(rt, w, k)
    put(w, ": ")
    repr(rt, w, V.lookup(d, k))
  end
  put(w, "}")
end

local function repr_table(rt, w, v)
  local t = v.t
  w.user = w.user or v.user
  if t == STR then
    w.user = true
    put(w, string_repr(v.s))
  elseif t == V.NONE then
    put(w, "None")
  elseif t == V.FLOAT or t == V.BIG then
    put(w, number(v))
  elseif t == LIST then
    repr_items(rt, w, v, "[", "]")
  elseif t == TUPLE then
    repr_items(rt, w, v, "(", #v == 1 and ",)" or ")")
  elseif t == DICT then
    repr_dict(rt, w, v)
  elseif t == V.VIEW then
    repr_items(rt, w, v.items, v.name .. "([", "])")
  elseif t == RANGE then
    local how = v.step == 1 and "range(%d, %d)" or "range(%d, %d, %d)"
    put(w, format(how, v.start, v.stop, v.step))
  elseif t == V.NS then
    put(w, "<Namespace ")
    repr_dict(rt, w, v)
    put(w, ">")
  elseif t.repr then
    put(w, t.repr(v))
  else
    put(w, t == V.UNDEF and "Undefined" or "<" .. t.name .. ">")
  end
end

function repr(rt, w, v)
  spend(rt, 1)
  if type(v) == "string" then
    put(w, string_repr(v))
  elseif type(v) == "number" then
    put(w, number(v))
  elseif type(v) == "boolean" then
    put(w, v and "True" or "False")
  elseif w.depth >= rt_.MAX_DEPTH then
    fail("a value to be printed nests deeper than %d", rt_.MAX_DEPTH)
  else
    w.depth = w.depth + 1
    repr_table(rt, w, v)
    w.depth = w.depth - 1
  end
end

--- repr(v) as a string value.
function M.repr(rt, v)
  local w = { n = 0, depth = 0, room = rt.max_bytes }
  repr(rt, w, v)
  return finish(rt, w)
end

--- str(v) as a string value.
function M.str(rt, v)
  if type(v) == "string" then return v end
  if type(v) == "number" then return number(v) end
  if type(v) == "boolean" then return v and "True" or "False" end
  local t = v.t
  if t == STR then return v end
  if t == V.UNDEF then return "" end
  if t == V.NONE then return "None" end
  return M.repr(rt, v)
end

local JSON = {
  ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r",
  ["\t"] = "\\t", ["\b"] = "\\b", ["\f"] = "\\f",
}
for i = 0, 31 do
  local c = string.char(i)
  JSON[c] = JSON[c] or format("\\u%04x", i)
end

local function json_wide(c)
  local cp = text.decode(c)
  if cp < 0x10000 then return format("\\u%04x", cp) end
  cp = cp - 0x10000
  local high, low = math.floor(cp / 1024), cp % 1024
  return format("\\u%04x\\u%04x", 0xD800 + high, 0xDC00 + low)
end

local function json_string(w, s)
  s = s:gsub('[%z\1-\31"\\]', JSON)
  if w.ascii then
    s = s:gsub("[\194-\244][\128-\191]+", json_wide)
  end
  put(w, '"' .. s .. '"')
end

local NO_NUMBER = { nan = "NaN", inf = "Infinity", ["-inf"] = "-Infinity" }

local function json_number(v)
  local s = number(v)
  return NO_NUMBER[s] or s
end

-- The text of a dict's key: JSON has string keys only.
local function json_key(w, k)
  local s = str.text(k)
  if s then
    w.user = w.user or type(k) == "table"
  elseif type(k) == "boolean" then
    s = k and "true" or "false"
  elseif k == V.none then
    s = "null"
  elseif V.number(k) then
    s = json_number(k)
  else
    fail("keys must be str, int, float, bool or None, not %s", V.typename(k))
  end
  return s
end

local json

local function newline(w)
  if w.indent then
    put(w, "\n")
    for _ = 1, w.depth do put(w, w.indent) end
  end
end

local function json_list(rt, w, v)
  if v[1] == nil then return put(w, "[]") end
  put(w, "[")
  for i = 1, #v do
    if i > 1 then put(w, w.comma) end
    newline(w)
    json(rt, w, v[i])
  end
  w.depth = w.depth - 1
  newline(w)
  w.depth = w.depth + 1
  put(w, "]")
end

local function json_dict(rt, w, v)
  if v.k[1] == nil then return put(w, "{}") end
  local keys = v.k
  if w.sort then
    keys = w.sort(rt, keys)
  end
  put(w, "{")
  for i = 1, #keys do
    if i > 1 then put(w, w.comma) end
    newline(w)
    json_string(w, json_key(w, keys[i]))
    put(w, w.colon)
    json(rt, w, V.lookup(v, keys[i]))
  end
  w.depth = w.depth - 1
  newline(w)
  w.depth = w.depth + 1
  put(w, "}")
end

function json(rt, w, v)
  spend(rt, 1)
  if type(v) == "boolean" then return put(w, v and "true" or "false") end
  if type(v) == "string" then return json_string(w, v) end
  if type(v) == "number" then return put(w, json_number(v)) end
  local t = v.t
  if t == STR then
    w.user = true
    return json_string(w, v.s)
  elseif t == V.NONE then
    return put(w, "null")
  elseif t == V.FLOAT or t == V.BIG then
    return put(w, json_number(v))
  elseif t ~= LIST and t ~= TUPLE and t ~= DICT then
    fail("Object of type %s is not JSON serializable", V.typename(v))
  elseif w.depth >= rt_.MAX_DEPTH then
    fail("a value to be written as JSON nests deeper than %d", rt_.MAX_DEPTH)
  end
  w.user = w.user or v.user
  w.depth = w.depth + 1
  if t == DICT then
    json_dict(rt, w, v)
  else
    json_list(rt, w, v)
  end
  w.depth = w.depth - 1
end

--- json.dumps(v): opts {ascii, indent = text of one level, comma, colon, sort =
-- function(rt, keys) -> keys}.
function M.json(rt, v, opts)
  local w = {
    n = 0, depth = 0, room = rt.max_bytes,
    ascii = opts.ascii, indent = opts.indent, sort = opts.sort,
    comma = opts.comma or (opts.indent and "," or ", "),
    colon = opts.colon or ": ",
  }
  json(rt, w, v)
  return finish(rt, w)
end

return M
