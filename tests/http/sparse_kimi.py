"""Writes a checkpoint of Kimi K2.6's real size and tensors, whose data, but for the shapes of packed
matrices, is a hole in a file.

    sparse_kimi.py DIR        from the repository root; 594 GB by name, megabytes on the disk
"""
import json
import os
import struct
import sys

CONFIG = "tests/configs/kimi-k2.6.json"
PREFIX = "language_model.model."
SHARDS = 64


def tensors(c):
    """(name, dtype, shape[, data]) of every text tensor, in layer order."""
    h, heads = c["hidden_size"], c["num_attention_heads"]
    nope, rope, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    q, kv, width = c["q_lora_rank"], c["kv_lora_rank"], c["moe_intermediate_size"]
    yield PREFIX + "embed_tokens.weight", "BF16", [c["vocab_size"], h]
    for i in range(c["num_hidden_layers"]):
        p = f"{PREFIX}layers.{i}."
        for name, shape in (("q_a_proj.weight", [q, h]), ("q_a_layernorm.weight", [q]),
                            ("q_b_proj.weight", [heads * (nope + rope), q]),
                            ("kv_a_proj_with_mqa.weight", [kv + rope, h]),
                            ("kv_a_layernorm.weight", [kv]),
                            ("kv_b_proj.weight", [heads * (nope + v), kv]),
                            ("o_proj.weight", [h, heads * v])):
            yield p + "self_attn." + name, "BF16", shape
        for name in ("input_layernorm.weight", "post_attention_layernorm.weight"):
            yield p + name, "BF16", [h]
        dense = i < c["first_k_dense_replace"]
        wide = c["intermediate_size"] if dense else width
        m = p + ("mlp." if dense else "mlp.shared_experts.")
        yield m + "gate_proj.weight", "BF16", [wide, h]
        yield m + "up_proj.weight", "BF16", [wide, h]
        yield m + "down_proj.weight", "BF16", [h, wide]
        if dense:
            continue
        yield p + "mlp.gate.weight", "BF16", [c["n_routed_experts"], h]
        yield p + "mlp.gate.e_score_correction_bias", "F32", [c["n_routed_experts"]]
        for e in range(c["n_routed_experts"]):
            for name, n, k in (("gate_proj", width, h), ("up_proj", width, h),
                               ("down_proj", h, width)):
                x = f"{p}mlp.experts.{e}.{name}."
                yield x + "weight_packed", "I32", [n, k // 8]
                yield x + "weight_scale", "BF16", [n, k // 32]
                yield x + "weight_shape", "I32", [2], struct.pack("<ii", n, k)
    yield PREFIX + "norm.weight", "BF16", [h]
    yield "language_model.lm_head.weight", "BF16", [c["vocab_size"], h]


def size_of(dtype, shape):
    n = {"BF16": 2, "I32": 4, "F32": 4}[dtype]
    for d in shape:
        n *= d
    return n


def write_sparse(path, config):
    """Returns how many tensors and bytes of data."""
    every = list(tensors(config.get("text_config", config)))
    total = sum(size_of(x[1], x[2]) for x in every)
    weight_map, shard, at, header, data = {}, 1, 0, {}, []

    def close():
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(f"{path}/model-{shard:05d}-of-{SHARDS:05d}.safetensors", "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            f.truncate(8 + len(text) + at)
            for where, raw in data:
                os.pwrite(f.fileno(), raw, 8 + len(text) + where)

    for name, dtype, shape, *raw in every:
        n = size_of(dtype, shape)
        if at + n > total / SHARDS and header and shard < SHARDS:
            close()
            shard, at, header, data = shard + 1, 0, {}, []
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
        data += [(at, x) for x in raw]
        weight_map[name] = f"model-{shard:05d}-of-{SHARDS:05d}.safetensors"
        at += n
    close()
    with open(path + "/model.safetensors.index.json", "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f)
    with open(path + "/config.json", "w") as f:
        json.dump(config, f)
    return len(every), total


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    os.makedirs(sys.argv[1], exist_ok=True)
    with open(CONFIG) as file:
        print("%d tensors, %d bytes" % write_sparse(sys.argv[1], json.load(file)))
