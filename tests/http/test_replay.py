"""Recordings of a server, and other schedulers simulated on them: orders that turn round, lanes
that starve, what is kept and what is not; deadlines and weights that policies see."""
import json
import os
import subprocess
import tempfile
import threading
import time

from mascon import MASCON, Server, at_once, main

REVERSED = """return { api = 1, kind = "scheduler", plan = function(view, plan)
  for _, s in view:running() do plan:decode(s) end
  for _, s in view:waiting(nil, "youngest") do plan:prefill(s, 512) end
end }"""
ONE_LANE = """return { api = 1, kind = "scheduler", plan = function(view, plan)
  for _, s in view:running() do plan:decode(s) end
  for _, s in view:waiting() do if s.lane == 0 then plan:prefill(s, 512) end end
end }"""


def write(directory, **files):
    for name, text in files.items():
        with open(os.path.join(directory, name + ".lua"), "w") as f:
            f.write(text)


def replay(path, policy):
    """(exit status, answer)"""
    p = subprocess.run([MASCON, "replay", path, "--policy", policy, "--json"],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    assert p.stdout, p.stderr.decode()
    return p.returncode, json.loads(p.stdout)


def ask(server, n, headers=None, **more):
    body = {"model": "default", "prompt": "a secret: " + "once upon a time " * 4,
            "max_tokens": 12, "ignore_eos": True, **more}

    def job(i):
        def run():
            status, reply = server.post("/v1/completions", {**body, "max_tokens": 12 + i},
                                        headers=headers(i) if headers else None)
            assert status == 200, reply
        return run
    at_once([job(i) for i in range(n)])


def a_policy_that_reverses_the_order_reverses_the_finish_order():
    with tempfile.TemporaryDirectory(prefix="mascon-replay-") as d:
        rec = os.path.join(d, "rec")
        write(d, back=REVERSED)
        with Server("--record", rec, "--max-seqs", "1") as s:
            first = threading.Thread(target=s.post, args=("/v1/completions", {
                "model": "default", "prompt": "once", "max_tokens": 1500, "ignore_eos": True}))
            first.start()
            while not s.metric("mascon_num_requests_running"):
                time.sleep(0.01)
            ask(s, 11)
            first.join()
        size = os.path.getsize(rec)
        assert 200 < size < 100000 and os.stat(rec).st_mode & 0o777 == 0o600
        for policy in ("builtin", "scheduler", "sched_due"):
            rc, out = replay(rec, policy)
            ends = out["ends"]
            assert rc == 0 and out["replayed"]["requests"] == 12, out
            assert ends == sorted(ends), (policy, ends)
            assert out["replayed"]["tokens"] == out["recorded"]["tokens"], out
        rc, out = replay(rec, os.path.join(d, "back.lua"))
        first, *waited = out["ends"] # in order of arrival: the first ran when the others came
        assert rc == 0 and first < waited[-1], out["ends"]
        assert waited == sorted(waited, reverse=True), out["ends"]


def replays_of_live_runs_come_within_15_percent():
    """tests/golden/replay holds live runs of SmolLM2-135M (Q4_1, CPU, two threads, a busy
    machine): 24 arrivals at 3 a second, under each of the shipped schedulers."""
    for policy in ("scheduler", "sched_fair", "sched_due"):
        rc, out = replay(f"tests/golden/replay/{policy}.rec", policy)
        was, would = out["recorded"], out["replayed"]
        assert rc == 0 and was["requests"] == would["requests"] == 24, out
        for name, a, b in (("ttft", was["ttft_ms"]["mean"], would["ttft_ms"]["mean"]),
                           ("gap", was["inter_token_ms"]["mean"], would["inter_token_ms"]["mean"]),
                           ("tokens/s", was["tokens_s"], would["tokens_s"])):
            print(f"# {policy} {name}: live {a:.1f}, replayed {b:.1f}", flush=True)
            assert abs(b / a - 1) < 0.15, (policy, name, a, b)
        # steps miss their estimates as the recorded ones did, so that what differs in the tails is
        # the simulator's doing: another plan than the engine's in any of some hundred steps
        for share in ("p50", "p90", "p99"):
            for times in ("ttft_ms", "inter_token_ms"):
                a, b = was[times][share], would[times][share]
                assert abs(b / a - 1) < 0.05, (policy, times, share, a, b)


def a_policy_that_starves_is_told_before_it_is_live():
    with tempfile.TemporaryDirectory(prefix="mascon-replay-") as d:
        rec = os.path.join(d, "rec")
        write(d, one=ONE_LANE, init='return { router = "router" }')
        with Server("--record", rec, "--lane-weight", "1=4", policies=d) as s:
            ask(s, 8, lambda i: {"x-batch": "1"} if i % 2 else {})
            assert s.attach('mc.engine.set { lane_weight = "1=0.5" }')[0] == 0
            assert "outside" in s.attach('mc.engine.set { lane_weight = "9=1" }')[1] or \
                "no lane 9" in s.attach('mc.engine.set { lane_weight = "9=1" }')[1]
        rc, out = replay(rec, "sched_fair")
        assert rc == 0 and out["replayed"]["starved"] == 0, out
        write(d, views="""return { api = 1, kind = "scheduler", plan = function() end,
  tests = function(t)
    local n = 0
    for _, v in t.recorded() do
      assert(v.name == "recorded" and v.tok_cap > 0)
      t.plan(v)
      n = n + 1
    end
    t.expect(n):between(1, 256)
  end }""")
        p = subprocess.run([MASCON, "policy", "test", os.path.join(d, "views.lua"), "--views",
                            rec], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert b"1 passed, 0 failed" in p.stdout, p.stdout
        rc, out = replay(rec, os.path.join(d, "one.lua"))
        assert rc == 3 and out["replayed"]["starved"] == 4 and out["stuck"], out
        p = subprocess.run([MASCON, "policy", "check", os.path.join(d, "one.lua"), "--socket",
                            "/tmp/mascon-no-such-socket"], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE)
        assert b"starve under this scheduler" in p.stderr, p.stderr


def prompts_are_recorded_only_when_asked_and_nothing_is_written_over():
    with tempfile.TemporaryDirectory(prefix="mascon-replay-") as d:
        sizes = []
        for name, flags in (("a", []), ("b", ["--record-tokens"])):
            rec = os.path.join(d, name)
            with Server("--record", rec, *flags) as s:
                ask(s, 2, prompt=os.urandom(200).hex())
            sizes.append(os.path.getsize(rec))
        assert sizes[1] > sizes[0] + 100, sizes
        p = subprocess.run([MASCON, "serve", "tests/models/tiny-llama", "--port", "0",
                            "--socket", os.path.join(d, "s"), "--record",
                            os.path.join(d, "a")], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, timeout=60)
        assert p.returncode == 1 and b"is there already" in p.stdout, p.stdout
        with open(os.path.join(d, "a"), "r+b") as f:
            f.truncate(sizes[0] // 2)
        p = subprocess.run([MASCON, "replay", os.path.join(d, "init.lua"), "--policy",
                            "builtin"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert p.returncode == 1


def a_scheduler_sees_weights_dues_and_what_steps_take():
    with tempfile.TemporaryDirectory(prefix="mascon-replay-") as d:
        write(d, see="""local P = { api = 1, kind = "scheduler" }
function P.plan(view, plan)
  for _, s in view:running() do
    if s.due_first > 0 and s.n_gen == 30 then
      mc.log.warn("seen", { due = s.due_first - s.t_arrive, slo = s.slo_token,
        base = view.decode.us_base + view.decode.us_row, dev = view.dev_us, group = s.group })
      for _, l in view:lanes() do mc.log.warn("lane", { id = l.id, weight = l.weight }) end
    end
    plan:decode(s)
  end
  for _, s in view:waiting() do plan:prefill(s, 512) end
end
return P""", r="""return { api = 1, kind = "router", route = function(req)
  return { lane = 1, due_first = 0.5, slo_token = 0.25 } end }""",
              init='return { scheduler = "see", router = "r" }')
        with Server("--lane-weight", "1=3", policies=d) as s:
            ask(s, 1, max_tokens=60, prompt="x" * 400)
            status, _ = s.post("/v1/completions", {"model": "default", "prompt": "y" * 400,
                                                   "max_tokens": 60, "ignore_eos": True})
            assert status == 200
            log = s.log()
            assert "slo=0.25" in log and "id=1 weight=3" in log.replace("weight=3 id=1",
                                                                        "id=1 weight=3"), log
            seen = [line for line in log.splitlines() if "seen" in line][-1]
            fields = dict(p.split("=", 1) for p in seen.split() if "=" in p)
            assert 0.4 < float(fields["due"]) < 0.6, seen
            assert float(fields["base"]) > 0 and float(fields["dev"]) > 0, seen
            assert float(fields["group"]) > 0, seen


main([a_policy_that_reverses_the_order_reverses_the_finish_order,
      replays_of_live_runs_come_within_15_percent,
      a_policy_that_starves_is_told_before_it_is_live,
      prompts_are_recorded_only_when_asked_and_nothing_is_written_over,
      a_scheduler_sees_weights_dues_and_what_steps_take])
