/* test_cuda_mla.c - MLA's operations on emulated CUDA, against the oracle over
 * the same pages, whose unwritten bytes are NaNs; and against itself: a row's bits do not
 * depend on the batch, nor on how its context was cut, nor on whether it decodes.
 *
 * Tolerance of attention: see test_cuda_attn.c, with d = c + r. A product's: half an ulp
 * of f32 for each term of the sum of magnitudes, and bf16's own rounding. */
#include "tests/c/test.h"

#include "tests/c/cuda_help.h"
#include "tests/c/latent.h"

enum { N_PART = 4, CAP_DEC = 6, LAYER = 1 };

static const uint16_t layouts[] = {MC_KV_BF16, MC_KV_FP8_PLAIN, MC_KV_FP8_656};
static const int32_t contexts[LAT_SLOT] = {1, 64, 65, 257, 600, 40};

struct shape {
    int32_t h, c, r;
};

/* ---- mla_prep ---------------------------------------------------------------------- */

static float stored(const struct mc_kv *kv, const uint8_t *t, int32_t i)
{
    uint16_t b;

    if (kv->layout == MC_KV_BF16) {
        memcpy(&b, t + 2 * i, 2);
        return mc_f32_of_bf16(b);
    }
    if (kv->layout == MC_KV_FP8_PLAIN || i < kv->c)
        return mc_f32_of_e4m3(t[i]) * (kv->layout == MC_KV_FP8_656
                                           ? (float)latent_f32(t + kv->c + i / 128 * 4)
                                           : 1);
    return (float)latent_bf16(t + kv->c + (kv->c + 127) / 128 * 4 + 2 * (i - kv->c));
}

/* Both sides round the same number but for its last bits: nearly always alike. */
static void check_prep(struct kern *cu, struct kern *ref, uint16_t layout, int32_t q_lora,
                       uint64_t *seed)
{
    struct latent_pool *p = latent_new(layout, 128, 32, 0, 0x5a);
    uint8_t *base = p->kv.base, *pages = malloc(p->bytes);
    struct kern_rows r = {0};
    int32_t d = p->kv.c + p->kv.r, rows, off = 0, all = 0;
    float *qf, *af, *wq, *wk, inv[16], *norm, fixed[LAT_LAYERS] = {1, 0.02f};
    uint16_t *q, *a, *norm16;
    struct mc_act act, actf = ops_act(MC_A_F32, 1, 1);
    struct mc_mla_prep_p m = {.kv = p->kv,
                              .slots = p->slots,
                              .layer = LAYER,
                              .q_lora = q_lora,
                              .eps = 1e-5f,
                              .rope = {inv, 1.25f, 32, 0, (uint8_t)(q_lora % 128 != 0)}};

    kern_seq(&r, 4, 599, 1, true);
    kern_seq(&r, 3, 250, 9, false);
    kern_seq(&r, 1, 60, 4, false);
    p->slots[1].bad = 1;
    rows = r.live[MC_LIVE_ROWS];
    latent_freqs(inv, 32);
    q = randoms((int64_t)rows * q_lora, &qf, seed);
    a = randoms((int64_t)rows * d, &af, seed);
    free(randoms(q_lora, &wq, seed)), free(randoms(128, &wk, seed));
    norm = malloc((size_t)(rows * q_lora) * 4);
    norm16 = malloc((size_t)(rows * q_lora) * 2);
    act = ops_act(MC_A_BF16, rows, q_lora);
    m.kv.k_scale = layout == MC_KV_FP8_PLAIN ? fixed : NULL;
    m.rows = kern_view(&r);
    m.rows.cap = rows + 2;
    m.q_norm = wq, m.kv_norm = wk;
    memcpy(pages, base, p->bytes);
    m.q_a = qf, m.kv_a = af, m.norm_out = norm;
    kern_run(ref, mla_prep, m);
    m.kv.base = pages;
    m.q_a = q, m.kv_a = a, m.norm_out = norm16, m.act = act;
    kern_run(cu, mla_prep, m);
    assert_memory_equal(act.x, norm16, (size_t)(rows * q_lora) * 2);
    for (int32_t i = 0; i < rows * q_lora; i++)
        assert_true(fabsf(as_f32(norm16, i) - norm[i]) <= (BF + 1e-5f) * fabsf(norm[i]));
    for (int32_t t = 0; t < 10; t++)
        for (int32_t i = 0; i < d; i++, all++) {
            const uint8_t *x = latent_at(p, LAYER, r.slot[r.row_seq[t]], r.pos[t]);
            float want = stored(&p->kv, x, i), got = stored(&p->kv, x - base + pages, i);
            float step = layout == MC_KV_BF16 || (layout == MC_KV_FP8_656 && i >= 128)
                             ? fabsf(want) * 0x1p-7f
                             : fabsf(want) / 7 + 0.02f;

            off += got != want;
            if (!(fabsf(got - want) <= step))
                fail_msg("layout %d row %d value %d: %.9g, want %.9g", layout, t, i, got,
                         want);
        }
    assert_true(off <= all / 100);
    off = 0;
    for (size_t i = 0; i < p->bytes; i++)
        off += pages[i] != base[i];
    assert_true(off <= all / 50); /* nothing else was written */
    free(q), free(qf), free(a), free(af), free(wq), free(wk), free(norm), free(norm16);
    free(pages);
    ops_act_free(&act), ops_act_free(&actf);
    latent_free(p);
}

static void cuda_mla_prep_norms_rotates_and_writes(void **state)
{
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);
    uint64_t seed = 61;

    (void)state;
    for (int i = 0; i < 3; i++) {
        check_prep(&cu, &ref, layouts[i], 96, &seed);
        check_prep(&cu, &ref, layouts[i], 1536, &seed);
    }
    kern_close(&cu);
    kern_close(&ref);
}

/* ---- mla_q, mla_out ---------------------------------------------------------------- */

/* h matrices [n,k] of random bf16, packed by b; vals gets them as f32. */
static struct mc_ws heads_of(struct kern *cu, int32_t h, int32_t n, int32_t k,
                             float **vals, uint64_t *seed)
{
    uint16_t *w = randoms((int64_t)h * n * k, vals, seed);
    struct mc_ws s = {.n = h};

    for (int32_t i = 0; i < h; i++) {
        struct mc_pack_p p = {.disk = {.fmt = MC_D_BF16, .n = n, .k = k,
                                       .q = w + (int64_t)i * n * k},
                              .w = {.layout = MC_W_BF16, .n = n, .k = k}};
        struct mc_need need;
        const char *why = "";

        if (cu->b->op[MC_OP_pack]->need(&p, &need, &why) != 0)
            fail_msg("pack: %s", why);
        if (i == 0) {
            s.w = p.w;
            s.q_step = (int64_t)(need.q + 63) / 64 * 64;
            s.w.q = malloc((size_t)(s.q_step * h));
        }
        p.w = mc_ws_at(&s, i);
        kern_run(cu, pack, p);
    }
    free(w);
    return s;
}

static void check_close(const char *what, float got, const float *w, const float *x,
                        int32_t k)
{
    double sum = 0, all = 0;

    for (int32_t i = 0; i < k; i++) {
        sum += (double)w[i] * x[i];
        all += fabs((double)w[i] * x[i]);
    }
    if (!(fabs(got - sum) <= all * (k + 8) * OPS_U + fabs(sum) * BF))
        fail_msg("%s: %.9g, want %.9g", what, got, sum);
}

static void check_q(struct kern *cu, struct kern *ref, const struct shape *s,
                    int32_t nope, int32_t rows, uint64_t *seed)
{
    int32_t n = nope + s->r, d = s->c + s->r;
    float *w, *qf, inv[64], *rot = malloc((size_t)(rows * s->h * n) * 4);
    struct mc_ws uk = heads_of(cu, s->h, s->c, nope, &w, seed);
    uint16_t *q = randoms((int64_t)rows * s->h * n, &qf, seed),
             *out = malloc((size_t)(rows * s->h * (n > d ? n : d)) * 2);
    struct kern_rows r = {0};
    struct mc_mla_q_p p = {.h = s->h, .nope = nope, .c = s->c,
                           .rope = {inv, 1, (int16_t)s->r, (int16_t)nope, 1}};

    latent_freqs(inv, s->r);
    kern_seq(&r, 0, 700, 1, true);
    kern_seq(&r, 1, 33, rows - 1, false);
    p.rows = kern_view(&r);
    p.rows.cap = rows + 1;
    p.q = qf, p.out = rot;
    kern_run(ref, mla_q, p); /* rotated only */
    p.q = q, p.out = out, p.w_uk = uk;
    kern_run(cu, mla_q, p);
    for (int32_t i = 0; i < rows * s->h; i++) {
        for (int32_t j = 0; j < s->c; j++)
            check_close("absorbed", as_f32(out, (int64_t)i * d + j),
                        w + ((int64_t)(i % s->h) * s->c + j) * nope, qf + (int64_t)i * n,
                        nope);
        for (int32_t j = 0; j < s->r; j++) {
            float want = rot[(int64_t)i * n + nope + j];

            assert_true(fabsf(as_f32(out, (int64_t)i * d + s->c + j) - want) <=
                        BF * fabsf(want) + 1e-6f);
        }
    }
    p.w_uk.n = 0;
    kern_run(cu, mla_q, p); /* rotated only, elsewhere and in place */
    p.out = q;
    kern_run(cu, mla_q, p);
    assert_memory_equal(out, q, (size_t)(rows * s->h * n) * 2);
    for (int32_t i = 0; i < rows * s->h * n; i++)
        assert_true(fabsf(as_f32(q, i) - rot[i]) <= BF * fabsf(rot[i]) + 1e-6f);
    free(w), free(q), free(qf), free(out), free(rot), free(uk.w.q);
}

static void check_out(struct kern *cu, const struct shape *s, int32_t v, int32_t rows,
                      uint64_t *seed)
{
    float *w, *of;
    struct mc_ws uv = heads_of(cu, s->h, v, s->c, &w, seed);
    uint16_t *o = randoms((int64_t)rows * s->h * s->c, &of, seed);
    struct mc_act act = ops_act(MC_A_BF16, rows, s->h * v);
    struct kern_rows r = {0};
    struct mc_mla_out_p p = {
        .h = s->h, .c = s->c, .v = v, .o_lat = o, .w_uv = uv, .act = act};

    kern_seq(&r, 0, 0, rows, false);
    p.rows = kern_view(&r);
    p.rows.cap = rows;
    kern_run(cu, mla_out, p);
    for (int32_t i = 0; i < rows * s->h; i++)
        for (int32_t j = 0; j < v; j++)
            check_close("out", as_f32(act.x, (int64_t)i * v + j),
                        w + ((int64_t)(i % s->h) * v + j) * s->c, of + (int64_t)i * s->c,
                        s->c);
    free(w), free(o), free(of), free(uv.w.q);
    ops_act_free(&act);
}

static void cuda_mla_heads_multiply_and_rotate(void **state)
{
    static const struct shape s[] = {{3, 128, 32}, {2, 512, 64}, {5, 128, 32}};
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);
    uint64_t seed = 53;

    (void)state;
    check_q(&cu, &ref, &s[0], 48, 5, &seed);
    check_q(&cu, &ref, &s[1], 128, 12, &seed);
    check_q(&cu, &ref, &s[2], 32, 67, &seed);
    check_q(&cu, &ref, &s[2], 192, 20, &seed);
    check_out(&cu, &s[0], 64, 4, &seed);
    check_out(&cu, &s[1], 128, 9, &seed);
    check_out(&cu, &s[2], 32, 70, &seed);
    check_out(&cu, &s[0], 256, 25, &seed);
    kern_close(&cu);
    kern_close(&ref);
}

/* ---- mla_attn ---------------------------------------------------------------------- */

/* Slot i holds contexts[i] tokens, written by the oracle's prep; the rest is NaN bytes.
 */
static struct latent_pool *pool_new(struct kern *ref, const struct shape *s,
                                    uint16_t layout, uint64_t *seed)
{
    struct latent_pool *p = latent_new(layout, s->c, s->r, 0, 0xff);

    for (int32_t i = 0; i < LAT_SLOT; i++)
        latent_fill(ref, p, LAYER, i, contexts[i], seed);
    return p;
}

struct seen {
    const int32_t *idx;
    int32_t topk, first;
};

/* attn and merge of rows to f32 out [rows][h*c]; parts begin as NaNs. */
static void run_attn(struct kern *k, const struct latent_pool *p, const struct shape *s,
                     const struct kern_rows *r, struct seen see, const void *q,
                     float *out)
{
    int64_t parts = (int64_t)CAP_DEC * N_PART + KERN_T;
    size_t n = (size_t)(parts * s->h * s->c);
    float *o = malloc(n * 4), *ml = malloc((size_t)(parts * s->h) * 8);
    bool f32 = k->b->row_dt == MC_F32;
    struct mc_rows rows = kern_view(r);
    void *y = malloc(n * 4);

    rows.cap = r->live[MC_LIVE_ROWS] + 1;
    memset(o, 0xff, n * 4);
    memset(ml, 0xff, (size_t)(parts * s->h) * 8);
    kern_run(k, mla_attn,
             {.rows = rows,
              .kv = p->kv,
              .slots = p->slots,
              .layer = LAYER,
              .h = s->h,
              .n_part = N_PART,
              .cap_decode = CAP_DEC,
              .scale = 1 / sqrtf((float)(s->c + s->r)),
              .q = q,
              .idx = see.idx,
              .topk = see.topk,
              .first = see.first,
              .o = o,
              .ml = ml});
    kern_run(k, attn_merge, {.rows = rows, .h = s->h, .d = s->c, .n_part = N_PART,
                             .cap_decode = CAP_DEC, .o = o, .ml = ml, .out = y});
    for (int64_t i = 0; i < (int64_t)r->live[MC_LIVE_ROWS] * s->h * s->c; i++)
        out[i] = f32 ? ((float *)y)[i] : as_f32(y, i);
    free(o), free(ml), free(y);
}

/* Every third position or so of what a row may see. */
static int32_t *random_lists(const struct kern_rows *r, int32_t topk, uint64_t *seed)
{
    int32_t rows = r->live[MC_LIVE_ROWS], *idx = malloc((size_t)(rows * topk) * 4);

    for (int32_t t = 0; t < rows; t++) {
        int32_t n = 0;

        for (int32_t s = 0; s <= r->pos[t] && n < topk; s++)
            if (kern_rand(seed) % 3 == 0 || s == r->pos[t])
                idx[t * topk + n++] = s;
        for (; n < topk; n++)
            idx[t * topk + n] = -1;
    }
    return idx;
}

static void check_attn(struct kern *cu, struct kern *ref, const struct shape *s,
                       uint16_t layout, int how, uint64_t *seed)
{
    struct latent_pool *p = pool_new(ref, s, layout, seed);
    struct kern_rows r = {0};
    struct seen see = {.topk = 320, .first = how == 1};
    int32_t cols = s->h * s->c, d = s->c + s->r, rows, *idx = NULL;
    double tol = (((2 * d + 8) * 6 * sqrt(d) + 700) * 2 * OPS_U + 0x1p-15) * 8;
    float fixed[LAT_LAYERS] = {1, 0.5f}, *qf, *want, *got;
    uint16_t *q;

    p->kv.k_scale = layout == MC_KV_FP8_PLAIN && how != 2 ? fixed : NULL;
    for (int32_t j = 0; j < 4; j++)
        kern_seq(&r, j, contexts[j] - 1, 1, true);
    kern_seq(&r, 4, 593, 7, false);
    kern_seq(&r, 5, 0, 11, false);
    p->slots[how == 0 ? 4 : how == 1 ? 1 : 5].bad = MC_BAD_PAGE;
    rows = r.live[MC_LIVE_ROWS];
    if (how == 2)
        see.idx = idx = random_lists(&r, see.topk, seed);
    q = randoms((int64_t)rows * s->h * d, &qf, seed);
    for (int64_t i = 0; i < (int64_t)rows * s->h * d;
         i++) /* no score but a few hundred */
        q[i] = mc_bf16_of_f32(fmaxf(-4, fminf(4, qf[i]))), qf[i] = as_f32(q, i);
    want = malloc((size_t)(rows * cols) * 4);
    got = malloc((size_t)(rows * cols) * 4);
    run_attn(ref, p, s, &r, see, qf, want);
    run_attn(cu, p, s, &r, see, q, got);
    for (int32_t j = 0; j < rows * cols; j++)
        if (!(fabs((double)got[j] - want[j]) <= tol + fabs(want[j]) * BF))
            fail_msg(
                "h %d c %d layout %d how %d: row %d col %d is %.9g, want %.9g +- %.3g",
                s->h, s->c, layout, how, j / cols, j % cols, got[j], want[j], tol);
    free(q), free(qf), free(want), free(got), free(idx);
    latent_free(p);
}

static void cuda_mla_attn_agrees_with_the_oracle(void **state)
{
    static const struct shape shapes[] = {{8, 128, 32},
                                          {5, 128, 32},
                                          {20, 128, 32},
                                          {8, 512, 64}};
    struct kern cu = cuda_open(), ref = kern_ref(2, -1);
    uint64_t seed = 47;

    (void)state;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 3; j++)
            check_attn(&cu, &ref, &shapes[i], layouts[j], (i + j) % 3, &seed);
    kern_close(&cu);
    kern_close(&ref);
}

/* The same row alone, as a prefill row, in a chunk that began elsewhere; and a list of
 * every position is no list. */
static void cuda_mla_attn_rows_do_not_depend_on_the_batch(void **state)
{
    static const struct shape s = {8, 128, 32};
    struct kern cu = cuda_open(), ref = kern_ref(2, -1);
    uint64_t seed = 59;
    enum { COLS = 8 * 128, D = 8 * 160, ROWS = 9, END = 600 };

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct latent_pool *p = pool_new(&ref, &s, layouts[i], &seed);
        struct kern_rows chunk = {0}, part = {0}, alone = {0};
        float *qf, *got = malloc(ROWS * COLS * 4), *one = malloc(ROWS * COLS * 4);
        uint16_t *q = randoms(ROWS * D, &qf, &seed);
        int32_t *all = malloc(640 * 4);

        kern_seq(&chunk, 4, END - ROWS, ROWS, false);
        run_attn(&cu, p, &s, &chunk, (struct seen){0}, q, got);
        kern_seq(&part, 0, 0, 1, true);
        kern_seq(&part, 4, END - 5, 5, false);
        run_attn(&cu, p, &s, &part, (struct seen){0}, q + 3 * D, one);
        assert_memory_equal(one + COLS, got + 4 * COLS, 5 * COLS * 4);
        kern_seq(&alone, 4, END - 1, 1, true);
        run_attn(&cu, p, &s, &alone, (struct seen){0}, q + 8 * D, one);
        assert_memory_equal(one, got + 8 * COLS, COLS * 4);
        for (int32_t j = 0; j < 640; j++)
            all[j] = j < END ? j : -1;
        run_attn(&cu, p, &s, &alone, (struct seen){all, 640, 0}, q + 8 * D, one);
        assert_memory_equal(one, got + 8 * COLS, COLS * 4);
        free(q), free(qf), free(got), free(one), free(all);
        latent_free(p);
    }
    kern_close(&cu);
    kern_close(&ref);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(cuda_mla_prep_norms_rotates_and_writes),
    cmocka_unit_test(cuda_mla_heads_multiply_and_rotate),
    cmocka_unit_test(cuda_mla_attn_agrees_with_the_oracle),
    cmocka_unit_test(cuda_mla_attn_rows_do_not_depend_on_the_batch),
};

MC_TEST_MAIN(tests)
