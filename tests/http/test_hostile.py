"""What bad luck and bad manners do to the process: half requests, closed streams, a small stack,
values and tokens that are no text. The server answers, frees what was held, stays right."""
import os
import resource
import socket
import subprocess
import time

from mascon import Server, main

GREEDY = {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0, "ignore_eos": True}


def canned(server):
    status, a = server.post("/v1/completions", GREEDY)
    assert status == 200, a
    return a["choices"][0]["text"]


def descriptors(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def server_after(what):
    """A server whose process ran what() before it became mascon."""
    popen = subprocess.Popen
    subprocess.Popen = lambda *a, **kw: popen(*a, preexec_fn=what, **kw)
    try:
        return Server()
    finally:
        subprocess.Popen = popen


def close_standard_streams():
    for fd in range(3):
        os.close(fd)


def shrink_stack():
    resource.setrlimit(resource.RLIMIT_STACK,
                       (64 << 10, resource.getrlimit(resource.RLIMIT_STACK)[1]))


def cpu_seconds(server):
    fields = open(f"/proc/{server.process.pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def no_descriptor_left_costs_no_time():
    with Server() as s:
        want = canned(s)
        n = descriptors(s) + 10
    with server_after(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n))) as s:
        socks = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(2 * n)]
        socks += [socket.socket(socket.AF_UNIX) for _ in range(2)]
        for c in socks[-2:]:
            c.connect(s.socket)
        time.sleep(0.3)
        assert descriptors(s) == n
        before = cpu_seconds(s)
        time.sleep(2)
        assert cpu_seconds(s) - before < 0.2
        for c in socks:
            c.close()
        assert canned(s) == want


def half_a_request_is_freed_when_its_client_is_gone():
    with Server() as s:
        canned(s)
        before = descriptors(s)
        for part in (b"POST /v1/comp", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"):
            for _ in range(8):
                c = socket.create_connection(("127.0.0.1", s.port))
                c.sendall(part)
                c.close()
        until = time.monotonic() + 3
        while descriptors(s) > before:
            assert time.monotonic() < until, (before, descriptors(s))
            time.sleep(0.05)


def a_half_closed_client_still_gets_what_it_asked_for():
    with Server() as s:
        c = socket.create_connection(("127.0.0.1", s.port))
        c.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        c.shutdown(socket.SHUT_WR)
        c.settimeout(5)
        data = b""
        while True:
            got = c.recv(4096)
            if not got:
                break
            data += got
        assert data.startswith(b"HTTP/1.1 200") and data.endswith(b'{"status":"ok"}'), data


def tokens_that_are_no_text_are_detokenized():
    with Server() as s:
        for ids in [[i] for i in range(0, 2048, 7)] + [list(range(2048))]:
            status, a = s.post("/v1/detokenize", {"tokens": ids})
            assert status == 200 and isinstance(a["prompt"], str), (ids[:3], a)


def a_prompt_that_can_not_fit_is_refused_unread():
    with Server() as s:
        status, a = s.post("/v1/completions", {"prompt": "^a " * 1000000, "max_tokens": 1})
        assert status == 400 and a["error"]["code"] == "context_length_exceeded", a
        assert a["error"]["message"].startswith("the prompt has 3000000 bytes"), a


def resident_mb(server):
    for line in open(f"/proc/{server.process.pid}/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) >> 10
    raise AssertionError("no VmRSS")


def bodies_of_nothing_but_commas_fill_no_memory():
    with Server() as s:
        want, before = canned(s), resident_mb(s)
        for body in ('{"prompt": [' + "1," * 8000000 + "1]}",
                     '{"prompt": "x", "y": [' + "[]," * 4000000 + "[]]}"):
            for _ in range(3):
                status, a = s.post("/v1/completions", body)
                assert status == 413 and a["error"]["code"] == "request_too_large", a
        assert resident_mb(s) - before < 200, (before, resident_mb(s))
        assert "given up" not in s.log() and canned(s) == want


def stops_that_are_no_list_are_refused():
    with Server() as s:
        for field in ("stop", "stop_token_ids"):
            for v in ("{}", '{"a": 1}', '{"a": "b"}', "-0.0", "9007199254740993", "true"):
                body = '{"prompt": "x", "max_tokens": 1, "%s": %s}' % (field, v)
                status, a = s.post("/v1/completions", body)
                assert status == 400 and a["error"]["param"] == field, (body, a)


def closed_standard_streams_are_nobody_elses():
    with Server() as s:
        want = canned(s)
    with server_after(close_standard_streams) as s:
        for fd in range(3):
            assert os.readlink(f"/proc/{s.process.pid}/fd/{fd}") == "/dev/null"
        for _ in range(8):
            assert s.attach("mc.log.error('a line') return 7") == (0, "7\n")
        assert canned(s) == want


def a_small_stack_changes_no_token():
    with Server() as s:
        want = canned(s)
    with server_after(shrink_stack) as s:
        assert canned(s) == want


if __name__ == "__main__":
    main([no_descriptor_left_costs_no_time,
          half_a_request_is_freed_when_its_client_is_gone,
          a_half_closed_client_still_gets_what_it_asked_for,
          tokens_that_are_no_text_are_detokenized,
          a_prompt_that_can_not_fit_is_refused_unread,
          bodies_of_nothing_but_commas_fill_no_memory,
          stops_that_are_no_list_are_refused,
          closed_standard_streams_are_nobody_elses,
          a_small_stack_changes_no_token])
