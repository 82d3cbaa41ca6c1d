/* test_life.c - a request's life as the engine notes it: events, and why it waited. */
#include "core/engine/engine_int.h"
#include "tests/c/engine_help.h"

/* ---- a policy that holds whom it is told to ---------------------------------------- */

struct rule {
    atomic_bool hold, silent; /* silent: the row is not named at all */
    atomic_uint generation;
    atomic_int upto; /* at most so many tokens are made; 0: all */
};

/* Tokens made and on their way. */
static int32_t n_made(const struct mc_row *row)
{
    return row->state == MC_STATE_DECODE ? row->n_ctx - row->n_prompt + 1 : 0;
}

static int plan_but_hold(void *self, struct mc_step_view *v, struct mc_plan *p,
                         struct mc_err *err)
{
    struct rule *r = self;
    int rc = mc_policy_builtin.ops->plan(NULL, v, p, err);
    int32_t kept = 0;

    if (!atomic_load(&r->hold) && !atomic_load(&r->upto))
        return rc;
    for (int32_t i = 0; i < p->n; i++) {
        struct mc_item it = p->item[i];
        const struct mc_row *row = NULL;

        for (int32_t k = 0; k < v->n_row; k++)
            if (mc_view_row(v, k)->seq == it.seq)
                row = mc_view_row(v, k);
        if (row && atomic_load(&r->upto) && n_made(row) >= atomic_load(&r->upto))
            continue;
        if (row && row->priority == 7) {
            if (atomic_load(&r->silent))
                continue;
            it =
                (struct mc_item){.seq = it.seq, .gen = it.gen, .what = MC_HOLD, .why = 2};
        }
        p->item[kept++] = it;
    }
    p->n = kept;
    return rc;
}

static const char *why(void *self, uint16_t index)
{
    (void)self;
    return index == 2 ? "it is Sunday" : NULL;
}

static uint32_t generation(void *self)
{
    return atomic_load(&((struct rule *)self)->generation);
}

static const struct mc_policy_ops ops = {.plan = plan_but_hold, .why = why,
                                         .generation = generation};

/* ---- help -------------------------------------------------------------------------- */

static struct mc_life_info life_of(struct mc_engine *e, const char *id)
{
    struct mc_life_info l;

    assert_int_equal(mc_engine_lives(e, id, &l, 1), 1);
    return l;
}

static int32_t steps_for(const struct mc_life_info *l, int32_t event, const char *text)
{
    for (int32_t i = 0; i < l->n_reason; i++)
        if (l->reason[i].event == event && strcmp(l->reason[i].text, text) == 0)
            return l->reason[i].steps;
    return 0;
}

static void wait_for_steps(struct mc_engine *e, const char *id, const char *text)
{
    for (int i = 0; i < 500; i++) {
        struct mc_life_info l = life_of(e, id);

        if (steps_for(&l, 0, text) > 3)
            return;
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    fail_msg("never held for: %s", text);
}

/* ---- tests ------------------------------------------------------------------------- */

static void life_tells_what_a_request_waited_for(void **state)
{
    struct rule r = {.hold = true, .generation = 3};
    const struct mc_policy p = {&ops, &r};
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){0}, &p);
    int32_t ids[4] = {1, 2, 3, 4};
    struct got *g = got_new();
    struct mc_request q = ask_for(ids, 4, 5, g);
    struct mc_handle h;
    struct mc_err err = {0};
    struct mc_life_info l;
    char id[32];
    static const int32_t want[] = {MC_LIFE_QUEUED, MC_LIFE_STARTED, MC_LIFE_FIRST,
                                   MC_LIFE_ENDED};

    (void)state;
    q.priority = 7;
    assert_ok(mc_engine_submit(e, &q, &h, &err), err);
    snprintf(id, sizeof id, "%u.%u", h.seq, h.gen);
    while (mc_engine_lives(e, id, &l, 1) == 0)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    wait_for_steps(e, id, "it is Sunday");
    atomic_store(&r.silent, true);
    wait_for_steps(e, id, "the policy ran nothing");
    assert_string_equal(life_of(e, id).end, "");
    atomic_store(&r.hold, false);
    got_wait(g, -1);
    assert_idle(e);
    l = life_of(e, id);
    assert_string_equal(l.name, "test");
    assert_string_equal(l.end, "length");
    assert_int_equal(l.n_event, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(l.event[i].what, want[i]);
        assert_int_equal(l.event[i].generation, 3);
        assert_true(i == 0 || l.event[i].t >= l.event[i - 1].t);
    }
    assert_int_equal(l.event[0].n, 4);
    assert_int_equal(l.event[3].n, 5);
    assert_true(steps_for(&l, 0, "it is Sunday") > 0);
    assert_true(steps_for(&l, 0, "the policy ran nothing") > 0);
    assert_int_equal(mc_engine_lives(e, "test", &l, 1), 1);
    assert_int_equal(mc_engine_lives(e, "another", &l, 1), 0);
    got_free(g);
    mc_engine_close(e);
}

static void life_names_each_generation_that_served(void **state)
{
    struct rule r = {.generation = 1};
    const struct mc_policy p = {&ops, &r};
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){0}, &p);
    int32_t ids[4] = {1, 2, 3, 4};
    struct got *g = got_new();
    struct mc_request q = ask_for(ids, 4, 2000, g);
    struct mc_handle h;
    struct mc_err err = {0};
    struct mc_life_info l;

    (void)state;
    assert_ok(mc_engine_submit(e, &q, &h, &err), err);
    for (uint32_t i = 1; i < 40; i++) { /* more than a life has places for */
        atomic_store(&r.generation, i);
        atomic_store(&r.upto, (int)i * 4);
        got_wait(g, (int32_t)i * 4);
    }
    mc_engine_cancel(e, h, "enough");
    got_wait(g, -1);
    assert_idle(e);
    l = life_of(e, "test");
    assert_string_equal(l.end, "cancelled: enough");
    assert_int_equal(l.n_event, MC_LIFE_EVENTS);
    assert_int_equal(l.event[3].what, MC_LIFE_SERVED);
    assert_int_equal(l.event[3].generation, 2);
    assert_int_equal(l.event[MC_LIFE_EVENTS - 1].what, MC_LIFE_ENDED);
    assert_int_equal(l.event[MC_LIFE_EVENTS - 1].generation, 39);
    got_free(g);
    mc_engine_close(e);
}

static void life_of_the_last_ones_is_kept(void **state)
{
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){0}, NULL);
    int32_t ids[2] = {1, 2};
    struct mc_life_info l[2];
    struct mc_lane_info lane[2];
    struct mc_handle h;
    struct mc_err err = {0};

    (void)state;
    for (int i = 0; i < MC_N_PAST + 1; i++) {
        struct got *g = got_new();
        struct mc_request q = ask_for(ids, 2, 1, g);

        snprintf(q.name, sizeof q.name, "r%d", i);
        q.lane = 2;
        assert_ok(mc_engine_submit(e, &q, &h, &err), err);
        got_wait(g, -1);
        assert_idle(e);
        got_free(g);
    }
    assert_int_equal(mc_engine_lives(e, "r0", l, 2), 0);
    assert_int_equal(mc_engine_lives(e, "r1", l, 2), 1);
    assert_int_equal(mc_engine_lives(e, "r256", l, 2), 1);
    assert_int_equal(mc_engine_lanes(e, lane, 2), 2);
    assert_int_equal(lane[1].id, 2);
    assert_true(lane[1].tok_out == MC_N_PAST + 1 && lane[1].n_run == 0);
    mc_engine_close(e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(life_tells_what_a_request_waited_for),
    cmocka_unit_test(life_names_each_generation_that_served),
    cmocka_unit_test(life_of_the_last_ones_is_kept),
};

MC_TEST_MAIN(tests)
