#!/usr/bin/env python3
"""Writes a checkpoint in a Hugging Face directory as one GGUF, as llama.cpp's converter lays it out.

    to_gguf.py DIR OUT.gguf [--whole-kv-b]        standard library only

llama, qwen2, qwen3, their experts, deepseek2 (Kimi too) and glm-dsa with its draft layer. No value
changes: BF16 stays, FP8 blocks become F32, symmetric INT4 groups become Q4_0 where their scales are F16
numbers. --whole-kv-b: kv_b in one piece and without the keys that end in _mla, as files of 2024 are."""
import array
import base64
import glob
import json
import math
import os
import struct
import sys

F32, F16, Q4_0, BF16 = 0, 1, 2, 30
ROW = {F32: (1, 4), BF16: (1, 2), Q4_0: (32, 18)}  # columns and bytes of a block

# ---- what is stored ------------------------------------------------------------------------


class Tensor:
    """Rows of bytes: shape is row-major, kind a ggml type."""

    def __init__(self, kind, shape, data):
        self.kind, self.shape, self.data = kind, shape, bytes(data)

    def rows(self):
        cols, size = ROW[self.kind]
        n = self.shape[-1] // cols * size
        return [self.data[i:i + n] for i in range(0, len(self.data), n)]


def read_tensors(path):
    out = {}
    for name in sorted(glob.glob(os.path.join(path, "*.safetensors"))):
        with open(name, "rb") as f:
            n, = struct.unpack("<Q", f.read(8))
            head, data = json.loads(f.read(n)), f.read()
        for key, t in head.items():
            if key != "__metadata__":
                a, b = t["data_offsets"]
                out[key] = (t["dtype"], t["shape"], memoryview(data)[a:b])
    return out


def widen(data):
    """BF16 bytes as those of F32."""
    out = bytearray(2 * len(data))
    out[2::4], out[3::4] = data[0::2], data[1::2]
    return bytes(out)


def of_e4m3(b):
    e, m = b >> 3 & 15, b & 7
    x = m * 2.0 ** -9 if e == 0 else (8 + m) * 2.0 ** (e - 10)
    return -x if b & 128 else x


E4M3 = [of_e4m3(b) for b in range(256)]


def from_fp8(shape, data, scales, block):
    """Products are rounded to F32, as whoever multiplies in F32 has them."""
    (n, k), out = shape, array.array("f")
    across = -(-k // block)
    for r in range(n):
        row = data[r * k:(r + 1) * k]
        for c in range(across):
            s = scales[r // block * across + c]
            table = [v * s for v in E4M3]
            out.extend(map(table.__getitem__, row[c * block:(c + 1) * block]))
    return Tensor(F32, shape, out.tobytes())


def from_int4(shape, words, scales, group):
    """Codes are nibbles in rising order, offset 8; Q4_0 has i and i + 16 in a byte, and the same offset."""
    n, k = shape
    half = [struct.pack("<e", s) for s in scales]
    if group % 32 or any(struct.unpack("<e", h)[0] != s for h, s in zip(half, scales)):
        codes = (c for b in words for c in (b & 15, b >> 4))
        out = array.array("f", ((c - 8) * scales[i // group] for i, c in enumerate(codes)))
        return Tensor(F32, shape, out.tobytes())
    out = bytearray()
    for i in range(n * k // 32):
        b = words[16 * i:16 * i + 16]
        out += half[32 * i // group]
        for x, y in zip(b[:8], b[8:]):
            out += bytes((x & 15 | (y & 15) << 4, x >> 4 | y & 240))
    return Tensor(Q4_0, shape, out)


def floats(dtype, data):
    return array.array("f", widen(data) if dtype == "BF16" else bytes(data))


class Checkpoint:
    def __init__(self, path):
        with open(os.path.join(path, "config.json")) as f:
            whole = json.load(f)
        self.path, self.c = path, whole.get("text_config", whole)
        self.quant = self.c.get("quantization_config") or whole.get("quantization_config") or {}
        self.file = {k.removeprefix("language_model."): v for k, v in read_tensors(path).items()}

    def modules(self):
        """Names without what a suffix adds, in the file's order."""
        seen = {}
        for name in self.file:
            stem, suffix = name.rsplit(".", 1)
            seen[name if suffix == "bias" or stem.endswith("gate") and suffix != "weight" else stem] = True
        return list(seen)

    def load(self, name):
        if name in self.file:
            dtype, shape, data = self.file[name]
            return Tensor(F32, shape, floats(dtype, data).tobytes())
        if name + ".weight_packed" in self.file:
            words, scale = self.file[name + ".weight_packed"], self.file[name + ".weight_scale"]
            shape = [words[1][0], words[1][1] * 8]
            return from_int4(shape, words[2], floats(scale[0], scale[2]), shape[1] // scale[1][1])
        dtype, shape, data = self.file[name + ".weight"]
        if dtype == "F8_E4M3":
            s = self.file[name + ".weight_scale_inv"]
            return from_fp8(shape, data, floats(s[0], s[2]), self.quant["weight_block_size"][0])
        if len(shape) == 1 or shape[0] == 1:
            return Tensor(F32, [math.prod(shape)], floats(dtype, data).tobytes())
        return Tensor(BF16 if dtype == "BF16" else F32, shape, data)


# ---- llama.cpp's names and forms -----------------------------------------------------------

ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp",
         "mlp.gate.e_score_correction_bias": "exp_probs_b.bias", "self_attn.o_proj": "attn_output",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
         "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
         "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b",
         "self_attn.indexer.wq_b": "indexer.attn_q_b", "self_attn.indexer.wk": "indexer.attn_k",
         "self_attn.indexer.k_norm": "indexer.k_norm", "self_attn.indexer.weights_proj": "indexer.proj",
         "eh_proj": "nextn.eh_proj", "enorm": "nextn.enorm", "hnorm": "nextn.hnorm",
         "shared_head.norm": "nextn.shared_head_norm", "mlp.shared_expert_gate": "ffn_gate_inp_shexp"}
NAMES |= {f"self_attn.{x}_proj": f"attn_{x}" for x in "qkv"}
for _x in ("gate", "up", "down"):
    NAMES |= {f"mlp.{_x}_proj": f"ffn_{_x}", f"mlp.experts.{_x}_proj": f"ffn_{_x}_exps",
              f"mlp.shared_expert.{_x}_proj": f"ffn_{_x}_shexp",
              f"mlp.shared_experts.{_x}_proj": f"ffn_{_x}_shexp"}

ARCH = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen2_moe": "qwen2moe",
        "qwen3_moe": "qwen3moe", "deepseek_v3": "deepseek2", "kimi_k2": "deepseek2", "glm_moe_dsa": "glm-dsa"}


def neighbours(t, heads):
    """Rows of each head reordered, so that rotary pairs lie together."""
    rows = t.rows() if len(t.shape) > 1 else [t.data[i:i + 4] for i in range(0, len(t.data), 4)]
    d = len(rows) // heads
    at = [h * d + j * (d // 2) + i for h in range(heads) for i in range(d // 2) for j in range(2)]
    return Tensor(t.kind, t.shape, b"".join(rows[i] for i in at))


def split_kv_b(t, heads, nope):
    """Each head's keys [c,nope], turned, and values [v,c]."""
    rows, c = t.rows(), t.shape[1]
    code = "H" if t.kind == BF16 else "I"
    each, keys, values = len(rows) // heads, array.array(code), b""
    for h in range(heads):
        head = rows[h * each:(h + 1) * each]
        for column in zip(*(array.array(code, r) for r in head[:nope])):
            keys.extend(column)
        values += b"".join(head[nope:])
    return (Tensor(t.kind, [heads, c, nope], keys.tobytes()),
            Tensor(t.kind, [heads, each - nope, c], values))


def tensors(ck, arch, whole_kv_b):
    """{name: Tensor} as the file has them."""
    c, out, stacks = ck.c, {}, {}
    for module in ck.modules():
        t = None
        if module in ENDS:
            out[ENDS[module] + ".weight"] = ck.load(module)
            continue
        parts = module.split(".")
        if parts[:2] != ["model", "layers"] or "rotary_emb" in module:
            continue
        at, bias = f"blk.{parts[2]}.", parts[-1] == "bias"
        rest = ".".join(x for x in parts[3:] if not x.isdigit() and x != "bias")
        if rest not in NAMES:
            continue
        t, name = ck.load(module), NAMES[rest]
        if arch == "llama" and name in ("attn_q", "attn_k"):
            t = neighbours(t, c["num_attention_heads"] if name[-1] == "q" else c["num_key_value_heads"])
        if name == "ffn_gate_inp" and t.kind == BF16:
            t = Tensor(F32, t.shape, widen(t.data))
        if name.endswith("_exps"):
            stacks.setdefault(at + name + ".weight", []).append((int(parts[5]), t))
        elif name == "attn_kv_b" and not whole_kv_b:
            k, v = split_kv_b(t, c["num_attention_heads"], c["qk_nope_head_dim"])
            out[at + "attn_k_b.weight"], out[at + "attn_v_b.weight"] = k, v
        else:
            out[at + name + ("" if name.endswith(".bias") else ".bias" if bias else ".weight")] = t
    for name, list_ in stacks.items():
        list_ = [t for _, t in sorted(list_, key=lambda x: x[0])]
        assert len({t.kind for t in list_}) == 1, name
        out[name] = Tensor(list_[0].kind, [len(list_), *list_[0].shape], b"".join(t.data for t in list_))
    if arch == "llama":
        divisors = llama3(c)
        if divisors:
            out["rope_freqs.weight"] = Tensor(F32, [len(divisors)], array.array("f", divisors).tobytes())
    return out


def llama3(c):
    r = c.get("rope_scaling") or {}
    if r.get("rope_type") != "llama3":
        return None
    out, d = [], c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    low, high, old = r["low_freq_factor"], r["high_freq_factor"], r["original_max_position_embeddings"]
    for i in range(d // 2):
        t = min(1, max(0, (old * c["rope_theta"] ** (-2 * i / d) / (2 * math.pi) - low) / (high - low)))
        out.append(1 / (t + (1 - t) / r["factor"]))
    return out


def sizes(ck, arch, whole_kv_b):
    """Keys of the architecture."""
    c = ck.c
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type"))
    heads = c["num_attention_heads"]
    out = {"block_count": c["num_hidden_layers"], "context_length": c["max_position_embeddings"],
           "embedding_length": c["hidden_size"], "feed_forward_length": c["intermediate_size"],
           "attention.head_count": heads, "attention.layer_norm_rms_epsilon": c["rms_norm_eps"],
           "rope.freq_base": float(rope.get("rope_theta", c.get("rope_theta"))), "vocab_size": c["vocab_size"]}
    if kind in ("yarn", "linear"):
        out |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    if kind == "yarn":
        out["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        out |= {f"rope.scaling.yarn_{x}": float(rope[x]) for x in ("beta_fast", "beta_slow") if x in rope}
        if rope.get("mscale_all_dim"):
            out["rope.scaling.yarn_log_multiplier"] = .1 * rope["mscale_all_dim"]
    if "kv_lora_rank" in c:
        q, v = c["qk_nope_head_dim"] + c["qk_rope_head_dim"], c["v_head_dim"]
        lat = c["kv_lora_rank"]
        out |= {"attention.kv_lora_rank": lat, "rope.dimension_count": c["qk_rope_head_dim"]}
        out |= ({"attention.head_count_kv": heads, "attention.key_length": q, "attention.value_length": v}
                if whole_kv_b else
                {"attention.head_count_kv": 1, "attention.key_length": lat + c["qk_rope_head_dim"],
                 "attention.value_length": lat, "attention.key_length_mla": q, "attention.value_length_mla": v})
        if c["q_lora_rank"]:
            out["attention.q_lora_rank"] = c["q_lora_rank"]
        out |= {"leading_dense_block_count": c["first_k_dense_replace"], "expert_count": c["n_routed_experts"],
                "expert_shared_count": c.get("n_shared_experts", 0), "expert_gating_func": 2,
                "expert_weights_scale": float(c["routed_scaling_factor"]),
                "expert_weights_norm": bool(c.get("norm_topk_prob", True))}
        if c["n_group"] > 1:
            out |= {"expert_group_count": c["n_group"], "expert_group_used_count": c["topk_group"]}
    else:
        d = c.get("head_dim") or c["hidden_size"] // heads
        out |= {"attention.head_count_kv": c["num_key_value_heads"], "attention.key_length": d,
                "attention.value_length": d, "rope.dimension_count": d}
    if "num_experts_per_tok" in c:
        out |= {"expert_used_count": c["num_experts_per_tok"],
                "expert_feed_forward_length": c["moe_intermediate_size"]}
    if arch.endswith("moe"):
        out["expert_count"] = c.get("num_experts") or c["num_local_experts"]
    if "shared_expert_intermediate_size" in c:
        out["expert_shared_feed_forward_length"] = c["shared_expert_intermediate_size"]
    if c.get("sliding_window") and c.get("use_sliding_window", True):
        out["attention.sliding_window"] = c["sliding_window"]
    if arch == "glm-dsa":
        drafts = c.get("num_nextn_predict_layers", 0)
        out |= {"attention.indexer.head_count": c["index_n_heads"], "attention.indexer.key_length": c["index_head_dim"],
                "attention.indexer.top_k": c["index_topk"], "nextn_predict_layers": drafts,
                "attention.indexer.types": [t == "full" for t in c["indexer_types"]],
                "block_count": c["num_hidden_layers"] + drafts}
    return {f"{arch}.{k}": v for k, v in out.items()}


# ---- tokenizer -----------------------------------------------------------------------------

_plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
SPELL = {b: chr(b) for b in _plain} | {b: chr(256 + i) for i, b in
                                       enumerate(b for b in range(256) if b not in _plain)}
NORMAL, CONTROL, ADDED, UNUSED = 1, 3, 4, 5


def tiktoken(path, n, added):
    with open(path, "rb") as f:
        rank = {base64.b64decode(x): int(r) for x, r in (line.split() for line in f.read().splitlines() if line)}

    def spell(b):
        return "".join(SPELL[x] for x in b)

    def halves(word, below):
        """What is left of a token when every merge of lower rank has been made."""
        parts = [word[i:i + 1] for i in range(len(word))]
        while len(parts) > 2:
            best = min(range(len(parts) - 1), key=lambda i: rank.get(parts[i] + parts[i + 1], below))
            if rank.get(parts[best] + parts[best + 1], below) >= below:
                break
            parts[best:best + 2] = [parts[best] + parts[best + 1]]
        return parts
    tokens = {r: (spell(b), NORMAL) for b, r in rank.items()}
    tokens |= {i: (f"<|reserved_token_{i}|>", CONTROL) for i in range(len(rank), n)}
    merges = [" ".join(map(spell, halves(b, r))) for b, r in sorted(rank.items(), key=lambda x: x[1]) if len(b) > 1]
    return tokens | added, merges, "kimi-k2"


def byte_level(path, n, added, family):
    with open(path) as f:
        t = json.load(f)
    tokens = {i: (s, NORMAL) for s, i in t["model"]["vocab"].items()}
    tokens |= {a["id"]: (a["content"], CONTROL if a["special"] else ADDED) for a in t["added_tokens"]}
    tokens = {i: (f"[PAD{i}]", UNUSED) for i in range(n)} | tokens
    merges = [m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]]
    pre = {"llama": "llama-bpe", "mistral": "gpt-2", "glm_moe_dsa": "glm4" if t["model"].get("ignore_merges") else
           "chatglm-bpe"}.get(family, "qwen2")
    if "Split" not in json.dumps(t["pre_tokenizer"]):
        pre = "gpt-2"
    return tokens | added, merges, pre


def optional(path):
    if not os.path.exists(path):
        return {}
    with open(path) as f:
        return json.load(f)


def vocabulary(ck):
    c = ck.c
    said = optional(os.path.join(ck.path, "tokenizer_config.json"))
    gen = optional(os.path.join(ck.path, "generation_config.json"))
    added = {int(i): (a["content"], CONTROL if a["special"] else ADDED)
             for i, a in said.get("added_tokens_decoder", {}).items()}
    kimi = os.path.join(ck.path, "tiktoken.model")
    tokens, merges, pre = (tiktoken(kimi, c["vocab_size"], added) if os.path.exists(kimi) else
                           byte_level(os.path.join(ck.path, "tokenizer.json"), c["vocab_size"], added,
                                      c["model_type"]))
    out = {"model": "gpt2", "pre": pre, "tokens": [tokens[i][0] for i in range(len(tokens))],
           "token_type": [tokens[i][1] for i in range(len(tokens))], "merges": merges}
    stops = []
    for v in (gen.get("eos_token_id"), c.get("eos_token_id")):
        stops += [i for i in (v if isinstance(v, list) else [v]) if i is not None and i not in stops]
    out |= dict(zip(("eos_token_id", "eot_token_id", "eom_token_id"), stops))
    if c.get("bos_token_id") is not None:
        out["bos_token_id"] = c["bos_token_id"]
    out["add_bos_token"] = pre == "llama-bpe"
    out = {f"tokenizer.ggml.{k}": v for k, v in out.items()}
    chat = os.path.join(ck.path, "chat_template.jinja")
    if os.path.exists(chat):
        with open(chat, newline="") as f:
            out["tokenizer.chat_template"] = f.read()
    return out


# ---- the file ------------------------------------------------------------------------------


def text(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def value(v):
    if isinstance(v, bool):
        return struct.pack("<IB", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + text(v)
    kind = {bool: (7, "B"), int: (5, "i"), str: (8, None)}[type(v[0]) if v else str]
    body = b"".join(map(text, v)) if kind[0] == 8 else struct.pack(f"<{len(v)}{kind[1]}", *v)
    return struct.pack("<IIQ", 9, kind[0], len(v)) + body


def write(path, meta, tensors_):
    head, at, pad = b"", 0, 32
    for name, t in tensors_.items():
        dims = t.shape[::-1]
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, t.kind, at)
        at += len(t.data) + -len(t.data) % pad
    head = (b"GGUF" + struct.pack("<IQQ", 3, len(tensors_), len(meta)) +
            b"".join(text(k) + value(v) for k, v in meta.items()) + head)
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % pad))
        for t in tensors_.values():
            f.write(t.data + b"\0" * (-len(t.data) % pad))


def convert(path, out, whole_kv_b=False):
    ck = Checkpoint(path)
    arch = ARCH[ck.c["model_type"]]
    meta = {"general.architecture": arch, "general.name": os.path.basename(os.path.abspath(path))}
    write(out, meta | sizes(ck, arch, whole_kv_b) | vocabulary(ck), tensors(ck, arch, whole_kv_b))


if __name__ == "__main__":
    flags = [a for a in sys.argv[1:] if a.startswith("--")]
    names = [a for a in sys.argv[1:] if not a.startswith("--")]
    if len(names) != 2 or set(flags) - {"--whole-kv-b"}:
        sys.exit(__doc__)
    convert(*names, whole_kv_b=bool(flags))
