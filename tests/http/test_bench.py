"""mascon bench kv, small: what it counts is exact, what it times is there."""
import json
import subprocess

from mascon import MASCON, MODEL, SANITIZED, Skip, main

TEXT = "tests/corpus/heldout.txt"


def bench(*flags):
    p = subprocess.run([MASCON, "bench", "kv", *flags], stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, text=True, timeout=600)
    return p.returncode, p.stdout, p.stderr


def bench_kv_counts_what_layouts_hold():
    if SANITIZED:
        raise Skip("it times things, and a sanitizer's memory counts")
    status, out, err = bench(MODEL, "tests/models/tiny-kimi", "--requests", "4", "--prompt", "320",
                             "--tokens", "16", "--room", "2", "--rounds", "1", "--text", TEXT, "--json")
    assert status == 0, err
    r = json.loads(out)
    assert abs(r["kv_ratio"] - 4 * 32 / (2 * 32 + 8)) < 1e-9, r["kv_ratio"]  # head dim 32
    assert r["kv_ratio_plain_mla"] == 2, r["kv_ratio_plain_mla"]
    assert abs(r["kv_ratio_656_mla"] - 2 * 576 / 656) < 1e-9, r["kv_ratio_656_mla"]
    for row in r["rows"]:
        assert r[row["name"]] == row["value"] and row["command"].startswith("mascon bench kv"), row
        if row["name"].startswith("kv_rss_token"):
            assert abs(row["value"] / int(row["mark"].split()[0]) - 1) < .02, row
        if row["name"].startswith("kv_bytes_step"):
            assert abs(row["value"] - 1) < .02, row
        if row["name"].startswith("kl"):
            assert 0 < row["value"] < .01, row
    assert {"throughput_ratio_4", "throughput_ratio_4_mla", "tag_cost", "prefix_speedup", "swap_speedup",
            "top1_656_tiny-kimi"} <= r.keys(), r.keys()


def bench_kv_names_what_it_refuses():
    status, _, err = bench("--requests", "none")
    assert status == 2 and "--requests" in err, err
    status, _, err = bench("no/such/model")
    assert status == 1 and "no/such/model" in err, err


main([bench_kv_counts_what_layouts_hold, bench_kv_names_what_it_refuses])
