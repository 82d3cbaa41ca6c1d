/* test_ref_attn.c - reference attention: rope, casts into pages, masks, splits, windows,
 * and that results depend neither on chunks nor on what lies in unwritten bytes. */
#include "tests/c/test.h"

#include "kernels/host/cast.h"
#include "kernels/host/kv.h"
#include "tests/c/kern.h"

enum { PITCH = 16, N_PAGE = 40, N_SLOT = 4 };

/* A pool whose slot s has its blocks at pages 10*s + 9, 10*s + 8, ...: not in order. */
struct pool {
    struct mc_kv kv;
    struct mc_slot slots[N_SLOT];
    int32_t table[N_SLOT * PITCH];
    uint32_t want[N_SLOT * PITCH], tag[N_PAGE];
};

static struct pool *pool_new(uint16_t layout, int32_t hk, int32_t d, int32_t n_layer,
                             int fill)
{
    struct pool *p = calloc(1, sizeof *p);
    struct mc_kv *kv = &p->kv;
    int i;

    *kv = (struct mc_kv){.table = p->table, .want_tag = p->want, .tag = p->tag,
                         .pitch = PITCH, .n_page = N_PAGE, .n_slot = N_SLOT, .hk = hk,
                         .d = d, .n_layer = n_layer, .n_shard = 1, .layout = layout};
    kv->layer_stride = mc_kv_layer_bytes(layout, hk, d) + 64;
    kv->page_stride = n_layer * kv->layer_stride + 64;
    kv->base = malloc((size_t)(N_PAGE * kv->page_stride));
    memset(kv->base, fill, (size_t)(N_PAGE * kv->page_stride));
    for (i = 0; i < N_SLOT * PITCH; i++)
        p->table[i] = i % PITCH < 10 ? i / PITCH * 10 + 9 - i % PITCH : -1;
    return p;
}

static void pool_free(struct pool *p)
{
    free(p->kv.base);
    free(p);
}

/* ---- gqa_prep ---------------------------------------------------------------------- */

static void ref_rope_turns_pairs_of_both_kinds(void **state)
{
    struct kern k = kern_ref(1, -1);
    struct pool *pool = pool_new(MC_KV_F32, 1, 6, 1, 0);
    float inv[] = {0.5f, 0.25f}, q[6], key[6], v[6] = {0};
    float c0 = cosf(1.5f), s0 = sinf(1.5f), c1 = cosf(0.75f), s1 = sinf(0.75f);
    struct kern_rows r = {0};
    struct mc_gqa_prep_p p = {.kv = pool->kv, .slots = pool->slots, .h = 1, .q = q,
                              .k = key, .v = v};

    (void)state;
    kern_seq(&r, 0, 3, 1, true);
    p.rows = kern_view(&r);
    /* dims 1..4 turn, 0 and 5 stay */
    p.rope = (struct mc_rope){inv, 1, 4, 1, MC_ROPE_HALVES};
    memcpy(q, ((float[6]){9, 1, 2, 3, 4, 8}), sizeof q);
    memcpy(key, q, sizeof q);
    kern_run(&k, gqa_prep, p);
    assert_float_equal(q[1], 1 * c0 - 3 * s0, 1e-6);
    assert_float_equal(q[2], 2 * c1 - 4 * s1, 1e-6);
    assert_float_equal(q[3], 3 * c0 + 1 * s0, 1e-6);
    assert_float_equal(q[4], 4 * c1 + 2 * s1, 1e-6);
    assert_true(q[0] == 9 && q[5] == 8);
    assert_memory_equal(mc_kv_at(&pool->kv, mc_kv_page(&pool->kv, 0, 0, 3), 0, 0, 3), q,
                        sizeof q);

    p.rope.pair = MC_ROPE_NEIGHBOURS;
    p.rope.mul = 2;
    memcpy(q, ((float[6]){9, 1, 2, 3, 4, 8}), sizeof q);
    kern_run(&k, gqa_prep, p);
    assert_float_equal(q[1], 2 * (1 * c0 - 2 * s0), 1e-6);
    assert_float_equal(q[2], 2 * (2 * c0 + 1 * s0), 1e-6);
    assert_float_equal(q[3], 2 * (3 * c1 - 4 * s1), 1e-6);
    assert_float_equal(q[4], 2 * (4 * c1 + 3 * s1), 1e-6);

    p.rope.dim = 3;
    assert_non_null(kern_refuses(&k, gqa_prep, p));
    p.rope.dim = 6;
    assert_non_null(kern_refuses(&k, gqa_prep, p));
    pool_free(pool);
    kern_close(&k);
}

static void ref_prep_norms_heads_and_writes_its_page(void **state)
{
    struct kern k = kern_ref(2, -1);
    struct pool *pool = pool_new(MC_KV_BF16, 2, 2, 3, 0);
    float q[] = {3, 4, 0, 2, 1, 1, 5, 0}, key[] = {3, 4, 6, 8}, v[] = {1, 2, 3, 1.00390625f};
    float qn[] = {1, 2}, kn[] = {2, 1};
    struct kern_rows r = {0};
    struct mc_gqa_prep_p p = {.kv = pool->kv, .slots = pool->slots, .layer = 1, .h = 4,
                              .q = q, .k = key, .v = v, .q_norm = qn, .k_norm = kn};
    uint8_t *page = pool->kv.base + 17 * pool->kv.page_stride + pool->kv.layer_stride;
    uint16_t *at = (uint16_t *)page;

    (void)state;
    kern_seq(&r, 1, 2 * MC_PAGE + 5, 1, true); /* block 2 of slot 1: page 17 */
    p.rows = kern_view(&r);
    kern_run(&k, gqa_prep, p);
    assert_float_equal(q[0], 3 / sqrtf(12.5f), 1e-6);
    assert_float_equal(q[1], 8 / sqrtf(12.5f), 1e-6);
    assert_float_equal(q[3], 2 * 2 / sqrtf(2), 1e-6);
    assert_int_equal(at[5 * 2], mc_bf16_of_f32(6 / sqrtf(12.5f)));
    assert_int_equal(at[(MC_PAGE + 5) * 2 + 1], mc_bf16_of_f32(8 / sqrtf(50)));
    assert_int_equal(at[(2 * MC_PAGE + 5) * 2], 0x3F80);
    assert_int_equal(at[(3 * MC_PAGE + 5) * 2 + 1], 0x3F80); /* 1 + 2^-8: tie, even */

    memset(page, 0, 64);
    memset(at + 10, 0, 4);
    pool->slots[1].bad = MC_BAD_PAGE;
    kern_run(&k, gqa_prep, p);
    assert_int_equal(at[10], 0);
    assert_non_null(kern_refuses(&k, gqa_prep, {.kv = p.kv, .h = 3}));
    p.kv.n_shard = 2;
    assert_non_null(kern_refuses(&k, gqa_prep, p));
    pool_free(pool);
    kern_close(&k);
}

static void ref_prep_fp8_scales_by_token_or_as_told(void **state)
{
    static const struct {
        float fixed, scale;
        uint8_t byte;
    } t[] = {{0.25f, 0.25f, 0x48}, {0.5f, 0.5f, 0x40}, {0, 1 / 448.0f, 0x7E}};
    struct kern k = kern_ref(1, -1);
    struct pool *pool = pool_new(MC_KV_FP8, 1, 4, 1, 0);
    float q[4] = {0}, key[4] = {1, 1, 1, 1}, v[4] = {0};
    struct kern_rows r = {0};
    struct mc_gqa_prep_p p = {.kv = pool->kv, .slots = pool->slots, .h = 1, .q = q,
                              .k = key, .v = v};
    uint8_t *page = mc_kv_page(&pool->kv, 0, 0, 0);
    const float *scale = (const float *)(page + 2 * MC_PAGE * 4);
    size_t i;

    (void)state;
    kern_seq(&r, 0, 1, 1, true);
    p.rows = kern_view(&r);
    for (i = 0; i < 3; i++) {
        p.kv.k_scale = t[i].fixed > 0 ? &t[i].fixed : NULL;
        kern_run(&k, gqa_prep, p);
        assert_int_equal(page[1 * 4], t[i].byte);
        assert_true(scale[1] == t[i].scale);
        assert_true(scale[MC_PAGE + 1] == 0 && page[(MC_PAGE + 1) * 4] == 0); /* v: zeros */
    }
    v[2] = NAN; /* stays a NaN: the row will be found bad, not silently wrong */
    kern_run(&k, gqa_prep, p);
    assert_true(isnan(mc_f32_of_e4m3(page[(MC_PAGE + 1) * 4 + 2])));
    pool_free(pool);
    kern_close(&k);
}

/* ---- attention --------------------------------------------------------------------- */

enum { H = 4, HK = 2, D = 8, N_PART = 3, CTX = 600, CAP_DECODE = 4 };

struct ctx {
    struct kern k;
    struct pool *pool;
    float q[CTX * H * D], kv[2 * CTX * HK * D]; /* K, then V: as the cache keeps them */
};

/* What a layout keeps of the d values of one head. */
static void keep(uint16_t layout, float *x)
{
    float amax = 0;
    int i;

    for (i = 0; i < D; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    for (i = 0; i < D; i++)
        if (layout == MC_KV_BF16)
            x[i] = mc_f32_of_bf16(mc_bf16_of_f32(x[i]));
        else if (layout == MC_KV_FP8)
            x[i] = mc_f32_of_e4m3(mc_e4m3_of_f32(x[i] / (amax / 448))) * (amax / 448);
}

/* K and V of CTX tokens are in slot 0's pages, written by gqa_prep. */
static struct ctx *ctx_new(uint16_t layout, int fill)
{
    struct ctx *c = calloc(1, sizeof *c);
    uint64_t seed = 7;
    struct kern_rows r = {0};
    struct mc_gqa_prep_p p = {.layer = 1, .h = H};
    float *q = calloc(CTX * H * D, sizeof *q);
    int i;

    c->k = kern_ref(2, -1);
    c->pool = pool_new(layout, HK, D, 2, fill);
    for (i = 0; i < CTX * H * D; i++)
        q[i] = c->q[i] = 2 * kern_randn(&seed);
    for (i = 0; i < 2 * CTX * HK * D; i++)
        c->kv[i] = kern_randn(&seed);
    kern_seq(&r, 0, 0, CTX, false);
    p.rows = kern_view(&r);
    p.kv = c->pool->kv;
    p.slots = c->pool->slots;
    p.q = q;
    p.k = c->kv;
    p.v = c->kv + CTX * HK * D;
    kern_run(&c->k, gqa_prep, p);
    free(q);
    for (i = 0; i < 2 * CTX * HK; i++)
        keep(layout, c->kv + i * D);
    return c;
}

static void ctx_free(struct ctx *c)
{
    pool_free(c->pool);
    kern_close(&c->k);
    free(c);
}

/* Attends for the rows of r (of slot 0) into out [T][H*D]; parts start as garbage. */
static void attend(struct ctx *c, struct kern_rows *r, int32_t window, float *out)
{
    int32_t n = r->live[MC_LIVE_ROWS], t;
    size_t parts = (size_t)(CAP_DECODE * N_PART + n);
    float *q = malloc((size_t)n * H * D * sizeof *q),
          *o = malloc(parts * H * D * sizeof *o);
    float *ml = malloc(parts * H * 2 * sizeof *ml);

    memset(o, 0xFF, parts * H * D * sizeof *o);
    memset(ml, 0xFF, parts * H * 2 * sizeof *ml);
    for (t = 0; t < n; t++)
        memcpy(q + t * H * D, c->q + r->pos[t] * H * D, H * D * sizeof *q);
    kern_run(&c->k, gqa_attn,
             {.rows = kern_view(r), .kv = c->pool->kv, .slots = c->pool->slots, .layer = 1,
              .h = H, .n_part = N_PART, .window = window, .cap_decode = CAP_DECODE,
              .scale = 0.3f, .q = q, .o = o, .ml = ml});
    kern_run(&c->k, attn_merge,
             {.rows = kern_view(r), .h = H, .d = D, .n_part = N_PART,
              .cap_decode = CAP_DECODE, .o = o, .ml = ml,
              .act = {.x = out, .k = H * D, .layout = MC_A_F32}});
    free(q);
    free(o);
    free(ml);
}

/* The definition, in double. */
static void softmax_attend(const struct ctx *c, int32_t pos, int32_t head, int32_t window,
                           double *out)
{
    int32_t from = window > 0 && pos - window + 1 > 0 ? pos - window + 1 : 0,
            g = head / 2;
    double sum = 0, s, o[D] = {0};
    int32_t i, j;

    for (j = from; j <= pos; j++) {
        for (s = 0, i = 0; i < D; i++)
            s += (double)c->q[(pos * H + head) * D + i] * c->kv[(j * HK + g) * D + i];
        s = exp(0.3 * s);
        sum += s;
        for (i = 0; i < D; i++)
            o[i] += s * c->kv[((CTX + j) * HK + g) * D + i];
    }
    for (i = 0; i < D; i++)
        out[i] = o[i] / sum;
}

static void check_attend(uint16_t layout)
{
    static const int32_t pos[] = {0, 1, 63, 64, 255, 256, 300, 511, 512, 599};
    static const int32_t window[] = {0, 1, 50, 256, 300, 1000};
    struct ctx *c = ctx_new(layout, 0);
    float out[H * D];
    double want[D];
    size_t a, b;
    int decode, head, i;

    for (a = 0; a < sizeof pos / sizeof pos[0]; a++)
        for (b = 0; b < sizeof window / sizeof window[0]; b++)
            for (decode = 0; decode < 2; decode++) {
                struct kern_rows r = {0};

                kern_seq(&r, 0, pos[a], 1, decode);
                attend(c, &r, window[b], out);
                for (head = 0; head < H; head++) {
                    softmax_attend(c, pos[a], head, window[b], want);
                    for (i = 0; i < D; i++)
                        if (!(fabs(out[head * D + i] - want[i]) < 5e-6))
                            fail_msg("pos %d window %d head %d: %g, not %g", pos[a],
                                     window[b], head, (double)out[head * D + i], want[i]);
                }
            }
    ctx_free(c);
}

/* 5e-6: f32 sums of up to 600 terms of size 1, of which few are large. */
static void ref_attn_is_a_causal_softmax(void **state)
{
    (void)state;
    check_attend(MC_KV_F32);
    check_attend(MC_KV_BF16);
    check_attend(MC_KV_FP8);
}

/* All of a prompt at once, in chunks, and token by token as decode rows: equal bits. */
static void ref_attn_does_not_depend_on_chunks(void **state)
{
    static const uint16_t layouts[] = {MC_KV_F32, MC_KV_BF16, MC_KV_FP8};
    static const int32_t chunk[] = {1, 7, 64, 200, 333};
    float *all = malloc(CTX * H * D * sizeof *all),
          *out = malloc(CTX * H * D * sizeof *out);
    int32_t at, n, w;
    size_t i, j;

    (void)state;
    for (i = 0; i < 3; i++)
        for (w = 0; w <= 300; w += 300) {
            struct ctx *c = ctx_new(layouts[i], 0);
            struct kern_rows r = {0};

            kern_seq(&r, 0, 0, CTX, false);
            attend(c, &r, w, all);
            for (j = 0; j < 5; j++)
                for (at = 0; at < CTX; at += n) {
                    n = CTX - at < chunk[j] ? CTX - at : chunk[j];
                    memset(&r, 0, sizeof r);
                    kern_seq(&r, 0, at, n, n == 1);
                    attend(c, &r, w, out);
                    assert_memory_equal(out, all + at * H * D,
                                        (size_t)(n * H * D) * sizeof *out);
                }
            ctx_free(c);
        }
    free(all);
    free(out);
}

/* Decode and prefill rows of several sequences in one step. */
static void ref_attn_does_not_depend_on_the_batch(void **state)
{
    struct ctx *c = ctx_new(MC_KV_BF16, 0);
    float one[H * D], out[42 * H * D];
    struct kern_rows r = {0}, solo = {0};

    (void)state;
    kern_seq(&r, 0, 400, 1, true);
    kern_seq(&r, 0, 599, 1, true);
    kern_seq(&r, 0, 500, 40, false);
    attend(c, &r, 0, out);
    kern_seq(&solo, 0, 599, 1, true);
    attend(c, &solo, 0, one);
    assert_memory_equal(one, out + H * D, sizeof one);
    memset(&solo, 0, sizeof solo);
    kern_seq(&solo, 0, 539, 1, false);
    attend(c, &solo, 0, one);
    assert_memory_equal(one, out + 41 * H * D, sizeof one);
    ctx_free(c);
}

/* A pool that was full of NaN patterns before its tokens were written. */
static void ref_attn_reads_no_unwritten_bytes(void **state)
{
    static const uint16_t layouts[] = {MC_KV_F32, MC_KV_BF16, MC_KV_FP8};
    static const int32_t len[] = {1, 63, 64, 65, 127, 255, 257, 600};
    float a[H * D], b[H * D];
    size_t i, j;
    int decode;

    (void)state;
    for (i = 0; i < 3; i++) {
        struct ctx *zero = ctx_new(layouts[i], 0), *poison = ctx_new(layouts[i], 0x7F);

        for (j = 0; j < sizeof len / sizeof len[0]; j++)
            for (decode = 0; decode < 2; decode++) {
                struct kern_rows r = {0};

                kern_seq(&r, 0, len[j] - 1, 1, decode);
                attend(zero, &r, 0, a);
                attend(poison, &r, 0, b);
                assert_memory_equal(a, b, sizeof a);
            }
        ctx_free(zero);
        ctx_free(poison);
    }
}

static void ref_attn_gives_zeros_for_a_bad_sequence(void **state)
{
    struct ctx *c = ctx_new(MC_KV_F32, 0);
    float out[3 * H * D];
    struct kern_rows r = {0};
    int i;

    (void)state;
    c->pool->slots[0].bad = MC_BAD_PAGE;
    kern_seq(&r, 0, 300, 1, true);
    kern_seq(&r, 0, 298, 2, false);
    attend(c, &r, 0, out);
    for (i = 0; i < 3 * H * D; i++)
        assert_true(out[i] == 0);
    ctx_free(c);
}

static void ref_attn_refuses_a_context_beyond_its_parts(void **state)
{
    struct ctx *c = ctx_new(MC_KV_F32, 0);
    float q[H * D] = {0}, o[N_PART * H * D], ml[N_PART * H * 2];
    struct kern_rows r = {0};
    struct mc_gqa_attn_p p = {.kv = c->pool->kv, .slots = c->pool->slots, .h = H,
                              .n_part = 2, .cap_decode = 1, .q = q, .o = o, .ml = ml};

    (void)state;
    kern_seq(&r, 0, 512, 1, true);
    p.rows = kern_view(&r);
    mc_k_gqa_attn(c->k.b, c->k.s, &p);
    assert_int_equal(c->k.b->wait(c->k.s, c->k.b->mark(c->k.s)), MC_K_EINTERNAL);
    ctx_free(c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(ref_rope_turns_pairs_of_both_kinds),
    cmocka_unit_test(ref_prep_norms_heads_and_writes_its_page),
    cmocka_unit_test(ref_prep_fp8_scales_by_token_or_as_told),
    cmocka_unit_test(ref_attn_is_a_causal_softmax),
    cmocka_unit_test(ref_attn_does_not_depend_on_chunks),
    cmocka_unit_test(ref_attn_does_not_depend_on_the_batch),
    cmocka_unit_test(ref_attn_reads_no_unwritten_bytes),
    cmocka_unit_test(ref_attn_gives_zeros_for_a_bad_sequence),
    cmocka_unit_test(ref_attn_refuses_a_context_beyond_its_parts),
};

MC_TEST_MAIN(tests)
