/* check.c - a generation that never serves. Owns what it builds, for the length of a call.
 * THREAD: as check.h says. */
#include "lua/host/check.h"

#include <stdlib.h>
#include <string.h>

#include "core/serve/server.h"
#include "lua/host/edge.h"
#include "lua/host/trial.h"

enum { SHARED_BYTES = 1 << 20 };

static json_t *report(const struct mc_check *c, const struct mc_generation *g,
                      const struct mc_stepvm *s, const struct mc_tried *t)
{
    json_t *hooks = json_array(), *files = json_array();
    int n = t->n_us;

    for (int h = 0; h < MC_N_HOOK; h++)
        if (mc_stepvm_has(s, (enum mc_hook)h))
            json_array_append_new(hooks, json_string(mc_hook_names[h]));
    for (int i = 0; i < g->n_choice; i++)
        json_array_append_new(files, json_string(g->choice[i].name));
    return json_pack("{s:b, s:s, s:o, s:o, s:i, s:f, s:f}", "ok", 1, "path",
                     *c->path ? c->path : "(built in)", "hooks", hooks, "files", files,
                     "views", t->n, "plan_us", n ? (double)t->us[n / 2] : 0,
                     "plan_us_worst", n ? (double)t->us[n - 1] : 0);
}

static void note_test(void *ctx, const char *file, const char *name, const char *error)
{
    json_t *row = json_pack("{s:s, s:s, s:b}", "file", file, "name", name, "ok", !error);

    if (row && error)
        json_object_set_new(row, "error", json_string(error));
    json_array_append_new(ctx, row);
}

static int try_all(const struct mc_check *c, struct mc_generation *g,
                   const struct mc_step_opts *o, json_t **out, struct mc_err *err)
{
    struct mc_stepvm *s = NULL;
    struct mc_tried tried;
    int rc = mc_trial_open(o, g, &s, err);

    if (rc == 0 && !c->tests)
        rc = mc_trial_run(&s, c->recorded, &tried, err);
    if (rc == 0 && c->edge)
        rc = c->edge(c->self, g, err);
    if (rc == 0)
        *out = c->tests ? json_incref(c->tests) : report(c, g, s, &tried);
    mc_stepvm_close(s);
    return rc;
}

int mc_check_run(const struct mc_check *c, json_t **out, struct mc_err *err)
{
    struct mc_sets *sets = calloc(1, sizeof *sets);
    const struct mc_step_opts o = {.sets = sets, .log = mc_step_quiet};
    struct mc_generation *g = NULL;
    int rc;

    if (!sets)
        return mc_fail(err, MC_ENOMEM, "no memory to try policies");
    sets->vocab = c->vocab;
    rc = *c->path ? mc_generation_open_path(c->path, &g, err)
                  : mc_generation_open("", &g, err);
    if (rc == 0 && c->tests) {
        g->tested = note_test;
        g->tested_ctx = c->tests;
    }
    if (rc == 0)
        rc = try_all(c, g, &o, out, err);
    mc_generation_unref(g);
    mc_sets_fini(sets);
    free(sets);
    return rc;
}

/* ---- without a server ------------------------------------------------------------------ */

static char bytes[256]; /* each its own value */

/* Without a model: two control tokens, then a token for each byte. */
static const char *byte_piece(const void *ctx, int32_t id, size_t *n, bool *special)
{
    (void)ctx;
    *special = id < 2;
    *n = 1;
    return id < 2 ? "" : &bytes[id - 2];
}

static int edge_alone(void *edge, struct mc_generation *g, struct mc_err *err)
{
    return mc_edge_check(edge, g, err);
}

static int alone(const char *path, json_t *tests, json_t **out, struct mc_err *err)
{
    struct mc_server server = {.config = json_object()};
    struct mc_check c = {.path = path, .edge = edge_alone,
                         .vocab = {.n = 258, .piece = byte_piece}, .tests = tests};
    struct mc_edge *edge = NULL;
    int rc = mc_shared_open(SHARED_BYTES, &server.shared, err);

    for (int i = 0; i < 256; i++)
        bytes[i] = (char)i;
    if (rc == 0)
        rc = mc_metrics_open(&server.metrics, err);
    if (rc == 0)
        rc = mc_edge_open(&server, 1, &edge, err);
    c.self = edge;
    if (rc == 0)
        rc = mc_check_run(&c, out, err);
    mc_edge_close(edge);
    mc_metrics_close(server.metrics);
    mc_shared_close(server.shared);
    json_decref(server.config);
    return rc;
}

int mc_check_alone(const char *path, json_t **out, struct mc_err *err)
{
    return alone(path, NULL, out, err);
}

int mc_test_alone(const char *path, json_t **out, struct mc_err *err)
{
    json_t *tests = json_array();
    int rc = alone(path, tests, out, err);

    json_decref(tests);
    return rc;
}
