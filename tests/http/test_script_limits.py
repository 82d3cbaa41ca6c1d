"""How long scripts of each kind may take, and keys that were made to collide."""
import json
import os
import signal
import subprocess
import tempfile
import time

from mascon import MASCON, SANITIZED, Server, main

BUSY = """local function busy(s) -- of a thread's time, as good as
  local t = mc.now()
  while mc.now() - t < s do end
end
"""


def budgets_are_of_the_kind_of_script():
    """A file that starts and a task by the clock may compute for seconds; a handler may not."""
    with tempfile.TemporaryDirectory() as d:
        os.mkdir(d + "/routes")
        with open(d + "/init.lua", "w") as f:
            f.write('return { routes = { "openai", "slow" } }')
        with open(d + "/routes/slow.lua", "w") as f:
            f.write(BUSY + """
                busy(1.5)
                mc.every(0.2, function()
                  if mc.shared.get("done") then return end
                  busy(1.5)
                  mc.shared.set("done", "yes")
                end)
                return { api = 1, kind = "routes",
                  ["GET /busy"] = function(_, res) busy(3) res:json { ok = true } end,
                  ["GET /done"] = function(_, res) res:json { done = mc.shared.get("done") or "no" }
                  end }""")
        with Server("--no-watch", policies=d) as server:
            pid = server.process.pid
            until = time.monotonic() + (20 if not SANITIZED else 120)
            while json.loads(server.get("/done")[2])["done"] != "yes":
                assert time.monotonic() < until, server.log()
                time.sleep(0.1)
            began = time.monotonic()
            assert server.get("/busy")[0] == 500
            assert time.monotonic() - began < (2.5 if not SANITIZED else 30)
            assert server.get("/done")[0] == 200
            assert server.process.pid == pid and server.process.poll() is None


def keys_that_collide_cost_no_time():
    body = "{" + ",".join(f'"{"k" * 160}{i:012d}{i:012d}{i:012d}{"z" * 160}":1'
                          for i in range(20_000)) + "}"
    with Server() as server:
        began = time.monotonic()
        status, reply = server.post("/v1/completions", body)
        took = time.monotonic() - began
        assert 400 <= status < 500 and reply["error"]["message"], reply
        assert took < (5 if not SANITIZED else 60), took  # quadratic: minutes
        assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})[0] == 200


BOMBS = [
    "for i = 1, 1e9 do t[i] = tostring(i + 0.5) end",
    "for i = 1, 1e9 do t[i] = i .. '' end",
    "for i = 1, 1e9 do t[i] = ('x'):rep(5000 + i):upper() end",
    "for i = 1, 1e9 do t[i] = ('%d'):format(i):reverse():sub(1, -2) end",
    "for i = 1, 1e9 do t[i] = { i } end",
    "for i = 1, 1e9 do t[i] = function() return i end end",
    "for i = 1, 1e9 do t[i] = coroutine.wrap(function() return i end) end",
    "local s = 'x' while true do s = s .. s end",
    "t[1] = ('x'):rep(1e9)",
    "for i = 1, 1e9 do t[#t + 1] = mc.json.encode { i, { a = i } } end",
]


def memory_bombs_end_their_handler_whatever_it_catches():
    """Also where LuaJIT's own error for want of memory is not safe: in its fast functions."""
    with tempfile.TemporaryDirectory() as d:
        os.mkdir(d + "/routes")
        with open(d + "/init.lua", "w") as f:
            f.write('return { routes = { "openai", "bombs" } }')
        with open(d + "/routes/bombs.lua", "w") as f:
            f.write("local bombs = {\n" + "".join(
                f"  function(t) {b} end,\n" for b in BOMBS) + """}
                return { api = 1, kind = "routes", ["GET /bomb/{i}"] = function(req, res)
                  for _ = 1, 3 do pcall(bombs[tonumber(req.params.i)], {}) end
                  res:json { ok = true }
                end, ["GET /garbage"] = function(_, res)
                  local last -- twice what a VM may hold, and nothing of it kept
                  for i = 1, 2000 do
                    last = ("g"):rep(70000) .. i
                    if i % 100 == 0 then mc.sleep(0.001) end -- not to run for too long
                  end
                  res:json { n = #last }
                end }""")
        with Server("--no-watch", "--edge-vms", "1", policies=d) as server:
            for i in range(1, len(BOMBS) + 1):
                status, _, body = server.get(f"/bomb/{i}")
                # one of a single allocation is an error that a pcall may hold
                assert status in (500, 503) or b"true" in body, (BOMBS[i - 1], status, body)
                assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})[0] == 200
            assert server.get("/garbage")[0] == 200, server.log()[-2000:]
            assert server.process.poll() is None


def errors_that_never_become_text_end_their_handler():
    """An error object's __tostring is a script too, on what is left of the budget."""
    forms = ["while true do end", "return tostring(e)", "error(e)"]
    with tempfile.TemporaryDirectory() as d:
        os.mkdir(d + "/routes")
        with open(d + "/init.lua", "w") as f:
            f.write('return { routes = { "openai", "errors" } }')
        with open(d + "/routes/errors.lua", "w") as f:
            f.write("local forms = {\n" + "".join(
                f"  function(e) {form} end,\n" for form in forms) + """}
                return { api = 1, kind = "routes", ["GET /error/{i}"] = function(req, res)
                  error(setmetatable({}, { __tostring = forms[tonumber(req.params.i)] }))
                end }""")
        with Server("--no-watch", "--edge-vms", "1", policies=d) as server:
            for i, form in enumerate(forms, 1):
                assert server.get(f"/error/{i}")[0] == 500, form
                assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})[0] == 200
            p = subprocess.Popen(  # a session has no limit but Ctrl-C
                [MASCON, "attach", "--socket", server.socket, "-e", "io.write('here\\n') "
                 "error(setmetatable({}, { __tostring = function() while true do end end }))"],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            assert p.stdout.readline() == b"here\n"
            p.send_signal(signal.SIGINT)
            assert b"interrupted" in p.stdout.read() and p.wait(60) == 1


main([errors_that_never_become_text_end_their_handler,
      memory_bombs_end_their_handler_whatever_it_catches, budgets_are_of_the_kind_of_script,
      keys_that_collide_cost_no_time])
