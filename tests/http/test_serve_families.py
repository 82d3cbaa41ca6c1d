"""Each family served: the golden prompts at once, greedy, with f32 pages, give the golden tokens
up to the first step whose two best logits are too close to call; and a chat answer."""
import json

from mascon import Server, at_once, main

CLOSE = 4e-3


def golden(model):
    with open(f"tests/models/{model}/golden/greedy.json") as f:
        return json.load(f)


def until_close(case):
    """The tokens before the first close step."""
    n = next((i for i, gap in enumerate(case["gap"]) if gap < CLOSE), len(case["gap"]))
    return case["ids"][:n]


def serve(model):
    cases = golden(model)
    with Server("--kv", "f32", model=f"tests/models/{model}") as s:
        def ask(case):
            return s.post("/v1/completions", {
                "model": "default", "prompt": case["prompt_ids"], "max_tokens": len(case["ids"]), "temperature": 0,
                "ignore_eos": True, "return_token_ids": True}, timeout=300)
        for case, (status, answer) in zip(cases, at_once([lambda c=c: ask(c) for c in cases])):
            assert status == 200, answer
            want = until_close(case)
            got = answer["choices"][0]["token_ids"][:len(want)]
            assert want and got == want, (model, case["prompt_ids"], got, want)
        status, answer = s.post("/v1/chat/completions", {
            "model": "default", "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 8})
        assert status == 200 and answer["choices"][0]["finish_reason"] in ("stop", "length"), answer
        s.idle()


def families_serve_qwen3_moe():
    serve("tiny-qwen3-moe")


def families_serve_kimi():
    serve("tiny-kimi")


def families_serve_glm():
    serve("tiny-glm")


if __name__ == "__main__":
    main([families_serve_qwen3_moe, families_serve_kimi, families_serve_glm])
