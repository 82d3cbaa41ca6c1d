--- data.lua: JSON values as Lua sees them.
--
-- The one shape in which the C side hands over what it parsed and takes what it
-- is to write; routes, chat templates and tool parsers all read it.
--
--   null     data.null: one table, told by identity (a hole cannot be kept)
--   array    {v1, v2, ...}, metatable data.ARRAY; #t is its length
--   object   metatable data.MAP; the array part lists the keys in their order,
--            the hash part holds the values: {"a", "b", a = 1, b = data.null}.
--            So o.a reads a field and `for _, k in ipairs(o)` walks in order.
--   number   a Lua number; or, when that would not print back as it was
--            written (1.0, or an integer of 2^53 and more), {value =, text =}
--            with metatable data.NUMBER
--
-- A field that a script adds to an object goes to the end of its order; one
-- that it sets to nil is no longer there. A table without a metatable, as
-- scripts write them, is an array when t[1] is there and an object otherwise,
-- its keys in alphabetical order. Owns nothing; any VM, no state.

local M = {}

M.ARRAY = {}
M.MAP = {
  __newindex = function(map, key, value)
    if value ~= nil then
      rawset(map, #map + 1, key)
      rawset(map, key, value)
    end
  end,
}
M.NUMBER = {
  __tostring = function(n) return n.text end,
}
M.null = setmetatable({}, {
  __tostring = function() return "null" end,
  __newindex = function() error("null has no fields", 2) end,
})

--- Marks a plain table as an array, so that an empty one is [] and not {}.
function M.array(t)
  return setmetatable(t or {}, M.ARRAY)
end

--- An empty object; its fields keep the order in which they are set.
function M.map()
  return setmetatable({}, M.MAP)
end

--- "null", "array", "object" or "number" for a table of this shape.
function M.kind(t)
  local mt = getmetatable(t)
  if t == M.null then return "null" end
  if mt == M.NUMBER then return "number" end
  if mt == M.ARRAY or (mt == nil and t[1] ~= nil) then return "array" end
  return "object"
end

-- The keys of an object whose order nobody kept.
local function sorted_keys(t)
  local keys = {}
  for k in pairs(t) do
    if type(k) == "string" then keys[#keys + 1] = k end
  end
  table.sort(keys)
  return keys
end

--- The keys of an object, in order.
function M.keys(t)
  if getmetatable(t) ~= M.MAP then return sorted_keys(t) end
  local keys, seen, n = {}, {}, 0
  for i = 1, #t do
    local k = t[i]
    if t[k] ~= nil and not seen[k] then
      n = n + 1
      keys[n], seen[k] = k, true
    end
  end
  return keys
end

return M
