/* mla_attn64_656.cu - mla_attn of 64 heads over pages of fp8-656. */
#include "kernels/cuda/mla_attn.cuh"

MC_MLA_ATTN64(656, 128, 32, MC_KV_FP8_656)
MC_MLA_ATTN64(656, 512, 64, MC_KV_FP8_656)
