"""The scripts of examples/, each run in a server as its head says (router_small: test_models.py)."""
import json
import os
import shutil
import subprocess
import tempfile
import time

from mascon import MASCON, Server, at_once, main

# Says the text of `answer` in ids, then ends; once its prompt has grown, that of `retry`.
SCRIPTED = """
local S = { api = 1, kind = "sampler" }
local answer, retry, short = { %s }, { %s }, %d
function S.chain(_, want) return { temperature = want.temperature, keep = 8 } end
function S.pick(_, seq)
  local say = seq.n_prompt <= short and answer or retry
  return say[seq.done + 1] or %d
end
return S
"""


class Example:
    """A server with one example copied into a policy directory of its own."""

    def __init__(self, path, init, *flags, **files):
        self.dir = tempfile.mkdtemp(prefix="mascon-policies-")
        os.mkdir(os.path.join(self.dir, "routes"))
        shutil.copy("policies/routes/openai.lua", os.path.join(self.dir, "routes"))
        shutil.copy("examples/" + path, os.path.join(self.dir, os.path.dirname(path)))
        self.write("init.lua", init)
        for name, text in files.items():
            self.write(name + ".lua", text)
        self.flags = flags

    def write(self, name, text):
        with open(os.path.join(self.dir, name), "w") as f:
            f.write(text)

    def __enter__(self):
        self.server = Server("--no-watch", *self.flags, policies=self.dir)
        return self.server.__enter__()

    def __exit__(self, *e):
        self.server.__exit__(*e)
        shutil.rmtree(self.dir, ignore_errors=True)


def each_passes_its_own_tests():
    for folder in ("examples", "examples/routes"):
        for name in sorted(os.listdir(folder)):
            if not name.endswith(".lua") or "mc.tensor" in open(f"{folder}/{name}").read():
                continue
            if 'api = 1' not in open(f"{folder}/{name}").read():
                continue
            for verb in ("check", "test"):
                p = subprocess.run([MASCON, "policy", verb, f"{folder}/{name}"],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                assert p.returncode == 0, (name, p.stdout.decode())


# ---- schedulers -------------------------------------------------------------------------------

SCHEDULERS = ["first", "share", "deadline", "chunked", "swap", "draft", "prefix"]


def schedulers_are_short_and_serve_in_a_pool_too_small():
    body = {"prompt": "Once upon a time " * 12, "max_tokens": 60, "temperature": 0,
            "ignore_eos": True}
    want = None
    for name in SCHEDULERS:
        text = open(f"examples/sched_{name}.lua").read()
        assert text[:text.index("function P.tests")].count("\n") < 40, name
        init = f'return {{ scheduler = "sched_{name}", routes = {{ "openai" }} }}'
        # 6 pages of tiny-llama in bf16, for eight sequences that want 2 or 3 each
        with Example(f"sched_{name}.lua", init, "--kv-memory", str(6 * 65536)) as s:
            got = [d for _, d in at_once(
                [lambda: s.post("/v1/completions", body)] * 8)]
            texts = {d["choices"][0]["text"] for d in got}
            assert len(texts) == 1 and (want is None or texts == want), (name, texts)
            want = texts
            assert s.metric("mascon_plan_fallback_total") == 0, name


# ---- the cache --------------------------------------------------------------------------------

def a_cache_policy_keeps_what_was_of_use():
    def prompt(i):
        return [(i * 7919 + k * 31) % 1400 + 10 for k in range(200)]

    def cached(s, i):
        status, d = s.post("/v1/completions", {"prompt": prompt(i), "max_tokens": 2,
                                               "temperature": 0, "ignore_eos": True})
        assert status == 200, d
        s.idle(30)
        return d["usage"]["prompt_tokens_details"]["cached_tokens"]

    text = open("examples/cache_hits.lua").read()
    assert text.count("\n") < 40
    got = {}
    # fails only in service: the times of made-up blocks are whole seconds
    late = """return { api = 1, kind = "cache", keep = function(blocks)
      for _, b in blocks:all() do b.score = b.t_used % 1 > 0 and 0 / 0 or 1 end end }"""
    for name in "oldest", "cache_hits", "late":
        init = 'return { %s routes = { "openai" } }' % (
            "" if name == "oldest" else f'cache = "{name}",')
        with Example("cache_hits.lua", init, "--kv-memory", str(8 * 65536), late=late) as s:
            assert cached(s, 1) == 0 and cached(s, 1) == 192
            for i in range(2, 6):
                assert cached(s, i) == 0
            got[name] = cached(s, 1)
            failed = s.metric("mascon_keep_fallback_total")
            assert (failed > 0) == (name == "late"), (name, failed)
            assert name != "late" or "a score is a number, not" in s.log()
    assert got == {"oldest": 0, "cache_hits": 192, "late": 0}, got


# ---- tenant_quota -----------------------------------------------------------------------------

def tenants_have_their_plans():
    keys = tempfile.NamedTemporaryFile("w")
    keys.write("key-of-acme acme\nkey-of-other other\n")
    keys.flush()
    init = """return { router = "tenant_quota", routes = { "openai" }, opts = { tenant_quota = {
      tenants = { acme = "paid" },
      plans = { paid = { rate = 50, burst = 50, tokens = 600, lane = 2 } } } } }"""
    with Example("tenant_quota.lua", init, "--api-key-file", keys.name) as s:
        def ask(tenant, n=2):
            status, headers, data = s.request("POST", "/v1/completions", {
                "prompt": "Once", "max_tokens": n, "ignore_eos": True},
                {"authorization": "Bearer key-of-" + tenant})
            return status, headers, json.loads(data)
        got = [ask("other")[0] for _ in range(6)]
        assert got == [200] * 5 + [429], got
        status, headers, a = ask("other")
        assert status == 429 and int(headers["retry-after-ms"]) > 0, headers
        assert "over your requests: try again in" in a["error"]["message"], a
        assert ask("acme")[0] == 200
        status, _, a = ask("acme", 1000)
        assert status == 413 and "1001 tokens; your plan has 600" in a["error"]["message"], a
        assert ask("acme", 500)[0] == 200
        status, headers, a = ask("acme", 500)
        assert status == 429 and 20 < int(headers["retry-after"]) <= 60, (headers, a)
        assert s.metric("mascon_quota_refused_total", 'tenant="other",what="requests"') == 2
        assert s.metric("mascon_quota_refused_total", 'tenant="acme",what="tokens"') == 1


def plans_survive_many_reloads():
    """The quota's own tests run at each, several times, and take from nobody's buckets."""
    init = "return { router = 'tenant_quota', routes = { 'openai' } }"
    with Example("tenant_quota.lua", init) as s:
        for _ in range(5):
            p = subprocess.run([MASCON, "reload", "--socket", s.socket], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT)
            assert p.returncode == 0, p.stdout.decode()
        assert s.metric("mascon_quota_refused_total") == 0


# ---- json_retry -------------------------------------------------------------------------------

def json_is_mended_or_asked_for_again():
    with Server() as s:
        def ids(text):
            return s.post("/v1/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]
        def scripted(answer, retry, prompt):
            return SCRIPTED % (",".join(map(str, ids(answer))), ",".join(map(str, ids(retry))),
                               len(ids(prompt)) + 4, eos)
        eos = json.load(open("tests/models/tiny-llama/config.json"))["eos_token_id"]
        eos = eos[0] if isinstance(eos, list) else eos
        prompt = "A cat as JSON:"
        mended = scripted('Sure: {"name": "Tom", "age": 3, ', "", prompt)
        again = scripted('{"name": 7, "age": 3}', '{"name": "Tom", "age": 3}', prompt)
        never = scripted("I will not.", "I will not.", prompt)
    fields = {"name": "string", "age": "number"}
    init = 'return { sampler = "scripted", routes = { "openai", "json_retry" } }'
    for text, tries in ((mended, 1), (again, 2), (never, None)):
        with Example("routes/json_retry.lua", init, scripted=text) as s:
            status, a = s.post("/v1/json", {"prompt": prompt, "fields": fields, "tries": 3})
            if tries:
                assert status == 200 and a["value"] == {"name": "Tom", "age": 3}, a
                assert a["tries"] == tries, a
            else:
                assert status == 500 and "there is no JSON" in a["error"]["message"], a


# ---- warmer -----------------------------------------------------------------------------------

def warm_prompts_are_read_from_the_cache():
    head = "Once upon a time there was a little girl who lived in a house by the sea. " * 12
    init = """return { routes = { "openai", "warmer" },
      opts = { warmer = { every = 0.2, prompts = { %s } } } }""" % json.dumps(head)
    with Example("routes/warmer.lua", init) as s:
        until = time.monotonic() + 20
        rows = [{"runs": 0}]
        while rows[0]["runs"] < 2:
            assert time.monotonic() < until, rows
            time.sleep(0.05)
            rows = json.loads(s.get("/v1/warm")[2])
        assert len(rows) == 1 and rows[0]["cached"] >= rows[0]["tokens"] - 64 > 0, rows
        before = s.metric("mascon_prompt_tokens_cached_total")
        status, a = s.post("/v1/completions", {"prompt": head + "Then", "max_tokens": 2})
        cached = a["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert status == 200 and cached >= 64 and cached % 64 == 0, a["usage"]
        assert s.metric("mascon_prompt_tokens_cached_total") >= before + cached


# ---- classify ---------------------------------------------------------------------------------

def labels_are_decided_token_by_token():
    init = 'return { routes = { "openai", "classify" } }'
    with Example("routes/classify.lua", init) as s:
        def ask(labels, **more):
            return s.post("/v1/classify", {"text": "The dog ran to the park.", "labels": labels,
                                           **more})
        status, a = ask(["positive", "negative"])
        assert status == 200 and a["label"] in ("positive", "negative") and a["steps"] >= 1, a
        assert a["logprob"] < 0 and ask(["positive", "negative"])[1] == a
        # what the model finds likeliest among them, by its own logprobs
        labels = ["dog", "zebra", "Once upon"]
        prompt = "The dog ran to the park.\nLabel (%s):" % ", ".join(labels)
        def score(label):
            a = s.post("/v1/completions", {"prompt": prompt + " " + label, "max_tokens": 0,
                                           "echo": True, "logprobs": 0})[1]
            n = len(s.post("/v1/tokenize", {"prompt": prompt})[1]["tokens"])
            return a["choices"][0]["logprobs"]["token_logprobs"][n]
        first = {label: score(label) for label in labels}
        status, a = ask(labels)
        assert status == 200 and a["label"] == max(first, key=first.get), (a, first)
        assert abs(a["logprob"] - max(first.values())) < 0.02, (a, first)
        # labels that begin alike take more steps; one in another too
        status, a = ask(["in the park", "in the parking lot"])
        assert status == 200 and a["steps"] > 1, a
        for wrong in (["one"], ["a", 5], ["a", ""], "ab"):
            assert ask(wrong)[0] == 400
        s.idle()


# ---- sampler_ab -------------------------------------------------------------------------------

def arms_are_counted_and_a_seed_stays_in_its_arm():
    init = """return { sampler = "sampler_ab", routes = { "openai" },
      opts = { sampler_ab = { share = 0.5, b = { temperature = 0 } } } }"""
    with Example("sampler_ab.lua", init) as s, Server() as plain:
        def ask(server, seed, temperature=1.5):
            a = server.post("/v1/completions", {"prompt": "Once upon a", "max_tokens": 8,
                            "temperature": temperature, "seed": seed, "ignore_eos": True})[1]
            return a["choices"][0]["text"]
        texts = at_once([lambda k=k: ask(s, k) for k in range(40)])
        a, b = (s.metric("mascon_ab_sequences_total", f'arm="{arm}"') for arm in "ab")
        assert a + b == 40 and 8 <= b <= 32, (a, b)
        greedy = ask(plain, 1, 0)
        assert sum(t == greedy for t in texts) >= b
        others = [k for k in range(40) if texts[k] != greedy][:3]
        assert [ask(plain, k) for k in others] == [texts[k] for k in others]
        assert [ask(s, k) for k in range(4)] == texts[:4]
        def mean(arm):
            return (s.metric("mascon_ab_token_p_sum", f'arm="{arm}"')
                    / s.metric("mascon_ab_token_p_count", f'arm="{arm}"'))
        assert s.metric("mascon_ab_token_p_count", 'arm="b"') >= 8 * b
        assert mean("b") > mean("a"), (mean("a"), mean("b"))


if __name__ == "__main__":
    main([v for v in list(globals().values())
          if callable(v) and getattr(v, "__module__", "") == "__main__" and v is not Example])
