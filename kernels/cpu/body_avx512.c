/* body_avx512.c - the bodies for AVX-512; body.inl has them. */
#define ISA_NAME avx512
#include "kernels/cpu/vec_avx512.h"
#include "kernels/cpu/body.inl"
