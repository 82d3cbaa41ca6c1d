/* check.h - files tried as a reload tries them, without anything going live.
 * THREAD: one that has no limit armed (no REPL's). */
#ifndef MC_LUA_CHECK_H
#define MC_LUA_CHECK_H

#include <jansson.h>

#include "lua/host/dryrun.h"
#include "lua/host/vocab.h"

struct mc_check {
    const char *path; /* a directory, one file of it, or "": the built-in set */
    struct mc_vocab vocab;            /* n 0: none */
    const char *model;                /* whose engine it is for, or NULL */
    const struct mc_record *recorded; /* steps to try it on, besides the shipped ones */
    int n_recorded;
    /* The edge half, as in struct mc_policies_opts; may be NULL. */
    int (*edge)(void *self, struct mc_generation *g, struct mc_err *err);
    void *self;
    json_t *tests; /* not NULL: only tests are run, all of them, and noted here */
};

/* *out: {ok, path, hooks, files, views, plan_us, plan_us_worst, simulated_steps, trimmed,
 * starved, stuck}, a new reference: starved counts the requests of the shipped arrivals that
 * starve under it. On failure err->text says file, line and reason, and what was tried. */
int mc_check_run(const struct mc_check *c, json_t **out, struct mc_err *err);

/* mc_check_run without a server: the routes' and routers' files run in an edge VM that has
 * no model. views: a recording whose views are tried too, or NULL. */
int mc_check_alone(const char *path, const char *views, json_t **out, struct mc_err *err);

/* Runs the tests of a directory's files, or of one file; t.recorded() walks the recording's
 * views when there is one. *out: an array of {file, name, ok,
 * error}. Fails when the files can't be loaded; a failed test is no failure. */
int mc_test_alone(const char *path, const char *views, json_t **out, struct mc_err *err);

#endif
