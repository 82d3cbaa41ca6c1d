/* test_ops.c - operations with weights, every body of the CPU backend against the oracle.
 *
 * Both sides get the same rounded activations, so that only the order of f32 sums and the
 * rounding of scales differ. Tolerance: a sum of n terms, each rounded once or twice, is off
 * by at most about n half-ulps of the sum of the terms' magnitudes. For the oracle n is k;
 * for float panels k; for integers two roundings a step of 32 (16) columns, as dots are
 * exact, but of code*scale and min apart, whose magnitudes exceed the weights': at most four
 * times the largest weight of a block (codes 0..15 with a min of -8 steps). */
#include "tests/c/test.h"

#include "tests/c/ops.h"

static const int32_t some_rows[] = {1, 2, 3, 5, 8, 11, 12, 13, 24, 33, 64, 70, 97};

/* Bounds a sum's error: for the float order and, in *ints, for the integer one. */
static double bound(const float *w, const struct mc_act *a, int32_t t, double *ints)
{
    double sum = 0, blocks = 0;
    int32_t c, b;

    for (b = 0; b < a->k; b += 32) {
        double top = 0, x = 0;

        for (c = b; c < b + 32 && c < a->k; c++) {
            sum += fabs((double)w[c] * ops_act_at(a, t, c));
            x += fabsf(ops_act_at(a, t, c));
            top = fmax(top, fabsf(w[c]));
        }
        blocks += 4 * top * x;
    }
    *ints = blocks * (4.0 * a->k / 32 + 8) * OPS_U;
    return sum * (a->k + 4) * OPS_U;
}

static bool is_int(const struct mc_w *w)
{
    return w->layout == MC_W_I4 || w->layout == MC_W_I8 || w->layout == MC_W_NVFP4;
}

static void check_linear(struct kern *cpu, struct kern *ref, const struct ops_fmt *f,
                         int32_t n, int32_t k, int32_t rows, uint64_t *seed)
{
    struct mc_disk d = ops_disk(f, n, k, seed);
    struct mc_w w = ops_pack(cpu, &d), w_ref = ops_pack(ref, &d);
    struct mc_act a = ops_rows(ref, cpu->b->act_of(cpu->b, w.layout), rows, k, seed);
    int32_t pitch = n + 3, t, i;
    float *y = malloc((size_t)(rows * pitch) * 4),
          *y_ref = malloc((size_t)(rows * pitch) * 4);
    float *bias = malloc((size_t)n * 4), *row = malloc((size_t)k * 4);
    struct mc_linear_p p = {.n_live = &rows, .cap = rows, .n_w = 1, .act = a, .w = {w},
                            .bias = {rows % 2 ? bias : NULL}, .y = {y}, .pitch = {pitch},
                            .y_dt = MC_F32};

    for (i = 0; i < n; i++)
        bias[i] = kern_randn(seed);
    memset(y, 0x55, (size_t)(rows * pitch) * 4);
    kern_run(cpu, linear, p);
    p.w[0] = w_ref;
    p.y[0] = y_ref;
    kern_run(ref, linear, p);
    for (i = 0; i < n; i++) {
        mc_disk_row(&d, i, 0, k, row);
        for (t = 0; t < rows; t++) {
            double ints, tol = bound(row, &a, t, &ints);
            float got = y[t * pitch + i], want = y_ref[t * pitch + i];

            tol += (is_int(&w) ? ints : tol) + OPS_U * 4 * fabsf(want);
            if (!(fabs((double)got - want) <= tol))
                fail_msg("%s %s [%d,%d] %d rows: y[%d,%d] is %.9g, want %.9g +- %.3g",
                         cpu->b->what, f->name, n, k, rows, t, i, got, want, tol);
        }
    }
    for (t = 0; t < rows; t++) /* nothing is written between rows */
        for (i = n; i < pitch; i++)
            assert_int_equal(((uint32_t *)y)[t * pitch + i], 0x55555555);
    free(y), free(y_ref), free(bias), free(row);
    ops_act_free(&a);
    ops_w_free(&w);
    ops_w_free(&w_ref);
    ops_disk_free(&d);
}

static void ops_linear_agrees_with_the_oracle(void **state)
{
    static const int32_t n_of[] = {1, 7, 16, 17, 31, 97, 130};
    struct kern cpu, ref[2] = {kern_ref(1, MC_A_F32), kern_ref(1, MC_A_I16)};
    uint64_t seed = 7;
    int32_t i, j, r = 0;

    (void)state;
    ops_each_body (cpu, 2)
        for (i = 0; i < OPS_N_FMT; i++)
            for (j = 0; j < 7; j++, r++) {
                const struct ops_fmt *f = &ops_fmts[i];
                int32_t k = f->unit == 1 ? (int32_t[]){1, 37, 64, 255, 300, 576, 129}[j]
                                         : f->unit * (int32_t[]){1, 2, 3, 5, 7, 6, 18}[j];
                bool ints = f->fmt >= MC_D_INT4;

                check_linear(&cpu, &ref[ints], f, n_of[j], k, some_rows[r % 13], &seed);
            }
    kern_close(&ref[0]);
    kern_close(&ref[1]);
}

/* Slices that a rank takes: rows and columns inside of blocks of scales. */
static void ops_pack_takes_slices(void **state)
{
    static const struct {
        const char *fmt;
        int32_t row0, n, k0, k;
    } cuts[] = {
        {"bf16", 5, 20, 33, 70},   {"e4m3", 100, 60, 64, 192},  {"e4m3", 1, 5, 0, 320},
        {"int4", 3, 17, 128, 128}, {"int4", 0, 16, 64, 192},    {"q8_0", 9, 40, 96, 64},
        {"q4_k", 1, 3, 256, 256},  {"q6_k", 0, 160, 256, 256},  {"nvfp4", 2, 9, 32, 96},
        {"e4m3", 3, 9, 96, 100},
    };
    struct kern cpu, ref = kern_ref(1, -1);
    uint64_t seed = 11;
    size_t i;

    (void)state;
    ops_each_body (cpu, 1)
        for (i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
            const struct ops_fmt *f = ops_fmts;
            int32_t n = cuts[i].n, k = cuts[i].k, one = 1, r, c;
            struct mc_disk d;
            struct mc_w w;
            struct mc_act a;
            float y[256], row[512];

            while (strcmp(f->name, cuts[i].fmt) != 0)
                f++;
            d = ops_disk(f, 160, 512, &seed);
            w = ops_pack_slice(&cpu, &d, cuts[i].row0, n, cuts[i].k0, k);
            a = ops_rows(&ref, cpu.b->act_of(cpu.b, w.layout), 1, k % 32 ? k : k, &seed);
            kern_run(&cpu, linear, {.n_live = &one, .cap = 1, .n_w = 1, .act = a, .w = {w},
                                    .y = {y}, .pitch = {n}, .y_dt = MC_F32});
            for (r = 0; r < n; r++) {
                double want = 0, ints, tol;

                mc_disk_row(&d, cuts[i].row0 + r, cuts[i].k0, cuts[i].k0 + k, row);
                for (c = 0; c < k; c++)
                    want += (double)row[c] * ops_act_at(&a, 0, c);
                tol = bound(row, &a, 0, &ints);
                if (!(fabs(y[r] - want) <= (is_int(&w) ? ints : tol)))
                    fail_msg("%s %s row %d: %.9g, want %.9g", cpu.b->what, f->name, r,
                             y[r], want);
            }
            ops_act_free(&a);
            ops_w_free(&w);
            ops_disk_free(&d);
        }
    kern_close(&ref);
}

/* int4 with stored zero points and each type of scale. */
static void ops_int4_takes_zeros_and_every_scale(void **state)
{
    struct kern cpu, ref = kern_ref(1, MC_A_I16);
    const struct ops_fmt f = {"int4 zero", MC_D_INT4, 32, 16};
    uint64_t seed = 13;
    int32_t i, n = 21, k = 192, one = 1, r, c, g;

    (void)state;
    ops_each_body (cpu, 1)
        for (i = 0; i < 6; i++) {
            struct mc_disk d = {.fmt = MC_D_INT4, .n = n, .k = k, .group = i % 2 ? 32 : 64};
            uint8_t *q = malloc((size_t)(n * k / 2)),
                    *s = malloc((size_t)(n * k / 32 * 4));
            uint32_t *zero = malloc(3 * 6 * 4);
            struct mc_w w;
            struct mc_act a;
            float y[21], row[192];

            ops_fill(&f, q, (int64_t)n * k / 32, &seed);
            for (g = 0; g < n * k / 32; g++) {
                float v = 0.01f * (float)(1 + kern_rand(&seed) % 9);

                if (i / 2 == 0)
                    memcpy(s + 4 * g, &v, 4);
                else
                    ops_put16(s + 2 * g,
                              i / 2 == 1 ? mc_f16_of_f32(v) : mc_bf16_of_f32(v));
            }
            for (g = 0; g < 3 * 6; g++)
                zero[g] = kern_rand(&seed);
            d.q = q;
            d.scale = s;
            d.zero = i == 4 ? NULL : zero;
            d.scale_dt = (uint16_t[]){MC_F32, MC_F16, MC_BF16}[i / 2];
            w = ops_pack(&cpu, &d);
            a = ops_rows(&ref, MC_A_I16, 1, k, &seed);
            kern_run(&cpu, linear, {.n_live = &one, .cap = 1, .n_w = 1, .act = a, .w = {w},
                                    .y = {y}, .pitch = {n}, .y_dt = MC_F32});
            for (r = 0; r < n; r++) {
                double want = 0, ints;

                mc_disk_row(&d, r, 0, k, row);
                for (c = 0; c < k; c++)
                    want += (double)row[c] * ops_act_at(&a, 0, c);
                bound(row, &a, 0, &ints);
                if (!(fabs(y[r] - want) <= ints))
                    fail_msg("%s case %d row %d: %.9g, want %.9g", cpu.b->what, i, r,
                             y[r], want);
            }
            ops_act_free(&a);
            ops_w_free(&w);
            free(q), free(s), free(zero);
        }
    kern_close(&ref);
}

/* A weight that is a NaN stops the load. */
static void ops_pack_refuses_nan_weights(void **state)
{
    struct kern cpu;
    uint64_t seed = 15;

    (void)state;
    ops_each_body (cpu, 1) {
        struct mc_disk d = ops_disk(&ops_fmts[3], 17, 40, &seed);
        struct mc_pack_p p = {.disk = d, .w = {.layout = MC_W_E4M3, .n = 17, .k = 40}};
        struct mc_need need;
        const char *why;

        ((uint8_t *)d.q)[16 * 40 + 39] = 0xff;
        assert_int_equal(cpu.b->op[MC_OP_pack]->need(&p, &need, &why), 0);
        p.w.q = malloc(need.q);
        p.w.scale = malloc(need.scale);
        assert_int_equal(mc_k_pack(cpu.b, cpu.s, &p), 0);
        assert_int_equal(cpu.b->wait(cpu.s, cpu.b->mark(cpu.s)), MC_K_EARG);
        ops_w_free(&p.w);
        ops_disk_free(&d);
    }
}

/* A row of an embedding is what the disk holds. */
static void ops_embed_decodes_rows(void **state)
{
    struct kern cpu;
    uint64_t seed = 17;
    int32_t i, t, c, n = 37, k = 512;

    (void)state;
    ops_each_body (cpu, 2)
        for (i = 0; i < OPS_N_FMT; i++) {
            struct mc_disk d = ops_disk(&ops_fmts[i], n, k, &seed);
            struct mc_w w = ops_pack(&cpu, &d);
            struct kern_rows r = {0};
            struct mc_slot slots[2] = {{.tok = 104}, {.tok = 0}};
            float *x = malloc(40 * (size_t)k * 4), row[512];

            kern_seq(&r, 0, 9, 1, true);
            kern_seq(&r, 1, 0, 39, false);
            for (t = 1; t < 40; t++)
                r.tok[t] = 99 + t; /* ours are 100..136: the first and the last two are not */
            kern_run(
                &cpu, embed,
                {.rows = kern_view(&r), .w = w, .slots = slots, .row0 = 100, .x = x});
            for (t = 0; t < 40; t++) {
                int32_t id = t == 0 ? 4 : t - 1;
                float top = 0;

                memset(row, 0, sizeof row);
                if (id < n)
                    mc_disk_row(&d, id, 0, k, row);
                for (c = 0; c < k; c++)
                    top = fmaxf(top, fabsf(row[c]));
                for (c = 0; c < k; c++)
                    if (!(fabsf(x[t * k + c] - row[c]) <= 8 * OPS_U * top))
                        fail_msg("%s %s: x[%d,%d] is %.9g, want %.9g", cpu.b->what,
                                 ops_fmts[i].name, t, c, x[t * k + c], row[c]);
            }
            free(x);
            ops_w_free(&w);
            ops_disk_free(&d);
        }
}

/* glu: each product is off by what its two sums are off, a few ulps of silu, and one step of
 * the output's rounding, which may fall to the other side. */
static void check_glu(struct kern *cpu, struct kern *ref, const struct ops_fmt *f,
                      uint16_t out_layout, int32_t n, int32_t k, int32_t rows,
                      uint64_t *seed)
{
    struct mc_disk d[2] = {ops_disk(f, n, k, seed), ops_disk(f, n, k, seed)};
    struct mc_w w[2] = {ops_pack(cpu, &d[0]), ops_pack(cpu, &d[1])};
    struct mc_act a = ops_rows(ref, cpu->b->act_of(cpu->b, w[0].layout), rows, k, seed);
    struct mc_act out = ops_act(out_layout, rows, n);
    float *row[2] = {malloc((size_t)k * 4), malloc((size_t)k * 4)};
    int32_t t, i, c, j;

    kern_run(cpu, glu, {.n_live = &rows, .cap = rows, .act = a, .gate = w[0], .up = w[1],
                        .out = out});
    for (i = 0; i < n; i++) {
        for (j = 0; j < 2; j++)
            mc_disk_row(&d[j], i, 0, k, row[j]);
        for (t = 0; t < rows; t++) {
            double y[2] = {0}, e[2], ints, silu, want, tol;
            float got = ops_act_at(&out, t, i);

            for (j = 0; j < 2; j++) {
                for (c = 0; c < k; c++)
                    y[j] += (double)row[j][c] * ops_act_at(&a, t, c);
                e[j] = bound(row[j], &a, t, &ints);
                e[j] = is_int(&w[0]) ? ints : e[j];
            }
            silu = y[0] / (1 + exp(-y[0]));
            want = silu * y[1];
            tol = 1.1 * e[0] * (fabs(y[1]) + e[1]) + fabs(silu) * e[1] +
                  16 * OPS_U * fabs(want);
            if (out_layout == MC_A_I16) /* s is amax/32767: half a step, and s itself */
                tol += 0.5001 * out.s[((int64_t)t * n + i) / 32] + 4 * OPS_U * fabs(want);
            if (!(fabs(got - want) <= tol))
                fail_msg("%s %s [%d,%d] %d rows: out[%d,%d] is %.9g, want %.9g +- %.3g",
                         cpu->b->what, f->name, n, k, rows, t, i, got, want, tol);
        }
    }
    free(row[0]), free(row[1]);
    ops_act_free(&a);
    ops_act_free(&out);
    for (j = 0; j < 2; j++) {
        ops_w_free(&w[j]);
        ops_disk_free(&d[j]);
    }
}

static void ops_glu_is_silu_of_gate_times_up(void **state)
{
    struct kern cpu, ref = kern_ref(1, MC_A_I16);
    uint64_t seed = 19;
    int32_t i, r = 0;

    (void)state;
    ops_each_body (cpu, 2)
        for (i = 0; i < OPS_N_FMT; i++, r++) {
            int32_t k = ops_fmts[i].unit < 32 ? 60 : 512;

            check_glu(&cpu, &ref, &ops_fmts[i], MC_A_F32, 45, k, some_rows[r % 13],
                      &seed);
            check_glu(&cpu, &ref, &ops_fmts[i], MC_A_I16, 96, k, some_rows[(r + 5) % 13],
                      &seed);
        }
    kern_close(&ref);
}

/* ---- one row, one answer ----------------------------------------------------------- */

static void run_linear(struct kern *cpu, const struct mc_w *w, struct mc_act a,
                       int32_t t0, int32_t rows, float *y)
{
    a.x = (uint8_t *)a.x + (int64_t)t0 * a.k * (a.layout == MC_A_F32 ? 4 : 2);
    a.s += (int64_t)t0 * a.k / 32;
    a.bf = (float *)a.bf + (int64_t)t0 * a.k / 32;
    kern_run(cpu, linear, {.n_live = &rows, .cap = rows, .n_w = 1, .act = a, .w = {*w},
                           .y = {y + (int64_t)t0 * w->n}, .pitch = {w->n}, .y_dt = MC_F32});
}

/* Bits of a row: alone, in batches of any size, on any number of threads. */
static void ops_linear_rows_do_not_depend_on_the_batch(void **state)
{
    static const int32_t batch[] = {1, 2, 5, 17, 33, 64, 130};
    enum { ROWS = 130 };
    uint64_t seed = 23;
    int32_t f, b, t, threads;

    (void)state;
    for (f = 0; f < OPS_N_FMT; f++) {
        int32_t k = ops_fmts[f].unit == 1 ? 650 : 1280, n = 50;
        struct mc_disk d = ops_disk(&ops_fmts[f], n, k, &seed);
        struct kern cpu, ref = kern_ref(1, -1);
        struct mc_act a = ops_rows(&ref, f < 4 ? MC_A_F32 : MC_A_I16, ROWS, k, &seed);
        float *first = malloc(ROWS * 50 * 4), *y = malloc(ROWS * 50 * 4);

        for (size_t body = 0; body < 3; body++)
            for (threads = 1; threads <= 3; threads++) {
                struct mc_w w;

                if (!ops_open(ops_bodies[body], threads, &cpu))
                    break;
                w = ops_pack(&cpu, &d);
                if (threads == 1)
                    for (t = 0; t < ROWS; t++)
                        run_linear(&cpu, &w, a, t, 1, first);
                for (b = 0; b < 7; b++) {
                    memset(y, 0, ROWS * 50 * 4);
                    for (t = 0; t < ROWS; t += batch[b])
                        run_linear(&cpu, &w, a, t,
                                   ROWS - t < batch[b] ? ROWS - t : batch[b], y);
                    if (memcmp(y, first, ROWS * 50 * 4) != 0)
                        fail_msg("%s %s: batches of %d give other bits", cpu.b->what,
                                 ops_fmts[f].name, batch[b]);
                }
                ops_w_free(&w);
                kern_close(&cpu);
            }
        free(first), free(y);
        ops_act_free(&a);
        ops_disk_free(&d);
        kern_close(&ref);
    }
}

/* Four matrices of one input are the same as each alone. */
static void ops_linear_fans_out(void **state)
{
    static const int32_t n_of[] = {40, 1, 33, 16};
    struct kern cpu;
    uint64_t seed = 29;
    int32_t rows = 3, i, t;

    (void)state;
    ops_each_body (cpu, 2) {
        struct mc_disk d[4];
        struct mc_linear_p p = {.n_live = &rows, .cap = rows, .n_w = 4, .y_dt = MC_F32};
        float fan[4][3 * 40], alone[3 * 40];

        p.act = ops_rows(&cpu, MC_A_I16, rows, 256, &seed);
        for (i = 0; i < 4; i++) { /* int4, nvfp4, q4_0, q4_1 */
            d[i] = ops_disk(&ops_fmts[4 + i], n_of[i], 256, &seed);
            p.w[i] = ops_pack(&cpu, &d[i]);
            p.y[i] = fan[i];
            p.pitch[i] = n_of[i];
        }
        kern_run(&cpu, linear, p);
        for (i = 0; i < 4; i++) {
            kern_run(&cpu, linear, {.n_live = &rows, .cap = rows, .n_w = 1, .act = p.act,
                                    .w = {p.w[i]}, .y = {alone}, .pitch = {n_of[i]},
                                    .y_dt = MC_F32});
            for (t = 0; t < rows; t++)
                assert_memory_equal(fan[i] + t * n_of[i], alone + t * n_of[i],
                                    (size_t)n_of[i] * 4);
            ops_w_free(&p.w[i]);
            ops_disk_free(&d[i]);
        }
        ops_act_free(&p.act);
    }
}

/* What can't be run is refused by name. */
static void ops_refusals_name_the_reason(void **state)
{
    struct kern cpu;
    struct mc_backend_opts o = {.cpu = "sse9"};
    const char *why = NULL;

    (void)state;
    assert_null(mc_cpu_open(&o, &why));
    assert_non_null(strstr(why, "portable, avx2, avx512"));
    ops_each_body (cpu, 1) {
        struct mc_disk d = {.fmt = MC_D_Q4_K, .n = 16, .k = 512};
        struct mc_pack_p p = {.disk = d, .w = {.layout = MC_W_I4, .n = 16, .k = 128}};
        int32_t one = 1;

        assert_non_null(strstr(kern_refuses(&cpu, pack, p), "inside a quantised block"));
        p.w.k = 256;
        assert_null(kern_refuses(&cpu, pack, p));
        p.k0 = 512;
        assert_non_null(strstr(kern_refuses(&cpu, pack, p), "outside"));
        p.k0 = 0;
        p.w.layout = MC_W_I8;
        assert_non_null(strstr(kern_refuses(&cpu, pack, p), "run layout"));
        assert_non_null(kern_refuses(&cpu, linear,
                                     {.n_live = &one, .n_w = 1, .y_dt = MC_F32,
                                      .act = {.k = 32, .layout = MC_A_F32},
                                      .w = {{.layout = MC_W_I4, .n = 1, .k = 32}}}));
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(ops_linear_agrees_with_the_oracle),
    cmocka_unit_test(ops_pack_takes_slices),
    cmocka_unit_test(ops_int4_takes_zeros_and_every_scale),
    cmocka_unit_test(ops_pack_refuses_nan_weights),
    cmocka_unit_test(ops_embed_decodes_rows),
    cmocka_unit_test(ops_glu_is_silu_of_gate_times_up),
    cmocka_unit_test(ops_linear_rows_do_not_depend_on_the_batch),
    cmocka_unit_test(ops_linear_fans_out),
    cmocka_unit_test(ops_refusals_name_the_reason),
};

MC_TEST_MAIN(tests)
