/* test_ref.c - the reference bodies against values worked out by hand: rows, activations,
 * matrices. Attention is in test_ref_attn.c, sampling in test_sample.c. */
#include "tests/c/test.h"

#include "kernels/host/cast.h"
#include "tests/c/kern.h"

static struct mc_act act_new(uint16_t layout, int32_t t, int32_t k)
{
    struct mc_act a = {.k = k, .layout = layout};

    a.x = calloc((size_t)t * (size_t)k, 4);
    a.s = calloc((size_t)t * (size_t)(k / 32 + 1), sizeof(float));
    a.bf = calloc((size_t)t * (size_t)(k / 32 + 1), sizeof(float));
    return a;
}

static void act_free(struct mc_act *a)
{
    free(a->x);
    free(a->s);
    free(a->bf);
}

static struct mc_w weights(float *w, int32_t n, int32_t k)
{
    return (struct mc_w){.layout = MC_W_F32, .dt = MC_F32, .n = n, .k = k, .q = w};
}

/* ---- rows -------------------------------------------------------------------------- */

static void ref_embed_takes_rows_of_its_own_ids(void **state)
{
    struct kern k = kern_ref(2, -1);
    float w[] = {1, 2, 3, 4, 5, 6}, x[8];
    struct mc_slot slots[2] = {{0}, {.tok = 11}};
    struct kern_rows r = {0};

    (void)state;
    kern_seq(&r, 1, 9, 1, true);
    kern_seq(&r, 0, 0, 3, false);
    r.tok[1] = 12;
    r.tok[2] = 9; /* another rank's: ours are 10, 11, 12 */
    r.tok[3] = 13;
    memset(x, 0xFF, sizeof x);
    kern_run(&k, embed, {kern_view(&r), weights(w, 3, 2), slots, 10, x});
    assert_memory_equal(x, ((float[8]){3, 4, 5, 6, 0, 0, 0, 0}), sizeof x);
    kern_close(&k);
}

static void ref_join_adds_and_norms(void **state)
{
    struct kern k = kern_ref(1, -1);
    struct mc_act act = act_new(MC_A_F32, 2, 2);
    float x[] = {3, 4, 1, 0}, res[] = {NAN, NAN, NAN, NAN}, w[] = {1, 2}, norm[4];
    struct kern_rows r = {0};
    struct mc_join_p p = {.x = x, .res = res, .w = w, .h = 2, .first = true, .act = act};

    (void)state;
    kern_seq(&r, 0, 0, 2, false);
    p.rows = kern_view(&r);
    p.norm_out = norm;
    kern_run(&k, join, p); /* the first overwrites */
    assert_memory_equal(res, x, sizeof x);
    /* mean of squares 12.5, then 0.5 */
    assert_float_equal(norm[0], 3 / sqrtf(12.5f), 1e-6);
    assert_float_equal(norm[1], 8 / sqrtf(12.5f), 1e-6);
    assert_float_equal(norm[2], 1 / sqrtf(0.5f), 1e-6);
    assert_memory_equal(act.x, norm, sizeof norm);

    p.first = false;
    p.eps = 37.5f; /* of 12.5 * 4 + 37.5 = 87.5 */
    p.act.x = NULL;
    kern_run(&k, join, p);
    assert_memory_equal(res, ((float[4]){6, 8, 2, 0}), sizeof res);
    assert_float_equal(norm[0], 6 / sqrtf(87.5f), 1e-6);

    p.w = NULL; /* the residual only */
    norm[0] = -1;
    kern_run(&k, join, p);
    assert_memory_equal(res, ((float[4]){9, 12, 3, 0}), sizeof res);
    assert_true(norm[0] == -1);

    act_free(&act);
    kern_close(&k);
}

static void ref_gather_rows_takes_sampled_rows(void **state)
{
    struct kern k = kern_ref(1, -1);
    float norm[] = {1, 2, 3, 4, 5, 6, 7, 8}, out[4];
    struct kern_rows r = {0};

    (void)state;
    kern_seq(&r, 0, 5, 1, true);
    kern_seq(&r, 1, 0, 3, false);
    kern_run(&k, gather_rows, {kern_view(&r), norm, 2, out});
    assert_memory_equal(out, ((float[4]){1, 2, 7, 8}), sizeof out);
    kern_close(&k);
}

/* ---- activations ------------------------------------------------------------------- */

static void ref_quant_int8_rounds_to_even(void **state)
{
    struct kern k = kern_ref(1, MC_A_I8);
    struct mc_act act = act_new(MC_A_I8, 1, 64);
    int32_t live = 1, i;
    float x[64] = {127, 0.5f, 1.5f, -2.5f, -127, 126.4f};
    const int8_t *q = act.x;

    (void)state;
    x[32] = -254; /* second block: scale 2 */
    x[33] = 3;    /* 1.5 */
    x[34] = 5;    /* 2.5 */
    kern_run(&k, quant, {&live, 1, x, act});
    assert_memory_equal(q, ((int8_t[8]){127, 0, 2, -2, -127, 126, 0, 0}), 8);
    assert_memory_equal(q + 32, ((int8_t[4]){-127, 2, 2, 0}), 4);
    assert_true(act.s[0] == 1 && act.s[1] == 2);
    assert_true(((float *)act.bf)[0] == 126);
    assert_true(((float *)act.bf)[1] == -246);

    for (i = 0; i < 64; i++)
        x[i] = 0;
    kern_run(&k, quant, {&live, 1, x, act});
    assert_true(act.s[0] == 0 && q[0] == 0);
    x[5] = NAN;
    x[40] = -INFINITY;
    kern_run(&k, quant, {&live, 1, x, act});
    assert_false(isfinite(act.s[0]) || isfinite(act.s[1]));

    x[0] = 0;
    assert_non_null(kern_refuses(&k, quant, {&live, 1, x, {.k = 33, .layout = MC_A_I8}}));
    act_free(&act);
    kern_close(&k);
}

static void ref_quant_other_layouts(void **state)
{
    struct kern k = kern_ref(1, -1);
    struct mc_act a16 = act_new(MC_A_I16, 1, 32), b16 = act_new(MC_A_BF16, 1, 4);
    struct mc_act e = act_new(MC_A_E4M3, 2, 130);
    int32_t live = 1;
    float x[260] = {32767, 0.5f, -1.5f, 4};

    (void)state;
    kern_run(&k, quant, {&live, 1, x, a16});
    assert_memory_equal(a16.x, ((int16_t[4]){32767, 0, -2, 4}), 8);
    assert_true(a16.s[0] == 1 && ((float *)a16.bf)[0] == 32769);
    x[0] = mc_f32_of_bits(0x3F808000);
    kern_run(&k, quant, {&live, 1, x, b16});
    assert_memory_equal(b16.x, ((uint16_t[4]){0x3F80, 0x3F00, 0xBFC0, 0x4080}), 8);

    live = 2;
    memset(x, 0, sizeof x);
    x[0] = 448 * 2; /* row 0: scales 2 and 1, row 1: 0 and 0.5 */
    x[1] = 300 * 2;
    x[129] = -448;
    x[130 + 128] = 224;
    x[130 + 129] = 1;
    kern_run(&k, quant, {&live, 2, x, e});
    assert_memory_equal(e.s, ((float[4]){2, 1, 0, 0.5f}), 16);
    assert_memory_equal(e.x, ((uint8_t[3]){0x7E, 0x79, 0}), 3);
    assert_memory_equal((uint8_t *)e.x + 128, ((uint8_t[3]){0, 0xFE, 0}), 3);
    assert_memory_equal((uint8_t *)e.x + 130 + 128, ((uint8_t[2]){0x7E, 0x40}), 2);
    act_free(&a16);
    act_free(&b16);
    act_free(&e);
    kern_close(&k);
}

/* ---- matrices ---------------------------------------------------------------------- */

static void ref_linear_multiplies_adds_bias_and_fans_out(void **state)
{
    struct kern k = kern_ref(2, -1);
    struct mc_act act = act_new(MC_A_F32, 2, 3);
    float w0[] = {1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 2, 0, -1}, w1[] = {1, 2, 3};
    float bias[] = {10, 20, 30, 40, 50}, y0[12], y1[2] = {0};
    int32_t live = 2;
    struct mc_linear_p p = {.n_live = &live, .cap = 2, .n_w = 2, .act = act,
                            .w = {weights(w0, 5, 3), weights(w1, 1, 3)},
                            .bias = {bias, NULL}, .y = {y0, y1}, .pitch = {6, 1},
                            .y_dt = MC_F32};

    (void)state;
    memcpy(act.x, ((float[6]){1, 2, 3, -1, 0.5f, 4}), 24);
    memset(y0, 0, sizeof y0);
    kern_run(&k, linear, p);
    assert_memory_equal(
        y0, ((float[12]){11, 22, 33, 46, 49, 0, 9, 20.5f, 34, 43.5f, 44, 0}), sizeof y0);
    assert_memory_equal(y1, ((float[2]){14, 12}), sizeof y1);

    live = 1; /* rows that are not live stay */
    memset(y1, 0, sizeof y1);
    kern_run(&k, linear, p);
    assert_memory_equal(y1, ((float[2]){14, 0}), sizeof y1);

    p.y_dt = MC_BF16; /* 14 + 1/32: a tie, to the even 14 */
    ((float *)act.x)[2] = 3 + 0.03125f / 3;
    p.n_w = 1;
    p.w[0] = p.w[1];
    p.bias[0] = NULL;
    p.y[0] = y1;
    p.pitch[0] = 1;
    kern_run(&k, linear, p);
    assert_int_equal(((uint16_t *)y1)[0], 0x4160);
    p.w[0].k = 4;
    assert_non_null(kern_refuses(&k, linear, p));
    p.w[0].k = 3;
    p.w[0].layout = MC_W_I8;
    assert_non_null(kern_refuses(&k, linear, p));
    act_free(&act);
    kern_close(&k);
}

/* With ref_act a linear sees what the layout keeps, times f32 weights. */
static void ref_linear_multiplies_decoded_activations(void **state)
{
    static const uint16_t layouts[] = {MC_A_BF16, MC_A_I8, MC_A_I16, MC_A_E4M3};
    uint64_t seed = 88172645463325252;
    float x[2 * 160], w[160], y[2];
    int32_t live = 2;
    size_t i, j;

    (void)state;
    for (i = 0; i < 160; i++) {
        x[i] = kern_randn(&seed);
        x[160 + i] = 100 * kern_randn(&seed);
        w[i] = kern_randn(&seed);
    }
    for (j = 0; j < sizeof layouts / sizeof layouts[0]; j++) {
        struct kern k = kern_ref(1, layouts[j]);
        struct mc_act act = act_new(layouts[j], 2, 160);
        struct mc_linear_p p = {.n_live = &live, .cap = 2, .n_w = 1, .act = act,
                                .w = {weights(w, 1, 160)}, .y = {y}, .pitch = {1}};

        assert_int_equal(k.b->act_of(k.b, k.b->run_of(k.b, MC_D_BF16)), layouts[j]);
        kern_run(&k, quant, {&live, 2, x, act});
        kern_run(&k, linear, p);
        for (i = 0; i < 2; i++) {
            double exact = 0, size = 0, d;
            /* half a step of the layout, relative to a block's largest */
            static const double step[] = {[MC_A_BF16] = 0x1p-8, [MC_A_I8] = 1 / 254.,
                                          [MC_A_I16] = 1 / 65534., [MC_A_E4M3] = 0x1p-4};
            int32_t c;

            for (c = 0; c < 160; c++) {
                exact += (double)x[i * 160 + c] * w[c];
                size += fabs(w[c]);
            }
            d = fabs(y[i] - exact);
            assert_true(d > 0); /* it did round */
            assert_true(d < step[layouts[j]] * size * (i ? 400 : 4));
        }
        act_free(&act);
        kern_close(&k);
    }
}

static void ref_glu_is_silu_of_gate_times_up(void **state)
{
    struct kern k = kern_ref(1, -1);
    struct mc_act act = act_new(MC_A_F32, 1, 2), out = act_new(MC_A_F32, 1, 3);
    struct mc_act i8 = act_new(MC_A_I8, 1, 3);
    float gate[] = {1, 0, 0, 1, 0, 0}, up[] = {1, 1, 0, 2, 5, 5};
    int32_t live = 1;
    struct mc_glu_p p = {.n_live = &live, .cap = 1, .act = act, .out = out,
                         .gate = weights(gate, 3, 2), .up = weights(up, 3, 2)};

    (void)state;
    memcpy(act.x, ((float[2]){2, -3}), 8);
    kern_run(&k, glu, p);
    assert_float_equal(((float *)out.x)[0], 2 / (1 + exp(-2.)) * -1, 1e-6);
    assert_float_equal(((float *)out.x)[1], -3 / (1 + exp(3.)) * -6, 1e-6);
    assert_true(((float *)out.x)[2] == 0);
    p.out = i8; /* 3 columns are no block */
    assert_non_null(kern_refuses(&k, glu, p));
    act_free(&act);
    act_free(&out);
    act_free(&i8);
    kern_close(&k);
}

static void ref_mtp_in_norms_token_and_state(void **state)
{
    struct kern k = kern_ref(1, -1);
    struct mc_act act = act_new(MC_A_F32, 2, 4);
    float emb[] = {3, 4, 9, 9}, hidden[] = {1, -1, 9, 9}, e[] = {1, 2}, h[] = {3, -4};
    int32_t live = 1;
    struct mc_mtp_in_p p = {.n_live = &live, .cap = 2, .h = 2, .emb = emb, .hidden = hidden,
                            .enorm = e, .hnorm = h, .eps = 0.5f, .act = act};
    const float *y = act.x;

    (void)state;
    kern_run(&k, mtp_in, p);
    assert_float_equal(y[0], 3 / sqrt(13), 1e-6);
    assert_float_equal(y[1], 8 / sqrt(13), 1e-6);
    assert_float_equal(y[2], 3 / sqrt(1.5), 1e-6);
    assert_float_equal(y[3], 4 / sqrt(1.5), 1e-6);
    assert_true(y[4] == 0 && y[7] == 0); /* not live */
    p.h = 3;
    assert_non_null(kern_refuses(&k, mtp_in, p));
    act_free(&act);
    kern_close(&k);
}

static void ref_pack_takes_a_slice_as_f32(void **state)
{
    struct kern k = kern_ref(2, -1);
    uint16_t q[4 * 4];
    float w[4];
    struct mc_pack_p p = {.disk = {.fmt = MC_D_BF16, .n = 4, .k = 4, .q = q},
                          .w = weights(w, 2, 2), .row0 = 1, .k0 = 2};
    struct mc_need need;
    const char *why;
    int i;

    (void)state;
    for (i = 0; i < 16; i++)
        q[i] = mc_bf16_of_f32((float)i);
    assert_int_equal(k.b->op[MC_OP_pack]->need(&p, &need, &why), 0);
    assert_int_equal(need.q, 16);
    kern_run(&k, pack, p);
    assert_memory_equal(w, ((float[4]){6, 7, 10, 11}), sizeof w);
    p.row0 = 3;
    assert_non_null(kern_refuses(&k, pack, p));
    kern_close(&k);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(ref_embed_takes_rows_of_its_own_ids),
    cmocka_unit_test(ref_join_adds_and_norms),
    cmocka_unit_test(ref_gather_rows_takes_sampled_rows),
    cmocka_unit_test(ref_quant_int8_rounds_to_even),
    cmocka_unit_test(ref_quant_other_layouts),
    cmocka_unit_test(ref_linear_multiplies_adds_bias_and_fans_out),
    cmocka_unit_test(ref_linear_multiplies_decoded_activations),
    cmocka_unit_test(ref_glu_is_silu_of_gate_times_up),
    cmocka_unit_test(ref_mtp_in_norms_token_and_state),
    cmocka_unit_test(ref_pack_takes_a_slice_as_f32),
};

MC_TEST_MAIN(tests)
