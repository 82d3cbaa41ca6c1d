/* vloop.c - the loops over a row of logits that are worth vectors.
 *
 * Written for blocks of 64 independent lanes that are then folded in halves, so that the
 * compiler vectorises them at any width and every width gives the same bits. Each loop is
 * compiled for AVX-512, AVX2 and the base instruction set; the CPU picks (the build's own
 * target stays the base). -ftree-vectorize comes from the GNUmakefile.
 * Owns nothing; any thread. */
#include <math.h>
#include <stdbool.h>

#include "kernels/host/vocab.h"

#define INLINE static inline __attribute__((always_inline))
#define L MC_VBLOCK

#ifdef __x86_64__
#define FOR_TARGETS(type, name, params, call)                                              \
    __attribute__((target("avx512f,avx512bw,avx512vl"))) static type name##_512 params     \
    {                                                                                      \
        return call;                                                                       \
    }                                                                                      \
    __attribute__((target("avx2"))) static type name##_256 params                          \
    {                                                                                      \
        return call;                                                                       \
    }                                                                                      \
    static type name##_base params                                                         \
    {                                                                                      \
        return call;                                                                       \
    }
#define PICK(name)                                                                         \
    (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") ? name##_512 \
     : __builtin_cpu_supports("avx2")                                         ? name##_256 \
                                                                              : name##_base)
#else
#define FOR_TARGETS(type, name, params, call)                                              \
    static type name##_base params                                                         \
    {                                                                                      \
        return call;                                                                       \
    }
#define PICK(name) name##_base
#endif

/* A block to work on: in place, or the row's end padded with pad. */
INLINE const float *block_at(const float *x, int32_t n, int32_t i, float pad, float *buf)
{
    int32_t j;

    if (n - i >= L)
        return x + i;
    for (j = 0; j < L; j++)
        buf[j] = j < n - i ? x[i + j] : pad;
    return buf;
}

INLINE float max_loop(const float *x, int32_t n, float *block)
{
    float m[L], buf[L], best = -INFINITY;
    int32_t i, j, s, bad = 0;

    for (i = 0; i < n; i += L) {
        const float *b = block_at(x, n, i, -INFINITY, buf);

        for (j = 0; j < L; j++) {
            bad |= !(b[j] < INFINITY);
            m[j] = b[j];
        }
        for (s = L / 2; s > 0; s /= 2)
            for (j = 0; j < s; j++)
                m[j] = m[j + s] > m[j] ? m[j + s] : m[j];
        if (block)
            block[i / L] = m[0];
        best = m[0] > best ? m[0] : best;
    }
    return bad ? NAN : best;
}
FOR_TARGETS(float, max, (const float *x, int32_t n, float *block), max_loop(x, n, block))

float mc_vocab_max(const float *x, int32_t n, float *block)
{
    return PICK(max)(x, n, block);
}

/* all: set is not looked at. */
INLINE double sum_loop(const float *x, int32_t n, float max, bool all, struct mc_vset set,
                       float *block)
{
    float w[L], buf[L];
    double sum = 0;
    int32_t i, j, s;

    for (i = 0; i < n; i += L) {
        const float *b = block_at(x, n, i, -INFINITY, buf);

        for (j = 0; j < L; j++) {
            float e = mc_vocab_exp(b[j] - max);

            w[j] = all || ((b[j] > set.low || (b[j] == set.low && i + j <= set.last)) &&
                           e >= set.min_p)
                       ? e
                       : 0;
        }
        for (s = L / 2; s > 0; s /= 2)
            for (j = 0; j < s; j++)
                w[j] += w[j + s];
        if (block)
            block[i / L] = w[0];
        sum += (double)w[0];
    }
    return sum;
}
FOR_TARGETS(double, sum_all, (const float *x, int32_t n, float max, float *block),
            sum_loop(x, n, max, true, (struct mc_vset){0, 0, 0}, block))
FOR_TARGETS(double, sum_set,
            (const float *x, int32_t n, float max, struct mc_vset set, float *block),
            sum_loop(x, n, max, false, set, block))

double mc_vocab_sum(const float *x, int32_t n, float max, float *block)
{
    return PICK(sum_all)(x, n, max, block);
}

double mc_vocab_sum_set(const float *x, int32_t n, float max, struct mc_vset set,
                        float *block)
{
    return PICK(sum_set)(x, n, max, set, block);
}

INLINE void weights_loop(const float *x, int32_t n, float max, float *w)
{
    int32_t i;

    for (i = 0; i < n; i++)
        w[i] = mc_vocab_exp(x[i] - max);
}
FOR_TARGETS(void, weights, (const float *x, int32_t n, float max, float *w),
            weights_loop(x, n, max, w))

void mc_vocab_weights(const float *x, int32_t n, float max, float *w)
{
    PICK(weights)(x, n, max, w);
}

INLINE void divide_loop(float *x, int32_t n, float by)
{
    int32_t i;

    for (i = 0; i < n; i++)
        x[i] /= by;
}
FOR_TARGETS(void, divide, (float *x, int32_t n, float by), divide_loop(x, n, by))

void mc_vocab_divide(float *x, int32_t n, float by)
{
    PICK(divide)(x, n, by);
}

INLINE int32_t next_loop(const float *x, int32_t i, int32_t n, float lo, float hi)
{
    int32_t j, any;

    for (; i + L <= n; i += L) {
        for (any = 0, j = 0; j < L; j++)
            any |= (x[i + j] >= lo) & (x[i + j] <= hi);
        if (any)
            break;
    }
    while (i < n && !(x[i] >= lo && x[i] <= hi))
        i++;
    return i;
}
FOR_TARGETS(int32_t, next, (const float *x, int32_t i, int32_t n, float lo, float hi),
            next_loop(x, i, n, lo, hi))

int32_t mc_vocab_next(const float *x, int32_t i, int32_t n, float lo, float hi)
{
    return PICK(next)(x, i, n, lo, hi);
}
