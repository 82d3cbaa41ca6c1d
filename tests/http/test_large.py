"""A checkpoint of Kimi K2.6's real size and tensors, whose data, but for the shapes of packed
matrices, is a hole in a file: what is read before any weight must stay small and quick."""
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mascon import MASCON, SANITIZED, main  # noqa: E402
from sparse_kimi import CONFIG, write_sparse  # noqa: E402


def test_a_594_gb_checkpoint_is_read_in_seconds_and_little_memory():
    with open(CONFIG) as f:
        config = json.load(f)
    path = tempfile.mkdtemp(prefix="mascon-large-")
    try:
        n, total = write_sparse(path, config)
        assert n == 208215 and 594.0e9 < total < 594.4e9, (n, total)
        began, cpu = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        p = subprocess.run([MASCON, "plan", path, "--ranks", "8", "--gpu", "h200", "--json"],
                           capture_output=True, timeout=120)
        took = time.monotonic() - began
        cpu = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - cpu
        assert p.returncode == 0, p.stderr.decode()
        said = json.loads(p.stdout)
        # plan takes a packed matrix's shape for two I64, as most files have it
        shapes = sum(c["n_tensors"] // 3 for c in said["classes"] if c["name"] == "experts")
        assert said["n_tensors"] == n and said["weights_bytes"] == total + 8 * shapes, said
        assert [c["format"] for c in said["classes"] if c["name"] == "experts"] == ["int4-g32"]
        rss = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        print(f"# {n} tensors, {total / 1e9:.1f} GB: {took:.1f} s, of a core {cpu:.1f} s, {rss >> 10} MiB",
              flush=True)
        assert rss < 1 << 20, rss
        assert SANITIZED or cpu < 5, cpu  # of the clock 5 s on a machine of its own
    finally:
        shutil.rmtree(path)


main([v for k, v in list(globals().items()) if k.startswith("test_")])
