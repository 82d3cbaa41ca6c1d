--- help.lua: help() in the REPL, out of the reference in lua/mc/meta.
--
-- Trusted. The reference is LuaLS annotations: what editors read is what help() says.

local host = require "mc.host"

local M = {}
local entries -- name -> {signature, doc}
local order

local function add(name, signature, doc)
  if not entries[name] then order[#order + 1] = name end
  entries[name] = { signature = signature, doc = doc }
end

-- Functions with their comments, and classes with their fields, out of one meta file.
local function read(source)
  local doc = {}
  for line in source:gmatch("([^\n]*)\n") do
    local comment = line:match("^%-%-%- (.*)$")
    local name, args = line:match("^function ([%w_.:]+)(%b())")
    local class, about = line:match("^%-%-%-@class ([%w_.]+) ?(.*)$")
    local field = line:match("^%-%-%-@field (.*)$")
    if class then
      doc = { about ~= "" and about or nil }
      add(class, "the fields of " .. class, doc)
    elseif field then
      doc[#doc + 1] = "  " .. field
    elseif comment then
      doc[#doc + 1] = comment
    elseif name then
      add(name, name .. args, doc)
      doc = {}
    elseif not line:find("^%-%-%-@") then
      doc = {}
    end
  end
end

local function load()
  entries, order = {}, {}
  for _, file in ipairs { "mc", "step", "test" } do
    read(host.embedded("lua/mc/meta/" .. file .. ".lua") or "")
  end
end

--- Help on a name ("mc.submit", "seq:wait"), or the list of all names.
function M.help(name)
  if not entries then load() end
  if name ~= nil and type(name) ~= "string" then
    return 'help wants a name in quotes: help "mc.submit"'
  end
  if entries[name] then
    local e = entries[name]
    return e.signature .. "\n" .. table.concat(e.doc, "\n")
  end
  if name then
    local found = {}
    for _, n in ipairs(order) do
      if n:find(name, 1, true) then found[#found + 1] = n end
    end
    if #found == 1 then return M.help(found[1]) end
    if #found > 1 then return table.concat(found, "\n") end
    return "nothing is called " .. name
  end
  return 'help "NAME" says more; (w) there: it waits\n  ' .. table.concat(order, "\n  ")
end

return M
