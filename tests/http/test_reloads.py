"""Reload after reload under eight greedy streams: no request is lost, each answer is to the byte what
it was alone, memory stays flat, and generations go with their last request.

LONG=1 in the environment makes ten thousand of them."""
import os
import tempfile
import threading

from mascon import SANITIZED, Server, Skip, main

TIMES = 10_000 if os.environ.get("LONG") else 40
STREAMS = 8
BODY = {"temperature": 0, "max_tokens": 60, "ignore_eos": True}


def rss_kb(server):
    for line in open(f"/proc/{server.process.pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1])


def ask(server, i):
    status, reply = server.post("/v1/completions", {**BODY, "prompt": f"Once upon a time {i}"},
                                timeout=300)
    assert status == 200, reply
    return reply["choices"][0]["text"]


def reloads_under_load_change_nothing():
    if SANITIZED:
        raise Skip("it measures memory")
    with tempfile.TemporaryDirectory() as d:
        os.mkdir(d + "/routes")
        big = "".join(f"local function unused_{i}() return {i} end\n" for i in range(0, 2500))
        big = "".join(f"do {line.strip()} end\n" for line in big.splitlines())  # 100 KB
        with open(d + "/routes/big.lua", "w") as f:
            f.write(big + 'return { api = 1, kind = "routes", ["GET /big"] = function(_, res) '
                    "res:json { ok = true } end }\n")
        with open(d + "/init.lua", "w") as f:
            f.write('return { scheduler = "sched_fair", routes = { "openai", "big" } }\n')
        with Server("--no-watch", "--kv-memory", "2M", policies=d) as server:
            want = [ask(server, i) for i in range(STREAMS)]
            stop, wrong, answered = threading.Event(), [], [0]

            def client(i):
                while not stop.is_set():
                    try:
                        got = ask(server, i)
                    except Exception as e:  # told at the end
                        wrong.append(repr(e))
                        return
                    if got != want[i]:
                        wrong.append((i, got))
                    answered[0] += 1

            threads = [threading.Thread(target=client, args=(i,)) for i in range(STREAMS)]
            for t in threads:
                t.start()
            seen = []
            for part in range(4):
                status, out = server.attach(
                    f"for i = 1, {TIMES // 4} do assert(mc.policy.reload()) end "
                    "return #mc.policy.list().generations", timeout=36000)
                assert status == 0 and int(out) <= 3, out
                seen.append(rss_kb(server))
            stop.set()
            for t in threads:
                t.join()
            assert not wrong, (len(wrong), wrong[:2])
            assert answered[0] > STREAMS and server.get("/big")[0] == 200
            print(f"# {TIMES} reloads, {answered[0]} answers, RSS {seen} KB", flush=True)
            # the first quarter warms up: pages of the pool, VMs' heaps
            assert seen[-1] < max(seen[:2]) * (1.05 if TIMES > 1000 else 1.15), seen
            assert int(server.attach("mc.engine.status().generation")[1]) > TIMES
            server.idle()


main([reloads_under_load_change_nothing])
