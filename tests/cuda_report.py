#!/usr/bin/env python3
"""cuda_report.py CUBIN... - what the compiler made of each kernel, one line a kernel and
architecture: registers, blocks a multiprocessor holds by registers and threads, and counts
of instructions. ptxas -v's text lies beside each cubin (.log). Exit 1 on local memory.

A cubin is an ELF; .text.<kernel> holds instructions of 16 bytes, whose low 12 bits are the
opcode and form; a load's or store's width is in bits 73-75 (6: 128 bits). The codes were
read off one-instruction kernels; unknown ones count as other."""
import re
import struct
import sys

OPS = {0x981: "LDG", 0x986: "STG", 0x984: "LDS", 0x988: "STS", 0x388: "STS", 0x983: "LDL",
       0x387: "STL", 0x83B: "LDSM", 0xFAE: "LDGSTS", 0x23C: "HMMA", 0x27A: "QMMA",
       0xB1D: "BAR", 0xF89: "SHFL"}
SHOWN = ["LDG", "LDG.128", "STG", "LDS", "STS", "LDSM", "LDGSTS", "HMMA", "QMMA", "SHFL", "BAR"]


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


def threads():
    out = {}
    for family, kinds in (("linear", "linear linear2 glu glu2"),):
        for kind in kinds.split():
            out["k_" + kind] = 256
    for name, n in re.findall(r"K\((k_\w+?)(?:##\w+)*(?:_\d+)?, (\d+),",
                              open("kernels/cuda/list.h").read()):
        out[name.rstrip("_")] = int(n)
    return out


def blocks(regs, n):
    """An SM has 65,536 registers, given to warps by 256, and room for 2,048 threads."""
    warps = (n + 31) // 32
    a_warp = (regs * 32 + 255) // 256 * 256
    return min(65536 // (a_warp * warps), 2048 // n, 32)


def main(paths):
    sizes, bad = threads(), 0
    print(f"{'kernel':22} {'arch':8} regs blocks/SM instr " + " ".join(SHOWN))
    for path in paths:
        log = open(path + ".log").read()
        regs = dict(re.findall(r"entry function '(\w+)'(?:.*\n)+?.*Used (\d+) registers", log))
        arch = re.search(r"\.(sm_\w+)\.cubin", path).group(1)
        for name, text in sections(open(path, "rb").read()):
            if not name.startswith(".text.k_"):
                continue
            kernel, ops = name[6:], count(text)
            n = max((len(k), v) for k, v in sizes.items() if kernel.startswith(k))[1]
            r = int(regs[kernel])
            local = ops.get("LDL", 0) + ops.get("STL", 0)
            bad += local
            print(f"{kernel:22} {arch:8} {r:4} {blocks(r, n):9} {len(text) // 16:5} " +
                  " ".join(f"{ops.get(o, 0):{len(o)}}" for o in SHOWN) +
                  (f"  LOCAL MEMORY {local}" if local else ""))
    return 1 if bad else 0


sys.exit(main(sys.argv[1:]))
