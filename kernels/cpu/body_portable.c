/* body_portable.c - the bodies for plain C; body.inl has them. */
#define ISA_NAME portable
#include "kernels/cpu/vec_portable.h"
#include "kernels/cpu/body.inl"
