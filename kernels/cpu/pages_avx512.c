/* pages_avx512.c - the page pool's operations for AVX-512; pages.inl has them. */
#define ISA_NAME avx512
#include "kernels/cpu/vec_avx512.h"
#include "kernels/cpu/pages.inl"
