"""How near `mascon replay` of policy A's recording as policy B comes to a live run of B.

    tests/bench/replay_pairs.py [MODEL] [--requests 24] [--rate 3] [--rounds 3] [--tokens 48]

Each round records the same arrivals twice, live under the shipped scheduler (A) and live under B,
and replays A's recording as B; the three are beside one another as the engine saw them, without
the HTTP side of either. Prints each pair and, for each policy, the median of the rounds. The mark
is 15 %; on a machine that others use the two live runs of a pair differ by more: the last column,
B replayed from its own recording, says how much of it is the simulator's."""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "http"))
options = argparse.ArgumentParser(description=__doc__,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("model", nargs="?", default="tests/models/tiny-llama")
options.add_argument("--requests", type=int, default=24)
options.add_argument("--rate", type=float, default=3, help="arrivals a second")
options.add_argument("--rounds", type=int, default=3)
options.add_argument("--tokens", type=int, default=48)
options = options.parse_args()
sys.argv = sys.argv[:1]
from mascon import MASCON, Server  # noqa: E402 (it reads sys.argv)

POLICIES = ("scheduler", "sched_fair", "sched_due")
NUMBERS = (("first token ms", lambda side: side["ttft_ms"]["mean"]),
           ("inter-token ms", lambda side: side["inter_token_ms"]["mean"]),
           ("tokens a second", lambda side: side["tokens_s"]))


def arrivals(seed):
    """(seconds, prompt, tokens) each, the same for every policy of a round."""
    rnd, at, out = random.Random(seed), 0, []
    for _ in range(options.requests):
        at += rnd.expovariate(options.rate)
        out.append((at, "once upon a time " * rnd.randint(1, 24),
                    rnd.randint(options.tokens // 2, options.tokens)))
    return out


def live(policy, requests, path):
    """Serves them under a policy, recorded to path."""
    with tempfile.TemporaryDirectory(prefix="mascon-pairs-") as d:
        with open(d + "/init.lua", "w") as f:
            f.write(f'return {{ scheduler = "{policy}" }}\n')
        with Server("--record", path, "--no-watch", model=options.model, policies=d) as s:
            s.post("/v1/completions", {"prompt": "warm", "max_tokens": 8})
            began, threads = time.monotonic(), []
            for at, prompt, tokens in requests:
                time.sleep(max(0, began + at - time.monotonic()))
                threads.append(threading.Thread(target=s.post, args=("/v1/completions", {
                    "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}),
                    kwargs={"timeout": 600}))
                threads[-1].start()
            for t in threads:
                t.join()


def replay(path, policy):
    p = subprocess.run([MASCON, "replay", path, "--policy", policy, "--json"],
                       stdout=subprocess.PIPE, check=True)
    return json.loads(p.stdout)


def pair(policy, number, d):
    """Prints a pair; what replay gives over what B gave, for each number."""
    requests, a, b = arrivals(number), f"{d}/{policy}.{number}.a", f"{d}/{policy}.{number}.b"
    for name, path in ((("scheduler", a), (policy, b)) if number % 2 else
                       ((policy, b), ("scheduler", a))):
        live(name, requests, path)
    as_b, own = replay(a, policy), replay(b, policy)
    ratios = []
    for name, of in NUMBERS:
        was, would, self = of(own["recorded"]), of(as_b["replayed"]), of(own["replayed"])
        ratios.append(would / was)
        print(f"{policy:11} {number}  {name:15} A live {of(as_b['recorded']):9.2f}  "
              f"B live {was:9.2f}  A as B {would:9.2f} ({would / was - 1:+6.1%})  "
              f"B as B ({self / was - 1:+6.1%})", flush=True)
    return ratios


def main():
    print("load", *os.getloadavg(), flush=True)
    with tempfile.TemporaryDirectory(prefix="mascon-pairs-") as d:
        for policy in POLICIES:
            rounds = [pair(policy, i + 1, d) for i in range(options.rounds)]
            for (name, _), ratios in zip(NUMBERS, zip(*rounds)):
                print(f"{policy:11} median of {options.rounds}: {name:15} "
                      f"{statistics.median(ratios) - 1:+6.1%}", flush=True)


main()
