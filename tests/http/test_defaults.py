"""What a request gets that says nothing: the model's own sampling, then OpenAI's; a length that
fits the model. `mascon chat` the same."""
import json
import os
import shutil
import subprocess
import tempfile

from mascon import MASCON, MODEL, Server, main

CHAT = {"messages": [{"role": "user", "content": "Tell me of the Moon"}], "ignore_eos": True}


class Model:
    """A copy of the small model with another generation_config.json."""

    def __init__(self, **more):
        self.more = more

    def __enter__(self):
        self.dir = tempfile.mkdtemp(prefix="mascon-model-")
        for name in os.listdir(MODEL):
            if os.path.isfile(os.path.join(MODEL, name)):
                shutil.copy(os.path.join(MODEL, name), self.dir)
        path = os.path.join(self.dir, "generation_config.json")
        config = {k: v for k, v in json.load(open(path)).items()
                  if k not in ("temperature", "top_p")}
        json.dump({**config, **self.more}, open(path, "w"))
        return self.dir

    def __exit__(self, *_):
        shutil.rmtree(self.dir)


def text(server, **more):
    body = {"prompt": "Once upon a", "max_tokens": 24, "ignore_eos": True, **more}
    status, a = server.post("/v1/completions", body)
    assert status == 200, a
    return a["choices"][0]["text"]


def n_tokens(server, **more):
    status, a = server.post("/v1/chat/completions", {**CHAT, **more})
    assert status == 200, a
    assert a["choices"][0]["finish_reason"] == "length", a
    return a["usage"]["completion_tokens"]


def the_models_sampling_is_the_default():
    rows = [({"temperature": 0}, {"temperature": 0}),
            ({"temperature": 0.7, "top_k": 3}, {"temperature": 0.7, "top_k": 3}),
            ({"temperature": 0.7, "top_p": 0.3}, {"temperature": 0.7, "top_p": 0.3}),
            ({"min_p": 0.4}, {"temperature": 1, "min_p": 0.4}),
            ({"temperature": 0, "repetition_penalty": 5.0},
             {"temperature": 0, "repetition_penalty": 5.0})]
    plain = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
    for config, same in rows:
        with Model(**config) as m, Server(model=m) as s:
            for seed in range(3):
                got = text(s, seed=seed)
                assert got == text(s, seed=seed, **{**plain, **same}), (config, seed)
            assert any(text(s, seed=i) != text(s, seed=i, **plain) for i in range(3)), config


def without_the_models_it_is_openais():
    with Model() as m, Server(model=m) as s:
        for seed in range(3):
            assert text(s, seed=seed) == text(s, seed=seed, temperature=1, top_p=1)
        assert len({text(s) for _ in range(4)}) > 1  # unseeded is random


def the_models_end_tokens_end():
    with Server() as s:
        ids = s.post("/v1/completions", {"prompt": "Once upon a", "max_tokens": 8,
                                         "temperature": 0, "ignore_eos": True,
                                         "return_token_ids": True})[1]["choices"][0]["token_ids"]
    with Model(temperature=0, eos_token_id=[1793, ids[3]]) as m, Server(model=m) as s:
        a = s.post("/v1/completions", {"prompt": "Once upon a", "max_tokens": 8})[1]
        assert a["choices"][0]["finish_reason"] == "stop", a
        assert a["usage"]["completion_tokens"] == ids.index(ids[3]) + 1, a


def a_chat_of_no_given_length_ends():
    with Server() as s:  # a context of 2,048: an eighth
        assert n_tokens(s) == 256
        assert n_tokens(s, max_tokens=300) == 300
        assert n_tokens(s, max_completion_tokens=7) == 7
        assert n_tokens(s, max_tokens=None) > 1900  # asked for: as room allows
    with Model(max_new_tokens=9) as m, Server(model=m) as s:
        assert n_tokens(s) == 9
    with Server("--max-tokens-default", "11") as s:
        assert n_tokens(s) == 11
    with Server("--max-tokens-default", "0") as s:
        assert n_tokens(s) > 1900


def chat_has_the_same_defaults():
    def said(*flags, model=MODEL):
        p = subprocess.run([MASCON, "chat", model, "--max-tokens-default", "8", *flags],
                           input=b"Tell me of the Moon", stdout=subprocess.PIPE, timeout=60)
        assert p.returncode == 0
        return p.stdout.decode()

    with Model(temperature=0) as m, Server(model=m) as s:
        a = s.post("/v1/chat/completions", {**CHAT, "max_tokens": 8, "ignore_eos": False})[1]
        want = a["choices"][0]["message"]["content"]
        assert said(model=m) == want + "\n"


main([the_models_sampling_is_the_default,
      without_the_models_it_is_openais,
      the_models_end_tokens_end,
      a_chat_of_no_given_length_ends,
      chat_has_the_same_defaults])
