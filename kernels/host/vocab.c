/* vocab.c - loops over one row of logits, and exact selection in it (vocab.h).
 *
 * A full sort of 160,000 logits costs more than the matrix product that made them. The
 * k-th best of the maxima of blocks of 64 is a lower bound of the k-th best value, and few
 * values reach it, so the best k cost one pass and a sort of a few hundred. Where that does
 * not settle it (wide nuclei, rows of ties) a descent over the bits of the value does: a
 * histogram by the top 12 bits, then a sort of the one bin that the cut lies in, or a
 * histogram of that bin. Everything is on the stack. Owns nothing; any thread. */
#include "kernels/host/vocab.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

enum { POOL = 4096 }; /* keys that are sorted at once */

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

/* What is known of a cut: it lies among keys whose value begins with `prefix`, and the keys
 * before those weigh sum. */
struct descent {
    const float *x;
    int32_t n;
    float max;
    double target, sum;
    uint64_t last;
    uint32_t prefix;
    int bits; /* of prefix */
};

/* Narrows by the next `bits` of the value; returns how many keys are left. */
static int32_t narrow(struct descent *d, int bits)
{
    double bin[4096] = {0};
    int32_t count[4096] = {0}, i, j;
    float w[MC_VBLOCK];
    int shift = 32 - d->bits - bits;
    uint32_t mask = (1u << bits) - 1, b, at = 0;

    for (i = 0; i < d->n; i += MC_VBLOCK) {
        int32_t n = d->n - i < MC_VBLOCK ? d->n - i : MC_VBLOCK;

        if (!isnan(d->max))
            mc_vocab_weights(d->x + i, n, d->max, w);
        else
            for (j = 0; j < n; j++)
                w[j] = d->x[i + j] > -INFINITY;
        for (j = 0; j < n; j++) {
            uint64_t key = mc_key(d->x[i + j], i + j);

            if (w[j] == 0 || key > d->last || key >> 32 >> shift >> bits != d->prefix)
                continue;
            bin[key >> 32 >> shift & mask] += (double)w[j];
            count[key >> 32 >> shift & mask]++;
        }
    }
    for (b = 0, i = 0; b <= mask && (i == 0 || d->sum + bin[at] < d->target); b++) {
        if (count[b] == 0)
            continue;
        if (i++ > 0)
            d->sum += bin[at];
        at = b;
    }
    d->prefix = d->prefix << bits | at;
    d->bits += bits;
    return count[at];
}

static float weight_of(const struct descent *d, float x)
{
    return isnan(d->max) ? x > -INFINITY : mc_vocab_exp(x - d->max);
}

/* The cut among the at most POOL keys that begin with prefix. */
static uint64_t finish(struct descent *d)
{
    uint64_t pool[POOL], first = (uint64_t)d->prefix << (64 - d->bits);
    float hi = mc_key_value(first), lo = mc_key_value(first + (UINT64_MAX >> d->bits));
    int32_t i, m = 0;

    for (i = mc_vocab_next(d->x, 0, d->n, lo, hi); i < d->n;
         i = mc_vocab_next(d->x, i + 1, d->n, lo, hi))
        if (mc_key(d->x[i], i) <= d->last && weight_of(d, d->x[i]) > 0)
            pool[m++] = mc_key(d->x[i], i);
    assert(m > 0);
    mc_vocab_sort(pool, m);
    for (i = 0; i < m - 1; i++) {
        d->sum += (double)weight_of(d, d->x[mc_key_id(pool[i])]);
        if (d->sum >= d->target)
            break;
    }
    return pool[i];
}

/* The cut among keys of one value: by id. */
static uint64_t finish_ties(struct descent *d)
{
    float v = mc_key_value((uint64_t)d->prefix << 32);
    int32_t i, at = 0;

    for (i = mc_vocab_next(d->x, 0, d->n, v, v); i < d->n;
         i = mc_vocab_next(d->x, i + 1, d->n, v, v)) {
        if (mc_key(v, i) > d->last)
            break;
        at = i;
        d->sum += (double)weight_of(d, v);
        if (d->sum >= d->target)
            break;
    }
    return mc_key(v, at);
}

uint64_t mc_vocab_cut(const float *x, int32_t n, float max, double target, uint64_t last)
{
    struct descent d = {.x = x, .n = n, .max = max, .target = target, .last = last};

    if (narrow(&d, 12) <= POOL || narrow(&d, 12) <= POOL || narrow(&d, 8) <= POOL)
        return finish(&d);
    return finish_ties(&d);
}
