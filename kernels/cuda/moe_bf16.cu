/* moe_bf16.cu - experts with bf16 weights. */
#include "kernels/cuda/moe.cuh"

MC_MOE(bf16, fmt_bf16)
