/* pages_avx2.c - the page pool's operations for AVX2; pages.inl has them. */
#define ISA_NAME avx2
#include "kernels/cpu/vec_avx2.h"
#include "kernels/cpu/pages.inl"
