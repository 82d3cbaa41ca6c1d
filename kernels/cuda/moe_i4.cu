/* moe_i4.cu - experts with int4 weights. */
#include "kernels/cuda/moe.cuh"

MC_MOE(i4, fmt_i4)
