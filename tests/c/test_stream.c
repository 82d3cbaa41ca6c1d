/* test_stream.c - the host stream: order, tickets, poison, graphs, the full ring, teams. */
#define _GNU_SOURCE /* pthread_getattr_np */
#include "tests/c/test.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/host/host.h"
#include "kernels/host/par.h"

struct log {
    int n;
    int seen[4096];
};

struct note {
    struct log *log;
    int value;
};

static int body_note(struct mc_par *par, const void *p)
{
    const struct note *n = p;

    (void)par;
    n->log->seen[n->log->n++] = n->value;
    return 0;
}

static int body_fail(struct mc_par *par, const void *p)
{
    (void)par;
    return *(const int *)p;
}

/* Waits until the gate opens; then ordinary. */
static int body_gate(struct mc_par *par, const void *p)
{
    atomic_int *gate = *(atomic_int *const *)p;

    (void)par;
    while (!atomic_load(gate))
        usleep(100);
    return 0;
}

static struct mc_stream *stream(int threads)
{
    struct mc_stream *s;

    assert_int_equal(mc_stream_new(threads, &(struct mc_peer){0}, &s), 0);
    return s;
}

static void note(struct mc_stream *s, struct log *log, int value)
{
    struct note n = {log, value};

    assert_int_equal(mc_stream_push(s, body_note, &n, sizeof n), 0);
}

static void gate(struct mc_stream *s, atomic_int *g)
{
    assert_int_equal(mc_stream_push(s, body_gate, &g, sizeof g), 0);
}

static double seconds(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void stream_runs_in_order(void **state)
{
    struct mc_stream *s = stream(2);
    struct log log = {0};
    int i;

    (void)state;
    for (i = 0; i < 4000; i++)
        note(s, &log, i);
    assert_int_equal(mc_stream_wait(s, mc_stream_mark(s)), 0);
    assert_int_equal(log.n, 4000);
    for (i = 0; i < 4000; i++)
        assert_int_equal(log.seen[i], i);
    mc_stream_free(s);
}

static void stream_params_are_copied(void **state)
{
    struct mc_stream *s = stream(1);
    atomic_int open = 0;
    struct log log = {0};
    struct note n = {&log, 7};

    (void)state;
    gate(s, &open);
    mc_stream_push(s, body_note, &n, sizeof n);
    n.value = 8;
    atomic_store(&open, 1);
    mc_stream_wait(s, mc_stream_mark(s));
    assert_int_equal(log.seen[0], 7);
    mc_stream_free(s);
}

static void stream_ticket_covers_what_was_before_it(void **state)
{
    struct mc_stream *s = stream(2);
    atomic_int first = 0, second = 0;
    struct log log = {0};
    uint64_t a, b;

    (void)state;
    assert_true(mc_stream_done(s, mc_stream_mark(s)));
    gate(s, &first);
    note(s, &log, 1);
    a = mc_stream_mark(s);
    gate(s, &second);
    b = mc_stream_mark(s);
    assert_false(mc_stream_done(s, a));
    atomic_store(&first, 1);
    assert_int_equal(mc_stream_wait(s, a), 0);
    assert_int_equal(log.n, 1);
    assert_true(mc_stream_done(s, a));
    assert_false(mc_stream_done(s, b));
    atomic_store(&second, 1);
    assert_int_equal(mc_stream_wait(s, b), 0);
    assert_true(mc_stream_done(s, b));
    mc_stream_free(s);
}

struct waiter {
    struct mc_stream *s;
    uint64_t ticket;
    int rc;
};

static void *wait_main(void *p)
{
    struct waiter *w = p;

    w->rc = mc_stream_wait(w->s, w->ticket);
    return NULL;
}

static void stream_wakes_waiters_of_different_tickets(void **state)
{
    struct mc_stream *s = stream(2);
    atomic_int open[4] = {0};
    struct waiter w[8];
    pthread_t t[8];
    int i;

    (void)state;
    for (i = 0; i < 4; i++) {
        gate(s, &open[i]);
        w[i] = w[7 - i] = (struct waiter){s, mc_stream_mark(s), -1};
    }
    for (i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&t[i], NULL, wait_main, &w[i]), 0);
    usleep(2000); /* all of them sleep by now */
    for (i = 0; i < 4; i++) {
        atomic_store(&open[i], 1);
        pthread_join(t[i], NULL);
        pthread_join(t[7 - i], NULL);
        assert_int_equal(w[i].rc, 0);
        assert_int_equal(w[7 - i].rc, 0);
    }
    mc_stream_free(s);
}

static void stream_error_skips_the_rest_and_reaches_waiters(void **state)
{
    struct mc_stream *s = stream(2);
    struct log log = {0};
    int code = MC_K_EINTERNAL, later = MC_K_EARG;

    (void)state;
    note(s, &log, 1);
    mc_stream_push(s, body_fail, &code, sizeof code);
    note(s, &log, 2);
    mc_stream_push(s, body_fail, &later, sizeof later);
    assert_int_equal(mc_stream_wait(s, mc_stream_mark(s)), MC_K_EINTERNAL);
    assert_int_equal(log.n, 1);
    note(s, &log, 3);
    assert_int_equal(mc_stream_wait(s, mc_stream_mark(s)), MC_K_EINTERNAL);
    assert_int_equal(log.n, 1);
    mc_stream_free(s);
}

static void stream_graph_records_and_replays(void **state)
{
    struct mc_stream *s = stream(2);
    struct mc_graph *g;
    struct log log = {0};
    int i;

    (void)state;
    assert_int_equal(mc_graph_begin(s), 0);
    for (i = 0; i < 100; i++)
        note(s, &log, i);
    assert_int_equal(mc_graph_end(s, &g), 0);
    assert_int_equal(mc_stream_wait(s, mc_stream_mark(s)), 0);
    assert_int_equal(log.n, 0); /* recording runs nothing */
    for (i = 0; i < 3; i++) {
        assert_int_equal(mc_graph_run(s, g), 0);
        note(s, &log, 1000 + i);
    }
    assert_int_equal(mc_stream_wait(s, mc_stream_mark(s)), 0);
    assert_int_equal(log.n, 303);
    for (i = 0; i < 303; i++)
        assert_int_equal(log.seen[i], i % 101 == 100 ? 1000 + i / 101 : i % 101);
    mc_graph_free(g);
    mc_stream_free(s);
}

static void stream_error_in_a_graph_stops_it(void **state)
{
    struct mc_stream *s = stream(1);
    struct mc_graph *g;
    struct log log = {0};
    int code = MC_K_EARG;

    (void)state;
    mc_graph_begin(s);
    note(s, &log, 1);
    mc_stream_push(s, body_fail, &code, sizeof code);
    note(s, &log, 2);
    mc_graph_end(s, &g);
    mc_graph_run(s, g);
    assert_int_equal(mc_stream_wait(s, mc_stream_mark(s)), MC_K_EARG);
    assert_int_equal(log.n, 1);
    mc_graph_free(g);
    mc_stream_free(s);
}

static void *open_later(void *p)
{
    usleep(20000);
    atomic_store((atomic_int *)p, 1);
    return NULL;
}

static void stream_full_ring_blocks_the_pusher(void **state)
{
    struct mc_stream *s = stream(2);
    atomic_int open = 0;
    struct log log = {0};
    pthread_t t;
    int i;

    (void)state;
    gate(s, &open);
    for (i = 1; i < MC_RING; i++)
        note(s, &log, i);
    assert_int_equal(log.n, 0);
    assert_int_equal(pthread_create(&t, NULL, open_later, &open), 0);
    note(s, &log, i); /* must wait for the gate's record */
    assert_int_equal(atomic_load(&open), 1);
    pthread_join(t, NULL);
    assert_int_equal(mc_stream_wait(s, mc_stream_mark(s)), 0);
    assert_int_equal(log.n, MC_RING);
    for (i = 0; i < MC_RING; i++)
        assert_int_equal(log.seen[i], i + 1);
    mc_stream_free(s);
}

static void stream_free_finishes_what_is_enqueued(void **state)
{
    struct mc_stream *s = stream(2);
    struct log log = {0};
    int i;

    (void)state;
    for (i = 0; i < 200; i++)
        note(s, &log, i);
    mc_stream_free(s);
    assert_int_equal(log.n, 200);
}

/* ---- the team ---------------------------------------------------------------------- */

enum { ITEMS = 5000 };

struct job {
    int64_t n, grain;
    unsigned char hits[ITEMS];
    atomic_int lanes;
    int64_t sum; /* written after the loop */
};

static void hit(void *ctx, int64_t i0, int64_t i1, int lane)
{
    struct job *j = ctx;

    assert(i0 < i1);
    atomic_fetch_or(&j->lanes, 1 << lane);
    for (; i0 < i1; i0++)
        j->hits[i0]++;
}

static int body_job(struct mc_par *par, const void *p)
{
    struct job *j = *(struct job *const *)p;
    int64_t i;

    mc_par_for(par, j->n, j->grain, hit, j);
    for (j->sum = 0, i = 0; i < ITEMS; i++)
        j->sum += j->hits[i];
    return 0;
}

static void par_runs_each_item_once(void **state)
{
    static const int64_t n[] = {0, 1, 2, 3, 64, 65, 4999, ITEMS};
    static const int64_t grain[] = {0, 1, 7, 64, 10000};
    int threads;
    size_t a, b;

    (void)state;
    for (threads = 1; threads <= 5; threads += 2) {
        struct mc_stream *s = stream(threads);

        for (a = 0; a < sizeof n / sizeof n[0]; a++)
            for (b = 0; b < sizeof grain / sizeof grain[0]; b++) {
                struct job *j = calloc(1, sizeof *j);
                int64_t i;

                j->n = n[a];
                j->grain = grain[b];
                mc_stream_push(s, body_job, &j, sizeof j);
                assert_int_equal(mc_stream_wait(s, mc_stream_mark(s)), 0);
                assert_int_equal(j->sum, j->n);
                for (i = 0; i < ITEMS; i++)
                    assert_int_equal(j->hits[i], i < j->n);
                assert_true(j->lanes < 1 << threads);
                free(j);
            }
        mc_stream_free(s);
    }
}

/* Many short loops, now and then a pause in which the team goes to sleep. */
static void par_survives_sleeping_helpers(void **state)
{
    struct mc_stream *s = stream(4);
    struct job *j = calloc(1, sizeof *j);
    int i, k;

    (void)state;
    j->n = 40;
    j->grain = 1;
    for (i = 0; i < 50; i++) {
        for (k = 0; k < 5; k++)
            mc_stream_push(s, body_job, &j, sizeof j);
        assert_int_equal(mc_stream_wait(s, mc_stream_mark(s)), 0);
        assert_int_equal(j->sum, 40 * 5);
        memset(j->hits, 0, sizeof j->hits);
        usleep(i % 5 * 50);
    }
    free(j);
    mc_stream_free(s);
}

static void *stack_size(void *arg)
{
    pthread_attr_t attr;

    assert(pthread_getattr_np(pthread_self(), &attr) == 0);
    pthread_attr_getstacksize(&attr, arg);
    pthread_attr_destroy(&attr);
    return NULL;
}

static void par_threads_have_a_stack_of_their_own_size(void **state)
{
    pthread_attr_t was, small;
    size_t size = 0;
    pthread_t t;

    (void)state;
    assert_int_equal(pthread_getattr_default_np(&was), 0);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    assert_int_equal(pthread_setattr_default_np(&small), 0);
    assert_int_equal(mc_thread_start(&t, stack_size, &size, "small"), 0);
    pthread_join(t, NULL);
    pthread_setattr_default_np(&was);
    pthread_attr_destroy(&small);
    pthread_attr_destroy(&was);
    assert_true(size >= 4 << 20);
}

static void stream_idle_uses_no_cpu(void **state)
{
    struct mc_stream *s = stream(4);
    struct job *j = calloc(1, sizeof *j);
    double cpu;

    (void)state;
    j->n = 100;
    j->grain = 1;
    mc_stream_push(s, body_job, &j, sizeof j);
    mc_stream_wait(s, mc_stream_mark(s));
    usleep(5000); /* spins end */
    cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    usleep(200000);
    cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    if (cpu > 0.002)
        fail_msg("an idle stream used %.3f ms of CPU in 200 ms", cpu * 1e3);
    free(j);
    mc_stream_free(s);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(stream_runs_in_order),
    cmocka_unit_test(stream_params_are_copied),
    cmocka_unit_test(stream_ticket_covers_what_was_before_it),
    cmocka_unit_test(stream_wakes_waiters_of_different_tickets),
    cmocka_unit_test(stream_error_skips_the_rest_and_reaches_waiters),
    cmocka_unit_test(stream_graph_records_and_replays),
    cmocka_unit_test(stream_error_in_a_graph_stops_it),
    cmocka_unit_test(stream_full_ring_blocks_the_pusher),
    cmocka_unit_test(stream_free_finishes_what_is_enqueued),
    cmocka_unit_test(par_runs_each_item_once),
    cmocka_unit_test(par_survives_sleeping_helpers),
    cmocka_unit_test(par_threads_have_a_stack_of_their_own_size),
    cmocka_unit_test(stream_idle_uses_no_cpu),
};

MC_TEST_MAIN(tests)
