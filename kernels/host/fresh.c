/* fresh.c - what a step's prompt rows see of themselves in bf16, over older fp8 pages.
 *
 * Rows of a sequence are written by whichever thread has them, each its own place; the
 * older tokens of the first block by the first row's. Owns nothing. */
#include "kernels/host/fresh.h"

#include <string.h>

#include "kernels/host/cast.h"

static void put(float *to, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        to[i] = mc_f32_of_bf16(mc_bf16_of_f32(x[i]));
}

/* d values of a head as the page of an older token has them. */
static void old_head(const struct mc_kv *kv, uint8_t *page, int v, int32_t g, int32_t pos,
                     float *to)
{
    const uint8_t *x = mc_kv_at(kv, page, v, g, pos);
    float scale = *mc_kv_scale(kv, page, v, g, pos);

    for (int32_t i = 0; i < kv->d; i++)
        to[i] = mc_f32_of_e4m3(x[i]) * scale;
}

void mc_fresh_put_gqa(const struct mc_gqa_prep_p *p, int32_t t, const float *k,
                      const float *v)
{
    const struct mc_kv *kv = &p->kv;
    int32_t seq = p->rows.row_seq[t], slot = p->rows.slot[seq], pos = p->rows.pos[t],
            from;
    float *page = mc_fresh_of(kv, &p->rows, seq, p->fresh, &from);

    for (int32_t g = 0; g < kv->hk; g++) {
        put(mc_fresh_kv(kv, page, 0, g, pos - from), k + g * kv->d, kv->d);
        put(mc_fresh_kv(kv, page, 1, g, pos - from), v + g * kv->d, kv->d);
    }
    for (int32_t i = from; i < pos && t == p->rows.q0[seq]; i++) {
        uint8_t *old = mc_kv_page(kv, p->layer, slot, i);

        for (int32_t g = 0; g < kv->hk; g++) {
            old_head(kv, old, 0, g, i, mc_fresh_kv(kv, page, 0, g, i - from));
            old_head(kv, old, 1, g, i, mc_fresh_kv(kv, page, 1, g, i - from));
        }
    }
}

void mc_latent_get(const struct mc_kv *kv, int32_t layer, const uint8_t *token, float *x)
{
    bool plain = kv->layout == MC_KV_FP8_PLAIN;
    float scale = plain && kv->k_scale ? kv->k_scale[layer] : 1;
    int32_t n = kv->c + kv->r, i;

    for (i = 0; i < n && kv->layout == MC_KV_F32; i++)
        x[i] = ((const float *)token)[i];
    for (i = 0; i < n && kv->layout == MC_KV_BF16; i++)
        x[i] = mc_f32_of_bf16(((const uint16_t *)token)[i]);
    for (i = 0; i < n && plain; i++)
        x[i] = mc_f32_of_e4m3(token[i]) * scale;
    if (kv->layout != MC_KV_FP8_656)
        return;
    for (i = 0; i < kv->c; i++)
        x[i] = mc_f32_of_e4m3(token[i]) *
               mc_mla_scales(kv, (uint8_t *)(uintptr_t)token)[i / MC_SCALE_COLS];
    for (i = 0; i < kv->r; i++)
        x[kv->c + i] = mc_f32_of_bf16(mc_mla_key(kv, (uint8_t *)(uintptr_t)token)[i]);
}

void mc_fresh_put_mla(const struct mc_mla_prep_p *p, int32_t t, const float *x)
{
    const struct mc_kv *kv = &p->kv;
    int32_t seq = p->rows.row_seq[t], slot = p->rows.slot[seq], pos = p->rows.pos[t],
            from;
    float *page = mc_fresh_of(kv, &p->rows, seq, p->fresh, &from);

    put(mc_fresh_latent(kv, page, pos - from), x, kv->c + kv->r);
    for (int32_t i = from; i < pos && t == p->rows.q0[seq]; i++)
        mc_latent_get(kv, p->layer, mc_mla_at(kv, mc_kv_page(kv, p->layer, slot, i), i),
                      mc_fresh_latent(kv, page, i - from));
}
