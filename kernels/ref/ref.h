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
void mc_ref_act_put(const struct mc_act *a, int32_t t, int32_t c0, int32_t n,
                    const float *x);
void mc_ref_act_get(const struct mc_act *a, int32_t t, int32_t c0, int32_t n, float *x);
/* NULL, or why rows of k columns can't have the layout. */
const char *mc_ref_act_refuse(uint16_t layout, int32_t k);

enum {
    MC_REF_COLS = 128,    /* outputs a chunk: a whole block of every activation layout */
    MC_REF_MAX_K = 65536, /* columns of a row that lies on the stack */
};

/* out[i] = x . row n0+i of w for i < n. */
void mc_ref_dots(const float *x, const struct mc_w *w, int32_t n0, int32_t n, float *out);
/* The same of silu(gate x) * up x; n <= MC_REF_COLS. */
void mc_ref_glu_cols(const float *x, const struct mc_w *gate, const struct mc_w *up,
                     int32_t n0, int32_t n, float *out);
/* Row t as f32: in place when it is, else decoded to buf [a->k]. */
const float *mc_ref_act_row(const struct mc_act *a, int32_t t, float *buf);
/* NULL, or why rows of a can't be multiplied by w. */
const char *mc_ref_mul_refuse(const struct mc_act *a, const struct mc_w *w);

/* out = x * rsqrt(mean(x^2) + eps) * w; out may be x. */
void mc_ref_norm(const float *x, const float *w, float eps, int32_t n, float *out);
/* Rotates a head in place. */
void mc_ref_rope(float *x, const struct mc_rope *rope, int32_t pos);
/* The largest magnitude; a NaN stays. */
float mc_ref_amax(const float *x, int32_t n);
/* Value i of x as stored in a page, what the layout's scale is to be multiplied with. */
float mc_ref_kv_value(const void *x, uint16_t kv_layout, int32_t i);

static inline int32_t mc_ref_slot(const struct mc_rows *r, int32_t t)
{
    return r->slot[r->row_seq[t]];
}

/* The latent and key [c+r] at pos as f32, as stored. */
void mc_ref_latent(const struct mc_kv *kv, int32_t layer, int32_t slot, int32_t pos,
                   float *x);

extern const struct mc_op mc_ref_pack, mc_ref_embed, mc_ref_join, mc_ref_linear,
    mc_ref_glu, mc_ref_quant, mc_ref_gqa_prep, mc_ref_gqa_attn, mc_ref_attn_merge,
    mc_ref_route, mc_ref_moe, mc_ref_mla_prep, mc_ref_mla_q, mc_ref_mla_attn,
    mc_ref_mla_out, mc_ref_attn_ragged, mc_ref_dsa_prep, mc_ref_dsa_topk, mc_ref_mtp_in,
    mc_ref_tensor;

#endif
