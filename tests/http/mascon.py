"""What the HTTP tests share: a server process, requests, streams, TAP. Standard library only."""
import atexit
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

MASCON = os.environ.get("MASCON", "build/mascon")
MODEL = "tests/models/tiny-llama"
# A server of the operator's own has the default socket, and is none of the tests' business.
os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="mascon-test-")
atexit.register(shutil.rmtree, os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)
SANITIZED = "asan" in MASCON or "tsan" in MASCON  # some twenty times slower


class Server:
    """mascon serve on a free port, in a directory of its own; ends with the with block."""

    def __init__(self, *flags, model=MODEL, policies=None, wait=True):
        self.dir = tempfile.mkdtemp(prefix="mascon-test-")
        self.socket = os.path.join(self.dir, "sock")
        self.log_path = os.path.join(self.dir, "log")
        port_file = os.path.join(self.dir, "port")
        command = [MASCON, "serve", model, "--port", "0", "--port-file", port_file,
                   "--socket", self.socket, *flags]
        if policies:
            command += ["--policies", policies]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        until = time.monotonic() + 120
        while not (os.path.exists(port_file) and os.path.getsize(port_file)):
            self._alive(until)
        self.port = int(open(port_file).read())
        while wait and self.get("/ready")[0] != 200:
            self._alive(until)

    def _alive(self, until):
        if self.process.poll() is not None or time.monotonic() > until:
            raise RuntimeError("the server does not come up:\n" + self.log())
        time.sleep(0.02)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def log(self):
        return open(self.log_path, errors="replace").read()

    def request(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers, body bytes)"""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        c.request(method, path, body, {"content-type": "application/json", **(headers or {})})
        r = c.getresponse()
        data = r.read()
        c.close()
        return r.status, {k.lower(): v for k, v in r.getheaders()}, data

    def get(self, path):
        return self.request("GET", path)

    def post(self, path, body, **kw):
        """(status, parsed JSON)"""
        status, _, data = self.request("POST", path, body, **kw)
        return status, json.loads(data)

    def stream(self, path, body, on_event=None):
        """The events of an SSE answer, [DONE] left out but demanded."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        c.request("POST", path, json.dumps({**body, "stream": True}),
                  {"content-type": "application/json"})
        r = c.getresponse()
        if r.status != 200:
            raise AssertionError(f"{r.status}: {r.read()!r}")
        events, done = [], False
        for line in r:
            line = line.decode().rstrip("\n")
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                events.append(json.loads(line[6:]))
                if on_event:
                    on_event(events[-1])
        c.close()
        if not done:
            raise AssertionError("the stream has no [DONE]")
        return events

    def metric(self, name, labels=""):
        """A sample of /metrics by its whole name, or 0."""
        text = self.get("/metrics")[2].decode()
        found = re.findall(r"^" + re.escape(name) + r"(?:\{([^}]*)\})? (\S+)$", text, re.M)
        return sum(float(v) for have, v in found if labels in have)

    def attach(self, expr, timeout=60):
        """(exit status, stdout) of mascon attach -e EXPR"""
        p = subprocess.run([MASCON, "attach", "--socket", self.socket, "-e", expr],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout)
        return p.returncode, p.stdout.decode()

    def idle(self, timeout=10):
        """Waits until nothing runs and no page is held; fails otherwise."""
        until = time.monotonic() + timeout
        while (self.metric("mascon_num_requests_running")
               or self.metric("mascon_num_requests_waiting")
               or self.metric("mascon_kv_pages_held")):
            if time.monotonic() > until:
                raise AssertionError("not idle:\n" + self.get("/metrics")[2].decode())
            time.sleep(0.05)


def ids_of(events):
    """Token ids of a stream asked for with return_token_ids."""
    return [i for e in events for c in e["choices"] for i in c.get("token_ids") or []]


def at_once(jobs):
    """Runs functions in threads; their results, or the first exception."""
    out, errors = [None] * len(jobs), []

    def run(i, job):
        try:
            out[i] = job()
        except Exception as e:  # handed to the caller
            errors.append(e)

    threads = [threading.Thread(target=run, args=(i, j)) for i, j in enumerate(jobs)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return out


def main(tests):
    """Runs functions as TAP; an argument is a name filter. A test skips by raising Skip."""
    tests = [t for t in tests if len(sys.argv) < 2 or sys.argv[1] in t.__name__]
    failed = 0
    print(f"1..{len(tests)}", flush=True)
    for n, test in enumerate(tests, 1):
        try:
            test()
            print(f"ok {n} - {test.__name__}", flush=True)
        except Skip as why:
            print(f"ok {n} - {test.__name__} # SKIP {why}", flush=True)
        except Exception:
            failed += 1
            print(f"not ok {n} - {test.__name__}", flush=True)
            print("".join("# " + x + "\n" for x in traceback.format_exc().splitlines()),
                  flush=True)
    sys.exit(1 if failed else 0)


class Skip(Exception):
    pass
