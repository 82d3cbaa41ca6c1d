"""mascon as a service: what it tells its manager, the watchdog, a port that outlives the process,
the units, the manual page, the crash report."""
import glob
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

from manager import Manager
from mascon import MASCON, SANITIZED, Server, Skip, main


def get(port, path, timeout=60):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    c.request("GET", path)
    status = c.getresponse().status
    c.close()
    return status


def a_manager_is_told_when_the_model_serves_and_when_it_stops():
    with Manager() as m:
        m.start()
        seen = m.told("READY=1")
        assert "STATUS=serving tiny-llama on port %d" % m.number in seen[-1], seen
        assert get(m.number, "/ready") == 200
        m.process.send_signal(signal.SIGTERM)
        m.told("STOPPING=1", 10)
        assert m.process.wait(30) == 0


def the_engines_loop_feeds_the_watchdog():
    if SANITIZED:
        raise Skip("a stopped process under a sanitizer")
    with Manager() as m:
        m.start(watchdog=0.8)
        m.told("READY=1")
        for _ in range(4):
            m.told("WATCHDOG=1", 2)
        began = time.monotonic()
        for _ in range(4):  # four a period
            m.told("WATCHDOG=1", 2)
        assert 0.4 < time.monotonic() - began < 3, time.monotonic() - began


def a_restart_refuses_no_request():
    refused, answered, stop = [], [0], threading.Event()

    def client(number):
        while not stop.is_set():
            c = http.client.HTTPConnection("127.0.0.1", number, timeout=60)
            try:
                c.request("POST", "/v1/completions", '{"prompt": "Once", "max_tokens": 8}',
                          {"content-type": "application/json"})
                r = c.getresponse()
                body = r.read()
                answered[0] += 1
                if r.status != 200:
                    refused.append((r.status, body))
            except OSError as e:
                refused.append(repr(e))
            c.close()

    with Manager() as m:
        m.start()
        m.told("READY=1")
        threads = [threading.Thread(target=client, args=(m.number,)) for _ in range(4)]
        for t in threads:
            t.start()
        for _ in range(2):
            time.sleep(0.5)
            m.process.send_signal(signal.SIGTERM)
            assert m.process.wait(60) == 0
            before = answered[0]
            m.start()
            m.told("READY=1")
            time.sleep(0.5)
            assert answered[0] > before
        stop.set()
        for t in threads:
            t.join()
        assert not refused, (len(refused), refused[:3], answered)


def units_are_what_systemd_takes():
    if not shutil.which("systemd-analyze"):
        raise Skip("no systemd-analyze")
    with tempfile.TemporaryDirectory() as d:
        for f in glob.glob("dist/mascon.s*"):
            text = open(f).read().replace("/usr/local/bin/mascon", os.path.abspath(MASCON))
            text = text.replace("Documentation=man:mascon(1)\n", "")  # not installed here
            open(os.path.join(d, os.path.basename(f)), "w").write(text)
        p = subprocess.run(["systemd-analyze", "verify", *glob.glob(d + "/*")],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert p.returncode == 0 and not p.stdout, p.stdout.decode()
    # every flag that the unit gives is one
    flags = re.findall(r"--[a-z-]+", re.search(r"ExecStart=(.*)", open(
        "dist/mascon.service").read()).group(1))
    help = subprocess.run([MASCON, "serve", "--help"], stdout=subprocess.PIPE).stdout.decode()
    assert flags and all(f in help for f in flags), flags


def the_manual_page_has_every_flag_and_verb():
    page = subprocess.run([MASCON, "man"], stdout=subprocess.PIPE).stdout
    if shutil.which("groff"):
        p = subprocess.run(["groff", "-man", "-Tutf8", "-ww"], input=page,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert p.returncode == 0 and not p.stderr, p.stderr.decode()
    text = page.decode().replace("\\-", "-")
    help = subprocess.run([MASCON, "serve", "--help"], stdout=subprocess.PIPE).stdout.decode()
    for flag in re.findall(r"^  (--[a-z-]+)", help, re.M):
        assert f".B {flag}" in text, flag
    words = subprocess.run([MASCON, "help"], stdout=subprocess.PIPE).stdout.decode()
    for word in re.findall(r"^  ([a-z]+) ", words, re.M):
        assert f".B {word}" in text, word


def a_crash_leaves_a_report_and_dies_of_its_signal():
    if SANITIZED:
        raise Skip("sanitizers have their own report")
    state = tempfile.mkdtemp(prefix="mascon-state-")
    os.environ["XDG_STATE_HOME"] = state
    try:
        with Server() as server:
            t = threading.Thread(target=lambda: swallow(lambda: server.request(
                "POST", "/v1/completions", {"prompt": "x", "max_tokens": 2000,
                                            "ignore_eos": True},
                headers={"x-request-id": "the-one-that-ran"})))
            t.start()
            while not server.metric("mascon_num_requests_running"):
                time.sleep(0.02)
            server.process.send_signal(signal.SIGSEGV)
            assert server.process.wait(30) == -signal.SIGSEGV
            t.join()
            report = open(glob.glob(state + "/mascon/crash-*")[0]).read()
            version = subprocess.run([MASCON, "version"], stdout=subprocess.PIPE).stdout.decode()
            build = re.search(r"build (\w+)", version).group(1)
            assert len(build) == 40 and f"build       {build}\n" in report, report
            for what in ("signal      SIGSEGV", "the-one-that-ran decode", "generation 1",
                         "last hook   ", "model       ", " enqueued, ", "frames\n"):
                assert what in report, (what, report)
            assert "crashed" in server.log() and "the-one-that-ran" in server.log()
    finally:
        del os.environ["XDG_STATE_HOME"]
        shutil.rmtree(state, ignore_errors=True)


def swallow(fn):
    try:
        fn()
    except (OSError, http.client.HTTPException):
        pass


def cores_have_neither_weights_nor_pages():
    with Server("--kv-memory", "64M") as server:
        omitted = 0
        for block in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", open(
                f"/proc/{server.process.pid}/smaps").read(), flags=re.M):
            size = re.search(r"^Size: +(\d+) kB", block, re.M)
            if not size:
                continue
            size, flags = int(size.group(1)), re.search(r"^VmFlags: (.*)$", block, re.M).group(1)
            if " dd" in " " + flags:
                omitted += size
        assert omitted >= 64 << 10, omitted


main([a_manager_is_told_when_the_model_serves_and_when_it_stops,
      the_engines_loop_feeds_the_watchdog,
      a_restart_refuses_no_request,
      units_are_what_systemd_takes,
      the_manual_page_has_every_flag_and_verb,
      a_crash_leaves_a_report_and_dies_of_its_signal,
      cores_have_neither_weights_nor_pages])
