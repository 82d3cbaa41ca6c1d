"""Several models in one server: names, memory, requests, routing, verbs, metrics, generations."""
import atexit
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time

from mascon import MASCON, Server, at_once, main

LARGE, SMALL = "tests/models/tiny-llama", "tests/models/tiny-qwen3-moe"

INIT = """return { router = "router_small", scheduler = "sched",
  opts = { router_small = { small = "small", bytes = 40 } } }"""
SCHED = open("policies/scheduler.lua").read()

server = None
policies = None


def save(name, text):
    new = os.path.join(policies, ".new")
    with open(new, "w") as f:
        f.write(text)
    os.rename(new, os.path.join(policies, name))


def ask(prompt, **more):
    status, headers, data = server.request("POST", "/v1/completions", {
        "prompt": prompt, "max_tokens": 12, "temperature": 0, **more})
    return status, json.loads(data)


def text_of(prompt, **more):
    status, a = ask(prompt, **more)
    assert status == 200, a
    return a["model"], a["choices"][0]["text"]


def verb(*words):
    p = subprocess.run([MASCON, *words, "--socket", server.socket, "--json"],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    return p.returncode, json.loads(p.stdout) if p.returncode == 0 else p.stdout.decode()


def alone(model, prompt):
    with Server(model=model) as one:
        a = one.post("/v1/completions", {"prompt": prompt, "max_tokens": 12, "temperature": 0})[1]
        return a["choices"][0]["text"]


# ---- requests -----------------------------------------------------------------------------

def each_model_answers_as_it_would_alone():
    prompt = "Once upon a time there was a little girl who"
    assert text_of(prompt, model="large") == ("large", alone(LARGE, prompt))
    assert text_of(prompt, model="small") == ("small", alone(SMALL, prompt))
    assert text_of(prompt)[0] == text_of(prompt, model="default")[0] == "large"


def all_models_are_listed():
    a = json.loads(server.get("/v1/models")[2])
    assert [m["id"] for m in a["data"]] == ["large", "small"], a
    assert json.loads(server.get("/v1/models/small")[2])["id"] == "small"
    assert server.get("/v1/models/medium")[0] == 404


def an_unknown_model_is_404_by_name():
    status, a = ask("x", model="medium")
    assert status == 404 and a["error"]["code"] == "model_not_found", a
    assert "medium" in a["error"]["message"], a


def a_router_sends_short_prompts_to_the_small_model():
    assert text_of("Once")[0] == "small"
    assert text_of("Once", model="large")[0] == "large"
    long = "x" * 100
    assert text_of(long)[0] == "large"
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    status, a = server.post("/v1/chat/completions", chat)
    assert (status == 200 and a["model"] == "small") or "chat template" in json.dumps(a), a
    events = server.stream("/v1/completions", {"prompt": "Once", "max_tokens": 4})
    assert all(e["model"] == "small" for e in events)


def both_models_stream_at_once():
    def run(model):
        events = server.stream("/v1/completions", {
            "prompt": "Once upon a time there was a little girl who", "model": model,
            "max_tokens": 40, "temperature": 0, "ignore_eos": True})
        return "".join(c["text"] for e in events for c in e["choices"])
    texts = at_once([lambda m=m: run(m) for m in ["large", "small"] * 4])
    assert len(set(texts[0::2])) == 1 and len(set(texts[1::2])) == 1
    assert texts[0] != texts[1]
    server.idle()


def tokens_are_each_models_own():
    def count(model):
        return server.post("/v1/tokenize", {"prompt": "Once upon a time", "model": model})[1]
    for model in ("large", "small"):
        ids = count(model)["tokens"]
        back = server.post("/v1/detokenize", {"tokens": ids, "model": model})[1]["prompt"]
        assert back.endswith("Once upon a time"), back


# ---- verbs, sessions, metrics -------------------------------------------------------------

def verbs_name_the_model():
    rc, st = verb("status")
    assert rc == 0 and [m["model"] for m in st["models"]] == ["large", "small"], st
    assert st["state"] == "ok" and st["model"] == "large, small"
    assert verb("status", "small")[1]["model"] == "small"
    assert verb("kv", "small")[1]["model"] == "small"
    assert [r["model"] for r in verb("kv")[1]] == ["large", "small"]
    rc, text = verb("stats", "medium")
    assert rc == 1 and "medium" in text and "mascon status" in text
    p = subprocess.run([MASCON, "status", "--socket", server.socket], stdout=subprocess.PIPE)
    lines = p.stdout.decode().split("models\n")[1].splitlines()  # a table, a row each
    assert [line.split()[0] for line in lines[:3]] == ["model", "large", "small"], lines
    assert verb("stats")[1]["steps_total"] == (verb("stats", "small")[1]["steps_total"]
                                               + verb("stats", "large")[1]["steps_total"])


def sequences_have_ids_that_cancel_the_right_one():
    out = []

    def run(model):
        out.append((model, ask("Once upon a time there was a little girl who", model=model,
                               max_tokens=2000, ignore_eos=True)))
    threads = [threading.Thread(target=run, args=(m,)) for m in ("large", "small")]
    for t in threads:
        t.start()
    until = time.monotonic() + 20
    rows = []
    while len(rows) < 2 and time.monotonic() < until:
        rows = [r for r in verb("seqs")[1] if r["state"] == "decode"]
    by = {r["model"]: r["id"] for r in rows}
    assert set(by) == {"large", "small"}, rows
    assert by["small"].startswith("small/"), by
    assert verb("cancel", by["small"])[1] == {"cancelled": 1}
    assert verb("cancel", by["large"])[1] == {"cancelled": 1}
    for t in threads:
        t.join()
    assert all(status >= 400 for _, (status, _) in out), out
    server.idle()


def metrics_have_each_models_labels():
    before = server.metric("mascon_generation_tokens_total", 'model_name="small",engine="1"')
    text_of("Once")
    after = server.metric("mascon_generation_tokens_total", 'model_name="small",engine="1"')
    assert after > before
    page = server.get("/metrics")[2].decode()
    assert page.count("# TYPE mascon_num_requests_running ") == 1
    assert server.metric("mascon_kv_pages", 'model_name="large",engine="0"') > 0


def a_session_speaks_with_each():
    rc, out = server.attach('mc.submit{prompt="Once", model="small", limit=3}.model')
    assert (rc, out.strip()) == (0, "small"), out
    rc, out = server.attach('#mc.engine.models() .. mc.engine.model("default").id')
    assert out.strip() == "2large", out
    rc, out = server.attach('mc.submit{prompt="x", model="medium"}')
    assert "medium" in out


# ---- memory -------------------------------------------------------------------------------

def memory_is_split():
    def pages(flag):
        with Server("large=" + LARGE, "small=" + SMALL, *flag, model="third=" + LARGE) as s:
            return [s.metric("mascon_kv_pages", f'model_name="{m}"')
                    for m in ("third", "large", "small")]
    even = pages(["--kv-memory", "24M"])
    own = pages(["--kv-memory", "third=8M,large=4M,small=8M"])
    assert even[0] == even[1] == own[0], (even, own)
    assert even[2] == own[2] and abs(own[1] * 2 - own[0]) <= 2, (even, own)


def wrong_names_are_refused_at_once():
    for args, word in ((["a=" + LARGE, "a=" + SMALL], "'a'"), ([LARGE, LARGE], "tiny-llama"),
                       (["a=" + LARGE, "b=" + SMALL, "--name", "x"], "--name"),
                       (["a=" + LARGE, "b=" + SMALL, "--kv-memory", "a=1M"], "'b'"),
                       (["a=" + LARGE, "--kv-memory", "a=1M,c=1M"], "'c'"),
                       (["a=" + LARGE, "--kv-memory", "a=much"], "much")):
        p = subprocess.run([MASCON, "serve", *args, "--port", "0"], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, timeout=20)
        assert p.returncode != 0 and word in p.stdout.decode(), (args, p.stdout)


# ---- generations --------------------------------------------------------------------------

def generations():
    return [m["generation"] for m in verb("status")[1]["models"]]


def a_generation_serves_all_models():
    before = generations()
    assert before[0] == before[1], before
    save("sched.lua", SCHED + "-- edited\n")
    rc, out = verb("reload")
    assert rc == 0, out
    text_of("Once", model="large")
    text_of("Once", model="small")
    until = time.monotonic() + 5
    while generations() != [out["generation"]] * 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert generations() == [out["generation"]] * 2, generations()
    rc, out = verb("rollback")
    until = time.monotonic() + 5
    while generations() != before and time.monotonic() < until:
        time.sleep(0.05)
    assert generations() == before, (generations(), before)


def what_fails_with_one_model_goes_live_with_none():
    before = generations()
    save("sched.lua", SCHED.replace(
        "function P.init(opts)",
        "function P.init(opts)\n  if mc.model == 'small' then error('not for small') end"))
    rc, out = verb("reload")
    assert rc == 1 and "small" in out and "not for small" in out, out
    assert generations() == before
    save("sched.lua", SCHED)
    assert verb("reload")[0] == 0


def one_that_fails_with_one_model_rolls_back_with_all():
    save("sched.lua", SCHED)
    verb("reload")
    text_of("Once", model="large")
    text_of("Once", model="small")
    until = time.monotonic() + 5
    while len(set(generations())) > 1 and time.monotonic() < until:
        time.sleep(0.05)
    before = generations()
    # a plan that fails as soon as this one prompt runs: no dry run has such a one
    save("sched.lua", SCHED.replace(
        "function P.plan(view, plan)",
        "function P.plan(view, plan)\n"
        "  for _, r in view:running() do if r.n_prompt == 77 then error('77') end end"))
    assert verb("reload")[0] == 0
    text_of("Once", model="large")
    text_of("Once", model="small")
    text_of([5] * 77, model="small")
    until = time.monotonic() + 10
    while generations() != before and time.monotonic() < until:
        time.sleep(0.05)
    assert generations() == before, (generations(), before)
    rows = {m["model"]: m for m in verb("policy", "list")[1]["models"]}
    assert "77" in rows["small"]["error"] and "error" not in rows["large"], rows


if __name__ == "__main__":
    policies = tempfile.mkdtemp(prefix="mascon-policies-")
    atexit.register(shutil.rmtree, policies, ignore_errors=True)
    save("init.lua", INIT)
    save("sched.lua", SCHED)
    shutil.copy("examples/router_small.lua", policies)
    with Server("small=" + SMALL, "--no-watch", model="large=" + LARGE,
                policies=policies) as server:
        main([v for v in list(globals().values())
              if callable(v) and getattr(v, "__module__", "") == "__main__"
              and v.__name__ not in ("save", "ask", "text_of", "verb", "alone", "generations")])
