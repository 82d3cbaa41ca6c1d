/* unit.inl - what both units of an instruction set begin with, behind the vec_*.h that was
 * included before. ISA_NAME is the suffix of the set's operations.
 *
 * A set is two translation units, so that they compile side by side: body_*.c (what goes
 * through weights) and pages_*.c (what reads and writes the page pool). */
#include <math.h>
#include <string.h>

#include "kernels/comm/comm.h"
#include "kernels/cpu/cpu.h"
#include "kernels/host/cast.h"

#define ISA_PASTE(op, isa) mc_cpu_##op##_##isa
#define ISA_EVAL(op, isa) ISA_PASTE(op, isa)
#define ISA(op) ISA_EVAL(op, ISA_NAME)

/* Loops over registers: they must vanish. */
#define FLAT _Pragma("GCC unroll 16")

#include "kernels/cpu/vec_math.inl"
#include "kernels/cpu/row.inl"
