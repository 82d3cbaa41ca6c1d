-- health_page.lua: a page that shows how the server is doing.
--
-- Copy it to the routes/ of your policies and name it in init.lua:
--   routes = { "openai", "health_page" }
-- then open http://localhost:8000/status
local PAGE = [[<!doctype html><title>%s</title><meta http-equiv="refresh" content="2">
<h1>%s</h1><p>%s, generation %d</p>
<p>%d running, %d waiting, %d paused</p><p>KV: %d of %d pages free</p>]]

local function escape(s)
  return (tostring(s):gsub("[<>&\"]", { ["<"] = "&lt;", [">"] = "&gt;", ["&"] = "&amp;",
    ['"'] = "&quot;" }))
end

return { api = 1, kind = "routes", ["GET /status"] = { auth = false, handler = function(_, res)
  local s, kv = mc.engine.status(), mc.kv.stats()
  local name = escape(s.model)
  res:text(PAGE:format(name, name, escape(s.state), s.generation, s.running, s.waiting,
    s.paused, kv.free, kv.total), "text/html; charset=utf-8")
end } }
