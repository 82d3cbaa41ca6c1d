/* ops.h - what the cross-backend tests share: the bodies of the CPU backend that run here,
 * random matrices in every disk format, rounded activations. */
#ifndef MC_TEST_OPS_H
#define MC_TEST_OPS_H

#include "kernels/host/cast.h"
#include "tests/c/kern.h"

static const float OPS_U = 0x1p-24f; /* half an ulp of 1: one f32 rounding */

static const char *const ops_bodies[] = {"portable", "avx2", "avx512"};

/* False, with the reason printed, when this processor lacks the body. */
static inline bool ops_open(const char *body, int threads, struct kern *k)
{
    struct mc_backend_opts o = {.threads = threads, .cpu = body, .ref_act = -1};
    const char *why = "";
    struct mc_backend *b = mc_cpu_open(&o, &why);

    if (!b) {
        print_message("%s: %s\n", body, why);
        return false;
    }
    *k = kern_open(b, why);
    return true;
}

/* For every body that runs here, K is an open backend of n threads. */
#define ops_each_body(K, n)                                                                \
    for (size_t i_ = 0; i_ < 3; i_++)                                                      \
        for (bool open_ = ops_open(ops_bodies[i_], n, &(K)); open_;                        \
             open_ = false, kern_close(&(K)))

/* ---- matrices ---------------------------------------------------------------------- */

static const struct ops_fmt {
    const char *name;
    uint16_t fmt;
    int32_t unit, unit_bytes; /* k comes in such blocks */
} ops_fmts[] = {
    {"f32", MC_D_F32, 1, 4},       {"f16", MC_D_F16, 1, 2},     {"bf16", MC_D_BF16, 1, 2},
    {"e4m3", MC_D_E4M3, 1, 1},     {"int4", MC_D_INT4, 128, 64}, {"nvfp4", MC_D_NVFP4, 32, 16},
    {"q4_0", MC_D_Q4_0, 32, 18},   {"q4_1", MC_D_Q4_1, 32, 20}, {"q5_0", MC_D_Q5_0, 32, 22},
    {"q5_1", MC_D_Q5_1, 32, 24},   {"q8_0", MC_D_Q8_0, 32, 34}, {"q4_k", MC_D_Q4_K, 256, 144},
    {"q5_k", MC_D_Q5_K, 256, 176}, {"q6_k", MC_D_Q6_K, 256, 210},
};
enum { OPS_N_FMT = sizeof ops_fmts / sizeof ops_fmts[0] };

static inline void ops_put16(uint8_t *at, uint16_t v)
{
    memcpy(at, &v, 2);
}

/* Random codes under scales of sane size; mins are -8 steps or so, as real ones are. */
static inline void ops_fill(const struct ops_fmt *f, uint8_t *q, int64_t units,
                            uint64_t *seed)
{
    int64_t i;
    int32_t j;

    for (i = 0; i < units; i++, q += f->unit_bytes) {
        float s = 0.01f + 0.02f * (float)(kern_rand(seed) % 100) / 100;

        for (j = 0; j < f->unit_bytes; j++)
            q[j] = (uint8_t)kern_rand(seed);
        switch (f->fmt) {
        case MC_D_F32:
            s = kern_randn(seed);
            memcpy(q, &s, 4);
            break;
        case MC_D_F16:
            ops_put16(q, mc_f16_of_f32(kern_randn(seed)));
            break;
        case MC_D_BF16:
            ops_put16(q, mc_bf16_of_f32(kern_randn(seed)));
            break;
        case MC_D_E4M3:
            q[0] = mc_e4m3_of_f32(100 * kern_randn(seed));
            break;
        case MC_D_Q4_1:
        case MC_D_Q5_1:
            ops_put16(q + 2, mc_f16_of_f32(s * -(float)(kern_rand(seed) % 9)));
            /* fall through */
        case MC_D_Q4_0:
        case MC_D_Q5_0:
        case MC_D_Q8_0:
            ops_put16(q, mc_f16_of_f32(s));
            break;
        case MC_D_Q4_K:
        case MC_D_Q5_K:
            ops_put16(q, mc_f16_of_f32(s / 32));
            ops_put16(q + 2, mc_f16_of_f32(s / 8));
            break;
        case MC_D_Q6_K:
            ops_put16(q + 208, mc_f16_of_f32(s / 64));
            break;
        }
    }
}

/* A random matrix; scales as the format has them. Freed by ops_disk_free. */
static inline struct mc_disk ops_disk(const struct ops_fmt *f, int32_t n, int32_t k,
                                      uint64_t *seed)
{
    struct mc_disk d = {.fmt = f->fmt, .n = n, .k = k, .global = 1};
    int64_t units = (int64_t)n * (k / f->unit), i, n_scale;
    uint8_t *q = malloc((size_t)(units * f->unit_bytes));

    assert_int_equal(k % f->unit, 0);
    ops_fill(f, q, units, seed);
    d.q = q;
    if (f->fmt == MC_D_E4M3) {
        float *s;

        d.block_n = d.block_k = 128;
        d.scale_dt = MC_F32;
        n_scale = (int64_t)((n + 127) / 128) * ((k + 127) / 128);
        s = malloc((size_t)n_scale * sizeof *s);
        for (i = 0; i < n_scale; i++)
            s[i] = 0.001f * (float)(1 + kern_rand(seed) % 100);
        d.scale = s;
    } else if (f->fmt == MC_D_INT4) {
        uint16_t *s;

        d.group = 128;
        d.scale_dt = MC_BF16;
        n_scale = (int64_t)n * (k / d.group);
        s = malloc((size_t)n_scale * sizeof *s);
        for (i = 0; i < n_scale; i++)
            s[i] = mc_bf16_of_f32(0.001f * (float)(1 + kern_rand(seed) % 100));
        d.scale = s;
    } else if (f->fmt == MC_D_NVFP4) {
        uint8_t *s;

        d.group = 16;
        d.scale_dt = MC_E4M3;
        d.global = 0.0123f;
        n_scale = (int64_t)n * (k / d.group);
        s = malloc((size_t)n_scale);
        for (i = 0; i < n_scale; i++)
            s[i] = (uint8_t)(1 + kern_rand(seed) % 126);
        d.scale = s;
    }
    return d;
}

static inline void ops_disk_free(struct mc_disk *d)
{
    free((void *)d->q);
    free((void *)d->scale);
    free((void *)d->zero);
}

/* A slice of d packed by k's backend; freed by ops_w_free. */
static inline struct mc_w ops_pack_slice(struct kern *k, const struct mc_disk *d,
                                         int32_t row0, int32_t n, int32_t k0, int32_t kk)
{
    struct mc_pack_p p = {.disk = *d, .row0 = row0, .k0 = k0};
    struct mc_need need;
    const char *why = "";

    p.w = (struct mc_w){.layout = k->b->run_of(k->b, d->fmt), .dt = k->b->row_dt, .n = n,
                        .k = kk};
    if (k->b->op[MC_OP_pack]->need(&p, &need, &why) != 0)
        fail_msg("pack refused: %s", why);
    p.w.q = malloc(need.q + 1); /* exact, and not zeroed: pack writes all of it */
    p.w.scale = malloc(need.scale + 1);
    p.w.zero = malloc(need.zero + 1);
    p.w.bytes = need.q + need.scale + need.zero;
    kern_run(k, pack, p);
    return p.w;
}

static inline struct mc_w ops_pack(struct kern *k, const struct mc_disk *d)
{
    return ops_pack_slice(k, d, 0, d->n, 0, d->k);
}

static inline void ops_w_free(struct mc_w *w)
{
    free(w->q);
    free(w->scale);
    free(w->zero);
}

/* ---- activations ------------------------------------------------------------------- */

static inline struct mc_act ops_act(uint16_t layout, int32_t rows, int32_t k)
{
    size_t n = (size_t)rows * (size_t)k;

    return (struct mc_act){.x = calloc(n + 1, 4), .s = calloc(n / 32 + 1, 4),
                           .bf = calloc(n / 32 + 1, 4), .k = k, .layout = layout};
}

static inline void ops_act_free(struct mc_act *a)
{
    free(a->x);
    free(a->s);
    free(a->bf);
}

/* Element c of row t as f32. */
static inline float ops_act_at(const struct mc_act *a, int32_t t, int32_t c)
{
    int64_t at = (int64_t)t * a->k + c;

    if (a->layout == MC_A_F32)
        return ((const float *)a->x)[at];
    return (float)((const int16_t *)a->x)[at] * a->s[at / 32];
}

/* Rows of random values, some of them much larger than the rest, rounded by k's quant. */
static inline struct mc_act ops_rows(struct kern *k, uint16_t layout, int32_t rows,
                                     int32_t cols, uint64_t *seed)
{
    struct mc_act a = ops_act(layout, rows, cols);
    float *x = malloc((size_t)rows * (size_t)cols * sizeof *x);
    int64_t i;

    for (i = 0; i < (int64_t)rows * cols; i++)
        x[i] = kern_randn(seed) * (kern_rand(seed) % 97 == 0 ? 30 : 1);
    kern_run(k, quant, {.n_live = &rows, .cap = rows, .x = x, .act = a});
    free(x);
    return a;
}

#endif
