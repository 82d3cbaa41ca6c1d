"""Checkpoints of every family with odd sizes, and what they compute. Standard library only.

A second implementation of the models, slow and plain: lists of floats in double precision,
no cache, MLA expanded and not absorbed. Nothing of it comes from the program. make() writes
a directory with config.json, a tokenizer, shards and golden/logits.safetensors."""
import json
import math
import os
import random
import struct
from operator import mul

# ---- number formats ------------------------------------------------------------------------


def bf16(x):
    """The bf16 next to x, ties to even: its bits."""
    u = struct.unpack("<I", struct.pack("<f", x))[0]
    return u + 0x7FFF + (u >> 16 & 1) >> 16 & 0xFFFF


def of_bf16(b):
    return struct.unpack("<f", struct.pack("<I", b << 16))[0]


def of_e4m3(b):
    e, m = b >> 3 & 15, b & 7
    x = m * 2.0 ** -9 if e == 0 else (8 + m) * 2.0 ** (e - 10)
    return -x if b & 128 else x


E4M3 = sorted((of_e4m3(b), b) for b in range(0x7F))


def e4m3(x):
    """The bits of some e4m3 near x: which one does not matter, it is what is stored."""
    a = min(abs(x), 448)
    i = min(range(len(E4M3)), key=lambda j: abs(E4M3[j][0] - a))
    return E4M3[i][1] | (128 if x < 0 else 0)


# ---- safetensors ---------------------------------------------------------------------------


def write_tensors(path, tensors):
    """tensors: {name: (dtype, shape, bytes)}, in that order."""
    head, at, blobs = {}, 0, []
    for name, (dtype, shape, data) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
        blobs.append(data)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def f32(values):
    return struct.pack(f"<{len(values)}f", *values)


def i32(values):
    return struct.pack(f"<{len(values)}i", *values)


# ---- weights -------------------------------------------------------------------------------


class Weights:
    """Makes random weights and keeps both what is stored and what it means."""

    def __init__(self, seed, prefix=""):
        self.random, self.prefix = random.Random(seed), prefix
        self.file, self.value = {}, {}

    def _normal(self, n, k, scale):
        return [[self.random.gauss(0, scale) for _ in range(k)] for _ in range(n)]

    def matrix(self, name, n, k, how="bf16", scale=None):
        w = self._normal(n, k, scale or k ** -0.5)
        getattr(self, "_" + how)(self.prefix + name, name, n, k, w)

    def _bf16(self, full, name, n, k, w):
        bits = [[bf16(x) for x in row] for row in w]
        self.value[name] = [[of_bf16(b) for b in row] for row in bits]
        data = b"".join(struct.pack(f"<{k}H", *row) for row in bits)
        self.file[full + ".weight"] = ("BF16", [n, k], data)

    def _f16(self, full, name, n, k, w):
        data = b"".join(struct.pack(f"<{k}e", *row) for row in w)
        self.value[name] = [list(struct.unpack_from(f"<{k}e", data, 2 * k * r)) for r in range(n)]
        self.file[full + ".weight"] = ("F16", [n, k], data)

    def _f32(self, full, name, n, k, w):
        data = b"".join(f32(row) for row in w)
        self.value[name] = [list(struct.unpack_from(f"<{k}f", data, 4 * k * r)) for r in range(n)]
        self.file[full + ".weight"] = ("F32", [n, k], data)

    def _fp8(self, full, name, n, k, w, block=128):
        rows, cols = -(-n // block), -(-k // block)
        scale = [[struct.unpack("<f", struct.pack("<f", self.random.uniform(.5, 2) * k ** -0.5 / 100))[0]
                  for _ in range(cols)] for _ in range(rows)]
        data = bytes(self.random.choice((0, 128)) | self.random.randrange(0x20, 0x70)
                     for _ in range(n * k))
        self.value[name] = [[of_e4m3(data[r * k + c]) * scale[r // block][c // block]
                             for c in range(k)] for r in range(n)]
        self.file[full + ".weight"] = ("F8_E4M3", [n, k], data)
        self.file[full + ".weight_scale_inv"] = ("F32", [rows, cols], f32(sum(scale, [])))

    def _int4(self, full, name, n, k, w, group=32):
        """compressed-tensors: eight codes a word, low nibble first."""
        scale = [[bf16(abs(self.random.gauss(.2, .05)) * k ** -0.5 + 1e-3) for _ in range(k // group)]
                 for _ in range(n)]
        code = [[self.random.randrange(16) for _ in range(k)] for _ in range(n)]
        self.value[name] = [[(code[r][c] - 8) * of_bf16(scale[r][c // group]) for c in range(k)]
                            for r in range(n)]
        words = [sum(code[r][8 * j + i] << 4 * i for i in range(8))
                 for r in range(n) for j in range(k // 8)]
        self.file[full + ".weight_packed"] = ("I32", [n, k // 8], struct.pack(f"<{len(words)}I", *words))
        self.file[full + ".weight_scale"] = ("BF16", [n, k // group],
                                             b"".join(struct.pack(f"<{k // group}H", *s) for s in scale))
        self.file[full + ".weight_shape"] = ("I64", [2], struct.pack("<2q", n, k))

    def _int4_g8(self, full, name, n, k, w):
        self._int4(full, name, n, k, w, 8)

    def _mixed(self, full, name, n, k, w):
        """One format here, another there: also within what shares an input or a stack."""
        (self._int4 if self.random.random() < .5 else self._bf16)(full, name, n, k, w)

    def _zeros(self, n, groups):
        return [[self.random.randrange(1, 15) for _ in range(n)] for _ in range(groups)]

    def _f16_scales(self, n, k, groups):
        return [[struct.unpack("<e", struct.pack("<e", self.random.uniform(.1, .3) * k ** -0.5))[0]
                 for _ in range(n)] for _ in range(groups)]

    def _gptq(self, full, name, n, k, w, group=32):
        """qweight [K/8, N]: eight rows of k a word; qzeros [K/group, N/8], stored less one."""
        scale, zero = self._f16_scales(n, k, k // group), self._zeros(n, k // group)
        code = [[self.random.randrange(16) for _ in range(n)] for _ in range(k)]
        self.value[name] = [[(code[c][r] - zero[c // group][r]) * scale[c // group][r]
                             for c in range(k)] for r in range(n)]
        q = [sum(code[8 * j + i][r] << 4 * i for i in range(8)) for j in range(k // 8) for r in range(n)]
        z = [sum(g[8 * j + i] - 1 << 4 * i for i in range(8)) for g in zero for j in range(n // 8)]
        self._auto(full, [k // 8, n], q, [k // group, n // 8], z, scale)
        self.file[full + ".g_idx"] = ("I32", [k], i32([c // group for c in range(k)]))

    def _awq(self, full, name, n, k, w, group=32):
        """qweight [K, N/8]: eight columns of n a word, in the order 0 2 4 6 1 3 5 7."""
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        scale, zero = self._f16_scales(n, k, k // group), self._zeros(n, k // group)
        code = [[self.random.randrange(16) for _ in range(n)] for _ in range(k)]
        self.value[name] = [[(code[c][r] - zero[c // group][r]) * scale[c // group][r]
                             for c in range(k)] for r in range(n)]

        def pack(rows):
            return [sum(row[8 * j + order[i]] << 4 * i for i in range(8)) for row in rows
                    for j in range(n // 8)]
        self._auto(full, [k, n // 8], pack(code), [k // group, n // 8], pack(zero), scale)

    def _auto(self, full, q_shape, q, z_shape, z, scale):
        self.file[full + ".qweight"] = ("I32", q_shape, struct.pack(f"<{len(q)}I", *q))
        self.file[full + ".qzeros"] = ("I32", z_shape, struct.pack(f"<{len(z)}I", *z))
        flat = sum(scale, [])
        self.file[full + ".scales"] = ("F16", [len(scale), len(scale[0])], struct.pack(f"<{len(flat)}e", *flat))

    def vector(self, name, n, around=1.0, spread=.1, dtype="BF16"):
        bits = [bf16(around + self.random.gauss(0, spread)) for _ in range(n)]
        self.value[name] = [of_bf16(b) for b in bits]
        self.file[self.prefix + name] = (("BF16", [n], struct.pack(f"<{n}H", *bits)) if dtype == "BF16"
                                         else ("F32", [n], f32(self.value[name])))

    def stranger(self, name, n=3):
        self.file[name] = ("BF16", [n], struct.pack(f"<{n}H", *([0x3F80] * n)))


# ---- arithmetic ----------------------------------------------------------------------------


def dot(a, b):
    return sum(map(mul, a, b))


def apply(w, x):
    return [dot(row, x) for row in w]


def add(a, b):
    return [x + y for x, y in zip(a, b)]


def rms(x, w, eps):
    r = (dot(x, x) / len(x) + eps) ** -0.5
    return [v * r * g for v, g in zip(x, w)]


def silu(x):
    return x / (1 + math.exp(-x))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def softmax(x):
    top = max(x)
    e = [math.exp(v - top) for v in x]
    s = sum(e)
    return [v / s for v in e]


def best(scores, k):
    """The k largest, the lowest index on ties."""
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]


def rotate(x, pos, freq, neighbours, mul_by=1.0):
    out, half = list(x), len(freq)
    for i, f in enumerate(freq):
        a, b = (2 * i, 2 * i + 1) if neighbours else (i, i + half)
        c, s = math.cos(pos * f) * mul_by, math.sin(pos * f) * mul_by
        out[a], out[b] = x[a] * c - x[b] * s, x[a] * s + x[b] * c
    return out


def mscale(factor, by):
    return 1.0 if factor <= 1 else .1 * by * math.log(factor) + 1


def frequencies(cfg, dim):
    """Of dim/2 pairs; the factor on cos and sin; that on scores with latents."""
    rope = cfg.get("rope_scaling") or {}
    theta, kind = cfg["rope_theta"], rope.get("type", rope.get("rope_type", "default"))
    f = [theta ** (-2 * i / dim) for i in range(dim // 2)]
    if kind == "default":
        return f, 1.0, 1.0
    factor, old = rope["factor"], rope["original_max_position_embeddings"]
    if kind == "llama3":
        low, high, out = rope["low_freq_factor"], rope["high_freq_factor"], []
        for x in f:
            t = min(1, max(0, (old * x / (2 * math.pi) - low) / (high - low)))
            out.append(x * t + x / factor * (1 - t))
        return out, 1.0, 1.0

    def pair(turns):
        return dim * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(theta))
    low = max(0, math.floor(pair(rope.get("beta_fast", 32))))
    high = min(dim - 1, math.ceil(pair(rope.get("beta_slow", 1))))
    ramp = [min(1, max(0, (i - low) / ((high - low) or .001))) for i in range(dim // 2)]
    by, every = rope.get("mscale"), rope.get("mscale_all_dim")
    on_cos = mscale(factor, by) / mscale(factor, every) if by and every else mscale(factor, 1)
    return ([x * (1 - r) + x / factor * r for x, r in zip(f, ramp)], on_cos,
            mscale(factor, every) ** 2 if every else 1.0)


# ---- the models ----------------------------------------------------------------------------


class Model:
    def __init__(self, cfg, weights):
        self.c, self.w = cfg, weights.value
        self.mla = "kv_lora_rank" in cfg
        self.eps = cfg["rms_norm_eps"]
        dim = cfg["qk_rope_head_dim"] if self.mla else self.head_dim()
        self.freq, self.on_cos, self.on_score = frequencies(cfg, dim)
        self.chosen = None

    def head_dim(self):
        return self.c.get("head_dim") or self.c["hidden_size"] // self.c["num_attention_heads"]

    def lin(self, name, x):
        y = apply(self.w[name], x)
        return add(y, self.w[name + ".bias"]) if name + ".bias" in self.w else y

    def gqa(self, at, xs):
        c, d = self.c, self.head_dim()
        nq, nk, window = c["num_attention_heads"], c["num_key_value_heads"], c.get("sliding_window")
        qs, ks, vs = [], [], []
        for t, x in enumerate(xs):
            q, k, v = (self.lin(f"{at}.{p}_proj", x) for p in "qkv")
            q, k, v = ([y[i * d:(i + 1) * d] for i in range(len(y) // d)] for y in (q, k, v))
            if at + ".q_norm.weight" in self.w:
                q = [rms(h, self.w[at + ".q_norm.weight"], self.eps) for h in q]
                k = [rms(h, self.w[at + ".k_norm.weight"], self.eps) for h in k]
            qs.append([rotate(h, t, self.freq, False, self.on_cos) for h in q])
            ks.append([rotate(h, t, self.freq, False, self.on_cos) for h in k])
            vs.append(v)
        out = []
        for t in range(len(xs)):
            see = [s for s in range(t + 1) if not window or t - s < window]
            row = []
            for h in range(nq):
                g = h // (nq // nk)
                p = softmax([dot(qs[t][h], ks[s][g]) * d ** -0.5 for s in see])
                row += [sum(p[i] * vs[s][g][j] for i, s in enumerate(see)) for j in range(d)]
            out.append(self.lin(at + ".o_proj", row))
        return out

    def latent(self, at, xs):
        """MLA, expanded: every head has keys of its own and one rotated part in common."""
        c, pairs = self.c, self.c.get("rope_interleave", True)
        h, nope, r, v = (c[k] for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim",
                                        "v_head_dim"))
        rank, qs, ks, vs, lat = c["kv_lora_rank"], [], [], [], []
        for t, x in enumerate(xs):
            if c["q_lora_rank"]:
                lat.append(rms(self.lin(at + ".q_a_proj", x), self.w[at + ".q_a_layernorm.weight"], 1e-6))
                q = self.lin(at + ".q_b_proj", lat[-1])
            else:
                q = self.lin(at + ".q_proj", x)
            kv = self.lin(at + ".kv_a_proj_with_mqa", x)
            key = rotate(kv[rank:], t, self.freq, pairs, self.on_cos)
            up = self.lin(at + ".kv_b_proj", rms(kv[:rank], self.w[at + ".kv_a_layernorm.weight"], 1e-6))
            q = [q[i * (nope + r):(i + 1) * (nope + r)] for i in range(h)]
            up = [up[i * (nope + v):(i + 1) * (nope + v)] for i in range(h)]
            qs.append([y[:nope] + rotate(y[nope:], t, self.freq, pairs, self.on_cos) for y in q])
            ks.append([y[:nope] + key for y in up])
            vs.append([y[nope:] for y in up])
        scale, out = (nope + r) ** -0.5 * self.on_score, []
        if at + ".indexer.wk" in self.w:
            self.chosen = self.index(at + ".indexer", xs, lat)
        for t in range(len(xs)):
            see = self.chosen[t] if "index_topk" in c else range(t + 1)
            row = []
            for i in range(h):
                p = softmax([dot(qs[t][i], ks[s][i]) * scale for s in see])
                row += [sum(p[n] * vs[s][i][j] for n, s in enumerate(see)) for j in range(v)]
            out.append(self.lin(at + ".o_proj", row))
        return out

    def index(self, at, xs, lat):
        c, r = self.c, self.c["qk_rope_head_dim"]
        n, d, keys, out = c["index_n_heads"], c["index_head_dim"], [], []
        for t, x in enumerate(xs):
            k = self.lin(at + ".wk", x)
            mean = sum(k) / d
            k = [y - mean for y in k]
            s = (dot(k, k) / d + 1e-6) ** -0.5
            k = [y * s * g + b for y, g, b in zip(k, self.w[at + ".k_norm.weight"],
                                                  self.w[at + ".k_norm.bias"])]
            keys.append(rotate(k[:r], t, self.freq, True, self.on_cos) + k[r:])
            q = self.lin(at + ".wq_b", lat[t])
            q = [q[i * d:(i + 1) * d] for i in range(n)]
            q = [rotate(y[:r], t, self.freq, True, self.on_cos) + y[r:] for y in q]
            gate = [g * n ** -0.5 * d ** -0.5 for g in self.lin(at + ".weights_proj", x)]
            score = [sum(gate[i] * max(0.0, dot(q[i], key)) for i in range(n)) for key in keys]
            out.append(sorted(best(score, c["index_topk"])))
        return out

    def glu(self, at, x):
        gate, up = self.lin(at + ".gate_proj", x), self.lin(at + ".up_proj", x)
        return self.lin(at + ".down_proj", [silu(g) * u for g, u in zip(gate, up)])

    def experts(self, at, x):
        c, logits = self.c, self.lin(at + ".gate", x)
        k = c["num_experts_per_tok"]
        if self.mla:
            score = [sigmoid(v) for v in logits]
            pick = add(score, self.w[at + ".gate.e_score_correction_bias"])
            size = len(score) // c["n_group"]
            groups = [pick[i * size:(i + 1) * size] for i in range(c["n_group"])]
            if c["n_group"] > 1:
                keep = best([sum(sorted(g)[-2:]) for g in groups], c["topk_group"])
                pick = [p if i // size in keep else -math.inf for i, p in enumerate(pick)]
            ids = best(pick, k)
        else:
            score = softmax(logits)
            ids = best(score, k)
        weight = [score[e] for e in ids]
        if c.get("norm_topk_prob"):
            weight = [v / (sum(weight) + 1e-20) for v in weight]
        out = [0.0] * len(x)
        for e, v in zip(ids, weight):
            v *= c.get("routed_scaling_factor", 1)
            out = add(out, [v * y for y in self.glu(f"{at}.experts.{e}", x)])
        if at + ".shared_experts.gate_proj" in self.w:
            out = add(out, self.glu(at + ".shared_experts", x))
        if at + ".shared_expert.gate_proj" in self.w:
            g = sigmoid(self.lin(at + ".shared_expert_gate", x)[0])
            out = add(out, [g * y for y in self.glu(at + ".shared_expert", x)])
        return out

    def layer(self, i, xs):
        at = f"model.layers.{i}"
        h = [rms(x, self.w[at + ".input_layernorm.weight"], self.eps) for x in xs]
        h = (self.latent if self.mla else self.gqa)(at + ".self_attn", h)
        xs = [add(x, y) for x, y in zip(xs, h)]
        sparse = at + ".mlp.gate" in self.w
        out = []
        for x in xs:
            y = rms(x, self.w[at + ".post_attention_layernorm.weight"], self.eps)
            out.append(add(x, self.experts(at + ".mlp", y) if sparse else self.glu(at + ".mlp", y)))
        return out

    def hidden(self, ids):
        xs = [self.w["model.embed_tokens"][i] for i in ids]
        for i in range(self.c["num_hidden_layers"]):
            xs = self.layer(i, xs)
        return [rms(x, self.w["model.norm.weight"], self.eps) for x in xs]

    def draft(self, ids, hidden):
        """The draft layer: ids[i] follows hidden[i]."""
        at, xs = f"model.layers.{self.c['num_hidden_layers']}", []
        for i, h in zip(ids, hidden):
            e = rms(self.w["model.embed_tokens"][i], self.w[at + ".enorm.weight"], self.eps)
            xs.append(self.lin(at + ".eh_proj", e + rms(h, self.w[at + ".hnorm.weight"], self.eps)))
        xs = self.layer(self.c["num_hidden_layers"], xs)
        return [rms(x, self.w[at + ".shared_head.norm.weight"], self.eps) for x in xs]

    def logits(self, x):
        return self.lin("model.embed_tokens" if self.c.get("tie_word_embeddings") else "lm_head", x)


# ---- directories ---------------------------------------------------------------------------


def tokenizer(path):
    """Bytes as tokens 0..255, spelled as byte-level BPE spells them; no merges."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in plain]
    spell = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(other)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    with open(os.path.join(path, "tokenizer.json"), "w") as f:
        json.dump({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": byte_level,
                   "post_processor": None, "decoder": byte_level,
                   "model": {"type": "BPE", "unk_token": None, "vocab": {spell[b]: b for b in range(256)},
                             "merges": []}}, f)


def save(path, config, weights, shards=1, backwards=False):
    """The files of a checkpoint; shards take tensors in turn."""
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f)
    tokenizer(path)
    names = list(weights.file)
    if backwards:
        names.reverse()
    if shards == 1:
        write_tensors(os.path.join(path, "model.safetensors"), {n: weights.file[n] for n in names})
        return
    index = {}
    for s in range(shards):
        name = f"model-{s + 1:05}-of-{shards:05}.safetensors"
        write_tensors(os.path.join(path, name), {n: weights.file[n] for n in names[s::shards]})
        index |= {n: name for n in names[s::shards]}
    with open(os.path.join(path, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": index}, f)


def golden(path, text, weights, lengths, drafts=False, tolerance=None):
    """golden/: logits at every position of random prompts, and of drafts where asked for."""
    out, model, rng = os.path.join(path, "golden"), Model(text, weights), random.Random(7)
    os.makedirs(out, exist_ok=True)
    tensors, mtp = {}, {}
    for i, n in enumerate(lengths):
        ids = [rng.randrange(256) for _ in range(n)]
        hidden = model.hidden(ids)
        rows = [model.logits(h) for h in hidden]
        tensors |= {f"p{i}.ids": ("I32", [n], i32(ids)), f"p{i}.pos": ("I32", [n], i32(range(n))),
                    f"p{i}.logits": ("F32", [n, len(rows[0])], f32(sum(rows, []))),
                    f"p{i}.spread": ("F32", [n], f32([0.0] * n))}
        if drafts and n > 1:
            after = model.draft(ids[1:], hidden[:-1])
            rows, j = [model.logits(h) for h in after], len(mtp) // 4
            mtp |= {f"p{j}.ids": ("I32", [n], i32(ids)), f"p{j}.pos": ("I32", [n - 1], i32(range(n - 1))),
                    f"p{j}.logits": ("F32", [n - 1, len(rows[0])], f32(sum(rows, []))),
                    f"p{j}.hidden": ("F32", [n - 1, len(after[0])], f32(sum(after, [])))}
    write_tensors(os.path.join(out, "logits.safetensors"), tensors)
    if mtp:
        write_tensors(os.path.join(out, "mtp.safetensors"), mtp)
    if tolerance:
        with open(os.path.join(out, "eval.json"), "w") as f:
            json.dump({"bf16_compute_logit_difference": tolerance}, f)
    return out
