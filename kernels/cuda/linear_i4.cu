/* linear_i4.cu - linear and glu with int4 weights. */
#include "kernels/cuda/linear.cuh"

MC_LINEARS(i4, fmt_i4)
