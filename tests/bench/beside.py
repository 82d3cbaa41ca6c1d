#!/usr/bin/env python3
"""mascon beside llama.cpp: the same GGUF, the same threads, in one run, turn about.

    beside.py MODEL.gguf LLAMA_BIN_DIR [--threads 2] [--rounds 3] [--served 16]

LLAMA_BIN_DIR holds llama-bench and llama-server. Prints the medians of prefill (512 tokens) and
decode (64 tokens, one sequence) and their ratios; with --served N also the tokens a second that
N clients get from either server (120 tokens in, 64 out; llama-server with -fa off -b 256 -ub 256).
A foreign load on the machine hits both, since they take turns; still, only ratios count.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import threading
import time
import urllib.request

MASCON = os.environ.get("MASCON", "build/mascon")


def run_json(command):
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE,
                                     stderr=subprocess.DEVNULL).stdout)


def llama(args):
    rows = run_json([os.path.join(args.bin, "llama-bench"), "-m", args.model, "-t",
                     str(args.threads), "-p", "512", "-n", "64", "-r", "1", "-o", "json"])
    return {"prefill": next(r["avg_ts"] for r in rows if r["n_prompt"]),
            "decode": next(r["avg_ts"] for r in rows if r["n_gen"])}


def mascon(args):
    b = run_json([MASCON, "bench", args.model, "--threads", str(args.threads), "--json"])
    by_name = {r["name"]: r for r in b["rows"]}
    return {"prefill": by_name["prefill_512"]["value"], "decode": by_name["decode_1"]["value"],
            "share": by_name["decode_1"]["roof_share"], "roof": b["roof_bytes_s"]}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def served(command, port, n):
    """Tokens a second over n clients, each with its own prompt."""
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(url + "/health", timeout=1)
                urllib.request.urlopen(url + "/v1/models", timeout=1)
                ask(url, 999, 2)
                break
            except OSError:
                time.sleep(0.2)
        got = []
        threads = [threading.Thread(target=lambda i=i: got.append(ask(url, i, 64)))
                   for i in range(n)]
        t0 = time.monotonic()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return sum(got) / (time.monotonic() - t0)
    finally:
        process.terminate()
        process.wait()


def ask(url, i, tokens):
    words = " ".join(f"word{(i * 131 + k * 7) % 1000}" for k in range(40))
    body = {"model": "default", "prompt": f"{i} {words}", "max_tokens": tokens,
            "temperature": 0, "ignore_eos": True}
    r = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                               {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(r, timeout=600))["usage"]["completion_tokens"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("bin")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--served", type=int, default=0)
    args = p.parse_args()
    ours, theirs = [], []
    for _ in range(args.rounds):
        theirs.append(llama(args))
        ours.append(mascon(args))
    for what in ("prefill", "decode"):
        a = statistics.median(x[what] for x in ours)
        b = statistics.median(x[what] for x in theirs)
        print(f"{what:8} mascon {a:8.1f}  llama.cpp {b:8.1f} tokens/s  ratio {a / b:.2f}")
    print(f"decode reads its weights at "
          f"{100 * statistics.median(x['share'] for x in ours):.0f} % of the memory roof "
          f"({statistics.median(x['roof'] for x in ours) / 1e9:.1f} GB/s)")
    if args.served:
        rates = []
        for kind in ("mascon", "llama.cpp"):
            port = free_port()
            command = ([MASCON, "serve", args.model, "--threads", str(args.threads), "--port",
                        str(port), "--socket", f"/tmp/mascon-bench-{port}.sock"]
                       if kind == "mascon" else
                       [os.path.join(args.bin, "llama-server"), "-m", args.model, "-t",
                        str(args.threads), "--port", str(port), "-np", str(args.served), "-c",
                        str(256 * args.served), "-fa", "off", "-b", "256", "-ub", "256"])
            rates.append(served(command, port, args.served))
        print(f"served at {args.served}: mascon {rates[0]:.1f}  llama.cpp {rates[1]:.1f} tokens/s"
              f"  ratio {rates[0] / rates[1]:.2f}")


main()
