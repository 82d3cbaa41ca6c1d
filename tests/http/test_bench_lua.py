"""mascon bench lua: every number is there, and those with a mark that no machine's load explains
away are within it."""
import json
import subprocess

from mascon import MASCON, MODEL, SANITIZED, Skip, main


def bench(*args):
    p = subprocess.run([MASCON, "bench", "lua", *args], stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, timeout=600)
    assert p.returncode == 0, p.stderr.decode()
    return p.stdout.decode()


def what_scripts_cost_is_measured():
    if SANITIZED:
        raise Skip("it times things")
    r = json.loads(bench(MODEL, "--json"))
    for name in ("plan_us_1", "plan_us_64", "plan_us_256", "pick_us", "chain_us", "reload_ms",
                 "runaway_ms", "runaway_back_ms", "step_vm_heap_kb", "step_us_64", "sse_pumped_s",
                 "sse_lua_s", "reload_served_ms"):
        assert r[name] > 0, name
    assert r["lua_share_64"] < 0.01 and r["plan_share_64"] < 0.2, r
    assert r["plan_us_1"] < r["plan_us_256"] and r["step_vm_heap_kb"] < 4096, r
    assert all(row["command"].startswith("mascon bench lua") for row in r["rows"])


def without_a_model_no_server_is_started():
    if SANITIZED:
        raise Skip("it times things")
    out = bench()
    assert "plan_us_64" in out and "sse_lua_s" not in out, out


main([what_scripts_cost_is_measured, without_a_model_no_server_is_started])
