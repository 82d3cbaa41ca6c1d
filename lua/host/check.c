/* check.c - a generation that never serves. Owns what it builds, for the length of a call.
 * THREAD: as check.h says. */
#include "lua/host/check.h"

#include <stdlib.h>
#include <string.h>

#include "core/engine/sim.h"
#include "core/serve/server.h"
#include "lua/host/edge.h"
#include "lua/host/lone.h"
#include "lua/host/trial.h"

enum { SHARED_BYTES = 1 << 20 };

static json_t *report(const struct mc_check *c, const struct mc_generation *g,
                      const struct mc_stepvm *s, const struct mc_tried *t,
                      const struct mc_sim *sim)
{
    json_t *hooks = json_array(), *files = json_array();
    int n = t->n_us;

    for (int h = 0; h < MC_N_HOOK; h++)
        if (mc_stepvm_has(s, (enum mc_hook)h))
            json_array_append_new(hooks, json_string(mc_hook_names[h]));
    for (int i = 0; i < g->n_choice; i++)
        json_array_append_new(files, json_string(g->choice[i].name));
    return json_pack("{s:b, s:s, s:o, s:o, s:i, s:f, s:f, s:i, s:i, s:i, s:b}", "ok", 1,
                     "path", *c->path ? c->path : "(built in)", "hooks", hooks, "files",
                     files, "views", t->n, "plan_us", n ? (double)t->us[n / 2] : 0,
                     "plan_us_worst", n ? (double)t->us[n - 1] : 0, "simulated_steps",
                     sim->steps, "trimmed", sim->trimmed, "starved", sim->starved,
                     "stuck", sim->stuck);
}

static void note_test(void *ctx, const char *file, const char *name, const char *error)
{
    json_t *row = json_pack("{s:s, s:s, s:b}", "file", file, "name", name, "ok", !error);

    if (row && error)
        json_object_set_new(row, "error", json_string(error));
    json_array_append_new(ctx, row);
}

/* The shipped arrivals under this VM's scheduler, which a dry run's single steps do not
 * show: what it does with the consequences of its own plans. */
static int simulate(struct mc_stepvm *s, struct mc_sim *sim, struct mc_err *err)
{
    struct mc_lone lone = {.vm = s};
    struct mc_policy policy = mc_lone_policy(&lone);
    struct mc_recording rec;
    const struct mc_sim_opts o = {.rec = &rec, .policy = &policy, .host_us = 50,
                                  .decode = {.us_base = 20000, .us_row = 500},
                                  .prefill = {.us_tok = 400}};
    char at[80] = "";
    int rc = mc_sim_shipped(&rec);

    if (rc < 0)
        return mc_fail(err, rc, "no memory to simulate");
    mc_lone_reset(&lone);
    rc = mc_sim_run(&o, sim, err);
    if (rc == 0 && sim->failed) {
        *err = sim->err;
        rc = mc_err_while(err, "simulating the shipped arrivals");
        if (s->vm->lost)
            mc_trial_find(s, at, sizeof at);
        if (*at)
            rc = mc_fail(err, rc,
                         "while simulating the shipped arrivals: plan ran away at %s",
                         at);
    }
    mc_recording_free(&rec);
    return rc;
}

static int try_all(const struct mc_check *c, struct mc_generation *g,
                   const struct mc_step_opts *o, json_t **out, struct mc_err *err)
{
    struct mc_stepvm *s = NULL;
    struct mc_tried tried;
    struct mc_sim sim = {0};
    int rc = mc_trial_open(o, g, &s, err);

    if (rc == 0 && !c->tests)
        rc = mc_trial_run(&s, c->recorded, c->n_recorded, &tried, err);
    if (rc == 0 && !c->tests)
        rc = simulate(s, &sim, err);
    if (rc == 0 && c->edge)
        rc = c->edge(c->self, g, err);
    if (rc == 0)
        *out = c->tests ? json_incref(c->tests) : report(c, g, s, &tried, &sim);
    mc_sim_free(&sim);
    mc_stepvm_close(s);
    return rc;
}

int mc_check_run(const struct mc_check *c, json_t **out, struct mc_err *err)
{
    struct mc_sets *sets = calloc(1, sizeof *sets);
    const struct mc_step_opts o = {.sets = sets, .log = mc_step_quiet,
                                   .views = c->recorded, .model = c->model,
                                   .n_views = c->tests ? c->n_recorded : 0};
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

/* ---- without a server -------------------------------------------------------------- */

static int edge_alone(void *edge, struct mc_generation *g, struct mc_err *err)
{
    return mc_edge_check(edge, g, err);
}

/* The views of a recording as steps to try things on; rec keeps them. */
static int load_views(const char *path, struct mc_recording *rec, struct mc_record **out,
                      struct mc_err *err)
{
    int rc = mc_recording_load(path, rec, err);

    if (rc < 0)
        return rc;
    *out = calloc((size_t)rec->n_view + 1, sizeof **out);
    if (!*out)
        return mc_fail(err, MC_ENOMEM, "no memory for the views of %s", path);
    for (int32_t i = 0; i < rec->n_view; i++) {
        struct mc_rec_view *v = rec->view[i];
        struct mc_step_view *block = (struct mc_step_view *)(v + 1);

        (*out)[i] = (struct mc_record){v->tok_left, v->row_left, v->page_left,
                                       block->bytes, block};
    }
    return 0;
}

static int alone(const char *path, const char *views, json_t *tests, json_t **out,
                 struct mc_err *err)
{
    struct mc_server server = {.config = json_object()};
    struct mc_check c = {.path = path, .edge = edge_alone, .vocab = mc_vocab_bytes(),
                         .tests = tests};
    struct mc_recording rec = {0};
    struct mc_record *recorded = NULL;
    struct mc_edge *edge = NULL;
    int rc = mc_shared_open(SHARED_BYTES, &server.shared, err);

    if (rc == 0)
        rc = mc_metrics_open(&server.metrics, err);
    if (rc == 0)
        rc = mc_edge_open(&server, 1, &edge, err);
    if (rc == 0 && views)
        rc = load_views(views, &rec, &recorded, err);
    c.self = edge;
    c.recorded = recorded;
    c.n_recorded = rec.n_view;
    if (rc == 0)
        rc = mc_check_run(&c, out, err);
    mc_edge_close(edge);
    mc_metrics_close(server.metrics);
    mc_shared_close(server.shared);
    mc_recording_free(&rec);
    free(recorded);
    json_decref(server.config);
    return rc;
}

int mc_check_alone(const char *path, const char *views, json_t **out, struct mc_err *err)
{
    return alone(path, views, NULL, out, err);
}

int mc_test_alone(const char *path, const char *views, json_t **out, struct mc_err *err)
{
    json_t *tests = json_array();
    int rc = alone(path, views, tests, out, err);

    json_decref(tests);
    return rc;
}
