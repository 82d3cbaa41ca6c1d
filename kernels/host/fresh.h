/* fresh.h - the fresh pages of a step: what its prompt rows see of themselves in bf16.
 * See kernels/types.h. */
#ifndef MC_HOST_FRESH_H
#define MC_HOST_FRESH_H

#include "kernels/host/kv.h"

/* Floats of a fresh page. */
MC_INLINE int64_t mc_fresh_floats(const struct mc_kv *kv)
{
    return (int64_t)MC_PAGE * (kv->c > 0 ? kv->c + kv->r : 2 * kv->hk * kv->d);
}

/* The first fresh page of sequence seq, and the position of its first token. */
MC_INLINE float *mc_fresh_of(const struct mc_kv *kv, const struct mc_rows *r, int32_t seq,
                             const float *fresh, int32_t *from)
{
    *from = r->pos[r->q0[seq]] / MC_PAGE * MC_PAGE;
    return (float *)(uintptr_t)fresh + mc_fresh_first(r, seq) * mc_fresh_floats(kv);
}

/* d values of kv head g at `at` positions behind the first; v: 0 for K, 1 for V. */
MC_INLINE float *mc_fresh_kv(const struct mc_kv *kv, float *page, int v, int32_t g,
                             int32_t at)
{
    return page + at / MC_PAGE * mc_fresh_floats(kv) +
           (((int64_t)v * kv->hk + g) * MC_PAGE + at % MC_PAGE) * kv->d;
}

/* c + r values. */
MC_INLINE float *mc_fresh_latent(const struct mc_kv *kv, float *page, int32_t at)
{
    return page + (int64_t)at * (kv->c + kv->r);
}

/* Prefill row t, whose sequence is not bad: its keys [hk,d] and values, or its latent
 * [c+r]; the first row of a sequence brings the older tokens of its block, too. */
void mc_fresh_put_gqa(const struct mc_gqa_prep_p *p, int32_t t, const float *k,
                      const float *v);
void mc_fresh_put_mla(const struct mc_mla_prep_p *p, int32_t t, const float *x);
/* The latent of a token as its page has it: c + r values. */
void mc_latent_get(const struct mc_kv *kv, int32_t layer, const uint8_t *token, float *x);

#endif
