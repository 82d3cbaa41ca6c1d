"""mascon bench weights: a small run of what a large one measures."""
import json
import os
import subprocess

from mascon import MASCON, SANITIZED, Skip, main


def bench(*args):
    p = subprocess.run([MASCON, "bench", "weights", *args], capture_output=True, timeout=600)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def close(got, want, within):
    assert abs(got / want - 1) < within, (got, want)


def bench_weights_measures_each_form():
    if SANITIZED:
        raise Skip("it measures time")
    rc, out, err = bench("--size", "0.04", "--rounds", "1", "--json")
    assert rc == 0, err
    r = json.loads(out)
    forms = ("bf16", "fp8_block", "int4_g128_experts", "int4_g32_experts", "int4_all")
    for f in forms:
        for key in ("disk_bytes", "rss_bytes", "prefill_512", "decode_1", "decode_16", "decode_64"):
            assert r[f"moe_{f}_{key}"] > 0, (f, key)
        assert any(k.startswith(f"moe_{f}_moe_") and k.endswith("_roof") for k in r), f
    bf16 = r["moe_bf16_disk_bytes"]
    close(r["moe_fp8_block_disk_bytes"], bf16 / 2, 0.1)
    assert bf16 / 4 < r["moe_int4_g128_experts_disk_bytes"] < bf16 / 3
    assert r["moe_int4_all_disk_bytes"] < r["moe_int4_g128_experts_disk_bytes"] \
        < r["moe_int4_g32_experts_disk_bytes"] < r["moe_fp8_block_disk_bytes"]
    for n in (1, 16, 64):
        got = r[f"moe_int4_g128_experts_over_fp8_block_{n}"]
        said = r[f"moe_int4_g128_experts_over_fp8_block_{n}_by_bytes"]
        assert got > 0 and 1 < said < 2, (got, said)
        close(r[f"moe_int4_g128_experts_over_fp8_block_{n}_model_off"] + 1, said / got, 1e-9)
    rows = {x["name"]: x for x in r["rows"]}
    assert rows["moe_int4_g128_experts_over_bf16_1"]["mark"] == ">= 1.55"
    assert rows["moe_int4_g128_experts_over_bf16_1"]["command"] == "mascon bench weights"
    assert isinstance(r["invalid"], list)


def bench_weights_computes_eight_cards():
    rc, out, err = bench("--size", "0", "--json")
    assert rc == 0, err
    r = json.loads(out)
    p = subprocess.run([MASCON, "plan", "tests/configs/glm-5.2-fp8.json", "--ranks", "8", "--gpu",
                        "h200", "--recipe", "int4-g128-experts", "--json"], capture_output=True)
    steps = {s["seqs"]: s for s in json.loads(p.stdout)["steps"]}
    for n, s in steps.items():  # its fp8 leaves a few small matrices as they are
        close(r[f"h200x8_int4_g128_experts_step_us_{n}"], s["step_us"], 0.02)
        close(r[f"h200x8_fp8_block_step_us_{n}"], s["source_step_us"], 0.02)
        close(r[f"h200x8_int4_g128_experts_over_fp8_{n}"], s["ratio"], 0.03)


def bench_weights_takes_a_model_and_leaves_no_files():
    if SANITIZED:
        raise Skip("it measures time")
    before = set(os.listdir(os.environ.get("TMPDIR", "/tmp")))
    rc, out, err = bench("tests/models/tiny-llama", "--size", "0", "--rounds", "1")
    assert rc == 0, err
    assert "model_as_it_is_decode_64" in out and "model_int4_all_over_bf16_1 " in out, out
    left = {x for x in os.listdir(os.environ.get("TMPDIR", "/tmp")) if x.startswith("mascon-")}
    assert not [x for x in left - before if len(x) == len("mascon-XXXXXX")], left
    rc, _, err = bench("--size", "-1")
    assert rc == 1 and "--size -1" in err, err


if __name__ == "__main__":
    main([v for k, v in list(globals().items()) if k.startswith("bench_") and callable(v)])
