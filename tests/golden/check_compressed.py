"""Reads a directory that `mascon compress` wrote with the packages that others load it with
(safetensors, compressed-tensors) and holds every matrix against the source's.

  check_compressed.py SRC DST     exit 0 when every matrix is as near as its format can be

Run by tests/http/test_compress.py where the packages are there."""
import json
import re
import sys
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from safetensors import safe_open

LIMIT = {"pack-quantized": 0.12, "nvfp4-pack-quantized": 0.12, "float-quantized": 0.03}


def tensors(path):
    """name -> tensor of all shards"""
    found = {}
    for shard in sorted(Path(path).glob("*.safetensors")):
        with safe_open(shard, "pt") as f:
            for name in f.keys():
                assert name not in found, name
                found[name] = f.get_tensor(name)
    return found


def blocks(q, s):
    """DeepSeek's blocks of 128 x 128, dequantised."""
    s = s.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return q.float() * s[: q.shape[0], : q.shape[1]]


def source(t, module):
    """The matrix of the source: plain, in blocks, or int4 in groups."""
    if module + ".weight_packed" in t:
        q, s = t[module + ".weight_packed"], t[module + ".weight_scale"].float()
        n, k = (int(x) for x in t[module + ".weight_shape"])
        codes = torch.stack([(q >> 4 * i) & 15 for i in range(8)], -1).reshape(n, k) - 8
        return codes.float() * s.repeat_interleave(k // s.shape[1], 1)
    w = t[module + ".weight"]
    if module + ".weight_scale_inv" in t:
        return blocks(w, t[module + ".weight_scale_inv"])
    return w.float()


def scheme_of(config, module):
    for scheme in config.config_groups.values():
        for target in scheme.targets:
            hit = re.match(target[3:], module) if target.startswith("re:") else target == module
            if hit:
                return scheme
    return None


def decompress(t, module, scheme):
    state = {k[len(module) + 1:]: v for k, v in t.items() if k.rsplit(".", 1)[0] == module}
    cls = BaseCompressor.get_value_from_registry(scheme.format)
    return cls.decompress(state, scheme)["weight"].float()


def main(src, dst):
    a, b = tensors(src), tensors(dst)
    described = json.loads((Path(dst) / "config.json").read_text())["quantization_config"]
    deepseek = described["quant_method"] == "fp8"
    config = None if deepseek else QuantizationConfig.model_validate(described)
    checked, bad = 0, 0
    for name in sorted(b):
        module, part = name.rsplit(".", 1)
        if part not in ("weight", "weight_packed") or b[name].dim() != 2:
            continue
        scheme = None if deepseek else scheme_of(config, module)
        if deepseek and module + ".weight_scale_inv" in b:
            got, limit = blocks(b[name], b[module + ".weight_scale_inv"]), 0.03
        elif scheme:
            got, limit = decompress(b, module, scheme), LIMIT[scheme.format]
        else:
            assert b[name].dtype in (torch.bfloat16, torch.float32, torch.float16), name
            got, limit = b[name].float(), 0
        want = source(a, module)
        off = float((got - want).norm() / want.norm())
        checked += 1
        if got.shape != want.shape or off > limit:
            bad += 1
            print(f"{module}: {off:.4f} of its norm off, at most {limit}")
    print(f"{checked} matrices read by compressed-tensors, {bad} wrong")
    return 1 if bad or not checked else 0


sys.exit(main(*sys.argv[1:3]))
