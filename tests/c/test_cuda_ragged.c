/* test_cuda_ragged.c - attn_ragged on emulated CUDA: rows of long chunks against the
 * oracle, which expands the same stored latents in f32, and against themselves in other
 * company.
 *
 * Tolerance: the oracle's keys, values and probabilities are f32, here bf16, off by a
 * half-ulp of 2^-9 of themselves at most, 2^-9.8 by the root of the mean square. Queries
 * are about 1 (none above 4), so a score is off by as much, and with the other three
 * roundings an output by 2^-8.8: a head's outputs together, by the root of their squares,
 * may be off by 2^-7. A position too many or too few of 300 is 2^-4. */
#include "tests/c/test.h"

#include "tests/c/cuda_help.h"
#include "tests/c/latent.h"

enum { LAYER = 1, LONG = 40 };

struct rig {
    struct latent_pool *pool;
    int32_t h, nope, v;
    float *w;    /* kv_b [h*(nope+v)][c], as bf16 has it */
    float *qf;   /* [rows][h][nope+r] */
    uint16_t *q; /* the same */
};

static struct rig rig_new(struct kern *ref, int32_t h, int32_t nope, int32_t v, int32_t c,
                          int32_t r, uint16_t layout, uint64_t *seed)
{
    struct rig g = {latent_new(layout, c, r, 0, 0xff), h, nope, v, NULL, NULL, NULL};
    int32_t n = h * (nope + v) * c;

    g.q = randoms((int64_t)256 * h * (nope + r), &g.qf, seed);
    for (int32_t i = 0; i < 256 * h * (nope + r); i++) {
        g.q[i] = mc_bf16_of_f32(fmaxf(-4, fminf(4, g.qf[i])));
        g.qf[i] = as_f32(g.q, i);
    }
    g.w = malloc((size_t)n * 4);
    for (int32_t i = 0; i < n; i++)
        g.w[i] = mc_f32_of_bf16(mc_bf16_of_f32(kern_randn(seed) / sqrtf((float)c)));
    latent_fill(ref, g.pool, LAYER, 0, c == 128 ? 300 : 70, seed);
    latent_fill(ref, g.pool, LAYER, 1, 70, seed);
    return g;
}

static void rig_free(struct rig *g)
{
    latent_free(g->pool);
    free(g->w), free(g->qf), free(g->q);
}

/* Long rows of act [rows][h*v], which begins as it is; cap: of rows in a step. */
static void run(struct kern *k, const struct rig *g, const struct kern_rows *r,
                int32_t cap, const void *q, void *act)
{
    bool f32 = k->b->row_dt == MC_F32;
    struct mc_disk d = {.fmt = f32 ? MC_D_F32 : MC_D_BF16, .n = g->h * (g->nope + g->v),
                        .k = g->pool->kv.c};
    uint16_t *half = malloc((size_t)(d.n * d.k) * 2);
    struct mc_attn_ragged_p p = {
        .rows = kern_view(r), .kv = g->pool->kv, .slots = g->pool->slots, .layer = LAYER,
        .h = g->h, .nope = g->nope, .v = g->v, .long_rows = LONG,
        .scale = 1 / sqrtf((float)(g->nope + g->pool->kv.r)), .q = q,
        .act = {.x = act, .k = g->h * g->v, .layout = f32 ? MC_A_F32 : MC_A_BF16}};
    struct mc_need need;
    const char *why = "";

    for (int32_t i = 0; i < d.n * d.k; i++)
        half[i] = mc_bf16_of_f32(g->w[i]);
    d.q = f32 ? (void *)g->w : half;
    p.rows.cap = cap;
    p.kv_b = ops_pack(k, &d);
    if (k->b->op[MC_OP_attn_ragged]->need(&p, &need, &why) != 0)
        fail_msg("refused: %s", why);
    p.scratch = malloc(need.scratch + 1);
    memset(p.scratch, 0xff, need.scratch + 1);
    kern_run(k, attn_ragged, p);
    free(p.scratch), free(half);
    ops_w_free(&p.kv_b);
}

static void compare(const struct rig *g, const struct kern_rows *r, const float *want,
                    const uint16_t *got, const char *what)
{
    int32_t n = r->live[MC_LIVE_ROWS] * g->h;

    for (int32_t i = 0; i < n; i++) {
        struct mc_rows rows = kern_view(r);
        bool is_long = mc_row_is_long(&rows, i / g->h, LONG);
        double off = 0, all = 0;

        for (int32_t j = i * g->v; j < (i + 1) * g->v; j++) {
            off += pow(as_f32(got, j) - (double)want[j], 2);
            all += pow(want[j], 2);
            if (!is_long && got[j] != 0x5555)
                fail_msg("%s: row %d is not long and was written", what, i / g->h);
        }
        if (is_long && !(sqrt(off) <= 0x1p-7 * sqrt(all)))
            fail_msg("%s: row %d head %d is %.3g off, of %.3g", what, i / g->h, i % g->h,
                     sqrt(off), sqrt(all));
    }
}

static void check(struct kern *cu, struct kern *ref, const struct rig *g,
                  const struct kern_rows *r, const char *what)
{
    size_t n = (size_t)(r->live[MC_LIVE_ROWS] * g->h * g->v);
    float *want = calloc(n, 4);
    uint16_t *got = malloc(n * 2);

    memset(got, 0x55, n * 2);
    run(ref, g, r, KERN_T, g->qf, want);
    run(cu, g, r, KERN_T, g->q, got);
    compare(g, r, want, got, what);
    free(want), free(got);
}

/* A decode row, a short chunk, a chunk deep in its context whose rounds are of 256, one
 * from its beginning, and one whose page was lost: zeros. */
static void cuda_ragged_agrees_with_the_oracle(void **state)
{
    static const uint16_t layouts[] = {MC_KV_BF16, MC_KV_FP8_PLAIN, MC_KV_FP8_656};
    static const char *const name[] = {"bf16", "fp8-plain", "fp8-656"};
    float fixed[LAT_LAYERS] = {1, 0.5f};
    struct kern cu = cuda_open(), ref = kern_ref(2, -1);
    uint64_t seed = 401;

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct rig g = rig_new(&ref, 2, 32, 32, 128, 32, layouts[i], &seed);
        struct kern_rows r = {0};

        g.pool->kv.k_scale = layouts[i] == MC_KV_FP8_PLAIN ? fixed : NULL;
        g.pool->slots[3].bad = MC_BAD_PAGE;
        kern_seq(&r, 0, 299, 1, true);
        kern_seq(&r, 1, 9, 7, false);
        kern_seq(&r, 0, 240, 57, false);
        kern_seq(&r, 1, 0, 45, false);
        kern_seq(&r, 3, 100, 40, false);
        check(&cu, &ref, &g, &r, name[i]);
        rig_free(&g);
    }
    kern_close(&cu);
    kern_close(&ref);
}

static void cuda_ragged_knows_real_heads(void **state)
{
    struct kern cu = cuda_open(), ref = kern_ref(2, -1);
    uint64_t seed = 409;
    struct rig g = rig_new(&ref, 1, 128, 128, 512, 64, MC_KV_FP8_656, &seed);
    struct kern_rows r = {0};

    (void)state;
    kern_seq(&r, 0, 28, 42, false);
    check(&cu, &ref, &g, &r, "192 + 128");
    rig_free(&g);
    kern_close(&cu);
    kern_close(&ref);
}

/* The last 45 rows of a prompt: in a longer chunk, behind another one, and with rounds
 * that take the whole context. */
static void cuda_ragged_rows_do_not_depend_on_the_batch(void **state)
{
    struct kern cu = cuda_open(), ref = kern_ref(2, -1);
    uint64_t seed = 419;
    struct rig g = rig_new(&ref, 2, 32, 32, 128, 32, MC_KV_BF16, &seed);
    struct kern_rows r[3] = {0};
    enum { COLS = 2 * 32, D = 2 * 64, ROWS = 45 };
    uint16_t *act[3];

    (void)state;
    kern_seq(&r[0], 0, 243, 12 + ROWS, false);
    kern_seq(&r[1], 0, 255, ROWS, false);
    kern_seq(&r[2], 1, 0, 50, false);
    kern_seq(&r[2], 0, 255, ROWS, false);
    for (int i = 0; i < 3; i++) {
        int32_t n = r[i].live[MC_LIVE_ROWS];
        uint16_t *q = malloc((size_t)(n * D) * 2);

        memcpy(q, g.q, (size_t)(n * D) * 2);
        memcpy(q + (n - ROWS) * D, g.q, ROWS * D * 2);
        act[i] = calloc((size_t)(n * COLS), 2);
        run(&cu, &g, &r[i], i == 1 ? 64 : KERN_T, q, act[i]);
        assert_memory_equal(act[i] + (n - ROWS) * COLS,
                            act[0] + 12 * COLS, ROWS * COLS * 2);
        free(q);
    }
    for (int i = 0; i < 3; i++)
        free(act[i]);
    rig_free(&g);
    kern_close(&cu);
    kern_close(&ref);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(cuda_ragged_agrees_with_the_oracle),
    cmocka_unit_test(cuda_ragged_knows_real_heads),
    cmocka_unit_test(cuda_ragged_rows_do_not_depend_on_the_batch),
};

MC_TEST_MAIN(tests)
