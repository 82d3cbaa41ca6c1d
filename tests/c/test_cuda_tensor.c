/* test_cuda_tensor.c - what scripts have a card do, emulated, against the oracle:
 * `tensor` (tolerances: tensor_help.h; products have its bits), `tap`, and `verify`. */
#include "tests/c/test.h"

#include "tests/c/cuda_help.h"
#include "tests/c/tensor_help.h"

/* ---- tensor ------------------------------------------------------------------------ */

static void check(struct kern *cu, struct kern *ref, struct mc_tensor_p *p)
{
    struct mc_tensor_p q = *p;

    kern_run(ref, tensor, *p);
    q.out = like(&p->out);
    if (p->ids.p)
        q.ids = like(&p->ids);
    kern_run(cu, tensor, q);
    compare(p, &q, "cuda");
    if (p->what == MC_T_MATMUL)
        assert_memory_equal(p->out.p, q.out.p,
                            (size_t)space(&q.out) * bytes_of(q.out.dt));
    free(q.out.p), free(q.ids.p);
    done(p);
}

static void cuda_tensor_elements_have_the_oracles_bits(void **state)
{
    static const int32_t shapes[][4] = {{1, 1, 1, 1}, {2, 3, 4, 7}, {1, 2, 2, 300}};
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);
    uint64_t seed = 311;

    (void)state;
    for (int32_t i = 0; i < 3 * 5 * 4; i++) {
        const int32_t *n = shapes[i % 3];
        enum lie lie = (enum lie)(i / 3 % N_LIE);
        struct mc_tensor_p p = {.what = MC_T_COPY + i % 5, .scale = 1.7f};

        p.a = view(types[i % 3], n, lie);
        p.out = view(types[i / 5 % 3], n, lie == GAPS ? TURNED : DENSE);
        fill(&p.a, &seed);
        if (p.what != MC_T_COPY && i % 2) {
            p.b = view(types[i % 2], n, (enum lie)((lie + 1) % N_LIE));
            fill(&p.b, &seed);
        }
        check(&cu, &ref, &p);
    }
    kern_close(&cu);
    kern_close(&ref);
}

/* On the stream that gives way to others, as scripts' work is. */
static void cuda_tensor_ids_are_moved_and_cast(void **state)
{
    static const int32_t n[4] = {1, 1, 1, 4},
                         ids[4] = {0x1000001, -5, INT32_MAX, INT32_MIN};
    static const float odd[4] = {2.5f, NAN, 1e20f, -INFINITY};
    static const int32_t cast[4] = {2, 0, INT32_MAX, INT32_MIN};
    struct kern cu = cuda_open(), low = cu;
    struct mc_tensor_p p = {.what = MC_T_COPY};

    (void)state;
    assert_int_equal(cu.b->stream_low(cu.b, &low.s), 0);
    for (int i = 0; i < 2; i++) {
        p.a = view(i ? MC_F32 : MC_I32, n, DENSE);
        p.out = view(MC_I32, n, DENSE);
        memcpy(p.a.p, i ? (const void *)odd : ids, sizeof ids);
        kern_run(&low, tensor, p);
        assert_memory_equal(p.out.p, i ? cast : ids, sizeof ids);
        done(&p);
    }
    cu.b->stream_free(low.s);
    kern_close(&cu);
}

static void cuda_tensor_products_have_the_oracles_bits(void **state)
{
    static const int32_t shapes[][5] = {{1, 1, 1, 1, 1}, {1, 1, 17, 33, 30},
                                        {2, 3, 5, 7, 40}};
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);
    uint64_t seed = 313;

    (void)state;
    for (int i = 0; i < 9; i++) {
        const int32_t *s = shapes[i % 3];
        struct mc_tensor_p p = {.what = MC_T_MATMUL};

        p.a = view(types[i % 3], (int32_t[]){s[0], s[1], s[2], s[4]}, GAPS);
        p.b = view(types[(i + 1) % 3], (int32_t[]){s[0], s[1], s[4], s[3]},
                   (enum lie)(i / 3));
        p.out = view(types[i / 3], (int32_t[]){s[0], s[1], s[2], s[3]}, DENSE);
        fill(&p.a, &seed);
        fill(&p.b, &seed);
        check(&cu, &ref, &p);
    }
    kern_close(&cu);
    kern_close(&ref);
}

static void cuda_tensor_rows_fold_alike(void **state)
{
    static const int32_t lengths[] = {1, 5, 64, 300};
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);
    uint64_t seed = 317;

    (void)state;
    for (int i = 0; i < 4 * (MC_N_T - MC_T_SUM); i++) {
        int32_t n = lengths[i % 4], what = MC_T_SUM + i / 4;
        struct mc_tensor_p p = {.what = what};

        p.a = view(types[i % 3], (int32_t[]){1, 2, 3, n}, (enum lie)(i % N_LIE));
        fill(&p.a, &seed);
        if (what == MC_T_TOPK || what == MC_T_MAX) { /* ties, both zeros, a NaN */
            mc_strided_put(&p.a, 0, mc_strided_get(&p.a, n > 2 ? 2 * p.a.step[3] : 0));
            if (n == 5)
                mc_strided_put(&p.a, 0, -0.0f), mc_strided_put(&p.a, p.a.step[3], 0.0f);
            if (n > 5)
                mc_strided_put(&p.a, 4 * p.a.step[3], NAN);
        }
        p.out = view(types[i % 2],
                     (int32_t[]){1, 2, 3,
                                 what == MC_T_SOFTMAX ? n
                                 : what == MC_T_TOPK  ? n < 9 ? n : 9
                                                      : 1},
                     DENSE);
        if (what == MC_T_TOPK)
            p.ids = view(MC_I32, p.out.n, DENSE);
        check(&cu, &ref, &p);
    }
    kern_close(&cu);
    kern_close(&ref);
}

/* ---- tap --------------------------------------------------------------------------- */

enum { H = 96, ROWS = 9, V = 33 };

struct list {
    struct mc_taps head;
    struct mc_tap v[6];
};

/* Rows [1, 6) and [4, 7) of layer 2 are steered, in the list's order; others are not. */
static void cuda_tap_steers_rows_in_order(void **state)
{
    struct kern cu = cuda_open();
    struct list l = {.head.n = 4};
    float *xf, *add[2];
    uint64_t seed = 331;
    uint16_t *x = randoms(ROWS * H, &xf, &seed);
    uint16_t *a[2] = {randoms(H, &add[0], &seed), randoms(H, &add[1], &seed)};

    (void)state;
    l.v[0] = (struct mc_tap){.layer = 2, .row = 1, .n = 5, .scale = 0.3f, .add = a[0]};
    l.v[1] = (struct mc_tap){.layer = 3, .row = 0, .n = 9, .scale = 9, .add = a[0]};
    l.v[2] = (struct mc_tap){.layer = 2, .row = 4, .n = 3, .scale = -40, .add = a[1]};
    l.v[3] = (struct mc_tap){.layer = 2, .n = 9, .out = xf}; /* a copy: not now */
    kern_run(&cu, tap, {.taps = &l.head, .layer = 2, .cols = H, .x = x});
    for (int32_t i = 0; i < ROWS * H; i++) {
        float want = xf[i];

        if (i / H >= 1 && i / H < 6)
            want = mc_f32_of_bf16(mc_bf16_of_f32(want + 0.3f * add[0][i % H]));
        if (i / H >= 4 && i / H < 7)
            want = mc_f32_of_bf16(mc_bf16_of_f32(want + -40 * add[1][i % H]));
        if (as_f32(x, i) != want)
            fail_msg("row %d col %d is %.9g, want %.9g", i / H, i % H, as_f32(x, i),
                     want);
    }
    assert_non_null(kern_refuses(&cu, tap, {.layer = 2, .cols = 33}));
    free(x), free(xf), free(a[0]), free(a[1]), free(add[0]), free(add[1]);
    kern_close(&cu);
}

/* Of two ranks this one has the odd rows, in the order of its own. */
static void cuda_tap_copies_rows_of_a_rank(void **state)
{
    struct kern cu = cuda_open();
    struct list l = {.head.n = 2};
    float x[ROWS * V], out[4 * V], want[4 * V];
    uint16_t hidden[ROWS * H], row[2 * H] = {0};

    (void)state;
    for (int32_t i = 0; i < ROWS * V; i++)
        x[i] = (float)i;
    for (int32_t i = 0; i < ROWS * H; i++)
        hidden[i] = (uint16_t)i;
    for (int32_t i = 0; i < 4 * V; i++)
        out[i] = want[i] = -1;
    for (int32_t i = 0; i < 2; i++) /* rows 3 and 5 are the rank's rows 1 and 2 */
        memcpy(want + (1 + 2 * i) * V, x + (1 + i) * V, V * 4);
    l.v[0] = (struct mc_tap){.layer = MC_TAP_LOGITS, .row = 2, .n = 4, .out = out};
    l.v[1] = (struct mc_tap){.layer = MC_TAP_NORM, .row = 6, .n = 2, .out = row};
    kern_run(&cu, tap, {.taps = &l.head, .layer = MC_TAP_LOGITS, .cols = V, .copy = true,
                        .x = x, .peer = {.rank = 1, .n = 2}});
    assert_memory_equal(out, want, sizeof out);
    kern_run(&cu, tap, {.taps = &l.head, .layer = MC_TAP_NORM, .cols = H, .copy = true,
                        .x = hidden});
    assert_memory_equal(row, hidden + 6 * H, sizeof row);
    kern_close(&cu);
}

/* ---- verify ------------------------------------------------------------------------ */

/* Drafts that stand and fall at random, prompts that end in one row or in none. */
static void cuda_verify_accepts_what_the_host_does(void **state)
{
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);
    uint64_t seed = 337;

    (void)state;
    for (int round = 0; round < 8; round++) {
        struct kern_rows r = {0};
        struct mc_out out[KERN_T] = {0};
        int32_t got[2][KERN_S], want[2][KERN_S];

        memset(got, 0x55, sizeof got);
        memset(want, 0x55, sizeof want);
        for (int32_t s = 0; s < 12; s++) {
            int32_t t = r.live[MC_LIVE_ROWS], n = 1 + (int32_t)(kern_rand(&seed) % 5);

            kern_seq(&r, s, 10 * s, n, false);
            r.live[MC_LIVE_OUT]--;
            for (int32_t i = s % 4 == 3 ? n - s % 2 : 0; i < n; i++)
                r.out_row[r.live[MC_LIVE_OUT]++] = t + i;
        }
        for (int32_t i = 0; i < r.live[MC_LIVE_OUT]; i++)
            out[i].tok = (int32_t)(kern_rand(&seed) % 3) - (kern_rand(&seed) % 9 == 0);
        for (int32_t t = 0; t < r.live[MC_LIVE_ROWS]; t++)
            r.tok[t] = (int32_t)(kern_rand(&seed) % 3);
        for (int32_t i = 1; i < r.live[MC_LIVE_OUT]; i++) /* three of four are right */
            if (kern_rand(&seed) % 4)
                r.tok[r.out_row[i]] = out[i - 1].tok;
        kern_run(&ref, verify, {kern_view(&r), out, want[0], want[1]});
        kern_run(&cu, verify, {kern_view(&r), out, got[0], got[1]});
        assert_memory_equal(got, want, sizeof got);
    }
    kern_close(&cu);
    kern_close(&ref);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(cuda_tensor_elements_have_the_oracles_bits),
    cmocka_unit_test(cuda_tensor_ids_are_moved_and_cast),
    cmocka_unit_test(cuda_tensor_products_have_the_oracles_bits),
    cmocka_unit_test(cuda_tensor_rows_fold_alike),
    cmocka_unit_test(cuda_tap_steers_rows_in_order),
    cmocka_unit_test(cuda_tap_copies_rows_of_a_rank),
    cmocka_unit_test(cuda_verify_accepts_what_the_host_does),
};

MC_TEST_MAIN(tests)
