/* test_ref_mla.c - reference attention over latents against its definition in double:
 * what lies in a page byte by byte, absorbed queries, softmax over all positions or a
 * list. */
#include "tests/c/test.h"

#include "tests/c/latent.h"

static const uint16_t layouts[] = {MC_KV_F32, MC_KV_BF16, MC_KV_FP8_PLAIN, MC_KV_FP8_656};

static struct mc_ws stack(float *q, int32_t n, int32_t k, int32_t count)
{
    return (struct mc_ws){.w = {.layout = MC_W_F32, .n = n, .k = k, .q = q},
                          .q_step = 4 * (int64_t)n * k, .n = count};
}

/* ---- mla_prep ---------------------------------------------------------------------- */

/* With inputs of +-1 and eps 0 the normed latent is +- the norm's weights, exactly. */
static void mla_prep_lays_out_656_bytes(void **state)
{
    static const float w[4][8] = {
        /* scale 1; ties to even, the smallest, half of it, and half a step above */
        {448, 1, 1.0625f, 1.1875f, 0x1p-9f, 0x1p-10f, 0x3p-10f, 416},
        {449, 224, 1, 0.5f, 240, 15.5f, 17, 3},       /* 449/448 goes up to 2 */
        {1e-3f, 0x1p-13f, 0.02f, 0, 0, 0, 0, 0}, /* scale 1e-4 goes up to 2^-13 */
        {10000, 32, 16, 320, 5000, 0x1p-5f, 2, 64},   /* 22.3 goes up to 32 */
    };
    static const uint8_t bytes[4][8] = {
        {0x7e, 0x38, 0x38, 0x3a, 0x01, 0x00, 0x02, 0x7d},
        {0x76, 0x6e, 0x30, 0x28, 0x6f, 0x50, 0x50, 0x3c},
        {0x50, 0x38, 0x72, 0, 0, 0, 0, 0},
        {0x7a, 0x38, 0x30, 0x52, 0x72, 0x00, 0x18, 0x40},
    };
    static const uint8_t scales[4][4] = {
        {0, 0, 0x80, 0x3f}, {0, 0, 0, 0x40}, {0, 0, 0, 0x39}, {0, 0, 0, 0x42}};
    struct kern k = kern_ref(1, -1);
    struct latent_pool *p = latent_new(MC_KV_FP8_656, 512, 64, 0, 0xee);
    float x[576], norm[512], inv[32] = {0};
    uint8_t *at = p->kv.base + p->table[LAT_PITCH + 2] * p->kv.page_stride +
                  p->kv.layer_stride + 5 * 656;
    struct kern_rows rows = {0};
    size_t i, j;

    (void)state;
    assert_int_equal(mc_mla_token_bytes(MC_KV_FP8_656, 512, 64), 656);
    for (i = 0; i < 576; i++)
        x[i] = i % 2 ? -1 : 1;
    for (i = 0; i < 512; i++)
        norm[i] = i % 128 < 8 ? w[i / 128][i % 128] : 0;
    x[512] = 1 + 0x1p-8f;   /* ties of bf16, to even */
    x[513] = 1 + 0x3p-8f;
    kern_seq(&rows, 1, 2 * 64 + 5, 1, true);
    kern_run(&k, mla_prep,
             {.rows = kern_view(&rows),
              .kv = p->kv,
              .slots = p->slots,
              .layer = 1,
              .kv_a = x,
              .kv_norm = norm,
              .rope = {inv, 1, 64, 0, 1}});
    for (i = 0; i < 4; i++) {
        for (j = 0; j < 8; j++)
            if (at[i * 128 + j] != (bytes[i][j] | (j % 2 ? 0x80 : 0)))
                fail_msg("value %zu of scale %zu is %02x, want %02x", j, i,
                         at[i * 128 + j], bytes[i][j]);
        assert_memory_equal(at + 512 + 4 * i, scales[i], 4);
    }
    assert_memory_equal(at + 528, ((uint8_t[]){0x80, 0x3f, 0x82, 0x3f, 0x80, 0x3f}), 6);
    assert_int_equal(at[655], 0xbf);
    assert_int_equal(at[-1], 0xee);
    assert_int_equal(at[656], 0xee);
    latent_free(p);
    kern_close(&k);
}

/* A token as prep should keep it: x [c+r] in double; how far the stored one may be off:
 * half a step of the layout, and what an f32 norm is off. */
static void check_token(const struct latent_pool *p, int32_t slot, int32_t pos,
                        const double *x)
{
    const struct mc_kv *kv = &p->kv;
    double got[576 + 128], size, fixed = kv->k_scale ? kv->k_scale[1] : 1,
                                 top = 448 * fixed;
    int32_t i, c = kv->c;

    latent_read(p, 1, slot, pos, got);
    for (i = 0; i < c + kv->r; i++) {
        double want = x[i], tol = (c + 64) * 0x1p-24 * fabs(x[i]), least = 0x1p-10;

        if (i >= c)
            tol += 4e-6; /* the other one of a pair: values of size 20 */
        if (kv->layout == MC_KV_BF16 || (kv->layout == MC_KV_FP8_656 && i >= c))
            tol += 0x1p-8 * fabs(x[i]) * 1.01;
        else if (kv->layout != MC_KV_F32) {
            size = kv->layout == MC_KV_FP8_PLAIN ? fixed
                   : latent_f32(latent_at(p, 1, slot, pos) + c + i / 128 * 4);
            tol += (fmax(0x1p-4 * fabs(x[i]), least * size)) * 1.01;
            if (kv->layout == MC_KV_FP8_PLAIN && fabs(want) > top)
                want = copysign(top, want);
        }
        if (!(fabs(got[i] - want) <= tol))
            fail_msg("kv %d c %d pos %d: value %d is %.9g, want %.9g +- %.3g", kv->layout,
                     c, pos, i, got[i], want, tol);
    }
}

/* The scale of each 128 values is the least power of two that holds them, 2^-13 at least.
 */
static void check_scales(const struct latent_pool *p, int32_t slot, int32_t pos,
                         const double *x)
{
    int32_t c = p->kv.c, b, i, e;

    for (b = 0; b < c; b += 128) {
        double top = 0, s = latent_f32(latent_at(p, 1, slot, pos) + c + b / 128 * 4);

        for (i = b; i < c && i < b + 128; i++)
            top = fmax(top, fabs(x[i]));
        assert_true(frexp(s, &e) == 0.5 && s >= 0x1p-13);
        assert_true(448 * s >= top * (1 - 1e-4) &&
                    (224 * s <= top * (1 + 1e-4) || s == 0x1p-13));
    }
}

static void check_prep(uint16_t layout, int32_t c, int32_t r, uint8_t pair, bool fixed,
                       uint64_t *seed)
{
    enum { N = 70, BAD = 3 };
    float scale[] = {7, 0.03f}, inv[64], *w = latent_randoms((size_t)c, 1, seed);
    struct latent_pool *p = latent_new(layout, c, r, 0, 0x5a), *same;
    struct kern k = kern_ref(2, -1);
    struct kern_rows rows = {0};
    float *x = latent_randoms((size_t)((N + 1 + BAD) * (c + r)), 4, seed);
    double want[576 + 128];
    int32_t t, i;

    latent_freqs(inv, r);
    p->kv.k_scale = fixed ? scale : NULL;
    p->slots[4].bad = MC_BAD_PAGE;
    kern_seq(&rows, 3, 130, 1, true);
    kern_seq(&rows, 2, 60, N, false);
    kern_seq(&rows, 4, 0, BAD, false);
    kern_run(&k, mla_prep,
             {.rows = kern_view(&rows),
              .kv = p->kv,
              .slots = p->slots,
              .layer = 1,
              .kv_a = x,
              .kv_norm = w,
              .eps = 1e-5f,
              .rope = {inv, 1.5f, (int16_t)r, 0, pair}});
    for (t = 0; t < N + 1; t++) {
        int32_t slot = t ? 2 : 3, pos = rows.pos[t];
        double sum = 0;

        for (i = 0; i < c + r; i++)
            want[i] = x[t * (c + r) + i];
        for (i = 0; i < c; i++)
            sum += want[i] * want[i];
        for (i = 0; i < c; i++)
            want[i] *= w[i] / sqrt(sum / c + (double)1e-5f);
        latent_rope(want + c, &(struct mc_rope){inv, 1.5f, (int16_t)r, 0, pair}, pos);
        check_token(p, slot, pos, want);
        if (layout == MC_KV_FP8_656)
            check_scales(p, slot, pos, want);
    }
    /* all else is as it was: the tokens' bytes, and nothing more, were written */
    same = latent_new(layout, c, r, 0, 0x5a);
    for (t = 0; t < N + 1; t++)
        memset(latent_at(p, 1, t ? 2 : 3, rows.pos[t]), 0x5a,
               (size_t)mc_mla_token_bytes(layout, c, r));
    assert_memory_equal(p->kv.base, same->kv.base, p->bytes);
    latent_free(p), latent_free(same);
    free(x), free(w);
    kern_close(&k);
}

static void mla_prep_norms_rotates_and_rounds(void **state)
{
    static const int32_t shape[][2] = {{512, 64}, {128, 32}, {64, 8}, {200, 4}};
    uint64_t seed = 83;
    size_t i, j;
    int how;

    (void)state;
    for (i = 0; i < 4; i++)
        for (j = 0; j < 4; j++)
            for (how = 0; how < 4; how++)
                check_prep(layouts[i], shape[j][0], shape[j][1], how & 1, how & 2, &seed);
}

static void mla_prep_gives_the_querys_latent(void **state)
{
    enum { Q = 96, C = 64, R = 8 };
    struct kern k = kern_ref(1, -1);
    struct latent_pool *p = latent_new(MC_KV_F32, C, R, 0, 0);
    uint64_t seed = 89;
    float *q_a = latent_randoms(3 * Q, 3, &seed), *w = latent_randoms(Q, 1, &seed);
    float *kv_a = latent_randoms(3 * (C + R), 1, &seed), inv[R / 2] = {0};
    float act[3 * Q] = {0}, out[3 * Q] = {0}, zero[3 * Q] = {0};
    struct kern_rows rows = {0};
    struct mc_mla_prep_p m = {.kv = p->kv,
                              .slots = p->slots,
                              .q_lora = Q,
                              .q_a = q_a,
                              .kv_a = kv_a,
                              .q_norm = w,
                              .kv_norm = w,
                              .eps = 0.25f,
                              .rope = {inv, 1, R, 0, 0},
                              .act = {.x = act, .k = Q, .layout = MC_A_F32},
                              .norm_out = out};
    int32_t t, i;

    (void)state;
    p->slots[0].bad = MC_BAD_PAGE; /* the query's latent does not ask */
    kern_seq(&rows, 0, 7, 3, false);
    m.rows = kern_view(&rows);
    kern_run(&k, mla_prep, m);
    for (t = 0; t < 3; t++) {
        double sum = 0;

        for (i = 0; i < Q; i++)
            sum += (double)q_a[t * Q + i] * q_a[t * Q + i];
        for (i = 0; i < Q; i++)
            assert_float_equal(out[t * Q + i],
                               q_a[t * Q + i] / sqrt(sum / Q + 0.25) * w[i], 2e-6);
    }
    assert_memory_equal(act, out, sizeof out);
    memset(act, 0, sizeof act);
    memset(out, 0, sizeof out);
    m.act.x = NULL;
    m.act.k = 0;
    kern_run(&k, mla_prep, m);
    assert_true(out[0] != 0);
    memset(out, 0, sizeof out);
    m.q_a = NULL;
    kern_run(&k, mla_prep, m);
    assert_memory_equal(out, zero, sizeof out);
    m.rope.dim = R - 2;
    assert_non_null(kern_refuses(&k, mla_prep, m));
    m.rope.dim = R;
    m.kv.layout = MC_KV_FP8;
    assert_non_null(kern_refuses(&k, mla_prep, m));
    latent_free(p);
    free(q_a), free(w), free(kv_a);
    kern_close(&k);
}

/* Beyond 448, infinite and NaN values: clamped, clamped, kept. */
static void mla_prep_clamps_and_keeps_nan(void **state)
{
    enum { C = 8, R = 4 };
    struct kern k = kern_ref(1, -1);
    struct latent_pool *p = latent_new(MC_KV_FP8_PLAIN, C, R, 0, 0);
    float x[C + R] = {1, -1, 1, -1, 1, -1, 1, -1, 449, -1e30f, INFINITY, NAN},
                inv[2] = {0};
    float w[C] = {448, 449, 464, 465, 1e20f, -1e20f, INFINITY, 0};
    struct kern_rows rows = {0};
    struct mc_mla_prep_p m = {.kv = p->kv, .slots = p->slots, .kv_a = x, .kv_norm = w,
                              .rope = {inv, 1, R, 0, MC_ROPE_NEIGHBOURS}};
    uint8_t *at = latent_at(p, 0, 0, 0);

    (void)state;
    kern_seq(&rows, 0, 0, 1, true);
    m.rows = kern_view(&rows);
    kern_run(&k, mla_prep, m);
    assert_memory_equal(at,
                        ((uint8_t[]){0x7e, 0xfe, 0x7e, 0xfe, 0x7e, 0x7e, 0x7e, 0x80, 0x7e,
                                     0xfe}),
                        10);
    assert_int_equal(at[10] & 0x7f, 0x7f); /* inf * cos 0 - NaN * sin 0 */
    assert_int_equal(at[11] & 0x7f, 0x7f);
    x[0] = NAN;
    kern_run(&k, mla_prep, m);
    assert_int_equal(at[0] & 0x7f, 0x7f);
    latent_free(p);
    p = latent_new(MC_KV_FP8_656, C, R, 0, 0);
    at = latent_at(p, 0, 0, 0);
    m.kv = p->kv;
    m.slots = p->slots;
    kern_run(&k, mla_prep, m);
    assert_true(isnan(latent_f32(at + C)) && (at[5] & 0x7f) == 0x7f);
    latent_free(p);
    kern_close(&k);
}

/* ---- mla_q, mla_out ---------------------------------------------------------------- */

/* 1e-5: f32 sums of up to 192 terms of size 1 (times a weight of size 0.1). */
static void mla_q_absorbs_and_rotates(void **state)
{
    enum { H = 5, NOPE = 48, R = 16, C = 130, N = NOPE + R };
    struct kern k = kern_ref(2, -1);
    uint64_t seed = 97;
    float *w = latent_randoms(H * C * NOPE, 0.1f, &seed), inv[R / 2];
    float out[7 * H * (C + R)], turned[7 * H * N];
    float *q = latent_randoms(7 * H * N, 1, &seed), one[H * (C + R)];
    struct kern_rows rows = {0}, solo = {0};
    struct mc_mla_q_p m = {.h = H, .nope = NOPE, .c = C, .q = q,
                           .w_uk = stack(w, C, NOPE, H), .out = out};
    int32_t t, h, i, j, pair;

    (void)state;
    latent_freqs(inv, R);
    kern_seq(&rows, 1, 300, 1, true);
    kern_seq(&rows, 2, 60, 6, false);
    for (pair = 0; pair < 2; pair++) {
        m.rows = kern_view(&rows);
        m.rope = (struct mc_rope){inv, 1.25f, R, NOPE, (uint8_t)pair};
        kern_run(&k, mla_q, m);
        for (t = 0; t < 7; t++)
            for (h = 0; h < H; h++) {
                const float *x = q + (t * H + h) * N, *got = out + (t * H + h) * (C + R);
                double rot[R];

                for (i = 0; i < C; i++) {
                    double sum = 0;

                    for (j = 0; j < NOPE; j++)
                        sum += (double)w[(h * C + i) * NOPE + j] * x[j];
                    assert_float_equal(got[i], sum, 1e-5);
                }
                for (i = 0; i < R; i++)
                    rot[i] = x[NOPE + i];
                latent_rope(rot, &m.rope, rows.pos[t]);
                for (i = 0; i < R; i++)
                    assert_float_equal(got[C + i], rot[i], 1e-5);
            }
    }
    kern_seq(&solo, 2, 63, 1, true); /* row 4 alone */
    m.rows = kern_view(&solo);
    m.q = q + 4 * H * N;
    m.out = one;
    kern_run(&k, mla_q, m);
    assert_memory_equal(one, out + 4 * H * (C + R), sizeof one);

    m.rows = kern_view(&rows); /* rotated only: elsewhere, and in place */
    m.w_uk = (struct mc_ws){.n = 0};
    m.q = q;
    m.out = turned;
    kern_run(&k, mla_q, m);
    for (i = 0; i < 7 * H; i++) {
        assert_memory_equal(turned + i * N, q + i * N, NOPE * 4);
        assert_memory_equal(turned + i * N + NOPE, out + i * (C + R) + C, R * 4);
    }
    m.out = q;
    kern_run(&k, mla_q, m);
    assert_memory_equal(q, turned, sizeof turned);
    m.rope.off = 0;
    assert_non_null(kern_refuses(&k, mla_q, m));
    free(w), free(q);
    kern_close(&k);
}

static void mla_out_multiplies_each_head(void **state)
{
    enum { H = 3, C = 100, V = 64, T = 4 };
    struct kern k = kern_ref(2, -1);
    uint64_t seed = 101;
    float *w = latent_randoms(H * V * C, 0.1f, &seed),
          *x = latent_randoms(T * H * C, 1, &seed);
    float out[T * H * V];
    struct kern_rows r = {.live = {T}};
    int32_t t, h, i, j;
    struct mc_mla_out_p m = {.rows = kern_view(&r),
                             .h = H,
                             .c = C,
                             .v = V,
                             .o_lat = x,
                             .w_uv = stack(w, V, C, H),
                             .act = {.x = out, .k = H * V, .layout = MC_A_F32}};

    (void)state;
    kern_run(&k, mla_out, m);
    for (t = 0; t < T; t++)
        for (h = 0; h < H; h++)
            for (i = 0; i < V; i++) {
                double sum = 0;

                for (j = 0; j < C; j++)
                    sum += (double)w[(h * V + i) * C + j] * x[(t * H + h) * C + j];
                assert_float_equal(out[(t * H + h) * V + i], sum, 1e-5);
            }
    m.act.k--;
    assert_non_null(kern_refuses(&k, mla_out, m));
    free(w), free(x);
    kern_close(&k);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(mla_prep_lays_out_656_bytes),
    cmocka_unit_test(mla_prep_norms_rotates_and_rounds),
    cmocka_unit_test(mla_prep_gives_the_querys_latent),
    cmocka_unit_test(mla_prep_clamps_and_keeps_nan),
    cmocka_unit_test(mla_q_absorbs_and_rotates),
    cmocka_unit_test(mla_out_multiplies_each_head),
};

MC_TEST_MAIN(tests)
