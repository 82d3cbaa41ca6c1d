"""The small models as GGUFs (tests/golden/to_gguf.py): the golden files of the checkpoints hold for
them too, tokenizer, chat template and draft layer included; on ref, on cpu and on ranks."""
import os
import subprocess
import sys
import tempfile

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../golden")]
from mascon import MASCON, SANITIZED, main  # noqa: E402
from to_gguf import convert  # noqa: E402

SHORT = ("layers.safetensors", "mtp.safetensors", "tokenizer.jsonl", "chat.jsonl")  # on ref


def check(model):
    golden = os.path.abspath(f"tests/models/{model}/golden")
    with tempfile.TemporaryDirectory(prefix="mascon-gguf-") as root:
        file, short = os.path.join(root, model + ".gguf"), os.path.join(root, "short")
        convert(f"tests/models/{model}", file)
        os.mkdir(short)
        for name in SHORT:
            if os.path.exists(os.path.join(golden, name)):
                os.symlink(os.path.join(golden, name), os.path.join(short, name))
        runs = [(short, "--backend", "ref"), (golden, "--backend", "cpu", "--kv", "bf16")]
        if not SANITIZED:
            runs.append((golden, "--backend", "cpu", "--kv", "bf16", "--ranks", "2"))
        for of, *flags in runs:
            run = subprocess.run([MASCON, "eval", file, "--golden", of, *flags], capture_output=True,
                                 text=True, timeout=900)
            assert run.returncode == 0, (flags, run.stdout, run.stderr)
        run = subprocess.run([MASCON, "plan", file, "--json"], capture_output=True, text=True, timeout=60)
        assert run.returncode == 0 and '"n_tensors"' in run.stdout, run.stdout + run.stderr


def gguf_of_kimi_gives_its_goldens():
    check("tiny-kimi")


def gguf_of_glm_gives_its_goldens():
    check("tiny-glm")


def gguf_of_qwen3_moe_gives_its_goldens():
    check("tiny-qwen3-moe")


if __name__ == "__main__":
    main([gguf_of_kimi_gives_its_goldens, gguf_of_glm_gives_its_goldens,
          gguf_of_qwen3_moe_gives_its_goldens])
