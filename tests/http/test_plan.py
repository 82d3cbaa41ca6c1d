"""`mascon plan`: the published figures of large models from their config.json, and flags."""
import json
import os
import shutil
import subprocess
import tempfile

from mascon import MASCON, Server, main

GIB = 2**30
KIMI, GLM = "tests/configs/kimi-k2.6.json", "tests/configs/glm-5.2-fp8.json"


def run(*args):
    p = subprocess.run([MASCON, "plan", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       timeout=60)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def plan(*args):
    status, out, err = run(*args, "--json")
    assert status == 0, err
    return json.loads(out)


def close(got, want, within=0.001):
    assert abs(got / want - 1) < within, (got, want)


def plan_gives_the_published_weights():
    kimi = plan(KIMI, "--ranks", "8", "--gpu", "h200")
    assert kimi["n_tensors"] == 208215 and kimi["kv"] == "bf16" and kimi["fits"]
    close(kimi["weights_bytes"], 594.2e9)
    close(kimi["weights_bytes_rank"], 70.9 * GIB)
    glm = plan(GLM, "--ranks", "8", "--gpu", "h200")
    assert glm["n_tensors"] == 118629
    close(glm["weights_bytes"], 755.6e9)
    close(glm["weights_bytes_rank"], 89.5 * GIB)
    for p in (kimi, glm):
        assert sum(c["bytes"] for c in p["classes"]) == p["weights_bytes"]
        assert sum(c["n_tensors"] for c in p["classes"]) == p["n_tensors"]


LLAMA_70B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 8192,
    "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
    "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3",
                     "original_max_position_embeddings": 8192},
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 128000, "eos_token_id": 128001}
QWEN3_235B = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_hidden_layers": 94,
    "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
    "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "rope_scaling": None, "sliding_window": None, "use_sliding_window": False, "max_window_layers": 94,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 151643, "eos_token_id": 151645}


def plan_gives_the_published_bytes_of_other_models():
    """total_size of their model.safetensors.index.json."""
    for config, tensors, total in ((LLAMA_70B, 723, 141_107_412_992), (QWEN3_235B, 36_945, 470_187_269_120)):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump(config, f)
            f.flush()
            p = plan(f.name, "--ranks", "4")
            assert (p["n_tensors"], p["weights_bytes"]) == (tensors, total), p


def plan_gives_the_tokens_of_a_pool():
    for kv, tokens in (("bf16", 686_000), ("fp8-plain", 1_372_000), ("fp8-656", 1_205_000)):
        p = plan(KIMI, "--ranks", "8", "--gpu", "h200", "--kv", kv, "--kv-memory", "44.9G")
        close(p["kv_tokens"], tokens)
        assert p["kv_tokens"] % 64 == 0 and p["fits"]
    p = plan(KIMI, "--ranks", "8", "--kv", "fp8-plain", "--kv-memory", "44.9G",
             "--shard-tokens", "8")
    close(p["kv_tokens"], 10_980_000)


def plan_gives_the_bytes_of_a_token():
    for kv, layers, index, mtp in (("bf16", 89856, 2772, 1284), ("fp8-plain", 44928, 2772, 708),
                                   ("fp8-656", 51168, 2772, 788)):
        p = plan(GLM, "--kv", kv)
        assert p["kv_parts"] == {"layers": layers, "index": index, "mtp": mtp}, p["kv_parts"]
        assert p["kv_bytes_token"] == layers + index + mtp
    assert plan(KIMI, "--kv", "fp8")["kv"] == "fp8-656"


def plan_of_a_recipe_is_what_compress_would_make():
    for recipe, gib, rank, read in (("int4-g128-experts", 372.2, 48.1, 30.4),
                                    ("int4-g32-experts", 404.2, 52.1, 31.5),
                                    ("int4-g32-experts-bf16", 419.9, None, 48.0)):
        p = plan(GLM, "--ranks", "8", "--gpu", "h200", "--recipe", recipe)
        close(p["weights_bytes"], gib * GIB)
        close(p["decode_bytes"], read * 1e9, 0.002)
        if rank:
            close(p["weights_bytes_rank"], rank * GIB)


def plan_times_a_step_of_a_recipe_against_the_source():
    p = plan(GLM, "--ranks", "8", "--gpu", "h200", "--recipe", "int4-g128-experts")
    steps = {s["seqs"]: s for s in p["steps"]}
    assert sorted(steps) == [1, 16, 64] and p["step_model"]
    assert steps[1]["bytes_token"] == p["decode_bytes"]
    layers = 75 * 3 * 6144 * 2048 * 256  # weights of the experts, without the draft layer's
    for n, s in steps.items():
        distinct = 1 - (1 - 8 / 256) ** n
        bits = 4 + 16 / 128
        routed = layers * bits / 8 * distinct
        fixed = p["decode_bytes"] - layers * bits / 8 * 8 / 256
        close(s["bytes_token"] * n, fixed + routed)
        close(s["step_us"], s["bytes_rank"] / (0.85 * 4.8e6) + 2 * 78 * 5)
        assert s["ratio"] == s["source_step_us"] / s["step_us"] > 1.1, s
    source = plan(GLM, "--ranks", "8", "--gpu", "h200")["steps"]
    assert [s["step_us"] for s in source] == [s["source_step_us"] for s in p["steps"]]
    assert all(s["ratio"] == 1 for s in source)
    cards = {c["gpu"]: c for c in p["cards"]}
    assert cards["h200"]["kv_tokens"] == p["kv_tokens"] and cards["h200"]["fits"]
    assert cards["h100"]["kv_tokens"] < p["kv_tokens"] < cards["b200"]["kv_tokens"]
    assert not {c["gpu"]: c for c in plan(GLM, "--ranks", "8")["cards"]}["h100"]["fits"]
    for config in (KIMI, "tests/configs/deepseek-v3.json"):
        p = plan(config, "--ranks", "8", "--gpu", "h200", "--recipe", "int4-g128-experts")
        assert p["steps"][0]["ratio"] > 0.9 and p["cards"]
    status, out, _ = run(GLM, "--ranks", "8", "--recipe", "int4-g128-experts")
    assert status == 0 and "64 at once" in out and "b200:" in out, out


def plan_refuses_two_models_that_do_not_fit_with_their_sum():
    both = ("--ranks", "8", "--recipe", "int4-g128-experts", "--prefill-model", GLM)
    status, out, err = run(GLM, *both, "--gpu", "h200")
    assert status == 1 and not out, out
    assert "48.1 GiB" in err and "89.5 GiB" in err and "137.6 GiB" in err and "140.4" in err, err
    p = plan(GLM, *both, "--gpu", "b200")
    close(p["prefill_bytes_rank"], 89.5 * GIB)
    alone = plan(GLM, *both[:4], "--gpu", "b200")
    assert 0 < p["kv_tokens"] < alone["kv_tokens"] and alone["prefill_bytes_rank"] == 0
    status, _, err = run(GLM, "--ranks", "8", "--gpu", "b200", "--prefill-model", KIMI)
    assert status == 1 and "not the same model" in err, err


def plan_says_when_sharding_tokens_pays():
    p = plan(KIMI, "--ranks", "8", "--gpu", "h200")
    assert 100 < p["crossover_tokens_64"] < p["crossover_tokens"] < 1_000_000
    assert p["crossover_model"]
    assert plan(KIMI)["crossover_tokens"] is None


def plan_says_when_it_does_not_fit():
    assert not plan(KIMI, "--ranks", "4", "--gpu", "h100")["fits"]
    assert not plan(KIMI, "--ranks", "8", "--gpu", "h200", "--kv-memory", "100G")["fits"]
    assert plan(KIMI, "--ranks", "8", "--gpu", "b200", "--kv-memory", "50%")["fits"]


def plan_reads_the_tensors_of_a_checkpoint_that_is_there():
    for model, config in (("tests/models/tiny-llama-w4a16",
                           "tests/models/tiny-llama-w4a16/config.json"),
                          ("tests/models/tiny-kimi", "tests/models/tiny-kimi/config.json")):
        a, b = plan(model), plan(config)
        assert a["weights_bytes"] == b["weights_bytes"], (a, b)
        assert a["n_tensors"] == b["n_tensors"]
    gguf = plan("tests/models/tiny-llama-gguf/tiny-llama-q8_0.gguf")
    assert gguf["classes"][1]["format"] == "q8_0", gguf["classes"]
    status, out, _ = run("tests/models/tiny-qwen3-moe", "--ranks", "2")
    assert status == 0 and "experts" in out and "it fits" in out, out


def plan_counts_the_tokens_of_a_live_pool():
    kimi, glm, llama = ("tests/models/" + n for n in ("tiny-kimi", "tiny-glm", "tiny-llama"))
    for model, *flags in ((llama, "--kv", "fp8"), (kimi, "--kv", "fp8-plain"), (glm, "--kv", "fp8-656", "--ranks", "2"),
                          (kimi, "--kv", "bf16", "--ranks", "4", "--shard-tokens", "4"),
                          (glm, "--kv", "fp8-656", "--ranks", "4", "--shard-tokens", "2")):
        flags += ["--kv-memory", "3M"]
        want = plan(model, *flags)["kv_tokens"]
        with Server(*flags, model=model) as s:
            p = subprocess.run([MASCON, "status", "--json", "--socket", s.socket], stdout=subprocess.PIPE)
            assert json.loads(p.stdout)["kv_tokens"] == want, (flags, want, p.stdout)


def plan_refuses_what_is_wrong_by_its_flag():
    for args, says in ((("--gpu", "a100"), "--gpu a100"), (("--ranks", "0"), "--ranks"),
                       (("--kv", "fp4"), "--kv fp4"),
                       (("--kv-memory", "x"), "--kv-memory"),
                       (("--ranks", "8", "--shard-tokens", "3"), "--shard-tokens 3"),
                       (("--recipe", "no-such"), "no-such")):
        status, _, err = run(KIMI, *args)
        assert status == 1 and says in err, (args, err)
    for args in (("--ranks", "2", "--shard-tokens", "2"), ("--ranks", "3")): # 8 heads over 2
        status, _, err = run("tests/models/tiny-llama", *args)
        assert status == 1 and " ".join(args[-2:]) in err, err
    assert run("tests/configs/none.json")[0] == 1
    assert run()[0] == 2


def plan_names_a_tensor_that_the_checkpoint_lacks():
    with tempfile.TemporaryDirectory(prefix="mascon-plan-") as d:
        shutil.copy("tests/models/tiny-llama/model.safetensors", d)
        with open("tests/models/tiny-llama/config.json") as f:
            config = json.load(f)
        config["num_hidden_layers"] += 1
        with open(os.path.join(d, "config.json"), "w") as f:
            json.dump(config, f)
        status, out, err = run(d)
        assert status == 1 and "model.layers.4.self_attn" in err and not out, (out, err)


if __name__ == "__main__":
    main([v for k, v in list(globals().items())
          if k.startswith("plan_") and callable(v)])
