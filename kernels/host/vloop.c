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

INLINE double expsum_loop(const float *x, int32_t n, float max, float *block)
{
    float e[L], buf[L];
    double sum = 0;
    int32_t i, j, s;

    for (i = 0; i < n; i += L) {
        const float *b = block_at(x, n, i, -INFINITY, buf);

        for (j = 0; j < L; j++)
            e[j] = mc_vocab_exp(b[j] - max);
        for (s = L / 2; s > 0; s /= 2)
            for (j = 0; j < s; j++)
                e[j] += e[j + s];
        if (block)
            block[i / L] = e[0];
        sum += (double)e[0];
    }
    return sum;
}
FOR_TARGETS(double, expsum, (const float *x, int32_t n, float max, float *block),
            expsum_loop(x, n, max, block))

double mc_vocab_expsum(const float *x, int32_t n, float max, float *block)
{
    return PICK(expsum)(x, n, max, block);
}

INLINE void exps_loop(const float *x, int32_t n, float max, float *e)
{
    int32_t i;

    for (i = 0; i < n; i++)
        e[i] = mc_vocab_exp(x[i] - max);
}
FOR_TARGETS(void, exps, (const float *x, int32_t n, float max, float *e),
            exps_loop(x, n, max, e))

void mc_vocab_exps(const float *x, int32_t n, float max, float *e)
{
    PICK(exps)(x, n, max, e);
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

INLINE int32_t find_loop(const float *x, int32_t n, float v)
{
    int32_t i = 0, j, any;

    for (; i + L <= n; i += L) {
        for (any = 0, j = 0; j < L; j++)
            any |= x[i + j] == v;
        if (any)
            break;
    }
    while (i < n && x[i] != v)
        i++;
    return i;
}
FOR_TARGETS(int32_t, find, (const float *x, int32_t n, float v), find_loop(x, n, v))

int32_t mc_vocab_index(const float *x, int32_t n, float v)
{
    return PICK(find)(x, n, v);
}
