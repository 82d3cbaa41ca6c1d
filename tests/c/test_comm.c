/* test_comm.c - ranks that meet: collectives by 1, 2, 3, 4 and 8 rank threads, and every
 * way in which ranks part. Sums are compared bit for bit with a plain loop in rank order. */
#include "tests/c/test.h"

#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "kernels/host/host.h"
#include "tests/c/ranks_help.h"

enum { H = 64, ROWS = 5, ROUNDS = 60 };

static const int32_t counts[] = {1, 2, 3, 4, 8};

/* One thread a rank, save when asked for more. */
static struct ranks ranks_open(int32_t n, bool ref, int threads, uint32_t patience_ms)
{
    struct ranks r = {.n = n};
    const char *why = "";

    assert_int_equal(mc_comm_open(n, patience_ms, &r.comm), 0);
    for (int32_t i = 0; i < n; i++) {
        struct mc_backend_opts o = {.threads = n * threads, .ref_act = -1,
                                    .peer = {r.comm, i, n}};

        r.k[i] = kern_open(ref ? mc_ref_open(&o, &why) : mc_cpu_open(&o, &why), why);
    }
    return r;
}

/* A body that is late by so many microseconds. */
static int body_late(struct mc_par *par, const void *p)
{
    (void)par;
    usleep(*(const unsigned *)p);
    return 0;
}

static void late(struct ranks *r, int32_t i, unsigned us)
{
    assert_int_equal(mc_stream_push(r->k[i].s, body_late, &us, sizeof us), 0);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Nobody gets past the end of what is checked here in more than so many seconds. */
static void parted(struct ranks *r, const char *why, double within)
{
    double t0 = now();

    for (int32_t i = 0; i < r->n; i++)
        assert_true(ranks_wait(r, i) < 0);
    assert_true(now() - t0 < within);
    if (!mc_comm_broken(r->comm) || !strstr(mc_comm_broken(r->comm), why))
        fail_msg("'%s' is not '%s'", mc_comm_broken(r->comm), why);
}

/* ---- sums -------------------------------------------------------------------------- */

/* Joins one after another, each rank with its own parts, late now and then; what each has
 * at the end is the sum in rank order. */
static void check_joins(int32_t n, bool ref, int threads)
{
    static float part[2][MC_MAX_RANKS][ROWS * H], res[MC_MAX_RANKS][ROWS * H],
        want[ROWS * H];
    struct ranks r = ranks_open(n, ref, threads, 20000);
    struct kern_rows rows = {0};
    uint64_t seed = 7;

    kern_seq(&rows, 0, 0, ROWS, false);
    for (int round = 0; round < ROUNDS; round++) {
        if (round >= 2) /* the parts of two rounds ago are free when all are here */
            ranks_all_well(&r);
        for (int32_t i = 0; i < n; i++)
            for (int j = 0; j < ROWS * H; j++)
                part[round % 2][i][j] = kern_randn(&seed) * (j % 7 == 0 ? 1e4f : 1);
        for (int j = 0; j < ROWS * H; j++) {
            float sum = part[round % 2][0][j];

            for (int32_t i = 1; i < n; i++)
                sum += part[round % 2][i][j];
            want[j] = round == 0 ? sum : want[j] + sum;
        }
        for (int32_t i = 0; i < n; i++) {
            struct mc_join_p p = {.rows = kern_view(&rows), .x = part[round % 2][i],
                                  .res = res[i], .h = H, .first = round == 0,
                                  .peer = {r.comm, i, n}};

            if (kern_rand(&seed) % 4 == 0)
                late(&r, i, (unsigned)(kern_rand(&seed) % 200));
            assert_int_equal(mc_k_join(r.k[i].b, r.k[i].s, &p), 0);
        }
    }
    ranks_all_well(&r);
    for (int32_t i = 0; i < n; i++)
        assert_memory_equal(res[i], want, sizeof want);
    ranks_close(&r);
}

static void comm_join_adds_in_rank_order_on_every_rank(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int ref = 0; ref < 2; ref++)
            check_joins(counts[c], ref, 1);
    check_joins(2, false, 2); /* ranks with a team each */
}

/* Nothing is waited for between rounds: a rank may run ahead as far as it can. Each body
 * writes its part, so that a part that is overwritten too early shows in the sum. */
struct fill {
    float *x;
    float value;
};

static int body_fill(struct mc_par *par, const void *vp)
{
    const struct fill *p = vp;

    (void)par;
    for (int i = 0; i < H; i++)
        p->x[i] = p->value;
    return 0;
}

static void comm_nobody_is_overrun(void **state)
{
    static float part[MC_MAX_RANKS][2][H], res[MC_MAX_RANKS][H];
    struct kern_rows rows = {0};
    int rounds = 1500;

    (void)state;
    kern_seq(&rows, 0, 0, 1, false);
    for (size_t c = 1; c < sizeof counts / sizeof *counts; c++) {
        int32_t n = counts[c];
        struct ranks r = ranks_open(n, false, 1, 20000);

        memset(res, 0, sizeof res);
        for (int k = 0; k < rounds; k++)
            for (int32_t i = 0; i < n; i++) {
                struct fill f = {part[i][k % 2], (float)((k * 7 + i) % 5)};
                struct mc_join_p p = {.rows = kern_view(&rows), .x = f.x, .res = res[i],
                                      .h = H, .peer = {r.comm, i, n}};

                mc_stream_push(r.k[i].s, body_fill, &f, sizeof f);
                mc_k_join(r.k[i].b, r.k[i].s, &p);
            }
        ranks_all_well(&r);
        for (int32_t i = 0; i < n; i++) {
            float want = 0;

            for (int k = 0; k < rounds; k++)
                for (int32_t j = 0; j < n; j++)
                    want += (float)((k * 7 + j) % 5); /* whole numbers: exact */
            assert_true(res[i][0] == want && res[i][H - 1] == want);
        }
        ranks_close(&r);
    }
}

/* ---- rows to and from ranks -------------------------------------------------------- */

enum { V = 37, MOST = 11 };

/* Logits of V ids, an uneven share on each rank, to whole rows; and what each made of its
 * rows back to all. */
static void check_rows(int32_t n, int32_t live)
{
    static float part[MC_MAX_RANKS][MOST * V], whole[MC_MAX_RANKS][MOST * V];
    static int32_t made[MC_MAX_RANKS][MOST], got[MC_MAX_RANKS][MOST];
    struct ranks r = ranks_open(n, false, 1, 20000);
    int32_t width = (V + n - 1) / n;

    for (int32_t i = 0; i < n; i++) {
        struct mc_all_to_all_p a = {.n_live = &live, .cap = MOST, .in = part[i],
                                    .pitch = width, .out_pitch = V, .out = whole[i],
                                    .peer = {r.comm, i, n}};
        struct mc_all_gather_p g = {.n_live = &live, .cap = MOST, .in = made[i],
                                    .out = got[i], .row_bytes = 4, .peer = {r.comm, i, n}};

        for (int32_t j = 0; j <= n; j++)
            a.col0[j] = V * j / n;
        for (int32_t row = 0; row < live; row++)
            for (int32_t v = a.col0[i]; v < a.col0[i + 1]; v++)
                part[i][row * width + v - a.col0[i]] = (float)(row * 1000 + v);
        memset(whole[i], 0xff, sizeof whole[i]);
        memset(got[i], 0xff, sizeof got[i]);
        for (int32_t k = 0; k < MOST; k++)
            made[i][k] = k * n + i + 100;
        assert_int_equal(mc_k_all_to_all(r.k[i].b, r.k[i].s, &a), 0);
        assert_int_equal(mc_k_all_gather(r.k[i].b, r.k[i].s, &g), 0);
    }
    ranks_all_well(&r);
    for (int32_t i = 0; i < n; i++) {
        for (int32_t row = i; row < live; row += n)
            for (int32_t v = 0; v < V; v++)
                assert_true(whole[i][row / n * V + v] == (float)(row * 1000 + v));
        for (int32_t row = 0; row < live; row++)
            assert_int_equal(got[i][row], row + 100);
        if (live < MOST)
            assert_int_equal(got[i][live], -1); /* rows beyond the live are left alone */
    }
    ranks_close(&r);
}

static void comm_rows_go_whole_to_their_rank_and_back_to_all(void **state)
{
    (void)state;
    for (size_t c = 1; c < sizeof counts / sizeof *counts; c++)
        for (int32_t live = 0; live <= MOST; live += live == 1 ? 6 : 1)
            check_rows(counts[c], live);
}

/* ---- parting ----------------------------------------------------------------------- */

static void put_join(struct ranks *r, int32_t i, const struct kern_rows *rows, float *x)
{
    static float res[MC_MAX_RANKS][ROWS * H];
    struct mc_join_p p = {.rows = kern_view(rows), .x = x, .res = res[i], .h = H,
                          .peer = {r->comm, i, r->n}};

    assert_int_equal(mc_k_join(r->k[i].b, r->k[i].s, &p), 0);
}

static void comm_a_rank_that_does_not_come_is_named_in_bounded_time(void **state)
{
    static float x[ROWS * H];
    struct kern_rows rows = {0};
    struct ranks r = ranks_open(4, false, 1, 300);
    double t0 = now();

    (void)state;
    kern_seq(&rows, 0, 0, ROWS, false);
    late(&r, 2, 1500000);
    for (int32_t i = 0; i < 4; i++)
        put_join(&r, i, &rows, x);
    assert_int_equal(ranks_wait(&r, 0), MC_K_ERANK);
    assert_int_equal(ranks_wait(&r, 3), MC_K_ERANK);
    assert_true(now() - t0 < 1.4);
    parted(&r, "rank 2 did not come within 0.3 s", 3); /* the late one leaves as well */
    ranks_close(&r);
}

static int body_fail(struct mc_par *par, const void *p)
{
    (void)par;
    return *(const int *)p;
}

static void comm_a_rank_that_fails_takes_the_others_along(void **state)
{
    static float x[ROWS * H];
    struct kern_rows rows = {0};
    struct ranks r = ranks_open(3, false, 1, 60000);
    int code = MC_K_EINTERNAL;

    (void)state;
    kern_seq(&rows, 0, 0, ROWS, false);
    for (int32_t i = 0; i < 3; i++) {
        if (i == 1)
            mc_stream_push(r.k[i].s, body_fail, &code, sizeof code);
        put_join(&r, i, &rows, x);
    }
    parted(&r, "rank 1 failed", 2);
    put_join(&r, 0, &rows, x); /* it is for good */
    parted(&r, "rank 1 failed", 2);
    ranks_close(&r);
}

static void comm_ranks_that_do_different_things_part(void **state)
{
    static float x[ROWS * H];
    struct kern_rows rows = {0}, fewer = {0};
    struct ranks r = ranks_open(2, false, 1, 60000);
    struct mc_agree_p p = {.peer = {r.comm, 1, 2}};

    (void)state;
    kern_seq(&rows, 0, 0, ROWS, false);
    kern_seq(&fewer, 0, 0, ROWS - 1, false);
    put_join(&r, 0, &rows, x);
    mc_k_agree(r.k[1].b, r.k[1].s, &p);
    parted(&r, "different operations", 2);
    ranks_close(&r);

    r = ranks_open(2, false, 1, 60000);
    put_join(&r, 0, &rows, x);
    put_join(&r, 1, &fewer, x);
    parted(&r, "with 5 and 4 rows", 2);
    ranks_close(&r);
}

static void comm_the_same_memory_twice_in_a_row_is_refused(void **state)
{
    static float x[2][ROWS * H];
    struct kern_rows rows = {0};
    struct ranks r = ranks_open(2, false, 1, 60000);

    (void)state;
    kern_seq(&rows, 0, 0, ROWS, false);
    for (int32_t i = 0; i < 2; i++)
        put_join(&r, i, &rows, x[0]);
    ranks_all_well(&r);
    put_join(&r, 0, &rows, x[0]);
    put_join(&r, 1, &rows, x[1]);
    parted(&r, "the same memory twice", 2);
    ranks_close(&r);
}

static void comm_a_waiting_rank_can_be_called_off(void **state)
{
    static float x[ROWS * H];
    struct kern_rows rows = {0};
    struct ranks r = ranks_open(2, false, 1, 60000);

    (void)state;
    kern_seq(&rows, 0, 0, ROWS, false);
    put_join(&r, 0, &rows, x);
    assert_int_equal(r.k[0].b->wait_ms(r.k[0].s, r.k[0].b->mark(r.k[0].s), 20), 1);
    mc_comm_break(r.comm, "called off by %s", "a test");
    mc_comm_break(r.comm, "again");
    put_join(&r, 1, &rows, x);
    parted(&r, "called off by a test", 2);
    ranks_close(&r);
}

/* ---- agreement --------------------------------------------------------------------- */

struct state {
    struct kern_rows rows;
    int32_t table[2 * 4];
    uint32_t tags[2 * 4];
    struct mc_slot slots[2];
};

static void put_agree(struct ranks *r, int32_t i, struct state *s)
{
    struct mc_agree_p p = {.rows = kern_view(&s->rows), .slots = s->slots,
                           .kv = {.table = s->table, .want_tag = s->tags, .pitch = 4},
                           .peer = {r->comm, i, r->n}};

    assert_int_equal(mc_k_agree(r->k[i].b, r->k[i].s, &p), 0);
}

static struct state some_state(void)
{
    struct state s = {.table = {3, 1, -1, -1, 2, 0, -1, -1}};

    kern_seq(&s.rows, 1, 99, 1, true); /* two pages */
    kern_seq(&s.rows, 0, 60, 8, false);
    return s;
}

/* Every word of a step's state counts, on whichever rank it is off. */
static void comm_agree_sees_each_word_that_differs(void **state)
{
    static struct state s[3];
    int32_t *const word[] = {&s[1].rows.live[MC_LIVE_OUT], &s[1].rows.tok[8],
                             &s[1].rows.pos[0],            &s[1].rows.row_seq[3],
                             &s[1].rows.q0[2],             &s[1].rows.kv_len[1],
                             &s[1].rows.slot[0],           &s[1].table[5],
                             &s[1].table[0],               (int32_t *)&s[1].tags[1],
                             &s[1].slots[1].tok,           (int32_t *)&s[1].slots[0].bad};

    (void)state;
    for (size_t w = 0; w <= sizeof word / sizeof *word; w++) {
        struct ranks r = ranks_open(3, false, 1, 60000);
        bool off = w < sizeof word / sizeof *word;

        for (int32_t i = 0; i < 3; i++)
            s[i] = some_state();
        if (off)
            *word[w] ^= 1;
        else
            s[1].table[7] = 5; /* beyond the context: nobody looks there */
        for (int32_t i = 0; i < 3; i++)
            put_agree(&r, i, &s[i]);
        if (off)
            parted(&r, "step digest mismatch: ranks 0 and 1", 2);
        else
            ranks_all_well(&r);
        ranks_close(&r);
    }
}

static void comm_a_planted_error_fails_the_rank(void **state)
{
    struct ranks r = ranks_open(2, false, 1, 60000);

    (void)state;
    for (int32_t i = 0; i < 2; i++) {
        struct mc_agree_p p = {.peer = {r.comm, i, 2},
                               .fault = i == 1 ? MC_FAULT_ERROR : MC_FAULT_NONE};

        mc_k_agree(r.k[i].b, r.k[i].s, &p);
    }
    parted(&r, "rank 1 failed", 2);
    ranks_close(&r);
}

static void comm_threads_are_divided_over_the_ranks(void **state)
{
    (void)state;
    for (int32_t i = 0; i < 3; i++) {
        struct mc_backend_opts o = {.threads = 5, .ref_act = -1, .peer = {NULL, i, 3}};
        const char *why = "", *const want[] = {"2 threads", "2 threads", "1 threads"};
        struct mc_backend *b = mc_ref_open(&o, &why);

        assert_non_null(strstr(b->what, want[i]));
        b->close(b);
    }
    struct mc_comm *c;

    assert_int_equal(mc_comm_open(9, 1, &c), MC_K_EARG);
    assert_int_equal(mc_comm_open(0, 1, &c), MC_K_EARG);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(comm_join_adds_in_rank_order_on_every_rank),
    cmocka_unit_test(comm_nobody_is_overrun),
    cmocka_unit_test(comm_rows_go_whole_to_their_rank_and_back_to_all),
    cmocka_unit_test(comm_a_rank_that_does_not_come_is_named_in_bounded_time),
    cmocka_unit_test(comm_a_rank_that_fails_takes_the_others_along),
    cmocka_unit_test(comm_ranks_that_do_different_things_part),
    cmocka_unit_test(comm_the_same_memory_twice_in_a_row_is_refused),
    cmocka_unit_test(comm_a_waiting_rank_can_be_called_off),
    cmocka_unit_test(comm_agree_sees_each_word_that_differs),
    cmocka_unit_test(comm_a_planted_error_fails_the_rank),
    cmocka_unit_test(comm_threads_are_divided_over_the_ranks),
};

MC_TEST_MAIN(tests)
