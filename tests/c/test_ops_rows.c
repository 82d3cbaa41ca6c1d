/* test_ops_rows.c - quant, join, gqa_prep: every body of the CPU backend against the oracle.
 *
 * What is the same arithmetic element by element must have the same bits: rounding to int16
 * blocks, the residual, rope, casts into a page. A norm sums squares in another order: h
 * positive terms, so that its factor is off by at most h half-ulps. */
#include "tests/c/test.h"

#include "kernels/host/kv.h"
#include "tests/c/ops.h"

static bool same_act(const struct mc_act *a, const struct mc_act *b, int32_t rows)
{
    size_t n = (size_t)rows * (size_t)a->k;

    if (a->layout == MC_A_F32)
        return memcmp(a->x, b->x, n * 4) == 0;
    return memcmp(a->x, b->x, n * 2) == 0 && memcmp(a->s, b->s, n / 8) == 0 &&
           memcmp(a->bf, b->bf, n / 8) == 0;
}

static void ops_quant_rounds_as_the_oracle(void **state)
{
    enum { ROWS = 11, K = 96 };
    struct kern cpu, ref = kern_ref(1, -1);
    float x[ROWS * K];
    uint64_t seed = 31;
    int32_t rows = ROWS, i, t;

    (void)state;
    for (i = 0; i < ROWS * K; i++)
        x[i] = kern_randn(&seed);
    for (i = 0; i < 32; i++) {
        x[i] = 0;
        x[32 + i] *= 1e-31f;           /* below MC_ACT_TINY */
        x[64 + i] *= 1e-29f;           /* and above */
        x[K + i] *= 1e37f;             /* near the largest */
        x[K + 32 + i] = (float)(i - 16) / 16 * 32767; /* ties: amax is 32767 */
    }
    for (i = 0; i < 31; i++)
        x[K + 32 + i] = (float)(i - 15) + 0.5f;
    x[2 * K + 5] = NAN;
    x[2 * K + 40] = INFINITY;
    x[2 * K + 70] = -INFINITY;
    ops_each_body (cpu, 2) {
        struct mc_act want = ops_act(MC_A_I16, ROWS, K), got = ops_act(MC_A_I16, ROWS, K);

        kern_run(&ref, quant, {.n_live = &rows, .cap = ROWS, .x = x, .act = want});
        kern_run(&cpu, quant, {.n_live = &rows, .cap = ROWS, .x = x, .act = got});
        for (i = 6; i < 9; i++) { /* blocks that can't be scaled: not finite is enough */
            assert_true(isnan(got.s[i]) && isnan(((float *)got.bf)[i]));
            got.s[i] = want.s[i];
            ((float *)got.bf)[i] = ((float *)want.bf)[i];
        }
        for (t = 0; t < ROWS * K; t++)
            if (((int16_t *)got.x)[t] != ((int16_t *)want.x)[t])
                fail_msg("%s: x[%d] %.9g is %d, want %d", cpu.b->what, t, x[t],
                         ((int16_t *)got.x)[t], ((int16_t *)want.x)[t]);
        assert_true(same_act(&got, &want, ROWS));
        ops_act_free(&want);
        ops_act_free(&got);
    }
    kern_close(&ref);
}

/* A poisoned block makes the outputs of its row NaN and no other row's. */
static void ops_nan_activations_reach_the_output(void **state)
{
    struct kern cpu;
    uint64_t seed = 37;
    int32_t rows = 20, i, t, f;

    (void)state;
    ops_each_body (cpu, 1)
        for (f = 0; f < OPS_N_FMT; f++) {
            struct mc_disk d = ops_disk(&ops_fmts[f], 18, 256, &seed);
            struct mc_w w = ops_pack(&cpu, &d);
            struct mc_act a = ops_act(cpu.b->act_of(cpu.b, w.layout), rows, 256);
            float *x = malloc(20 * 256 * 4), y[20 * 18];

            for (i = 0; i < 20 * 256; i++)
                x[i] = kern_randn(&seed);
            x[7 * 256 + 99] = NAN;
            kern_run(&cpu, quant, {.n_live = &rows, .cap = rows, .x = x, .act = a});
            kern_run(&cpu, linear, {.n_live = &rows, .cap = rows, .n_w = 1, .act = a, .w = {w},
                                    .y = {y}, .pitch = {18}, .y_dt = MC_F32});
            for (t = 0; t < rows; t++)
                for (i = 0; i < 18; i++)
                    assert_true(isnan(y[t * 18 + i]) == (t == 7));
            free(x);
            ops_act_free(&a);
            ops_w_free(&w);
            ops_disk_free(&d);
        }
}

static void check_join(struct kern *cpu, struct kern *ref, int32_t h, int32_t rows,
                       bool first, uint16_t layout, uint64_t *seed)
{
    size_t n = (size_t)rows * (size_t)h;
    float *x = malloc(n * 4), *res[2] = {malloc(n * 4), malloc(n * 4)};
    float *norm[2] = {malloc(n * 4), malloc(n * 4)}, *w = malloc((size_t)h * 4), *step;
    struct mc_act act[2] = {ops_act(layout, rows, h), ops_act(layout, rows, h)};
    struct kern_rows r = {0};
    struct mc_join_p p = {.x = x, .w = w, .eps = 1e-5f, .h = h, .first = first};
    size_t i;

    kern_seq(&r, 0, 0, rows, false);
    p.rows = kern_view(&r);
    for (i = 0; i < n; i++) {
        x[i] = kern_randn(seed);
        res[0][i] = res[1][i] = kern_randn(seed);
    }
    for (i = 0; i < (size_t)h; i++)
        w[i] = kern_randn(seed);
    for (i = 0; i < 2; i++) {
        p.res = res[i];
        p.act = act[i];
        p.norm_out = norm[i];
        kern_run(i ? cpu : ref, join, p);
    }
    assert_memory_equal(res[0], res[1], n * 4);
    for (i = 0; i < n; i++) {
        double tol = (h / 2.0 + 8) * OPS_U * fabsf(norm[0][i]);

        if (!(fabs((double)norm[0][i] - norm[1][i]) <= tol))
            fail_msg("%s join h %d: %.9g, want %.9g", cpu->b->what, h, norm[1][i],
                     norm[0][i]);
    }
    /* act is the body's own norm, rounded as quant does */
    step = norm[1];
    kern_run(ref, quant, {.n_live = &rows, .cap = rows, .x = step, .act = act[0]});
    assert_true(same_act(&act[0], &act[1], rows));
    p.w = NULL;
    p.act.x = p.norm_out = NULL;
    kern_run(cpu, join, p);
    for (i = 0; i < n; i++)
        assert_true(res[1][i] == (first ? x[i] : res[0][i] + x[i]));
    free(x), free(w);
    for (i = 0; i < 2; i++) {
        free(res[i]), free(norm[i]);
        ops_act_free(&act[i]);
    }
}

static void ops_join_adds_and_norms(void **state)
{
    static const int32_t h_of[] = {16, 48, 64, 576, 4096};
    struct kern cpu, ref = kern_ref(1, -1);
    uint64_t seed = 41;
    int32_t i, j;

    (void)state;
    ops_each_body (cpu, 2)
        for (i = 0; i < 5; i++)
            for (j = 0; j < 4; j++) {
                uint16_t layout = h_of[i] % 32 || j % 2 ? MC_A_F32 : MC_A_I16;

                check_join(&cpu, &ref, h_of[i], (int32_t[]){1, 3, 4, 33}[j], j / 2,
                           layout, &seed);
            }
    kern_close(&ref);
}

/* ---- gqa_prep ---------------------------------------------------------------------- */

enum { SLOTS = 2, PITCH = 12, PAGES = 24 };

static void check_prep(struct kern *cpu, struct kern *ref, uint16_t layout, int32_t d,
                       uint8_t pair, bool norms, bool fixed, uint64_t *seed)
{
    enum { ROWS = 9, H = 4, HK = 2 };
    float *x[2][3], inv[64], qn[128], kn[128], kv_fixed[2] = {0.02f, 0.01f};
    int32_t table[SLOTS * PITCH], i, j, rows = 0;
    struct mc_slot slots[SLOTS] = {{0}};
    struct kern_rows r = {0};
    struct mc_kv kv = {.table = table, .pitch = PITCH, .n_page = PAGES, .n_slot = SLOTS,
                       .hk = HK, .d = d, .n_layer = 2, .n_shard = 1, .layout = layout};
    struct mc_gqa_prep_p p = {.layer = 1, .h = H, .slots = slots, .eps = 1e-6f,
                              .q_norm = norms ? qn : NULL, .k_norm = norms ? kn : NULL};
    size_t bytes;
    uint8_t *pool[2];

    kv.layer_stride = mc_kv_layer_bytes(layout, HK, d);
    kv.page_stride = 2 * kv.layer_stride;
    bytes = (size_t)kv.page_stride * PAGES;
    if (fixed)
        kv.k_scale = kv.v_scale = kv_fixed;
    for (i = 0; i < SLOTS * PITCH; i++)
        table[i] = SLOTS * PITCH - 1 - i;
    for (i = 0; i < d / 2; i++)
        inv[i] = powf(10000, -2.0f * (float)i / (float)d);
    for (i = 0; i < d; i++) {
        qn[i] = kern_randn(seed);
        kn[i] = kern_randn(seed);
    }
    kern_seq(&r, 0, 63, 1, true);
    kern_seq(&r, 1, 60, 8, false); /* over a page's end */
    rows = r.live[MC_LIVE_ROWS];
    p.rows = kern_view(&r);
    p.rope = (struct mc_rope){inv, 1.25f, (int16_t)(d - 8), 4, pair};
    for (i = 0; i < 2; i++) {
        static const int32_t heads[3] = {H, HK, HK};

        pool[i] = memset(malloc(bytes), 0x5a, bytes);
        for (j = 0; j < 3; j++) {
            size_t n = (size_t)(rows * heads[j] * d), e;

            x[i][j] = malloc(n * 4);
            for (e = 0; e < n; e++)
                x[i][j][e] = i ? x[0][j][e] : kern_randn(seed);
        }
    }
    for (i = 0; i < 2; i++) {
        /* fresh inputs: the oracle rotates in place */
        p.kv = kv;
        p.kv.base = pool[i];
        p.q = x[i][0], p.k = x[i][1], p.v = x[i][2];
        kern_run(i ? cpu : ref, gqa_prep, p);
    }
    for (j = 0; j < rows * H * d; j++) {
        double tol = norms ? (d / 2.0 + 12) * OPS_U * 12 : 0; /* |q| * |norm| stay below 12 */

        if (!(fabs((double)x[0][0][j] - x[1][0][j]) <= tol))
            fail_msg("%s prep: q[%d] is %.9g, want %.9g", cpu->b->what, j, x[1][0][j],
                     x[0][0][j]);
    }
    for (j = 0; j < rows * HK * d; j++)
        assert_true(fabs((double)x[0][1][j] - x[1][1][j]) <=
                    (norms ? (d / 2.0 + 12) * OPS_U * 12 : 0));
    if (!norms) /* with norms a cast may fall to the other side */
        assert_memory_equal(pool[0], pool[1], bytes);
    for (i = 0; i < 2; i++) {
        for (j = 0; j < 3; j++)
            free(x[i][j]);
        free(pool[i]);
    }
}

static void ops_prep_writes_the_oracles_pages(void **state)
{
    static const int32_t d_of[] = {16, 48, 64, 128};
    struct kern cpu, ref = kern_ref(1, -1);
    uint64_t seed = 43;
    uint16_t layout;
    int32_t i, how;

    (void)state;
    ops_each_body(cpu, 2) for (layout = 0; layout < MC_N_GQA_KV;
                               layout++) for (i = 0; i < 4; i++) for (how = 0; how < 8;
                                                                      how++)
        check_prep(&cpu, &ref, layout, d_of[i], how % 2, how & 2, how & 4, &seed);
    kern_close(&ref);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(ops_quant_rounds_as_the_oracle),
    cmocka_unit_test(ops_nan_activations_reach_the_output),
    cmocka_unit_test(ops_join_adds_and_norms),
    cmocka_unit_test(ops_prep_writes_the_oracles_pages),
};

MC_TEST_MAIN(tests)
