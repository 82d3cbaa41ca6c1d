/* kv.h - where things lie in the page pool; shared by every body that reads or writes it.
 *
 * A page of a layer: K [hk][MC_PAGE][d], V the same, then for MC_KV_FP8 f32 scales
 * K [hk][MC_PAGE], V [hk][MC_PAGE]. */
#ifndef MC_HOST_KV_H
#define MC_HOST_KV_H

#include "kernels/kernels.h"

static inline int32_t mc_kv_bytes(uint16_t layout) /* of a value */
{
    return layout == MC_KV_F32 ? 4 : layout == MC_KV_BF16 ? 2 : 1;
}

/* The layer's part of the page that holds position pos of slot. */
static inline uint8_t *mc_kv_page(const struct mc_kv *kv, int32_t layer, int32_t slot,
                                  int32_t pos)
{
    int64_t page = kv->table[(int64_t)slot * kv->pitch + pos / MC_PAGE];

    return kv->base + page * kv->page_stride + layer * kv->layer_stride;
}

/* d values of kv head g at pos; v: 0 for K, 1 for V. */
static inline void *mc_kv_at(const struct mc_kv *kv, uint8_t *page, int v, int32_t g,
                             int32_t pos)
{
    int64_t row = ((int64_t)v * kv->hk + g) * MC_PAGE + pos % MC_PAGE;

    return page + row * kv->d * mc_kv_bytes(kv->layout);
}

static inline float *mc_kv_scale(const struct mc_kv *kv, uint8_t *page, int v, int32_t g,
                                 int32_t pos)
{
    float *s = (float *)(page + (int64_t)2 * kv->hk * MC_PAGE * kv->d);

    return s + ((int64_t)v * kv->hk + g) * MC_PAGE + pos % MC_PAGE;
}

/* NULL, or why a pool can't be used. */
static inline const char *mc_kv_refuse(const struct mc_kv *kv)
{
    if (kv->layout >= MC_N_GQA_KV)
        return "this KV layout is for models with latents (MLA)";
    if (kv->n_shard > 1)
        return "tokens sharded over ranks";
    if (kv->layer_stride < mc_kv_layer_bytes(kv->layout, kv->hk, kv->d) ||
        kv->page_stride < kv->layer_stride * kv->n_layer)
        return "the pool's strides are less than a page";
    if (kv->layout == MC_KV_FP8 && kv->d % 4 != 0)
        return "fp8 KV needs a head dim in multiples of 4";
    return NULL;
}

#endif
