"""disk.py - makes tests/golden/disk/: small matrices in every disk format, and what they decode to.

    pip install torch safetensors compressed-tensors gguf
    python tests/golden/disk.py

A module M of model.safetensors or ggml.gguf is stored under the names that real checkpoints
use; M.want is the F32 matrix that the formats' own code (compressed-tensors, gguf) makes of
it. fp8 with weight_scale_inv and ModelOpt's nvfp4, which neither has, are spelled out here.
"""
import json
import pathlib

import gguf
import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).parent / "disk"
tensors = {}
groups = {}


def add(module, parts, want):
    for name, t in parts.items():
        tensors[f"{module}.{name}"] = t.contiguous().clone()
    tensors[f"{module}.want"] = want.float().contiguous().clone()


def scheme(module, **weights):
    groups[module] = {"targets": [module], "input_activations": None, "output_activations": None, "weights": weights}
    return QuantizationScheme(targets=[module], weights=QuantizationArgs(**weights))


def int4(module, n, k, group, scale_dtype, symmetric=True):
    """Scales and zero points at random: what is tested is the storage, not the quantiser."""
    args = dict(num_bits=4, type="int", symmetric=symmetric, strategy="group", group_size=group)
    if group is None:
        args.update(strategy="channel")
    s = scheme(module, **args)
    cols = k // (group or k)
    scale = (torch.rand(n, cols) * 0.1 + 0.01).to(scale_dtype)
    zero = None if symmetric else torch.randint(-8, 8, (n, cols), dtype=torch.int8)
    w = torch.randn(n, k) * 0.3
    state = {"weight": w, "weight_scale": scale}
    if zero is not None:
        state["weight_zero_point"] = zero
    packer = BaseCompressor.get_value_from_registry("pack-quantized")
    parts = packer.compress(state, s)
    wide = dict(parts, weight_scale=scale.float())          # so that it multiplies in F32
    want = packer.decompress(wide, s)["weight"]
    assert want.dtype == torch.float32 and parts["weight_packed"].dtype == torch.int32
    add(module, parts, want)


def fp8(module, n, k, scale_shape, scale_dtype=torch.bfloat16, **args):
    s = scheme(module, num_bits=8, type="float", symmetric=True, **args)
    scale = (torch.rand(scale_shape) * 0.01 + 0.001).to(scale_dtype)
    q = quantize(torch.randn(n, k), scale.float(), None, s.weights, dtype=torch.float8_e4m3fn)
    add(module, {"weight": q, "weight_scale": scale}, dequantize(q, scale.float(), None, s.weights))


def fp8_inv(module, n, k, scale_dtype):
    """DeepSeek's: the scale multiplies, blocks are cut by the matrix's edges."""
    rows, cols = -(-n // 128), -(-k // 128)
    scale = torch.full((rows, cols), 0.0123)                # not a power of two
    scale += torch.arange(rows * cols).view(rows, cols) * 0.001
    scale = scale.to(scale_dtype)
    q = (torch.randn(n, k) * 40).clamp(-448, 448).to(torch.float8_e4m3fn)
    spread = scale.float().repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    add(module, {"weight": q, "weight_scale_inv": scale}, q.float() * spread)


def nvfp4(module, n, k):
    s = scheme(module, num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16)
    w = torch.randn(n, k)
    big = torch.tensor([448 * 6 / w.abs().max()], dtype=torch.float32)
    scale = (w.view(n, -1, 16).abs().amax(-1) / 6 * big).to(torch.float8_e4m3fn)
    packer = BaseCompressor.get_value_from_registry("nvfp4-pack-quantized")
    parts = packer.compress({"weight": w, "weight_scale": scale.float(), "weight_global_scale": big}, s)
    codes = unpack_fp4_from_uint8(parts["weight_packed"], n, k, dtype=torch.float32)
    want = dequantize(codes, parts["weight_scale"].float(), None, s.weights, global_scale=big)
    add(module, parts, want)
    modelopt = {"weight": parts["weight_packed"], "weight_scale": parts["weight_scale"],
                "weight_scale_2": (1 / big).reshape(())}
    add(module + "_modelopt", modelopt, want)


def write_gguf():
    rng = np.random.default_rng(7)
    w = gguf.GGUFWriter(str(OUT / "ggml.gguf"), "none")
    kinds = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16"]
    for kind in kinds:
        t = gguf.GGMLQuantizationType[kind]
        block, size = gguf.GGML_QUANT_SIZES[t]
        rows, cols = 3, 512
        # Every byte at random, so that each bit of a block counts; only its f16 scales are
        # made finite: Q6_K's is last, the others' first (and a second one for a minimum).
        raw = rng.integers(0, 256, (rows, cols // block, size), dtype=np.uint8)
        at = {"Q6_K": [208]}.get(kind, [0, 2] if kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else [0])
        if block > 1:
            for a in at:
                d = rng.normal(0, 0.02, (rows, cols // block)).astype(np.float16)
                raw[:, :, a:a + 2] = d[..., None].view(np.uint8)
            raw = raw.reshape(rows, -1)
        elif kind == "F16":
            raw = rng.normal(0, 1, (rows, cols)).astype(np.float16)
        else:
            raw = rng.normal(0, 1, (rows, cols)).astype(np.float32).view(np.uint16)[:, 1::2].copy().view(np.uint8)
        want = gguf.quants.dequantize(raw.view(np.uint8) if kind == "F16" else raw, t).astype(np.float32)
        w.add_tensor(f"{kind.lower()}.weight", raw, raw_dtype=t if kind != "F16" else None)
        w.add_tensor(f"{kind.lower()}.want", want.reshape(rows, cols))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


torch.manual_seed(11)
OUT.mkdir(exist_ok=True)
for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16), ("f32", torch.float32)):
    x = torch.randn(3, 40).to(dtype)
    add(name, {"weight": x}, x)
int4("int4_g32", 5, 256, 32, torch.bfloat16)
int4("int4_g128", 3, 256, 128, torch.float16)
int4("int4_channel", 3, 64, None, torch.float32)
int4("int4_zero", 11, 128, 32, torch.bfloat16, symmetric=False)
fp8("fp8_tensor", 4, 96, (1,), strategy="tensor")
fp8("fp8_row", 5, 96, (5, 1), strategy="channel")
fp8("fp8_block", 256, 128, (2, 1), torch.float32, strategy="block", block_structure=[128, 128])
fp8_inv("fp8_inv", 130, 144, torch.float32)
fp8_inv("fp8_inv_bf16", 5, 300, torch.bfloat16)
nvfp4("nvfp4", 5, 96)
save_file(tensors, str(OUT / "model.safetensors"), {"format": "pt"})
config = {"quantization_config": {"quant_method": "compressed-tensors", "format": "mixed-precision",
                                  "config_groups": groups}}
(OUT / "config.json").write_text(json.dumps(config, indent=1) + "\n")
write_gguf()
