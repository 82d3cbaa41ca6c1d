/* vocab.c - loops over one row of logits, and exact selection in it (vocab.h).
 *
 * A full sort of 160,000 logits costs more than the matrix product that made them. The
 * k-th best of the maxima of blocks of 64 is a lower bound of the k-th best value, and few
 * values reach it, so the best k cost one pass and a sort of a few hundred. Where that does
 * not settle it (wide nuclei, rows of ties) a radix descent does, in four passes and no
 * memory. Owns nothing; any thread. */
#include "kernels/host/vocab.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

enum { POOL = 4096 }; /* keys looked at before the radix descent takes over */

float mc_vocab_exp(float x)
{
    return expf(x);
}

float mc_vocab_max(const float *x, int32_t n)
{
    float m = -INFINITY;
    bool bad = false;
    int32_t i;

    for (i = 0; i < n; i++) {
        bad |= !(x[i] < INFINITY);
        m = x[i] > m ? x[i] : m;
    }
    return bad ? NAN : m;
}

float mc_vocab_expsum(const float *x, int32_t n, float max)
{
    float sum = 0;
    int32_t i, j;

    for (i = 0; i < n; i += MC_VBLOCK) {
        float part = 0;

        for (j = i; j < n && j < i + MC_VBLOCK; j++)
            part += mc_vocab_exp(x[j] - max);
        sum += part;
    }
    return sum;
}

void mc_vocab_block_max(const float *x, int32_t n, float *block)
{
    int32_t i, j;

    for (i = 0; i < n; i += MC_VBLOCK) {
        float m = -INFINITY;

        for (j = i; j < n && j < i + MC_VBLOCK; j++)
            m = x[j] > m ? x[j] : m;
        block[i / MC_VBLOCK] = m;
    }
}

void mc_vocab_block_expsum(const float *x, int32_t n, float max, float *block)
{
    int32_t i;

    for (i = 0; i < n; i += MC_VBLOCK)
        block[i / MC_VBLOCK] =
            mc_vocab_expsum(x + i, n - i < MC_VBLOCK ? n - i : MC_VBLOCK, max);
}

/* ---- selection ----------------------------------------------------------------------- */

/* Moves the k smallest of a[0..n) to its front, unordered; 0 < k <= n. */
static void select_first(uint64_t *a, int32_t n, int32_t k)
{
    int32_t lo = 0, hi = n - 1;

    while (lo < hi) {
        uint64_t pivot = a[lo + (hi - lo) / 2];
        int32_t i = lo, j = hi;

        while (i <= j) {
            while (a[i] < pivot)
                i++;
            while (a[j] > pivot)
                j--;
            if (i <= j) {
                uint64_t t = a[i];

                a[i++] = a[j];
                a[j--] = t;
            }
        }
        if (k - 1 <= j)
            hi = j;
        else if (k - 1 >= i)
            lo = i;
        else
            return;
    }
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* A value that at least k ids reach: the k-th best block maximum. */
static float lower_bound(const float *block, int32_t nb, int32_t k)
{
    uint64_t best[POOL];
    int32_t i;

    if (k >= nb || nb > POOL)
        return -INFINITY;
    for (i = 0; i < nb; i++)
        best[i] = mc_key(block[i], i);
    select_first(best, nb, k);
    qsort(best, (size_t)k, sizeof best[0], by_key);
    return block[mc_key_id(best[k - 1])];
}

int32_t mc_vocab_top(const float *x, int32_t n, int32_t k, const float *block,
                     uint64_t *keys)
{
    uint64_t pool[POOL], cut;
    int32_t nb = mc_vblocks(n), m = 0, b, i;
    float low = lower_bound(block, nb, k);

    for (b = 0; b < nb && m <= POOL - MC_VBLOCK; b++) {
        if (block[b] < low)
            continue;
        for (i = b * MC_VBLOCK; i < n && i < (b + 1) * MC_VBLOCK; i++)
            if (x[i] >= low && x[i] > -INFINITY)
                pool[m++] = mc_key(x[i], i);
    }
    if (b < nb) { /* too many: find the k-th first */
        cut = mc_vocab_cut(x, n, NAN, k, UINT64_MAX);
        for (m = 0, i = 0; i < n; i++)
            if (x[i] > -INFINITY && mc_key(x[i], i) <= cut)
                pool[m++] = mc_key(x[i], i);
    }
    if (m > k) {
        select_first(pool, m, k);
        m = k;
    }
    qsort(pool, (size_t)m, sizeof pool[0], by_key);
    for (i = 0; i < m; i++)
        keys[i] = pool[i];
    return m;
}

/* One level of the descent: weights by the `bits` bits of the value's key above `shift`,
 * among ids whose bits above those are `prefix`. Returns the bin where sum reaches target;
 * *sum grows by the bins before it. */
static uint32_t descend(const float *x, int32_t n, float max, double target, uint64_t last,
                        uint32_t prefix, int shift, int bits, double *sum)
{
    double bin[4096] = {0};
    uint32_t b, at = 0;
    bool any = false;
    int32_t i;

    for (i = 0; i < n; i++) {
        uint64_t key = mc_key(x[i], i);
        uint32_t u = (uint32_t)(key >> 32);

        if (key <= last && x[i] > -INFINITY && (uint64_t)u >> (shift + bits) == prefix)
            bin[u >> shift & ((1u << bits) - 1)] += isnan(max) ? 1 : mc_vocab_exp(x[i] - max);
    }
    for (b = 0; b < 1u << bits; b++) {
        if (bin[b] == 0)
            continue;
        if (any)
            *sum += bin[at];
        any = true;
        at = b;
        if (*sum + bin[b] >= target)
            break;
    }
    return prefix << bits | at;
}

uint64_t mc_vocab_cut(const float *x, int32_t n, float max, double target, uint64_t last)
{
    double sum = 0, w;
    uint64_t key = 0;
    uint32_t u;
    int32_t i;

    u = descend(x, n, max, target, last, 0, 20, 12, &sum);
    u = descend(x, n, max, target, last, u, 8, 12, &sum);
    u = descend(x, n, max, target, last, u, 0, 8, &sum);
    for (i = 0; i < n; i++) { /* equal values: by id */
        if (mc_key(x[i], i) >> 32 != u || mc_key(x[i], i) > last)
            continue;
        key = mc_key(x[i], i);
        w = isnan(max) ? 1 : mc_vocab_exp(x[i] - max);
        sum += w;
        if (sum >= target)
            break;
    }
    return key;
}
