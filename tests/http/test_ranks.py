"""A server on several ranks, and one whose rank fails or stalls: errors, health, exit."""
import json
import math
import os
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(__file__))
from families import write_tensors  # noqa: E402
from mascon import SANITIZED, Server, at_once, main  # noqa: E402

PROMPTS = ["Once upon a time", "The", "In the beginning there was a small", "Why"]
WITHIN = 60 if SANITIZED else 5  # seconds from the fault to the process's end


def answers(*flags):
    with Server("--kv", "f32", *flags) as s:
        def one(prompt):
            status, a = s.post("/v1/completions", {"prompt": prompt, "max_tokens": 24,
                                                   "temperature": 0, "return_token_ids": True})
            assert status == 200, a
            return a["choices"][0]["token_ids"]
        out = at_once([lambda p=p: one(p) for p in PROMPTS])
        per_rank = [s.metric("mascon_rank_weight_bytes", f'rank="{i}"') for i in range(4)]
    return out, per_rank


def ranks_serve_the_tokens_of_one():
    one, whole = answers()
    assert whole[0] > 0 and whole[1] == 0, whole
    for n in (2, 4):
        out, parts = answers("--ranks", str(n))
        assert out == one
        assert all(whole[0] / n <= p < whole[0] / n * 1.1 for p in parts[:n]), (whole, parts)
        assert sum(parts[n:]) == 0


REAL = 509  # tokens, a prime


def write_even_model(path, rows):
    """Every weight is 0, so that every token is as likely; `rows` of them, of which REAL are tokens."""
    h, heads, d, wide = 48, 12, 16, 24
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": rows,
                   "hidden_size": h, "intermediate_size": wide, "num_hidden_layers": 1, "head_dim": d,
                   "num_attention_heads": heads, "num_key_value_heads": heads, "rms_norm_eps": 1e-5,
                   "max_position_embeddings": 512, "rope_theta": 10000.0, "hidden_act": "silu",
                   "tie_word_embeddings": False}, f)
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in plain]
    spell = [chr(b) for b in plain] + [chr(256 + i) for i in range(len(other))]
    added = [{"id": i, "content": f"<{i}>", "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": False} for i in range(256, REAL)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    with open(os.path.join(path, "tokenizer.json"), "w") as f:
        json.dump({"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": level,
                   "post_processor": None, "decoder": level,
                   "model": {"type": "BPE", "vocab": {s: i for i, s in enumerate(spell)}, "merges": []}}, f)
    at = "model.layers.0."
    shapes = {"model.embed_tokens": [rows, h], "lm_head": [rows, h], "model.norm": [h],
              at + "input_layernorm": [h], at + "post_attention_layernorm": [h],
              at + "mlp.gate_proj": [wide, h], at + "mlp.up_proj": [wide, h], at + "mlp.down_proj": [h, wide],
              at + "self_attn.o_proj": [h, heads * d]}
    shapes |= {f"{at}self_attn.{x}_proj": [heads * d, h] for x in "qkv"}
    write_tensors(os.path.join(path, "model.safetensors"),
                  {n + ".weight": ("BF16", s, bytes(2 * math.prod(s))) for n, s in shapes.items()})


def draws_evenly(rows, ranks, n):
    with tempfile.TemporaryDirectory(prefix="mascon-even-") as path:
        write_even_model(path, rows)
        with Server("--ranks", str(ranks), model=path) as s:
            def one(seed):
                status, a = s.post("/v1/completions", {
                    "prompt": [seed], "max_tokens": 250, "temperature": 1, "seed": seed, "ignore_eos": True,
                    "return_token_ids": True}, timeout=300)
                assert status == 200, a
                return a["choices"][0]["token_ids"]
            ids = sum(at_once([lambda i=i: one(i) for i in range(n // 250)]), [])
            assert len(ids) == n and max(ids) < REAL
            counts = [0] * REAL
            for i in ids:
                counts[i] += 1
            chi = sum((c - n / REAL) ** 2 for c in counts) * REAL / n
            assert abs(chi - (REAL - 1)) < 5 * (2 * (REAL - 1)) ** .5, chi  # 5 standard deviations
            status, a = s.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "logprobs": 5})
            top = a["choices"][0]["logprobs"]["top_logprobs"][0]
            assert status == 200 and all(abs(x + math.log(REAL)) < 1e-5 for x in top.values()), a
            status, a = s.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "logit_bias": {str(REAL): 1}})
            assert status == 400 and "logit_bias" in json.dumps(a), a
            status, a = s.post("/v1/completions", {"prompt": [REAL], "max_tokens": 1})
            assert status == 400, a


def ranks_draw_evenly_from_a_prime_vocabulary():
    for ranks in (2, 3, 4):
        draws_evenly(REAL, ranks, 5000 if SANITIZED else 20000)


def a_padded_vocabulary_is_drawn_from_without_its_padding():
    draws_evenly(512, 1, 5000 if SANITIZED else 20000)


def fails(fault, ask=True):
    os.environ["MC_FAIL"] = fault
    try:
        with Server("--ranks", "2", wait=ask) as s:
            t0 = time.monotonic()
            if ask:
                status, a = s.post("/v1/completions", {"prompt": "Once", "max_tokens": 64})
                assert status == 500 and "rank 1" in a["error"]["message"], (status, a)
                status, _, body = s.get("/health")
                assert status == 503 and b"failed" in body, (status, body)
            s.process.wait(WITHIN)
            assert time.monotonic() - t0 < WITHIN
            assert s.process.returncode == 1, s.process.returncode
            assert "rank 1" in s.log().splitlines()[-1], s.log()
    finally:
        del os.environ["MC_FAIL"]


def a_rank_that_fails_in_prefill_ends_the_process():
    fails("rank:1:error@prefill")


def a_rank_that_stalls_in_prefill_ends_the_process():
    fails("rank:1:stall@prefill")


def a_rank_that_fails_in_decode_ends_the_process():
    fails("rank:1:error@decode")


def a_rank_that_stalls_in_decode_ends_the_process():
    fails("rank:1:stall@decode")


def a_rank_that_fails_or_stalls_while_idle_ends_the_process():
    fails("rank:1:error@idle", ask=False)
    fails("rank:1:stall@idle", ask=False)


def a_rank_that_fails_or_stalls_while_loading_ends_the_process():
    fails("rank:1:error@load", ask=False)
    fails("rank:1:stall@load", ask=False)


main([ranks_serve_the_tokens_of_one,
      ranks_draw_evenly_from_a_prime_vocabulary,
      a_padded_vocabulary_is_drawn_from_without_its_padding,
      a_rank_that_fails_in_prefill_ends_the_process,
      a_rank_that_stalls_in_prefill_ends_the_process,
      a_rank_that_fails_in_decode_ends_the_process,
      a_rank_that_stalls_in_decode_ends_the_process,
      a_rank_that_fails_or_stalls_while_idle_ends_the_process,
      a_rank_that_fails_or_stalls_while_loading_ends_the_process])
