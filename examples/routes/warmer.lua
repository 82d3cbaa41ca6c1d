-- warmer.lua: keeps the prompts that many requests begin with in the prefix
-- cache.
--
-- Copy it to the routes/ of your policies; in init.lua:
--   routes = { "openai", "warmer" },
--   opts = { warmer = {
--     every = 30,
--     prompts = { "You are a helpful assistant of ..." },
--   } },
-- A request that begins with one of them reads only what is new: its usage says
-- cached_tokens. GET /v1/warm tells how often each was run, and how much of it
-- was still there.
local R = { api = 1, kind = "routes" }

local function warm(i, prompt)
  local s, err = mc.submit { prompt = prompt, limit = 0, priority = -1 }
  local r
  if s then r, err = s:wait() end
  if not r then
    return mc.log.warn("warmer: " .. tostring(err), { prompt = i })
  end
  mc.shared.incr("warm runs " .. i)
  mc.shared.set("warm cached " .. i, r.usage.cached)
  mc.shared.set("warm tokens " .. i, r.usage.prompt)
end

local prompts

function R.init(opts)
  prompts = opts.prompts or {}
  mc.every(opts.every or 30, function()
    for i, prompt in ipairs(prompts) do warm(i, prompt) end
  end)
end

R["GET /v1/warm"] = function(_, res)
  local rows = mc.json.array {}
  for i in ipairs(prompts) do
    rows[i] = {
      runs = mc.shared.get("warm runs " .. i) or 0,
      tokens = mc.shared.get("warm tokens " .. i) or 0,
      cached = mc.shared.get("warm cached " .. i) or 0,
    }
  end
  res:json(rows)
end

return R
