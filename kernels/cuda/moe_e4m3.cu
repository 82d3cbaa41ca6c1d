/* moe_e4m3.cu - experts with e4m3 weights. */
#include "kernels/cuda/moe.cuh"

MC_MOE(e4m3, fmt_e4m3)
