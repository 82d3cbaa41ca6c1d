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

static int try_all(const struct mc_check *c, struct mc_generation *g,
                   const struct mc_step_opts *o, json_t **out, struct mc_err *err)
{
    struct mc_stepvm *s = NULL;
    struct mc_tried tried;
    int rc = mc_trial_open(o, g, &s, err);

    if (rc == 0)
        rc = mc_trial_run(&s, c->recorded, &tried, err);
    if (rc == 0 && c->edge)
        rc = c->edge(c->self, g, err);
    if (rc == 0)
        *out = report(c, g, s, &tried);
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
    if (rc == 0)
        rc = try_all(c, g, &o, out, err);
    mc_generation_unref(g);
    mc_sets_fini(sets);
    free(sets);
    return rc;
}

/* ---- without a server ------------------------------------------------------------------ */

static int edge_alone(void *edge, struct mc_generation *g, struct mc_err *err)
{
    return mc_edge_check(edge, g, err);
}

int mc_check_alone(const char *path, json_t **out, struct mc_err *err)
{
    struct mc_server server = {.config = json_object()};
    struct mc_check c = {.path = path, .edge = edge_alone};
    struct mc_edge *edge = NULL;
    int rc = mc_shared_open(SHARED_BYTES, &server.shared, err);

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
