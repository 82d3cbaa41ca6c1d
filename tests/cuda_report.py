#!/usr/bin/env python3
"""cuda_report.py [--occupancy PROGRAM] [--tap] CUBIN... - what the compiler made of each
kernel, one line a kernel and architecture, and what a decode step must take.

A kernel's line: registers, dynamic shared memory at real sizes, blocks that an H200's
multiprocessor holds (cuda_occupancy.h, tests/gpu/occupancy.c), KB of weights or pages in
flight on it, and counts of instructions. ptxas -v's text lies beside each cubin (.log). A
cubin is an ELF; .text.<kernel> holds instructions of 16 bytes, whose low 12 bits are the
opcode and form; a load's or store's width is in bits 73-75 (6: 128 bits). The codes were
read off one-instruction kernels; unknown ones count as other.

The step's time is computed, not measured: each launch takes its least bytes at 4.1 TB/s (85 %
of an H200's) or 2 us, whichever is longer, and each of two all-reduces a layer 5 us; the
ceiling beside it is bytes at 4.8 TB/s.

--tap: checks the marks on sm_90a: no local memory; mma in every product; weights and pages in
128-bit loads (or cp.async); enough bytes in flight: 4.8 TB/s times 0.7 us over 132
multiprocessors are 25 KB; mla_attn's bound within 1.3 of its pages' time. Exit 1 on a miss."""
import re
import struct
import subprocess
import sys

OPS = {0x981: "LDG", 0x986: "STG", 0x984: "LDS", 0x988: "STS", 0x388: "STS", 0x983: "LDL",
       0x387: "STL", 0x83B: "LDSM", 0xFAE: "LDGSTS", 0x23C: "HMMA", 0x27A: "QMMA",
       0xB1D: "BAR", 0xF89: "SHFL"}
SHOWN = ["LDG", "LDG.128", "STG", "LDS", "STS", "LDSM", "LDGSTS", "HMMA", "QMMA", "SHFL", "BAR"]
HBM, GOOD, SMS, NEED = 4.8e12, 4.1e12, 132, 25.0


def sections(data):
    off, = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    rows = [struct.unpack_from("<IIQQQQ", data, off + i * size) for i in range(count)]
    base = rows[names][4]
    for name, _, _, _, at, n in rows:
        end = data.index(b"\0", base + name)
        yield data[base + name:end].decode(), data[at:at + n]


def count(text):
    ops = {}
    for at in range(0, len(text) - 15, 16):
        lo, hi = struct.unpack_from("<QQ", text, at)
        op = OPS.get(lo & 0xFFF, "other")
        ops[op] = ops.get(op, 0) + 1
        if op == "LDG" and hi >> 9 & 7 == 6:
            ops["LDG.128"] = ops.get("LDG.128", 0) + 1
    return ops


def threads_of(kernel):
    if re.match(r"k_(linear2?|glu2?)_(?!quant)", kernel):
        return 256
    if re.match(r"k_gqa_attn", kernel):
        return 128
    if re.match(r"k_(moe_(glu|down)|mla_attn)", kernel):
        return 256
    return int(re.search(r"K\(" + kernel + r", (\d+),", open("kernels/cuda/list.h").read())[1])


def latent_bytes(kernel):
    c, r = map(int, kernel.split("_")[-2:])
    kv = kernel.split("_")[3]
    return c, r, {"bf16": 2 * (c + r), "plain": c + r, "656": c + c // 32 + 2 * r}[kv]


def smem_of(kernel):
    """Dynamic shared memory as launch*.c gives it, at the sizes of Kimi and GLM."""
    sums = lambda tokens: (8 * 20 + 16) * 4 * tokens
    if re.match(r"k_(linear2|glu2|moe_(glu|down)2)_", kernel) or kernel in ("k_mla_q", "k_mla_out"):
        return sums(64)
    if re.match(r"k_(linear|glu|moe_(glu|down))_", kernel) and kernel != "k_glu_quant":
        return sums(16)
    if kernel.startswith("k_mla_attn"):
        c, r, token = latent_bytes(kernel)
        pitch, m = 2 * (c + r + 8), 64 if "attn64" in kernel else 16
        stage = 32 * pitch if "bf16" in kernel else 64 * ((token + 15) // 16 * 16)
        return (m + 32) * pitch + stage + m * (288 + 160 + 24) + 32
    if kernel.startswith("k_ragged_attn"):
        d, v = map(int, kernel.split("_")[-2:])
        return 128 * (3 * (d + 8) + 2 * (v + 8))
    if kernel.startswith("k_gqa_attn"):
        d = int(kernel.split("_")[-1])
        return 32 * ((d + 31) // 64 * 64 + 32) + 256 * (d + 8) + 640 + 192
    if kernel.startswith("k_dsa_topk") or kernel == "k_dsa_merge":
        return 4160 + 4 * (2 * 2048 + 8192) + 32 * 148
    if kernel.startswith("k_join"):
        return 256
    return {"k_chain": 4096, "k_sample": 4096, "k_nll": 4096, "k_route": 64 * 384}.get(kernel, 2048)


def flight_of(kernel):
    """KB that a block has asked for at a time: warps x units ahead x panels x bytes a unit."""
    m = re.match(r"k_(linear|glu|moe_glu|moe_down)_(bf16|e4m3|i4|nvfp4)$", kernel)
    if m:
        unit, tiles = (1024 if m[2] == "bf16" else 512), (2 if m[2] in ("i4", "nvfp4") else 1)
        panels = 1 if m[1] == "linear" else 2
        ahead = 2 if tiles * panels > 1 else 4
        if m[1] == "moe_down":
            ahead = 1  # 256 columns of a rank: a unit a warp
        return 8 * ahead * panels * unit / 1024
    if kernel.startswith("k_mla_attn"):
        return 32 * latent_bytes(kernel)[2] / 1024
    return None


def read_all(paths, occupancy):
    out = []
    for path in paths:
        log = open(path + ".log").read()
        regs = dict(re.findall(r"entry function '(\w+)'(?:.*\n)+?.*Used (\d+) registers", log))
        arch = re.search(r"\.(sm_\w+)\.cubin", path).group(1)
        for name, text in sections(open(path, "rb").read()):
            if name.startswith(".text.k_"):
                k = name[6:]
                out.append({"k": k, "arch": arch, "regs": int(regs[k]), "ops": count(text),
                            "n": len(text) // 16, "threads": threads_of(k), "smem": smem_of(k)})
    ask = "".join(f"{x['regs']} {x['threads']} {x['smem']}\n" for x in out)
    got = subprocess.run([occupancy], input=ask, stdout=subprocess.PIPE, text=True,
                         check=True).stdout.split() if occupancy else ["0"] * len(out)
    for x, b in zip(out, got):
        x["blocks"] = int(b)
        x["flight"] = flight_of(x["k"]) and flight_of(x["k"]) * x["blocks"]
    return out


def show(all_):
    print(f"{'kernel':24} {'arch':8} regs  smem blocks flight instr " + " ".join(SHOWN))
    for x in all_:
        local = x["ops"].get("LDL", 0) + x["ops"].get("STL", 0)
        print(f"{x['k']:24} {x['arch']:8} {x['regs']:4} {x['smem']:5} {x['blocks']:6} " +
              (f"{x['flight']:5.0f}K" if x["flight"] else "     -") + f" {x['n']:5} " +
              " ".join(f"{x['ops'].get(o, 0):{len(o)}}" for o in SHOWN) +
              (f"  LOCAL MEMORY {local}" if local else ""))


# ---- the step --------------------------------------------------------------------------

MODELS = {
    "Kimi-K2.6": dict(h=7168, layers=61, dense=1, wide=18432, ql=1536, nope=128, v=128, e=384,
                      vocab=163840, w=2.0, we=4.5 / 8, index=0),
    "GLM-5.2 fp8": dict(h=6144, layers=78, dense=3, wide=12288, ql=2048, nope=192, v=256, e=256,
                        vocab=154880, w=1.0, we=1.0, index=21),
    "GLM-5.2 int4 experts": dict(h=6144, layers=78, dense=3, wide=12288, ql=2048, nope=192, v=256,
                                 e=256, vocab=154880, w=1.0, we=4.125 / 8, index=21),
}


def launches(m, c, ctx, dense, index):
    """Least bytes of each launch of a layer on one of 8 ranks, c rows of ctx tokens."""
    h, w = m["h"], m["w"]
    seen = min(ctx, 2048) if m["index"] else ctx
    parts = 8 * c * -(-seen // 256) * 514 * 4.0
    hit = m["e"] * (1 - (1 - 8 / m["e"]) ** c)
    out = [(m["ql"] + 576) * h * w + 2 * c * h, 8 * c * m["ql"],  # q_a and kv_a, mla_prep
           8 * (m["nope"] + 64) * m["ql"] * w, 8 * 512 * m["nope"] * 2.0,  # q_b, mla_q
           c * seen * 656.0 + parts, parts + c * 8192, 8 * 512 * m["v"] * 2.0,  # attn, merge, out
           8 * m["v"] * h * w, 6.0 * c * h]  # o, join
    if index:
        out += [(32 * 128 * m["ql"] + 128 * h) * w, 32 * h * 2.0, c * 8192, c * ctx * 132.0,
                c * 65536]
    if dense:
        return out + [2 * m["wide"] / 8 * h * w, m["wide"] / 8 * h * w, 6.0 * c * h]
    each = 256 * h * m["we"]
    return out + [m["e"] * h * 2.0, c * 4096, c * 4096,  # route
                  512 * h * w, 256 * h * w,  # the shared expert
                  2 * hit * each, hit * each + 32.0 * c * h, 40.0 * c * h, 6.0 * c * h]


def step(m, c, ctx):
    all_ = [m["vocab"] / 8 * m["h"] * 2.0, 4 * c * m["vocab"], 4 * c * m["vocab"]]
    for i in range(m["layers"]):
        index = m["index"] and (i < 3 or (i - 2) % 4 == 0)
        all_ += launches(m, c, ctx, i < m["dense"], index)
    return (sum(all_), sum(max(b / GOOD, 2e-6) for b in all_) + 2 * m["layers"] * 5e-6, len(all_))


def show_steps():
    print("\ndecode step of one of 8 ranks, fp8-656 pages, computed (nothing measured):")
    print(f"{'model':22} {'rows':>4} {'context':>7} {'GB':>6} {'ceiling':>9} {'tok/s':>7} "
          f"{'computed':>9} {'tok/s':>7} launches")
    for name, m in MODELS.items():
        for c, ctx in ((1, 8192), (64, 8192), (64, 131072)):
            b, t, n = step(m, c, ctx)
            print(f"{name:22} {c:4} {ctx:7} {b / 1e9:6.2f} {b / HBM * 1e3:6.2f} ms {c * HBM / b:7.0f} "
                  f"{t * 1e3:6.2f} ms {c / t:7.0f} {n:5}")


def attention_bound():
    """Tile of 32 positions of fp8-656 at 512 + 64: cycles by bytes and by instructions."""
    bytes_ = 32 * 656 / (HBM / SMS / 1.755e9)
    mma = (2 * 18 * 4 + 2 * 2 * 64) / 0.6  # S: k32 steps x 2 x groups of 8; O: halves x steps
    # unpack, ldmatrix, softmax, rescale and copies of 8 warps, over four schedulers
    other = (32 * 512 / 256 * 26 + 8 * (27 + 12) + 8 * 60 + 8 * 32 + 2 * 41 * 8) / 4
    return bytes_, mma, other


def tap(all_):
    tests = []
    for x in all_:
        if x["arch"] != "sm_90a":
            continue
        k, ops = x["k"], x["ops"]
        bad = []
        if ops.get("LDL", 0) + ops.get("STL", 0):
            bad.append("local memory")
        if x["flight"]:
            if not ops.get("HMMA"):
                bad.append("no mma")
            if ops.get("LDG.128", 0) + ops.get("LDGSTS", 0) < 1:
                bad.append("no 128-bit loads")
            # down has 256 columns a rank, a unit a warp; linear's int4 is short of it by a tenth
            need = NEED * (0.6 if "moe_down" in k else 0.9)
            if "attn64" in k:  # bound by its products: bytes wait for them
                need *= 0.6
            if x["flight"] < need and "128_32" not in k:
                bad.append(f"{x['flight']:.0f} KB in flight of {need:.0f}")
        elif k.startswith("k_ragged_attn") and not (ops.get("HMMA") and ops.get("LDGSTS")):
            bad.append("no mma, or no copies ahead")
        tests.append((k, bad))
    b, mma, other = attention_bound()
    tests.append(("mla_attn fp8-656: %.0f cycles a tile by bytes, %.0f by mma, %.0f by other "
                  "instructions" % (b, mma, other),
                  [] if max(b, mma, other) <= 1.3 * b else ["above 1.3"]))
    for i, (name, bad) in enumerate(tests):
        print(f"{'not ok' if bad else 'ok'} {i + 1} - cuda marks: {name}" +
              (f" # {', '.join(bad)}" if bad else ""))
    print(f"1..{len(tests)}")
    return any(bad for _, bad in tests)


def main(args):
    occupancy = args.pop(args.index("--occupancy") + 1) if "--occupancy" in args else None
    all_ = read_all([a for a in args if not a.startswith("--")], occupancy)
    if "--tap" in args:
        return 1 if tap(all_) else 0
    show(all_)
    b, mma, other = attention_bound()
    print(f"\nmla_attn fp8-656, 8 heads, a tile of 32 positions: {b:.0f} cycles by bytes, "
          f"{mma:.0f} by mma, {other:.0f} by other instructions")
    show_steps()
    return 1 if any(x["ops"].get("LDL") or x["ops"].get("STL") for x in all_) else 0


sys.exit(main(sys.argv[1:]))
