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

enum { POOL = 4096 }; /* keys looked at before the radix descent takes over */

/* Hoare's partition of a[lo..hi]: a[lo..*j] <= a[*i..hi]. */
static void split(uint64_t *a, int32_t lo, int32_t hi, int32_t *pi, int32_t *pj)
{
    uint64_t pivot = a[lo + (hi - lo) / 2], t;
    int32_t i = lo, j = hi;

    while (i <= j) {
        while (a[i] < pivot)
            i++;
        while (a[j] > pivot)
            j--;
        if (i <= j) {
            t = a[i];
            a[i++] = a[j];
            a[j--] = t;
        }
    }
    *pi = i;
    *pj = j;
}

/* Moves the k smallest of a[0..n) to its front, unordered; 0 < k <= n. */
static void select_first(uint64_t *a, int32_t n, int32_t k)
{
    int32_t lo = 0, hi = n - 1, i, j;

    while (lo < hi) {
        split(a, lo, hi, &i, &j);
        if (k - 1 <= j)
            hi = j;
        else if (k - 1 >= i)
            lo = i;
        else
            return;
    }
}

void mc_vocab_sort(uint64_t *a, int32_t n)
{
    uint64_t key;
    int32_t i, j;

    while (n > 16) { /* the smaller part by recursion: its depth is log n */
        split(a, 0, n - 1, &i, &j);
        if (j + 1 < n - i) {
            mc_vocab_sort(a, j + 1);
            a += i;
            n -= i;
        } else {
            mc_vocab_sort(a + i, n - i);
            n = j + 1;
        }
    }
    for (i = 1; i < n; i++) {
        key = a[i];
        for (j = i; j > 0 && a[j - 1] > key; j--)
            a[j] = a[j - 1];
        a[j] = key;
    }
}

/* A value that at least k ids reach: the k-th best block maximum. */
static float lower_bound(const float *block, int32_t nb, int32_t k)
{
    uint64_t best[POOL], worst = 0;
    int32_t i;

    if (k >= nb || nb > POOL)
        return -INFINITY;
    for (i = 0; i < nb; i++)
        best[i] = mc_key(block[i], i);
    select_first(best, nb, k);
    for (i = 0; i < k; i++)
        worst = best[i] > worst ? best[i] : worst;
    return block[mc_key_id(worst)];
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
    mc_vocab_sort(pool, m);
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
    float w[MC_VBLOCK];
    uint32_t b, at = 0;
    bool any = false;
    int32_t i, j;

    for (j = 0; j < MC_VBLOCK; j++)
        w[j] = 1;
    for (i = 0; i < n; i++) {
        uint64_t key = mc_key(x[i], i);
        uint32_t u = (uint32_t)(key >> 32);

        j = i % MC_VBLOCK;
        if (j == 0 && !isnan(max))
            mc_vocab_exps(x + i, n - i < MC_VBLOCK ? n - i : MC_VBLOCK, max, w);
        if (key <= last && x[i] > -INFINITY && (uint64_t)u >> (shift + bits) == prefix)
            bin[u >> shift & ((1u << bits) - 1)] += (double)w[j];
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
