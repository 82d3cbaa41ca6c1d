/* linear_w8a8.cu - linear and glu with e4m3 weights and e4m3 activations. */
#include "kernels/cuda/linear.cuh"

MC_LINEARS(w8a8, fmt_w8a8)
