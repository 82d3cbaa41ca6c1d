"""Chat templates in the styles of public model families, rendered by transformers.

    python tests/golden/chat_styles.py > tests/golden/chat/styles.jsonl

needs transformers (5.23); the tests read only the result. A line is {"style", "messages", "tools", "kwargs",
"tokens", "rendered"} or, where the template refuses, "error" instead. The templates (chat/styles/) were written for
these tests in the families' formats; smollm2.jinja is SmolLM2-135M-Instruct's own.
The clock stands at 2024-07-26 09:05:03.
"""
import datetime
import json
import pathlib

from transformers.utils import chat_template_utils as utils


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, 9, 5, 3)


utils.datetime = Clock
HERE = pathlib.Path(__file__).parent / "chat" / "styles"


def S(text): return {"role": "system", "content": text}
def U(text): return {"role": "user", "content": text}
def T(call, text): return {"role": "tool", "tool_call_id": call, "content": text}


def A(text, *calls, **more):
    m = {"role": "assistant", "content": text, **more}
    if calls:
        m["tool_calls"] = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    return m


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city; <b>\"now\"</b> & soon.",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "Name, e.g. 北京 or São Paulo"},
        "days": {"type": "integer", "minimum": 1, "default": 1.0},
        "units": {"type": "string", "enum": ["metric", "imperial"], "default": "metric"},
        "where": {"type": "object", "properties": {"lat": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}}},
                  "required": ["lat"]},
        "any": {"oneOf": [{"type": "string", "description": "text"}, {"type": ["integer", "null"]}]}},
        "required": ["city"]}}}
NOARGS = {"type": "function", "function": {"name": "now", "description": "Current time",
                                           "parameters": {"type": "object", "properties": {}}}}
PARIS = ("call12345", "get_weather", {"city": "Paris", "days": 2, "where": {"lat": 48.5, "tags": ["é", "\"q\""]}})
ROME = ("call67890", "get_weather", {"city": "Roma"})

CASES = [
    ([U("Hello!")], None, {}),
    ([U("Hello!")], None, {"add_generation_prompt": False}),
    ([S("Be terse."), U("  Who art thou?  ")], None, {}),
    ([S("Be terse."), U("Hi"), A(" Hello. "), U("Bye\n\n")], None, {}),
    ([U("Hi"), A("Hello."), U("Bye"), A("Bye.")], None, {"add_generation_prompt": False}),
    ([U("a"), U("two user turns")], None, {}),
    ([A("assistant first"), U("b")], None, {}),
    ([U("a"), S("a later system turn"), U("b")], None, {}),
    ([S("only system")], None, {}),
    ([U("2+2?"), A("<think>\nTwo and two.\n</think>\n\n4"), U("3+3?")], None, {}),
    ([U("2+2?"), A("4", reasoning_content="Two and two."), U("3+3?")], None, {"enable_thinking": False}),
    ([U("2+2?"), A("4", reasoning_content="Two and two.\n")], None, {"add_generation_prompt": False}),
    ([U("Weather in Paris?")], [WEATHER, NOARGS], {}),
    ([S("Use tools."), U("Weather?")], [WEATHER], {"tools_in_user_message": False, "date_string": "1 May 2031"}),
    ([U("Paris?"), A("", PARIS), T("call12345", "21 °C")], [WEATHER], {}),
    ([U("Paris?"), A(None, PARIS), T("call12345", "{\"temp\": 21.5}")], [WEATHER], {}),
    ([S("s"), U("Both?"), A("Looking.", PARIS, ROME), T("call12345", "21"), T("call67890", "27"), A("21 and 27."), U("Thanks")],
     [WEATHER], {}),
    ([U("Paris?"), A("", PARIS), T("call12345", "21"), A("21 degrees."), U("And Rome?"), A("", ROME), T("call67890", "27")], [WEATHER, NOARGS], {}),
    ([U("Paris?"), A("", ("short", "now", {})), T("short", "12:00")], [NOARGS], {"builtin_tools": ["now"]}),
    ([U("q"), A("", ("call12345", "search", {"query": "x y"}))], [NOARGS], {"builtin_tools": ["search"], "add_generation_prompt": False}),
    ([U([{"type": "text", "text": " parts "}, {"type": "image"}, {"type": "text", "text": "more"}])], None, {}),
    ([U("")], None, {}),
    ([U("你好，世界 👨‍👩‍👧 e\u0301 \u00a0"), A("مرحبا\u3000"), U("<|im_end|>[INST]<|eot_id|>")], None, {}),
    ([{"role": "developer", "content": "D"}, U("x")], None, {"reasoning_effort": "high", "model_identity": "You are M."}),
    ([T("call12345", "no call before")], None, {}),
    ([{"role": "critic", "content": "an unknown role"}], None, {}),
    ([U("x" * 500)], None, {}),
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def source(name):
    return (HERE / f"{name}.jinja").read_text()


for style in sorted(p.stem for p in HERE.glob("*.jinja")):
    for messages, tools, kwargs in CASES:
        kwargs = {"add_generation_prompt": True, **kwargs}
        row = {"style": style, "messages": messages, "tools": tools, "kwargs": kwargs, "tokens": TOKENS}
        try:
            chat = utils._alias_reasoning_fields(messages)
            row["messages"] = chat
            row["rendered"] = utils.render_jinja_template(
                conversations=[chat], tools=tools, chat_template=source(style), **kwargs, **TOKENS)[0][0]
        except Exception as e:
            row["error"] = {"type": type(e).__name__, "message": str(e)}
        print(json.dumps(row, ensure_ascii=False))
