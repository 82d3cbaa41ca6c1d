/* test_cuda_ranks.c - ranks that meet on their devices, emulated side by side: joins and
 * the other collectives of 1 to 8 ranks, bit for bit, and every way in which they part.
 */
#include "tests/c/test.h"

#include "tests/c/cuda_help.h"
#include "tests/c/ranks_help.h"

#include "kernels/cuda/params.h"

enum { MOST = 9, WIDEST = 4160 };

static const int32_t counts[] = {2, 3, 8};

static struct ranks ranks_open(int32_t n, uint32_t patience_ms)
{
    struct ranks r = {.n = n};
    const char *why = "";

    assert_int_equal(mc_comm_open(n, patience_ms, &r.comm), 0);
    for (int32_t i = 0; i < n; i++) {
        struct mc_backend_opts o = {.ref_act = -1, .peer = {r.comm, i, n}};

        r.k[i] = kern_open(mc_cuda_open(&o, &why), why);
    }
    return r;
}

static void parted(struct ranks *r, const char *why)
{
    for (int32_t i = 0; i < r->n; i++)
        assert_int_equal(ranks_wait(r, i), MC_K_ERANK);
    if (!strstr(mc_comm_broken(r->comm), why))
        fail_msg("'%s' is not '%s'", mc_comm_broken(r->comm), why);
}

/* ---- sums -------------------------------------------------------------------------- */

/* Both are f32 sums of bf16 numbers in one order, then one rounding: they are equal. */
static uint16_t sum_of(uint16_t *const *x, int32_t n, int64_t at, const uint16_t *res)
{
    float sum = as_f32(x[0], at);

    for (int32_t i = 1; i < n; i++)
        sum += as_f32(x[i], at);
    return mc_bf16_of_f32(res ? sum + as_f32(res, at) : sum);
}

static void check_norm(const uint16_t *res, const uint16_t *norm, const float *w,
                       int32_t h)
{
    double sum = 0;

    for (int32_t c = 0; c < h; c++)
        sum += (double)as_f32(res, c) * as_f32(res, c);
    for (int32_t c = 0; c < h; c++) {
        double want = as_f32(res, c) / sqrt(sum / h + 1e-5) * w[c];

        assert_true(fabs(as_f32(norm, c) - want) <= BF * fabs(want) + 1e-30);
    }
}

/* Steps of other numbers of rows, none too; the second join of a step adds to the
 * first's. */
static void check_joins(int32_t n, int32_t h, const int32_t *rows_of, int32_t n_step)
{
    struct ranks r = ranks_open(n, 60000);
    size_t bytes = (size_t)MOST * (size_t)h * 2;
    uint16_t *x[2][MC_MAX_RANKS], *res[MC_MAX_RANKS], *norm[MC_MAX_RANKS];
    uint16_t *want = calloc(1, bytes);
    float *w = malloc((size_t)h * 4), *f;
    uint64_t seed = 5;

    for (int32_t c = 0; c < h; c++)
        w[c] = kern_randn(&seed);
    for (int32_t i = 0; i < n; i++) {
        res[i] = calloc(1, bytes);
        norm[i] = calloc(1, bytes);
    }
    for (int32_t step = 0; step < n_step; step++) {
        struct kern_rows rows = {0};

        if (rows_of[step] > 0)
            kern_seq(&rows, 0, 0, rows_of[step], false);
        for (int k = 0; k < 2; k++)
            for (int32_t i = 0; i < n; i++) {
                x[k][i] = randoms((int64_t)MOST * h, &f, &seed);
                free(f);
            }
        for (int k = 0; k < 2; k++)
            for (int32_t j = 0; j < n; j++) {
                int32_t i = (j + step) % n; /* whoever is first waits for the others */
                struct mc_join_p p = {.rows = kern_view(&rows),
                                      .x = x[k][i],
                                      .res = res[i],
                                      .w = k ? w : NULL,
                                      .eps = 1e-5f,
                                      .h = h,
                                      .first = k == 0,
                                      .norm_out = norm[i],
                                      .peer = {r.comm, i, n}};

                p.rows.cap = MOST;
                assert_int_equal(mc_k_join(r.k[i].b, r.k[i].s, &p), 0);
            }
        ranks_all_well(&r);
        for (int64_t at = 0; at < (int64_t)rows_of[step] * h; at++)
            want[at] = sum_of(x[0], n, at, NULL);
        for (int64_t at = 0; at < (int64_t)rows_of[step] * h; at++)
            want[at] = sum_of(x[1], n, at, want);
        for (int32_t i = 0; i < n; i++) {
            assert_memory_equal(res[i], want, bytes);
            assert_memory_equal(norm[i], norm[0], bytes);
        }
        for (int32_t t = 0; t < rows_of[step]; t++)
            check_norm(res[0] + t * h, norm[0] + t * h, w, h);
        for (int k = 0; k < 2; k++)
            for (int32_t i = 0; i < n; i++)
                free(x[k][i]);
    }
    for (int32_t i = 0; i < n; i++)
        free(res[i]), free(norm[i]);
    free(want), free(w);
    ranks_close(&r);
}

static void cuda_ranks_add_in_rank_order_on_every_rank(void **state)
{
    static const int32_t rows[] = {1, 5, 0, 1, MOST, 2, 3};

    (void)state;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        check_joins(counts[c], c == 0 ? WIDEST : 64, rows, c == 0 ? 2 : 7);
}

/* Rows for which a seat has no room at once are added up by turns. */
static void cuda_ranks_join_more_rows_than_a_seat_holds(void **state)
{
    static const int32_t rows[] = {5, 0, 2};

    (void)state;
    check_joins(2, MC_CU_ROOM / 4 / 8, rows, 3); /* eight at once, of MOST */
    check_joins(3, MC_CU_ROOM / 4 / 8, rows, 1);
}

/* A recorded step replayed without a wait: a rank runs ahead as far as it can. */
static void cuda_ranks_replay_and_nobody_is_overrun(void **state)
{
    enum { H = 64, ROUNDS = 60 };
    uint16_t x[MC_MAX_RANKS][2][3 * H], res[MC_MAX_RANKS][3 * H] = {0};
    struct kern_rows rows = {0};
    struct mc_graph *g[MC_MAX_RANKS];

    (void)state;
    kern_seq(&rows, 0, 0, 3, false);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        int32_t n = counts[c];
        struct ranks r = ranks_open(n, 60000);

        for (int32_t i = 0; i < n; i++) {
            struct mc_stream *s = r.k[i].s;

            assert_int_equal(r.k[i].b->graph_begin(s), 0);
            for (int k = 0; k < 2; k++) {
                struct mc_join_p p = {.rows = kern_view(&rows), .x = x[i][k],
                                      .res = res[i], .h = H, .first = k == 0,
                                      .peer = {r.comm, i, n}};

                p.rows.cap = 4;
                for (int j = 0; j < 3 * H; j++)
                    x[i][k][j] = mc_bf16_of_f32((float)(i + 10 * k + j % 3));
                assert_int_equal(mc_k_join(r.k[i].b, s, &p), 0);
            }
            assert_int_equal(r.k[i].b->graph_end(s, &g[i]), 0);
        }
        for (int round = 0; round < ROUNDS; round++)
            for (int32_t i = 0; i < n; i++)
                assert_int_equal(r.k[i].b->graph_run(r.k[i].s, g[i]), 0);
        ranks_all_well(&r);
        for (int32_t i = 0; i < n; i++)
            for (int j = 0; j < 3 * H; j++) { /* whole numbers: exact */
                int want = n * (n - 1) + n * 10 + 2 * n * (j % 3);

                assert_true(as_f32(res[i], j) == as_f32(&(uint16_t){mc_bf16_of_f32(
                                                             (float)want)}, 0));
            }
        for (int32_t i = 0; i < n; i++)
            r.k[i].b->graph_free(g[i]);
        ranks_close(&r);
    }
}

/* ---- rows to and from ranks -------------------------------------------------------- */

enum { V = 37, OUTS = 11 };

static void check_rows(struct ranks *r, int32_t live)
{
    float part[MC_MAX_RANKS][OUTS * V], whole[MC_MAX_RANKS][OUTS * V];
    int32_t made[MC_MAX_RANKS][OUTS], got[MC_MAX_RANKS][OUTS];
    int32_t n = r->n, width = (V + n - 1) / n;

    for (int32_t i = 0; i < n; i++) {
        struct mc_all_to_all_p a = {.n_live = &live, .cap = OUTS, .in = part[i],
                                    .pitch = width, .out_pitch = V, .out = whole[i],
                                    .peer = {r->comm, i, n}};
        struct mc_all_gather_p g = {.n_live = &live, .cap = OUTS, .in = made[i],
                                    .out = got[i], .row_bytes = 4,
                                    .peer = {r->comm, i, n}};

        for (int32_t j = 0; j <= n; j++)
            a.col0[j] = V * j / n;
        for (int32_t row = 0; row < live; row++)
            for (int32_t v = a.col0[i]; v < a.col0[i + 1]; v++)
                part[i][row * width + v - a.col0[i]] = (float)(row * 1000 + v);
        memset(whole[i], 0xff, sizeof whole[i]);
        memset(got[i], 0xff, sizeof got[i]);
        for (int32_t k = 0; k < OUTS; k++)
            made[i][k] = k * n + i + 100;
        assert_int_equal(mc_k_all_to_all(r->k[i].b, r->k[i].s, &a), 0);
        assert_int_equal(mc_k_all_gather(r->k[i].b, r->k[i].s, &g), 0);
    }
    ranks_all_well(r);
    for (int32_t i = 0; i < n; i++) {
        for (int32_t row = i; row < live; row += n)
            for (int32_t v = 0; v < V; v++)
                assert_true(whole[i][row / n * V + v] == (float)(row * 1000 + v));
        for (int32_t row = 0; row < live; row++)
            assert_int_equal(got[i][row], row + 100);
        if (live < OUTS)
            assert_int_equal(got[i][live], -1); /* rows beyond the live are left alone */
    }
}

static void cuda_ranks_bring_whole_rows_to_a_rank_and_back_to_all(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        struct ranks r = ranks_open(counts[c], 60000);

        for (int32_t live = 0; live <= OUTS; live += live == 1 ? 6 : live == 7 ? 4 : 1)
            check_rows(&r, live);
        ranks_close(&r);
    }
}

/* ---- agreement --------------------------------------------------------------------- */

struct state {
    struct kern_rows rows;
    int32_t table[2 * 4];
    uint32_t tags[2 * 4];
    struct mc_slot slots[2];
};

static struct state some_state(void)
{
    struct state s = {.table = {3, 1, -1, -1, 2, 0, -1, -1}};

    kern_seq(&s.rows, 1, 99, 1, true); /* two pages */
    kern_seq(&s.rows, 0, 60, 8, false);
    return s;
}

static void cuda_ranks_agree_sees_each_word_that_differs(void **state)
{
    struct state s[3];
    int32_t *const word[] = {&s[1].rows.live[MC_LIVE_OUT], &s[1].rows.tok[8],
                             &s[1].rows.pos[0],            &s[1].rows.row_seq[3],
                             &s[1].rows.q0[2],             &s[1].rows.kv_len[1],
                             &s[1].rows.slot[0],           &s[1].table[5],
                             &s[1].table[0],               (int32_t *)&s[1].tags[1],
                             &s[1].slots[1].tok,           (int32_t *)&s[1].slots[0].bad};

    (void)state;
    for (size_t w = 0; w <= sizeof word / sizeof *word; w++) {
        struct ranks r = ranks_open(3, 60000);
        bool off = w < sizeof word / sizeof *word;

        for (int32_t i = 0; i < 3; i++)
            s[i] = some_state();
        if (off)
            *word[w] ^= 1;
        else
            s[1].table[7] = 5; /* beyond the context: nobody looks there */
        for (int32_t i = 0; i < 3; i++) {
            struct mc_agree_p p = {.rows = kern_view(&s[i].rows), .slots = s[i].slots,
                                   .kv = {.table = s[i].table, .want_tag = s[i].tags,
                                          .pitch = 4},
                                   .peer = {r.comm, i, 3}};

            assert_int_equal(mc_k_agree(r.k[i].b, r.k[i].s, &p), 0);
        }
        if (off)
            parted(&r, "step digest mismatch: ranks 0 and 1");
        else
            ranks_all_well(&r);
        ranks_close(&r);
    }
}

/* ---- parting ----------------------------------------------------------------------- */

static void put_join(struct ranks *r, int32_t i, const struct kern_rows *rows)
{
    static uint16_t x[MC_MAX_RANKS][64], res[MC_MAX_RANKS][64];
    struct mc_join_p p = {.rows = kern_view(rows),
                          .x = x[i],
                          .res = res[i],
                          .h = 64,
                          .peer = {r->comm, i, r->n}};

    p.rows.cap = 1;
    assert_int_equal(mc_k_join(r->k[i].b, r->k[i].s, &p), 0);
}

static void put_fault(struct ranks *r, int32_t i, int32_t fault)
{
    struct mc_agree_p p = {.peer = {r->comm, i, r->n}, .fault = fault};

    assert_int_equal(mc_k_agree(r->k[i].b, r->k[i].s, &p), 0);
}

static void cuda_ranks_part_when_one_fails_stalls_or_stays_away(void **state)
{
    static const struct {
        int32_t fault;
        const char *why;
    } of[] = {{MC_FAULT_ERROR, "rank 1 failed: MC_FAIL asks for it"},
              {MC_FAULT_STALL, "rank 1 did not come within 0.3 s"},
              {MC_FAULT_NONE, "rank 1 did not come within 0.3 s"}};
    struct kern_rows rows = {0};

    (void)state;
    kern_seq(&rows, 0, 0, 1, false);
    for (int i = 0; i < 3; i++) {
        struct ranks r = ranks_open(3, 300);

        if (of[i].fault)
            put_fault(&r, 1, of[i].fault);
        put_join(&r, 0, &rows);
        put_join(&r, 2, &rows);
        parted(&r, of[i].why);
        put_join(&r, 2, &rows); /* it is for good */
        parted(&r, of[i].why);
        ranks_close(&r);
    }
}

static void cuda_ranks_can_be_called_off(void **state)
{
    struct kern_rows rows = {0};
    struct ranks r = ranks_open(2, 600000);

    (void)state;
    kern_seq(&rows, 0, 0, 1, false);
    put_join(&r, 0, &rows);
    assert_int_equal(r.k[0].b->wait_ms(r.k[0].s, r.k[0].b->mark(r.k[0].s), 20), 1);
    mc_comm_break(r.comm, "called off by %s", "a test");
    parted(&r, "called off by a test");
    ranks_close(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(cuda_ranks_add_in_rank_order_on_every_rank),
    cmocka_unit_test(cuda_ranks_join_more_rows_than_a_seat_holds),
    cmocka_unit_test(cuda_ranks_replay_and_nobody_is_overrun),
    cmocka_unit_test(cuda_ranks_bring_whole_rows_to_a_rank_and_back_to_all),
    cmocka_unit_test(cuda_ranks_agree_sees_each_word_that_differs),
    cmocka_unit_test(cuda_ranks_part_when_one_fails_stalls_or_stays_away),
    cmocka_unit_test(cuda_ranks_can_be_called_off),
};

MC_TEST_MAIN(tests)
