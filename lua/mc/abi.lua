--- abi.lua - the structs of core/mc_abi.h in this VM, and where the shown ones
-- lie.
--
-- Trusted: has ffi. Owns nothing: the memory is the host's (lua/host/shown.h)
-- and lives as long as the VM. Loaded once a VM: a struct's metatype can be set
-- only once.

local ffi = ffi
local host = require "mc.host"

ffi.cdef(host.cdef)
for name, size in pairs(host.sizes) do
  if ffi.sizeof("struct " .. name) ~= size then
    error(("struct %s has %d bytes in C and %d here"):format(name, size,
      ffi.sizeof("struct " .. name)))
  end
end

local abi = {}

--- A pointer to what the host shows under this name.
function abi.at(ctype, name)
  return ffi.cast(ctype, host.at[name])
end

--- A leaf function of the host: it blocks on nothing and cannot reach Lua.
function abi.leaf(ctype, name)
  return ffi.cast(ctype, host.leaf[name])
end

--- The names of a struct's scalar members, as a set. Members whose names end in
-- "_" and arrays are left out: a script that got hold of an array could leave
-- its bounds.
function abi.scalars(struct)
  local body = host.cdef:match("struct " .. struct .. " {(.-)};")
  local set = {}
  for decl in body:gmatch("[^;]+") do
    local names = decl:gsub("^%s*struct%s+", ""):match("^%s*[%w_]+%s+(.+)$")
    for name in (names or ""):gmatch("[^,]+") do
      name = name:match("^%s*(.-)%s*$")
      if name:find("^[%w_]+$") and not name:find("_$") then set[name] = true end
    end
  end
  return set
end

return abi
