/* linear_nvfp4.cu - linear and glu with nvfp4 weights. */
#include "kernels/cuda/linear.cuh"

MC_LINEARS(nvfp4, fmt_nvfp4)
