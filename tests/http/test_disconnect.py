"""A client that hangs up frees its pages within a second: streaming, not streaming, waiting."""
import json
import socket
import struct
import time

from mascon import Server, main


def send(server, stream, tokens=1500):
    body = json.dumps({"model": "default", "prompt": "Once upon a time", "max_tokens": tokens,
                       "ignore_eos": True, "stream": stream}).encode()
    s = socket.create_connection(("127.0.0.1", server.port))
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % len(body) + body)
    return s


def until(what, seconds=10):
    t0 = time.monotonic()
    while not what():
        assert time.monotonic() - t0 < seconds, "not in time"
        time.sleep(0.01)


def hang_up(sock, reset):
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def gone_within_a_second(stream, reset):
    with Server() as s:
        socks = [send(s, stream) for _ in range(4)]
        until(lambda: s.metric("mascon_num_requests_running") == 4)
        for sock in socks:
            hang_up(sock, reset)
        s.idle(timeout=1.5)
        steps = s.metric("mascon_steps_total")
        time.sleep(0.2)
        assert s.metric("mascon_steps_total") == steps
        assert s.metric("mascon_request_success_total", 'finished_reason="abort"') == 4
        assert s.log().count("client gone: ") == 4


def a_stream_whose_client_closes_is_cancelled():
    gone_within_a_second(True, False)


def a_stream_whose_client_resets_is_cancelled():
    gone_within_a_second(True, True)


def a_whole_answer_whose_client_closes_is_cancelled():
    gone_within_a_second(False, False)


def a_waiting_request_whose_client_closes_is_cancelled():
    with Server("--max-seqs", "1") as s:
        first = send(s, True)
        until(lambda: s.metric("mascon_num_requests_running") == 1)
        second = send(s, False)
        until(lambda: s.metric("mascon_num_requests_waiting") == 1)
        hang_up(second, False)
        until(lambda: s.metric("mascon_num_requests_waiting") == 0, 1.5)
        assert s.metric("mascon_num_requests_running") == 1
        hang_up(first, False)
        s.idle(timeout=1.5)


def a_client_that_closes_behind_the_end_is_not_called_gone():
    with Server() as s:
        for _ in range(40):
            sock, text = send(s, True, 40), b""
            while not text.endswith(b"\r\n0\r\n\r\n"):
                text += sock.recv(65536)
            sock.close()
        s.idle()
        assert "client gone" not in s.log(), s.log()


main([a_stream_whose_client_closes_is_cancelled,
      a_stream_whose_client_resets_is_cancelled,
      a_whole_answer_whose_client_closes_is_cancelled,
      a_waiting_request_whose_client_closes_is_cancelled,
      a_client_that_closes_behind_the_end_is_not_called_gone])
