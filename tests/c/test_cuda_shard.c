/* test_cuda_shard.c - tokens spread over ranks, on emulated CUDA: the body of mla_attn
 * that has all heads of a group, and what a rank makes of its own pages, against the
 * oracle.
 *
 * Tolerance of attention: see test_cuda_mla.c. A part that is not normalised is compared
 * as its quotient and its log of sums; a head's outputs together, by the root of their
 * squares, to 2^-12: probabilities have 16 bits, of which 8 would leave 2^-10. */
#include "tests/c/test.h"

#include "tests/c/cuda_help.h"
#include "tests/c/latent.h"

enum { N_PART = 3, CAP_DEC = 3, LAYER = 1, SHARDS = 2 };

static const uint16_t layouts[] = {MC_KV_BF16, MC_KV_FP8_PLAIN, MC_KV_FP8_656};

/* A rank's pool: block b of slot s lies with rank (s + b) mod SHARDS. */
static struct latent_pool *pool_of(int32_t rank, int32_t n_shard, uint16_t layout,
                                   int32_t c, int32_t r)
{
    struct latent_pool *p = latent_new(layout, c, r, 64, 0xff);

    p->kv.rank = rank;
    p->kv.n_shard = n_shard;
    for (int32_t i = 0; i < LAT_PAGE && n_shard > 1; i++)
        p->table[i] = i * 7 % LAT_PAGE * SHARDS +
                      (i / LAT_PITCH + i % LAT_PITCH) % SHARDS;
    return p;
}

/* ---- attention --------------------------------------------------------------------- */

struct shape {
    int32_t h, c, r;
};

/* Parts of rows, folded but not normalised: o [rows][h][c], then {max, sum} [rows][h]. */
static float *run_attn(struct kern *k, const struct latent_pool *p, const struct shape *s,
                       const struct kern_rows *r, const void *q)
{
    int64_t parts = (int64_t)CAP_DEC * N_PART + KERN_T;
    int32_t n = r->live[MC_LIVE_ROWS];
    float *o = malloc((size_t)(parts * s->h * s->c) * 4);
    float *ml = malloc((size_t)(parts * s->h) * 8);
    float *fold = calloc((size_t)(n * s->h * (s->c + 2)), 4);
    struct mc_rows rows = kern_view(r);

    rows.cap = n;
    memset(o, 0xff, (size_t)(parts * s->h * s->c) * 4);
    memset(ml, 0xff, (size_t)(parts * s->h) * 8);
    kern_run(k, mla_attn, {.rows = rows, .kv = p->kv, .slots = p->slots, .layer = LAYER,
                           .h = s->h, .n_part = N_PART, .cap_decode = CAP_DEC,
                           .scale = 1 / sqrtf((float)(s->c + s->r)), .q = q, .o = o,
                           .ml = ml});
    kern_run(k, attn_merge, {.rows = rows, .h = s->h, .d = s->c, .n_part = N_PART,
                             .cap_decode = CAP_DEC, .o = o, .ml = ml, .fold = fold});
    free(o), free(ml);
    return fold;
}

static void compare(const struct shape *s, int32_t rows, const float *got,
                    const float *want, const char *what)
{
    const float *ml[2] = {got + rows * s->h * s->c, want + rows * s->h * s->c};
    int32_t d = s->c + s->r;
    double tol = (((2 * d + 8) * 6 * sqrt(d) + 700) * 2 * OPS_U + 0x1p-15) * 8;

    for (int32_t i = 0; i < rows * s->h; i++) {
        const float *a = ml[0] + 2 * i, *b = ml[1] + 2 * i;
        double off = 0, all = 0;

        if ((a[1] == 0) != (b[1] == 0) ||
            (b[1] != 0 && !(fabs(a[0] + log(a[1]) - b[0] - log(b[1])) <= tol)))
            fail_msg("%s: row %d head %d has {%g, %g}, want {%g, %g}", what, i / s->h,
                     i % s->h, a[0], a[1], b[0], b[1]);
        for (int32_t j = i * s->c; j < (i + 1) * s->c && b[1] != 0; j++) {
            double x = (double)got[j] / a[1], y = (double)want[j] / b[1];

            off += (x - y) * (x - y);
            all += y * y;
            if (!(fabs(x - y) <= tol))
                fail_msg("%s: row %d head %d col %d is %g, want %g", what, i / s->h,
                         i % s->h, j % s->c, x, y);
        }
        if (!(sqrt(off) <= 0x1p-12 * sqrt(all)))
            fail_msg("%s: row %d head %d is %g off, of %g", what, i / s->h, i % s->h,
                     sqrt(off), sqrt(all));
    }
}

/* On each rank that there is. */
static void check(struct kern *cu, struct kern *ref, const struct shape *s,
                  uint16_t layout, int32_t n_shard, const struct kern_rows *r,
                  const char *what)
{
    int32_t rows = r->live[MC_LIVE_ROWS];
    int64_t n = (int64_t)rows * s->h * (s->c + s->r);
    uint64_t seed = 503;
    float *qf;
    uint16_t *q = randoms(n, &qf, &seed);

    for (int64_t i = 0; i < n; i++) { /* no score but a few hundred */
        q[i] = mc_bf16_of_f32(fmaxf(-4, fminf(4, qf[i])));
        qf[i] = as_f32(q, i);
    }
    for (int32_t rank = 0; rank < n_shard; rank++) {
        struct latent_pool *p = pool_of(rank, n_shard, layout, s->c, s->r);
        float *got, *want;

        for (int32_t i = 0; i < r->live[MC_LIVE_SEQS]; i++)
            latent_fill(ref, p, LAYER, r->slot[i], r->kv_len[i], &seed);
        want = run_attn(ref, p, s, r, qf);
        got = run_attn(cu, p, s, r, q);
        compare(s, rows, got, want, what);
        free(got), free(want);
        latent_free(p);
    }
    free(q), free(qf);
}

/* 64 heads, and 40 of which the tile has rows to spare; two splits, a tile that ends. */
static void cuda_mla_attn_of_64_heads_agrees_with_the_oracle(void **state)
{
    static const struct shape s[] = {{64, 128, 32}, {40, 128, 32}, {64, 512, 64}};
    struct kern cu = cuda_open(), ref = kern_ref(2, -1);
    struct kern_rows few = {0}, one = {0};

    (void)state;
    kern_seq(&few, 0, 264, 1, true);
    kern_seq(&few, 1, 64, 2, false);
    kern_seq(&one, 2, 36, 1, true);
    check(&cu, &ref, &s[0], MC_KV_BF16, 1, &few, "64 heads, bf16");
    check(&cu, &ref, &s[1], MC_KV_FP8_656, 1, &few, "40 heads, fp8-656");
    for (int i = 0; i < 3; i++)
        check(&cu, &ref, &s[2], layouts[i], 1, &one, "64 heads of 512 + 64");
    kern_close(&cu);
    kern_close(&ref);
}

/* Rows see what their rank has of them: of a context of 600 some 300, of one of 40 all or
 * nothing. */
static void cuda_mla_attn_sees_a_ranks_own_tokens(void **state)
{
    static const struct shape s[] = {{48, 128, 32}, {8, 128, 32}};
    struct kern cu = cuda_open(), ref = kern_ref(2, -1);
    struct kern_rows r = {0}, few = {0};

    (void)state;
    kern_seq(&r, 0, 599, 1, true);
    kern_seq(&r, 1, 39, 1, true);
    kern_seq(&r, 3, 126, 4, false);
    kern_seq(&r, 2, 20, 2, false);
    kern_seq(&few, 1, 140, 1, true);
    kern_seq(&few, 2, 63, 2, false);
    for (int i = 0; i < 3; i++)
        check(&cu, &ref, &s[1], layouts[i], SHARDS, &r, "a rank's tokens");
    check(&cu, &ref, &s[0], MC_KV_FP8_PLAIN, SHARDS, &few, "a rank's tokens, all heads");
    kern_close(&cu);
    kern_close(&ref);
}

/* ---- the indexer ------------------------------------------------------------------- */

enum { HI = 20, DI = 64, TOPK = 64 };

static uint8_t code(uint64_t *seed) /* of e4m3, up to 15 */
{
    return (uint8_t)(kern_rand(seed) % 2 << 7 | kern_rand(seed) % 0x57);
}

/* Of a context of 600, of one of 100 whose scores the ranks compare though each takes all
 * of its own, and of one of 40, whose are all taken by everybody. */
static void cuda_dsa_topk_chooses_among_a_ranks_own(void **state)
{
    static const int32_t pos[3] = {599, 99, 39};
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);

    (void)state;
    for (int32_t rank = 0; rank < SHARDS; rank++) {
        struct latent_pool *p = pool_of(rank, SHARDS, MC_KV_FP8_656, 128, 32);
        struct kern_rows r = {0};
        int32_t idx[2][3 * TOPK];
        float score[2][3 * TOPK] = {{0}}, gates[3 * HI];
        uint8_t qi[3 * HI * DI];
        uint64_t seed = 521;

        for (int32_t i = 0; i < LAT_PAGE; i++) {
            uint8_t *page = p->kv.base + i * p->kv.page_stride + p->kv.index_off;
            float s;

            for (int32_t j = 0; j < MC_PAGE * DI; j++)
                page[j] = code(&seed);
            for (int32_t j = 0; j < MC_PAGE; j++) {
                s = 0.01f * (float)(1 + kern_rand(&seed) % 50);
                memcpy(page + MC_PAGE * DI + 4 * j, &s, 4);
            }
        }
        for (size_t i = 0; i < sizeof qi; i++)
            qi[i] = code(&seed);
        for (int32_t i = 0; i < 3 * HI; i++)
            gates[i] = kern_randn(&seed);
        for (int32_t i = 0; i < 3; i++)
            kern_seq(&r, i, pos[i], 1, true);
        for (int k = 0; k < 2; k++) {
            struct mc_dsa_topk_p t = {.rows = kern_view(&r), .kv = p->kv,
                                      .slots = p->slots, .hi = HI, .topk = TOPK,
                                      .context = LAT_PITCH * MC_PAGE, .qi = qi,
                                      .gates = gates, .idx = idx[k], .score = score[k]};
            float *scratch = malloc(3 * 4 * TOPK * 8);

            t.rows.cap = 3;
            t.scratch = scratch;
            kern_run(k ? &cu : &ref, dsa_topk, t);
            free(scratch);
        }
        assert_memory_equal(idx[0], idx[1], sizeof idx[0]);
        for (int32_t i = 0; i < 3 * TOPK; i++)
            if (idx[0][i] >= 0 && i < 2 * TOPK)
                assert_true(fabsf(score[0][i] - score[1][i]) <=
                            1e-4f * (1 + fabsf(score[0][i])));
        latent_free(p);
    }
    kern_close(&cu);
    kern_close(&ref);
}

/* ---- pages ------------------------------------------------------------------------- */

/* Latents go to the rank that has their page, whose other pages stay as they are. */
static void cuda_mla_prep_writes_a_ranks_own_tokens(void **state)
{
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);

    (void)state;
    for (int32_t rank = 0; rank < SHARDS; rank++) {
        struct latent_pool *a = pool_of(rank, SHARDS, MC_KV_BF16, 128, 32),
                           *b = pool_of(rank, SHARDS, MC_KV_BF16, 128, 32);
        struct kern_rows r = {0};
        float *x, *w, inv[16];
        uint64_t seed = 509;
        uint16_t *half = randoms(140 * 160, &x, &seed);
        struct mc_mla_prep_p p = {.layer = LAYER, .kv_a = x, .eps = 1e-6f,
                                  .rope = {inv, 1, 32, 0, 1}};
        size_t off = 0, written = 0;

        latent_freqs(inv, 32);
        free(randoms(128, &w, &seed));
        kern_seq(&r, 4, 30, 140, false);
        p.rows = kern_view(&r);
        p.rows.cap = 140;
        p.kv_norm = w;
        p.kv = a->kv, p.slots = a->slots;
        kern_run(&ref, mla_prep, p);
        p.kv = b->kv, p.slots = b->slots, p.kv_a = half;
        kern_run(&cu, mla_prep, p);
        for (size_t i = 0; i < a->bytes; i++) {
            written += a->kv.base[i] != 0xff;
            off += a->kv.base[i] != b->kv.base[i];
            assert_true((a->kv.base[i] == 0xff) == (b->kv.base[i] == 0xff) ||
                        abs(a->kv.base[i] - b->kv.base[i]) == 1);
        }
        assert_true(written > 60 * 300 && off <= written / 100); /* roundings of ties */
        free(x), free(half), free(w);
        latent_free(a), latent_free(b);
    }
    kern_close(&cu);
    kern_close(&ref);
}

/* Pages 3 and 8 of the group are page 1 of rank 1 and page 4 of rank 0. */
static void cuda_pages_of_another_rank_are_passed_over(void **state)
{
    struct kern cu = cuda_open();
    uint32_t list[2][2] = {{3, 70}, {8, 71}};
    int32_t n_list = 2, pages[2] = {8, 3};

    (void)state;
    for (int32_t rank = 0; rank < SHARDS; rank++) {
        struct latent_pool *p = pool_of(rank, SHARDS, MC_KV_BF16, 128, 32);
        size_t n = (size_t)p->kv.page_stride, mine = rank ? 1 : 4;
        uint8_t *buf = calloc(2, n);

        memset(p->kv.base + mine * n, 0x11, n);
        kern_run(&cu, page_copy,
                 {.kv = p->kv, .pages = pages, .n = 2, .buf = buf, .to_buf = true});
        for (size_t i = 0; i < 2 * n; i++)
            assert_int_equal(buf[i], i / n == (size_t)rank ? 0x11 : 0);
        kern_run(&cu, page_init,
                 {.kv = p->kv, .list = &list[0][0], .n_list = &n_list, .cap = 2});
        for (size_t i = 0; i < p->bytes; i++)
            assert_int_equal(p->kv.base[i], i / n == mine ? 0 : 0xff);
        for (size_t i = 0; i < LAT_PAGE; i++)
            assert_int_equal(p->tag[i], i == mine ? 71 - (uint32_t)rank : 0);
        free(buf);
        latent_free(p);
    }
    kern_close(&cu);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(cuda_mla_attn_of_64_heads_agrees_with_the_oracle),
    cmocka_unit_test(cuda_mla_attn_sees_a_ranks_own_tokens),
    cmocka_unit_test(cuda_dsa_topk_chooses_among_a_ranks_own),
    cmocka_unit_test(cuda_mla_prep_writes_a_ranks_own_tokens),
    cmocka_unit_test(cuda_pages_of_another_rank_are_passed_over),
};

MC_TEST_MAIN(tests)
