--- state.lua - declared numbers by name: `state = { turn = 0 }` in a policy's
-- table.
--
-- Trusted. The numbers lie in host memory at positions 0..15 in the order of
-- their names; the host keeps them over reloads by name and fills in the
-- declared values of new ones.

local near = require "mc.near"

local state = {}

--- The names of a declaration, in the order of their positions.
function state.names(declared)
  local names = {}
  for name in pairs(declared or {}) do names[#names + 1] = name end
  table.sort(names)
  return names
end

--- What the script sees: fields that read and write memory[position].
function state.new(whose, declared, memory)
  local slot = {}
  for i, name in ipairs(state.names(declared)) do slot[name] = i - 1 end
  local function unknown(name)
    local has = next(slot) and near.hint(name, slot) or ""
    error(("the %s declares no state '%s'"):format(whose, tostring(name))
      .. has, 3)
  end
  return setmetatable({}, {
    __index = function(_, name)
      local i = slot[name]
      if not i then unknown(name) end
      return memory[i]
    end,
    __newindex = function(_, name, v)
      local i = slot[name]
      if not i then unknown(name) end
      if type(v) ~= "number" then
        error("state keeps numbers, not a " .. type(v), 2)
      end
      memory[i] = v
    end,
    __metatable = false,
  })
end

return state
