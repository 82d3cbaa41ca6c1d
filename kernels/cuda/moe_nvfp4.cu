/* moe_nvfp4.cu - experts with nvfp4 weights. */
#include "kernels/cuda/moe.cuh"

MC_MOE(nvfp4, fmt_nvfp4)
