/* vocab.h - loops over one row of logits, and exact selection in it.
 *
 * Candidates are ordered by value, greatest first, and by id on ties: a key is that order
 * as one number, so that a cut, a sort and a tie rule are all comparisons of keys. */
#ifndef MC_HOST_VOCAB_H
#define MC_HOST_VOCAB_H

#include "kernels/host/cast.h"

#define MC_GREEDY_BELOW 1e-5f /* a temperature below it means the best token */

enum {
    MC_VBLOCK = 64,  /* ids that share a maximum or a sum */
    MC_LIST = 1024,  /* the most that mc_vocab_top returns */
};

static inline int32_t mc_vblocks(int32_t n)
{
    return (n + MC_VBLOCK - 1) / MC_VBLOCK;
}

/* Rising keys: falling values, rising ids. x + 0: -0 and 0 tie. */
static inline uint64_t mc_key(float x, int32_t id)
{
    uint32_t u = mc_bits_of_f32(x + 0.0f);

    u = u & 0x80000000 ? u : ~(u | 0x80000000); /* greatest value, smallest number */
    return (uint64_t)u << 32 | (uint32_t)id;
}

static inline int32_t mc_key_id(uint64_t key)
{
    return (int32_t)(uint32_t)key;
}

/* The largest of x[0..n), -inf when n is 0; NaN when one is NaN or +inf. */
float mc_vocab_max(const float *x, int32_t n);
/* sum of exp(x - max); max is finite. Fixed order. */
float mc_vocab_expsum(const float *x, int32_t n, float max);
/* The maximum, or the sum of exp(x - max), of each block of MC_VBLOCK. */
void mc_vocab_block_max(const float *x, int32_t n, float *block);
void mc_vocab_block_expsum(const float *x, int32_t n, float max, float *block);
/* exp(x), what the sums above add up. */
float mc_vocab_exp(float x);

/* The k best values that are not -inf, as rising keys; k <= MC_LIST. block: their maxima.
 * Returns how many there were. */
int32_t mc_vocab_top(const float *x, int32_t n, int32_t k, const float *block,
                     uint64_t *keys);

/* The first key, in order, at which the weights of all up to it reach target; the last key
 * of any weight when they never do. Weights: exp(x - max), or 1 each when max is NaN. Only
 * keys <= last count. No scratch: a radix descent over the value's bits. */
uint64_t mc_vocab_cut(const float *x, int32_t n, float max, double target, uint64_t last);

#endif
