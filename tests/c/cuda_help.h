/* cuda_help.h - what the tests of CUDA kernels share: the emulated backend, rows of bf16
 * and the same as f32, matrices of every kind that kernels read. */
#ifndef MC_TEST_CUDA_HELP_H
#define MC_TEST_CUDA_HELP_H

#include "tests/c/ops.h"

static const float BF =
    0x1p-8f; /* a bf16 rounding, relative, with room for the other side */

static inline struct kern cuda_open(void)
{
    struct mc_backend_opts o = {.ref_act = -1};
    const char *why = "";
    struct mc_backend *b = mc_cuda_open(&o, &why);

    return kern_open(b, why);
}

static inline float as_f32(const void *x, int64_t i)
{
    return mc_f32_of_bf16(((const uint16_t *)x)[i]);
}

/* n random bf16 numbers, and the same as f32. */
static inline uint16_t *randoms(int64_t n, float **f32, uint64_t *seed)
{
    uint16_t *x = malloc((size_t)n * 2);

    *f32 = malloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++) {
        x[i] = mc_bf16_of_f32(kern_randn(seed) * (kern_rand(seed) % 97 == 0 ? 30 : 1));
        (*f32)[i] = mc_f32_of_bf16(x[i]);
    }
    return x;
}

static inline float act_at(const struct mc_act *a, int32_t t, int32_t c)
{
    int64_t at = (int64_t)t * a->k + c;

    if (a->layout == MC_A_BF16)
        return as_f32(a->x, at);
    return mc_f32_of_e4m3(((uint8_t *)a->x)[at]) *
           a->s[(int64_t)t * ((a->k + 127) / 128) + c / 128];
}

enum { N_KIND = 10 };
static const struct kind {
    const char *fmt;
    int32_t group; /* INT4 */
    uint16_t scale_dt, act;
    bool zeros;
} kinds[N_KIND] = {
    {"bf16", 0, 0, MC_A_BF16, false},       {"e4m3", 0, 0, MC_A_BF16, false},
    {"e4m3", 0, 0, MC_A_E4M3, false},       {"int4", 128, MC_BF16, MC_A_BF16, false},
    {"int4", 32, MC_BF16, MC_A_BF16, true}, {"int4", 64, MC_F16, MC_A_BF16, true},
    {"nvfp4", 0, 0, MC_A_BF16, false},      {"q4_0", 0, 0, MC_A_BF16, false},
    {"f32", 0, 0, MC_A_BF16, false},        {"q8_0", 0, 0, MC_A_BF16, false},
};

/* A random matrix of a kind; k a multiple of 128 for int4 of that group, 64 for others.
 */
static inline struct mc_disk disk_of(const struct kind *q, int32_t n, int32_t k,
                                     uint64_t *seed)
{
    const struct ops_fmt *f = ops_fmts;
    struct mc_disk d;

    while (strcmp(f->name, q->fmt) != 0)
        f++;
    if (!q->group)
        return ops_disk(f, n, k, seed);
    d = ops_disk(&(struct ops_fmt){f->name, MC_D_INT4, 32, 16}, n, k, seed);
    d.group = q->group;
    d.scale_dt = q->scale_dt;
    free((void *)d.scale);
    uint16_t *s = malloc((size_t)(n * (k / q->group)) * 2);
    uint32_t *z = malloc((size_t)((n + 7) / 8 * (k / q->group)) * 4);
    for (int32_t i = 0; i < n * (k / q->group); i++) {
        float v = 0.001f * (float)(1 + kern_rand(seed) % 100);

        s[i] = q->scale_dt == MC_BF16 ? mc_bf16_of_f32(v) : mc_f16_of_f32(v);
    }
    for (int32_t i = 0; i < (n + 7) / 8 * (k / q->group); i++)
        z[i] = kern_rand(seed);
    d.scale = s;
    d.zero = q->zeros ? z : NULL;
    if (!q->zeros)
        free(z);
    return d;
}

#endif
