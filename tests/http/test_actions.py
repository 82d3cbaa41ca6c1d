"""Day one to day ninety of an operator: thirty things that one does with a server, each typed once
and answered. They run in this order, in one directory, most of them against one server."""
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

from manager import Manager
from mascon import MASCON, MODEL, SANITIZED, Server, Skip, main

STARVES = """return { api = 1, kind = "scheduler", plan = function(view, plan)
  for _, row in view:running() do plan:decode(row) end
  for _, row in view:waiting(nil, "youngest") do
    plan:prefill(row, 64) -- the newest first: the oldest waits for as long as others come
    return
  end
end }
"""
ROUTE = """return { api = 1, kind = "routes", ["GET /hello/{name}"] = {
  rate = { 0.001, 2 },
  handler = function(req, res) res:json { hello = req.params.name } end,
} }
"""


class Day:
    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="mascon-day-")
        self.mine = self.dir + "/policies"
        self.keys = self.dir + "/keys"
        self.server = self.program = None

    def type(self, line, status=0, timeout=120, env=None):
        """One line, as typed: `mascon` is the program, $SOCKET, $PORT, $MODEL, $MINE are set."""
        s = self.server
        env = {**os.environ, "SOCKET": s.socket if s else "", "PORT": str(s.port) if s else "",
               "MODEL": os.path.abspath(MODEL), "MINE": self.mine, "KEYS": self.keys,
               "XDG_STATE_HOME": self.dir + "/state", **(env or {})}
        if self.program:
            env["PATH"] = os.path.dirname(self.program) + ":" + env["PATH"]
        p = subprocess.run(["bash", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           stdin=subprocess.DEVNULL, timeout=timeout, env=env)
        out = p.stdout.decode(errors="replace")
        assert p.returncode == status, (line, p.returncode, out[-3000:])
        return out

    def ask(self, limit, name, **more):
        return self.server.request("POST", "/v1/completions", {
            "prompt": "Once", "max_tokens": limit, "ignore_eos": True, **more},
            headers={"authorization": "Bearer " + self.key, "x-request-id": name})

    def edit(self, name, old, new):
        path = f"{self.mine}/{name}"
        text = open(path).read()
        assert old in text
        open(path, "w").write(text.replace(old, new))


day = Day()


def generation():
    return int(day.server.attach("mc.engine.status().generation")[1])


def a01_install():
    if SANITIZED:
        day.program = os.path.abspath(MASCON)
        raise Skip("installed from a plain build only")
    out = day.type(f"make -s install B={os.path.dirname(MASCON)} DESTDIR={day.dir} PREFIX=/usr")
    day.program = day.dir + "/usr/bin/mascon"
    assert os.path.exists(day.dir + "/usr/share/man/man1/mascon.1"), out
    assert os.path.exists(day.dir + "/usr/share/mascon/dist/mascon.service")
    assert "mascon 0.1 (build " in day.type("mascon version")


def a02_doctor():
    assert "ok  model" in day.type("mascon doctor $MODEL")


def a03_plan():
    out = json.loads(day.type("mascon plan $MODEL --json"))
    assert out["weights_bytes"] > 0 and out["kv_bytes_token"] > 0


def a04_start():
    day.key = re.search(r"mk-\w+", day.type("mascon key new acme --api-key-file $KEYS")).group(0)
    day.type("mascon policy init $MINE")
    os.environ["XDG_STATE_HOME"] = day.dir + "/state"
    day.server = Server("--api-key-file", day.keys, "--no-watch", "--trusted-proxies", "127.0.0.1",
                        "--access-log", "--record", day.dir + "/record", policies=day.mine)
    assert "state          ok" in day.type("mascon status --socket $SOCKET")


def a05_ask():
    out = day.type("curl -s localhost:$PORT/v1/completions -H 'content-type: application/json' "
                   f"-H 'authorization: Bearer {day.key}' -d '{{\"prompt\": \"Once\", "
                   "\"max_tokens\": 4}'")
    assert json.loads(out)["choices"][0]["text"]


def a06_metrics():
    assert "mascon_generation_tokens_total" in day.type("curl -s localhost:$PORT/metrics")


def a07_edit_a_policy():
    day.edit("scheduler.lua", "opts.chunk or 1e9", "opts.chunk or 128")
    assert "live at the next step" in day.type("mascon reload --socket $SOCKET")
    assert day.ask(1, "after")[0] == 200 and generation() == 2


def a08_a_typo_is_told_and_changes_nothing():
    day.edit("sampler.lua", "return S", "return S S")
    out = day.type("mascon reload --socket $SOCKET", status=1)
    assert re.search(r"sampler\.lua:\d+", out), out
    assert generation() == 2 and day.ask(1, "still")[0] == 200
    day.edit("sampler.lua", "return S S", "return S")


def a09_a_starving_policy_is_noticed_before_it_is_live():
    open(day.mine + "/greedy.lua", "w").write(STARVES)
    out = day.type("mascon policy check $MINE/greedy.lua --socket $SOCKET")
    assert re.search(r"of the shipped arrivals, [1-9]\d* starve", out), out


def a10_roll_back():
    assert '1' in day.type("mascon rollback --socket $SOCKET")
    day.ask(1, "back")
    assert generation() == 1
    day.type("mascon reload --socket $SOCKET")


def a11_list_what_runs():
    out = day.type("mascon policy list --socket $SOCKET")
    assert "scheduler" in out and "live" in out and day.mine in out


def a12_add_an_endpoint():
    open(day.mine + "/routes/hello.lua", "w").write(ROUTE)
    day.edit("init.lua", 'routes = { ', 'routes = { "hello", ')
    day.type("mascon reload --socket $SOCKET")
    out = day.type(f"curl -s -H 'authorization: Bearer {day.key}' localhost:$PORT/hello/world")
    assert json.loads(out) == {"hello": "world"}


def a13_rate_limit_it():
    line = f"curl -si -H 'authorization: Bearer {day.key}' localhost:$PORT/hello/again"
    day.type(line)
    out = day.type(line).lower()
    assert " 429 " in out.splitlines()[0] and "retry-after:" in out, out


def a14_rotate_a_key():
    old, day.key = day.key, re.search(
        r"mk-\w+", day.type("mascon key new acme --api-key-file $KEYS")).group(0)
    lines = open(day.keys).read().splitlines()
    open(day.keys, "w").write("\n".join(lines[1:]) + "\n")
    day.type("mascon reload --socket $SOCKET")
    assert day.ask(1, "new")[0] == 200
    new, day.key = day.key, old
    assert day.ask(1, "old")[0] == 401
    day.key = new


def a15_why_did_it_wait():
    day.ask(8, "asked-about")
    out = day.type("mascon why --socket $SOCKET asked-about")
    assert "queued" in out and "first token" in out and "ended" in out, out


def a16_pin_a_prompt():
    if day.server.attach("type(mc.kv.pin)")[1] != "function\n":
        raise Skip("this build pins nothing")
    out = day.type("mascon attach --socket $SOCKET -e 'assert(mc.kv.pin { prompt = (\"word \")"
                   ":rep(100), ttl = 60 }); return #mc.kv.pins()'")
    assert out == "1\n", out


def a17_fork_a_sequence():
    out = day.type("mascon attach --socket $SOCKET -e 'local r = assert(mc.submit { prompt = "
                   "\"Once\", limit = 0 }); r:wait(); local a = r:fork { limit = 4, seed = 1 }; "
                   "return a:wait().n'")
    assert out == "4\n", out


def a18_lower_the_memory_budget_live():
    status, out = day.server.attach("mc.engine.set { kv_memory = '8M' }")
    if "can't change while the server runs" in out:
        raise Skip("this build's pool is fixed at the start")
    assert status == 0 and int(day.server.attach("mc.kv.stats().total")[1]) > 0, out


def a19_attach():
    assert day.type("echo 'print(mc.time() > 0)' | mascon attach --socket $SOCKET") == "true\n"


def a20_find_a_stuck_sequence():
    day.thread = threading.Thread(target=lambda: day.ask(1900, "stuck"))
    day.thread.start()
    until = time.monotonic() + 20
    while "stuck" not in day.type("mascon seqs --socket $SOCKET") and time.monotonic() < until:
        time.sleep(0.05)
    assert "stuck" in day.type("mascon top --socket $SOCKET --every 0.1")


def a21_cancel_it():
    assert "cancelled" in day.type("mascon cancel --socket $SOCKET stuck 'it is stuck'")
    day.thread.join()
    assert "cancelled: it is stuck" in day.type("mascon why --socket $SOCKET stuck")


def a22_log_level_of_a_unit():
    assert "debug" in day.type("mascon log --socket $SOCKET http debug")
    assert "http" in day.type("mascon log --socket $SOCKET")


def a23_behind_nginx():
    text = open("dist/nginx.conf").read()
    for line in ("proxy_buffering off;", "proxy_http_version 1.1;", "X-Forwarded-For"):
        assert line in text
    # what its proxy_set_header sends is believed of a trusted proxy
    day.type(f"curl -s -H 'authorization: Bearer {day.key}' -H 'X-Forwarded-For: 192.0.2.7' "
             "localhost:$PORT/v1/models")
    until = time.monotonic() + 5
    while "192.0.2.7" not in day.server.log() and time.monotonic() < until:
        time.sleep(0.05)
    assert "192.0.2.7" in day.server.log()


def a24_test_a_policy_off_line():
    assert "0 failed" in day.type("mascon policy test $MINE")


def a25_config_dump_and_restore():
    first = day.type("mascon config --dump --port 0 --drain 7")
    open(day.dir + "/mascon.lua", "w").write(first)
    again = day.type(f"mascon config --dump --config {day.dir}/mascon.lua")
    strip = lambda s: [line.split(",  --")[0] for line in s.splitlines()]
    assert strip(first) == strip(again) and "from --drain" in first
    assert f"from {day.dir}/mascon.lua" in again


def a26_drain():
    assert "draining" in day.type("mascon drain --socket $SOCKET 5")
    assert day.server.process.wait(30) == 0
    out = day.type(f"mascon replay {day.dir}/record --policy {day.mine}/scheduler.lua --json")
    assert json.loads(out)


def a27_a_unit_for_systemd():
    if not shutil.which("systemd-analyze"):
        raise Skip("no systemd-analyze")
    unit = open("dist/mascon.service").read().replace("/usr/local/bin/mascon", day.program)
    open(day.dir + "/mascon.service", "w").write(re.sub("Documentation=.*\n", "", unit))
    shutil.copy("dist/mascon.socket", day.dir)
    assert day.type(f"systemd-analyze verify {day.dir}/mascon.service") == ""


def a28_an_upgrade_refuses_no_request():
    with Manager() as m:
        m.start()
        m.told("READY=1")
        os.kill(m.process.pid, signal.SIGTERM)
        m.process.wait(30)
        answer = []
        t = threading.Thread(target=lambda: answer.append(
            day.type(f"curl -s localhost:{m.number}/v1/models")))
        t.start()  # nobody serves: it waits in the socket
        m.start()
        t.join()
        assert json.loads(answer[0])["data"][0]["id"] == "tiny-llama"


def a29_read_a_crash():
    if SANITIZED:
        raise Skip("sanitizers have their own report")
    with Server() as s:
        s.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
        s.process.send_signal(signal.SIGABRT)
        assert s.process.wait(30) == -signal.SIGABRT
    out = day.type("cat $XDG_STATE_HOME/mascon/crash-*")
    for what in ("build ", "signal      SIGABRT", "steps ", "generation ", "last hook "):
        assert what in out, out


def a30_a_rank_dies():
    os.environ["MC_FAIL"] = "rank:1:error@decode"
    try:
        with Server("--ranks", "2") as s:
            began = time.monotonic()
            try:
                s.post("/v1/completions", {"prompt": "x", "max_tokens": 20})
            except (OSError, ValueError):
                pass
            assert s.process.wait(30) != 0
            assert time.monotonic() - began < (5 if not SANITIZED else 60)
            assert "rank 1" in s.log(), s.log()
    finally:
        del os.environ["MC_FAIL"]


try:
    main([v for k, v in sorted(globals().items()) if re.match(r"a\d\d_", k)])
finally:
    if day.server:
        day.server.__exit__()
    shutil.rmtree(day.dir, ignore_errors=True)
