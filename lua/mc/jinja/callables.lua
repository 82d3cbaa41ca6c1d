--- callables.lua: the values that run a template's own code: macros and `loop`.
--
-- Both live as long as their rendering and hold the frame they were made in.

local ops = require "mc.jinja.ops"
local rt_ = require "mc.jinja.rt"
local str = require "mc.jinja.str"
local V = require "mc.jinja.values"

local M = {}

local fail = rt_.fail

-- loop ------------------------------------------------------------------------

local LOOP = V.kind "LoopContext"

local function item(l, i, which)
  if i < 1 or i > l.n then
    return V.undefined(nil, nil, "there is no " .. which .. " item")
  end
  return l.items[i]
end

LOOP.attrs = {
  index = function(l) return l.i end,
  index0 = function(l) return l.i - 1 end,
  revindex = function(l) return l.n - l.i + 1 end,
  revindex0 = function(l) return l.n - l.i end,
  first = function(l) return l.i == 1 end,
  last = function(l) return l.i == l.n end,
  length = function(l) return l.n end,
  depth = function(l) return l.depth0 + 1 end,
  depth0 = function(l) return l.depth0 end,
  previtem = function(l) return item(l, l.i - 1, "previous") end,
  nextitem = function(l) return item(l, l.i + 1, "next") end,
  cycle = function(l)
    return V.func("cycle", function(_, args)
      if args.n == 0 then fail("no items for cycling given") end
      return args[(l.i - 1) % args.n + 1]
    end)
  end,
  changed = function(l)
    return V.func("changed", function(_, args)
      local now = V.tuple(args)
      if l.seen and ops.eq(l.seen, now) then return false end
      l.seen = now
      return true
    end)
  end,
}
LOOP.len = function(l) return l.n end

local function not_recursive()
  fail("The loop must have the 'recursive' marker to be called recursively.")
end

--- The variable `loop` of a loop over items[1..n]; the loop moves its field i.
function M.loop(items, n, recurse, depth0)
  return {
    t = LOOP, items = items, n = n, i = 1, depth0 = depth0,
    call = recurse or not_recursive,
  }
end

-- macros ----------------------------------------------------------------------

local MACRO = V.kind "Macro"
MACRO.repr = function(m)
  return m.name and ("<Macro '%s'>"):format(m.name) or "<Macro anonymous>"
end

-- Puts arguments into the slots of frame g; what is over goes to varargs and
-- kwargs where the body reads them, and is an error where it does not.
local function bind(def, g, args, kw)
  local used, params, special = {}, def.params, def.special
  for i, p in ipairs(params) do
    local v = args[i]
    if i > args.n and kw then
      v, used[p.name] = kw[p.name], true
    end
    g[p.i] = v
  end
  if special.caller then
    g[special.caller] = kw and kw.caller
      or V.undefined("caller", nil, "No caller defined")
    used.caller = true
  end
  local name, more = def.name or "caller", V.dict()
  for _, k in ipairs(kw or {}) do
    if not used[k] then
      if not special.kwargs then
        fail("macro '%s' takes no keyword argument '%s'", name, k)
      end
      V.put(more, k, kw[k])
    end
  end
  if special.kwargs then g[special.kwargs] = more end
  local rest = V.tuple {}
  for i = #params + 1, args.n do rest[i - #params] = args[i] end
  if special.varargs then
    g[special.varargs] = rest
  elseif rest[1] ~= nil then
    fail("macro '%s' takes not more than %d argument(s)", name, #params)
  end
end

-- The value of a parameter that no argument was given for.
local function default(p, g)
  if p.default then return p.default(g) end
  local hint = ("parameter '%s' was not provided"):format(p.name)
  return V.undefined(p.name, nil, hint)
end

--- A function from the frame around it to a macro's value. def: name (nil for
-- the caller of a call block), params {name, i = slot, default = closure},
-- special = slots of caller, kwargs and varargs where the body reads them,
-- enter, body, cost = that of the defaults.
function M.macro(def)
  local function run(rt, f, args, kw)
    local g = { rt = rt, up = f }
    bind(def, g, args, kw)
    local out, line = rt_.enter(rt)
    rt_.spend(rt, def.cost)
    def.enter(g)
    for _, p in ipairs(def.params) do
      if g[p.i] == nil then g[p.i] = default(p, g) end
    end
    def.body(g)
    local written = rt_.leave(rt, out, line)
    return str.concat(rt, written, written.n)
  end
  return function(f)
    return {
      t = MACRO, name = def.name,
      call = function(rt, args, kw) return run(rt, f, args, kw) end,
    }
  end
end

return M
