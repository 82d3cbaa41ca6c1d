"""Routes and routers as an operator writes them: what handlers may do, what their mistakes cost,
how a runaway is stopped, what a reload changes."""
import json
import os
import shutil
import tempfile
import threading
import time

from mascon import Server, main

ROUTER = """
local R = { api = 1, kind = "router" }
function R.route(req)
  local h = req.headers["x-test"]
  if h == "no" then return nil, { code = "forbidden", message = "not you" } end
  if h == "bad" then error("oops") end
  if h == "loop" then while true do pcall(error) end end
  if h == "lane" then return { lane = 2, priority = 3 } end
  if h == "lane99" then return { lane = 99 } end
  return {}
end
return R
"""

ROUTES = r"""
local R = { api = 1, kind = "routes" }
local hits = mc.metrics.counter("test_hits", "hits", { "who" })

R["GET /echo/{name}/{rest*}"] = function(req, res)
  res:header("x-mine", "yes")
  res:json { method = req.method, path = req.path, params = req.params, query = req.query,
    agent = req.headers["x-agent"], id = req.id, tenant = req.tenant, body = #req:body() }
end
R["POST /best"] = function(req, res)
  local b = req:json { prompt = "string", n = "integer? 1..16" }
  local root, err = mc.submit { prompt = b.prompt, limit = 0 }
  if not root then return res:fail(err) end
  local try, best = {}, nil
  for i = 1, b.n or 4 do try[i] = root:fork { seed = i, limit = 16, temperature = 0.8 } end
  for _, s in ipairs(try) do
    local r = s:wait()
    if r and (not best or r.mean_logprob > best.mean_logprob) then best = r end
  end
  res:json { text = best.text, of = #try, n = best.n, finish = best.finish }
end
R["POST /say"] = function(req, res)
  local s, err = mc.submit { prompt = req:json { prompt = "string" }.prompt, limit = 8,
    temperature = 0 }
  if not s then return res:fail(err) end
  for t in s:tokens() do res:event { text = t.text } end
end
R["GET /slow"] = { timeout = 0.5, concurrency = 1, handler = function(_, res)
  mc.sleep(5)
  res:json {}
end }
for i = 1, 150 do -- more than run at once
  R["GET /one/" .. i] = { concurrency = 1, handler = function(_, res) res:text("ok") end }
end
R["POST /small"] = { body_max = 10, handler = function(req, res)
  local ok = pcall(req.json, req, { a = "string" })
  res:json { ok = ok }
end }
R["GET /open"] = { auth = false, handler = function(_, res) res:text("open") end }
R["GET /closed"] = function(req, res) res:text("hello " .. req.tenant) end
R["GET /nothing"] = function() end
R["GET /twice"] = function(_, res) res:json { a = 1 } res:json { b = 2 } end
R["GET /late"] = function(_, res) res:event { i = 1 } error("late") end
R["GET /nil"] = function() error(nil) end
R["GET /table"] = function() error({}) end
R["GET /throws"] = function()
  error(setmetatable({}, { __tostring = function() error("x") end }))
end
R["GET /sort"] = function(_, res)
  local ok, e = pcall(table.sort, { 3, 2, 1 }, function(a, b) mc.sleep(0.01) return a < b end)
  res:json { ok = ok, error = tostring(e) }
end
R["GET /gsub"] = function() ("x"):gsub("x", function() mc.sleep(0.01) end) end
R["GET /waits"] = function(_, res)
  local in_pcall = pcall(function() mc.sleep(0.01) end)
  local co = coroutine.wrap(function() mc.sleep(0.01) coroutine.yield(5) return 6 end)
  local a, b = co(), co()
  local t = setmetatable({}, { __index = function() mc.sleep(0.01) return 7 end })
  local n = 0
  for v in function(_, i) mc.sleep(0.01) return (i or 0) < 3 and (i or 0) + 1 or nil end do
    n = n + v
  end
  res:json { in_pcall, a, b, t.x, n }
end
R["GET /spawn"] = function(_, res)
  local tasks, out = {}, mc.json.array {}
  for i = 1, 3 do tasks[i] = mc.spawn(function(x) mc.sleep(0.05) return x * 2 end, i) end
  for i = 1, 3 do out[i] = tasks[i]:join() end
  local _, err = mc.spawn(function() error("boo") end):join()
  local stopped = mc.spawn(function() mc.sleep(100) end)
  stopped:cancel()
  local _, why = stopped:join()
  res:json { out = out, error = tostring(err), why = why.code }
end
R["GET /shared"] = function(req, res)
  mc.shared.set("text", "a\0b")
  hits:inc(1, "x")
  local ok, err = mc.shared.take(req.query.key, 1, 1, 2)
  if not ok then return res:fail(err) end
  res:json { n = mc.shared.incr("n"), same = mc.shared.get("text") == "a\0b",
    none = mc.shared.get("none"), drain = mc.config.drain,
    packed = mc.msgpack.decode(mc.msgpack.encode { a = { 1, 2, "x" } }) }
end
R["GET /loop/{n}"] = function(req)
  local loops = {
    function() while true do end end,
    function() for _ = 1, math.huge do end end,
    function() repeat until false end,
    function() local function f() return f() end f() end,
    function() while true do pcall(function() while true do end end) end end,
    function() xpcall(function() while true do end end, function() while true do end end) end,
    function() coroutine.wrap(function() while true do pcall(error) end end)() end,
    function() while true do pcall(error) end end,
    function() local t = {} for i = 1, 1e9 do t[i] = ("x"):rep(100) .. i end end,
    function() local function f() return 1 + f() end f() end,
    function() ("x"):rep(1e9) end,
  }
  loops[tonumber(req.params.n)]()
end
R["GET /trusted"] = function() while true do mc.json.keys { a = 1, b = 2 } end end
R["GET /repl"] = function() mc.policy.reload() end
R["GET /match"] = function() ("a"):rep(30):match((".-"):rep(12) .. "b") end
R["GET /sandbox"] = function(_, res)
  local bad = mc.json.array {}
  local function try(name, f)
    local ok, v = pcall(f)
    if ok and v ~= nil then bad[#bad + 1] = name end
  end
  for _, name in ipairs { "os", "io", "debug", "ffi", "jit", "package", "load", "loadstring",
    "loadfile", "dofile", "getfenv", "setfenv", "newproxy", "rawset", "getmetatable", "print" } do
    try(name, function() return _G[name] end)
  end
  try("mc", function() mc.submit = 1 return 1 end)
  try("mc.json", function() mc.json.decode = 1 return 1 end)
  try("string", function() string.rep = 1 return 1 end)
  try("global", function() x = 1 return 1 end)
  try("require", function() return require "ffi" end)
  try("escape", function() return require "../init" end)
  try("dump", function() return string.dump end)
  try("collect", function() return collectgarbage "stop" end)
  res:json { bad = bad, count = collectgarbage "count" > 0 }
end
R["GET /version"] = function(_, res) res:text("VERSION") end
R["GET /old"] = function(_, res) mc.sleep(1) res:text("VERSION") end
return R
"""

INIT = 'return { router = "router", routes = { "openai", "mine" } }\n'


class Dir:
    """A policy directory of the test's own."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="mascon-policies-")
        os.mkdir(os.path.join(self.dir, "routes"))
        shutil.copy("policies/routes/openai.lua", os.path.join(self.dir, "routes/openai.lua"))
        self.save("router.lua", ROUTER)
        self.save("routes/mine.lua", ROUTES)
        self.save("init.lua", INIT)

    def save(self, name, text):
        new = os.path.join(self.dir, ".new")
        with open(new, "w") as f:
            f.write(text)
        os.rename(new, os.path.join(self.dir, name))


server = None
policies = None


def get(path, headers=None):
    status, _, data = server.request("GET", path, headers=headers)
    return status, json.loads(data)


def canned():
    status, a = server.post("/v1/completions", {"prompt": "Once", "max_tokens": 4,
                                                "temperature": 0})
    return status, a["choices"][0]["text"]


# ---- handlers -----------------------------------------------------------------------------

def a_handler_sees_its_request():
    status, headers, data = server.request("GET", "/echo/a%20b/c/d?x=1&y=%C3%A9",
                                           headers={"X-Agent": "me", "X-Request-Id": "r-17"})
    a = json.loads(data)
    assert status == 200 and headers["x-mine"] == "yes" and headers["x-request-id"] == "r-17"
    assert a == {"method": "GET", "path": "/echo/a b/c/d", "params": {"name": "a b", "rest": "c/d"},
                 "query": {"x": "1", "y": "\u00e9"}, "agent": "me", "id": "r-17", "tenant": "",
                 "body": 0}, a


def the_likeliest_of_several_continuations():
    status, a = server.post("/best", {"prompt": "Once upon a time", "n": 3})
    assert status == 200 and a["of"] == 3 and a["n"] == 16 and a["finish"] == "length", a
    assert server.post("/best", {"prompt": "x", "n": 17})[0] == 400
    server.idle()


def lua_streams_are_what_the_model_said():
    _, _, data = server.request("POST", "/say", {"prompt": "Once"})
    events = [json.loads(x[6:]) for x in data.decode().split("\n\n") if x]
    whole = server.post("/v1/completions", {"prompt": "Once", "max_tokens": 8, "temperature": 0})
    assert "".join(e["text"] for e in events) == whole[1]["choices"][0]["text"]


def limits_of_a_route_hold():
    out = []
    t = threading.Thread(target=lambda: out.append(get("/slow")))
    t.start()
    time.sleep(0.2)
    status, a = get("/slow")
    assert status == 429 and a["error"]["code"] == "rate_limit_exceeded", a
    t.join()
    assert out[0][0] == 504 and out[0][1]["error"]["code"] == "deadline_exceeded", out
    assert get("/slow")[0] == 504
    assert server.post("/small", {"a": "b"}) == (200, {"ok": True})
    assert server.post("/small", {"a": "bbbbbbbbbbbb"})[0] == 413
    for i in range(1, 151):
        assert server.get(f"/one/{i}")[0] == 200, i


def a_wrong_body_ends_the_handler_whatever_it_catches():
    assert server.post("/small", {"a": 1})[0] == 400
    assert server.request("POST", "/small", "{")[0] == 400
    assert server.post("/small", [])[0] == 400


def waiting_works_where_lua_can_wait():
    assert get("/waits") == (200, [True, 5, 6, 7, 6])
    status, a = get("/sort")
    assert status == 200 and not a["ok"] and "mc.sleep waits" in a["error"], a
    assert get("/gsub")[0] == 500
    server.idle()


def tasks_join_fail_and_are_cancelled():
    status, a = get("/spawn")
    assert status == 200 and a["out"] == [2, 4, 6] and "boo" in a["error"], a
    assert a["why"] == "cancelled", a


def shared_values_and_rates():
    status, a = get("/shared?key=r")
    assert status == 200 and a["same"] and "none" not in a and a["drain"] == 30, a
    assert a["packed"] == {"a": [1, 2, "x"]}
    get("/shared?key=r")
    status, headers, data = server.request("GET", "/shared?key=r")
    assert status == 429 and 0 < float(headers["retry-after"]) <= 1, headers
    assert get("/shared?key=other")[0] == 200
    assert server.metric("mascon_test_hits_total", 'who="x"') == 4


# ---- mistakes -----------------------------------------------------------------------------

def mistakes_are_500_and_the_log_has_the_place():
    for path in ("/nothing", "/nil", "/table", "/throws"):
        status, a = get(path)
        assert status == 500 and a["error"]["code"] == "policy_error", (path, a)
        assert a["error"]["message"], a
    assert get("/twice") == (200, {"a": 1})
    status, _, data = server.request("GET", "/late")
    events = [x for x in data.decode().split("\n\n") if x]
    assert status == 200 and events[0] == 'data: {"i":1}' and events[-1] == "data: [DONE]"
    assert json.loads(events[1][6:])["error"]["code"] == "policy_error"
    assert "mine.lua" in server.log() and ": late" in server.log()
    status, a = get("/repl")
    assert status == 500 and "mc.policy.reload is not available in a route" in server.log(), a
    line = 1 + ROUTES[:ROUTES.index("GET /trusted")].count("\n")
    assert get("/trusted")[0] == 500
    assert f"mine.lua:{line}: ran for more than" in server.log(), server.log()[-2000:]


def a_router_decides_refuses_and_may_fail():
    body = {"prompt": "x", "max_tokens": 2}
    assert server.post("/v1/completions", body, headers={"x-test": "no"})[0] == 403
    assert server.post("/v1/completions", body, headers={"x-test": "bad"})[0] == 200
    assert server.post("/v1/completions", body, headers={"x-test": "lane"})[0] == 200
    status, a = server.post("/v1/completions", body, headers={"x-test": "lane99"})
    assert status == 400 and a["error"]["param"] == "lane"
    status, a = server.post("/v1/completions", body, headers={"x-test": "loop"})
    assert status == 500 and a["error"]["code"] == "policy_budget", a
    assert "router.lua:7" in server.log()


def runaways_get_a_500_and_others_go_on():
    before = canned()
    pid = server.process.pid
    for n in range(1, 12):
        began = time.monotonic()
        status, a = get(f"/loop/{n}")
        assert status in (500, 503), (n, a) # 503: out of memory
        assert time.monotonic() - began < 30, n
        assert canned() == before
    assert server.process.pid == pid and server.process.poll() is None
    server.idle()


def a_library_function_that_never_ends_costs_its_vm_only():
    before = canned()
    status, a = get("/match")
    assert status == 500 and a["error"]["code"] == "policy_budget", a
    for _ in range(4):
        assert canned() == before
    assert "given up" in server.log()


def a_stream_of_the_pump_outlives_its_vm():
    """Both edge VMs are lost while streams run: no token is."""
    body = {"prompt": "Once", "max_tokens": 1500, "temperature": 0, "ignore_eos": True}
    want = server.post("/v1/completions", body)[1]["choices"][0]["text"]
    lost = []

    def lose(_):
        if not lost:
            lost.append(1)
            threads = [threading.Thread(target=get, args=("/match",)) for _ in range(4)]
            for t in threads:
                t.start()
            lost.extend(threads)
    events = server.stream("/v1/completions", body, on_event=lose)
    for t in lost[1:]:
        t.join()
    assert "".join(c["text"] for e in events for c in e["choices"]) == want
    server.idle()


def scripts_see_the_allow_list_only():
    status, a = get("/sandbox")
    assert status == 200 and a == {"bad": [], "count": True}, a


# ---- generations --------------------------------------------------------------------------

def requests_finish_on_the_generation_they_began_on():
    out = []
    policies.save("routes/mine.lua", ROUTES.replace("VERSION", "one"))
    reload()
    t = threading.Thread(target=lambda: out.append(server.get("/old")[2]))
    t.start()
    time.sleep(0.3)
    policies.save("routes/mine.lua", ROUTES.replace("VERSION", "two"))
    reload()
    assert server.get("/version")[2] == b"two"
    t.join()
    assert out == [b"one"], out


def reload():
    status, out = server.attach("mc.policy.reload()")
    assert status == 0 and "generation" in out, out


def broken_files_are_refused_with_their_line():
    number = server.metric("mascon_policy_generation")
    good = ROUTES.replace("VERSION", "good")
    policies.save("routes/mine.lua", good)
    reload()
    for text, want in (("return {", "mine.lua:1"), ("x = 1 return {}", "mine.lua:1"),
                       ("error('top')", "mine.lua:1: top"), ("while true do end", "mine.lua:1: ran"),
                       ("return { api = 1, kind = 'routes', plan = 1 }", "plan"),
                       ("return { api = 1, kind = 'routes', ['GET /x'] = 5 }", "GET /x"),
                       ("return { api = 2, kind = 'routes' }", "api"),
                       ("return 5", "mine.lua"), ("\x1bLJ\x02", "binary chunk refused"),
                       ("return { api = 1, kind = 'routes', init = function() error('no') end }",
                        "mine.lua:1: no")):
        policies.save("routes/mine.lua", text)
        _, out = server.attach("mc.policy.reload()")
        assert want in out, (text, out)
        assert server.get("/version")[2] == b"good"
    policies.save("routes/mine.lua", good)
    reload()
    assert server.metric("mascon_policy_generation") >= number


if __name__ == "__main__":
    policies = Dir()
    with Server("--no-watch", policies=policies.dir) as server:
        main([v for k, v in list(globals().items())
              if callable(v) and getattr(v, "__module__", "") == "__main__"
              and k not in ("get", "canned", "reload", "Dir")])
