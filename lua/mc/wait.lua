--- wait.lua: the one way in which Lua code waits.
--
-- A binding said "not yet" and left word of who is to be woken; wait() then
-- yields a token up to the host, through the script's own coroutines if there
-- are any: their resume and wrap, as scripts get them, pass the token on and
-- hide it. Trusted.

local host = require "mc.host"

local TOKEN = host.task.token
local create, isyieldable = coroutine.create, coroutine.isyieldable
local raw_resume, raw_yield = coroutine.resume, coroutine.yield

local M = {}

--- Waits. Wake-ups may be for nothing: the caller asks again. what: for the
-- message.
function M.wait(what)
  if not isyieldable() then
    error(what .. " waits: it can't be called in a sort comparator, a gsub"
      .. " callback, a finalizer or at the top level of a file", 3)
  end
  raw_yield(TOKEN)
end

local function pass(co, ok, first, ...)
  if ok and first == TOKEN then
    return pass(co, raw_resume(co, raw_yield(TOKEN)))
  end
  return ok, first, ...
end

local function resume(co, ...)
  return pass(co, raw_resume(co, ...))
end

local function unwrap(ok, first, ...)
  if not ok then error(first, 0) end
  return first, ...
end

--- What scripts know as coroutine.
M.coroutine = {
  create = create,
  resume = resume,
  yield = raw_yield,
  status = coroutine.status,
  wrap = function(f)
    local co = create(f)
    return function(...)
      return unwrap(resume(co, ...))
    end
  end,
}

return M
