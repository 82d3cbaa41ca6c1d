"""Every field of the OpenAI routes with every type of JSON: what it does not take is a 400 that
names it; what it takes is an answer."""
import json
import re

from mascon import Server, main

server = None

# One of each type, and of the shapes that two types could be taken for.
VALUES = [{}, {"value": 5}, {"a": 1}, [], [1], ["a"], [None], [[]], [{}], "x", "5", 5, -1, 1.5,
          1.0, 1e300, True, False, None]


def number(v):
    return isinstance(v, (int, float)) and not isinstance(v, bool)


def whole(lo, hi=1e308):
    return lambda v: number(v) and v == int(v) and lo <= v <= hi


def between(lo, hi):
    return lambda v: number(v) and lo <= v <= hi


def kinds(*types):
    return lambda v: any(isinstance(v, t) for t in types)


def flags(v):  # names that are not flags are left alone
    return isinstance(v, dict)


def stops(v):
    return isinstance(v, str) or isinstance(v, list) and all(isinstance(s, str) for s in v)


def ids(v):
    return isinstance(v, list) and all(whole(0, 2047)(i) for i in v)


# field -> is the value taken? null is "not given" for all but what must be there.
BOTH = {
    "max_tokens": whole(0), "temperature": between(0, 1000), "top_p": between(1e-9, 1),
    "top_k": whole(-1), "min_p": between(0, 1), "repetition_penalty": between(0.01, 100),
    "presence_penalty": between(-100, 100), "frequency_penalty": between(-100, 100),
    "min_tokens": whole(0), "seed": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "stop": stops, "stop_token_ids": ids, "ignore_eos": kinds(bool),
    "logit_bias": lambda v: v == {}, "n": whole(1, 128), "stream": kinds(bool),
    "stream_options": flags, "return_token_ids": kinds(bool), "cache_salt": kinds(str),
    "user": kinds(str),
}
COMPLETION = {
    **BOTH, "prompt": lambda v: isinstance(v, str) or v in ([1], ["a"], [[]]) and v != [[]],
    "echo": kinds(bool), "logprobs": whole(0, 20), "best_of": lambda v: v in (1, 1.0) and
    number(v), "suffix": lambda v: v == "",
}
CHAT = {
    **BOTH, "messages": lambda v: False, "max_completion_tokens": whole(0),
    "logprobs": kinds(bool), "top_logprobs": whole(0, 20), "chat_template_kwargs": kinds(dict),
    "add_generation_prompt": kinds(bool), "tools": lambda v: v == [],
    "functions": lambda v: v == [], "tool_choice": kinds(str, dict),
    "parallel_tool_calls": kinds(bool), "response_format": lambda v: False,
}


def every_value_of(path, base, fields, needed):
    wrong = []
    for field, takes in fields.items():
        for v in VALUES:
            good = field != needed if v is None else takes(v)
            status, _, data = server.request("POST", path, {**base, field: v})
            if good:
                ok = status == 200
            else:
                error = json.loads(data).get("error") or {"param": "", "message": ""}
                ok = (status == 400 and re.split(r"\W", error["param"])[0] == field
                      and field in error["message"])
            if not ok:
                wrong.append((field, v, status, data[:200]))
    assert not wrong, "\n".join(map(str, wrong))


def completions_take_what_they_should():
    every_value_of("/v1/completions", {"prompt": "x", "max_tokens": 1}, COMPLETION, "prompt")


def chats_take_what_they_should():
    base = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "logprobs": True}
    every_value_of("/v1/chat/completions", base, CHAT, "messages")


def tokenizing_takes_what_it_should():
    every_value_of("/v1/tokenize", {"prompt": "x"},
                   {"prompt": kinds(str), "add_special_tokens": kinds(bool),
                    "add_generation_prompt": kinds(bool), "messages": lambda v: False},
                   "prompt")
    every_value_of("/v1/detokenize", {}, {"tokens": ids}, "tokens")


def parts_of_a_field_have_types_too():
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    rows = [("stream_options.include_usage", {"stream_options": {"include_usage": 1}}),
            ("stream_options.include_usage", {"stream_options": {"include_usage": "x"}}),
            ("stream_options.continuous_usage_stats",
             {"stream_options": {"continuous_usage_stats": []}}),
            ("response_format", {"response_format": {"type": "json_object"}}),
            ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
            ("logit_bias", {"logit_bias": {"1": "x"}}), ("logit_bias", {"logit_bias": {"x": 1}})]
    for m, param in (("x", "messages[0].role"), (5, "messages[0].role"), ([], "messages[0].role"),
                     ({}, "messages[0].role"), ({"role": 5}, "messages[0].role"),
                     ({"role": "ghost", "content": "x"}, "messages[0].role"),
                     ({"role": "user", "content": 5}, "messages[0].content"),
                     ({"role": "user", "content": True}, "messages[0].content"),
                     ({"role": "user", "content": {"a": 1}}, "messages[0].content"),
                     ({"role": "user", "content": [5]}, "messages[0].content[0]"),
                     ({"role": "user", "content": [{"type": "image_url"}]},
                      "messages[0].content[0]"),
                     ({"role": "user", "content": [{"type": "text", "text": 5}]},
                      "messages[0].content[0]"),
                     ({"role": "assistant", "tool_calls": "x"}, "messages[0].tool_calls"),
                     ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0]")):
        rows.append((param, {"messages": [m]}))
    for param, more in rows:
        status, a = server.post("/v1/chat/completions", {**chat, **more})
        assert status == 400 and a["error"]["param"] == param, (param, more, status, a)


def null_is_not_given():
    status, a = server.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "stream_options": None,
        "temperature": None, "stop": None, "n": None, "tools": None, "response_format": None})
    assert status == 200 and a["usage"]["completion_tokens"] <= 2, a


def more_choices_than_may_wait_are_refused_for_good():
    with Server("--max-waiting", "4") as s:
        status, a = s.post("/v1/completions", {"prompt": "x", "n": 5, "max_tokens": 1})
        assert status == 400 and a["error"]["param"] == "n", a
        assert "5 choices" in a["error"]["message"] and "the 4 " in a["error"]["message"], a
        status, a = s.post("/v1/completions", {"prompt": ["x"] * 5, "max_tokens": 1})
        assert status == 400 and a["error"]["param"] == "prompt", a
        status, a = s.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "x"}], "n": 5, "max_tokens": 1})
        assert status == 400 and a["error"]["param"] == "n", a
        status, a = s.post("/v1/completions", {"prompt": "x", "n": 4, "max_tokens": 1})
        assert status == 200 and len(a["choices"]) == 4, a


if __name__ == "__main__":
    with Server() as server:
        main([completions_take_what_they_should,
              chats_take_what_they_should,
              tokenizing_takes_what_it_should,
              parts_of_a_field_have_types_too,
              null_is_not_given,
              more_choices_than_may_wait_are_refused_for_good])
