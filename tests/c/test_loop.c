/* test_loop.c - bells, timers and the thread that hears them. */
#include "tests/c/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "lua/host/loop.h"

struct counter {
    struct mc_bell bell; /* first */
    atomic_int n;
};

static void count(struct mc_bell *b)
{
    atomic_fetch_add(&((struct counter *)b)->n, 1);
}

static void wait_for(atomic_int *n, int least)
{
    double until = mc_now() + 10;

    while (atomic_load(n) < least && mc_now() < until)
        usleep(1000);
    assert_true(atomic_load(n) >= least);
}

static void *ring_often(void *arg)
{
    int i;

    for (i = 0; i < 10000; i++)
        mc_bell_ring(arg);
    return NULL;
}

static void loop_hears_bells_from_any_thread(void **state)
{
    struct mc_loop *l = NULL;
    struct counter c[4];
    struct mc_err err = {0};
    pthread_t t[4];
    int i;

    (void)state;
    assert_ok(mc_loop_open("test", NULL, NULL, NULL, &l, &err), err);
    for (i = 0; i < 4; i++) {
        mc_bell_init(&c[i].bell, l, count);
        atomic_init(&c[i].n, 0);
        pthread_create(&t[i], NULL, ring_often, &c[i].bell);
    }
    for (i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    for (i = 0; i < 4; i++) {
        int before = atomic_load(&c[i].n);

        mc_bell_ring(&c[i].bell);
        wait_for(&c[i].n, before + (before == 0));
    }
    mc_loop_close(l);
    for (i = 0; i < 4; i++)
        assert_in_range(atomic_load(&c[i].n), 1, 10001);
}

/* Everything below runs on the loop, from this bell. */
struct script {
    struct mc_bell bell; /* first */
    struct mc_loop *loop;
    struct counter still, other;
    struct mc_timer timer[64];
    double at[64], last;
    int fired, wrong;
    atomic_int done;
};

static struct script *running;

static void on_timer(struct mc_timer *t)
{
    struct script *s = running;

    if (t->at < s->last || mc_now() < t->at || t->place != 0)
        s->wrong++;
    s->last = t->at;
    s->fired++;
    if (s->fired == 32)
        atomic_store(&s->done, 1);
}

static void timers(struct mc_bell *b)
{
    struct script *s = (struct script *)b;
    double now = mc_now();
    int i;

    for (i = 0; i < 64; i++) {
        s->timer[i].fire = on_timer;
        mc_timer_set(s->loop, &s->timer[i], now + 0.001 * ((i * 37) % 64));
    }
    for (i = 0; i < 64; i += 2) /* half are taken back, from all over the heap */
        mc_timer_unset(s->loop, &s->timer[i]);
    for (i = 1; i < 64; i += 4) /* a quarter moves */
        mc_timer_set(s->loop, &s->timer[i], now + 0.001 * ((i * 11) % 64));
    mc_timer_unset(s->loop, &s->timer[0]); /* once more is no error */
}

static void loop_fires_timers_in_order(void **state)
{
    struct script *s = calloc(1, sizeof *s);
    struct mc_err err = {0};

    (void)state;
    running = s;
    assert_ok(mc_loop_open("test", NULL, NULL, NULL, &s->loop, &err), err);
    mc_bell_init(&s->bell, s->loop, timers);
    mc_bell_ring(&s->bell);
    wait_for(&s->done, 1);
    usleep(80000);
    mc_loop_close(s->loop);
    assert_int_equal(s->fired, 32);
    assert_int_equal(s->wrong, 0);
    free(s);
}

static void still(struct mc_bell *b)
{
    struct script *s = (struct script *)b;

    mc_bell_ring(&s->other.bell);
    mc_bell_ring(&s->still.bell);
    mc_bell_ring(&s->other.bell); /* queued already */
    mc_bell_still(&s->still.bell);
    mc_bell_still(&s->still.bell);
    atomic_store(&s->done, 1);
}

static void loop_bell_that_is_still_does_not_fire(void **state)
{
    struct script *s = calloc(1, sizeof *s);
    struct mc_err err = {0};

    (void)state;
    assert_ok(mc_loop_open("test", NULL, NULL, NULL, &s->loop, &err), err);
    mc_bell_init(&s->bell, s->loop, still);
    mc_bell_init(&s->still.bell, s->loop, count);
    mc_bell_init(&s->other.bell, s->loop, count);
    mc_bell_ring(&s->bell);
    wait_for(&s->done, 1);
    wait_for(&s->other.n, 1);
    mc_loop_close(s->loop); /* what was rung is fired first */
    assert_int_equal(atomic_load(&s->still.n), 0);
    assert_int_equal(atomic_load(&s->other.n), 1);
    free(s);
}

static int refuse(void *ctx, struct mc_err *err)
{
    return mc_fail(err, MC_EUNSUP, "not %s", (const char *)ctx);
}

static void loop_that_cannot_begin_says_why(void **state)
{
    struct mc_loop *l = NULL;
    struct mc_err err = {0};

    (void)state;
    assert_int_equal(mc_loop_open("test", refuse, NULL, "today", &l, &err), MC_EUNSUP);
    assert_string_equal(err.text, "not today");
    assert_null(l);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(loop_hears_bells_from_any_thread),
    cmocka_unit_test(loop_fires_timers_in_order),
    cmocka_unit_test(loop_bell_that_is_still_does_not_fire),
    cmocka_unit_test(loop_that_cannot_begin_says_why),
};

MC_TEST_MAIN(tests)
