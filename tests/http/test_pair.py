"""serve --prefill-model: one model reads the prompts, the other answers."""
import subprocess

from mascon import MASCON, Server, main

FP8, INT4 = "tests/models/tiny-llama-fp8", "tests/models/tiny-llama-w4a16"
PROMPT = "It was a bright cold day in April, and the clocks were striking thirteen. " * 6


def ask(s, **more):
    status, answer = s.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 24, "temperature": 0,
                                                **more})
    assert status == 200, answer
    return answer


def pair_answers_over_http():
    with Server("--prefill-model", FP8, model=INT4) as s:
        first = ask(s)
        again = ask(s)
        assert first["choices"][0]["text"] == again["choices"][0]["text"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64, again["usage"]
        assert first["usage"]["completion_tokens"] == 24
        # a token of each prompt: the rest was read elsewhere
        assert s.metric("mascon_prompt_tokens_total") == 2
        streams = [ask(s, n=1, seed=i, temperature=0.8) for i in range(3)]
        assert all(x["usage"]["completion_tokens"] for x in streams)


def pair_of_different_models_is_refused():
    for args, says in ((["--prefill-model", "tests/models/tiny-qwen3-moe"], "not of one shape"),
                       (["--prefill-model", "tests/models/none"], "loading the prefill model")):
        p = subprocess.run([MASCON, "serve", INT4, "--port", "0", *args], capture_output=True,
                           timeout=60)
        assert p.returncode == 1 and says in p.stderr.decode(), p.stderr
    p = subprocess.run([MASCON, "serve", "a=" + INT4, "b=" + FP8, "--port", "0", "--prefill-model", FP8],
                       capture_output=True, timeout=60)
    assert p.returncode == 1 and b"one model" in p.stderr, p.stderr


if __name__ == "__main__":
    main([v for k, v in list(globals().items()) if k.startswith("pair_") and callable(v)])
