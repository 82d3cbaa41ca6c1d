"""The openai package from PyPI, as it is, against the server: chats, completions, streams, models,
errors. It is fetched once into the build directory; all is skipped where PyPI is not reached."""
import asyncio
import os
import re
import subprocess
import sys

from mascon import MODEL, Server, Skip, main

# one for all builds
VENV = os.path.join(re.sub("-[at]san$", "", os.environ.get("B", "build")), "openai-venv")
PYTHON = os.path.join(VENV, "bin", "python")
NAME = os.path.basename(MODEL)
CHAT = {"model": NAME, "messages": [{"role": "user", "content": "Tell me of the Moon"}],
        "max_tokens": 12, "temperature": 0, "extra_body": {"ignore_eos": True}}
TEXT = {"model": NAME, "prompt": "Once upon a", "max_tokens": 12, "temperature": 0,
        "extra_body": {"ignore_eos": True}}

server = client = openai = None


def connect(s, key="none"):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key=key, max_retries=0)


def raises(kind, **call):
    make = call.pop("make", client.chat.completions.create)
    try:
        make(**call)
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__} from {call}")


# ---- the tests, in the package's own environment -------------------------------------------

def a_chat():
    a = client.chat.completions.create(**CHAT)
    assert a.object == "chat.completion" and a.model == NAME and a._request_id
    c = a.choices[0]
    assert c.message.role == "assistant" and c.message.content and c.finish_reason == "length"
    assert c.message.tool_calls is None and c.logprobs is None
    assert a.usage.completion_tokens == 12
    assert a.usage.total_tokens == a.usage.prompt_tokens + 12
    two = client.chat.completions.create(**{**CHAT, "n": 2, "temperature": 1}, seed=3,
                                         logprobs=True, top_logprobs=2)
    assert [c.index for c in two.choices] == [0, 1]
    assert all(len(t.top_logprobs) == 2 for t in two.choices[0].logprobs.content)


def a_streamed_chat_is_the_same():
    whole = client.chat.completions.create(**CHAT)
    chunks = list(client.chat.completions.create(**CHAT, stream=True,
                                                 stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert len({c.id for c in chunks}) == 1 and chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert not chunks[-1].choices and chunks[-1].usage == whole.usage
    stop = text[8:11]
    with client.chat.completions.stream(**CHAT, stop=stop) as stream:  # it puts them together
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == text[:text.index(stop)]
    assert final.choices[0].finish_reason == "stop"


def completions_whole_and_streamed():
    a = client.completions.create(**TEXT, logprobs=2)
    c = a.choices[0]
    assert a.object == "text_completion" and c.finish_reason == "length"
    assert len(c.logprobs.tokens) == len(c.logprobs.top_logprobs) == 12
    text = "".join(x.choices[0].text for x in client.completions.create(**TEXT, stream=True))
    assert text == c.text
    many = client.completions.create(**{**TEXT, "prompt": ["One", "Two"], "n": 2})
    assert [c.index for c in many.choices] == [0, 1, 2, 3]


def models():
    page = client.models.list()
    assert [m.id for m in page] == [NAME] and page.data[0].object == "model"
    assert client.models.retrieve(NAME).owned_by == "mascon"
    assert raises(openai.NotFoundError, make=client.models.retrieve,
                  model="ghost/one").code == "model_not_found"


def errors_have_their_class_code_and_field():
    e = raises(openai.NotFoundError, **{**CHAT, "model": "ghost"})
    assert e.status_code == 404 and e.code == "model_not_found" and e.param == "model"
    e = raises(openai.BadRequestError, **{**CHAT, "temperature": -1})
    assert e.param == "temperature" and e.type == "invalid_request_error" and e.request_id
    e = raises(openai.BadRequestError, **{**CHAT, "messages": []})
    assert e.param == "messages"
    e = raises(openai.BadRequestError, **{**CHAT, "messages": [
        {"role": "user", "content": "word " * 9000}]})
    assert e.code == "context_length_exceeded"
    e = raises(openai.BadRequestError, **{**CHAT, "stream": True, "top_p": 7})
    assert e.param == "top_p"
    e = raises(openai.NotFoundError, make=client.images.generate, model=NAME, prompt="x")
    assert e.status_code == 404


def embeddings():
    """The package asks for base64 and decodes it, unless floats are asked for."""
    packed = client.embeddings.create(model=NAME, input=["The Moon", "A ship"])
    plain = client.embeddings.create(model=NAME, input=["The Moon", "A ship"],
                                     encoding_format="float")
    assert [d.index for d in packed.data] == [0, 1] and packed.usage.prompt_tokens > 0
    for a, b in zip(packed.data, plain.data):
        assert len(a.embedding) > 8
        assert max(abs(x - y) for x, y in zip(a.embedding, b.embedding)) < 1e-6


def keys():
    path = os.path.join(server.dir, "keys")
    with open(path, "w", opener=lambda p, flags: os.open(p, flags, 0o600)) as f:
        f.write("sk-good-key tenant\n")
    with Server("--api-key-file", path) as s:
        assert connect(s, "sk-good-key").chat.completions.create(**CHAT).choices
        e = raises(openai.AuthenticationError,
                   make=connect(s, "sk-bad-key").chat.completions.create, **CHAT)
        assert e.code == "invalid_api_key"


def a_stream_that_is_closed_is_cancelled():
    body = {**CHAT, "max_tokens": 1500}
    stream = client.chat.completions.create(**body, stream=True)
    next(iter(stream))
    stream.close()
    server.idle(timeout=1.5)


def many_at_once():
    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key="none",
                                      max_retries=0) as c:
            return await asyncio.gather(*[c.chat.completions.create(**CHAT)
                                          for _ in range(16)])

    answers = asyncio.run(all_of_them())
    assert len({a.choices[0].message.content for a in answers}) == 1
    assert len({a.id for a in answers}) == 16


TESTS = [a_chat, a_streamed_chat_is_the_same, completions_whole_and_streamed, models,
         embeddings, errors_have_their_class_code_and_field, keys,
         a_stream_that_is_closed_is_cancelled, many_at_once]


# ---- its environment -----------------------------------------------------------------------

def there():
    return os.path.exists(PYTHON) and subprocess.run(
        [PYTHON, "-c", "import openai"], stderr=subprocess.DEVNULL).returncode == 0


def fetched():
    """True when the package is there; fetches it once."""
    if there():
        return True
    try:
        for command, limit in (
                ([sys.executable, "-m", "venv", VENV], 60),
                ([PYTHON, "-m", "pip", "--disable-pip-version-check", "-q", "--retries", "0",
                  "--timeout", "5", "install", "openai"], 120)):
            subprocess.run(command, check=True, timeout=limit, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return False
    return there()


def skipped(test):
    def skip():
        raise Skip("PyPI is not reachable: no openai package")
    skip.__name__ = test.__name__
    return skip


if __name__ == "__main__":
    try:
        import openai
    except ImportError:
        pass
    if openai:
        with Server() as server:
            client = connect(server)
            main(TESTS)
    elif os.path.realpath(sys.prefix) != os.path.realpath(VENV) and fetched():
        sys.exit(subprocess.run([PYTHON, __file__, *sys.argv[1:]]).returncode)
    else:
        main([skipped(t) for t in TESTS])
