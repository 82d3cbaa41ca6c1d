"""mascon eval: a text's perplexity, distance between two models, tasks; what it refuses."""
import json
import os
import subprocess
import tempfile

from mascon import MASCON, main

TEXT = "tests/corpus/heldout.txt"
M = "tests/models/"


def mascon(*args):
    """(exit status, stdout, stderr)"""
    p = subprocess.run([MASCON, "eval", *args], capture_output=True, timeout=300)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def result(*args):
    rc, out, err = mascon(*args, "--json")
    assert rc == 0, err
    return json.loads(out)


def refused(words, *args):
    rc, _, err = mascon(*args)
    assert rc in (1, 2) and words in err, (args, err)


def task(*questions):
    f = tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False)
    for q in questions:
        f.write((q if isinstance(q, str) else json.dumps(q)) + "\n")
    f.close()
    return f.name


def test_a_model_is_no_distance_from_itself():
    r = result(M + "tiny-llama", "--text", TEXT, "--against", M + "tiny-llama")
    assert r["kl"] == 0 and r["kl_max"] == 0 and r["top1"] == 1 and r["top1_clear"] == 1, r
    assert r["perplexity"] == r["against"] and 100 < r["perplexity"] < 170, r


def test_coarser_weights_and_pages_are_further_away():
    fp8 = result(M + "tiny-llama-fp8", "--text", TEXT, "--against", M + "tiny-llama")
    int4 = result(M + "tiny-llama-w4a16", "--text", TEXT, "--against", M + "tiny-llama")
    kv = result(M + "tiny-llama", "--kv", "fp8", "--text", TEXT, "--against", M + "tiny-llama")
    assert 0 < fp8["kl"] < int4["kl"] < 0.02, (fp8, int4)
    assert 0 < kv["kl"] < 3e-3 and kv["top1"] >= 0.96, kv
    assert kv["top1_clear"] >= 0.995 and kv["clear"] > 1000, kv
    assert kv["perplexity"] < 1.005 * kv["against"], kv


def test_latents_are_expanded_by_default_and_a_flag_says_never():
    with tempfile.TemporaryDirectory() as golden:
        os.symlink(os.path.abspath(M + "tiny-kimi/golden/logits.safetensors"), golden + "/logits.safetensors")
        said = {}
        for flags in ((), ("--mla-expand", "0"), ("--mla-expand", "192")):
            rc, out, err = mascon(M + "tiny-kimi", "--golden", golden, "--kv", "f32", *flags)
            assert rc == 0, out + err
            said[flags] = out
    default, never, from_192 = said.values()
    assert default == from_192 != never, said


def test_a_task_counts_right_answers():
    r = result(M + "tiny-llama", "--task", "tests/corpus/cloze.jsonl")
    assert r["choice"] == 160 and r["cloze"] == 80, r
    assert 80 <= r["choice_right"] <= 130, r  # a coin with four sides: 40
    name = task({"context": "I know not what", "choices": [" zzqx", " you"], "answer": 1},
                {"context": "I know not what", "choices": [" zzqx", " you"], "answer": 0},
                {"context": "I know not what", "answer": " zzqx"})
    r = result(M + "tiny-llama", "--task", name)
    os.remove(name)
    assert (r["choice"], r["choice_right"], r["cloze"], r["cloze_right"]) == (2, 1, 1, 0), r


def test_bad_tasks_and_flags_are_named():
    model = M + "tiny-llama"
    refused("one of --golden", model)
    refused("one of --golden", model, "--text", TEXT, "--task", TEXT)
    refused("--against goes with --text", model, "--task", TEXT, "--against", model)
    refused("'nonsense' is not one of", model, "--text", TEXT, "--kv", "nonsense")
    for q, words in (("{", "line 1"), ({"context": 3}, "context must be a text"),
                     ({"context": "a"}, "answer must be a text"),
                     ({"context": "a", "choices": [" b"], "answer": 0}, "choices must be 2"),
                     ({"context": "a", "choices": [" b", " c"], "answer": 2}, "no index"),
                     ({"context": "a", "choices": [" b", ""], "answer": 0}, "choices must be"),
                     ({"context": "a " * 4000, "answer": " b"}, "too long"),
                     ("", "asks nothing")):
        name = task(q)
        refused(words, model, "--task", name)
        os.remove(name)


main([v for k, v in list(globals().items()) if k.startswith("test_")])
