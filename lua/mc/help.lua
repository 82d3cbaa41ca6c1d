--- help.lua: help() and the names that completion offers, out of the reference
-- (mc.doc).
--
-- Trusted. A live object says what it is by __doc in its metatable: "seq" has
-- the methods that the reference calls seq:name, and the fields of the class
-- mc.Seq.

local doc = require "mc.doc"
local host = require "mc.host"

local M = { named = {} } -- named: a function or table of the API -> its name
local entries, order

local function load()
  entries, order = {}, {}
  for _, path in ipairs(host.embedded_in("lua/mc/meta/")) do
    for _, e in ipairs(doc.read(host.embedded(path))) do
      if not entries[e.name] then order[#order + 1] = e.name end
      entries[e.name] = e
    end
  end
end

local function kind_of(v)
  local mt = type(v) ~= "string" and debug.getmetatable(v)
  return type(mt) == "table" and rawget(mt, "__doc") or nil
end

--- The names after the dot or colon of an object: methods and fields of its
-- kind.
function M.members(v)
  local kind, out = kind_of(v), {}
  if not kind then return out end
  if not entries then load() end
  local n = #kind + 1
  for _, name in ipairs(order) do
    if name:sub(1, n) == kind .. ":" then out[#out + 1] = name:sub(n + 1) end
  end
  local class = entries["mc." .. kind:sub(1, 1):upper() .. kind:sub(2)]
  for _, f in ipairs(class and class.fields or {}) do out[#out + 1] = f.name end
  return out
end

local function list(found, otherwise)
  if #found == 0 then return otherwise end
  return table.concat(found, "\n")
end

-- Names with this text in them; one alone is explained.
local function search(text, plain)
  local found = {}
  for _, n in ipairs(order) do
    if n:find(text, 1, plain) then found[#found + 1] = n end
  end
  if #found == 1 then return doc.text(entries[found[1]]) end
  return list(found, "nothing is called " .. text)
end

--- Help on a name ("mc.submit", "seq:wait"), a function or an object; or the
-- list of names.
function M.help(what)
  if not entries then load() end
  local kind = kind_of(what)
  if kind then return search("^" .. kind .. ":") end
  local name = M.named[what] or what
  if name == nil then
    return 'help "NAME", help(mc.submit) or help(x) says more; tutorial() shows'
      .. "\naround; (w) in a text: it waits\n  " .. table.concat(order, "\n  ")
  end
  if type(name) ~= "string" then
    return "nothing is known of a " .. type(what)
  end
  if entries[name] then return doc.text(entries[name]) end
  return search(name, true)
end

return M
