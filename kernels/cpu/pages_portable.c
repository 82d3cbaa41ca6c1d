/* pages_portable.c - the page pool's operations for plain C; pages.inl has them. */
#define ISA_NAME portable
#include "kernels/cpu/vec_portable.h"
#include "kernels/cpu/pages.inl"
