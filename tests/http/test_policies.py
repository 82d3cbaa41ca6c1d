"""Policy generations by command line, socket and REPL: tried before they serve, told by a
header, kept by what is open, answered while every VM is wedged."""
import http.client
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time

from mascon import MASCON, Server, main

ROUTE = """local version = "%s"
return { api = 1, kind = "routes",
  ["GET /v"] = function(req, res) res:text(version) end,
  ["GET /slow"] = function(req, res)
    for i = 1, 20 do res:write(version .. " ") mc.sleep(0.1) end
  end,
  ["GET /spin"] = function() while true do pcall(function() while true do end end) end end,
}
"""


class Dir:
    """A policy directory with one route file and a copy of the shipped scheduler."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="mascon-policies-")
        os.mkdir(os.path.join(self.path, "routes"))
        self.scheduler = open("policies/scheduler.lua").read()
        self.write("scheduler.lua", self.scheduler)
        self.write("init.lua", 'return { routes = { "openai", "v" } }')
        self.write("routes/v.lua", ROUTE % "one")
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.path)

    def write(self, name, text):
        path = os.path.join(self.path, name)
        with open(path + ".new", "w") as f:
            f.write(text)
        os.rename(path + ".new", path)


def mascon(*args, socket="/tmp/mascon-no-such-socket", timeout=60):
    """(exit status, stdout, stderr)"""
    p = subprocess.run([MASCON, *args, "--socket", socket], stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, timeout=timeout)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def check_without_a_server_says_file_line_and_reason():
    with Dir() as d:
        assert mascon("policy", "check", d.path)[0] == 0
        rc, out, _ = mascon("policy", "check", "policies/sched_fair.lua", "--json")
        tried = json.loads(out)
        assert rc == 0 and tried["views"] >= 100 and "plan" in tried["hooks"], out
        d.write("late.lua", 'return { api = 1, kind = "scheduler", plan = function(view, plan)\n'
                "  for _, row in view:waiting() do\n"
                "    if view.kv_free < 2 then row.nosuch = 1 end\n  end\nend }")
        rc, _, err = mascon("policy", "check", os.path.join(d.path, "late.lua"))
        assert rc == 1 and "late.lua:3: 'nosuch' can't be written" in err and "plan with" in err, err
        d.write("routes/v.lua", "return { api = 1, kind = 'routes', ['GET /v'] = 1 }")
        rc, _, err = mascon("policy", "check", d.path)
        assert rc == 1 and "routes/v.lua: 'GET /v' must be a function" in err, err
        assert mascon("policy", "check", "/nonexistent")[0] == 1
        assert mascon("policy", "chekc", d.path)[0] == 2


def a_new_directory_checks_tests_and_lints():
    with tempfile.TemporaryDirectory(prefix="mascon-policies-") as base:
        path = os.path.join(base, "mine")
        rc, out, _ = mascon("policy", "init", path)
        assert rc == 0 and "files written" in out
        assert mascon("policy", "check", path)[0] == 0
        rc, out, _ = mascon("policy", "test", path)
        assert rc == 0 and out.count("\nok ") >= 4 and out.endswith(" passed, 0 failed\n"), out
        rc, out, _ = mascon("policy", "test", os.path.join(path, "sched_fair.lua"), "--json")
        assert rc == 0 and all(t["ok"] for t in json.loads(out)), out
        json.load(open(os.path.join(path, ".luarc.json")))
        assert os.path.exists(os.path.join(path, "types", "step.lua"))
        scheduler = os.path.join(path, "scheduler.lua")
        text = open(scheduler).read()
        with open(scheduler, "w") as f:
            f.write(text.replace('view:running("youngest")', 'view:running("arrival")'))
        rc, out, _ = mascon("policy", "test", path)
        assert rc == 1 and "takes pages from the youngest" in out and " 1 failed" in out, out
        rc, out, _ = mascon("policy", "init", path)
        assert rc == 0 and "stay as they were" in out
        assert "running(\"arrival\")" in open(scheduler).read()
        if shutil.which("luacheck"):
            p = subprocess.run(["luacheck", "-q", "."], cwd=path, stdout=subprocess.PIPE)
            assert p.returncode == 0, p.stdout.decode()


def check_and_diff_ask_the_server_when_there_is_one():
    with Dir() as d, Server("--no-watch", policies=d.path) as s:
        assert mascon("policy", "diff", socket=s.socket)[:2] == (0, "no difference\n")
        d.write("scheduler.lua", "-- an edit\n" + d.scheduler)
        rc, out, _ = mascon("policy", "diff", socket=s.socket)
        assert rc == 0 and "+++ disk/scheduler.lua" in out and "+-- an edit\n" in out, out
        assert mascon("policy", "check", socket=s.socket)[0] == 0
        d.write("scheduler.lua", "-- an edit\n" + d.scheduler.replace("plan:decode(row)", "(nil)(row)"))
        line = d.scheduler[:d.scheduler.index("plan:decode(row)")].count("\n") + 2
        want = f"scheduler.lua:{line}: attempt to call a nil value"
        for rc, text in (mascon("policy", "check", socket=s.socket)[::2],
                         s.attach('return tostring(select(2, mc.policy.check "scheduler"))')):
            assert want in text, text
        assert "+-- an edit" in s.attach("return mc.policy.diff()")[1]
        rc, out, _ = mascon("policy", "list", "--json", socket=s.socket)
        assert json.loads(out)["generations"][0]["state"] == "live", out


def an_open_reply_stays_with_its_generation_and_broken_ones_never_serve():
    with Dir() as d, Server("--no-watch", policies=d.path) as s:
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=30)
        c.request("GET", "/slow")
        slow = c.getresponse()
        assert slow.getheader("x-mascon-generation") == "1"
        first = slow.read(4)

        def served():
            _, headers, body = s.get("/v")
            return body.decode(), headers["x-mascon-generation"]

        assert served() == ("one", "1")
        d.write("routes/v.lua", ROUTE % "two")
        assert mascon("reload", socket=s.socket)[0] == 0
        until = time.monotonic() + 5
        while served() != ("two", "2") and time.monotonic() < until:
            time.sleep(0.01)
        assert served() == ("two", "2")
        for text, want in (("return {", "routes/v.lua:1:"),
                           ("\nerror 'at the top'", "routes/v.lua:2: at the top"),
                           ("\n\nwhile true do end", "routes/v.lua")):
            d.write("routes/v.lua", text)
            rc, _, err = mascon("reload", socket=s.socket)
            assert rc == 1 and want in err, err
            assert served() == ("two", "2")
        assert (first + slow.read()).decode().split() == ["one"] * 20
        c.close()
        assert mascon("rollback", socket=s.socket)[0] == 0
        until = time.monotonic() + 5
        while served() != ("one", "1") and time.monotonic() < until:
            time.sleep(0.01)
        assert served() == ("one", "1")


def verbs_answer_with_every_vm_wedged():
    with Dir() as d:
        bad = d.scheduler.replace("function P.plan(view, plan)",
                                  "function P.plan(view, plan)\n"
                                  "  for _, row in view:running() do\n"
                                  "    while row.n_gen > 20 do end\n  end", 1)
        d.write("scheduler.lua", bad)
        with Server("--no-watch", policies=d.path) as s:
            stop = threading.Event()

            def again(fn):
                while not stop.is_set():
                    try:
                        fn()
                    except Exception:
                        pass

            ask = {"model": "default", "prompt": "x", "max_tokens": 60, "ignore_eos": True}
            jobs = ([lambda: s.get("/spin")] * 3 + [lambda: s.attach("while true do end", 2)]
                    + [lambda: s.post("/v1/completions", ask)] * 2)
            threads = [threading.Thread(target=again, args=(j,)) for j in jobs]
            for t in threads:
                t.start()
            try:
                time.sleep(1)
                # the built-in policy may have taken over by now: then no generation is live
                for words in (["policy", "list"], ["status"], ["policy", "diff", "1", "disk"],
                              ["seqs"]):
                    t0 = time.monotonic()
                    rc, _, err = mascon(*words, socket=s.socket)
                    assert rc == 0 and time.monotonic() - t0 < 5, (words, err)
                d.write("scheduler.lua", d.scheduler)
                t0 = time.monotonic()
                rc, _, err = mascon("reload", socket=s.socket)
                assert rc == 0, err
                took = time.monotonic() - t0
                print(f"# reload took {took:.2f} s", flush=True)
                assert took < 20
            finally:
                stop.set()
                for t in threads:
                    t.join()
            status, reply = s.post("/v1/completions", ask)
            assert status == 200 and reply["usage"]["completion_tokens"] == 60
            s.idle(30)


def an_error_of_bytes_that_are_no_text_is_told():
    with Dir() as d:
        with Server("--no-watch", policies=d.path) as s:
            d.write("scheduler.lua", "error('\\255 is no text')")
            status, _, err = mascon("reload", socket=s.socket)
            assert status == 1 and "\ufffd is no text" in err, err
            assert "is no text" in mascon("status", socket=s.socket)[1]


main([check_without_a_server_says_file_line_and_reason,
      a_new_directory_checks_tests_and_lints,
      check_and_diff_ask_the_server_when_there_is_one,
      an_open_reply_stays_with_its_generation_and_broken_ones_never_serve,
      verbs_answer_with_every_vm_wedged,
      an_error_of_bytes_that_are_no_text_is_told])
