"""Logprobs over HTTP: of the answer, and with echo of the prompt."""
import math

from mascon import Server, main

PROMPT = "It was the best of times, it was the worst of times. " * 12


def ask(server, **more):
    status, a = server.post("/v1/completions", {
        "model": "default", "prompt": PROMPT, "temperature": 0, "max_tokens": 3,
        "ignore_eos": True, **more})
    assert status == 200, a
    return a


def echo_gives_the_prompts_logprobs_each_time_the_same():
    with Server() as s:
        first = ask(s, echo=True, logprobs=2)
        again = ask(s, echo=True, logprobs=2)
        n = first["usage"]["prompt_tokens"] + 3
        for a in (first, again):
            lp = a["choices"][0]["logprobs"]
            assert a["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            assert [len(lp[k]) for k in ("tokens", "token_logprobs", "top_logprobs",
                                         "text_offset")] == [n] * 4
            assert lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None
            assert all(math.isfinite(x) and x <= 0 for x in lp["token_logprobs"][1:])
            assert all(2 <= len(t) <= 3 for t in lp["top_logprobs"][1:])
            assert a["choices"][0]["text"].startswith(PROMPT)
            assert lp["text_offset"] == sorted(lp["text_offset"])
        a, b = (x["choices"][0]["logprobs"]["token_logprobs"][1:] for x in (first, again))
        assert max(abs(x - y) for x, y in zip(a, b)) < 1e-3
        s.idle()


def echo_alone_and_max_tokens_0_score_a_prompt():
    with Server() as s:
        a = ask(s, echo=True, logprobs=0, max_tokens=0)
        lp = a["choices"][0]["logprobs"]
        assert len(lp["token_logprobs"]) == a["usage"]["prompt_tokens"]
        assert a["choices"][0]["text"] == PROMPT
        assert a["usage"]["completion_tokens"] == 0


def a_stream_tells_the_same_as_the_whole_answer():
    with Server() as s:
        whole = ask(s, echo=True, logprobs=1)["choices"][0]
        events = s.stream("/v1/completions", {
            "model": "default", "prompt": PROMPT, "temperature": 0, "max_tokens": 3,
            "ignore_eos": True, "echo": True, "logprobs": 1})
        text = "".join(c["text"] for e in events for c in e["choices"])
        tokens = [t for e in events for c in e["choices"]
                  for t in (c["logprobs"] or {"tokens": []})["tokens"]]
        assert text == whole["text"] and tokens == whole["logprobs"]["tokens"]


main([echo_gives_the_prompts_logprobs_each_time_the_same,
      echo_alone_and_max_tokens_0_score_a_prompt,
      a_stream_tells_the_same_as_the_whole_answer])
