/* policies_util.h - for tests of generations: policies on a directory, and an engine's steps.
 * Include after tests/c/test.h. */
#ifndef MC_TEST_POLICIES_UTIL_H
#define MC_TEST_POLICIES_UTIL_H

#include <stdatomic.h>
#include <time.h>

#include "core/base/log.h"
#include "lua/host/policies.h"
#include "tests/c/policy_dir.h"

struct rig {
    struct mc_policies *p;
    struct mc_policy policy;
    char *dir;
    struct step_block *b;
    struct mc_plan *plan;
    double step;
};

static UNUSED atomic_int checked, made_live;
static UNUSED atomic_uint live_number;

static UNUSED int check_edge(void *edge, struct mc_generation *g, struct mc_err *err)
{
    const char *router = mc_generation_choice(g, "router", 0);

    (void)edge;
    checked++;
    return router && strcmp(router, "bad") == 0
               ? mc_fail(err, MC_EPOLICY, "bad.lua:1: bad")
               : 0;
}

static UNUSED void live_edge(void *edge, struct mc_generation *g)
{
    (void)edge;
    made_live++;
    live_number = g->number;
}

static UNUSED void rig_open(struct rig *r, bool watch)
{
    struct mc_policies_opts o = {.dir = r->dir, .etc = "/nonexistent", .no_watch = !watch,
                                 .vocab = test_vocab(), .check = check_edge, .live = live_edge};
    struct mc_err err = {0};

    assert_ok(mc_policies_open(&o, &r->p, &err), err);
    r->policy = mc_policies_policy(r->p);
    r->b = step_new(2, 100);
    r->plan = plan_new(0, 0, 0);
    r->step = 2000;
    for (int i = 0; i < 4; i++)
        step_row(r->b, i % 2, i < 2 ? MC_STATE_DECODE : MC_STATE_WAITING, 100);
}

static UNUSED void rig_close(struct rig *r)
{
    mc_policies_close(r->p);
    if (r->dir)
        dir_free(r->dir);
    free(r->b);
    free(r->plan);
}

/* One step as the engine does it; returns what plan said. */
static UNUSED int rig_step(struct rig *r)
{
    struct mc_err err = {0};
    int rc;

    *r->plan = (struct mc_plan){.abi = MC_ABI, .cap = MC_PLAN_CAP, .tok_left = 256,
                                .row_left = 64, .page_left = 100};
    r->b->view.step = r->step++;
    rc = r->policy.ops->plan(r->policy.self, &r->b->view, r->plan, &err);
    if (rc < 0) {
        print_message("plan: %s\n", err.text);
        r->plan->n = 0;
        mc_policy_builtin.ops->plan(NULL, &r->b->view, r->plan, &err);
    }
    r->policy.ops->step_end(r->policy.self);
    return rc;
}

static UNUSED struct mc_policies_status rig_status(struct rig *r)
{
    struct mc_policies_status s;

    mc_policies_status(r->p, &s);
    return s;
}

/* Until cond or 10 s, stepping. */
#define rig_until(r, cond)                                      \
    do {                                                        \
        for (int i_ = 0; !(cond) && i_ < 5000; i_++) {          \
            struct timespec nap_ = {.tv_nsec = 2000000};        \
            rig_step(r);                                        \
            nanosleep(&nap_, NULL);                             \
        }                                                       \
        assert_true(cond);                                      \
    } while (0)

static UNUSED uint32_t rig_reload(struct rig *r, const char *want_error)
{
    struct mc_err err = {0};
    uint32_t number = 0;
    int rc = mc_policies_reload(r->p, &number, &err);

    if (!want_error)
        assert_ok(rc, err);
    else if (rc >= 0 || !strstr(err.text, want_error))
        fail_msg("wanted '%s', got %d '%s'", want_error, rc, err.text);
    rig_step(r);
    return number;
}

/* A scheduler that holds all rows: its plans are told from the built-in's. */
static UNUSED const char hold_all[] =
    "local P = { api = 1, kind = 'scheduler', why = { 'waiting for %d' } }\n"
    "function P.plan(view, plan)\n"
    "  for _, r in view:waiting() do plan:hold(r, 1) end\n"
    "end\nreturn P\n";

static UNUSED void write_hold(const char *dir, int n)
{
    char text[400];

    snprintf(text, sizeof text, hold_all, n);
    dir_write(dir, "s.lua", text);
    dir_write(dir, "init.lua", "return { scheduler = 's' }");
}

#endif
