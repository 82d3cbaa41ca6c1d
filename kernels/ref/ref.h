/* ref.h - between the files of the reference backend.
 *
 * Row type f32, weights always f32 [n,k] row-major, activations f32 unless the backend was
 * opened with ref_act. Sums are one f32 accumulator, k rising. */
#ifndef MC_REF_H
#define MC_REF_H

#include "kernels/host/host.h"

/* Rows of an activation, in any layout. put writes columns [c0, c0+n) of row t, get reads
 * them as f32; c0 and n are multiples of mc_ref_act_block(layout), save that the last
 * block of an MC_A_E4M3 row may be short. */
int32_t mc_ref_act_block(uint16_t layout);
void mc_ref_act_put(const struct mc_act *a, int32_t t, int32_t c0, int32_t n, const float *x);
void mc_ref_act_get(const struct mc_act *a, int32_t t, int32_t c0, int32_t n, float *x);
/* NULL, or why rows of k columns can't have the layout. */
const char *mc_ref_act_refuse(uint16_t layout, int32_t k);

extern const struct mc_op mc_ref_pack, mc_ref_embed, mc_ref_join, mc_ref_linear, mc_ref_glu,
    mc_ref_quant, mc_ref_gqa_prep, mc_ref_gqa_attn, mc_ref_attn_merge;

#endif
