/* linear_e4m3.cu - linear and glu with e4m3 weights, bf16 activations. */
#include "kernels/cuda/linear.cuh"

MC_LINEARS(e4m3, fmt_e4m3)
