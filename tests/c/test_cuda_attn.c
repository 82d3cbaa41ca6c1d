/* test_cuda_attn.c - gqa_prep, gqa_attn, attn_merge on emulated CUDA, against the oracle
 * over the same pages, whose unwritten bytes are NaNs; and against itself: a row's bits
 * do not depend on the batch, nor on how its context was cut.
 *
 * Tolerance: q, k, v are bf16 (or e4m3 and a scale) on both sides. A score is a sum of d
 * products, off by d half-ulps of scale |q||k|, a probability relatively by that, and by
 * 2^-16 for being multiplied in two bf16 halves; o is a mean of values under such
 * weights. */
#include "tests/c/test.h"

#include "kernels/host/kv.h"
#include "kernels/host/sincos.h"
#include "tests/c/ops.h"

enum { N_SLOT = 6, PITCH = 10, N_PAGE = N_SLOT * PITCH, N_PART = 3, CAP_DEC = 6 };

static const int32_t contexts[N_SLOT] = {1, 64, 65, 257, 600, 40};

struct dims {
    int32_t h, hk, d;
};
static const struct dims shapes[] = {
    {8, 2, 32}, {3, 3, 64}, {6, 2, 128}, {20, 1, 32}, {9, 1, 64}, {6, 2, 48}};

static struct kern cuda_open(void)
{
    struct mc_backend_opts o = {.ref_act = -1};
    const char *why = "";
    struct mc_backend *b = mc_cuda_open(&o, &why);

    return kern_open(b, why);
}

struct pool {
    struct mc_kv kv;
    struct mc_slot slots[N_SLOT];
    int32_t table[N_SLOT * PITCH];
    float v_top; /* bounds |v| */
};

static uint16_t *randoms(int64_t n, float **f32, uint64_t *seed)
{
    uint16_t *x = malloc((size_t)n * 2);

    *f32 = malloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++) {
        x[i] = mc_bf16_of_f32(kern_randn(seed));
        (*f32)[i] = mc_f32_of_bf16(x[i]);
    }
    return x;
}

/* Slot i holds contexts[i] tokens, written by the oracle's prep; the rest is NaN bytes.
 */
static struct pool *pool_new(struct kern *ref, const struct dims *s, uint16_t layout,
                             uint64_t *seed)
{
    struct pool *p = calloc(1, sizeof *p);

    p->kv = (struct mc_kv){.table = p->table,
                           .pitch = PITCH,
                           .n_page = N_PAGE,
                           .n_slot = N_SLOT,
                           .hk = s->hk,
                           .d = s->d,
                           .n_layer = 2,
                           .n_shard = 1,
                           .layout = layout};
    p->kv.layer_stride = mc_kv_layer_bytes(layout, s->hk, s->d) + 64;
    p->kv.page_stride = 2 * p->kv.layer_stride + 128;
    p->kv.base = malloc((size_t)(N_PAGE * p->kv.page_stride));
    memset(p->kv.base, 0xff, (size_t)(N_PAGE * p->kv.page_stride));
    for (int32_t i = 0; i < N_PAGE; i++)
        p->table[i] = (i * 7) % N_PAGE; /* 7 and 60 share no factor: each page once */
    for (int32_t i = 0; i < N_SLOT; i++) {
        int64_t n = (int64_t)contexts[i] * s->hk * s->d;
        struct kern_rows r = {0};
        float *q, *k, *v;

        free(randoms(n, &q, seed)), free(randoms(n, &k, seed)),
            free(randoms(n, &v, seed));
        for (int64_t j = 0; j < n; j++)
            p->v_top = fmaxf(p->v_top, fabsf(v[j]));
        kern_seq(&r, i, 0, contexts[i], false);
        kern_run(ref, gqa_prep,
                 {.rows = kern_view(&r),
                  .kv = p->kv,
                  .slots = p->slots,
                  .layer = 1,
                  .h = s->hk,
                  .q = q,
                  .k = k,
                  .v = v});
        free(q), free(k), free(v);
    }
    return p;
}

static void pool_free(struct pool *p)
{
    free(p->kv.base);
    free(p);
}

/* attn and merge of rows into f32 out [rows][h*d]; q in the backend's row type. Parts
 * begin as NaNs. */
static void run_attn(struct kern *k, const struct pool *p, const struct dims *s,
                     const struct kern_rows *r, int32_t window, const void *q, float *out)
{
    int64_t parts = (int64_t)CAP_DEC * N_PART + KERN_T;
    size_t n = (size_t)(parts * s->h * s->d);
    float *o = malloc(n * 4), *ml = malloc((size_t)(parts * s->h) * 8);
    struct mc_rows rows = kern_view(r);
    bool ref = k->b->row_dt == MC_F32;
    struct mc_act act = {.x = malloc(n * 4), .k = s->h * s->d,
                         .layout = ref ? MC_A_F32 : MC_A_BF16};

    rows.cap = r->live[MC_LIVE_ROWS] + 1;
    memset(o, 0xff, n * 4);
    memset(ml, 0xff, (size_t)(parts * s->h) * 8);
    kern_run(k, gqa_attn,
             {.rows = rows,
              .kv = p->kv,
              .slots = p->slots,
              .layer = 1,
              .h = s->h,
              .n_part = N_PART,
              .window = window,
              .cap_decode = CAP_DEC,
              .scale = 1 / sqrtf((float)s->d),
              .q = q,
              .o = o,
              .ml = ml});
    kern_run(k, attn_merge, {.rows = rows, .h = s->h, .d = s->d, .n_part = N_PART,
                             .cap_decode = CAP_DEC, .o = o, .ml = ml, .act = act});
    for (int64_t i = 0; i < (int64_t)r->live[MC_LIVE_ROWS] * act.k; i++)
        out[i] = ref ? ((float *)act.x)[i] : mc_f32_of_bf16(((uint16_t *)act.x)[i]);
    free(o), free(ml), free(act.x);
}

/* A step of every context: decode rows, prefill rows of two sequences, one of them bad.
 */
static void cuda_attn_agrees_with_the_oracle(void **state)
{
    struct kern cu = cuda_open(), ref = kern_ref(2, -1);
    uint64_t seed = 47;

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (uint16_t layout = MC_KV_BF16; layout <= MC_KV_FP8; layout++) {
            const struct dims *s = &shapes[i];
            struct pool *p = pool_new(&ref, s, layout, &seed);
            struct kern_rows r = {0};
            int32_t cols = s->h * s->d, rows,
                    window = (int32_t[]){0, 1, 50, 300, 0, 70}[i];
            float *qf, *want, *got;
            double smax = 6 * sqrt(s->d);
            double tol = (((2 * s->d + 8) * smax + 600 + 64) * 2 * OPS_U + 0x1p-15) *
                         p->v_top;
            uint16_t *q;

            for (int32_t j = 0; j < 4; j++)
                kern_seq(&r, j, contexts[j] - 1, 1, true);
            kern_seq(&r, 4, 591, 9, false);
            kern_seq(&r, 5, 0, 21, false);
            p->slots[i % 2 ? 1 : 4].bad = MC_BAD_PAGE;
            rows = r.live[MC_LIVE_ROWS];
            q = randoms((int64_t)rows * cols, &qf, &seed);
            want = malloc((size_t)(rows * cols) * 4);
            got = malloc((size_t)(rows * cols) * 4);
            run_attn(&ref, p, s, &r, window, qf, want);
            run_attn(&cu, p, s, &r, window, q, got);
            for (int32_t j = 0; j < rows * cols; j++)
                if (!(fabs((double)got[j] - want[j]) <= tol + fabs(want[j]) * 0x1p-8))
                    fail_msg("h %d/%d d %d kv %d window %d: row %d col %d is %.9g, want "
                             "%.9g +- "
                             "%.3g",
                             s->h, s->hk, s->d, layout, window, j / cols, j % cols,
                             got[j], want[j], tol);
            free(q), free(qf), free(want), free(got);
            pool_free(p);
        }
    kern_close(&cu);
    kern_close(&ref);
}

/* 20 rows near the end of 600, as one chunk, as chunks, as decode rows, next to others.
 */
static void cuda_attn_rows_do_not_depend_on_the_batch(void **state)
{
    static const int32_t chunk[] = {20, 1, 7};
    struct kern cu = cuda_open(), ref = kern_ref(2, -1);
    uint64_t seed = 53;

    (void)state;
    for (uint16_t layout = MC_KV_BF16; layout <= MC_KV_FP8; layout++)
        for (int32_t window = 0; window <= 90; window += 90) {
            const struct dims *s = &shapes[layout == MC_KV_FP8 ? 0 : 2];
            struct pool *p = pool_new(&ref, s, layout, &seed);
            int32_t cols = s->h * s->d, n;
            float *qf, *first = malloc((size_t)(20 * cols) * 4),
                       *got = malloc((size_t)(29 * cols) * 4);
            uint16_t *q = randoms(29 * cols, &qf, &seed);

            for (int32_t c = 0; c < 3; c++) {
                for (int32_t t = 0; t < 20; t += n) {
                    struct kern_rows r = {0};

                    n = 20 - t < chunk[c] ? 20 - t : chunk[c];
                    kern_seq(&r, 4, 580 + t, n, n == 1);
                    run_attn(&cu, p, s, &r, window, q + t * cols, got + t * cols);
                }
                if (c == 0)
                    memcpy(first, got, (size_t)(20 * cols) * 4);
                else if (memcmp(first, got, (size_t)(20 * cols) * 4) != 0)
                    fail_msg("kv %d window %d: chunks of %d give other bits", layout,
                             window, chunk[c]);
            }
            struct kern_rows r = {0}; /* rows 3..11 behind a decode row, before others */
            kern_seq(&r, 3, 256, 1, true);
            kern_seq(&r, 4, 583, 9, false);
            kern_seq(&r, 5, 3, 4, false);
            memmove(q + cols, q + 3 * cols, (size_t)(9 * cols) * 2);
            run_attn(&cu, p, s, &r, window, q, got);
            assert_memory_equal(got + cols, first + 3 * cols, (size_t)(9 * cols) * 4);
            free(q), free(qf), free(first), free(got);
            pool_free(p);
        }
    kern_close(&cu);
    kern_close(&ref);
}

/* ---- prep -------------------------------------------------------------------------- */

static void cuda_sincos_is_within_2_ulp(void **state)
{
    uint64_t seed = 3;

    (void)state;
    for (int i = 0; i < 200000; i++) {
        float x = (float)(kern_rand(&seed) % 2000000) *
                  (float)(kern_rand(&seed) % 65536) / 65536,
              s, c;

        mc_sincos(x, &s, &c);
        if (!(fabs(s - sin((double)x)) <= 0x1p-23 && fabs(c - cos((double)x)) <= 0x1p-23))
            fail_msg("sincos(%.9g) is %.9g, %.9g, want %.9g, %.9g", x, s, c,
                     sin((double)x), cos((double)x));
    }
}

/* Values that both sides rounded: at most a step of the format apart, nearly always none.
 */
static void close_enough(double got, double want, double step, int64_t at, int *off)
{
    if (!(fabs(got - want) <= step + 1e-6))
        fail_msg("value %lld: %.9g, want %.9g", (long long)at, got, want);
    *off += got != want;
}

static void check_prep(struct kern *cu, struct kern *ref, const struct dims *s,
                       uint16_t layout, uint8_t pair, bool norms, uint64_t *seed)
{
    struct pool *p = pool_new(ref, s, layout, seed);
    int64_t bytes = N_PAGE * p->kv.page_stride;
    uint8_t *pages = malloc((size_t)bytes), *base = p->kv.base;
    struct kern_rows r = {0};
    float freq[64], *w[2], *f[3];
    int32_t n[3] = {s->h, s->hk, s->hk}, rows, off = 0, slots[3] = {4, 3, 1};
    uint16_t *x[3];
    struct mc_gqa_prep_p q = {.kv = p->kv,
                              .slots = p->slots,
                              .layer = 1,
                              .h = s->h,
                              .eps = 1e-6f,
                              .rope = {.inv_freq = freq,
                                       .mul = 1.25f,
                                       .dim = (int16_t)(s->d / 2),
                                       .off = (int16_t)(s->d / 4),
                                       .pair = pair}};

    kern_seq(&r, 4, 599, 1, true);
    kern_seq(&r, 3, 250, 7, false);
    kern_seq(&r, 1, 60, 4, false);
    p->slots[slots[2]].bad = 1;
    rows = r.live[MC_LIVE_ROWS];
    q.rows = kern_view(&r);
    q.rows.cap = rows + 2;
    for (int i = 0; i < 64; i++)
        freq[i] = powf(10000, -(float)i / 16);
    for (int i = 0; i < 3; i++)
        x[i] = randoms((int64_t)rows * n[i] * s->d, &f[i], seed);
    for (int i = 0; i < 2; i++)
        free(randoms(s->d, &w[i], seed));
    q.q_norm = norms ? w[0] : NULL;
    q.k_norm = norms ? w[1] : NULL;
    memcpy(pages, base, (size_t)bytes);
    q.q = f[0], q.k = f[1], q.v = f[2];
    kern_run(ref, gqa_prep, q);
    q.kv.base = pages;
    q.q = x[0], q.k = x[1], q.v = x[2];
    kern_run(cu, gqa_prep, q);
    for (int64_t i = 0; i < (int64_t)rows * s->h * s->d; i++)
        close_enough(mc_f32_of_bf16(x[0][i]), mc_f32_of_bf16(mc_bf16_of_f32(f[0][i])),
                     fabsf(f[0][i]) * 0x1p-7, i, &off);
    for (int32_t t = 0; t < rows; t++)
        for (int32_t g = 0; g < s->hk * 2; g++) {
            int32_t v = g / s->hk, slot = r.slot[r.row_seq[t]], pos = r.pos[t];
            uint8_t *a = mc_kv_page(&p->kv, 1, slot, pos), *b = a - base + pages;
            const uint8_t *va = mc_kv_at(&p->kv, a, v, g % s->hk, pos);
            const uint8_t *vb = mc_kv_at(&p->kv, b, v, g % s->hk, pos);
            float sa = 1, sb = 1;

            if (layout == MC_KV_FP8) {
                sa = *mc_kv_scale(&p->kv, a, v, g % s->hk, pos);
                sb = *mc_kv_scale(&p->kv, b, v, g % s->hk, pos);
                assert_true(fabsf(sa - sb) <= 1e-5f * sa);
            }
            for (int32_t i = 0; i < s->d; i++) {
                float ya = layout == MC_KV_FP8
                               ? mc_f32_of_e4m3(va[i])
                               : mc_f32_of_bf16(((const uint16_t *)(const void *)va)[i]);
                float yb = layout == MC_KV_FP8
                               ? mc_f32_of_e4m3(vb[i])
                               : mc_f32_of_bf16(((const uint16_t *)(const void *)vb)[i]);

                close_enough(yb, ya,
                             layout == MC_KV_FP8 ? fabsf(ya) / 8 + 0x1p-9
                                                 : fabsf(ya) * 0x1p-7,
                             i, &off);
            }
        }
    assert_true(off <= rows * s->d * (s->h + 2 * s->hk) / 50);
    if (memcmp(base, pages, (size_t)bytes) != 0) { /* nothing else was written */
        int64_t differ = 0;

        for (int64_t i = 0; i < bytes; i++)
            differ += base[i] != pages[i];
        assert_true(differ <= 2 * off + 4 * rows * s->hk * 2);
    }
    for (int i = 0; i < 3; i++)
        free(x[i]), free(f[i]);
    free(w[0]), free(w[1]), free(pages);
    pool_free(p);
}

static void cuda_prep_rotates_and_writes_pages(void **state)
{
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);
    uint64_t seed = 67;

    (void)state;
    for (size_t i = 0; i < 3; i++)
        for (uint16_t layout = MC_KV_BF16; layout <= MC_KV_FP8; layout++)
            check_prep(&cu, &ref, &shapes[i], layout,
                       i % 2 ? MC_ROPE_NEIGHBOURS : MC_ROPE_HALVES, layout == MC_KV_BF16,
                       &seed);
    kern_close(&cu);
    kern_close(&ref);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(cuda_attn_agrees_with_the_oracle),
    cmocka_unit_test(cuda_attn_rows_do_not_depend_on_the_batch),
    cmocka_unit_test(cuda_sincos_is_within_2_ulp),
    cmocka_unit_test(cuda_prep_rotates_and_writes_pages),
};

MC_TEST_MAIN(tests)
