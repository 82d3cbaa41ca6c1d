/* mla_attn64_bf16.cu - mla_attn of 64 heads over pages of bf16. */
#include "kernels/cuda/mla_attn.cuh"

MC_MLA_ATTN64(bf16, 128, 32, MC_KV_BF16)
MC_MLA_ATTN64(bf16, 512, 64, MC_KV_BF16)
