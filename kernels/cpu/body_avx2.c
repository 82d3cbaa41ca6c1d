/* body_avx2.c - the bodies for AVX2; body.inl has them. */
#define ISA_NAME avx2
#include "kernels/cpu/vec_avx2.h"
#include "kernels/cpu/body.inl"
