"""Endpoints in scripts: limits, tenants, folders, named events, schemas, timers; what the server
does around them: keys, CORS, proxies, the access log."""
import atexit
import json
import os
import re
import shutil
import subprocess
import tempfile
import time

from mascon import MASCON, SANITIZED, Server, at_once, main

ROUTES = r"""
local R = { api = 1, kind = "routes" }
local ticks = mc.metrics.counter("test_ticks", "ticks")
R["GET /limited"] = { rate = { 0.5, 2 }, handler = function(_, res) res:text("in") end }
R["GET /open_limited"] = { rate = { 0.5 }, auth = false,
  handler = function(req, res) res:text(req.ip) end }
R["GET /take"] = { auth = false, handler = function(_, res)
  local ok, err = mc.shared.take("bucket", 5, 1, 5)
  if not ok then return res:fail(err) end
  res:text("taken")
end }
R["GET /theirs"] = { tenants = { "acme" }, handler = function(req, res) res:text(req.tenant) end }
R["POST /shaped"] = { auth = false, schema = { n = "integer 1..5", who = "string?" },
  handler = function(req, res) res:json { n = req.data.n, who = req.data.who } end }
R["GET /ui/{path*}"] = { auth = false, files = "www" }
R["GET /ui"] = { auth = false, files = "www" }
R["GET /page"] = { auth = false, handler = function(_, res) res:file("www", "a.css") end }
R["GET /named"] = { auth = false, handler = function(_, res)
  res:event({ a = 1 }, "first")
  res:event { a = 2 }
  res:event("text", "last")
end }
R["GET /grows"] = { auth = false, handler = function(_, res)
  res:header("content-type", "application/x-ndjson")
  for i = 1, 3 do res:write(mc.json.encode { i = i } .. "\n") mc.sleep(0.01) end
end }
R["GET /ip"] = { auth = false, handler = function(req, res) res:text(req.ip) end }
R["GET /ticks"] = { auth = false, handler = function(_, res)
  res:json { n = mc.shared.get("ticks") or 0, slow = mc.shared.get("slow") or 0,
    made = mc.shared.get("made") or 0, failing = mc.shared.get("failing") or 0 }
end }
R["GET /every"] = { auth = false, handler = function() mc.every(1, function() end) end }
mc.every(0.05, function() mc.shared.incr("ticks") ticks:inc(1) end)
mc.every(0.05, function() mc.shared.incr("failing") error("this run fails") end)
mc.every(0.1, function()
  local s = mc.submit { prompt = "Once", limit = 2, temperature = 0 }
  if s and s:wait() then mc.shared.incr("made") end
end)
function R.init()
  mc.every(0.2, function() -- longer than a request's burst may be
    local till = mc.now() + 0.7
    while mc.now() < till do end
    mc.shared.incr("slow")
  end)
end
return R
"""

server = None
policies = None
keys = {}


def save(name, text):
    path = os.path.join(policies, name)
    with open(path + ".new", "w") as f:
        f.write(text)
    os.rename(path + ".new", path)


def get(path, tenant=None, **headers):
    headers = {k.replace("_", "-"): v for k, v in headers.items()}
    if tenant:
        headers["authorization"] = "Bearer " + keys[tenant]
    return server.request("GET", path, headers=headers)


def new_key(tenant, *flags):
    p = subprocess.run([MASCON, "key", "new", tenant, "--json", *flags], check=True,
                       stdout=subprocess.PIPE)
    return json.loads(p.stdout)


# ---- keys and tenants -----------------------------------------------------------------------

def a_new_key_is_kept_by_its_hash_alone():
    path = os.path.join(policies, "keys")
    text = open(path).read()
    assert len(keys) == 2 and all(len(k) > 40 for k in keys.values())
    assert not any(k in text for k in keys.values()), text
    assert re.fullmatch(r"(sha256:[0-9a-f]{64} \w+\n)+", text), text
    assert os.stat(path).st_mode & 0o777 == 0o600
    for bad in ("", "a b", "x" * 64, "a/b"):
        assert subprocess.run([MASCON, "key", "new", bad], stderr=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL).returncode == 2
    assert get("/theirs", "acme")[2] == b"acme"


def a_key_is_changed_while_the_server_runs():
    path = os.path.join(policies, "keys")
    before = open(path).read()
    fresh = new_key("other", "--api-key-file", path)["key"]
    ask = lambda key: server.request("GET", "/v1/models",
                                     headers={"authorization": "Bearer " + key})[0]
    assert ask(fresh) == 401
    reload()
    assert ask(fresh) == 200 and ask(keys["other"]) == 200
    with open(path, "w") as f:
        f.write("".join(x for x in before.splitlines(True) if "acme" in x))
    reload()
    assert ask(fresh) == 401 and ask(keys["other"]) == 401 and ask(keys["acme"]) == 200
    with open(path, "w") as f:
        f.write("sha256:12 acme\n")
    assert "line 1" in reload(1)
    assert ask(keys["acme"]) == 200
    with open(path, "w") as f:
        f.write(before)
    reload()


def reload(want=0):
    p = subprocess.run([MASCON, "reload", "--socket", server.socket], stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, timeout=60)
    assert p.returncode == want, p.stdout
    return p.stdout.decode()


def a_route_may_be_for_some_tenants_only():
    assert get("/theirs", "acme")[0] == 200
    status, _, data = get("/theirs", "other")
    assert status == 403 and json.loads(data)["error"]["code"] == "forbidden", data
    assert get("/theirs")[0] == 401


def the_engine_knows_whose_a_sequence_is():
    out = []
    body = {"prompt": "Once", "max_tokens": 2000, "ignore_eos": True}
    def ask():
        out.append(server.post("/v1/completions", body,
                               headers={"authorization": "Bearer " + keys["acme"]}))
    def look():
        until = time.monotonic() + 10
        while time.monotonic() < until:
            rows = json.loads(server.attach("mc.json.encode(mc.seqs{tenant='acme'})")[1])
            if rows:
                return rows[0]["tenant"]
        raise AssertionError("no sequence of the tenant")
    assert at_once([ask, look])[1] == "acme"
    assert out[0][0] == 200


# ---- rates ----------------------------------------------------------------------------------

def a_rate_is_each_tenants_own_and_its_429_says_when():
    assert [get("/limited", "acme")[0] for _ in range(2)] == [200, 200]
    status, headers, data = get("/limited", "acme")
    error = json.loads(data)["error"]
    assert status == 429 and error["code"] == "rate_limit_exceeded", data
    assert "0.5 requests a second" in error["message"] and "try again in" in error["message"]
    assert headers["retry-after"] in ("1", "2") and 0 < int(headers["retry-after-ms"]) <= 2000
    assert get("/limited", "other")[0] == 200
    time.sleep(int(headers["retry-after-ms"]) / 1000 + 0.1)
    assert get("/limited", "acme")[0] == 200


def a_tenants_rate_is_set_while_the_server_runs():
    def set_rate(text, want=0):
        p = subprocess.run([MASCON, "set", "tenant_rate", text, "--socket", server.socket],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert p.returncode == want, p.stdout
        return p.stdout.decode()
    set_rate("other=2")
    got = [get("/v1/models", "other") for _ in range(4)]
    assert [x[0] for x in got] == [200, 200, 429, 429], got
    error = json.loads(got[3][2])["error"]
    assert "2 requests a second (2 at once) of tenant other" in error["message"], error
    assert int(got[3][1]["retry-after-ms"]) <= 1000
    assert get("/v1/models", "acme")[0] == 200 and get("/ip", "other")[0] == 200
    set_rate("other=0")
    assert [get("/v1/models", "other")[0] for _ in range(4)] == [200] * 4
    assert "no API key is of a tenant 'nobody'" in set_rate("nobody=1", 1)
    assert "0 to 1e6" in set_rate("acme=-1", 1) and "no NAME=NUMBER" in set_rate("acme", 1)


def without_a_tenant_the_address_is_counted():
    assert [get("/open_limited")[0] for _ in range(2)] == [200, 429]


def a_script_limits_what_it_likes():
    assert get("/take")[0] == 200
    status, headers, data = get("/take")
    assert status == 429 and int(headers["retry-after"]) == 5, (headers, data)


# ---- bodies ---------------------------------------------------------------------------------

def a_schema_of_the_route_is_checked_before_its_handler():
    assert server.post("/shaped", {"n": 3, "who": "me"}) == (200, {"n": 3, "who": "me"})
    for body, field in (({}, "n"), ({"n": 9}, "n"), ({"n": 1, "who": 5}, "who")):
        status, a = server.post("/shaped", body)
        assert status == 400 and a["error"]["param"] == field, a


def events_have_names():
    _, headers, data = get("/named")
    assert headers["content-type"].startswith("text/event-stream")
    assert data == (b'event: first\ndata: {"a":1}\n\ndata: {"a":2}\n\n'
                    b'event: last\ndata: "text"\n\n'), data


def a_body_grows_line_by_line():
    _, headers, data = get("/grows")
    assert headers["content-type"] == "application/x-ndjson"
    assert [json.loads(x)["i"] for x in data.split()] == [1, 2, 3]


# ---- files ----------------------------------------------------------------------------------

def a_folder_is_shown_as_it_is_now():
    status, headers, data = get("/ui/a.css")
    assert (status, data) == (200, b"body {}") and headers["content-type"].startswith("text/css")
    assert headers["x-content-type-options"] == "nosniff"
    assert get("/ui")[2] == b"<p>index" and get("/ui/deep/x.json")[2] == b"{}"
    assert get("/page")[2] == b"body {}"
    status, again, data = get("/ui/a.css", if_none_match=headers["etag"])
    assert (status, data) == (304, b"") and again["etag"] == headers["etag"]
    save("www/a.css", "p {}")
    status, again, data = get("/ui/a.css", if_none_match=headers["etag"])
    assert (status, data) == (200, b"p {}") and again["etag"] != headers["etag"]
    save("www/a.css", "body {}")


def nothing_outside_the_folder_is_shown():
    for path in ("/ui/../init.lua", "/ui/%2e%2e/init.lua", "/ui/..%2finit.lua", "/ui//etc/passwd",
                 "/ui/%2fetc%2fpasswd", "/ui/.secret", "/ui/deep/.secret", "/ui/out", "/ui/deep",
                 "/ui/none", "/ui/fifo", "/ui/a.css%00.txt"):
        status, _, data = get(path)
        assert status in (400, 404), (path, status, data)


def a_head_of_a_get_has_no_body():
    status, headers, data = server.request("HEAD", "/ui/a.css")
    assert (status, data) == (200, b"") and headers["content-length"] == "7"


# ---- timers ---------------------------------------------------------------------------------

def timers_run_once_a_process_and_outlive_their_errors():
    def look():
        return json.loads(get("/ticks")[2])
    first, began = look(), time.monotonic()
    time.sleep(2)
    later, passed = look(), time.monotonic() - began
    ticks = later["n"] - first["n"]
    assert 2 <= ticks <= passed / 0.05 + 2, (ticks, passed)
    assert later["failing"] > first["failing"] and later["made"] > first["made"], later
    assert "this run fails" in server.log()
    status, out = server.attach("mc.why('timer')[1].request")
    assert (status, out.strip()) == (0, "timer"), out


def a_long_run_of_a_timer_is_no_runaway():
    until = time.monotonic() + 30
    while json.loads(get("/ticks")[2])["slow"] < 2:
        assert time.monotonic() < until
        time.sleep(0.1)


def timers_are_said_while_a_file_loads():
    status, _, data = get("/every")
    assert status == 500
    assert "mc.every is for a file's top level" in server.log()


def a_reload_replaces_the_timers():
    old = ROUTES
    save("routes/mine.lua", ROUTES.replace('mc.shared.incr("ticks")', 'mc.shared.incr("others")'))
    def shared(key):
        return float(server.attach(f"mc.shared.get('{key}') or 0")[1])
    def grows(key):
        until, before = time.monotonic() + 20, shared(key)
        while shared(key) == before:
            assert time.monotonic() < until, key
    reload()
    grows("others")
    before = shared("ticks")
    grows("others")
    assert shared("ticks") == before
    save("routes/mine.lua", old)
    reload()
    grows("ticks")


# ---- around the handlers ----------------------------------------------------------------------

def pages_of_named_origins_may_read_answers():
    for origin in ("https://a.example", "https://b.example"):
        status, headers, _ = server.request("OPTIONS", "/v1/chat/completions", headers={
            "origin": origin, "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,x-stainless-lang"})
        assert status == 204 and headers["access-control-allow-origin"] == origin
        assert "x-stainless-lang" in headers["access-control-allow-headers"]
        assert "POST" in headers["access-control-allow-methods"]
        _, headers, _ = get("/ip", origin=origin)
        assert headers["access-control-allow-origin"] == origin and headers["vary"] == "Origin"
        assert "x-request-id" in headers["access-control-expose-headers"]
        assert get("/v1/models", origin=origin)[1]["access-control-allow-origin"] == origin
    for origin in ("https://evil.example", "https://a.example.evil", "null", ""):
        _, headers, _ = get("/ip", origin=origin)
        assert "access-control-allow-origin" not in headers, (origin, headers)


def the_clients_address_is_what_the_proxy_says():
    assert get("/ip")[2] == b"127.0.0.1"
    assert get("/ip", x_forwarded_for="9.9.9.9, 203.0.113.7")[2] == b"203.0.113.7"
    with Server(policies=policies) as plain:
        data = plain.request("GET", "/ip", headers={"x-forwarded-for": "203.0.113.7"})[2]
        assert data == b"127.0.0.1"


def the_access_log_has_a_line_a_request():
    get("/ip?hidden=1", x_request_id="seen-1", x_forwarded_for="203.0.113.9")
    get("/theirs", "acme", x_request_id="seen-2")
    get("/nothing", x_request_id="seen-3")
    server.request("POST", "/shaped", b"{", headers={"x-request-id": "seen-4"})
    time.sleep(0.3)
    lines = [x for x in server.log().splitlines() if " access: " in x]
    by = {re.search(r"id=(\S+)", x).group(1): x for x in lines}
    assert "ip=203.0.113.9 method=GET path=/ip id=seen-1 status=200 bytes=11 ms=" in by["seen-1"]
    assert "hidden" not in "".join(lines)
    assert by["seen-2"].endswith("tenant=acme") and " status=404 " in by["seen-3"]
    assert " status=400 " in by["seen-4"], by["seen-4"]


def wrong_settings_end_the_start():
    for flag, value, word in (("--trusted-proxies", "10.0.0.0/99", "/0..32"),
                              ("--trusted-proxies", "me", "'me'")):
        p = subprocess.run([MASCON, "serve", "tests/models/tiny-llama", "--port", "0", flag,
                            value], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20)
        assert p.returncode == 1 and word in p.stdout.decode(), p.stdout


if __name__ == "__main__":
    policies = tempfile.mkdtemp(prefix="mascon-policies-")
    atexit.register(shutil.rmtree, policies, ignore_errors=True)
    for name in ("routes", "www/deep"):
        os.makedirs(os.path.join(policies, name))
    shutil.copy("policies/routes/openai.lua", os.path.join(policies, "routes"))
    save("routes/mine.lua", ROUTES)
    save("init.lua", 'return { routes = { "openai", "mine" } }\n')
    save("www/a.css", "body {}")
    save("www/index.html", "<p>index")
    save("www/deep/x.json", "{}")
    save("www/.secret", "no")
    save("www/deep/.secret", "no")
    os.symlink("/etc/passwd", os.path.join(policies, "www/out"))
    os.mkfifo(os.path.join(policies, "www/fifo"))
    key_file = os.path.join(policies, "keys")
    keys = {t: new_key(t, "--api-key-file", key_file)["key"] for t in ("acme", "other")}
    with Server("--no-watch", "--api-key-file", key_file, "--access-log", "--cors",
                "https://a.example, https://b.example", "--trusted-proxies", "127.0.0.0/8",
                policies=policies) as server:
        main([v for v in list(globals().values())
              if callable(v) and getattr(v, "__module__", "") == "__main__"
              and v.__name__ not in ("save", "get", "new_key", "reload")])
