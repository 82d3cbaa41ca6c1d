--- repl.lua: a REPL session: chunks, what they print, completion, help.
--
-- Trusted. Returned to lua/host/repl.c, which adds env, the session's environment.

local api = require "mc.api"
local data = require "mc.data"
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

M.help = api.help

local function results(ok, ...)
  return ok, select("#", ...), { ... }
end

-- The traceback of what was typed, without the frames of this program.
local function handler(e)
  local text = type(e) == "string" and e or show.value(e)
  local lines = {}
  for line in debug.traceback("", 2):gmatch("[^\n]+") do
    if line:find("stdin:", 1, true) and not line:find("in main chunk", 1, true) then
      lines[#lines + 1] = line
    end
  end
  return text .. (#lines > 0 and "\n" .. table.concat(lines, "\n") or "")
end

--- Runs a chunk: {text = what to show}, {incomplete = true}, {failed = true, text =}. raw:
-- for scripts: strings as they are, an unfinished chunk is an error.
function M.eval(text, raw)
  text = text:gsub("^%s*=%s*", "") -- "=x", as in lua's own prompt
  local f, err = host.compile("return " .. text, "=stdin")
  if not f then f, err = host.compile(text, "=stdin") end
  if not f then
    if not raw and err:find("'<eof>'", 1, true) then return { incomplete = true } end
    return { failed = true, text = err }
  end
  local ok, n, values = results(xpcall(f, handler))
  host.task.keep()
  if not ok then return { failed = true, text = tostring(values[1]) } end
  while n > 1 and values[n] == nil do n = n - 1 end -- the err of `return value, err`
  local shown = {}
  for i = 1, n do shown[i] = show.value(values[i]) end
  if n > 0 then rawset(M.env, "_", values[1]) end
  return { text = table.concat(shown, "   "), values = n }
end

-- ---- completion ------------------------------------------------------------------------

local function step(t, key)
  if type(t) ~= "table" then return nil end
  local named = api.tables[t]
  return rawget(named or t, key)
end

--- What could follow the text typed so far: whole last words.
function M.complete(text)
  local path, last = text:match("([%a_][%w_.:]-)[.:]([%w_]*)$")
  local names, t = {}, nil
  if path then
    for word in path:gmatch("[%w_]+") do
      if not t then
        t = rawget(M.env, word) or (word == "mc" and M.mc) or nil
      else
        t = step(t, word)
      end
    end
  else
    last = text:match("([%w_]*)$")
  end
  if last == nil or (path and t == nil) then return data.array(names) end
  local function offer(name)
    if type(name) == "string" and name:sub(1, #last) == last then names[#names + 1] = name end
  end
  if type(t) == "table" then
    for k in next, api.tables[t] or t do offer(k) end
  elseif type(t) == "userdata" then
    for k in next, require("mc.seq").methods do offer(k) end
  elseif not path then
    for k in next, M.env do offer(k) end
    for _, k in ipairs { "mc", "print", "help", "pairs", "ipairs", "string", "table", "math" } do
      offer(k)
    end
  end
  table.sort(names)
  return data.array(names)
end

return M
