--- filters.lua: the filters over one value: text, numbers, JSON.
--
-- The module is the table name -> signature of every filter, those of
-- sorting.lua and sequences.lua included. What Jinja's HTML filters return is a
-- plain string here: chat templates run without escaping. Left out are pprint,
-- random, lipsum, filesizeformat, striptags, urlencode, urlize, wordwrap and
-- xmlattr. Stateless.

local access = require "mc.jinja.access"
local format = require "mc.jinja.format"
local ops = require "mc.jinja.ops"
local rt_ = require "mc.jinja.rt"
local sequences = require "mc.jinja.sequences"
local show = require "mc.jinja.show"
local sig = require "mc.jinja.sig"
local sorting = require "mc.jinja.sorting"
local str = require "mc.jinja.str"
local strings = require "mc.jinja.strings"
local tests = require "mc.jinja.tests"
local text = require "mc.jinja.text"
local V = require "mc.jinja.values"

local fail, text_of, flag = rt_.fail, str.text, sig.flag

-- text ------------------------------------------------------------------------

local function case(fn)
  return { "", function(rt, v) return str.map(show.str(rt, v), fn) end }
end

local function title(s)
  local first = true -- of a word
  return (s:gsub(text.CHAR, function(c)
    local new = first and text.upper(c) or text.lower(c)
    first = c:find("^[-({%[<]") or text.space_at(c, 1)
    return new
  end))
end

local ESCAPES = {
  ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ["'"] = "&#39;",
  ['"'] = "&#34;",
}

local escape = case(function(s)
  return (s:gsub("[&<>'\"]", ESCAPES))
end)

local function replace(rt, v, old, new, count)
  old, new = show.str(rt, old), show.str(rt, new)
  return strings.replace(rt, show.str(rt, v), old, new, count)
end

local function trim(rt, v, chars)
  return strings.strip(rt, show.str(rt, v), chars, true, true)
end

local function center(rt, v, width)
  if width == nil then width = 80 end
  return strings.pad(rt, show.str(rt, v), width, nil, strings.middle)
end

local function need_text(v, what)
  if V.typeof(v) == V.UNDEF then V.fail_undefined(v) end
  return text_of(v) or fail("%s needs a string, not %s", what, V.typename(v))
end

local function indent(rt, v, width, first, blank)
  need_text(v, "indent")
  local pad = width ~= nil and text_of(width) and width
    or str.rep(rt, " ", width == nil and 4 or V.int(width, "the width"))
  local lines = strings.splitlines(rt, str.join2(rt, v, "\n"))
  local out = { flag(first) and pad or "" }
  for i = 1, #lines do
    if i > 1 then
      out[#out + 1] = "\n"
      out[#out + 1] = (flag(blank) or lines[i] ~= "") and pad or ""
    end
    out[#out + 1] = lines[i]
  end
  return str.concat(rt, out, #out)
end

local function truncate(rt, v, length, killwords, tail, leeway)
  length = length == nil and 255 or V.int(length, "the length")
  leeway = leeway == nil and 5 or V.int(leeway, "the leeway")
  tail = tail or "..."
  local room = length - access.len(tail)
  if room < 0 or leeway < 0 then fail("truncate has no room for its end") end
  if access.len(v) <= length + leeway then return v end
  need_text(v, "truncate")
  need_text(tail, "truncate")
  local cut = access.slice(rt, v, nil, room)
  if not flag(killwords) then
    cut = strings.rsplit(rt, cut, " ", 1)[1]
  end
  return str.join2(rt, cut, tail)
end

local function wordcount(rt, v)
  local _, n = text_of(show.str(rt, v)):gsub("[%w_\128-\255]+", "")
  return n
end

local function printf(rt, v, args, kw)
  if kw and kw[1] and args.n > 0 then
    fail("can't handle positional and keyword arguments at the same time")
  end
  local values = args
  if kw and kw[1] then
    values = V.dict()
    for _, k in ipairs(kw) do V.put(values, k, kw[k]) end
  else
    values.t = V.TUPLE
  end
  return format.percent(rt, show.str(rt, v), values)
end

-- numbers ---------------------------------------------------------------------

-- The digits of a Python number literal in s, underscores taken out, or nil.
local function plain(s)
  s = s:sub(text.skip_space(s, 1), text.trim_end(s, #s)):lower()
  if s:find("^_") or s:find("_$") or s:find("__", 1, true) then return nil end
  return (s:gsub("_", ""))
end

local NAMES = { inf = 1 / 0, infinity = 1 / 0, nan = 0 / 0 }

-- float(s), or nil.
local function read_float(s)
  s = plain(s)
  if not s then return nil end
  local sign, rest = s:match("^([-+]?)(.*)$")
  local x = NAMES[rest]
  if not x and rest:find("^%.?%d[%d.]*e?[-+]?%d*$") then -- nothing but decimal
    x = tonumber(rest)
  end
  return x and (sign == "-" and -x or x)
end

local PREFIX = { [2] = "0b", [8] = "0o", [16] = "0x" }

-- int(s, base), or nil.
local function read_int(s, base)
  s = plain(s)
  local sign, digits = (s or ""):match("^([-+]?)(%w+)$")
  local known = base and (base == 0 or (base >= 2 and base <= 36))
  if not digits or not known then return nil end
  for b, prefix in pairs(PREFIX) do
    if (base == b or base == 0) and digits:sub(1, 2) == prefix then
      base, digits = b, digits:sub(3)
    end
  end
  local x = tonumber(digits, base == 0 and 10 or base)
  return x and digits:find("^%w+$") and (sign == "-" and -x or x)
end

local function whole(x)
  x = x < 0 and math.ceil(x) or math.floor(x)
  if x < -2^53 or x > 2^53 then fail("an integer is beyond 2^53") end
  return x
end

local function to_int(_, v, default, base)
  if V.typeof(v) == V.UNDEF then V.fail_undefined(v) end
  base = base == nil and 10 or V.number(base)
  local s = text_of(v)
  local x
  if s then
    x = read_int(s, base) or read_float(s)
  else
    x = V.number(v)
  end
  if not x or x - x ~= 0 then return default == nil and 0 or default end
  return whole(x)
end

local function to_float(_, v, default)
  if V.typeof(v) == V.UNDEF then V.fail_undefined(v) end
  local s = text_of(v)
  local x
  if s then x = read_float(s) else x = V.number(v) end
  if not x then return default == nil and V.float(0) or default end
  return V.float(x)
end

-- Rounds to the even neighbour when two are equally near.
local function half_even(x)
  local low = math.floor(x)
  if x - low == 0.5 then return low % 2 == 0 and low or low + 1 end
  return math.floor(x + 0.5)
end

local function round(_, v, precision, method)
  local x = V.number(v)
  if not x then
    if V.typeof(v) == V.UNDEF then V.fail_undefined(v) end
    fail("round needs a number, not %s", V.typename(v))
  end
  local p = precision == nil and 0 or V.int(precision, "the precision")
  method = method and text_of(method) or "common"
  if p > 300 or p < -300 then fail("a precision of %d is too large", p) end
  if method == "ceil" or method == "floor" then
    return V.float(math[method](x * 10 ^ p) / 10 ^ p)
  elseif method ~= "common" then
    fail("method must be common, ceil or floor")
  end
  local is_float = V.is_float(v)
  if p >= 0 then
    if not is_float then return x end
    return V.float(x - x == 0 and tonumber(show.fixed(x, math.min(p, 60))) or x)
  end
  local near = half_even(x / 10 ^ -p) * 10 ^ -p
  return is_float and V.float(near) or near
end

local function abs(rt, v)
  local x = V.number(v)
  if not x then
    if V.typeof(v) == V.UNDEF then V.fail_undefined(v) end
    fail("bad operand type for abs(): '%s'", V.typename(v))
  end
  if type(v) == "boolean" then return x end
  return x < 0 and ops.neg(rt, v) or v
end

-- everything else -------------------------------------------------------------

local function default(_, v, other, boolean)
  if V.typeof(v) == V.UNDEF or (flag(boolean) and not V.truth(v)) then
    return other == nil and "" or other
  end
  return v
end

local function attr(_, v, name)
  return access.attr(v, need_text(name, "attr"))
end

local function sort_keys(rt, keys)
  return sorting.sorted(rt, keys, #keys, keys)
end

-- json.dumps as the chat templates of transformers get it.
local function tojson(rt, v, ensure_ascii, indentation, separators, sorted)
  local opts = { ascii = flag(ensure_ascii), sort = flag(sorted) and sort_keys }
  if indentation ~= nil and indentation ~= V.none then
    opts.indent = text_of(indentation)
      or (" "):rep(math.min(V.int(indentation, "indent"), 1000))
  end
  if separators ~= nil and separators ~= V.none then
    local list, n = access.items(rt, separators)
    if n ~= 2 then fail("separators must be (item, key)") end
    opts.comma = need_text(list[1], "tojson")
    opts.colon = need_text(list[2], "tojson")
  end
  return show.json(rt, v, opts)
end

local length = { "", function(_, v) return access.len(v) end }
local orelse = { "default_value? boolean?", default }

local F = sig.table {
  abs = { "", abs },
  attr = { "name", attr },
  capitalize = case(text.capitalize),
  center = { "width?", center },
  count = length,
  length = length,
  d = orelse,
  default = orelse,
  e = escape,
  escape = escape,
  forceescape = escape,
  float = { "default?", to_float },
  format = { "*", printf },
  indent = { "width? first? blank?", indent },
  int = { "default? base?", to_int },
  lower = case(text.lower),
  upper = case(text.upper),
  title = case(title),
  replace = { "old new count?", replace },
  round = { "precision? method?", round },
  safe = { "", function(rt, v) return show.str(rt, v) end },
  string = { "", function(rt, v) return show.str(rt, v) end },
  tojson = { "ensure_ascii? indent? separators? sort_keys?", tojson },
  trim = { "chars?", trim },
  truncate = { "length? killwords? end? leeway?", truncate },
  wordcount = { "", wordcount },
}

for _, more in ipairs { sorting.filters, sequences.filters(F) } do
  for name, s in pairs(more) do F[name] = s end
end

tests.filter = sig.new("", function(_, v)
  local name = text_of(v)
  return name ~= nil and F[name] ~= nil
end)

return F
