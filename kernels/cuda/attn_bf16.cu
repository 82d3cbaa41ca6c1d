/* attn_bf16.cu - gqa_attn over pages of bf16. */
#include "kernels/cuda/attn.cuh"

MC_ATTN(bf16, 32)
MC_ATTN(bf16, 48)
MC_ATTN(bf16, 64)
MC_ATTN(bf16, 128)
