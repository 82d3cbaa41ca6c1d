/* test_ref_mla_attn.c - mla_attn and attn_merge of the reference against softmax in
 * double, over all positions or a list, and against themselves: whole, in chunks, in
 * batches. */
#include "tests/c/test.h"

#include "tests/c/latent.h"

static const uint16_t layouts[] = {MC_KV_F32, MC_KV_BF16, MC_KV_FP8_PLAIN, MC_KV_FP8_656};

enum { HEADS = 2, LAT = 136, KEY = 8, WIDE = LAT + KEY, CTX = 530, TOPK = 300 };
enum { CAP_DECODE = 4 };

struct ctx {
    struct kern k;
    struct latent_pool *p;
    float *q; /* [CTX][HEADS][WIDE] */
    uint64_t seed;
};

/* CTX tokens in slot 1, layer 1; every other byte is `fill`. */
static struct ctx ctx_new(uint16_t layout, int fill)
{
    struct ctx c = {kern_ref(2, -1), latent_new(layout, LAT, KEY, 0, fill), NULL, 103};
    static const float scale[] = {9, 0.02f};

    if (layout == MC_KV_FP8_PLAIN)
        c.p->kv.k_scale = scale;
    latent_fill(&c.k, c.p, 1, 1, CTX, &c.seed);
    c.q = latent_randoms(CTX * HEADS * WIDE, 1, &c.seed);
    return c;
}

static void ctx_free(struct ctx *c)
{
    latent_free(c->p);
    free(c->q);
    kern_close(&c->k);
}

/* Attends for the rows of r (of slot 1) into out [T][HEADS*LAT]; parts begin as NaN. */
static void attend(struct ctx *c, struct kern_rows *r, const int32_t *idx, float *out)
{
    int32_t rows = r->live[MC_LIVE_ROWS], n_part = idx ? 2 : 3, t;
    size_t parts = (size_t)(CAP_DECODE * n_part + rows), each = HEADS * WIDE;
    float *q = malloc((size_t)rows * each * 4), *o = malloc(parts * each * 4);
    float *ml = malloc(parts * HEADS * 8);

    memset(o, 0xff, parts * each * 4);
    memset(ml, 0xff, parts * HEADS * 8);
    for (t = 0; t < rows; t++)
        memcpy(q + t * (int)each, c->q + r->pos[t] * (int)each, each * 4);
    kern_run(&c->k, mla_attn,
             {.rows = kern_view(r),
              .kv = c->p->kv,
              .slots = c->p->slots,
              .layer = 1,
              .h = HEADS,
              .n_part = n_part,
              .cap_decode = CAP_DECODE,
              .scale = 0.2f,
              .q = q,
              .idx = idx,
              .topk = TOPK,
              .o = o,
              .ml = ml});
    for (t = rows * n_part; t < CAP_DECODE * n_part; t++)
        assert_true(isnan(ml[t * HEADS * 2])); /* parts of no row stay as they were */
    kern_run(&c->k, attn_merge,
             {.rows = kern_view(r), .h = HEADS, .d = LAT, .n_part = n_part,
              .cap_decode = CAP_DECODE, .o = o, .ml = ml, .out = out});
    free(q), free(o), free(ml);
}

/* The definition, over n positions of a list or the first n. */
static void attend_want(const struct ctx *c, int32_t pos, int32_t head,
                        const int32_t *list, int32_t n, double *out)
{
    const float *q = c->q + (pos * HEADS + head) * WIDE;
    double sum = 0, x[WIDE], s;
    int32_t i, j;

    memset(out, 0, LAT * sizeof out[0]);
    for (j = 0; j < n; j++) {
        latent_read(c->p, 1, 1, list ? list[j] : j, x);
        for (s = 0, i = 0; i < WIDE; i++)
            s += q[i] * x[i];
        s = exp((double)0.2f * s);
        sum += s;
        for (i = 0; i < LAT; i++)
            out[i] += s * x[i];
    }
    for (i = 0; i < LAT && n > 0; i++)
        out[i] /= sum;
}

static void check_row(const struct ctx *c, int32_t pos, const int32_t *list, int32_t n,
                      const float *out)
{
    double want[LAT];
    int32_t head, i;

    for (head = 0; head < HEADS; head++) {
        attend_want(c, pos, head, list, n, want);
        for (i = 0; i < LAT; i++)
            if (!(fabs(out[head * LAT + i] - want[i]) < 1e-5))
                fail_msg("pos %d, %d seen, head %d: value %d is %.9g, want %.9g", pos, n,
                         head, i, (double)out[head * LAT + i], want[i]);
    }
}

/* 1e-5: scores are f32 sums of 144 terms, whose sums reach about 30. */
static void mla_attn_is_a_causal_softmax_of_latents(void **state)
{
    static const int32_t pos[] = {0, 1, 63, 64, 255, 256, 300, 511, 512, 529};
    float out[HEADS * LAT];
    size_t i, j;
    int decode;

    (void)state;
    for (i = 0; i < 4; i++) {
        struct ctx c = ctx_new(layouts[i], 0xff); /* what was not written is NaN */

        for (j = 0; j < sizeof pos / sizeof pos[0]; j++)
            for (decode = 0; decode < 2; decode++) {
                struct kern_rows r = {0};

                kern_seq(&r, 1, pos[j], 1, decode);
                attend(&c, &r, NULL, out);
                check_row(&c, pos[j], NULL, pos[j] + 1, out);
            }
        ctx_free(&c);
    }
}

/* Every stride-th position up to pos, TOPK at most; -1 behind. */
static int32_t sparse(int32_t *list, int32_t pos, int32_t stride)
{
    int32_t n = 0, i;

    for (i = pos % stride; i <= pos && n < TOPK; i += stride)
        list[n++] = i;
    for (i = n; i < TOPK; i++)
        list[i] = -1;
    return n;
}

static void mla_attn_sees_its_list_only(void **state)
{
    static const int32_t pos[] = {0, 5, 255, 256, 400, 529};
    static const int32_t stride[] = {1, 2, 3, 255, 529, 531};
    int32_t idx[TOPK], n;
    float out[HEADS * LAT];
    size_t i, j, s;
    int decode;

    (void)state;
    for (i = 0; i < 4; i++) {
        struct ctx c = ctx_new(layouts[i], 0xff);

        for (j = 0; j < 6; j++)
            for (s = 0; s < 6; s++)
                for (decode = 0; decode < 2; decode++) {
                    struct kern_rows r = {0};

                    n = sparse(idx, pos[j], stride[s]);
                    kern_seq(&r, 1, pos[j], 1, decode);
                    attend(&c, &r, idx, out);
                    check_row(&c, pos[j], idx, n, out);
                }
        ctx_free(&c);
    }
}

/* A row sees nothing: an empty list, a bad sequence. */
static void mla_attn_gives_zeros_where_nothing_is_seen(void **state)
{
    struct ctx c = ctx_new(MC_KV_BF16, 0xff);
    int32_t idx[3 * TOPK], i;
    float out[3 * HEADS * LAT];
    struct kern_rows r = {0};

    (void)state;
    for (i = 0; i < 3 * TOPK; i++)
        idx[i] = -1;
    kern_seq(&r, 1, 520, 1, true);
    kern_seq(&r, 1, 298, 2, false);
    attend(&c, &r, idx, out);
    for (i = 0; i < 3 * HEADS * LAT; i++)
        assert_true(out[i] == 0);
    memset(out, 0xff, sizeof out);
    c.p->slots[1].bad = MC_BAD_PAGE;
    attend(&c, &r, NULL, out);
    for (i = 0; i < 3 * HEADS * LAT; i++)
        assert_true(out[i] == 0);
    ctx_free(&c);
}

/* A prompt whole, in chunks, as decode rows, and under lists of all positions: equal
 * bits. */
static void mla_attn_does_not_depend_on_chunks_or_lists(void **state)
{
    static const int32_t chunk[] = {1, 100};
    size_t each = HEADS * LAT, i, j;
    float *all = malloc(CTX * each * 4), *out = malloc(CTX * each * 4);
    int32_t *idx = malloc(CTX * TOPK * sizeof *idx), at, n, t;

    (void)state;
    for (t = 0; t < CTX; t++)
        sparse(idx + t * TOPK, t, 1);
    for (i = 0; i < 4; i++) {
        struct ctx c = ctx_new(layouts[i], 0);
        struct kern_rows r = {0};

        kern_seq(&r, 1, 0, CTX, false);
        attend(&c, &r, NULL, all);
        attend(&c, &r, idx, out);
        assert_memory_equal(out, all, TOPK * each * 4);
        for (j = 0; j < 2; j++)
            for (at = 0; at < CTX; at += n) {
                n = CTX - at < chunk[j] ? CTX - at : chunk[j];
                memset(&r, 0, sizeof r);
                kern_seq(&r, 1, at, n, n == 1);
                attend(&c, &r, NULL, out);
                assert_memory_equal(out, all + (size_t)at * each, (size_t)n * each * 4);
                if (at + n > TOPK)
                    continue;
                attend(&c, &r, idx + at * TOPK, out);
                assert_memory_equal(out, all + (size_t)at * each, (size_t)n * each * 4);
            }
        ctx_free(&c);
    }
    free(all), free(out), free(idx);
}

/* Rows of one step have the bits that they have alone. */
static void mla_attn_does_not_depend_on_the_batch(void **state)
{
    struct ctx c = ctx_new(MC_KV_FP8_656, 0);
    float one[HEADS * LAT], out[42 * HEADS * LAT];
    struct kern_rows r = {0}, solo;
    int32_t t;

    (void)state;
    kern_seq(&r, 1, 400, 1, true);
    kern_seq(&r, 1, 529, 1, true);
    kern_seq(&r, 1, 490, 40, false);
    attend(&c, &r, NULL, out);
    for (t = 0; t < 42; t++) {
        solo = (struct kern_rows){0};
        kern_seq(&solo, 1, r.pos[t], 1, t % 2);
        attend(&c, &solo, NULL, one);
        assert_memory_equal(one, out + t * HEADS * LAT, sizeof one);
    }
    ctx_free(&c);
}

static void mla_attn_refuses_a_context_beyond_its_parts(void **state)
{
    struct ctx c = ctx_new(MC_KV_F32, 0);
    float o[3 * HEADS * LAT], ml[3 * HEADS * 2];
    struct kern_rows r = {0};
    struct mc_mla_attn_p p = {.kv = c.p->kv, .slots = c.p->slots, .h = HEADS, .n_part = 2,
                              .cap_decode = 1, .q = c.q, .o = o, .ml = ml};

    (void)state;
    kern_seq(&r, 1, 512, 1, true);
    p.rows = kern_view(&r);
    mc_k_mla_attn(c.k.b, c.k.s, &p);
    assert_int_equal(c.k.b->wait(c.k.s, c.k.b->mark(c.k.s)), MC_K_EINTERNAL);
    p.kv.layout = MC_KV_FP8;
    assert_non_null(kern_refuses(&c.k, mla_attn, p));
    p.kv.layout = MC_KV_F32;
    p.kv.layer_stride -= 128;
    assert_non_null(kern_refuses(&c.k, mla_attn, p));
    ctx_free(&c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(mla_attn_is_a_causal_softmax_of_latents),
    cmocka_unit_test(mla_attn_sees_its_list_only),
    cmocka_unit_test(mla_attn_gives_zeros_where_nothing_is_seen),
    cmocka_unit_test(mla_attn_does_not_depend_on_chunks_or_lists),
    cmocka_unit_test(mla_attn_does_not_depend_on_the_batch),
    cmocka_unit_test(mla_attn_refuses_a_context_beyond_its_parts),
};

MC_TEST_MAIN(tests)
