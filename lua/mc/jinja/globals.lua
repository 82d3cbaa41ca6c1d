--- globals.lua: the functions that every template finds: range, dict,
-- namespace, cycler, joiner, raise_exception, strftime_now.
--
-- Made once for a template, with its clock; a cycler or joiner that a template
-- makes belongs to that rendering. lipsum is left out.

local access = require "mc.jinja.access"
local clock = require "mc.jinja.clock"
local rt_ = require "mc.jinja.rt"
local show = require "mc.jinja.show"
local sig = require "mc.jinja.sig"
local str = require "mc.jinja.str"
local V = require "mc.jinja.values"

local M = {}

local fail, text_of = rt_.fail, str.text

local MAX_RANGE = 100000 -- jinja2.sandbox.MAX_RANGE

local function range(rt, args, kw)
  if kw or args.n < 1 or args.n > 3 then
    fail("range expected 1 to 3 arguments")
  end
  for i = 1, args.n do V.int(args[i], "an argument of range") end
  local start, stop = V.number(args[1]), V.number(args[2] or 0)
  local step = V.number(args[3] or 1)
  if args.n == 1 then start, stop = 0, start end
  if step == 0 then fail("range() arg 3 must not be zero") end
  local n = math.max(0, math.ceil((stop - start) / step))
  if n > MAX_RANGE then
    fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
         MAX_RANGE)
  end
  rt_.spend(rt, n / 4)
  local out = { t = V.RANGE, start = start, stop = stop, step = step }
  for i = 1, n do out[i] = start + (i - 1) * step end
  return out
end

-- Fills d as Python's dict(mapping or pairs, name=value, ...) would.
local function fill(rt, d, args, kw)
  if args.n > 1 then
    fail("dict expected at most 1 argument, got %d", args.n)
  end
  local from = args[1]
  if V.typeof(from) == V.DICT then
    for _, k in ipairs(from.k) do V.put(d, k, V.lookup(from, k)) end
  elseif from ~= nil then
    local items, n = access.items(rt, from)
    for i = 1, n do
      local pair, two = access.items(rt, items[i])
      if two ~= 2 then
        fail("dictionary update sequence element #%d has length %d; "
          .. "2 is required", i - 1, two)
      end
      V.put(d, pair[1], pair[2])
    end
  end
  for _, k in ipairs(kw or {}) do V.put(d, k, kw[k]) end
  return d
end

local function dict(rt, args, kw)
  return fill(rt, V.dict(), args, kw)
end

--- Sets an attribute of a namespace.
function M.set_attr(ns, name, value)
  if name:sub(1, 1) == "_" then
    fail("Chat templates cannot store underscore-prefixed attributes on a "
      .. "namespace, but got '%s'. Please rename the attribute.", name)
  end
  V.put(ns, name, value)
end

local function namespace(rt, args, kw)
  local ns = { t = V.NS, k = {}, h = {} }
  local from = fill(rt, V.dict(), args, kw)
  for _, k in ipairs(from.k) do
    local name = text_of(k) or fail("a namespace needs names")
    M.set_attr(ns, name, V.lookup(from, k))
  end
  return ns
end

local CYCLER = V.kind "Cycler"
CYCLER.attrs = { current = function(c) return c.items[c.at % #c.items + 1] end }
CYCLER.methods = sig.table {
  next = { "", function(_, c)
    local v = CYCLER.attrs.current(c)
    c.at = c.at + 1
    return v
  end },
  reset = { "", function(_, c)
    c.at = 0
    return V.none
  end },
}

local function cycler(_, args)
  if args.n == 0 then fail("at least one item has to be provided") end
  return { t = CYCLER, items = args, at = 0 }
end

local function joiner(_, args)
  local used = false
  return V.func("joiner", function()
    if used then return args[1] or ", " end
    used = true
    return ""
  end)
end

local function raise_exception(rt, args, kw)
  local message = args[1] or (kw and kw.message)
  if message == nil then fail("raise_exception() needs a message") end
  error({ message = text_of(show.str(rt, message)), raised = true }, 0)
end

--- name -> function value. now() gives the time (clock.lua) for strftime_now.
function M.new(now)
  local function strftime_now(_, args, kw)
    local format = text_of(args[1] or (kw and kw.format) or V.none)
    if not format then fail("strftime_now() needs a format") end
    if not now then fail("strftime_now() has no clock here") end
    return clock.strftime(format, now())
  end
  local out = {}
  for name, fn in pairs {
    range = range, dict = dict, namespace = namespace, cycler = cycler,
    joiner = joiner, raise_exception = raise_exception,
    strftime_now = strftime_now,
  } do
    out[name] = V.func(name, fn)
  end
  return out
end

return M
