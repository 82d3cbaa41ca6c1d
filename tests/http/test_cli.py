"""What subcommands print and return: doctor's lines, bench's rows as they come, what is refused."""
import json
import subprocess
import tempfile

from mascon import MASCON, MODEL, main


def run(*args):
    p = subprocess.run([MASCON, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def each_line_of_doctor_is_ok_or_what_is_missing():
    status, out, err = run("doctor", MODEL)
    lines = {line.split()[1]: line for line in out.splitlines()}
    assert status == 0 and err == "", (status, err)
    assert all(line.startswith(("ok  ", "no  ")) for line in lines.values()), out
    for what in ("cpu", "ref", "memory", "config", "tokenizer", "template", "model"):
        assert lines[what].startswith("ok"), out
    rows = json.loads(run("doctor", "--json")[1])
    assert {r["what"]: r["ok"] for r in rows}["cpu"] is True
    # what the backend's flag takes and what doctor says of it agree
    refused = run("serve", MODEL, "--backend", "cuda", "--port", "0")[0] != 0
    assert lines["cuda"].startswith("no" if refused else "ok"), lines["cuda"]


def doctor_says_what_keeps_a_model_from_loading():
    status, out, _ = run("doctor", "tests/models/no-such-model")
    assert status == 1 and "\nno  model" in out, out
    status, out, _ = run("doctor", "tests/models/smollm2-vocab/smollm2-vocab.gguf")
    assert status == 1 and "\nno  model" in out, out


def bench_shows_each_row_when_it_is_done():
    p = subprocess.Popen([MASCON, "bench", MODEL], stdout=subprocess.PIPE)
    try:
        assert b"memory roof" in p.stdout.readline()
        assert p.stdout.readline().split()[0] == b"prefill_512"
        assert p.poll() is None
        try:
            p.wait(0.2)
            raise AssertionError("the rows came all at once")
        except subprocess.TimeoutExpired:
            pass
    finally:
        p.kill()
        p.wait()


def bench_run_asks_for_its_model():
    status, out, err = run("bench", "run")
    assert status == 2 and "of which MODEL?" in err and "[run] MODEL" in err, err
    status, _, err = run("bench", "jump", MODEL)
    assert status == 2 and "'jump'" in err, err


def a_pool_beyond_memory_is_refused_by_name():
    status, _, err = run("serve", MODEL, "--port", "0", "--kv-memory", "100T")
    assert status == 1 and "--kv-memory" in err and "this machine's" in err, err


def what_is_refused_names_its_flag():
    for flags, of in ((("--lane-weight", "1"), "lane_weight"),
                      (("--lane-weight", "9=1"), "lane_weight"),
                      (("--tenant-rate", "a=1"), "tenant_rate"),
                      (("--listen", "256.1.1.1:1"), "--listen"),
                      (("--trusted-proxies", "x"), "--trusted-proxies"),
                      (("--api-key-file", "tests"), "Is a directory")):
        status, _, err = run("serve", MODEL, "--port", "0", "--socket",
                             tempfile.mktemp(prefix="mascon-test-"), *flags)
        assert status == 1 and of in err.splitlines()[-1], (flags, err)


def help_has_a_command():
    assert run("help", "serve") == run("serve", "--help")
    assert run("help")[:2] == run("--help")[:2] and run("help", "nope")[0] == 2


main([each_line_of_doctor_is_ok_or_what_is_missing,
      doctor_says_what_keeps_a_model_from_loading,
      bench_shows_each_row_when_it_is_done,
      bench_run_asks_for_its_model,
      a_pool_beyond_memory_is_refused_by_name,
      what_is_refused_names_its_flag,
      help_has_a_command])
