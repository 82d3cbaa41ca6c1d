"""A server on several ranks, and one whose rank fails or stalls: errors, health, exit."""
import os
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
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
      a_rank_that_fails_in_prefill_ends_the_process,
      a_rank_that_stalls_in_prefill_ends_the_process,
      a_rank_that_fails_in_decode_ends_the_process,
      a_rank_that_stalls_in_decode_ends_the_process,
      a_rank_that_fails_or_stalls_while_idle_ends_the_process,
      a_rank_that_fails_or_stalls_while_loading_ends_the_process])
