/* test_ops_attn.c - gqa_attn and attn_merge: every body of the CPU backend against the
 * oracle over the same pages, whose unwritten bytes are NaNs; and against itself: a row's
 * bits do not depend on the batch, on chunks, on threads.
 *
 * Tolerance: a score is a sum of d products, off by d half-ulps of scale |q||k|; a
 * probability is off by that and a few ulps of exp, relatively, on both sides; o is a mean of
 * values under such weights, plus one rounding a position summed. */
#include "tests/c/test.h"

#include "kernels/host/kv.h"
#include "tests/c/ops.h"

enum { N_SLOT = 10, PITCH = 12, N_PAGE = N_SLOT * PITCH, N_PART = 3, CAP_DEC = 16 };

static const int32_t contexts[] = {1, 63, 64, 65, 255, 256, 257, 700};

struct shape {
    int32_t h, hk, d;
};
static const struct shape shapes[] = {{9, 3, 64}, {4, 4, 32}, {8, 1, 128}, {6, 2, 48}, {40, 1, 16}};

struct pool {
    struct mc_kv kv;
    struct mc_slot slots[N_SLOT];
    int32_t table[N_SLOT * PITCH];
    float v_top; /* bounds |v| */
};

/* Writes K and V of positions [0, n) of a slot by the oracle's prep. */
static void pool_write(struct kern *ref, struct pool *p, int32_t slot, int32_t n,
                       uint64_t *seed)
{
    int64_t each = (int64_t)p->kv.hk * p->kv.d, i;
    float *k = malloc((size_t)(n * each) * 4), *v = malloc((size_t)(n * each) * 4);
    float *q = malloc((size_t)(n * each) * 4);
    struct kern_rows r = {0};

    for (i = 0; i < n * each; i++) {
        k[i] = kern_randn(seed);
        v[i] = kern_randn(seed);
        p->v_top = fmaxf(p->v_top, fabsf(v[i]));
        q[i] = 0;
    }
    kern_seq(&r, slot, 0, n, false);
    kern_run(ref, gqa_prep,
             {.rows = kern_view(&r),
              .kv = p->kv,
              .slots = p->slots,
              .layer = 1,
              .h = p->kv.hk,
              .q = q,
              .k = k,
              .v = v});
    free(q), free(k), free(v);
}

/* Slot i holds contexts[i] tokens, the last two slots 700 and 40; the rest is NaN bytes. */
static struct pool *pool_new(struct kern *ref, const struct shape *s, uint16_t layout,
                             uint64_t *seed)
{
    struct pool *p = calloc(1, sizeof *p);
    int32_t i;

    p->kv = (struct mc_kv){.table = p->table, .pitch = PITCH, .n_page = N_PAGE,
                           .n_slot = N_SLOT, .hk = s->hk, .d = s->d, .n_layer = 2,
                           .n_shard = 1, .layout = layout};
    p->kv.layer_stride = mc_kv_layer_bytes(layout, s->hk, s->d) + 64;
    p->kv.page_stride = 2 * p->kv.layer_stride + 128;
    p->kv.base = malloc((size_t)(N_PAGE * p->kv.page_stride));
    memset(p->kv.base, 0xff, (size_t)(N_PAGE * p->kv.page_stride));
    for (i = 0; i < N_SLOT * PITCH; i++)
        p->table[i] = (i * 7) % N_PAGE; /* 7 and 120 share no factor: each page once */
    for (i = 0; i < N_SLOT; i++)
        pool_write(ref, p, i, i < 8 ? contexts[i] : i == 8 ? 700 : 40, seed);
    return p;
}

static void pool_free(struct pool *p)
{
    free(p->kv.base);
    free(p);
}

/* attn and merge into out [rows][h*d]; q [rows][h][d]. Parts begin as NaNs. */
static void run_attn(struct kern *k, const struct pool *p, const struct shape *s,
                     const struct kern_rows *r, int32_t window, const float *q,
                     float *out)
{
    int64_t parts = (int64_t)CAP_DEC * N_PART + KERN_T, i;
    float *o = malloc((size_t)(parts * s->h * s->d) * 4),
          *ml = malloc((size_t)(parts * s->h) * 8);
    struct mc_act act = {.x = out, .k = s->h * s->d, .layout = MC_A_F32};

    memset(o, 0xff, (size_t)(parts * s->h * s->d) * 4);
    for (i = 0; i < parts * s->h * 2; i++)
        ml[i] = NAN;
    kern_run(k, gqa_attn,
             {.rows = kern_view(r), .kv = p->kv, .slots = p->slots, .layer = 1, .h = s->h,
              .n_part = N_PART, .window = window, .cap_decode = CAP_DEC,
              .scale = 1 / sqrtf((float)s->d), .q = q, .o = o, .ml = ml});
    kern_run(k, attn_merge, {.rows = kern_view(r), .h = s->h, .d = s->d, .n_part = N_PART,
                             .cap_decode = CAP_DEC, .o = o, .ml = ml, .act = act});
    free(o), free(ml);
}

static float *random_q(int32_t rows, const struct shape *s, uint64_t *seed)
{
    int64_t n = (int64_t)rows * s->h * s->d, i;
    float *q = malloc((size_t)n * 4);

    for (i = 0; i < n; i++)
        q[i] = kern_randn(seed);
    return q;
}

/* A step of every context: a decode row each, then prefill rows of two sequences, one deep
 * in its context and one from the start; slot 3 is bad. */
static void ops_attn_agrees_with_the_oracle(void **state)
{
    static const int32_t windows[] = {0, 1, 50, 300};
    struct kern cpu, ref = kern_ref(2, -1);
    uint64_t seed = 47;
    size_t i;
    int32_t j, w;
    uint16_t layout;

    (void)state;
    for (i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (layout = 0; layout < MC_N_GQA_KV; layout++) {
            const struct shape *s = &shapes[i];
            struct pool *p = pool_new(&ref, s, layout, &seed);
            struct kern_rows r = {0};
            int32_t rows, cols = s->h * s->d;
            float *q, *want, *got;
            double smax = 6 * sqrt(s->d); /* |q||k| / sqrt d: both norms about sqrt d */
            double tol = ((2 * s->d + 8) * smax + 700 + 64) * 2 * OPS_U;

            for (j = 0; j < 8; j++)
                kern_seq(&r, j, contexts[j] - 1, 1, true);
            kern_seq(&r, 8, 689, 11, false);
            kern_seq(&r, 9, 0, 40, false);
            p->slots[3].bad = MC_BAD_PAGE;
            rows = r.live[MC_LIVE_ROWS];
            q = random_q(rows, s, &seed);
            want = malloc((size_t)(rows * cols) * 4);
            got = malloc((size_t)(rows * cols) * 4);
            for (w = 0; w < 4; w++) {
                run_attn(&ref, p, s, &r, windows[w], q, want);
                ops_each_body (cpu, 2) {
                    run_attn(&cpu, p, s, &r, windows[w], q, got);
                    for (j = 0; j < rows * cols; j++)
                        if (!(fabs((double)got[j] - want[j]) <= tol * p->v_top))
                            fail_msg(
                                "%s h %d/%d d %d kv %d window %d: row %d col %d is %.9g, "
                                "want %.9g +- %.3g",
                                cpu.b->what, s->h, s->hk, s->d, layout, windows[w],
                                j / cols, j % cols, got[j], want[j], tol * p->v_top);
                }
            }
            for (j = 0; j < cols; j++)
                assert_true(want[3 * cols + j] == 0);
            free(q), free(want), free(got);
            pool_free(p);
        }
    kern_close(&ref);
}

/* 700 rows of a sequence: whole, in chunks of any size, as decode rows, on any threads. */
static void ops_attn_rows_do_not_depend_on_chunks(void **state)
{
    static const int32_t chunk[] = {700, 1, 7, 64, 100, 257};
    struct kern cpu, ref = kern_ref(2, -1);
    uint64_t seed = 53;
    int32_t c, t, n, window;
    uint16_t layout;

    (void)state;
    for (layout = 0; layout < MC_N_GQA_KV; layout++)
        for (window = 0; window <= 90; window += 90) {
            const struct shape *s = &shapes[0];
            struct pool *p = pool_new(&ref, s, layout, &seed);
            int32_t cols = s->h * s->d;
            float *q = random_q(700, s, &seed), *first = malloc((size_t)(700 * cols) * 4);
            float *got = malloc((size_t)(700 * cols) * 4);

            for (int threads = 1; threads <= 3; threads++)
                ops_each_body (cpu, threads)
                    for (c = 0; c < 6; c++) {
                        for (t = 0; t < 700; t += n) {
                            struct kern_rows r = {0};

                            n = 700 - t < chunk[c] ? 700 - t : chunk[c];
                            kern_seq(&r, 8, t, n, n == 1);
                            run_attn(&cpu, p, s, &r, window, q + t * cols,
                                     got + t * cols);
                        }
                        if (c == 0)
                            memcpy(first, got, (size_t)(700 * cols) * 4);
                        else if (memcmp(first, got, (size_t)(700 * cols) * 4) != 0)
                            fail_msg("%s kv %d window %d: chunks of %d give other bits",
                                     cpu.b->what, layout, window, chunk[c]);
                    }
            free(q), free(first), free(got);
            pool_free(p);
        }
    kern_close(&ref);
}

/* A row next to others has the bits it has alone, and threads change none. */
static void ops_attn_rows_do_not_depend_on_the_batch(void **state)
{
    struct kern cpu, ref = kern_ref(2, -1);
    const struct shape *s = &shapes[0];
    uint64_t seed = 59;
    struct pool *p = pool_new(&ref, s, MC_KV_BF16, &seed);
    struct kern_rows r = {0}, one;
    int32_t cols = s->h * s->d, t, rows;
    float *q, *all, *first, alone[9 * 64];

    (void)state;
    for (t = 0; t < 8; t++)
        kern_seq(&r, t, contexts[t] - 1, 1, true);
    kern_seq(&r, 9, 3, 21, false);
    kern_seq(&r, 8, 500, 33, false);
    rows = r.live[MC_LIVE_ROWS];
    q = random_q(rows, s, &seed);
    all = malloc((size_t)(rows * cols) * 4);
    first = malloc((size_t)(rows * cols) * 4);
    for (size_t body = 0; body < 3; body++)
        for (int threads = 1; threads <= 3 && ops_open(ops_bodies[body], threads, &cpu);
             threads++) {
            run_attn(&cpu, p, s, &r, 0, q, all);
            if (threads == 1)
                memcpy(first, all, (size_t)(rows * cols) * 4);
            assert_memory_equal(first, all, (size_t)(rows * cols) * 4);
            for (t = 0; t < rows; t++) {
                one = (struct kern_rows){0};
                kern_seq(&one, r.slot[r.row_seq[t]], r.pos[t], 1, t % 2);
                run_attn(&cpu, p, s, &one, 0, q + t * cols, alone);
                assert_memory_equal(alone, all + t * cols, sizeof alone);
            }
            kern_close(&cpu);
        }
    free(q), free(all), free(first);
    pool_free(p);
    kern_close(&ref);
}

/* A NaN in a key or value that a row may see makes it NaN; rows before it are untouched. */
static void ops_attn_lets_nan_reach_only_who_sees_it(void **state)
{
    struct kern cpu, ref = kern_ref(1, -1);
    const struct shape *s = &shapes[0];
    uint64_t seed = 61;
    int32_t cols = s->h * s->d, t, c, v;
    uint16_t layout;

    (void)state;
    for (layout = 0; layout < MC_N_GQA_KV; layout++)
        for (v = 0; v < 2; v++) {
            struct pool *p = pool_new(&ref, s, layout, &seed);
            struct kern_rows r = {0};
            float *q = random_q(20, s, &seed), *out = malloc((size_t)(20 * cols) * 4);
            uint8_t *page = mc_kv_page(&p->kv, 1, 9, 12);

            for (c = 0; c < 3; c++)
                memset((uint8_t *)mc_kv_at(&p->kv, page, v, c, 12), 0xff,
                       (size_t)(s->d * mc_kv_bytes(layout)));
            kern_seq(&r, 9, 0, 20, false);
            ops_each_body (cpu, 1) {
                run_attn(&cpu, p, s, &r, 0, q, out);
                for (t = 0; t < 20; t++)
                    for (c = 0; c < cols; c++)
                        assert_true(isnan(out[t * cols + c]) == (t >= 12));
            }
            free(q), free(out);
            pool_free(p);
        }
    kern_close(&ref);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(ops_attn_agrees_with_the_oracle),
    cmocka_unit_test(ops_attn_rows_do_not_depend_on_chunks),
    cmocka_unit_test(ops_attn_rows_do_not_depend_on_the_batch),
    cmocka_unit_test(ops_attn_lets_nan_reach_only_who_sees_it),
};

MC_TEST_MAIN(tests)
