"""--admin-listen: verbs and the REPL by TCP, for who has a key; nothing for who has none."""
import os
import re
import socket
import subprocess
import tempfile

from mascon import MASCON, MODEL, Server, main

where = keys = key = server = None


def run(*words, with_key=None, want=0):
    """stdout and stderr of a word, by TCP."""
    env = {k: v for k, v in os.environ.items() if k != "MASCON_ADMIN_KEY"}
    if with_key is not None:
        env["MASCON_ADMIN_KEY"] = with_key
    p = subprocess.run([MASCON, *words, "--socket", where], stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, timeout=60, env=env)
    assert p.returncode == want, (words, p.returncode, p.stdout)
    return p.stdout.decode()


def new_key(name):
    out = subprocess.run([MASCON, "key", "new", name, "--api-key-file", keys],
                         stdout=subprocess.PIPE, check=True).stdout.decode()
    return re.search(r"mk-\w+", out).group(0)


def asks(*data):
    """What comes back, up to the connection's end."""
    with socket.create_connection(where[4:].rsplit(":", 1), timeout=60) as s:
        got = b""
        try:
            for d in data:
                s.sendall(d)
            while more := s.recv(4096):
                got += more
        except ConnectionError:
            pass
        return got


def call(method, *texts):
    """[0, 1, method, texts] as msgpack."""
    def text(t):
        return b"\xd9" + bytes([len(t)]) + t.encode()
    return (b"\x94\0\1" + text(method) + bytes([0x90 + len(texts)])
            + b"".join(text(t) for t in texts))


def it_is_refused_without_keys_and_on_no_named_address():
    for flags, said in ((["--admin-listen", "127.0.0.1:0"], "needs --admin-key-file"),
                        (["--admin-listen", ":0", "--admin-key-file", keys], "needs a HOST"),
                        (["--admin-listen", "9000", "--admin-key-file", keys], "no HOST:PORT"),
                        (["--admin-listen", "127.0.0.1:0", "--admin-key-file", "/none"],
                         "/none")):
        with tempfile.TemporaryDirectory() as d:
            p = subprocess.run([MASCON, "serve", MODEL, "--port", "0", "--socket", d + "/s",
                                *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               timeout=60)
            assert p.returncode == 1 and said in p.stdout.decode(), p.stdout


def who_has_a_key_commands():
    assert "state          ok" in run("status", with_key=key)
    assert run("attach", "-e", "print('said') return 1 + 1", with_key=key) == "said\n2\n"
    assert "live" in run("policy", "list", with_key=key)
    assert "an admin key of 'ops' let it in" in server.log()


def who_has_none_is_heard_of_nothing():
    turns = server.attach("mc.engine.status().generation")[1]
    assert "MASCON_ADMIN_KEY is not set" in run("status", want=1)
    assert "wrong API key" in run("reload", with_key="mk-" + "0" * 48, want=1)
    for first in (call("reload"), call("drain", "1"), call("repl.eval", "1"), call("auth", "x"),
                  call("auth"), b"\x93\2\xabrepl.cancel\x90", b"GET / HTTP/1.1\r\n\r\n",
                  call("auth", "x") + call("reload")):
        got = asks(first)
        assert b"status" in got and b"generation" not in got, (first, got)
    assert server.attach("mc.engine.status().generation")[1] == turns
    assert server.get("/ready")[0] == 200


def who_has_none_keeps_nobody_out():
    held = []
    try:
        for _ in range(40):
            held.append(socket.create_connection(where[4:].rsplit(":", 1), timeout=60))
        assert server.attach("1 + 1") == (0, "2\n")
    finally:
        for s in held:
            s.close()


def keys_are_changed_while_it_runs():
    global key
    old, key = key, new_key("ops")
    with open(keys) as f:
        lines = f.read().splitlines()
    with open(keys, "w") as f:
        f.write(lines[-1] + "\n")
    run("reload", with_key=old)
    assert "wrong API key" in run("status", with_key=old, want=1)
    run("status", with_key=key)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as d:
        keys = d + "/keys"
        key = new_key("ops")
        with Server("--admin-listen", "127.0.0.1:0", "--admin-key-file", keys) as server:
            where = "tcp:127.0.0.1:" + re.search(r"admin listening host=\S+ port=(\d+)",
                                                 server.log()).group(1)
            main([it_is_refused_without_keys_and_on_no_named_address, who_has_a_key_commands,
                  who_has_none_is_heard_of_nothing, who_has_none_keeps_nobody_out,
                  keys_are_changed_while_it_runs])
