"""Families with sizes that no small model here has: the program's logits against a plain
second implementation (families.py), on ref and on cpu; and configs that must be refused."""
import json
import os
import subprocess
import sys
import tempfile
import shutil

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../golden")]
from families import Weights, golden, save  # noqa: E402
from to_gguf import convert  # noqa: E402

MASCON = os.environ.get("MASCON", "build/mascon")
NEAR = {"max": .01, "mean": .002}  # doubled and tripled: what cpu may differ by with f32 pages
INT = {"max": .05, "mean": .01}    # where activations are rounded to 16 bits


def base(kind, architecture, **more):
    return {"model_type": kind, "architectures": [architecture], "vocab_size": 257, "hidden_act": "silu",
            "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "tie_word_embeddings": False, **more}


LATENT = dict(hidden_size=80, intermediate_size=44, moe_intermediate_size=28, num_hidden_layers=3,
              first_k_dense_replace=1, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=None,
              kv_lora_rank=64, qk_nope_head_dim=10, qk_rope_head_dim=16, v_head_dim=14,
              n_routed_experts=12, n_shared_experts=2, num_experts_per_tok=3, n_group=4, topk_group=2,
              norm_topk_prob=True, routed_scaling_factor=1.7, scoring_func="sigmoid",
              topk_method="noaux_tc", moe_layer_freq=1, num_nextn_predict_layers=0)


def is_sparse(c, i):
    if "n_routed_experts" in c:
        return i >= c["first_k_dense_replace"] and (i % c.get("moe_layer_freq", 1) == 0 or
                                                    i >= c["num_hidden_layers"])
    return ("num_experts" in c or "num_local_experts" in c) and i not in c.get("mlp_only_layers", []) and \
        (i + 1) % c.get("decoder_sparse_step", 1) == 0


def owns_index(c, i):
    return "index_topk" in c and (i >= c["num_hidden_layers"] or c["indexer_types"][i] == "full")


def attention(w, c, at, i, how):
    h = c["hidden_size"]
    if "kv_lora_rank" not in c:
        d = c.get("head_dim") or h // c["num_attention_heads"]
        for p, n in zip("qkv", (c["num_attention_heads"], *[c["num_key_value_heads"]] * 2)):
            w.matrix(f"{at}.{p}_proj", n * d, h, how)
            if c["model_type"].startswith("qwen2"):
                w.vector(f"{at}.{p}_proj.bias", n * d, 0, .3)
            if p != "v" and c["model_type"].startswith("qwen3"):
                w.vector(f"{at}.{p}_norm.weight", d)
        w.matrix(at + ".o_proj", h, c["num_attention_heads"] * d, how)
        return
    n, wide, up = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"]
    width, rank = wide + c["qk_rope_head_dim"], c["kv_lora_rank"]
    if c["q_lora_rank"]:
        w.matrix(at + ".q_a_proj", c["q_lora_rank"], h, how)
        w.vector(at + ".q_a_layernorm.weight", c["q_lora_rank"])
        w.matrix(at + ".q_b_proj", n * width, c["q_lora_rank"], how)
    else:
        w.matrix(at + ".q_proj", n * width, h, how)
    w.matrix(at + ".kv_a_proj_with_mqa", rank + c["qk_rope_head_dim"], h, how)
    w.vector(at + ".kv_a_layernorm.weight", rank)
    w.matrix(at + ".kv_b_proj", n * (wide + up), rank, how)
    w.matrix(at + ".o_proj", h, n * up, how)
    if owns_index(c, i):
        w.matrix(at + ".indexer.wq_b", c["index_n_heads"] * c["index_head_dim"], c["q_lora_rank"], how)
        w.matrix(at + ".indexer.wk", c["index_head_dim"], h, how)
        w.matrix(at + ".indexer.weights_proj", c["index_n_heads"], h)
        w.vector(at + ".indexer.k_norm.weight", c["index_head_dim"])
        w.vector(at + ".indexer.k_norm.bias", c["index_head_dim"], 0)


def glu(w, at, h, n, how):
    w.matrix(at + ".gate_proj", n, h, how)
    w.matrix(at + ".up_proj", n, h, how)
    w.matrix(at + ".down_proj", h, n, how)


def feed(w, c, at, i, how, experts):
    h = c["hidden_size"]
    if not is_sparse(c, i):
        glu(w, at, h, c["intermediate_size"], how)
        return
    n = c.get("n_routed_experts") or c.get("num_experts") or c["num_local_experts"]
    w.matrix(at + ".gate", n, h)
    for e in range(n):
        glu(w, f"{at}.experts.{e}", h, c["moe_intermediate_size"], experts)
    if c.get("n_shared_experts"):
        glu(w, at + ".shared_experts", h, c["n_shared_experts"] * c["moe_intermediate_size"], how)
    if "n_routed_experts" in c:
        w.vector(at + ".gate.e_score_correction_bias", n, 0, .2, "F32")
    if "shared_expert_intermediate_size" in c:
        glu(w, at + ".shared_expert", h, c["shared_expert_intermediate_size"], how)
        w.matrix(at + ".shared_expert_gate", 1, h)


def weights(c, seed, how="bf16", experts=None, prefix="", mix="bf16"):
    w, h = Weights(seed, prefix), c["hidden_size"]
    w.matrix("model.embed_tokens", c["vocab_size"], h, scale=1.0)
    for i in range(c["num_hidden_layers"] + c.get("num_nextn_predict_layers", 0)):
        at = f"model.layers.{i}"
        w.vector(at + ".input_layernorm.weight", h)
        attention(w, c, at + ".self_attn", i, how)
        w.vector(at + ".post_attention_layernorm.weight", h)
        feed(w, c, at + ".mlp", i, how, experts or how)
        if i >= c["num_hidden_layers"]:
            for name in ("enorm", "hnorm", "shared_head.norm"):
                w.vector(f"{at}.{name}.weight", h)
            w.matrix(at + ".eh_proj", h, 2 * h, mix)
    w.vector("model.norm.weight", h)
    if not c["tie_word_embeddings"]:
        w.matrix("lm_head", c["vocab_size"], h)
    return w


# ---- cases: directory -> (config, text config, weights, prompt lengths, options) ---------------


def without_query_latent():
    """Groups, a shared expert of two widths, yarn whose two mscales differ, other shards."""
    c = base("deepseek_v3", "DeepseekV3ForCausalLM", **LATENT,
             rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
                           "beta_fast": 32, "beta_slow": 1, "mscale": .7, "mscale_all_dim": 1.3})
    return c, c, weights(c, 1), (1, 9, 21), dict(shards=3, backwards=True)


def blocks_cut_by_edges():
    """fp8 blocks of 128 that rows, columns and heads of kv_b do not fill; every other layer sparse."""
    c = base("deepseek_v3", "DeepseekV3ForCausalLM", **LATENT | dict(
        hidden_size=144, intermediate_size=150, q_lora_rank=48, kv_lora_rank=192, qk_nope_head_dim=34,
        v_head_dim=22, moe_layer_freq=2, num_hidden_layers=3, n_routed_experts=4, n_group=1, topk_group=1,
        num_experts_per_tok=1, n_shared_experts=1),
        quantization_config={"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]})
    return c, c, weights(c, 2, "fp8"), (1, 12), {}


def sparse_attention():
    """Indexers on some layers, a choice of five, a draft layer; tied head."""
    c = base("glm_moe_dsa", "GlmMoeDsaForCausalLM", **LATENT | dict(
        hidden_size=96, q_lora_rank=32, n_group=1, topk_group=1, num_hidden_layers=4, num_nextn_predict_layers=1,
        head_dim=10, index_n_heads=3, index_head_dim=48, index_topk=5,
        indexer_types=["full", "shared", "full", "shared"],
        mlp_layer_types=["dense", "sparse", "sparse", "sparse"]))
    del c["rope_theta"]
    text = c | {"rope_theta": 8e6}
    c = c | {"rope_parameters": {"rope_theta": 8e6, "rope_type": "default"}}
    return c, text, weights(text, 3), (1, 5, 19), dict(shards=2, drafts=True)


def whole_floats():
    """F32 everywhere, also in what is absorbed; one head, every layer sparse, a prime vocabulary."""
    c = base("deepseek_v3", "DeepseekV3ForCausalLM", **LATENT | dict(
        num_attention_heads=1, num_key_value_heads=1, first_k_dense_replace=0, n_group=1, topk_group=1,
        q_lora_rank=16, norm_topk_prob=False, num_hidden_layers=2))
    return c, c, weights(c, 15, "f32"), (1, 17), {}


def heads_no_block_fits():
    """int4 behind heads of 48: blocks of 32 columns would lie in two of them; also in a draft layer."""
    groups = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 32,
                                                             "symmetric": True, "strategy": "group"}}}
    c = base("deepseek_v3", "DeepseekV3ForCausalLM", **LATENT | dict(
        hidden_size=64, intermediate_size=64, moe_intermediate_size=32, num_hidden_layers=2, q_lora_rank=32,
        num_attention_heads=2, num_key_value_heads=2, v_head_dim=48, num_nextn_predict_layers=1),
        quantization_config={"quant_method": "compressed-tensors", "format": "pack-quantized",
                             "config_groups": groups})
    return c, c, weights(c, 17, "int4", mix="int4"), (1, 13), dict(tolerance=INT, drafts=True)


def half_floats():
    c = base("deepseek_v3", "DeepseekV3ForCausalLM", **LATENT | dict(num_hidden_layers=2))
    return c, c, weights(c, 16, "f16"), (1, 17), {}


def wrapped_text():
    """Kimi's wrapper: a prefix, images to skip, int4 experts beside bf16."""
    text = base("kimi_k2", "DeepseekV3ForCausalLM", **LATENT | dict(
        hidden_size=64, moe_intermediate_size=32, n_group=1, topk_group=1, q_lora_rank=32),
        quantization_config={"quant_method": "compressed-tensors", "format": "pack-quantized",
                             "kv_cache_scheme": None, "ignore": ["lm_head"], "config_groups": {"group_0": {
                                 "targets": ["Linear"], "weights": {"num_bits": 4, "type": "int",
                                                                    "group_size": 32, "symmetric": True,
                                                                    "strategy": "group"}}}})
    w = weights(text, 4, experts="int4", prefix="language_model.")
    w.stranger("vision_tower.blocks.0.weight")
    w.stranger("mm_projector.bias")
    c = {"model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"],
         "tie_word_embeddings": False, "text_config": text, "vision_config": {}}
    return c, text, w, (1, 15), dict(tolerance=INT)


def shared_with_a_gate():
    """Qwen2-MoE: biases, weights not made to sum to one, a dense layer by name."""
    c = base("qwen2_moe", "Qwen2MoeForCausalLM", hidden_size=96, intermediate_size=50,
             moe_intermediate_size=22, shared_expert_intermediate_size=34, num_hidden_layers=3,
             num_attention_heads=6, num_key_value_heads=3, num_experts=5, num_experts_per_tok=2,
             norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[1], use_sliding_window=False)
    return c, c, weights(c, 5), (1, 17), {}


def every_other_layer():
    """Qwen3-MoE with head_dim apart, experts on each second layer, a tied head."""
    c = base("qwen3_moe", "Qwen3MoeForCausalLM", hidden_size=48, intermediate_size=30, head_dim=16,
             moe_intermediate_size=18, num_hidden_layers=4, num_attention_heads=5, num_key_value_heads=1,
             num_local_experts=7, num_experts_per_tok=3, norm_topk_prob=True, decoder_sparse_step=2)
    c["tie_word_embeddings"] = True
    return c, c, weights(c, 6), (1, 17), {}


def window_and_strangers():
    """A window shorter than the prompt; tensors of no use."""
    c = base("mistral", "MistralForCausalLM", hidden_size=80, intermediate_size=36, num_hidden_layers=2,
             num_attention_heads=5, num_key_value_heads=5, sliding_window=7)
    w = weights(c, 7)
    w.stranger("model.layers.0.self_attn.rotary_emb.inv_freq")
    w.stranger("some.other.thing")
    return c, c, w, (1, 30), {}


def long_context_rope():
    c = base("llama", "LlamaForCausalLM", hidden_size=48, intermediate_size=40, num_hidden_layers=2,
             num_attention_heads=3, num_key_value_heads=1,
             rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                           "high_freq_factor": 4.0, "original_max_position_embeddings": 64})
    return c, c, weights(c, 8), (1, 25), {}


def formats_mixed():
    """Matrices of one input and experts of one layer in two formats."""
    groups = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 32,
                                                             "symmetric": True, "strategy": "group"}}}
    c = base("qwen2_moe", "Qwen2MoeForCausalLM", hidden_size=64, intermediate_size=32, moe_intermediate_size=32,
             shared_expert_intermediate_size=64, num_hidden_layers=4, num_attention_heads=2,
             num_key_value_heads=2, num_experts=3, num_experts_per_tok=2, norm_topk_prob=True,
             decoder_sparse_step=2, use_sliding_window=False,
             quantization_config={"quant_method": "compressed-tensors", "format": "pack-quantized",
                                  "config_groups": groups})
    return c, c, weights(c, 11, "mixed"), (1, 13), dict(tolerance=INT)


def four_bits(how):
    c = base("llama", "LlamaForCausalLM", hidden_size=96, intermediate_size=64, num_hidden_layers=2,
             num_attention_heads=3, num_key_value_heads=1,
             quantization_config={"quant_method": how, "bits": 4, "group_size": 32, "desc_act": False,
                                  "sym": False, "zero_point": True, "version": "gemm"})
    return c, c, weights(c, 9, how), (1, 11), dict(tolerance=INT)


def gptq():
    return four_bits("gptq")


def awq():
    return four_bits("awq")


def no_whole_vectors():
    """Widths that fill no vector, int4 in groups that fill no block of 32."""
    groups = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 8,
                                                             "symmetric": True, "strategy": "group"}}}
    c = base("llama", "LlamaForCausalLM", hidden_size=88, intermediate_size=72, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, head_dim=22,
             quantization_config={"quant_method": "compressed-tensors", "format": "pack-quantized",
                                  "config_groups": groups})
    return c, c, weights(c, 18, "int4_g8"), (1, 70), {}


def latents_of_any_size():
    """No size is a multiple of 8: hidden, latents, rotated dims, heads, indexer, draft layer."""
    c = base("glm_moe_dsa", "GlmMoeDsaForCausalLM", **LATENT | dict(
        hidden_size=70, q_lora_rank=27, kv_lora_rank=41, qk_rope_head_dim=6, n_group=1, topk_group=1,
        num_hidden_layers=2, num_nextn_predict_layers=1, index_n_heads=5, index_head_dim=18, index_topk=6,
        indexer_types=["full", "full"], mlp_layer_types=["dense", "sparse"]))
    return c, c, weights(c, 19), (1, 19), dict(drafts=True)


CASES = [no_whole_vectors, latents_of_any_size, without_query_latent, blocks_cut_by_edges, whole_floats, half_floats, heads_no_block_fits, sparse_attention,
         wrapped_text, shared_with_a_gate, every_other_layer, window_and_strangers, long_context_rope,
         formats_mixed, gptq, awq]


def dense_qwen(kind, architecture, **more):
    c = base(kind, architecture, hidden_size=96, intermediate_size=40, num_hidden_layers=2,
             num_attention_heads=6, num_key_value_heads=2, use_sliding_window=False, **more)
    return c, c, weights(c, 12), (1, 14), {}


def qwen2():
    return dense_qwen("qwen2", "Qwen2ForCausalLM")


def qwen3():
    return dense_qwen("qwen3", "Qwen3ForCausalLM", head_dim=48)


def one_mscale():
    """No query latent, yarn as a GGUF can say it."""
    c = base("deepseek_v3", "DeepseekV3ForCausalLM", **LATENT,
             rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
                           "beta_fast": 32, "beta_slow": 1, "mscale": 1.3, "mscale_all_dim": 1.3})
    return c, c, weights(c, 13), (1, 9, 21), {}


def unsaid_mscale():
    c = base("deepseek_v3", "DeepseekV3ForCausalLM", **LATENT | dict(q_lora_rank=48, n_group=1, topk_group=1),
             rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64})
    return c, c, weights(c, 14), (1, 21), {}


# what a GGUF holds of a case: every layer has experts, and there is one draft layer at most
GGUFS = [(long_context_rope, {}), (window_and_strangers, {}), (qwen2, {}), (qwen3, {}),
         (every_other_layer, {"decoder_sparse_step": 1}), (shared_with_a_gate, {"mlp_only_layers": []}),
         (one_mscale, {}), (unsaid_mscale, {}), (wrapped_text, {}), (sparse_attention, {})]
DIRECTORIES = (qwen2, qwen3, every_other_layer, shared_with_a_gate)  # compress makes them again


def check_gguf(root, case, more, whole_kv_b=False):
    config, text, w, lengths, options = case()
    if more:
        config = text = text | more
        w = weights(text, 10)
    path = os.path.join(root, case.__name__ + "-gguf")
    file = path + ".gguf"
    save(path, config, w)
    convert(path, file, whole_kv_b)
    golden(path, text, w, lengths, options.get("drafts", False), options.get("tolerance", NEAR))
    for backend in ("ref", "cpu"):
        evaluate(path, backend, file)
    if case in DIRECTORIES:
        compress(file, path + "-directory", "bf16")
        evaluate(path, "ref", path + "-directory")


def compress(src, dst, recipe):
    run = subprocess.run([MASCON, "compress", src, dst, "--recipe", recipe], capture_output=True, text=True,
                         timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr


def evaluate(path, backend, model=None, *flags):
    run = subprocess.run([MASCON, "eval", model or path, "--golden", os.path.join(path, "golden"), "--backend",
                          backend, "--kv", "f32", *flags], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr


def on_ranks(path, config):
    """All numbers of ranks up to three: what its heads allow, and a refusal that says so."""
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    for n in (2, 3):
        if heads % n == 0 and (kv % n == 0 or n % kv == 0):
            evaluate(path, "ref", None, "--ranks", str(n))
            evaluate(path, "cpu", None, "--ranks", str(n))
            continue
        run = subprocess.run([MASCON, "eval", path, "--golden", os.path.join(path, "golden"), "--ranks", str(n)],
                             capture_output=True, text=True, timeout=600)
        assert run.returncode == 1 and "can't be shared so" in run.stderr, (n, run.stdout, run.stderr)


# ---- what must be refused ----------------------------------------------------------------------


def refusals(path):
    """Pairs: how a good checkpoint is spoiled, what doctor has to say."""
    def config(**more):
        def spoil(c, w):
            c.update(more)
        return spoil

    def without(name):
        def spoil(c, w):
            del w.file[name]
        return spoil

    def tensor(name):
        def spoil(c, w):
            w.stranger(name)
        return spoil

    moe = "model.layers.1.mlp."
    return [
        (config(scoring_func="softmax"), "scoring_func"),
        (config(topk_method="greedy"), "topk_method"),
        (config(n_group=5), "n_group"),
        (config(topk_group=1, num_experts_per_tok=4), "num_experts_per_tok"),
        (config(num_key_value_heads=1), "num_key_value_heads"),
        (config(qk_head_dim=99), "qk_head_dim"),
        (config(attention_bias=True), "attention_bias"),
        (config(kv_lora_rank=96), "kv_a_proj_with_mqa is [80, 80]"),
        (config(mlp_layer_types=["dense", "dense", "sparse"]), "mlp_layer_types"),
        (config(num_nextn_predict_layers=3), "num_nextn_predict_layers"),
        (config(num_hidden_layers=2), "num_hidden_layers"),
        (config(quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]}),
         "quantization_config says fp8"),
        (config(rope_scaling={"type": "yarn", "factor": 4.0}), "original_max_position_embeddings"),
        (without(moe + "experts.7.up_proj.weight"), "experts.7.up_proj"),
        (without(moe + "gate.e_score_correction_bias"), "e_score_correction_bias"),
        (tensor("model.layers.0.self_attn.kv_b_proj.bias"), "no bias"),
        (tensor("model.layers.0.self_attn.indexer.wk.weight"), "owns no indexer"),
    ]


def check_refusals(path):
    for spoil, word in refusals(path):
        c = base("deepseek_v3", "DeepseekV3ForCausalLM", **LATENT)
        w = weights(c, 1)
        spoil(c, w)
        save(path, c, w)
        run = subprocess.run([MASCON, "doctor", path, "--backend", "ref", "--json"], capture_output=True,
                             text=True, timeout=600)
        said = [x["text"] for x in json.loads(run.stdout) if x["what"] == "model"]
        assert run.returncode == 1 and said and word in said[0], (word, run.stdout, run.stderr)


def check_both_named(path):
    """A tensor that is missing and one of no use: the model does not load, and both names are said."""
    c = base("deepseek_v3", "DeepseekV3ForCausalLM", **LATENT)
    w = weights(c, 1)
    del w.file["model.layers.1.mlp.experts.7.up_proj.weight"]
    w.stranger("model.layers.1.mlp.experts.99.extra")
    save(path, c, w)
    run = subprocess.run([MASCON, "eval", path, "--golden", path, "--backend", "ref"], capture_output=True,
                         text=True, timeout=600)
    assert run.returncode == 1 and "experts.7.up_proj" in run.stderr and "experts.99.extra" in run.stderr, run


def main():
    only, n = sys.argv[1:], 0
    root = tempfile.mkdtemp(prefix="mascon-families-")

    def test(name, body, *args):
        nonlocal n
        n += 1
        try:
            body(*args)
            print(f"ok {n} - {name}", flush=True)
        except Exception as e:  # noqa: BLE001
            print(f"not ok {n} - {name}", *[f"# {x}" for x in str(e).split("\n")], sep="\n", flush=True)

    for case in CASES:
        if only and case.__name__ not in only:
            continue
        config, text, w, lengths, options = case()
        path = os.path.join(root, case.__name__)
        save(path, config, w, options.get("shards", 1), options.get("backwards", False))
        golden(path, text, w, lengths, options.get("drafts", False), options.get("tolerance", NEAR))
        for backend in ("ref", "cpu"):
            test(f"families_{case.__name__}_on_{backend}", evaluate, path, backend)
        test(f"families_{case.__name__}_on_ranks", on_ranks, path, text)
    for case, more in GGUFS:
        if not only or "gguf" in only:
            test(f"families_{case.__name__}_as_a_gguf", check_gguf, root, case, more)
    if not only or "gguf" in only:
        test("families_kv_b_in_one_piece_of_a_gguf", check_gguf, root, one_mscale, {}, True)
    if not only or "refusals" in only:
        test("families_contradictions_are_refused_by_name", check_refusals, os.path.join(root, "bad"))
        test("families_missing_and_unused_tensors_are_named", check_both_named, os.path.join(root, "both"))
    if not os.environ.get("KEEP"):
        shutil.rmtree(root)
    else:
        print("#", root)
    print(f"1..{n}")


main()
