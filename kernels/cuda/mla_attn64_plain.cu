/* mla_attn64_plain.cu - mla_attn of 64 heads over pages of fp8-plain. */
#include "kernels/cuda/mla_attn.cuh"

MC_MLA_ATTN64(plain, 128, 32, MC_KV_FP8_PLAIN)
MC_MLA_ATTN64(plain, 512, 64, MC_KV_FP8_PLAIN)
