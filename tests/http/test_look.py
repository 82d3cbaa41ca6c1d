"""What an operator looks at: the table of verbs as socket methods, words and Lua functions; why a
request waited; top."""
import json
import re
import subprocess
import threading
import time

from mascon import MASCON, Server, main

server = None


def run(*args, timeout=30):
    p = subprocess.run([MASCON, args[0], "--socket", server.socket, *args[1:]],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def ask(limit, name, **more):
    return server.request("POST", "/v1/completions",
                          {"prompt": "Once", "max_tokens": limit, "ignore_eos": True, **more},
                          headers={"x-request-id": name})


def each_verb_is_a_word_and_a_function():
    out = subprocess.run([MASCON, "help"], stdout=subprocess.PIPE).stdout.decode()
    words = re.findall(r"^  (\w+)", out.split("of a running server:")[1], re.M)
    assert {"status", "seqs", "cancel", "drain", "set", "log", "reload", "rollback"} <= set(
        words), words
    for word in words + ["why", "top", "policy", "kv"]:
        status, out, _ = run(word, "--help")
        assert status == 0 and word in out, (word, out)
    status, out = server.attach("""
        local list = {}
        for _, f in ipairs { mc.engine.status, mc.engine.stats, mc.engine.models, mc.seqs, mc.why,
            mc.top, mc.cancel, mc.engine.drain, mc.engine.set, mc.log.level, mc.policy.reload,
            mc.policy.rollback, mc.policy.list, mc.kv.stats } do list[#list + 1] = type(f) end
        return #list .. " " .. list[1]""")
    assert (status, out) == (0, "14 function\n"), out
    for word in ("status", "stats", "kv", "seqs", "log", "top"):
        status, out, err = run(word, "--json")
        assert status == 0 and err == "", (word, err)
        json.loads(out)
    assert "did you mean 'status'" in run("statu")[2]
    status, _, err = run("seqs", "tiny-llama")  # which takes none
    assert status == 2 and "too many: 'tiny-llama'" in err, err
    status, _, err = run("drain", "5x")
    assert status == 1 and "seconds must be a number from 0 to 86400" in err, err


def prompts_are_pinned_by_word_and_from_lua():
    prompt = "Once upon a time there was a small house by the sea. " * 12
    status, out = server.attach(f"""
        local p = {prompt!r}
        local k = assert(mc.kv.pin {{ prompt = p, ttl = 60 }})
        local row = mc.kv.pins()[1]
        local n = mc.kv.cached(p)
        assert(row.id == k.id and row.seconds > 50 and n == k:tokens() and k:bytes() > 0)
        local other, err = mc.kv.pin {{ prompt = "short" }}
        k:drop()
        return n, #mc.kv.pins(), err.code""")
    assert status == 0, out
    n, left, code = out.split()
    assert int(n) >= 64 and left == "0" and code == "not_found", out
    pin = json.loads(run("pin", "--json", prompt)[1])
    assert pin["tokens"] == int(n), pin
    assert str(pin["id"]) in run("pins")[1]
    assert json.loads(run("cached", "--json", prompt)[1])["cached"] == int(n)
    assert run("unpin", str(pin["id"]))[0] == 0 and run("unpin", str(pin["id"]))[0] == 1


def why_tells_a_requests_life():
    assert ask(20, "told")[0] == 200
    status, out, err = run("why", "told")
    assert status == 0, err
    lines = out.splitlines()
    assert lines[0].endswith("told  ended: length"), out
    for line, what in zip(lines[1:], ("queued", "prefill", "first token", "ended")):
        assert what in line and "(generation " in line, out
    life = json.loads(run("why", "--json", "told")[1])[0]
    assert [e["what"] for e in life["events"]] == ["queued", "prefill", "first token", "ended"]
    assert life["events"][0]["prompt"] >= 1 and life["events"][-1]["made"] == 20, life
    status, out = server.attach("local l = mc.why('told'); return l[1].events[4].what")
    assert (status, out) == (0, "ended\n")
    status, _, err = run("why", "nobody")
    assert status == 1 and "'nobody'" in err, err
    assert run("why")[0] == 2


def why_gives_the_plans_reasons():
    with Server("--max-seqs", "2", "--kv-memory", "400K") as small:
        def ask(name, n):
            small.request("POST", "/v1/completions",
                          {"prompt": "word " * n, "max_tokens": 100, "ignore_eos": True},
                          headers={"x-request-id": name})
        threads = [threading.Thread(target=ask, args=(f"r{i}", 100)) for i in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        reasons = {}
        for i in range(6):
            out = subprocess.run([MASCON, "why", "--socket", small.socket, "--json", f"r{i}"],
                                 stdout=subprocess.PIPE).stdout
            for e in json.loads(out)[0]["events"]:
                assert e.get("skipped", 0) == sum(e.get("why", {}).values()), e
                reasons.update(e.get("why", {}))
        assert "no pages" in reasons or "as many run as may" in reasons, reasons


def counters_stand_whole_in_a_column():
    status, out, err = run("stats")
    assert status == 0 and "e+" not in out, (out, err)
    assert len({line.index(line.split()[1]) for line in out.splitlines()}) == 1, out
    assert int(re.search(r"weight_bytes_read_total +(\d+)$", out, re.M).group(1)) > 5e6, out


def top_is_plain_without_a_terminal():
    over = threading.Event()

    def stay_busy():
        while not over.is_set():
            ask(1900, "busy")

    def seen(good, *words):
        """What top prints in a moment that isn't between two requests."""
        for _ in range(20):
            status, out, err = run("top", *words)
            assert status == 0 and "\x1b" not in out, err
            if good(out):
                return
        raise AssertionError(out)

    def is_busy(out):
        made = float(re.search(r"tokens/s +([\d.]+) made", out).group(1))
        return "tiny-llama: ok" in out and "busy" in out and "lane 0" in out and made > 0

    def is_busy_json(out):
        v = json.loads(out)
        return v["pages"]["held"] > 0 and v["lanes"][0]["running"] == 1 and v["seqs"]

    busy = threading.Thread(target=stay_busy)
    busy.start()
    try:
        seen(is_busy, "--every", "0.3")
        seen(is_busy_json, "--json", "--every", "0.1")
    finally:
        over.set()
        run("cancel", "busy")
        busy.join()
    for bad in (("--every", "0"), ("--n", "0"), ("--n", "3x")):
        status, _, err = run("top", *bad)
        assert status == 1 and bad[0] in err, err


def log_levels_change_while_it_runs():
    assert json.loads(run("log", "--json")[1])["all"] == "info"
    assert run("log", "http", "debug")[0] == 0
    ask(1, "logged")
    until = time.monotonic() + 5
    while "id=logged status=200" not in server.log() and time.monotonic() < until:
        time.sleep(0.05)
    assert "id=logged status=200" in server.log()
    assert json.loads(run("log", "--json")[1])["http"] == "debug"
    assert run("log", "http=info")[0] == 0
    assert json.loads(run("log", "--json")[1])["http"] == "info"
    for bad in (("http", "loud"), ("http=loud",)):
        status, _, err = run("log", *bad)
        assert status == 1 and "'loud'" in err and "warn" in err, err


if __name__ == "__main__":
    with Server() as server:
        main([each_verb_is_a_word_and_a_function, prompts_are_pinned_by_word_and_from_lua,
              why_tells_a_requests_life, counters_stand_whole_in_a_column,
              why_gives_the_plans_reasons, top_is_plain_without_a_terminal,
              log_levels_change_while_it_runs])
