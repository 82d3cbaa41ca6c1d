"""What scripts can do wrong in a live server, and what that costs: loops in every hook, memory
bombs, handles by the million, binary chunks, ways out of the environment, reloads under load.
(Misuse of every function: test_fuzz_script.py; budgets and colliding keys: test_script_limits.py.)"""
import atexit
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time

from mascon import MASCON, SANITIZED, Server, at_once, main

MARK = 77  # a prompt of so many tokens makes a hook go wrong: no dry run has one
SLOW = 10 if SANITIZED else 1

server = None
policies = None


def save(name, text):
    path = os.path.join(policies, name)
    with open(path + ".new", "w") as f:
        f.write(text)
    os.rename(path + ".new", path)


def reload(want=0):
    p = subprocess.run([MASCON, "reload", "--socket", server.socket], stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, timeout=120)
    assert p.returncode == want, p.stdout.decode()
    return p.stdout.decode()


def install(routes="", **files):
    """A whole new policy directory's files; routes: of routes/mine.lua."""
    save("routes/mine.lua", "local R = { api = 1, kind = 'routes' }\n" + routes + "\nreturn R\n")
    for name in ("scheduler", "sampler", "router"):
        if os.path.exists(os.path.join(policies, name + ".lua")):
            os.unlink(os.path.join(policies, name + ".lua"))
    for name, text in files.items():
        save(name + ".lua", text)
    names = ", ".join(f"{k} = '{k}'" for k in files if k in ("scheduler", "sampler", "router"))
    save("init.lua", "return { routes = { 'openai', 'mine' }, " + names + " }\n")
    return reload()


def get(path, headers=None):
    status, _, data = server.request("GET", path, headers=headers)
    return status, data


def canned():
    return server.post("/v1/completions", {"prompt": "Once", "max_tokens": 8, "temperature": 0})[1][
        "choices"][0]["text"]


def marked(n=6):
    return server.post("/v1/completions", {"prompt": [5] * MARK, "max_tokens": n,
                                           "ignore_eos": True})


def resident():
    text = open(f"/proc/{server.process.pid}/status").read()
    return int(re.search(r"VmRSS:\s+(\d+)", text).group(1)) / 1024


class Unharmed:
    """Same process, same answer, nothing held, not much more memory."""

    def __init__(self, grows_mb=64):
        self.grows = grows_mb

    def __enter__(self):
        self.text, self.before = canned(), resident()

    def __exit__(self, kind, *_):
        if kind:
            return
        assert server.process.poll() is None
        assert server.get("/health")[0] == 200 and canned() == self.text
        server.idle()
        grown = resident() - self.before
        assert SANITIZED or grown < self.grows, f"{grown:.0f} MiB more"


# ---- loops ------------------------------------------------------------------------------------

LOOPS = ["while true do end", "for _ = 1, math.huge do end", "repeat until false",
         "local function f() return f() end f()", "::a:: goto a",
         "while true do pcall(function() while true do end end) end"]

SCHED = open("policies/scheduler.lua").read()


def with_loop(hook, loop):
    """A file whose hook runs the loop once: when a marked prompt comes by."""
    if hook == "plan":
        return "scheduler", SCHED.replace(
            "function P.plan(view, plan)", "function P.plan(view, plan)\n"
            f"  for _, r in view:waiting() do if r.n_prompt == {MARK} then\n{loop}\n  end end")
    body = {"chain": f"function S.chain(seq, want)\nif seq.n_prompt == {MARK} then\n{loop}\nend\n"
                     "return want end",
            "pick": "function S.chain(_, want) return want end\nfunction S.pick(c, seq)\n"
                    f"if seq.n_prompt == {MARK} and seq.done == 3 then\n{loop}\nend\n"
                    "return c:draw() end"}[hook]
    return "sampler", f"local S = {{ api = 1, kind = 'sampler' }}\n{body}\nreturn S\n"


def line_of(text, loop):
    return 1 + text[:text.index(loop)].count("\n")


def crowded():
    """How much longer than its processor time work takes here now, at least 1."""
    wall, cpu = time.monotonic(), time.thread_time()
    while time.thread_time() - cpu < 0.05:
        pass
    return max(1, (time.monotonic() - wall) / 0.05)


def worst_gap(meanwhile):
    """Of a stream beside which that is done."""
    at = []
    stream = threading.Thread(target=lambda: server.stream(
        "/v1/completions", {"prompt": "Once", "max_tokens": 400, "ignore_eos": True},
        lambda _: at.append(time.monotonic())))
    stream.start()
    while len(at) < 5:
        time.sleep(0.002)
    meanwhile()
    stream.join()
    return max(b - a for a, b in zip(at, at[1:]))


def a_loop_in_a_hook_fails_no_request_and_stalls_no_stream():
    def ask():
        status, a = marked()
        assert status == 200 and a["usage"]["completion_tokens"] == 6, a
    with Unharmed():
        without = max(worst_gap(ask) for _ in range(3)) # what others do to this machine
        for hook in ("plan", "chain", "pick"):
            for loop in LOOPS:
                kind, text = with_loop(hook, loop)
                install(**{kind: text})
                share = crowded()
                stall = worst_gap(ask)
                share = max(share, crowded()) # the budget is processor time
                assert stall < 0.25 * SLOW * share + without, (hook, loop, stall, share, without)
                until, place = time.monotonic() + 10, f"{kind}.lua:{line_of(text, loop)}"
                while not re.search(rf"{hook} used up its time (at|in the hook at) {kind}.lua",
                                    server.log()):
                    assert time.monotonic() < until, (hook, loop, server.log()[-500:])
                    time.sleep(0.05)
                assert place in server.log() or "when run again" in server.log(), (place, loop)
        assert json.loads(server.attach("mc.json.encode(mc.policy.list())")[1])["degraded"] is False


def a_loop_in_a_router_or_route_costs_its_request():
    wrapped = "coroutine.wrap(function() %s end)()"
    routes = "\n".join(f"R['GET /loop/{i}'] = function()\n{loop}\nend\n"
                       f"R['GET /wrapped/{i}'] = function()\n{wrapped % loop}\nend"
                       for i, loop in enumerate(LOOPS))
    router = "local R = { api = 1, kind = 'router' }\nfunction R.route(req)\n" + "\n".join(
        f"if req.headers['x-loop'] == '{i}' then\n{loop}\nend" for i, loop in enumerate(LOOPS)
    ) + "\nreturn {} end\nreturn R\n"
    with Unharmed():
        install(routes + "\nR['GET /fine'] = function(_, res) res:text('fine') end", router=router)
        for i in range(len(LOOPS)):
            for path, headers in ((f"/loop/{i}", {}), (f"/wrapped/{i}", {}),
                                  ("/fine", {"x-loop": str(i)})):
                began = time.monotonic()
                # others are answered meanwhile
                answers = at_once([lambda: get(path, headers), lambda: get("/fine")])
                assert answers[0][0] == 500 and b"policy_budget" in answers[0][1], answers
                assert answers[1] == (200, b"fine") and time.monotonic() - began < 5 * SLOW
        assert "mine.lua:" in server.log() and "router.lua:" in server.log()


# ---- memory -----------------------------------------------------------------------------------

BOMBS = ["local t = {} for i = 1, 1e9 do t[i] = ('x'):rep(100) .. i end", "('x'):rep(1e9)",
         "local function f() return 1 + f() end f()",
         "local t = {} for i = 1, 1e6 do t[i] = coroutine.create(function() end) end"
         " for i = 1, 1e9 do t[#t + 1] = coroutine.create(function() end) end",
         "local s = 'x' for _ = 1, 40 do s = s .. s end",
         "local t = {} for i = 1, 1e9 do t[i] = i end"]


def a_memory_bomb_costs_its_request():
    routes = "\n".join(f"R['GET /bomb/{i}'] = function()\n{bomb}\nend"
                       for i, bomb in enumerate(BOMBS))
    with Unharmed(2 * 256 + 32):
        install(routes + "\nR['GET /fine'] = function(_, res) res:text('fine') end"
                "\nR['GET /deep'] = function(_, res)"
                "\n  local function f(n) if n == 0 then return 7 end return pcall(f, n - 1) end"
                "\n  res:text(tostring(select('#', f(100)))) end")
        for i in range(len(BOMBS)):
            status, data = get(f"/bomb/{i}")
            assert status in (500, 503), (i, status, data)
            assert get("/fine") == (200, b"fine")
        assert get("/deep")[0] == 200
        install()


def a_scheduler_that_allocates_at_each_step_stays_in_its_memory():
    with Unharmed():
        install(scheduler=SCHED.replace(
            "function P.plan(view, plan)", "local kept\nfunction P.plan(view, plan)\n"
            "  pcall(collectgarbage, 'stop') pcall(collectgarbage, 'setpause', 10000)\n"
            "  kept = ('x'):rep(100000 + view.n_row)"))
        steps = server.metric("mascon_steps_total")
        while server.metric("mascon_steps_total") < steps + 10000 / SLOW:
            server.post("/v1/completions", {"prompt": "Once", "max_tokens": 2000, "n": 1,
                                            "ignore_eos": True})
        assert server.metric("mascon_plan_fallback_total") == 0 or "plan:" not in server.log()
        install()


def handles_by_the_million_are_bounded():
    n = 1000000 // SLOW // SLOW
    with Unharmed(96):
        status, out = server.attach(f"""
            for i = 1, {n} do
              local a, b = mc.msgpack.encode {{ i }}, mc.json.encode {{ i }}
              if i % 100 == 0 then local ids = mc.vocab.decode {{ 5, 6, 7 }} end
            end
            for i = 1, {n // 200} do mc.vocab.encode("Once upon a time") end
            for i = 1, {n // 200} do mc.chat.render {{ {{ role = "user", content = "x" }} }} end
            return collectgarbage("count") < 65536""", timeout=300)
        assert (status, out.strip()) == (0, "true"), out
        assert server.attach("collectgarbage('stop')")[0] == 1


def scripts_that_run_once_leave_nothing():
    """Distinct chunks in one session, straight to its socket."""
    n = int(os.environ.get("SCRIPTS", 20000 // SLOW))
    server.attach("mc.log.level('repl', 'warn')")
    with Unharmed(32), socket.socket(socket.AF_UNIX) as s:
        s.connect(server.socket)
        for i in range(n):
            text = f"local function once_{i}() return {i} end return once_{i}() * 2 + 1".encode()
            s.sendall(b"\x94\0\xce" + struct.pack(">I", i) + b"\xa9repl.eval\x91\xd9"
                      + bytes([len(text)]) + text)
            got = b""
            while str(2 * i + 1).encode() not in got:
                more = s.recv(4096)
                assert more, got
                got += more


def chance_in_a_scheduler_changes_no_token_on_two_ranks():
    """What Lua decides by chance, table order and the clock is decided once, for all ranks."""
    text = SCHED.replace(
        "function P.plan(view, plan)", "local names = {}\n"
        "for i = 1, 50 do names['n' .. i] = i end\n"
        "function P.plan(view, plan)\n  local left = 0\n"
        "  for k, v in pairs(names) do left = left + v * math.random() end\n"
        "  if (left + mc.time()) % 3 < 1 then return end")
    assert text != SCHED
    save("routes/mine.lua", "return { api = 1, kind = 'routes' }\n")
    save("scheduler.lua", text)
    save("init.lua", "return { routes = { 'openai' }, scheduler = 'scheduler' }\n")
    body = {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    ask = lambda s: s.post("/v1/completions", body)[1]["choices"][0]["text"]
    with Server("--ranks", "2", "--no-watch", policies=policies) as two, \
            Server("--ranks", "2") as plain:
        assert set(at_once([lambda: ask(two)] * 6)) == {ask(plain)}
        assert two.process.poll() is None and "digest" not in two.log()
    install()


# ---- ways out -----------------------------------------------------------------------------------

def binary_chunks_are_refused_on_every_way_in():
    whole = subprocess.run(["luajit", "-b", "-e", "return 7", "-"], stdout=subprocess.PIPE,
                           check=True).stdout
    assert whole.startswith(b"\x1bLJ")
    flipped = whole[:10] + bytes([whole[10] ^ 0x40]) + whole[11:]
    chunks = [whole, flipped, b"\x1bLJ\x02\xff\xff\xff\xff\x0f", b"\x1b"]
    with Unharmed():
        for chunk in chunks:
            for name in ("init.lua", "scheduler.lua", "router.lua", "routes/mine.lua", "routes/part.lua"):
                save("routes/part.lua", "return 1")
                install("local p = require 'routes.part'", scheduler=SCHED,
                        router="return { api = 1, kind = 'router', route = function() end }")
                with open(os.path.join(policies, name), "wb") as f:
                    f.write(chunk)
                out = reload(1)
                assert "binary chunk" in out, (name, chunk, out)
            install()
            with tempfile.NamedTemporaryFile("wb", suffix=".lua") as f:
                f.write(chunk)
                f.flush()
                p = subprocess.run([MASCON, "policy", "check", f.name],
                                   stderr=subprocess.DEVNULL)
                assert p.returncode == 1
                p = subprocess.run([MASCON, "attach", "--socket", server.socket, f.name],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                assert p.returncode == 1, p.stdout
            lua = "".join(f"\\{b}" for b in chunk.replace(b"\0", b"")[:40])
            for call in ("load('%s')", "loadstring('%s')", "require('%s')"):
                status, out = server.attach(call % lua)
                assert status == 1, (call, out)
        status, out = server.attach("mc.msgpack.decode('\\197\\0\\3\\27LJ') == '\\27LJ'")
        assert (status, out.strip()) == (0, "true"), out  # bytes as any others


HOLES = ["require 'ffi'", "require 'string.buffer'", "package.preload.ffi()", "package.loadlib('x', 'y')", "getfenv(0).os",
         "debug.getregistry()", "('').dump(print)", "getmetatable('').__index.rep = nil",
         "string.rep = nil", "_G.print = nil", "setmetatable(_G, {})", "newproxy(true)", "jit.off()",
         "os.exit()", "io.popen('id')", "load('\\27LJ')", "rawset(mc, 'submit', 1)",
         "mc.submit = 1", "mc.json.decode = 1", "mc.json.null.x = 1", "string.dump(print)",
         "loadfile('/etc/passwd')", "dofile('/etc/passwd')", "setfenv(1, {})", "io.open('/etc/passwd')",
         "rawget(_G, 'os')", "debug.sethook()", "require '../init'", "require 'mc.host'",
         "coroutine.wrap = nil", "math.random = nil", "mc.config.port = 1", "('x').y.z = 1"]


def no_way_out_of_the_environment():
    with Unharmed():
        install("local function try(f)\n  local ok, v = pcall(f)\n  return ok and v ~= nil\nend\n"
                "R['GET /holes'] = function(_, res)\n  local open = mc.json.array {}\n"
                + "\n".join(f"  if try(function() local v = {h} return v end) then"
                            f" open[#open + 1] = {i} end" if "=" not in h else
                            f"  if try(function() {h} return 1 end) then open[#open + 1] = {i} end"
                            for i, h in enumerate(HOLES))
                + "\n  res:json(open)\nend\nR['GET /next'] = function(_, res)\n"
                "  local s = mc.submit { prompt = 'x', limit = 1 }\n  s:wait()\n"
                "  res:text(('ab'):rep(2) .. string.upper('c') .. math.floor(2.5)) end")
        status, data = get("/holes")
        assert status == 200, data
        assert [HOLES[i] for i in json.loads(data)] == []
        assert get("/next") == (200, b"ababC2")
        for hole in HOLES:
            if "_G" in hole or hole.endswith("= nil") and "string" not in hole:
                continue  # a session's globals are its own
            value = "" if "=" in hole else "return "
            status, out = server.attach(
                f"return (select(2, pcall(function() {value}{hole} end)))")
            assert status == 0 and ("nil" in out or "error" in out or "stdin" in out
                                    or "not" in out or "can't" in out), (hole, out)
        assert server.attach("('ab'):rep(2)") == (0, "abab\n")


def waiting_at_the_top_of_a_file_is_refused():
    with Unharmed():
        install()
        canned() # by the new generation
        before = server.metric("mascon_policy_generation")
        for part, routes in (("mc.sleep(0.01)", "local p = require 'routes.part'"),
                             ("return 1", "mc.sleep(0.01)"),
                             ("return 1", "mc.submit { prompt = 'x' }"),
                             ("return 1", "mc.submit { prompt = { 1, 2 } }"),
                             ("return 1", "mc.spawn(function() end)"),
                             ("return 1", "function R.init() mc.vocab.encode('x') end")):
            save("routes/part.lua", part)
            save("routes/mine.lua", f"local R = {{ api = 1, kind = 'routes' }}\n{routes}\nreturn R\n")
            out = reload(1)
            assert ".lua:" in out, (part, routes, out)
            assert " for requests, tasks and sessions" in out, (part, routes, out)
        assert server.metric("mascon_policy_generation") == before
        install()


# ---- errors and texts ------------------------------------------------------------------------------

def errors_of_any_kind_become_an_answer():
    with Unharmed():
        install("R['GET /nil'] = function() error(nil) end\n"
                "R['GET /table'] = function() error({}) end\nR['GET /throws'] = function() error(setmetatable({}, { __tostring = function()"
                " error('x') end })) end\nR['GET /code'] = function() error({ code = 5 }) end"
                "\nR['GET /tail'] = function(_, res) local n = 0 local function f() n = n + 1"
                " if n > 1e5 then return true end return pcall(f) end"
                " res:text(tostring((f()))) end")
        for path in ("/nil", "/table", "/throws", "/code"):
            status, data = get(path)
            error = json.loads(data)["error"]
            assert status == 500 and error["message"] and error["code"] == "policy_error", data
        assert get("/tail")[0] in (200, 500)


def model_text_in_logs_obeys_no_terminal():
    with Unharmed():
        install(r"""R["GET /log"] = function(_, res)
            mc.log.warn("\27]0;title\7\27[2J\r\nfake line", { ["k\27"] = "v\155" })
            res:text("x") end""")
        get("/log")
        text = server.log()
        assert "\x1b" not in text and "\r" not in text.replace("\r\n", "")
        assert "\\x1b]0;title\\x07" in text and "\nfake line" not in text


def required_files_are_of_their_generation():
    uses = ("local p, q = require 'lib', require('routes.part')\n"
            "R['GET /lib'] = function(_, res) res:text(p.word .. q) end\n"
            "R['GET /later'] = function(_, res) mc.sleep(1) res:text(require('lib').word) end\n"
            "R['GET /none'] = function() require 'none' end")
    save("lib.lua", "return { word = 'one' }")
    save("routes/part.lua", "return require('lib').word .. '!'")
    install(uses)
    assert get("/lib") == (200, b"oneone!")
    late = []
    t = threading.Thread(target=lambda: late.append(get("/later")))
    t.start()
    time.sleep(0.3)
    save("lib.lua", "return { word = 'two' }")
    assert get("/lib") == (200, b"oneone!")
    reload()
    assert get("/lib") == (200, b"twotwo!")
    t.join()
    assert late == [(200, b"one")] and get("/none")[0] == 500
    assert "there is no none.lua here" in server.log()
    save("lib.lua", "return {")
    assert "lib.lua:1" in reload(1)
    save("lib.lua", "return { word = require 'routes.part' }")
    assert "requires itself" in reload(1)
    os.chmod(os.path.join(policies, "lib.lua"), 0o666)
    assert "lib.lua is world-writable" in reload(1)
    assert get("/lib") == (200, b"twotwo!")
    os.unlink(os.path.join(policies, "lib.lua"))
    assert "there is no lib.lua" in reload(1)
    install()


def a_route_that_was_reloaded_away_is_gone():
    install("R['GET /here'] = function(_, res) res:text('old') end")
    assert get("/here") == (200, b"old")
    install("R['POST /here'] = function(_, res) res:text('new') end")
    status, data = get("/here")
    assert status == 405, data
    install()
    assert get("/here")[0] == 404


# ---- reloads under load ------------------------------------------------------------------------------

def reloads_under_eight_streams_change_no_token():
    """Every one a new generation of a 100 KB file; streams' tokens, memory, requests. In a server
    of its own, whose memory nothing has stirred."""
    global server
    shared = server
    # a small pool, all of whose pages are touched before memory is looked at
    with Server("--no-watch", "--kv-memory", "8M", policies=policies) as server:
        reload_under_streams(int(os.environ.get("RELOADS", 300 // SLOW)))
    server = shared


def reload_under_streams(n):
    pad = "-- " + "x" * 100_000 + "\n"
    body = {"prompt": "Once upon a time", "max_tokens": 1500, "temperature": 0, "ignore_eos": True}
    install(scheduler=SCHED)
    want = server.post("/v1/completions", body)[1]["choices"][0]["text"]
    over = threading.Event()
    served = [0] * 8

    def stream(k):
        while not over.is_set():
            events = server.stream("/v1/completions", body)
            text = "".join(c["text"] for e in events for c in e["choices"])
            assert text == want, f"stream {k} differs"
            served[k] += 1
        return served[k]

    def edit():
        sizes, generations = [], []
        try:
            for i in range(n):
                save("scheduler.lua", f"-- {i}\n" + pad + SCHED)
                reload()
                if i >= n // 5 and i % max(1, n // 50) == 0:
                    sizes.append(resident())
                    generations.append(len(json.loads(server.attach(
                        "mc.json.encode(mc.policy.list().generations)")[1])))
        finally:
            over.set()
        return sizes, generations

    failed = server.metric("mascon_request_success_total", 'finished_reason="error"')
    began = server.metric("mascon_policy_generation")
    results = at_once([edit] + [lambda k=k: stream(k) for k in range(8)])
    sizes, generations = results[0]
    assert min(results[1:]) >= 1, results[1:]
    assert server.metric("mascon_policy_generation") >= began + n
    assert server.metric("mascon_request_success_total", 'finished_reason="error"') == failed
    assert max(generations) <= 3, generations
    third = max(1, len(sizes) // 3) # the first warms up the allocator's arenas
    middle, last = (sum(x) / len(x) for x in (sizes[third:2 * third], sizes[-third:]))
    print(f"# {n} reloads, {sum(results[1:])} streams, {middle:.1f} then {last:.1f} MiB", flush=True)
    assert SANITIZED or last < middle * 1.05, sizes
    server.idle()


if __name__ == "__main__":
    policies = tempfile.mkdtemp(prefix="mascon-policies-")
    atexit.register(shutil.rmtree, policies, ignore_errors=True)
    os.makedirs(os.path.join(policies, "routes"))
    shutil.copy("policies/routes/openai.lua", os.path.join(policies, "routes"))
    save("init.lua", "return { routes = { 'openai' } }\n")
    with Server("--no-watch", "--kv-memory", "8M", policies=policies) as server:
        main([v for v in list(globals().values())
              if callable(v) and getattr(v, "__module__", "") == "__main__" and v is not Unharmed
              and v.__name__ not in ("save", "reload", "install", "get", "canned", "marked",
                                     "resident", "with_loop", "line_of", "worst_gap", "crowded", "reload_under_streams")])
