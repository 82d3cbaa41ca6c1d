/* test_view.c - what the view tells a policy of prefixes, dues, pages to come and time. */
#include "tests/c/engine_help.h"

#include <stdatomic.h>

#include "core/base/clock.h"

/* The built-in policy, but the second request waits until the first has made `after` tokens;
 * what was seen meanwhile. */
struct watch {
    int32_t after;
    struct mc_row first, second; /* the last views of them while both lived */
    int32_t soon, hit_at_last, reserve_off;
    float fly_us, dev_us, host_us, us_base;
    bool prefilled;
};

static void look(struct watch *w, const struct mc_step_view *v)
{
    const struct mc_row *a = mc_view_row(v, 0),
                        *b = v->n_row > 1 ? mc_view_row(v, 1) : NULL;

    w->dev_us = v->dev_us;
    w->host_us = v->host_us;
    if (v->decode.us_base > 0)
        w->us_base = v->decode.us_base;
    if (v->fly_us > w->fly_us)
        w->fly_us = v->fly_us;
    if (a->state == MC_STATE_DECODE && !(b && b->state != MC_STATE_WAITING)) {
        int32_t more = a->n_max - a->n_gen;
        int32_t end = a->n_ctx + (more < v->p_tokens ? more : v->p_tokens);

        w->reserve_off |= v->p_reserve - (end + v->p_tokens - 1) / v->p_tokens +
                          a->p_held;
    }
    if (!b || b->state != MC_STATE_WAITING)
        return;
    w->first = *a;
    w->second = *b;
    if (a->state == MC_STATE_PREFILL && a->n_ctx > 0) {
        w->prefilled = true;
        w->soon = b->n_hit_soon;
    }
    w->hit_at_last = b->n_hit;
}

static int plan(void *self, struct mc_step_view *v, struct mc_plan *p, struct mc_err *err)
{
    struct watch *w = self;
    int rc = mc_policy_builtin.ops->plan(NULL, v, p, err);

    look(w, v);
    for (int32_t i = 0; i < p->n; i++)
        if (v->n_row > 1 && p->item[i].seq == mc_view_row(v, 1)->seq &&
            mc_view_row(v, 1)->state == MC_STATE_WAITING &&
            mc_view_row(v, 0)->n_gen < w->after)
            p->item[i].what = MC_HOLD;
    return rc;
}

static void view_tells_of_prefixes_dues_and_times(void **st)
{
    static const struct mc_policy_ops ops = {.plan = plan};
    struct watch w = {.after = 40};
    const struct mc_policy p = {&ops, &w};
    const struct mc_engine_opts o = {.chunk = 64, .max_seqs = 4};
    struct mc_engine *e = engine_open(&o, &p);
    struct got *g[2] = {got_new(), got_new()};
    int32_t ids[2][400];
    double now = mc_now();
    struct mc_err err = {0};

    (void)st;
    some_ids(ids[0], 400, 1);
    memcpy(ids[1], ids[0], sizeof ids[0]);
    ids[1][200] ^= 1; /* three pages alike */
    for (int i = 0; i < 2; i++) {
        struct mc_request r = ask_for(ids[i], 400, 60, g[i]);
        struct mc_handle h;

        r.due_first = now + 1 + i;
        r.slo_token = 0.5;
        r.lane = (uint32_t)i;
        assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    }
    for (int i = 0; i < 2; i++)
        got_wait(g[i], -1);
    assert_true(w.prefilled);
    assert_int_equal(w.soon, 3 * 64);
    assert_int_equal(w.hit_at_last, 3 * 64);
    assert_true(w.first.group != 0 && w.first.group == w.second.group);
    assert_true(w.second.due_first == now + 2 && w.second.slo_token == 0.5f);
    assert_int_equal(w.reserve_off, 0);
    assert_true(w.us_base > 0 && w.fly_us > 0 && w.dev_us > 0 && w.host_us > 0);
    for (int i = 0; i < 2; i++)
        got_free(g[i]);
    assert_idle(e);
    mc_engine_close(e);
}

/* One that came before and is held while others of its lane start; the alarm tells of it. */
static int plan_first_never(void *self, struct mc_step_view *v, struct mc_plan *p,
                            struct mc_err *err)
{
    int rc = mc_policy_builtin.ops->plan(NULL, v, p, err);

    (void)self;
    for (int32_t i = 0; i < p->n; i++)
        if (p->item[i].seq == mc_view_row(v, 0)->seq &&
            mc_view_row(v, 0)->n_prompt == 333)
            p->item[i].what = MC_HOLD;
    return rc;
}

static atomic_int alarms;

static void on_starved(void *self)
{
    (void)self;
    alarms++;
}

static void view_alarm_tells_of_who_starves(void **st)
{
    static const struct mc_policy_ops ops = {.plan = plan_first_never, .starved = on_starved};
    const struct mc_policy p = {&ops, NULL};
    const struct mc_engine_opts o = {.max_seqs = 4, .chunk = 512};
    struct mc_engine *e = engine_open(&o, &p);
    struct got *held = got_new(), *g;
    int32_t ids[333];
    struct mc_request r = ask_for(ids, 333, 4, held);
    struct mc_handle h;
    struct mc_err err = {0};
    double until = mc_now() + 2 * MC_STARVE_S;

    (void)st;
    some_ids(ids, 333, 1);
    assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    while (alarms == 0 && mc_now() < until) {
        some_ids(ids, 20, 7);
        g = run_one(e, ids, 20, 2);
        got_free(g);
        nanosleep(&(struct timespec){0, 50000000}, NULL);
    }
    assert_int_equal(alarms, 1);
    assert_true(mc_engine_counter(e, MC_C_starved_total) == 1);
    assert_false(held->ended);
    mc_engine_cancel(e, h, "enough");
    got_wait(held, -1);
    got_free(held);
    mc_engine_close(e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(view_tells_of_prefixes_dues_and_times),
    cmocka_unit_test(view_alarm_tells_of_who_starves),
};
MC_TEST_MAIN(tests)
