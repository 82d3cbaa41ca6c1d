/* latent.h - a pool of latents and indexes for tests, and their decoding in double by the
 * layout's definition, which shares no code with the bodies. */
#ifndef MC_TEST_LATENT_H
#define MC_TEST_LATENT_H

#include "tests/c/kern.h"

enum { LAT_SLOT = 6, LAT_PITCH = 13, LAT_PAGE = LAT_SLOT * LAT_PITCH, LAT_LAYERS = 2 };

/* Blocks of all slots are scattered over the pages; every byte begins as `fill`. */
struct latent_pool {
    struct mc_kv kv;
    struct mc_slot slots[LAT_SLOT];
    int32_t table[LAT_PAGE];
    uint32_t want[LAT_PAGE], tag[LAT_PAGE];
    size_t bytes;
};

static inline struct latent_pool *latent_new(uint16_t layout, int32_t c, int32_t r,
                                             int32_t index_d, int fill)
{
    struct latent_pool *p = calloc(1, sizeof *p);
    struct mc_kv *kv = &p->kv;
    int32_t i;

    *kv = (struct mc_kv){.table = p->table, .want_tag = p->want, .tag = p->tag,
                         .pitch = LAT_PITCH, .n_page = LAT_PAGE, .n_slot = LAT_SLOT,
                         .n_layer = LAT_LAYERS, .c = c, .r = r, .n_shard = 1,
                         .layout = layout};
    kv->layer_stride = MC_PAGE * mc_mla_token_bytes(layout, c, r) + 64;
    kv->index_off = LAT_LAYERS * kv->layer_stride + 64;
    kv->page_stride = kv->index_off;
    if (index_d > 0) {
        kv->index_d = index_d;
        kv->n_index = 2;
        kv->index_stride = mc_index_bytes(layout, index_d) + 64;
        kv->page_stride += kv->n_index * kv->index_stride + 64;
    }
    p->bytes = (size_t)(LAT_PAGE * kv->page_stride);
    kv->base = malloc(p->bytes);
    memset(kv->base, fill, p->bytes);
    for (i = 0; i < LAT_PAGE; i++)
        p->table[i] = i * 7 % LAT_PAGE; /* 7 and 78 share no factor: each page once */
    return p;
}

static inline void latent_free(struct latent_pool *p)
{
    free(p->kv.base);
    free(p);
}

/* What an e4m3 byte means: sign, four bits of exponent, three of mantissa. */
static inline double latent_e4m3(uint8_t b)
{
    int e = b >> 3 & 15, m = b & 7;
    double x = e == 0 ? ldexp(m, -9) : ldexp(8 + m, e - 10);

    return (b & 0x7f) == 0x7f ? NAN : b & 0x80 ? -x : x;
}

/* The byte nearest to x by looking at all of them; even mantissas win ties. */
static inline uint8_t latent_to_e4m3(double x)
{
    int best = signbit(x) ? 0x80 : 0, b, from = best;

    for (b = from; b < from + 0x7f; b++) {
        double d = fabs(latent_e4m3((uint8_t)b) - x),
               d0 = fabs(latent_e4m3((uint8_t)best) - x);

        if (d < d0 || (d == d0 && b % 2 == 0))
            best = b;
    }
    return (uint8_t)best;
}

static inline double latent_bf16(const uint8_t *at)
{
    uint32_t u = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 24;
    float x;

    memcpy(&x, &u, 4);
    return x;
}

static inline double latent_f32(const uint8_t *at)
{
    float x;

    memcpy(&x, at, 4);
    return x;
}

/* Where the token at pos of slot begins in layer. */
static inline uint8_t *latent_at(const struct latent_pool *p, int32_t layer, int32_t slot,
                                 int32_t pos)
{
    const struct mc_kv *kv = &p->kv;
    int32_t n = kv->c + kv->r;
    int64_t each = kv->layout == MC_KV_F32    ? 4 * n
                   : kv->layout == MC_KV_BF16 ? 2 * n
                   : kv->layout == MC_KV_FP8_PLAIN
                       ? n
                       : kv->c + (kv->c + 127) / 128 * 4 + 2 * kv->r;

    return kv->base + p->table[slot * LAT_PITCH + pos / 64] * kv->page_stride +
           layer * kv->layer_stride + pos % 64 * each;
}

/* c + r values as stored. */
static inline void latent_read(const struct latent_pool *p, int32_t layer, int32_t slot,
                               int32_t pos, double *x)
{
    const struct mc_kv *kv = &p->kv;
    const uint8_t *at = latent_at(p, layer, slot, pos);
    int32_t c = kv->c, i;

    for (i = 0; i < c + kv->r; i++)
        switch (kv->layout) {
        case MC_KV_F32:
            x[i] = latent_f32(at + 4 * i);
            break;
        case MC_KV_BF16:
            x[i] = latent_bf16(at + 2 * i);
            break;
        case MC_KV_FP8_PLAIN:
            x[i] = latent_e4m3(at[i]) * (kv->k_scale ? kv->k_scale[layer] : 1);
            break;
        default:
            x[i] = i < c ? latent_e4m3(at[i]) * latent_f32(at + c + i / 128 * 4)
                         : latent_bf16(at + c + (c + 127) / 128 * 4 + 2 * (i - c));
        }
}

/* The d values of an index key as stored, its scale included. */
static inline void latent_read_index(const struct latent_pool *p, int32_t index,
                                     int32_t slot, int32_t pos, double *x)
{
    const struct mc_kv *kv = &p->kv;
    const uint8_t *page = kv->base +
                          p->table[slot * LAT_PITCH + pos / 64] * kv->page_stride +
                          kv->index_off + index * kv->index_stride;
    int32_t d = kv->index_d, i;

    for (i = 0; i < d; i++)
        x[i] = kv->layout == MC_KV_F32
                   ? latent_f32(page + (pos % 64 * d + i) * 4)
                   : latent_e4m3(page[pos % 64 * d + i]) *
                         latent_f32(page + 64 * d + 4 * (pos % 64));
}

/* A pair of rope's, in double: the angle alone is the f32 product that the border names.
 */
static inline void latent_turn(double *a, double *b, float inv, int32_t pos, double mul)
{
    double angle = (float)pos * inv, x = *a, y = *b;

    *a = mul * (x * cos(angle) - y * sin(angle));
    *b = mul * (y * cos(angle) + x * sin(angle));
}

/* The first dim values of x. */
static inline void latent_rope(double *x, const struct mc_rope *rope, int32_t pos)
{
    int32_t half = rope->dim / 2, i;

    for (i = 0; i < half; i++)
        if (rope->pair == MC_ROPE_HALVES)
            latent_turn(x + i, x + i + half, rope->inv_freq[i], pos, rope->mul);
        else
            latent_turn(x + 2 * i, x + 2 * i + 1, rope->inv_freq[i], pos, rope->mul);
}

static inline void latent_freqs(float *inv, int32_t dim)
{
    int32_t i;

    for (i = 0; i < dim / 2; i++)
        inv[i] = powf(10000, -2.0f * (float)i / (float)dim);
}

static inline float *latent_randoms(size_t n, float size, uint64_t *seed)
{
    float *x = malloc((n ? n : 1) * sizeof *x);
    size_t i;

    for (i = 0; i < n; i++)
        x[i] = size * kern_randn(seed);
    return x;
}

/* Random latents at positions [0, n) of a slot, written by k's mla_prep. */
static inline void latent_fill(struct kern *k, struct latent_pool *p, int32_t layer,
                               int32_t slot, int32_t n, uint64_t *seed)
{
    int32_t c = p->kv.c, r = p->kv.r, i;
    float *x = latent_randoms((size_t)(n * (c + r)), 1, seed), *w = malloc((size_t)c * 4);
    float inv[64];
    struct kern_rows rows = {0};

    latent_freqs(inv, r);
    for (i = 0; i < c; i++)
        w[i] = 1;
    kern_seq(&rows, slot, 0, n, false);
    kern_run(k, mla_prep,
             {.rows = kern_view(&rows), .kv = p->kv, .slots = p->slots, .layer = layer,
              .kv_a = x, .kv_norm = w, .eps = 1e-6f, .rope = {inv, 1, (int16_t)r, 0, 1}});
    free(x), free(w);
}

#endif
