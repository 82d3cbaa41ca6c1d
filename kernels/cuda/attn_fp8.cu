/* attn_fp8.cu - gqa_attn over pages of fp8. */
#include "kernels/cuda/attn.cuh"

MC_ATTN(fp8, 32)
MC_ATTN(fp8, 48)
MC_ATTN(fp8, 64)
MC_ATTN(fp8, 128)
