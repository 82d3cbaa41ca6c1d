"""mascon kv dump: the bytes of a page are the documented cast of what was stored."""
import json
import math
import os
import shutil
import struct
import subprocess
import tempfile

from families import f32, tokenizer, write_tensors
from mascon import MASCON, Server, main

D, HIDDEN, VOCAB, PAGE = 16, 32, 256, 64
# value -> e4m3: clamped to +-448, half to even, a NaN stays one
CAST = [(300, 0x79), (304, 0x7A), (447, 0x7E), (448, 0x7E), (465, 0x7E), (1000, 0x7E), (-1000, 0xFE),
        (-2 ** -10, 0x80), (2 ** -9, 0x01), (2 ** -10, 0x00), (1.001 * 2 ** -10, 0x01), (1, 0x38),
        (-1, 0xB8), (4, 0x48), (2, 0x40), (0, 0x00)]
WILD = [(math.inf, 0x7E), (-math.inf, 0xFE), (math.nan, 0x7F)] + CAST[:13]


def model(k, v, **scales):
    """A Qwen2 of one layer, whose keys and values are its biases; scales: k_scale, v_scale."""
    path = tempfile.mkdtemp(prefix="mascon-test-")
    zero = lambda *shape: ("F32", list(shape), f32([0.0] * math.prod(shape)))
    one = lambda n: ("F32", [n], f32([1.0] * n))
    at = "model.layers.0."
    some = ("F32", [VOCAB, HIDDEN], f32([((i * 7919) % 97) / 97 for i in range(VOCAB * HIDDEN)]))
    tensors = {"model.embed_tokens.weight": some, "model.norm.weight": one(HIDDEN),
               at + "input_layernorm.weight": one(HIDDEN),
               at + "post_attention_layernorm.weight": one(HIDDEN),
               at + "self_attn.q_proj.weight": zero(2 * D, HIDDEN),
               at + "self_attn.q_proj.bias": zero(2 * D),
               at + "self_attn.k_proj.weight": zero(D, HIDDEN),
               at + "self_attn.k_proj.bias": ("F32", [D], f32(k)),
               at + "self_attn.v_proj.weight": zero(D, HIDDEN),
               at + "self_attn.v_proj.bias": ("F32", [D], f32(v)),
               at + "self_attn.o_proj.weight": zero(HIDDEN, 2 * D),
               at + "mlp.gate_proj.weight": zero(32, HIDDEN), at + "mlp.up_proj.weight": zero(32, HIDDEN),
               at + "mlp.down_proj.weight": zero(HIDDEN, 32)}
    tensors |= {f"{at}self_attn.{name}": ("F32", [1], f32([x])) for name, x in scales.items()}
    write_tensors(os.path.join(path, "model.safetensors"), tensors)
    tokenizer(path)
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": VOCAB,
                   "hidden_size": HIDDEN, "intermediate_size": 32, "num_hidden_layers": 1,
                   "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": D, "hidden_act": "silu",
                   "rms_norm_eps": 1e-6, "rope_theta": 10000, "max_position_embeddings": 512,
                   "tie_word_embeddings": True, "dtype": "float32"}, f)
    return path


def dumped(path, n=3):
    """The first page after a prompt of n tokens: (answer, its bytes)."""
    with Server("--kv", "fp8", model=path) as s:
        s.post("/v1/completions", {"model": "default", "prompt": list(range(1, n + 1)), "max_tokens": 1})
        s.idle()
        run = lambda *flags: subprocess.run([MASCON, "kv", "dump", "--socket", s.socket, *flags],
                                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        d = json.loads(run("--page", "0", "--json").stdout)
        raw = run("--page", "0", "--raw").stdout
        text = run("--page", "0").stdout.decode()
        assert bytes.fromhex(d["bytes"]) == raw, d
        assert f"000000  {raw[:16].hex(' ')}\n" in text, text
        assert s.attach("return mc.kv.dump(0).bytes")[1].strip() == d["bytes"]
        for flags, says in ((("--page", "999999"), b"page 999999"), (("--page", "0", "--layer", "1"), b"layer 1"),
                            (("--page", "0", "--index", "0"), b"index 0"), ((), b"--page"),
                            (("--page", "0", "--rank", "1"), b"rank 1")):
            p = run(*flags)
            assert p.returncode and says in p.stderr, (flags, p.stderr)
    shutil.rmtree(path)
    return d, raw


def kv_dump_shows_the_cast():
    values = [x for x, _ in CAST]
    d, raw = dumped(model(values, values, k_scale=1.0, v_scale=1.0))
    want = bytes(b for _, b in CAST)
    assert d["layout"] == "fp8" and d["layers"] == 1 and d["tag"] > 0, d
    assert raw[:D] == want, raw[:D].hex()  # position 0 is not rotated
    v = raw[PAGE * D:]
    for pos in range(3):
        assert v[pos * D:(pos + 1) * D] == want, v[pos * D:(pos + 1) * D].hex()
    assert not any(v[4 * D:PAGE * D])  # what was never written is zero
    scales = struct.unpack(f"<{2 * PAGE}f", raw[2 * PAGE * D:])
    assert scales[:3] == (1,) * 3 and scales[PAGE:PAGE + 3] == (1,) * 3, scales[:4]


def kv_dump_shows_infinities_clamped_and_a_nan():
    _, raw = dumped(model([1.0] * D, [x for x, _ in WILD], k_scale=1.0, v_scale=1.0))
    assert raw[PAGE * D:PAGE * D + D] == bytes(b for _, b in WILD), raw[PAGE * D:][:D].hex()


def a_static_scale_is_used_by_every_writer():
    ones = [1.0] * D
    for scales, byte, scale in (({"k_scale": .25, "v_scale": .25}, 0x48, .25),
                                ({"k_scale": .5, "v_scale": .5}, 0x40, .5), ({}, 0x7E, 1 / 448)):
        _, raw = dumped(model(ones, ones, **scales))
        assert raw[:D] == bytes([byte]) * D, raw[:D].hex()
        got = struct.unpack("<f", raw[2 * PAGE * D:2 * PAGE * D + 4])[0]
        assert abs(got - scale) < 1e-9, got


def a_scale_that_is_none_refuses_to_start():
    for bad in (0.0, -1.0, math.nan, math.inf):
        path = model([1.0] * D, [1.0] * D, k_scale=bad, v_scale=1.0)
        p = subprocess.run([MASCON, "serve", path, "--port", "0", "--kv", "fp8", "--socket",
                            os.path.join(path, "sock")],
                           stderr=subprocess.PIPE, stdout=subprocess.PIPE, timeout=60)
        shutil.rmtree(path)
        assert p.returncode != 0 and b"k_scale" in p.stderr + p.stdout, p.stderr


def verb(s, *words):
    p = subprocess.run([MASCON, *words, "--socket", s.socket], stdout=subprocess.PIPE, check=True)
    return p.stdout


def pages(s, layers):
    """Bytes of every page that has any but zeros, all layers."""
    total = json.loads(verb(s, "kv", "--json"))["total"]
    dump = lambda i, k: verb(s, "kv", "dump", "--raw", "--page", str(i), "--layer", str(k))
    every = (b"".join(dump(i, k) for k in range(layers)) for i in range(total))
    return {page for page in every if any(page)}


def ask(s, prompt):
    d = s.post("/v1/completions", {"model": "default", "prompt": prompt, "max_tokens": 20, "temperature": 0,
                                   "ignore_eos": True, "return_token_ids": True})[1]
    s.idle(120)
    return d["choices"][0]["token_ids"], d["usage"]["prompt_tokens_details"]["cached_tokens"]


def a_pool_that_shrank_and_grew_gives_the_same_bytes_and_scales():
    made = model([i / 7 for i in range(D)], [3.0] * D, k_scale=.25, v_scale=.5)
    prompt = [7 + i % 200 for i in range(150)]
    for path, kv, layers, token in (("tests/models/tiny-llama", "fp8", 4, 2 * 2 * (32 + 4)),
                                    ("tests/models/tiny-kimi", "fp8-656", 5, 128 + 4 + 2 * 32),
                                    (made, "fp8", 1, 2 * (D + 4))):
        page = PAGE * layers * token
        with Server("--kv", kv, "--kv-memory", str(14 * page), "--max-context", "256", model=path) as s:
            answer, cached = ask(s, prompt)
            before = pages(s, layers)
            assert cached == 0 and len(before) == 3, (cached, len(before))  # the last one in part
            for i in range(4):  # their pages are all that is left in the small pool
                ask(s, [7 + (i + j * j) % 200 for j in range(190)])
            for n in 4, 14:
                verb(s, "set", f"kv_memory={n * page}")
                assert json.loads(verb(s, "kv", "--json"))["total"] == n
            again, cached = ask(s, prompt)
            assert again == answer and cached == 0, (again, answer, cached)
            assert before <= pages(s, layers), "a page of the prompt is not what it was"
    shutil.rmtree(made)


main([kv_dump_shows_the_cast, kv_dump_shows_infinities_clamped_and_a_nan,
      a_static_scale_is_used_by_every_writer, a_scale_that_is_none_refuses_to_start,
      a_pool_that_shrank_and_grew_gives_the_same_bytes_and_scales])
