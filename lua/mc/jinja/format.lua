--- format.lua: "%s" % values and "{}".format(values).
--
-- The conversions that text needs: s r d i f F e g x X o c % with flags, width
-- and precision; in braces, names, indices, attributes, !r !s, and the fill,
-- align, sign, width, comma, precision and type of Python's small format
-- language. Marks are kept: what a user wrote stays marked inside the result.
-- Stateless.

local access = require "mc.jinja.access"
local rt_ = require "mc.jinja.rt"
local show = require "mc.jinja.show"
local str = require "mc.jinja.str"
local text = require "mc.jinja.text"
local V = require "mc.jinja.values"

local M = {}

local fail, text_of = rt_.fail, str.text

-- A width or precision from its digits, kept within what is ever sensible.
local function small(digits)
  local n = tonumber(digits)
  if n and n > 1000 then fail("a width of %s is too large", digits) end
  return n
end

-- v padded with fill to width characters; align is one of < > ^.
local function align(rt, v, width, how, fill)
  local room = (width or 0) - text.len(text_of(v))
  if room <= 0 then return v end
  local left = how == ">" and room or how == "^" and math.floor(room / 2) or 0
  return str.concat(rt, {
    str.rep(rt, fill, left), v, str.rep(rt, fill, room - left),
  }, 3)
end

local function need_number(v, conv)
  local x = V.number(v)
  if not x then
    if V.typeof(v) == V.UNDEF then V.fail_undefined(v) end
    fail("%%%s format: a real number is required, not %s", conv, V.typename(v))
  end
  return x
end

local FLOATS = { e = true, E = true, f = true, F = true, g = true, G = true }

-- The digits of a finite number under one conversion, sign included.
local function digits_of(x, conv, precision)
  if FLOATS[conv] then
    if x - x ~= 0 then
      return x ~= x and "nan" or x > 0 and "inf" or "-inf"
    end
    precision = math.min(precision or 6, 60)
    if conv == "f" or conv == "F" then return show.fixed(x, precision) end
    return ("%." .. precision .. conv):format(x)
  end
  x = x < 0 and math.ceil(x) or math.floor(x)
  if x < -2^53 or x > 2^53 then fail("an integer is beyond 2^53") end
  local s = ("%" .. (conv == "i" and "d" or conv)):format(math.abs(x))
  s = ("0"):rep((precision or 0) - #s) .. s
  return (x < 0 and "-" or "") .. s
end

-- A sign and zeros up to width, as the flags ask.
local function dress(s, plus, space, zero, width)
  local sign = s:match("^%-") or (plus and "+") or (space and " ") or ""
  s = s:gsub("^%-", "")
  if zero then
    s = ("0"):rep((width or 0) - #s - #sign) .. s
  end
  return sign .. s
end

local function convert(rt, spec, v)
  local conv, precision = spec.conv, spec.precision
  if conv == "s" or conv == "r" or conv == "a" then
    v = conv == "s" and show.str(rt, v) or show.repr(rt, v)
    return precision and access.slice(rt, v, nil, precision) or v
  elseif conv == "c" then
    if text_of(v) and text.len(text_of(v)) == 1 then return v end
    local cp = V.int(v, "%c")
    if cp < 0 or cp >= 0x110000 then fail("%%c arg not in range(0x110000)") end
    return text.encode(cp)
  elseif not conv:find("[diuoxXeEfFgG]") then
    fail("unsupported format character '%s'", conv)
  end
  local x = need_number(v, conv)
  local s = digits_of(x, conv == "u" and "d" or conv, precision)
  local function flag(c) return spec.flags:find(c, 1, true) ~= nil end
  local zeros = flag "0" and not flag "-"
  return dress(s, flag "+", flag " ", zeros, spec.width)
end

-- Reads the conversion that begins at byte i of s: its spec and its last byte.
local function read_spec(s, i)
  local key, rest = s:match("^%%%(([^()]*)%)()", i)
  local from = key and rest or i + 1
  local flags, width, dot, precision, conv, stop =
    s:match("^([-+ #0]*)(%d*)(%.?)(%d*)[hlL]?([%a%%])()", from)
  if not flags then fail("incomplete format") end
  return {
    key = key, flags = flags, width = small(width), conv = conv,
    precision = dot == "." and (small(precision) or 0) or nil,
  }, stop - 1
end

-- The next value for a spec: by key from a mapping, else the next of a tuple.
local function value_for(spec, values, state)
  if spec.key then
    if V.typeof(values) ~= V.DICT then fail("format requires a mapping") end
    local v = V.lookup(values, spec.key)
    if v == nil then fail("no value for the key '%s'", spec.key) end
    return v
  end
  state.used = state.used + 1
  local v
  if V.typeof(values) == V.TUPLE then
    v = values[state.used]
  elseif state.used == 1 then
    v = values
  end
  if v == nil then fail("not enough arguments for format string") end
  return v
end

-- What may stand right of % and not be used: Python takes it for a mapping.
local SUBSCRIPTED = {
  [V.DICT] = true, [V.LIST] = true, [V.RANGE] = true, [V.UNDEF] = true,
}

--- v % values
function M.percent(rt, v, values)
  local s, out, at, state = text_of(v), {}, 1, { used = 0 }
  while true do
    local i = s:find("%", at, true)
    out[#out + 1] = str.sub(rt, v, at, (i or #s + 1) - 1)
    if not i then break end
    local spec, stop = read_spec(s, i)
    if spec.conv == "%" then
      out[#out + 1] = "%"
    else
      local piece = convert(rt, spec, value_for(spec, values, state))
      local left = spec.flags:find("-", 1, true)
      out[#out + 1] = align(rt, piece, spec.width, left and "<" or ">", " ")
    end
    rt_.spend(rt, 1)
    at = stop + 1
  end
  local t = V.typeof(values)
  local given = t == V.TUPLE and #values or (SUBSCRIPTED[t] and 0 or 1)
  if state.used < given then
    fail("not all arguments converted during string formatting")
  end
  return str.concat(rt, out, #out)
end

-- The text of v under a spec of the format language.
local function format_value(rt, v, spec)
  if spec == "" then return show.str(rt, v) end
  local fill, how, rest = spec:match("^([^\128-\191][\128-\191]*)([<>^=])(.*)$")
  if not fill then
    fill, how, rest = nil, spec:match("^([<>^=]?)(.*)$")
  end
  local sign, zero, width, comma, dot, precision, conv =
    rest:match("^([-+ ]?)(0?)(%d*)([,_]?)(%.?)(%d*)(%a?%%?)$")
  if not sign then fail("invalid format specifier '%s'", spec) end
  width, precision = small(width), dot == "." and small(precision) or nil
  local s
  if text_of(v) and (conv == "" or conv == "s") then
    s = precision and access.slice(rt, v, nil, precision) or v
    return align(rt, s, width, how ~= "" and how or "<", fill or " ")
  end
  local x = need_number(v, conv)
  if conv == "%" then
    s = digits_of(x * 100, "f", precision) .. "%"
  elseif conv == "" then
    s = precision and digits_of(x, "g", precision) or text_of(show.str(rt, v))
  else
    s = digits_of(x, conv, precision)
  end
  if comma ~= "" then
    local head, tail = s:match("^(%-?%d+)(.*)$")
    if head then
      head = head:reverse():gsub("(%d%d%d)", "%1" .. comma):reverse()
      s = head:gsub("^(%-?)[,_]", "%1") .. tail
    end
  end
  local zeros = zero ~= "" or how == "="
  s = dress(s, sign == "+", sign == " ", zeros and (fill or "0") == "0", width)
  if how == "" or how == "=" then how = ">" end
  return align(rt, s, width, how, fill or " ")
end

-- The value that a field such as "0.name[1]" or "" names.
local function field_value(rt, name, args, kw, state)
  local first, rest = name:match("^([^.%[]*)(.*)$")
  local v
  if first == "" or first:find("^%d+$") then
    local i = tonumber(first)
    if not i then
      i, state.auto = state.auto, state.auto + 1
    end
    v = args[i + 1]
    if v == nil then fail("Replacement index %d is out of range", i) end
  else
    v = kw and kw[first]
    if v == nil then fail("no value for the field '%s'", first) end
  end
  while rest ~= "" do
    local attr, after = rest:match("^%.([^.%[]+)(.*)$")
    if attr then
      v, rest = access.getattr(v, attr), after
    else
      local key
      key, rest = rest:match("^%[([^%]]+)%](.*)$")
      if not key then fail("malformed field '%s'", name) end
      v = access.getitem(rt, v, key:find("^%d+$") and tonumber(key) or key)
    end
  end
  return v
end

--- v.format(args, keywords)
function M.format(rt, v, args, kw)
  local s, out, at, state = text_of(v), {}, 1, { auto = 0 }
  while true do
    local i = s:find("[{}]", at)
    out[#out + 1] = str.sub(rt, v, at, (i or #s + 1) - 1)
    if not i then break end
    local c = s:sub(i, i)
    if s:sub(i + 1, i + 1) == c then
      out[#out + 1], at = c, i + 2
    else
      local name, conv, spec, stop =
        s:match("^{([^{}!:]*)!?([rsa]?):?([^{}]*)}()", i)
      if not name then fail("a '%s' in a format string has no match", c) end
      local x = field_value(rt, name, args, kw, state)
      if conv ~= "" then
        x = conv == "s" and show.str(rt, x) or show.repr(rt, x)
      end
      out[#out + 1], at = format_value(rt, x, spec), stop
    end
    rt_.spend(rt, 1)
  end
  return str.concat(rt, out, #out)
end

return M
