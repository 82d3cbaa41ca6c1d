/* test_engine_policy.c - the engine under policies that misbehave, and one that picks. */
#include <math.h>

#include "core/engine/engine_int.h"
#include "tests/c/engine_help.h"

/* ---- policies that misbehave ------------------------------------------------------- */

static int plan_nothing(void *self, struct mc_step_view *v, struct mc_plan *p,
                        struct mc_err *err)
{
    (void)self, (void)v, (void)p, (void)err;
    return 0;
}

static int plan_error(void *self, struct mc_step_view *v, struct mc_plan *p,
                      struct mc_err *err)
{
    (void)self, (void)v;
    p->n = 500; /* half written */
    return mc_fail(err, MC_EPOLICY, "on purpose");
}

/* Stale handles, wrong states, huge counts, every row twice, then what is right. */
static int plan_garbage(void *self, struct mc_step_view *v, struct mc_plan *p,
                        struct mc_err *err)
{
    int32_t n;

    for (uint32_t i = 0; i < 40; i++)
        p->item[p->n++] = (struct mc_item){.seq = i * 1000003u,
                                           .gen = i,
                                           .what = (uint16_t)i,
                                           .n = (int32_t)(i * 0x7FFFFFF)};
    mc_policy_builtin.ops->plan(self, v, p, err);
    n = p->n;
    for (int32_t i = 40; i < n && p->n < p->cap; i++)
        p->item[p->n++] = p->item[i];
    for (int32_t i = 40; i < n; i++)
        if (p->item[i].what == MC_RUN)
            p->item[i].n = INT32_MAX;
    return 0;
}

static void policy_that_plans_nothing_starves_but_harms_nothing(void **state)
{
    const struct mc_policy_ops ops = {.plan = plan_nothing};
    const struct mc_policy p = {&ops, NULL};
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){0}, &p);
    int32_t ids[4] = {1, 2, 3, 4};
    struct got *g = got_new();
    struct mc_request r = ask_for(ids, 4, 5, g);
    struct mc_handle h;
    struct mc_err err = {0};

    (void)state;
    assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    nanosleep(&(struct timespec){0, 200000000}, NULL);
    assert_int_equal(g->n, 0);
    assert_false(g->ended);
    assert_true(mc_engine_counter(e, MC_C_idle_by_policy_total) > 0);
    assert_true(mc_engine_counter(e, MC_C_plan_fallback_total) == 0);
    mc_engine_cancel(e, h, "enough");
    got_wait(g, -1);
    assert_idle(e);
    got_free(g);
    mc_engine_close(e);
}

static void runs_as_if_nothing_were_wrong(const struct mc_policy_ops *ops,
                                          enum mc_counter counted)
{
    const struct mc_policy p = {ops, NULL};
    struct got *x[STREAMS], *y[STREAMS];
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){0}, NULL);

    run_all(e, true, x);
    mc_engine_close(e);
    e = engine_open(&(struct mc_engine_opts){0}, &p);
    run_all(e, true, y);
    assert_true(mc_engine_counter(e, counted) > 0);
    assert_idle(e);
    mc_engine_close(e);
    for (int i = 0; i < STREAMS; i++) {
        same_tokens(x[i], y[i]);
        got_free(x[i]), got_free(y[i]);
    }
}

static void policy_that_fails_is_served_by_the_builtin(void **state)
{
    const struct mc_policy_ops ops = {.plan = plan_error};

    (void)state;
    runs_as_if_nothing_were_wrong(&ops, MC_C_plan_fallback_total);
}

static void policy_that_writes_garbage_is_trimmed(void **state)
{
    const struct mc_policy_ops ops = {.plan = plan_garbage};

    (void)state;
    runs_as_if_nothing_were_wrong(&ops, MC_C_plan_trimmed_total);
}

/* Called with nothing in flight (the engine is synchronous): the tags of all pages change,
 * as if others had taken them. */
static int plan_after_theft(void *self, struct mc_step_view *v, struct mc_plan *p,
                            struct mc_err *err)
{
    struct mc_engine *e = *(struct mc_engine **)self;

    if (v->n_row > 0 && mc_view_row(v, 0)->n_gen == 5)
        for (int32_t i = 0; i < e->crew.run[0].dev.kv.n_page; i++)
            e->crew.run[0].dev.kv.tag[i]++;
    return mc_policy_builtin.ops->plan(self, v, p, err);
}

static void policy_page_that_is_not_its_own_ends_a_sequence_unless_unchecked(void **state)
{
    const struct mc_policy_ops ops = {.plan = plan_after_theft};

    (void)state;
    for (int unchecked = 0; unchecked < 2; unchecked++) {
        struct mc_engine_opts o = {.model = "tests/models/tiny-llama", .kv = "f32",
                                   .sync = true, .no_page_tags = unchecked};
        struct mc_engine *e = NULL;
        const struct mc_policy p = {&ops, &e};
        struct golden w = golden_at(0);
        struct mc_err err = {0};
        struct got *g;

        mc_log_set("engine", MC_LOG_OFF);
        assert_ok(mc_engine_open(&o, &e, &err), err);
        mc_engine_set_policy(e, &p);
        assert_ok(mc_engine_start(e, &err), err);
        g = run_one(e, w.prompt, w.n_prompt, 10);
        assert_int_equal(g->n, unchecked ? 10 : 5);
        assert_memory_equal(g->id, w.ids, (size_t)g->n * sizeof *w.ids);
        assert_int_equal(g->end.finish, unchecked ? MC_FINISH_LENGTH : MC_FINISH_ERROR);
        assert_true(mc_engine_counter(e, MC_C_page_tag_mismatch_total) == !unchecked);
        got_free(g);
        golden_free(&w);
        mc_engine_close(e);
    }
}

static int chain_pick(void *self, struct mc_pick_seq *s, const struct mc_params *want,
                      struct mc_params *out, struct mc_err *err)
{
    (void)self, (void)s, (void)err;
    *out = *want;
    out->flags |= MC_PARAM_PICK;
    return 0;
}

static int pick_second(void *self, const struct mc_cands *c, struct mc_pick_seq *s,
                       int32_t *id, struct mc_err *err)
{
    (void)self, (void)s, (void)err;
    *id = s->done == 3 ? c->id[1] : -1;
    return 0;
}

static void policy_pick_of_candidate_two_gives_the_second_best(void **state)
{
    const struct mc_policy_ops ops = {.plan = NULL,
                                      .chain = chain_pick,
                                      .pick = pick_second};
    struct mc_policy_ops use = ops;
    const struct mc_policy p = {&use, NULL};
    struct mc_engine *e;
    struct golden w = golden_at(0);
    struct got *g, *after;
    int32_t ids[64];

    (void)state;
    use.plan = mc_policy_builtin.ops->plan;
    e = engine_open(&(struct mc_engine_opts){0}, &p);
    g = run_one(e, w.prompt, w.n_prompt, 10);
    assert_memory_equal(g->id, w.ids, 3 * sizeof *w.ids);
    assert_int_not_equal(g->id[3], w.ids[3]);
    mc_engine_close(e);
    /* what follows is what the model says after the picked token */
    e = engine_open(&(struct mc_engine_opts){0}, NULL);
    memcpy(ids, w.prompt, (size_t)w.n_prompt * sizeof *ids);
    memcpy(ids + w.n_prompt, g->id, 4 * sizeof *ids);
    after = run_one(e, ids, w.n_prompt + 4, 6);
    assert_memory_equal(after->id, g->id + 4, 6 * sizeof *ids);
    mc_engine_close(e);
    got_free(g), got_free(after);
    golden_free(&w);
}

/* ---- what stays in the cache ------------------------------------------------------- */

enum { KEPT = 200, OTHER = 250 }; /* tokens: 3 full pages each, of a pool of 8 */

static _Atomic int n_keep; /* times that keep was called */

static int keep_tenant_1(void *self, struct mc_block *b, int32_t n, struct mc_err *err)
{
    (void)self, (void)err;
    n_keep++;
    for (int32_t i = 0; i < n; i++)
        b[i].score = b[i].t_used + (b[i].tenant == 1 ? 1e6 - b[i].depth : 0);
    return 0;
}

static int keep_nan(void *self, struct mc_block *b, int32_t n, struct mc_err *err)
{
    keep_tenant_1(self, b, n, err);
    b[n - 1].score = (double)NAN;
    return 0;
}

static int keep_error(void *self, struct mc_block *b, int32_t n, struct mc_err *err)
{
    keep_tenant_1(self, b, n, err);
    return mc_fail(err, MC_EPOLICY, "on purpose");
}

static struct got *run_of(struct mc_engine *e, uint32_t tenant, int32_t n, uint32_t seed)
{
    int32_t ids[OTHER];
    struct got *g = got_new();
    struct mc_request r;
    struct mc_handle h;
    struct mc_err err = {0};

    some_ids(ids, n, seed);
    r = ask_for(ids, n, 4, g);
    r.tenant = tenant;
    assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    got_wait(g, -1);
    assert_idle(e);
    return g;
}

/* Tokens of tenant 1's prompt that are still cached after four of another's. */
static int32_t still_cached(int (*keep)(void *, struct mc_block *, int32_t,
                                        struct mc_err *),
                            int64_t *failed)
{
    struct mc_policy_ops ops = *mc_policy_builtin.ops;
    const struct mc_policy p = {&ops, NULL};
    struct mc_engine *e;
    struct got *first, *again;
    int32_t n;

    ops.keep = keep;
    n_keep = 0;
    e = engine_open(&(struct mc_engine_opts){.kv_bytes = 8 * 131072}, &p);
    first = run_of(e, 1, KEPT, 1);
    got_free(run_of(e, 2, OTHER, 2));
    assert_int_equal(n_keep, 0); /* the pool had free ones */
    for (uint32_t i = 3; i < 6; i++)
        got_free(run_of(e, 2, OTHER, i));
    again = run_of(e, 1, KEPT, 1);
    same_tokens(first, again);
    n = again->end.usage.n_cached;
    *failed = mc_engine_counter(e, MC_C_keep_fallback_total);
    got_free(first), got_free(again);
    mc_engine_close(e);
    return n;
}

static void policy_keep_holds_what_is_least_recently_used(void **state)
{
    int64_t failed;

    (void)state;
    assert_int_equal(still_cached(NULL, &failed), 0);
    assert_int_equal(still_cached(keep_tenant_1, &failed), KEPT / 64 * 64);
    assert_int_equal(failed, 0);
    assert_true(n_keep > 0);
}

static void policy_keep_that_fails_or_says_nan_leaves_the_oldest_to_go(void **state)
{
    int64_t failed;

    (void)state;
    assert_int_equal(still_cached(keep_error, &failed), 0);
    assert_true(n_keep > 0 && failed == n_keep);
    assert_int_equal(still_cached(keep_nan, &failed), 0);
    assert_true(n_keep > 0 && failed == n_keep);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(policy_keep_holds_what_is_least_recently_used),
    cmocka_unit_test(policy_keep_that_fails_or_says_nan_leaves_the_oldest_to_go),
    cmocka_unit_test(policy_that_plans_nothing_starves_but_harms_nothing),
    cmocka_unit_test(policy_that_fails_is_served_by_the_builtin),
    cmocka_unit_test(policy_that_writes_garbage_is_trimmed),
    cmocka_unit_test(policy_pick_of_candidate_two_gives_the_second_best),
    cmocka_unit_test(policy_page_that_is_not_its_own_ends_a_sequence_unless_unchecked),
};

MC_TEST_MAIN(tests)
