/* kv.h - where things lie in the page pool; shared by every body that reads or writes it.
 *
 * A page of a layer, GQA: K [hk][MC_PAGE][d], V the same, then for MC_KV_FP8 f32 scales
 * K [hk][MC_PAGE], V [hk][MC_PAGE]. MLA: tokens one after the other, each its latent, for
 * MC_KV_FP8_656 the latent's scales, and its rotated key. A page of an index: the keys of
 * its tokens, then (but in an f32 pool) their f32 scales.
 *
 * Tokens sharded over ranks: tables hold pages of all ranks of a group, page p being page
 * p / n_shard of rank p mod n_shard of it. The blocks of a sequence go round, so that a rank
 * knows its own from the first block's page: those of its phase, the blocks that come
 * before its first. Its own tokens are counted in rising order, as a shorter context. */
#ifndef MC_HOST_KV_H
#define MC_HOST_KV_H

#include "kernels/inline.h"
#include "kernels/kernels.h"

MC_INLINE int32_t mc_kv_bytes(uint16_t layout) /* of a value */
{
    return layout == MC_KV_F32 ? 4 : layout == MC_KV_BF16 ? 2 : 1;
}

/* Pages that a table may name. */
MC_INLINE int32_t mc_kv_pages(const struct mc_kv *kv)
{
    return kv->n_shard > 1 ? kv->n_page * kv->n_shard : kv->n_page;
}

/* The phase of a rank of the group in a slot; any number of them for a broken table. */
MC_INLINE int32_t mc_kv_phase(const struct mc_kv *kv, int32_t slot, int32_t rank)
{
    int32_t first;

    if (kv->n_shard <= 1)
        return 0;
    first = kv->table[(int64_t)slot * kv->pitch];
    first = first < 0 ? 0 : first % kv->n_shard;
    return (rank - first + kv->n_shard) % kv->n_shard;
}

/* Whether the token at pos of slot lies with this rank. */
MC_INLINE bool mc_kv_mine(const struct mc_kv *kv, int32_t slot, int32_t pos)
{
    return kv->n_shard <= 1 ||
           pos / MC_PAGE % kv->n_shard == mc_kv_phase(kv, slot, kv->rank);
}

/* How many of the first n tokens of slot do. */
MC_INLINE int32_t mc_kv_own(const struct mc_kv *kv, int32_t slot, int32_t n)
{
    int32_t s = kv->n_shard, whole = n / MC_PAGE, phase;

    if (s <= 1)
        return n;
    phase = mc_kv_phase(kv, slot, kv->rank);
    return (whole + s - 1 - phase) / s * MC_PAGE + (whole % s == phase ? n % MC_PAGE : 0);
}

/* The position of the i-th of them. */
MC_INLINE int32_t mc_kv_pos(const struct mc_kv *kv, int32_t slot, int32_t i)
{
    if (kv->n_shard <= 1)
        return i;
    return (i / MC_PAGE * kv->n_shard + mc_kv_phase(kv, slot, kv->rank)) * MC_PAGE +
           i % MC_PAGE;
}

/* The layer's part of the page that holds position pos of slot; the page is this rank's. */
MC_INLINE uint8_t *mc_kv_page(const struct mc_kv *kv, int32_t layer, int32_t slot,
                              int32_t pos)
{
    int64_t page = kv->table[(int64_t)slot * kv->pitch + pos / MC_PAGE];

    if (kv->n_shard > 1)
        page /= kv->n_shard;
    return kv->base + page * kv->page_stride + layer * kv->layer_stride;
}

/* d values of kv head g at pos; v: 0 for K, 1 for V. */
MC_INLINE void *mc_kv_at(const struct mc_kv *kv, uint8_t *page, int v, int32_t g,
                             int32_t pos)
{
    int64_t row = ((int64_t)v * kv->hk + g) * MC_PAGE + pos % MC_PAGE;

    return page + row * kv->d * mc_kv_bytes(kv->layout);
}

MC_INLINE float *mc_kv_scale(const struct mc_kv *kv, uint8_t *page, int v, int32_t g,
                             int32_t pos)
{
    float *s = (float *)(page + (int64_t)2 * kv->hk * MC_PAGE * kv->d);

    return s + ((int64_t)v * kv->hk + g) * MC_PAGE + pos % MC_PAGE;
}

/* The latent of the token at pos in the page of a layer: c values, for MC_KV_FP8_656 as
 * many bytes and the scales of each 128, then r values. */
MC_INLINE uint8_t *mc_mla_at(const struct mc_kv *kv, uint8_t *page, int32_t pos)
{
    return page + pos % MC_PAGE * mc_mla_token_bytes(kv->layout, kv->c, kv->r);
}

/* MC_KV_FP8_656 only: the scales and the bf16 key of a token. */
MC_INLINE float *mc_mla_scales(const struct mc_kv *kv, uint8_t *token)
{
    return (float *)(token + kv->c);
}

MC_INLINE uint16_t *mc_mla_key(const struct mc_kv *kv, uint8_t *token)
{
    int32_t n_scale = (kv->c + MC_SCALE_COLS - 1) / MC_SCALE_COLS;

    return (uint16_t *)(token + kv->c + 4 * n_scale);
}

/* The page of an index that holds position pos of slot. */
MC_INLINE uint8_t *mc_index_page(const struct mc_kv *kv, int32_t index, int32_t slot,
                                 int32_t pos)
{
    return mc_kv_page(kv, 0, slot, pos) + kv->index_off + index * kv->index_stride;
}

MC_INLINE void *mc_index_key(const struct mc_kv *kv, uint8_t *page, int32_t pos)
{
    return page +
           (int64_t)(pos % MC_PAGE) * kv->index_d * (kv->layout == MC_KV_F32 ? 4 : 1);
}

/* Not in an f32 pool. */
MC_INLINE float *mc_index_scale(const struct mc_kv *kv, uint8_t *page, int32_t pos)
{
    return (float *)(page + (int64_t)MC_PAGE * kv->index_d) + pos % MC_PAGE;
}

/* NULL, or why a pool of keys and values can't be used. */
MC_INLINE const char *mc_kv_refuse(const struct mc_kv *kv)
{
    if (kv->layout >= MC_N_GQA_KV)
        return "this KV layout is for models with latents (MLA)";
    if (kv->n_shard > 1)
        return "only latents (MLA) can be sharded over ranks by token";
    if (kv->layer_stride < mc_kv_layer_bytes(kv->layout, kv->hk, kv->d) ||
        kv->page_stride < kv->layer_stride * kv->n_layer)
        return "the pool's strides are less than a page";
    if (kv->layout == MC_KV_FP8 && kv->d % 4 != 0)
        return "fp8 KV needs a head dim in multiples of 4";
    return NULL;
}

/* The same of a pool of latents and, where it has any, indexes. */
MC_INLINE const char *mc_mla_refuse(const struct mc_kv *kv)
{
    if (kv->layout >= MC_N_KV || kv->layout == MC_KV_FP8)
        return "this KV layout is for models with heads of keys and values";
    if (kv->n_shard > 1 && (kv->rank < 0 || kv->rank >= kv->n_shard))
        return "a rank outside of those that share tokens";
    if (kv->c < 1 || kv->r < 0 || kv->r % 2 != 0)
        return "no latent, or an odd key beside it";
    if (kv->layout == MC_KV_FP8_656 && kv->c % 4 != 0)
        return "fp8 latents with scales need their values in multiples of 4";
    if (kv->layer_stride < MC_PAGE * mc_mla_token_bytes(kv->layout, kv->c, kv->r) ||
        kv->page_stride < kv->layer_stride * kv->n_layer)
        return "the pool's strides are less than a page";
    if (kv->n_index > 0 &&
        (kv->index_d < 1 || kv->index_stride < mc_index_bytes(kv->layout, kv->index_d) ||
         kv->index_off < kv->layer_stride * kv->n_layer ||
         kv->page_stride < kv->index_off + kv->index_stride * kv->n_index))
        return "the pool's indexes do not fit behind its layers";
    return NULL;
}

/* Whichever kind it is. */
MC_INLINE const char *mc_pool_refuse(const struct mc_kv *kv)
{
    return kv->c > 0 ? mc_mla_refuse(kv) : mc_kv_refuse(kv);
}

#endif
