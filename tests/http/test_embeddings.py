"""Embeddings beside rows that transformers computed; forks and what they run again; the steering
example; what a sequence goes on from."""
import base64
import json
import math
import re
import shutil
import struct
import subprocess
import tempfile

from mascon import MASCON, Server, main

GOLDEN = "tests/models/tiny-llama/golden/layers.safetensors"
server = None


def golden():
    """{name: (shape, values)} of the golden rows."""
    data = open(GOLDEN, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, t in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            lo, hi = (8 + n + o for o in t["data_offsets"])
            kind = "f" if t["dtype"] == "F32" else "i"
            out[name] = t["shape"], struct.unpack(f"<{(hi - lo) // 4}{kind}", data[lo:hi])
    return out


def unit(v):
    length = math.sqrt(sum(x * x for x in v))
    return [x / length for x in v]


def expected():
    """(ids, last, mean): vectors of length 1 out of transformers' last norm."""
    g = golden()
    (rows, cols), norm = g["p0.norm"]
    mean = [sum(norm[r * cols + c] for r in range(rows)) / rows for c in range(cols)]
    return list(g["p0.ids"][1]), unit(norm[(rows - 1) * cols:]), unit(mean)


def close(a, b, tol=1e-4):
    assert len(a) == len(b) and max(abs(x - y) for x, y in zip(a, b)) < tol, (a[:4], b[:4])


def lua(text):
    p = subprocess.run([MASCON, "attach", "--socket", server.socket, "-e", text],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    assert p.returncode == 0, p.stderr.decode()
    return p.stdout.decode().strip()


def vectors_are_those_of_transformers():
    ids, last, mean = expected()
    status, r = server.post("/v1/embeddings", {"input": ids})
    assert status == 200, r
    assert r["object"] == "list" and r["data"][0]["object"] == "embedding"
    assert r["usage"] == {"prompt_tokens": len(ids), "total_tokens": len(ids)}
    close(r["data"][0]["embedding"], last)
    status, r = server.post("/v1/embeddings", {"input": [ids, ids[:5]], "pooling": "mean",
                                               "encoding_format": "base64"})
    assert status == 200 and [d["index"] for d in r["data"]] == [0, 1], r
    got = [struct.unpack(f"<{len(mean)}f", base64.b64decode(d["embedding"])) for d in r["data"]]
    close(got[0], mean)
    close(unit(got[1]), got[1])
    server.idle()


def texts_alone_and_together_are_the_same():
    texts = ["The cat sat on the mat.", "x", "Once upon a time " * 20]
    together = server.post("/v1/embeddings", {"input": texts})[1]["data"]
    for text, d in zip(texts, together):
        close(server.post("/v1/embeddings", {"input": text})[1]["data"][0]["embedding"],
              d["embedding"], 1e-6)


def wrong_requests_say_what():
    for body, param in [({}, "input"), ({"input": []}, "input"), ({"input": [1, "x"]}, "input"),
                        ({"input": ""}, "input"), ({"input": [99999]}, "input"),
                        ({"input": [[]]}, "input"), ({"input": ["y", None]}, "input"),
                        ({"input": [[64], []]}, "input"), ({"input": [{}]}, "input"),
                        ({"input": "x", "encoding_format": "hex"}, "encoding_format"),
                        ({"input": "x", "dimensions": 3}, "dimensions"),
                        ({"input": "x", "pooling": "max"}, "pooling"),
                        ({"input": ["y", "x " * 5000]}, "input")]:
        status, r = server.post("/v1/embeddings", body)
        assert status == 400 and r["error"]["param"] == param, (body if len(str(body)) < 99 else "",
                                                                status, r)
    assert server.post("/v1/embeddings", {"input": "x", "model": "no"})[0] == 404
    server.idle()


def a_prompt_that_is_forked_is_read_once():
    """1,900 tokens, eight forks: of a parent that lives a fork runs its last token, of one that has
    ended what is in no whole page."""
    head = """local ids, out = {}, {}
      for i = 1, 1900 do ids[i] = (i * 7 + %d) %% 1500 end
      local root = assert(mc.submit { tokens = ids, limit = %d, ignore_eos = true })
      %s
      for i = 1, 8 do out[i] = assert(root:fork { seed = i, limit = 4, ignore_eos = true }) end
      for i = 1, 8 do out[i] = assert(out[i]:wait()).n end
      root:cancel()
      return table.concat(out, " ")"""
    for n, (limit, wait, most) in enumerate([(0, "", 8 * 64), (0, "root:wait()", 8 * 64),
                                             (400, "root:next()", 16)]):
        before = server.metric("mascon_prompt_tokens_total")
        assert lua(head % (n, limit, wait)) == "4 4 4 4 4 4 4 4"
        ran = server.metric("mascon_prompt_tokens_total") - before
        assert 1900 <= ran <= 1900 + most, (n, ran)
    server.idle()


def the_best_of_n_reads_its_prompt_once():
    with tempfile.TemporaryDirectory() as d:
        shutil.copytree("policies", d, dirs_exist_ok=True)
        with open(d + "/init.lua", "w") as f:
            f.write('return { routes = { "openai", "best" } }')
        with Server("--no-watch", policies=d) as s:
            prompt = "Once upon a time " * 20
            n = s.post("/v1/tokenize", {"prompt": prompt})[1]["count"]
            status, r = s.post("/v1/best", {"prompt": prompt, "n": 8})
            assert status == 200 and r["of"] == 8 and r["usage"]["prompt"] == n, (n, r)
            assert s.metric("mascon_prompt_tokens_total") <= n + 8 * 64
            assert s.post("/v1/best", {"prompt": prompt, "n": 17})[0] == 400
            s.idle()


def a_text_goes_on_behind_a_sequence():
    got = lua("""local s = assert(mc.submit { prompt = "Once upon", limit = 3, temperature = 0,
        ignore_eos = true })
      s:wait()
      local more = assert(s:append(" and then", { limit = 0 }))
      more:wait()
      return mc.vocab.decode(more.ids)""")
    one = lua("""local s = assert(mc.submit { prompt = "Once upon", limit = 3, temperature = 0,
        ignore_eos = true })
      return "Once upon" .. s:wait().text .. " and then" """)
    assert got.endswith(one), (got, one)


def the_steering_example_runs():
    p = subprocess.run([MASCON, "attach", "--socket", server.socket, "examples/steer.lua"],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    out = p.stdout.decode()
    texts = dict(re.findall(r"^(0|2|-2)\t(.*?)(?=^-?\d\t|\Z)", out, re.M | re.S))
    assert p.returncode == 0 and len(texts) == 3, out
    plain = lua("return mc.submit { prompt = 'My week was', limit = 24, temperature = 0 }:wait().text")
    assert plain.strip() == texts["0"].strip(), (plain, texts)
    assert texts["2"] != texts["0"] and texts["-2"] != texts["2"], texts
    server.idle()


if __name__ == "__main__":
    with Server("--kv", "f32") as server:
        main([vectors_are_those_of_transformers, texts_alone_and_together_are_the_same,
              wrong_requests_say_what, a_prompt_that_is_forked_is_read_once,
              the_best_of_n_reads_its_prompt_once, a_text_goes_on_behind_a_sequence, the_steering_example_runs])
