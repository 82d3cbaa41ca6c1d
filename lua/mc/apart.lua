--- apart.lua: while a file's tests run, shared values are theirs alone and
-- nothing is counted.
--
-- Trusted; any VM. A directory is loaded several times (tried, then once a VM),
-- and so are its tests run: what one run left behind must not fail the next,
-- nor be seen by requests.

local apart = { on = false }

local used, mark = {}, ""

--- Runs fn apart. drop(key) removes what it left in mc.shared; name: of this
-- run alone.
function apart.run(fn, name, drop)
  apart.on, mark = true, "test " .. name .. " "
  local ok, err = pcall(fn)
  apart.on = false
  for key in pairs(used) do drop(key) end
  used = {}
  return ok, err
end

--- mc.shared out of the host's functions.
function apart.shared(raw)
  local shared = {}
  for name, fn in pairs(raw) do
    shared[name] = function(key, ...)
      if apart.on and type(key) == "string" then
        key = mark .. key
        used[key] = true
      end
      return fn(key, ...)
    end
  end
  return shared
end

return apart
