--- show.lua: Lua values as text for a REPL: short, bounded, safe for a
-- terminal.
--
-- Trusted. Calls no metamethod of a script's but __tostring.

local data = require "mc.data"

-- named: proxy -> the table that it stands for.
local M = { depth = 5, items = 60, width = 78, text = 2000, named = {} }

local WORD = "^[%a_][%w_]*$"
local ESCAPES = { ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ['"'] = '\\"',
  ["\\"] = "\\\\" }

--- A string in quotes with control bytes escaped, cut when long.
function M.quote(s)
  local cut = #s > M.text
  if cut then s = s:sub(1, M.text) end
  s = s:gsub('[%c"\\\127]', function(c)
    return ESCAPES[c] or ("\\%d"):format(c:byte())
  end)
  return '"' .. s .. '"' .. (cut and ".." or "")
end

local function number(n)
  if n ~= n then return "nan" end
  return ("%.14g"):format(n)
end

local show

-- Keys of a table: its order, else 1..n, then strings sorted, then the rest.
local function keys_of(t)
  local n = #t
  if getmetatable(t) == data.MAP then return data.keys(t), 0 end
  local words, rest = {}, {}
  for k in next, t do
    local in_list = type(k) == "number" and k >= 1 and k <= n
      and k == math.floor(k)
    if type(k) == "string" then
      words[#words + 1] = k
    elseif not in_list then
      rest[#rest + 1] = k
    end
  end
  table.sort(words)
  for _, k in ipairs(rest) do words[#words + 1] = k end
  return words, n
end

local function key_text(k)
  if type(k) == "string" and k:find(WORD) then return k end
  return "["
    .. (type(k) == "string" and M.quote(k) or show(k, {}, M.depth, 0)) .. "]"
end

local function join(parts, indent)
  local line = "{ " .. table.concat(parts, ", ") .. " }"
  if #line + indent <= M.width and not line:find("\n", 1, true) then
    return line
  end
  local pad = ("  "):rep(indent / 2 + 1)
  return "{\n" .. pad .. table.concat(parts, ",\n" .. pad) .. "\n"
    .. ("  "):rep(indent / 2) .. "}"
end

local function show_table(t, seen, depth, indent)
  t = M.named[t] or t
  if t == data.null then return "null" end
  if getmetatable(t) == data.NUMBER then return t.text end
  if seen[t] then return "<itself>" end
  if depth >= M.depth then return "{...}" end
  seen[t] = true
  local keys, n = keys_of(t)
  local parts = {}
  for i = 1, math.min(n, M.items) do
    parts[i] = show(rawget(t, i), seen, depth + 1, indent + 2)
  end
  for i = 1, math.min(#keys, M.items) do
    local k = keys[i]
    parts[#parts + 1] = key_text(k) .. " = "
      .. show(rawget(t, k), seen, depth + 1, indent + 2)
  end
  if n + #keys > 2 * M.items or n > M.items or #keys > M.items then
    parts[#parts + 1] = ("... (%d in all)"):format(n + #keys)
  end
  seen[t] = nil
  return #parts == 0 and "{}" or join(parts, indent)
end

function show(v, seen, depth, indent)
  local t = type(v)
  if t == "string" then return M.quote(v) end
  if t == "number" then return number(v) end
  if t == "table" then return show_table(v, seen, depth, indent) end
  if t == "userdata" or t == "cdata" then return tostring(v) end
  if t == "function" then return "function" end
  if t == "thread" then return "coroutine" end
  return tostring(v)
end

--- A value as a REPL prints it: a string as it is, what has a text of its own
-- by that.
function M.value(v)
  if type(v) == "string" then return v end
  local mt = type(v) == "table" and debug.getmetatable(v)
  if type(mt) == "table" and rawget(mt, "__tostring") then
    return tostring(v)
  end
  return show(v, {}, 0, 0)
end

return M
