/* linear_bf16.cu - linear and glu with bf16 weights. */
#include "kernels/cuda/linear.cuh"

MC_LINEARS(bf16, fmt_bf16)
