--- sig.lua: how arguments meet the parameters of filters, tests and methods.
--
-- A signature is made once from a line such as "old new count?": names in
-- order, `?` for those that may be left out (they arrive as nil). "*" takes
-- what comes, as (args, kw). The function is called as fn(rt, subject, ...). At
-- most five named parameters. Immutable.

local rt_ = require "mc.jinja.rt"
local V = require "mc.jinja.values"

local M = {}

local fail = rt_.fail

--- A signature.
function M.new(spec, fn)
  local s = { fn = fn, n = 0, min = 0, names = {}, index = {} }
  if spec == "*" then
    s.variadic = true
    return s
  end
  for name, optional in spec:gmatch("([%w_]+)(%??)") do
    s.n = s.n + 1
    s.names[s.n], s.index[name] = name, s.n
    if optional == "" then
      s.min = s.n
    end
  end
  assert(s.n <= 5, spec)
  return s
end

--- A table of signatures from {name = {spec, fn}}.
function M.table(defs)
  local out = {}
  for name, d in pairs(defs) do
    out[name] = M.new(d[1], d[2])
  end
  return out
end

-- The keywords kw put into their places in slots.
local function place(s, what, slots, n, kw)
  for _, name in ipairs(kw) do
    local i = s.index[name]
    if not i then
      fail("%s got an unexpected keyword argument '%s'", what, name)
    elseif i <= n then
      fail("%s got multiple values for argument '%s'", what, name)
    end
    slots[i] = kw[name]
  end
end

--- Calls s on a subject with args {n =, ...} and keywords kw (V.func's form).
function M.call(rt, s, what, subject, args, kw)
  local n = args.n
  if s.variadic then
    return s.fn(rt, subject, args, kw)
  elseif n > s.n then
    fail("%s takes at most %d arguments (%d given)", what, s.n, n)
  end
  if kw then
    place(s, what, args, n, kw)
  end
  for i = n + 1, s.min do
    if args[i] == nil then
      fail("%s is missing its argument '%s'", what, s.names[i])
    end
  end
  return s.fn(rt, subject, args[1], args[2], args[3], args[4], args[5])
end

--- Whether an optional argument was given, none counting as not.
function M.given(v)
  return v ~= nil and v ~= V.none
end

--- Whether an optional argument was given and is true.
function M.flag(v)
  return v ~= nil and V.truth(v)
end

--- The function of a filter that returns a generator over the list which fn
-- returns.
function M.lazy(fn)
  return function(rt, v, a, b)
    return V.gen(function() return fn(rt, v, a, b) end)
  end
end

return M
