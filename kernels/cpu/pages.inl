/* pages.inl - the operations over the page pool: the second unit of an instruction set
 * (see unit.inl). Owns nothing; bodies run on a stream's threads. */
#include "kernels/cpu/unit.inl"

#include "kernels/host/fold.h"
#include "kernels/host/fresh.h"
#include "kernels/host/kv.h"

#include "kernels/cpu/prep.inl"
#include "kernels/cpu/softmax.inl"
#include "kernels/cpu/attn_tile.inl"
#include "kernels/cpu/attn_split.inl"
#include "kernels/cpu/attn.inl"
#include "kernels/cpu/latent.inl"
#include "kernels/cpu/mla_prep.inl"
#include "kernels/cpu/mla_attn.inl"
#include "kernels/cpu/dsa.inl"
