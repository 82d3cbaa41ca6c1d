/* stepvm_util.h - for tests of one step VM: opening one, running a plan.
 *
 * Most tests put Lua into plan() and let it assert: a failed assert fails the hook, and its
 * text is the test's. Include after tests/c/test.h. */
#ifndef MC_TEST_STEPVM_UTIL_H
#define MC_TEST_STEPVM_UTIL_H

#include "lua/host/shown.h"
#include "lua/host/step.h"
#include "tests/c/policy_dir.h"

static struct mc_sets sets;
static char logged[16][300];
static int n_logged;

static UNUSED void note_log(void *ctx, int level, const char *text)
{
    (void)ctx;
    snprintf(logged[n_logged++ % 16], sizeof logged[0], "%d %s", level, text);
}

static UNUSED struct mc_step_opts opts(void)
{
    sets.vocab = test_vocab();
    return (struct mc_step_opts){.sets = &sets, .log = note_log};
}

static UNUSED int open_dir(const char *dir, struct mc_stepvm **out, struct mc_err *err)
{
    struct mc_step_opts o = opts();
    struct mc_generation *g;
    int rc = mc_generation_open(dir, &g, err);

    *out = NULL;
    if (rc < 0)
        return rc;
    rc = mc_stepvm_open(&o, g, out, NULL, 0, err);
    mc_generation_unref(g);
    return rc;
}

/* A VM whose plan is this body. */
static UNUSED struct mc_stepvm *open_plan(const char *body, const char *more)
{
    char *dir = dir_new();
    struct mc_stepvm *s;
    struct mc_err err = {0};

    dir_scheduler(dir, body, more);
    assert_ok(open_dir(dir, &s, &err), err);
    dir_free(dir);
    return s;
}

static UNUSED double state[MC_N_STATE];

static UNUSED int run_plan(struct mc_stepvm *s, struct step_block *b, struct mc_plan *p,
                    struct mc_err *err)
{
    return mc_stepvm_plan(s, &b->view, p, state, err);
}

/* Runs body once over a step of eight rows in two lanes; it must not fail. */
static UNUSED void check_plan(const char *body)
{
    struct mc_stepvm *s = open_plan(body, "");
    struct step_block *b = step_new(2, 100);
    struct mc_plan *p = plan_new(256, 64, 100);
    struct mc_err err = {0};

    for (int i = 0; i < 8; i++)
        step_row(b, i % 2,
                 i < 3   ? MC_STATE_DECODE
                 : i < 4 ? MC_STATE_PAUSED
                         : MC_STATE_WAITING,
                 100 + i);
    s->opts.hook_us = 60000000; /* some try thousands of things */
    assert_ok(run_plan(s, b, p, &err), err);
    mc_stepvm_close(s);
    free(b);
    free(p);
}

#endif
