"""seeds.py - makes the seeds of the checkpoint fuzzers: seeds/{safetensors,gguf,config,index}.

    python3 tests/fuzz/seeds.py        (standard library only)
"""
import json
import pathlib
import struct

ROOT = pathlib.Path(__file__).parent / "seeds"


def write(kind, name, data):
    (ROOT / kind).mkdir(parents=True, exist_ok=True)
    (ROOT / kind / name).write_bytes(data)


# ---- safetensors: see fuzz_safetensors.c for the first byte

BITS = {"F32": 32, "BF16": 16, "F16": 16, "I32": 32, "I64": 64, "U8": 8, "F8_E4M3": 8, "F4": 4}


def safetensors(*tensors):
    header, data = {}, b""
    for name, dtype, shape, *value in tensors:
        n = BITS[dtype]
        for d in shape:
            n *= d
        body = value[0] if value else bytes(i * 37 % 251 for i in range(n // 8))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(body)]}
        data += body
    text = json.dumps(header, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8), data


MODELS = {
    "plain": [("m.weight", "BF16", [3, 8]), ("v.weight", "F32", [4]), ("s", "F16", []), ("e", "F32", [0, 2])],
    "int4": [("m.weight_packed", "I32", [3, 8]), ("m.weight_scale", "BF16", [3, 2]),
             ("m.weight_shape", "I64", [2], struct.pack("<qq", 3, 64))],
    "int4_zero": [("m.weight_packed", "I32", [9, 2]), ("m.weight_scale", "F16", [9, 2]),
                  ("m.weight_zero_point", "I32", [2, 2]), ("m.weight_shape", "I32", [2], struct.pack("<ii", 9, 16))],
    "fp8_row": [("m.weight", "F8_E4M3", [5, 6]), ("m.weight_scale", "F32", [5, 1])],
    "fp8_block": [("m.weight", "F8_E4M3", [5, 6]), ("m.weight_scale", "F32", [3, 2]),
                  ("n.weight", "F8_E4M3", [2, 3]), ("n.weight_scale_inv", "F32", [1, 1])],
    "nvfp4": [("m.weight_global_scale", "F32", [1], struct.pack("<f", 8)), ("m.weight_packed", "U8", [3, 16]),
              ("m.weight_scale", "F8_E4M3", [3, 2])],
    "modelopt": [("m.weight_scale_2", "F32", [], struct.pack("<f", 0.25)), ("m.weight", "U8", [3, 16]),
                 ("m.weight_scale", "F8_E4M3", [3, 2])],
}
for name, tensors in MODELS.items():
    text, data = safetensors(*tensors)
    write("safetensors", name, b"H" + text + b"\0" + data)
    write("safetensors", name + ".file", b"F" + struct.pack("<Q", len(text)) + text + data)
AUTO = {"gptq": ("G", [("m.qweight", "I32", [2, 8]), ("m.qzeros", "I32", [2, 1], b"\x77" * 8),
                       ("m.scales", "F16", [2, 8]), ("m.g_idx", "I32", [16], struct.pack("<16i", *[0] * 8, *[1] * 8))]),
        "awq": ("A", [("m.qweight", "I32", [16, 1]), ("m.qzeros", "I32", [2, 1]), ("m.scales", "F16", [2, 8])])}
for name, (how, tensors) in AUTO.items():
    text, data = safetensors(*tensors)
    write("safetensors", name, how.encode() + text + b"\0" + data)

# ---- gguf

STR = lambda s: struct.pack("<Q", len(s)) + s.encode()
KEY = lambda k, t, v: STR(k) + struct.pack("<I", t) + v
U32 = lambda k, v: KEY(k, 4, struct.pack("<I", v))
F32 = lambda k, v: KEY(k, 6, struct.pack("<f", v))
ARRAY = lambda k, t, n, v: KEY(k, 9, struct.pack("<IQ", t, n) + v)
BLOCK = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 12: (256, 144),
         13: (256, 176), 14: (256, 210), 30: (1, 2)}


def gguf(keys, tensors, align=32):
    infos, data = b"", b""
    for name, kind, dims in tensors:
        cols, size = BLOCK[kind]
        n = size
        for d in dims:
            n *= d
        n //= cols
        infos += STR(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        infos += struct.pack("<IQ", kind, len(data))
        data += bytes(i * 29 % 253 for i in range(n))
        data += b"\0" * (-len(data) % align)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys) + infos
    return head + b"\0" * (-len(head) % align) + data


ARCH = [KEY("general.architecture", 8, STR("llama")), U32("llama.block_count", 1), U32("llama.context_length", 64),
        U32("llama.embedding_length", 32), U32("llama.feed_forward_length", 32), U32("llama.attention.head_count", 2),
        U32("llama.attention.head_count_kv", 1), F32("llama.attention.layer_norm_rms_epsilon", 1e-5),
        F32("llama.rope.freq_base", 1e4), KEY("llama.rope.scaling.type", 8, STR("linear")),
        F32("llama.rope.scaling.factor", 2), U32("tokenizer.ggml.eos_token_id", 2)]
VOCAB = [ARRAY("tokenizer.ggml.tokens", 8, 3, STR("a") + STR("") + STR("bc")),
         ARRAY("tokenizer.ggml.scores", 6, 3, struct.pack("<3f", 0, -1, -2)),
         ARRAY("tokenizer.ggml.token_type", 5, 3, struct.pack("<3i", 1, 3, 1)),
         KEY("tokenizer.ggml.add_bos_token", 7, b"\1")]
OTHER = [KEY("u8", 0, b"\7"), KEY("i8", 1, b"\xff"), KEY("u16", 2, b"\7\0"), KEY("i16", 3, b"\xff\xff"),
         KEY("i32", 5, b"\xff" * 4), KEY("u64", 10, b"\1" * 8), KEY("i64", 11, b"\xff" * 8),
         KEY("f64", 12, struct.pack("<d", 1.5)), U32("general.alignment", 64), KEY("split.count", 2, b"\1\0")]
write("gguf", "model", gguf(ARCH + VOCAB, [("token_embd.weight", 8, [32, 8]), ("output_norm.weight", 0, [32]),
                                           ("blk.0.attn_q.weight", 3, [32, 4]), ("blk.0.attn_q.bias", 0, [4])]))
write("gguf", "types", gguf(OTHER, [(f"t{k}.weight", k, [256, 2]) for k in BLOCK], 64))
U32S = lambda arch, **keys: [U32(arch + k.replace("__", "."), v) for k, v in keys.items()]
LATENT = [KEY("general.architecture", 8, STR("glm-dsa")), F32("glm-dsa.attention.layer_norm_rms_epsilon", 1e-5),
          F32("glm-dsa.rope.freq_base", 1e4), F32("glm-dsa.expert_weights_scale", 2.5),
          KEY("glm-dsa.expert_weights_norm", 7, b"\1"), ARRAY("glm-dsa.attention.indexer.types", 7, 1, b"\1"),
          KEY("glm-dsa.rope.scaling.type", 8, STR("yarn")), F32("glm-dsa.rope.scaling.factor", 4),
          F32("glm-dsa.rope.scaling.yarn_log_multiplier", .1),
          *U32S("glm-dsa", __block_count=2, __context_length=64, __embedding_length=32, __feed_forward_length=32,
                __attention__head_count=2, __attention__head_count_kv=1, __attention__kv_lora_rank=8,
                __attention__q_lora_rank=8, __attention__key_length=12, __attention__key_length_mla=6,
                __attention__value_length_mla=3, __rope__dimension_count=4, __expert_count=4, __expert_used_count=2,
                __expert_feed_forward_length=16, __expert_shared_count=1, __expert_group_count=2,
                __expert_group_used_count=1, __leading_dense_block_count=1, __nextn_predict_layers=1,
                __attention__indexer__head_count=2, __attention__indexer__key_length=8,
                __attention__indexer__top_k=4, __rope__scaling__original_context_length=16)]
BPE = [KEY("tokenizer.ggml.model", 8, STR("gpt2")), KEY("tokenizer.ggml.pre", 8, STR("kimi-k2")),
       ARRAY("tokenizer.ggml.tokens", 8, 5, b"".join(map(STR, ("a", "b", "ab", "\u0120", "<s>")))),
       ARRAY("tokenizer.ggml.token_type", 5, 5, struct.pack("<5i", 1, 1, 1, 1, 3)),
       ARRAY("tokenizer.ggml.merges", 8, 1, STR("a b")), KEY("tokenizer.chat_template", 8, STR("{{ 1 }}"))]
SPM = [KEY("tokenizer.ggml.model", 8, STR("llama")),
       ARRAY("tokenizer.ggml.tokens", 8, 5, b"".join(map(STR, ("<unk>", "<s>", "</s>", "<0x0A>", "\u2581a")))),
       ARRAY("tokenizer.ggml.scores", 6, 5, struct.pack("<5f", 0, 0, 0, 0, -1)),
       ARRAY("tokenizer.ggml.token_type", 5, 5, struct.pack("<5i", 2, 3, 3, 6, 1))]
write("gguf", "latent", gguf(LATENT + BPE, [
    ("token_embd.weight", 0, [32, 5]), ("output_norm.weight", 0, [32]), ("blk.0.attn_k_b.weight", 0, [2, 8, 2]),
    ("blk.0.attn_v_b.weight", 30, [8, 3, 2]), ("blk.0.exp_probs_b.bias", 0, [4]),
    ("blk.0.ffn_up_exps.weight", 8, [32, 2, 3]), ("blk.1.nextn.eh_proj.weight", 0, [64, 2])]))
write("gguf", "spm", gguf(SPM, []))
write("gguf", "vocab", gguf(VOCAB, []))
write("gguf", "empty", gguf([], []))

# ---- config

SIZES = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 512,
         "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 256}
CONFIGS = {
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES, "rope_theta": 5e5,
              "rope_scaling": LLAMA3, "attention_bias": False, "bos_token_id": 1, "eos_token_id": [2, 3]},
    "mistral": {"model_type": "mistral", **SIZES, "head_dim": 16, "sliding_window": 128,
                "rope_parameters": {"rope_theta": 1e6, "rope_type": "linear", "factor": 2}},
    "qwen2": {"model_type": "qwen2", **SIZES, "use_sliding_window": True, "sliding_window": 64,
              "max_window_layers": 0, "quantization_config": {"quant_method": "compressed-tensors"}},
    "qwen3": {"model_type": "qwen3", **SIZES, "layer_types": ["full_attention", "full_attention"], "head_dim": 32},
}
for name, config in CONFIGS.items():
    generation = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "eos_token_id": 5}
    write("config", name, json.dumps(config).encode() + b"\0" + json.dumps(generation).encode())

# ---- index

MAP = {"x": "a.safetensors", "y": "b.safetensors"}
write("index", "two", json.dumps({"metadata": {"total_size": 4}, "weight_map": MAP}).encode())
write("index", "away", json.dumps({"weight_map": MAP | {"z": "../a.safetensors"}}).encode())


def kv_file(n_page):
    """A saved context of pages of 4 tokens and 8 bytes; the target puts the sum right."""
    head = b"mascKV1\n" + struct.pack("<4I3Q", 1, 4, 1, n_page, 8, 1, 2)
    return head + struct.pack(f"<{4 * n_page}i", *range(4 * n_page)) + bytes(8 * n_page + 16)


write("kv_file", "one", kv_file(1))
write("kv_file", "three", kv_file(3))
