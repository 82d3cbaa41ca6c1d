/* vocab.h - loops over one row of logits, and exact selection in it.
 *
 * Candidates are ordered by value, greatest first, and by id on ties: a key is that order
 * as one number, so that a cut, a sort and a tie rule are all comparisons of keys. */
#ifndef MC_HOST_VOCAB_H
#define MC_HOST_VOCAB_H

#include <stdbool.h>

#include "kernels/host/cast.h"

#define MC_GREEDY_BELOW 1e-5f /* a temperature below it means the best token */

enum {
    MC_VBLOCK = 64,  /* ids that share a maximum or a sum */
    MC_LIST = 1024,  /* the most that mc_vocab_top returns */
};

MC_INLINE int32_t mc_vblocks(int32_t n)
{
    return (n + MC_VBLOCK - 1) / MC_VBLOCK;
}

/* Rising keys: falling values, rising ids. x + 0: -0 and 0 tie. */
MC_INLINE uint64_t mc_key(float x, int32_t id)
{
    uint32_t u = mc_bits_of_f32(x + 0.0f);

    u = u & 0x80000000 ? u : ~(u | 0x80000000); /* greatest value, smallest number */
    return (uint64_t)u << 32 | (uint32_t)id;
}

MC_INLINE int32_t mc_key_id(uint64_t key)
{
    return (int32_t)(uint32_t)key;
}

MC_INLINE float mc_key_value(uint64_t key)
{
    uint32_t u = (uint32_t)(key >> 32);

    return mc_f32_of_bits(u & 0x80000000 ? u : ~(u | 0x80000000));
}

/* exp(x) for x <= 0, -inf too: within 2 ulp, 1 at 0, 0 below -87. Plain float operations:
 * every width of vector gives the same bits. */
MC_INLINE float mc_vocab_exp(float x)
{
    float t = (x < -87 ? -87 : x) * 1.44269504f + 0x1.8p23f; /* the mantissa's end: n */
    float n = t - 0x1.8p23f;
    float r = (x < -87 ? -87 : x) - n * 0.693359375f +
              n * 2.12194440e-4f; /* ln 2 in two */
    float p = 1.9875691500e-4f; /* Cephes' expf */

    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1;
    p = mc_f32_of_bits(mc_bits_of_f32(p) + (mc_bits_of_f32(t) << 23));
    return x < -87 ? 0 : p;
}

/* Some of a row's ids: values above low, those at low up to id last, weights of min_p. */
struct mc_vset {
    float low, min_p;
    int32_t last;
};

/* vloop.c, vectorised. block, where it may be NULL: a result for each block too. */
float mc_vocab_max(const float *x, int32_t n,
                   float *block); /* NaN if one is NaN or +inf */
/* Sums of the weights exp(x - max): of all, of a set. */
double mc_vocab_sum(const float *x, int32_t n, float max, float *block);
double mc_vocab_sum_set(const float *x, int32_t n, float max, struct mc_vset set,
                        float *block);
void mc_vocab_weights(const float *x, int32_t n, float max, float *w);
void mc_vocab_divide(float *x, int32_t n, float by);
/* The first id >= i with lo <= x <= hi, or n. */
int32_t mc_vocab_next(const float *x, int32_t i, int32_t n, float lo, float hi);

MC_INLINE bool mc_vset_has(struct mc_vset s, float x, int32_t id, float w)
{
    return (x > s.low || (x == s.low && id <= s.last)) && w >= s.min_p;
}

/* Ascending, in place, without memory (libc's qsort may allocate). */
void mc_vocab_sort(uint64_t *a, int32_t n);

/* The k best values that are not -inf, as rising keys; k <= MC_LIST. block: their maxima.
 * Returns how many there were. */
int32_t mc_vocab_top(const float *x, int32_t n, int32_t k, const float *block,
                     uint64_t *keys);

/* The first key, in order, at which the weights of all up to it reach target; the last
 * key of any weight when they never do. Weights: exp(x - max), or 1 each when max is NaN.
 * Only keys <= last count. */
uint64_t mc_vocab_cut(const float *x, int32_t n, float max, double target, uint64_t last);

#endif
