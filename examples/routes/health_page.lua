-- health_page.lua: a page that shows how the server is doing.
--
-- Copy it to the routes/ of your policies and name it in init.lua:
--   routes = { "openai", "health_page" }
-- then open http://localhost:8000/status
local PAGE = [[<!doctype html><title>%s</title>
<meta http-equiv="refresh" content="2">
<h1>%s</h1><p>%s, generation %d</p>
<p>%d running, %d waiting, %d paused</p><p>KV: %d of %d pages free</p>]]

local ENTITY =
  { ["<"] = "&lt;", [">"] = "&gt;", ["&"] = "&amp;", ['"'] = "&quot;" }

local function escape(s) return (tostring(s):gsub("[<>&\"]", ENTITY)) end

local function page(_, res)
  local s, kv = mc.engine.status(), mc.kv.stats()
  local name = escape(s.model)
  local html = PAGE:format(name, name, escape(s.state), s.generation,
    s.running, s.waiting, s.paused, kv.free, kv.total)
  res:text(html, "text/html; charset=utf-8")
end

return {
  api = 1,
  kind = "routes",
  ["GET /status"] = { auth = false, handler = page },
}
