/* test_cuda.c - the CUDA kernels with weights and rows, emulated, against the oracle.
 *
 * Row type bf16: both sides get the same bf16 numbers. A product differs from ref's by
 * the order of its f32 sum, at most k half-ulps of the sum of magnitudes, and by what its
 * conversions round, which is nothing: codes are exact in bf16. A bf16 result may fall to
 * the other side of a tie: one half-ulp of bf16 more. */
#include "tests/c/test.h"

#ifndef MC_BARE
#include "kernels/emu/emu.h"
#endif
#include "tests/c/cuda_help.h"

/* ---- products ---------------------------------------------------------------------- */

/* What the packed row stands for: formats without a layout of their own are bf16. */
static void weights_of(const struct mc_disk *d, uint16_t layout, int32_t r, int32_t k,
                       float *w)
{
    mc_disk_row(d, r, 0, k, w);
    for (int32_t i = 0; i < k && layout == MC_W_BF16; i++)
        w[i] = mc_f32_of_bf16(mc_bf16_of_f32(w[i]));
}

static struct mc_act acts(struct kern *ref, uint16_t layout, int32_t rows, int32_t k,
                          uint64_t *seed)
{
    struct mc_act a = ops_act(layout, rows, k);
    float *x;

    free(randoms((int64_t)rows * k, &x, seed));
    kern_run(ref, quant, {.n_live = &rows, .cap = rows, .x = x, .act = a});
    free(x);
    return a;
}

/* The product of row r with token t, and a bound of its error. */
static double product(const float *w, const struct mc_act *a, int32_t t, double *tol)
{
    double sum = 0, all = 0;

    for (int32_t c = 0; c < a->k; c++) {
        sum += (double)w[c] * act_at(a, t, c);
        all += fabs((double)w[c] * act_at(a, t, c));
    }
    *tol = all * (a->k + 16) * OPS_U;
    return sum;
}

static void check_linear(struct kern *cu, struct kern *ref, const struct kind *q,
                         int32_t n, int32_t k, int32_t rows, uint16_t y_dt,
                         uint64_t *seed)
{
    struct mc_disk d = disk_of(q, n, k, seed);
    struct mc_w w = ops_pack(cu, &d);
    struct mc_act a = acts(ref, q->act, rows, k, seed);
    int32_t pitch = n + 3, e = y_dt == MC_F32 ? 4 : 2;
    float *bias = malloc((size_t)n * 4), *row = malloc((size_t)k * 4);
    uint8_t *y = malloc((size_t)(rows * pitch * e));

    for (int32_t i = 0; i < n; i++)
        bias[i] = kern_randn(seed);
    memset(y, 0x55, (size_t)(rows * pitch * e));
    kern_run(cu, linear, {.n_live = &rows, .cap = rows + 5, .n_w = 1, .act = a, .w = {w},
                          .bias = {rows % 2 ? bias : NULL}, .y = {y}, .pitch = {pitch},
                          .y_dt = y_dt});
    for (int32_t i = 0; i < n; i++) {
        weights_of(&d, w.layout, i, k, row);
        for (int32_t t = 0; t < rows; t++) {
            double tol, want = product(row, &a, t, &tol) + (rows % 2 ? bias[i] : 0);
            float got = e == 4 ? ((float *)(void *)y)[t * pitch + i]
                               : as_f32(y, t * pitch + i);

            tol += fabs(want) * (e == 4 ? 4 * OPS_U : BF);
            if (!(fabs(got - want) <= tol))
                fail_msg("%s act %d [%d,%d] %d rows: y[%d,%d] is %.9g, want %.9g +- %.3g",
                         q->fmt, q->act, n, k, rows, t, i, got, want, tol);
        }
    }
    for (int32_t t = 0; t < rows; t++) /* nothing is written between rows */
        for (int32_t i = n * e; i < pitch * e; i++)
            assert_int_equal(y[t * pitch * e + i], 0x55);
    free(y), free(bias), free(row);
    ops_act_free(&a);
    ops_w_free(&w);
    ops_disk_free(&d);
}

static void cuda_linear_agrees_with_the_oracle(void **state)
{
    static const int32_t rows_of[] = {1, 8, 9, 17, 33, 64, 67, 3};
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);
    uint64_t seed = 7;
    int32_t r = 0;

    (void)state;
    for (int32_t i = 0; i < N_KIND; i++)
        for (int32_t j = 0; j < 3; j++, r++)
            check_linear(&cu, &ref, &kinds[i], (int32_t[]){5, 16, 49}[j],
                         (int32_t[]){128, 640, 1152}[j], rows_of[r % 8],
                         r % 3 ? MC_BF16 : MC_F32, &seed);
    kern_close(&cu);
    kern_close(&ref);
}

/* Slices that a rank takes: rows and columns inside of blocks of scales. */
static void cuda_pack_takes_slices(void **state)
{
    static const struct {
        int32_t kind, row0, n, k0, k;
    } cuts[] = {{0, 5, 20, 33, 64},   {1, 100, 60, 64, 192}, {1, 1, 5, 0, 320},
                {3, 3, 17, 128, 128}, {3, 0, 16, 64, 192},   {4, 9, 33, 96, 128},
                {6, 2, 9, 32, 128},   {7, 1, 3, 64, 128},    {9, 0, 160, 256, 96}};
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);
    uint64_t seed = 11;
    int32_t one = 1;

    (void)state;
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        int32_t n = cuts[i].n, k = cuts[i].k;
        struct mc_disk d = disk_of(&kinds[cuts[i].kind], 160, 512, &seed);
        struct mc_w w = ops_pack_slice(&cu, &d, cuts[i].row0, n, cuts[i].k0, k);
        struct mc_act a = acts(&ref, MC_A_BF16, 1, k, &seed);
        float y[160], row[512];

        kern_run(&cu, linear,
                 {.n_live = &one,
                  .cap = 1,
                  .n_w = 1,
                  .act = a,
                  .w = {w},
                  .y = {y},
                  .pitch = {n},
                  .y_dt = MC_F32});
        for (int32_t r = 0; r < n; r++) {
            double tol, want;

            mc_disk_row(&d, cuts[i].row0 + r, cuts[i].k0, cuts[i].k0 + k, row);
            for (int32_t c = 0; c < k && w.layout == MC_W_BF16; c++)
                row[c] = mc_f32_of_bf16(mc_bf16_of_f32(row[c]));
            want = product(row, &a, 0, &tol);
            if (!(fabs(y[r] - want) <= tol))
                fail_msg("cut %zu row %d: %.9g, want %.9g", i, r, y[r], want);
        }
        ops_act_free(&a);
        ops_w_free(&w);
        ops_disk_free(&d);
    }
    kern_close(&cu);
    kern_close(&ref);
}

/* Bits of a row: alone, in batches of any size, under any capacity, next to other
 * matrices. */
static void cuda_linear_rows_do_not_depend_on_the_batch(void **state)
{
    static const int32_t batch[] = {1, 5, 16, 30, 64};
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);
    uint64_t seed = 23;
    enum { ROWS = 66, N = 40, K = 640 };
    float *all = malloc(ROWS * N * 4), *part = malloc(ROWS * N * 4),
          *other = malloc(ROWS * N * 4);

    (void)state;
    for (int32_t i = 0; i < 7; i++) {
        struct mc_disk d = disk_of(&kinds[i], N, K, &seed),
                       d2 = disk_of(&kinds[i], 17, K, &seed);
        struct mc_w w = ops_pack(&cu, &d), w2 = ops_pack(&cu, &d2);
        struct mc_act a = acts(&ref, kinds[i].act, ROWS, K, &seed), at = a;
        int32_t rows = ROWS;

        kern_run(&cu, linear,
                 {.n_live = &rows,
                  .cap = ROWS,
                  .n_w = 2,
                  .act = a,
                  .w = {w2, w},
                  .y = {other, all},
                  .pitch = {17, N},
                  .y_dt = MC_F32});
        for (int32_t b = 0; b < 5; b++) {
            int32_t t0 = 3 * b % 2;

            rows = batch[b];
            at.x = (uint8_t *)a.x + t0 * K * (a.layout == MC_A_BF16 ? 2 : 1);
            at.s = a.s + t0 * (K / 128);
            kern_run(&cu, linear,
                     {.n_live = &rows,
                      .cap = rows,
                      .n_w = 1,
                      .act = at,
                      .w = {w},
                      .y = {part},
                      .pitch = {N},
                      .y_dt = MC_F32});
            if (memcmp(part, all + t0 * N, (size_t)(rows * N) * 4) != 0)
                fail_msg("%s: %d rows give other bits than 66", kinds[i].fmt, rows);
        }
        ops_act_free(&a);
        ops_w_free(&w), ops_w_free(&w2);
        ops_disk_free(&d), ops_disk_free(&d2);
    }
    free(all), free(part), free(other);
    kern_close(&cu);
    kern_close(&ref);
}

static void check_glu(struct kern *cu, struct kern *ref, const struct kind *q,
                      uint16_t out_layout, int32_t n, int32_t k, int32_t rows,
                      uint64_t *seed)
{
    struct mc_disk d[2] = {disk_of(q, n, k, seed), disk_of(q, n, k, seed)};
    struct mc_w w[2] = {ops_pack(cu, &d[0]), ops_pack(cu, &d[1])};
    struct mc_act a = acts(ref, q->act, rows, k, seed),
                  out = ops_act(out_layout, rows, n);
    float *row[2] = {malloc((size_t)k * 4), malloc((size_t)k * 4)};
    float *scratch = malloc((size_t)(rows * n) * 4);

    kern_run(cu, glu,
             {.n_live = &rows,
              .cap = rows,
              .act = a,
              .gate = w[0],
              .up = w[1],
              .out = out,
              .scratch = scratch});
    for (int32_t i = 0; i < n; i++) {
        for (int j = 0; j < 2; j++)
            weights_of(&d[j], w[j].layout, i, k, row[j]);
        for (int32_t t = 0; t < rows; t++) {
            double e[2], g = product(row[0], &a, t, &e[0]),
                         u = product(row[1], &a, t, &e[1]);
            double silu = g / (1 + exp(-g)), want = silu * u, tol;
            float got = act_at(&out, t, i);

            tol = 1.1 * e[0] * (fabs(u) + e[1]) + fabs(silu) * e[1] +
                  16 * OPS_U * fabs(want);
            tol += out_layout == MC_A_BF16 /* or 3 bits of mantissa, and steps of 2^-9 */
                       ? BF * fabs(want)
                       : 0x1p-4 * 1.01 * fabs(want) +
                             0x1p-10 * 1.01 * out.s[t * ((n + 127) / 128) + i / 128];
            if (!(fabs(got - want) <= tol))
                fail_msg("%s [%d,%d] %d rows: out[%d,%d] is %.9g, want %.9g +- %.3g",
                         q->fmt, n, k, rows, t, i, got, want, tol);
        }
    }
    free(row[0]), free(row[1]), free(scratch);
    ops_act_free(&a);
    ops_act_free(&out);
    for (int j = 0; j < 2; j++) {
        ops_w_free(&w[j]);
        ops_disk_free(&d[j]);
    }
}

static void cuda_glu_is_silu_of_gate_times_up(void **state)
{
    static const int32_t rows_of[] = {1, 12, 20, 66};
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);
    uint64_t seed = 19;

    (void)state;
    for (int32_t i = 0; i < 8; i++)
        check_glu(&cu, &ref, &kinds[i], i % 2 ? MC_A_E4M3 : MC_A_BF16, i % 3 ? 160 : 32,
                  256, rows_of[i % 4], &seed);
    kern_close(&cu);
    kern_close(&ref);
}

#ifndef MC_BARE /* what follows counts, which the emulator alone does */
/* Memory as a device gives it, which starts at a sector. */
static struct mc_w pack_aligned(struct kern *k, const struct mc_disk *d)
{
    struct mc_pack_p p = {
        .disk = *d, .w = {.layout = k->b->run_of(k->b, d->fmt), .n = d->n, .k = d->k}};
    struct mc_need n;
    const char *why;

    assert_int_equal(k->b->op[MC_OP_pack]->need(&p, &n, &why), 0);
    p.w.q = k->b->alloc(k->b, n.q);
    p.w.scale = k->b->alloc(k->b, n.scale);
    p.w.zero = k->b->alloc(k->b, n.zero);
    kern_run(k, pack, p);
    return p.w;
}

/* A warp's reads are whole sectors, each once; sums meet few banks twice. */
static void cuda_linear_reads_whole_sectors(void **state)
{
    struct kern cu, ref;
    uint64_t seed = 29;
    int32_t one = 1;

    (void)state;
    if (!emu_watches()) {
        print_message("a sanitizer build counts nothing\n");
        skip();
    }
    cu = cuda_open();
    ref = kern_ref(1, -1);
    for (int32_t i = 0; i < 7; i++) {
        struct mc_disk d = disk_of(&kinds[i], 64, 512, &seed);
        struct mc_w w = pack_aligned(&cu, &d);
        struct mc_act a = acts(&ref, kinds[i].act, 1, 512, &seed), at = a;
        struct emu_traffic t;
        float *y = cu.b->alloc(cu.b, 256);

        at.x = cu.b->alloc(cu.b, 1024);
        cu.b->upload(cu.b, at.x, a.x, a.layout == MC_A_BF16 ? 1024 : 512);
        emu_count(true);
        kern_run(&cu, linear,
                 {.n_live = &one,
                  .cap = 1,
                  .n_w = 1,
                  .act = at,
                  .w = {w},
                  .y = {y},
                  .pitch = {64},
                  .y_dt = MC_F32});
        emu_count(false);
        t = emu_counted();
        if (t.sectors != t.sectors_min || t.waves * 10 > t.waves_min * 15 ||
            t.global_bytes < 64 * 512 / 2)
            fail_msg("%s: %llu bytes in %llu sectors, %llu would do; %llu waves for %llu",
                     kinds[i].fmt, (unsigned long long)t.global_bytes,
                     (unsigned long long)t.sectors, (unsigned long long)t.sectors_min,
                     (unsigned long long)t.waves, (unsigned long long)t.waves_min);
        cu.b->release(cu.b, w.q, 0), cu.b->release(cu.b, w.scale, 0);
        cu.b->release(cu.b, w.zero, 0), cu.b->release(cu.b, y, 0);
        cu.b->release(cu.b, at.x, 0);
        ops_act_free(&a);
        ops_disk_free(&d);
    }
    kern_close(&cu);
    kern_close(&ref);
}

#endif

/* ---- rows -------------------------------------------------------------------------- */

static void cuda_embed_decodes_rows(void **state)
{
    struct kern cu = cuda_open();
    uint64_t seed = 17;
    int32_t n = 37, k = 512;

    (void)state;
    for (int32_t i = 0; i < N_KIND; i++) {
        struct mc_disk d = disk_of(&kinds[i], n, k, &seed);
        struct mc_w w = ops_pack(&cu, &d);
        struct kern_rows r = {0};
        struct mc_slot slots[2] = {{.tok = 104}, {.tok = 0}};
        uint16_t *x = malloc(40 * (size_t)k * 2);
        float row[512];

        kern_seq(&r, 0, 9, 1, true);
        kern_seq(&r, 1, 0, 39, false);
        for (int32_t t = 1; t < 40; t++)
            r.tok[t] = 99 + t; /* ours are 100..136: the first and the last two are not */
        kern_run(&cu, embed,
                 {.rows = kern_view(&r), .w = w, .slots = slots, .row0 = 100, .x = x});
        for (int32_t t = 0; t < 40; t++) {
            int32_t id = t == 0 ? 4 : t - 1;

            memset(row, 0, sizeof row);
            if (id < n)
                mc_disk_row(&d, id, 0, k, row);
            for (int32_t c = 0; c < k; c++)
                if (!(fabsf(as_f32(x, t * k + c) - row[c]) <= BF * fabsf(row[c])))
                    fail_msg("%s: x[%d,%d] is %.9g, want %.9g", kinds[i].fmt, t, c,
                             as_f32(x, t * k + c), row[c]);
        }
        free(x);
        ops_w_free(&w);
        ops_disk_free(&d);
    }
    kern_close(&cu);
}

static bool same_act(const struct mc_act *a, const struct mc_act *b, int32_t rows)
{
    size_t n = (size_t)rows * (size_t)a->k;

    if (a->layout == MC_A_BF16)
        return memcmp(a->x, b->x, n * 2) == 0;
    return memcmp(a->x, b->x, n) == 0 &&
           memcmp(a->s, b->s, (size_t)rows * (size_t)((a->k + 127) / 128) * 4) == 0;
}

static void cuda_quant_rounds_as_the_oracle(void **state)
{
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);
    uint64_t seed = 31;
    int32_t rows = 5;

    (void)state;
    for (int32_t k = 32; k <= 1184; k += 192)
        for (uint16_t layout = MC_A_BF16; layout <= MC_A_E4M3;
             layout += MC_A_E4M3 - MC_A_BF16) {
            struct mc_act want = ops_act(layout, rows, k), got = ops_act(layout, rows, k);
            float *x;
            uint16_t *h = randoms((int64_t)rows * k, &x, &seed);

            for (int32_t i = 0; i < 32; i++) /* a row of zeros */
                h[2 * k + i] = 0, x[2 * k + i] = 0;
            kern_run(&ref, quant, {.n_live = &rows, .cap = rows, .x = x, .act = want});
            kern_run(&cu, quant, {.n_live = &rows, .cap = rows + 1, .x = h, .act = got});
            assert_true(same_act(&got, &want, rows));
            free(x), free(h);
            ops_act_free(&want);
            ops_act_free(&got);
        }
    kern_close(&cu);
    kern_close(&ref);
}

/* The norm is that of the rounded residual: ref is given it as its input. A sum of
 * squares in another order is off by at most h half-ulps of itself. */
static void check_join(struct kern *cu, struct kern *ref, int32_t h, int32_t rows,
                       bool first, uint64_t *seed)
{
    size_t n = (size_t)rows * (size_t)h;
    float *x, *res, *w, *norm = malloc(n * 4), *sum = malloc(n * 4);
    uint16_t *hx = randoms((int64_t)n, &x, seed), *hres = randoms((int64_t)n, &res, seed);
    uint16_t *hnorm = malloc(n * 2);
    struct mc_act none = {0}, act = ops_act(MC_A_BF16, rows, h);
    struct kern_rows r = {0};
    struct mc_join_p p = {.x = hx,
                          .res = hres,
                          .eps = 1e-5f,
                          .h = h,
                          .first = first,
                          .act = act,
                          .norm_out = hnorm};

    free(randoms(h, &w, seed));
    kern_seq(&r, 0, 0, rows, false);
    p.rows = kern_view(&r);
    p.w = w;
    for (size_t i = 0; i < n; i++)
        sum[i] = mc_f32_of_bf16(mc_bf16_of_f32(first ? x[i] : res[i] + x[i]));
    kern_run(ref, join, {.rows = p.rows, .x = sum, .res = x, .w = w, .eps = 1e-5f, .h = h,
                         .first = true, .act = none, .norm_out = norm});
    kern_run(cu, join, p);
    for (size_t i = 0; i < n; i++) {
        assert_true(as_f32(hres, (int64_t)i) == sum[i]);
        if (!(fabsf(as_f32(hnorm, (int64_t)i) - norm[i]) <=
              (BF + (float)h * OPS_U) * fabsf(norm[i])))
            fail_msg("h %d: norm[%zu] is %.9g, want %.9g", h, i,
                     as_f32(hnorm, (int64_t)i), norm[i]);
    }
    assert_memory_equal(act.x, hnorm, n * 2);
    free(x), free(res), free(w), free(norm), free(sum), free(hx), free(hres), free(hnorm);
    ops_act_free(&act);
}

static void cuda_join_adds_and_norms(void **state)
{
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);
    uint64_t seed = 41;

    (void)state;
    for (int32_t h = 32; h <= 1312; h += 320)
        for (int first = 0; first < 2; first++)
            check_join(&cu, &ref, h, 3, first, &seed);
    kern_close(&cu);
    kern_close(&ref);
}

static void cuda_refusals_name_the_reason(void **state)
{
    struct kern cu = cuda_open();
    struct mc_disk d = {
        .fmt = MC_D_INT4, .n = 16, .k = 512, .group = 128, .scale_dt = MC_BF16};
    struct mc_pack_p p = {.disk = d, .w = {.layout = MC_W_I4, .n = 16, .k = 96}};

    (void)state;
    assert_non_null(strstr(kern_refuses(&cu, pack, p), "multiples of 64"));
    p.w.k = 128;
    assert_null(kern_refuses(&cu, pack, p));
    p.k0 = 448;
    assert_non_null(strstr(kern_refuses(&cu, pack, p), "outside"));
    p.k0 = 0;
    p.w.layout = MC_W_E4M3;
    assert_non_null(strstr(kern_refuses(&cu, pack, p), "run layout"));
    assert_non_null(
        strstr(kern_refuses(&cu, gqa_attn, {.kv = {.hk = 1, .d = 40}, .h = 1}),
               "head dims"));
    assert_non_null(
        strstr(kern_refuses(&cu, quant, {.act = {.k = 64, .layout = MC_A_I8}}), "bf16"));
    kern_close(&cu);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(cuda_linear_agrees_with_the_oracle),
    cmocka_unit_test(cuda_pack_takes_slices),
    cmocka_unit_test(cuda_linear_rows_do_not_depend_on_the_batch),
    cmocka_unit_test(cuda_glu_is_silu_of_gate_times_up),
#ifndef MC_BARE
    cmocka_unit_test(cuda_linear_reads_whole_sectors),
#endif
    cmocka_unit_test(cuda_embed_decodes_rows),
    cmocka_unit_test(cuda_quant_rounds_as_the_oracle),
    cmocka_unit_test(cuda_join_adds_and_norms),
    cmocka_unit_test(cuda_refusals_name_the_reason),
};

MC_TEST_MAIN(tests)
