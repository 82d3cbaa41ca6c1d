"""mascon compress: what it writes, that a killed run goes on, that others can read it."""
import filecmp
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

from mascon import MASCON, Skip, main

MODELS = "tests/models/"


class Dir:
    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="mascon-compress-")
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)


def mascon(*args):
    """(exit status, stdout, stderr)"""
    p = subprocess.run([MASCON, *args], capture_output=True, timeout=300)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def compress(*args):
    rc, out, err = mascon("compress", *args, "--json")
    assert rc == 0, err
    return [json.loads(line) for line in out.splitlines()]


def same(a, b):
    names = sorted(os.listdir(a))
    assert names == sorted(os.listdir(b)), (names, os.listdir(b))
    for name in names:
        assert filecmp.cmp(os.path.join(a, name), os.path.join(b, name), False), name


def write_model(path, layers, rows, columns):
    """A checkpoint of bf16 matrices, all finite, with tiny-llama's other files."""
    shutil.copytree(MODELS + "tiny-llama", path, ignore=shutil.ignore_patterns("golden"))
    near = bytes(0x3C if i & 1 else 0xBC for i in range(256))
    noise = random.Random(7)
    header, data = {}, []
    for i in range(layers):
        raw = bytearray(noise.randbytes(2 * rows * columns))
        raw[1::2] = raw[1::2].translate(near)
        at = 2 * rows * columns * i
        header[f"model.layers.{i}.mlp.up_proj.weight"] = {
            "dtype": "BF16", "shape": [rows, columns], "data_offsets": [at, at + len(raw)]}
        data.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(path, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def test_explain_says_what_the_run_does():
    with Dir() as d:
        said = compress(MODELS + "tiny-glm", "--explain", "--recipe", "int4-g32-experts")
        done = compress(MODELS + "tiny-glm", d + "/out", "--recipe", "int4-g32-experts")
        for a, b in zip([x for x in said if "matrices" in x or "ratio" in x], done):
            for key in ("role", "from", "to", "matrices", "weights", "bits_weight", "to_bytes"):
                assert a.get(key) == b.get(key), (key, a, b)
        lines = {x["module"]: x for x in said if "module" in x}
        assert lines["model.layers.3.mlp.experts.0.up_proj"]["to"] == "int4-g32"
        assert lines["model.layers.3.mlp.gate"]["to"] == "as it is"
        assert "model.layers.7.eh_proj" not in lines


def test_experts_lose_little_and_the_rest_is_kept():
    with Dir() as d:
        out = compress(MODELS + "tiny-glm", d + "/out")
        expert = [x for x in out if x.get("role") == "expert"]
        assert len(expert) == 1 and expert[0]["to"] == "int4-g128", expert
        assert 0.05 < expert[0]["relative_error"] < 0.12, expert
        assert 0.990 < expert[0]["cosine"] < 0.999, expert
        kept = [x for x in out if x.get("role") == "attention"]
        assert kept == [x for x in kept if x["to"] == "as it is" and not x["relative_error"]]


def test_any_number_of_threads_writes_the_same_bytes():
    with Dir() as d:
        for recipe in ("int4-g32-experts", "nvfp4-experts"):
            compress(MODELS + "tiny-kimi", d + "/one", "--recipe", recipe, "--jobs", "1")
            compress(MODELS + "tiny-kimi", d + "/five", "--recipe", recipe, "--jobs", "5")
            same(d + "/one", d + "/five")
            shutil.rmtree(d + "/one")
            shutil.rmtree(d + "/five")


def test_a_killed_run_goes_on_with_the_same_bytes():
    with Dir() as d:
        write_model(d + "/src", 12, 1024, 1024)
        args = [d + "/src", "--recipe", "int4-all", "--jobs", "1", "--shard-size", "0.0015"]
        whole = compress(args[0], d + "/whole", *args[1:])
        for kill_after in (1, 5):
            p = subprocess.Popen([MASCON, "compress", args[0], d + "/cut", *args[1:]],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            until = time.monotonic() + 60
            while (not os.path.isdir(d + "/cut") or
                   sum(x.endswith(".safetensors") for x in os.listdir(d + "/cut")) < kill_after):
                assert time.monotonic() < until and p.poll() is None
                time.sleep(0.001)
            p.send_signal(signal.SIGKILL)
            p.wait()
            assert not os.path.exists(d + "/cut/config.json")
            rc, _, err = mascon("eval", d + "/cut", "--text", "README.md")
            assert rc != 0, "what is unfinished was loaded"
        again = compress(args[0], d + "/cut", *args[1:])
        same(d + "/whole", d + "/cut")
        assert again == whole


def test_a_foreign_or_whole_destination_is_refused():
    with Dir() as d:
        src = MODELS + "tiny-llama"
        compress(src, d + "/out", "--recipe", "int4-all")
        rc, _, err = mascon("compress", src, d + "/out", "--recipe", "int4-all")
        assert rc == 1 and "whole checkpoint already" in err, err
        os.remove(d + "/out/config.json")
        rc, _, err = mascon("compress", src, d + "/out", "--recipe", "fp8-block")
        assert rc == 1 and "another source or recipe" in err, err
        with open(d + "/text", "w") as f:
            f.write(open("tests/corpus/heldout.txt").read()[:8000])
        for more in (["--calibrate", d + "/text"], ["--shard-size", "0.002"]):
            rc, _, err = mascon("compress", src, d + "/out", "--recipe", "int4-all", *more)
            assert rc == 1 and "another source or recipe" in err, (more, err)
        os.remove(d + "/out/compress.json")
        rc, _, err = mascon("compress", src, d + "/out", "--recipe", "int4-all")
        assert rc == 1 and "not empty" in err, err


def test_bad_input_is_named():
    with Dir() as d:
        src = MODELS + "tiny-llama"
        for args, words in (
                ([src, d + "/o", "--recipe", "int4"], "no recipe 'int4'; there are bf16"),
                ([src], "name DST"),
                ([src, d + "/o", "--explain"], "leave DST out"),
                ([src, d + "/o", "--jobs", "-1"], "--jobs -1"),
                ([src, d + "/no/such/o"], "No such file"),
                (["/nowhere", d + "/o"], "/nowhere")):
            rc, _, err = mascon("compress", *args)
            assert rc == 1 and words in err, (args, err)
        with open(d + "/r.lua", "w") as f:
            f.write("return { rules = { { role = 'expert', to = 'int5' } } }")
        rc, _, err = mascon("compress", src, d + "/o", "--recipe", d + "/r.lua")
        assert rc == 1 and "rule 1: to = 'int5'" in err, err
        assert not os.path.exists(d + "/o")


def test_a_weight_that_is_no_number_is_refused_by_name():
    with Dir() as d:
        write_model(d + "/src", 2, 256, 256)
        with open(d + "/src/model.safetensors", "r+b") as f:
            f.seek(-2 * 256 * 3, 2)
            f.write(b"\xc0\x7f")
        rc, _, err = mascon("compress", d + "/src", d + "/out", "--recipe", "fp8-block")
        assert rc == 1 and "model.layers.1.mlp.up_proj holds a NaN" in err, err
        assert not os.path.exists(d + "/out/config.json")


def test_a_full_disk_leaves_nothing_that_loads():
    with Dir() as d:
        write_model(d + "/src", 4, 512, 512)

        def little():
            resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, 700_000))

        args = [d + "/src", d + "/out", "--recipe", "fp8-block", "--shard-size", "0.001"]
        p = subprocess.run([MASCON, "compress", *args], capture_output=True, preexec_fn=little)
        assert p.returncode == 1 and b"File too large" in p.stderr, p.stderr
        assert not os.path.exists(d + "/out/config.json")
        assert not [x for x in os.listdir(d + "/out") if x.endswith(".safetensors")]
        again = compress(*args)
        whole = compress(d + "/src", d + "/whole", *args[2:])
        same(d + "/whole", d + "/out")
        assert again == whole


def test_a_disk_without_room_is_found_before_anything_is_written():
    with Dir() as d:
        write_model(d + "/src", 2, 256, 256)
        os.mkdir(d + "/small")
        p = subprocess.run(["unshare", "-rm", "sh", "-c",
                            f"mount -t tmpfs -o size=1m none {d}/small && {MASCON} compress {d}/src "
                            f"{d}/small/out --recipe fp8-block; e=$?; ls -A {d}/small/out; exit $e"],
                           capture_output=True)
        if b"unshare" in p.stderr or b"mount:" in p.stderr:
            raise Skip("no file system can be mounted here")
        assert p.returncode == 1 and b"has room for 0.0 GB" in p.stderr, p.stderr
        assert b"safetensors" not in p.stdout, p.stdout


SOURCES = ("tiny-llama", "tiny-llama-fp8", "tiny-llama-w4a16", "tiny-llama-nvfp4",
           "tiny-llama-gguf/tiny-llama-q8_0.gguf")
NVFP4 = """return { rules = { { role = { "attention", "mlp" }, to = "nvfp4" } } }"""


def test_every_format_becomes_every_other():
    """The result stays as near its source as its format can, whatever the source's."""
    with Dir() as d:
        with open(d + "/nvfp4.lua", "w") as f:
            f.write(NVFP4)
        with open(d + "/text", "w") as f:
            f.write(open("tests/corpus/heldout.txt").read()[:6000])
        for i, src in enumerate(SOURCES):
            for recipe, most, kl in (("bf16", 0.0025, 2e-4), ("fp8-block", 0.03, 0.01),
                                     ("int4-all", 0.12, 0.1), (d + "/nvfp4.lua", 0.12, 0.1)):
                out = f"{d}/{i}-{os.path.basename(recipe)}"
                classes = compress(MODELS + src, out, "--recipe", recipe)
                for c in classes:
                    assert c.get("relative_error", 0) < most, (src, recipe, c)
                    assert c.get("cosine", 1) > 1 - most * most, (src, recipe, c)
                rc, said, err = mascon("eval", out, "--text", d + "/text", "--against",
                                       MODELS + src, "--json")
                assert rc == 0, (src, recipe, err)
                assert json.loads(said)["kl"] < kl, (src, recipe, said)


def test_a_gguf_becomes_a_directory_with_its_tokenizer():
    with Dir() as d:
        gguf = MODELS + SOURCES[-1]
        compress(gguf, d + "/out", "--recipe", "bf16")
        text = open("tests/corpus/heldout.txt").read()[:20000] + " <|end|> 123 4\u00e9 \n\n x"
        ids = [subprocess.run([MASCON, "tokenize", m, *flags], input=text.encode(),
                              capture_output=True, check=True).stdout
               for m in (gguf, d + "/out")
               for flags in ([], ["--add-special"], ["--parse-special"])]
        assert ids[:3] == ids[3:] and len(ids[0]) > 1000
        rc, _, err = mascon("doctor", d + "/out")
        assert rc == 0, err


def test_the_result_runs_on_ranks():
    with Dir() as d:
        with open(d + "/text", "w") as f:
            f.write(open("tests/corpus/heldout.txt").read()[:6000])
        for i, (model, recipe) in enumerate((
                ("tiny-qwen3-moe", "int4-g32-experts"), ("tiny-glm", "int4-g128-experts"),
                ("tiny-kimi", "nvfp4-experts"), ("tiny-llama", "fp8-block"))):
            compress(MODELS + model, f"{d}/{i}", "--recipe", recipe)
            got = []
            for ranks in ("1", "2", "4"):
                rc, said, err = mascon("eval", f"{d}/{i}", "--text", d + "/text", "--ranks", ranks,
                                       "--json")
                if rc and "can't be shared" in err:
                    continue
                assert rc == 0, (model, recipe, ranks, err)
                got.append(json.loads(said)["nll"])
            assert len(got) > 1 and max(got) - min(got) < 2e-3, (model, recipe, got)


def perplexity(model):
    rc, out, err = mascon("eval", model, "--text", "tests/corpus/heldout.txt", "--json")
    assert rc == 0, err
    return json.loads(out)["perplexity"]


def test_the_result_is_served_and_predicts_nearly_as_well():
    with Dir() as d:
        src = perplexity(MODELS + "tiny-llama")
        for recipe, most in (("fp8-block", 1.003), ("int4-all", 1.02)):
            compress(MODELS + "tiny-llama", d + "/" + recipe, "--recipe", recipe)
            got = perplexity(d + "/" + recipe)
            assert got != src and got < src * most, (recipe, got, src)


def test_a_text_teaches_which_columns_matter():
    with Dir() as d:
        src = MODELS + "tiny-llama"
        with open(d + "/text", "w") as f:
            f.write(open("tests/corpus/heldout.txt").read()[:60000])
        with open(d + "/rest", "w") as f:
            f.write(open("tests/corpus/heldout.txt").read()[60000:])

        def distance(path):
            rc, out, err = mascon("eval", path, "--text", d + "/rest", "--against", src, "--json")
            assert rc == 0, err
            return json.loads(out)["kl"]

        compress(src, d + "/plain", "--recipe", "int4-all")
        out = compress(src, d + "/taught", "--recipe", "int4-all", "--calibrate", d + "/text")
        assert out[0]["calibrated_tokens"] == 16384, out[0]
        assert distance(d + "/taught") < 0.97 * distance(d + "/plain")
        rc, _, err = mascon("compress", src, d + "/o", "--calibrate", d + "/none")
        assert rc == 1 and "holds no text" in err, err


def test_every_expert_is_counted():
    with Dir() as d:
        with open(d + "/text", "w") as f:
            f.write(open("tests/corpus/heldout.txt").read()[:8000])
        out = compress(MODELS + "tiny-qwen3-moe", d + "/out", "--calibrate", d + "/text")
        seen = out[0]
        assert seen["experts"] == 4 * 8 and seen["unseen"] == 0, seen
        rows = seen["mean_rows"] * seen["experts"]
        assert abs(rows - seen["calibrated_tokens"] * 4 * 2) < 10, seen  # layers, top 2
        with open(d + "/out/compress.json") as f:
            by = json.load(f)["calibration"]
        assert len(by) == 4 * 8 and abs(sum(by.values()) - rows) < 10, by
        assert min(by.values()) == seen["least_rows"] and max(by.values()) == seen["most_rows"]
        assert "model.layers.3.mlp.experts.7" in by


def tensor_place(path, name):
    """(file, offset, bytes) of a tensor of a directory."""
    for file in sorted(os.listdir(path)):
        if not file.endswith(".safetensors"):
            continue
        with open(os.path.join(path, file), "rb") as f:
            n, = struct.unpack("<Q", f.read(8))
            found = json.loads(f.read(n)).get(name)
        if found:
            at, to = found["data_offsets"]
            return os.path.join(path, file), 8 + n + at, to - at
    raise AssertionError(name)


def tensor(path, name):
    file, at, n = tensor_place(path, name)
    with open(file, "rb") as f:
        f.seek(at)
        return f.read(n)


def test_an_expert_that_no_token_takes_is_calibrated_too():
    unseen, seen = ("model.layers.3.mlp.experts.%d" % e for e in (5, 6))
    with Dir() as d:
        shutil.copytree(MODELS + "tiny-glm", d + "/src", ignore=shutil.ignore_patterns("golden"))
        file, at, n = tensor_place(d + "/src", "model.layers.3.mlp.gate.e_score_correction_bias")
        with open(file, "r+b") as f:
            f.seek(at + 5 * 4)
            f.write(struct.pack("<f", -1000))
        with open(d + "/text", "w") as f:
            f.write(open("tests/corpus/heldout.txt").read()[:3000])
        compress(d + "/src", d + "/plain", "--recipe", "int4-all")
        rc, out, err = mascon("compress", d + "/src", d + "/out", "--recipe", "int4-all", "--calibrate", d + "/text",
                              "--json")
        assert rc == 0, err
        said = json.loads(out.splitlines()[0])
        assert said["unseen"] == 1 and said["least_rows"] == 0 and said["lent"] >= 1, said
        assert f"no row to {unseen}: 512 rows of its layer" in err and seen not in err, err
        with open(d + "/out/compress.json") as f:
            assert json.load(f)["calibration"][unseen] == 0
        for matrix in ("gate_proj", "up_proj", "down_proj"):
            for e in (unseen, seen):  # the scales were chosen by what the columns see
                name = f"{e}.{matrix}.weight_scale"
                assert tensor(d + "/plain", name) != tensor(d + "/out", name), name


def test_others_read_it():
    python = os.environ.get("MASCON_TORCH_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import torch, compressed_tensors, safetensors"],
                      capture_output=True).returncode:
        raise Skip("torch, safetensors and compressed-tensors are not there "
                   "(MASCON_TORCH_PYTHON names a python that has them)")
    with Dir() as d:
        for i, (model, recipe) in enumerate((
                ("tiny-qwen3-moe", "int4-g32-experts"), ("tiny-glm", "int4-g128-experts"),
                ("tiny-kimi", "nvfp4-experts"), ("tiny-llama", "int4-all"),
                ("tiny-llama", "fp8-block"))):
            compress(MODELS + model, f"{d}/{i}", "--recipe", recipe)
            p = subprocess.run([python, "tests/golden/check_compressed.py", MODELS + model,
                                f"{d}/{i}"], capture_output=True)
            assert p.returncode == 0, p.stdout.decode() + p.stderr.decode()


main([v for k, v in list(globals().items()) if k.startswith("test_")])
