"""The process: ready only when loaded, draining, signals, keys, the verbs as words, settings."""
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time

from mascon import MASCON, MODEL, Server, main


def mascon(*args, timeout=60, stdin=None):
    """(exit status, stdout, stderr)"""
    p = subprocess.run([MASCON, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       timeout=timeout, input=stdin)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def verb(server, *args):
    return mascon(*args, "--socket", server.socket)


# ---- the command line ---------------------------------------------------------------------

def commands_and_flags_that_do_not_exist_name_the_nearest():
    assert mascon()[0] == 0 and "serve" in mascon()[1]
    for args, near in ((("srve",), "'serve'"), (("serve", "--prot", "1"), "'--port'"),
                       (("serve", MODEL, "--backend", "cpuu"), "'cpu'"),
                       (("attach", "--sockt", "x"), "'--socket'")):
        status, _, err = mascon(*args)
        assert status == 2 and near in err and err.startswith("mascon: "), (args, err)
    assert mascon("serve")[0] == 2
    assert mascon("tokenize", "a", "b")[0] == 2
    assert mascon("serve", "--help")[0] == 0


def a_model_that_is_not_there_ends_the_process():
    status, _, err = mascon("serve", "/nonexistent", "--port", "0", "--socket",
                            tempfile.mktemp(prefix="mascon-test-"))
    assert status == 1 and "mascon: " in err, err


def settings_come_from_a_file_and_flags_win():
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as f:
        f.write("return { name = 'from-file', max_context = 64 * 2, drain = 3 }\n")
        f.flush()
        with Server("--config", f.name, "--name", "from-flag") as s:
            model = json.loads(s.get("/v1/models")[2])["data"][0]
            assert model["id"] == "from-flag" and model["max_model_len"] == 128, model
        f.write("\n}")
        f.flush()
        assert mascon("serve", MODEL, "--config", f.name)[0] == 2


def chat_and_render_work_without_a_server():
    status, out, _ = mascon("chat", MODEL, stdin=b"Hello")
    assert status == 0 and out.strip()
    # a model that says nothing of sampling gives its likeliest tokens, if not asked for others
    silent = ("chat", "tests/models/tiny-kimi", "--max-tokens-default", "24")
    likeliest = mascon(*silent, "--temperature", "0", stdin=b"Hello")[1]
    assert likeliest.strip() and mascon(*silent, stdin=b"Hello")[1] == likeliest
    assert mascon(*silent, "--temperature", "2", stdin=b"Hello")[1] != likeliest
    for bad in ("3", "warm", "nan"):
        status, _, err = mascon("chat", MODEL, "--temperature", bad, stdin=b"Hello")
        assert status == 1 and "--temperature" in err and bad in err, err
    chat = b'{"messages": [{"role": "user", "content": "Hi <|eot_id|>"}]}'
    status, text, _ = mascon("render", MODEL, stdin=chat)
    assert status == 0 and text.endswith("<|end_header_id|>\n\n") and "Hi <|eot_id|>" in text
    status, ids, _ = mascon("render", MODEL, "--tokens", stdin=chat)
    assert status == 0 and ids.split()[0] == "1792" and ids.split().count("1801") == 1, ids
    assert mascon("render", MODEL, stdin=b"[]")[0] == 1


# ---- keys ---------------------------------------------------------------------------------

def keys_are_asked_for_and_name_tenants():
    with tempfile.NamedTemporaryFile("w") as f:
        f.write("# ours\nsecret-key-1\nsecret-key-2 acme\n")
        f.flush()
        with Server("--api-key-file", f.name, wait=False) as s:
            while s.get("/ready")[0] != 200:
                time.sleep(0.05)
            body = {"prompt": "x", "max_tokens": 1}
            for headers in ({}, {"authorization": "Bearer wrong-key-1"}, {"x-api-key": "nope"},
                            {"authorization": "secret-key-1"}):
                status, got, data = s.request("POST", "/v1/completions", body, headers)
                error = json.loads(data)["error"]
                assert status == 401 and error["code"] == "invalid_api_key", (headers, data)
                assert got["www-authenticate"] == "Bearer"
            for headers in ({"authorization": "Bearer secret-key-1"},
                            {"authorization": "bearer secret-key-2"},
                            {"x-api-key": "secret-key-2"}):
                assert s.post("/v1/completions", body, headers=headers)[0] == 200
            assert s.get("/v1/models")[0] == 401 and s.get("/health")[0] == 200
            assert s.get("/v1/nothing")[0] == 404
        f.write("short\n")
        f.flush()
        status, _, err = mascon("serve", MODEL, "--port", "0", "--api-key-file", f.name)
        assert status == 1 and "line 4" in err, err


# ---- verbs --------------------------------------------------------------------------------

def verbs_are_words():
    with Server() as s:
        status, out, _ = verb(s, "status")
        assert status == 0 and re.search(r"^state +ok$", out, re.M), out
        status, out, _ = verb(s, "status", "--json")
        assert json.loads(out)["model"] == "tiny-llama"
        body = {"prompt": "Once", "max_tokens": 1900, "ignore_eos": True}
        answers = []
        t = threading.Thread(target=lambda: answers.append(
            s.post("/v1/completions", body, headers={"x-request-id": "mine"})))
        t.start()
        rows = []
        while not rows:
            rows = json.loads(verb(s, "seqs", "--json")[1])
        assert rows[0]["request"] == "mine" and rows[0]["state"], rows
        assert "mine" in verb(s, "seqs")[1]
        status, out, err = verb(s, "cancel", "mine", "a test")
        t.join()
        assert (status == 0 and answers[0][0] >= 400) or answers[0][0] == 200, (out, err, answers)
        assert verb(s, "cancel", "mine")[0] == 1
        assert verb(s, "log", "lua", "debug")[0] == 0
        assert verb(s, "log", "lua", "loud")[0] == 1
        assert verb(s, "set", "drain", "7")[0] == 0
        assert "restart" in verb(s, "set", "port", "7")[2] or verb(s, "set", "port", "7")[0] == 1
        assert "drain" in verb(s, "set", "drian", "7")[2]
        assert "needs 2" in verb(s, "set", "kv_memory=1")[2]
        assert verb(s, "set", "kv_memory=4M")[0] == 0
        page = 4 * 2 * 2 * 64 * 32 * 2  # tiny-llama, bf16
        assert json.loads(verb(s, "kv", "--json")[1])["total"] == (4 << 20) // page
        assert json.loads(verb(s, "kv", "--json")[1])["page_tokens"] == 64
        assert json.loads(verb(s, "policy", "list", "--json")[1])["generations"]
        assert verb(s, "reload")[0] == 0
        assert json.loads(verb(s, "stats", "--json")[1])["steps_total"] > 0


def a_second_server_is_refused_the_socket():
    with Server() as s:
        status, _, err = mascon("serve", MODEL, "--port", "0", "--socket", s.socket)
        assert status == 1 and str(s.process.pid) in err, err
        status, _, err = mascon("serve", MODEL, "--port", str(s.port), "--socket",
                                s.socket + "2")
        assert status == 1 and str(s.port) in err, err
        assert verb(s, "status")[0] == 0


# ---- ends ---------------------------------------------------------------------------------

def open_streams_finish_while_draining_and_new_requests_get_503():
    with Server() as s:
        body = {"prompt": "Once", "max_tokens": 1800, "temperature": 0, "ignore_eos": True}
        seen = []

        def on_event(e):
            if not seen:
                s.process.send_signal(signal.SIGTERM)
                time.sleep(0.3)
                seen.append(s.request("POST", "/v1/completions", {"prompt": "x"})[0])
                seen.append(s.get("/ready")[0])
                seen.append(s.get("/health")[0])
        events = s.stream("/v1/completions", body, on_event=on_event)
        assert seen == [503, 503, 200], seen
        assert events[-1]["choices"][0]["finish_reason"] == "length"
        assert s.process.wait(20) == 0
        assert not os.path.exists(s.socket)


def a_second_signal_and_the_end_of_the_grace_stop_at_once():
    for args, second in (((), True), (("--drain", "0"), False)):
        with Server(*args) as s:
            body = {"prompt": "Once", "max_tokens": 2000, "ignore_eos": True, "n": 8,
                    "temperature": 1}
            out = []
            t = threading.Thread(target=lambda: out.append(s.post("/v1/completions", body)))
            t.start()
            time.sleep(0.3)
            s.process.send_signal(signal.SIGTERM)
            if second:
                time.sleep(0.2)
                s.process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            assert s.process.wait(15) == 0
            assert time.monotonic() - began < 10
            t.join()
            assert out[0][0] in (200, 503), out


def the_drain_verb_ends_the_server():
    with Server() as s:
        # an argument that can't be sent is not one that was left out
        status, _, err = mascon("drain", b"\xff", "--socket", s.socket)
        assert status == 2 and "UTF-8" in err, err
        status, out = s.attach("mc.engine.drain('\\255')")
        assert status == 1 and "UTF-8" in out, out
        assert s.get("/ready")[0] == 200
        assert verb(s, "drain", "5")[0] == 0
        assert s.process.wait(10) == 0


def a_signal_while_loading_ends_the_process():
    with Server(wait=False) as s:
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(10) == 0
        assert not os.path.exists(s.socket)


if __name__ == "__main__":
    main([v for k, v in list(globals().items())
          if callable(v) and getattr(v, "__module__", "") == "__main__"
          and k not in ("mascon", "verb")])
