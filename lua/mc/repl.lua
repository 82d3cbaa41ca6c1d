--- repl.lua: a REPL session: chunks, what they print, completion, help.
--
-- Trusted. Returned to lua/host/repl.c, which adds env, the session's
-- environment.

local api = require "mc.api"
local data = require "mc.data"
local help = require "mc.help"
local host = require "mc.host"
local show = require "mc.show"

local M = { mc = api.mc, coroutine = require("mc.wait").coroutine }

show.named = api.tables

function M.print(...)
  local parts = {}
  for i = 1, select("#", ...) do parts[i] = show.value((select(i, ...))) end
  host.out(table.concat(parts, "\t") .. "\n")
end

M.io = {
  write = function(...)
    for i = 1, select("#", ...) do host.out(tostring((select(i, ...)))) end
  end,
}

M.help = help.help
M.tutorial = require("mc.tutorial").tutorial

-- What a session knows without a name of its own.
M.names = {
  mc = M.mc, print = M.print, help = M.help, tutorial = M.tutorial, io = M.io,
  string = string, table = table, math = math, bit = bit,
  coroutine = M.coroutine, pairs = pairs, ipairs = ipairs, pcall = pcall,
  tostring = tostring, type = type,
}

local function results(ok, ...)
  return ok, select("#", ...), { ... }
end

-- The traceback of what was typed, without the frames of this program.
local function handler(e)
  local text = type(e) == "string" and e or show.value(e)
  local lines = {}
  for line in debug.traceback("", 2):gmatch("[^\n]+") do
    if line:find("stdin:", 1, true)
      and not line:find("in main chunk", 1, true) then
      lines[#lines + 1] = line
    end
  end
  return text .. (#lines > 0 and "\n" .. table.concat(lines, "\n") or "")
end

local function as_json(values, n)
  local list = {}
  for i = 1, n do
    local text, err = host.json.encode(values[i])
    if not text then return nil, tostring(err) end
    list[i] = text
  end
  return table.concat(list, "\n")
end

-- Called at the end of a chunk that has locals: the next chunk of the session
-- finds them by their names.
local function keep_locals()
  for i = 1, math.huge do
    local name, value = debug.getlocal(2, i)
    if not name then return end
    if name:sub(1, 1) ~= "(" then rawset(M.env, name, value) end
  end
end

-- The function that a text is: an expression or a chunk; nil and an error.
-- lasts: another chunk follows.
local function compile(text, line, lasts)
  text = text:gsub("^%s*=%s*", "") -- "=x", as in lua's own prompt
  local above = ("\n"):rep(line - 1) -- so that errors name the input's line
  local f, err = host.compile(above .. "return " .. text, "=stdin")
  if f then return f end
  f, err = host.compile(above .. text, "=stdin")
  if not f or not lasts or not text:find("local", 1, true) then
    return f, err
  end
  -- nil when the text ends in a return
  return host.compile(above .. text .. "\ndo (...)() end", "=stdin") or f
end

-- An error of an expression's own function has no place: it was called last.
local function placed(text, line)
  if line == 0 or text:find("^stdin:%d+:") then return text end
  return ("stdin:%d: %s"):format(line, text)
end

--- Runs a chunk: {text = what to show}, {incomplete = true}, {failed = true,
-- text =}. how: "shown"; for scripts "raw", strings as they are, and "json", a
-- line each value. line: 0, and an unfinished script is an error; or where this
-- begins in an input that is read line by line.
function M.eval(text, how, line)
  local lasts = how == "shown" or line > 0
  local f, err = compile(text, math.max(line, 1), lasts)
  if not f then
    if lasts and err:find("'<eof>'", 1, true) then
      return { incomplete = true }
    end
    return { failed = true, text = err }
  end
  local ok, n, values = results(xpcall(f, handler, keep_locals))
  host.task.keep()
  if not ok then
    return { failed = true, text = placed(tostring(values[1]), line) }
  end
  if how == "json" then
    if values[1] == nil and n > 1 then
      return { failed = true, text = tostring(values[2]) }
    end
    local line, why = as_json(values, n)
    return line and { text = line, values = n } or { failed = true, text = why }
  end
  -- Without the err of `return value, err`:
  while n > 1 and values[n] == nil do n = n - 1 end
  local shown = {}
  for i = 1, n do shown[i] = show.value(values[i]) end
  if n > 0 then rawset(M.env, "_", values[1]) end
  return { text = table.concat(shown, "   "), values = n }
end

-- ---- completion -------------------------------------------------------------

local function member(t, key)
  if type(t) ~= "table" then return nil end
  return rawget(api.tables[t] or t, key)
end

-- The value that a path of names leads to, without running anything of a
-- script.
local function walk(path)
  local t
  for word in path:gmatch("[%w_]+") do
    if t == nil then
      t = rawget(M.env, word)
      if t == nil then t = M.names[word] end
    else
      t = member(t, word)
    end
    if t == nil then return nil end
  end
  return t
end

local function names_of(t)
  local names = help.members(t)
  if type(t) == "table" then
    for k in next, api.tables[t] or t do names[#names + 1] = k end
  end
  return names
end

--- What could follow the text typed so far: whole last words.
function M.complete(text)
  local path, last = text:match("([%a_][%w_.:]-)[.:]([%w_]*)$")
  local out, seen, from = {}, {}, nil
  if path then
    local t = walk(path)
    from = t ~= nil and names_of(t) or {}
  else
    last, from = text:match("([%w_]*)$"), {}
    for k in next, M.env do from[#from + 1] = k end
    for k in next, M.names do from[#from + 1] = k end
  end
  for _, name in ipairs(from) do
    if type(name) == "string" and name:sub(1, #last) == last
      and not seen[name] then
      seen[name], out[#out + 1] = true, name
    end
  end
  table.sort(out)
  return data.array(out)
end

return M
