/* half.c - puts the Lua half together: policies, the edge, sessions.
 *
 * OWNS them. THREAD: open and close one; the edge's part of a generation runs on the
 * builder's; the rest as lua_half.h says. */
#include "lua/host/half.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "lua/host/bench.h"
#include "lua/host/check.h"
#include "lua/host/edge.h"
#include "lua/host/embed.h"
#include "lua/host/policies.h"
#include "lua/host/render.h"
#include "lua/host/repl.h"
#include "lua/host/settings.h"
#include "lua/host/lone.h"
#include "lua/host/verbs.h"

struct mc_lua {
    struct mc_server *server;
    struct mc_edge *edge;
    struct mc_policies *policies[MC_SERVED_MAX]; /* of each model; the others follow the first */
};

/* ---- the edge's part --------------------------------------------------------------- */

static int on_check(void *self, struct mc_generation *g, struct mc_err *err)
{
    return mc_edge_check(((struct mc_lua *)self)->edge, g, err);
}

static void on_live(void *self, struct mc_generation *g)
{
    struct mc_err err;

    if (mc_edge_install(((struct mc_lua *)self)->edge, g, &err) < 0)
        mc_error("lua", "routes stay as they were: %s", err.text);
}

static void wake_first(void *self)
{
    mc_engine_wake(((struct mc_lua *)self)->server->model[0].engine);
}

static void wake_engine(void *engine)
{
    mc_engine_wake(engine);
}

static int on_request(void *self, struct mc_req *r, struct mc_err *err)
{
    return mc_edge_ops.request(((struct mc_lua *)self)->edge, r, err);
}

static void on_gone(void *self, struct mc_req *r)
{
    mc_edge_ops.gone(((struct mc_lua *)self)->edge, r);
}

static const struct mc_edge_ops edge_ops = {on_request, on_gone};

static int lone_open(const char *path, struct mc_lone **out, struct mc_policy *policy,
                     struct mc_err *err)
{
    int rc = mc_lone_open(path, out, err);

    if (rc == 0)
        *policy = mc_lone_policy(*out);
    return rc;
}

/* ---- a new directory --------------------------------------------------------------- */

/* The shipped policies, and what editors want: types, and how to check the files. */
static const char *starter(int i, const char **text, size_t *n)
{
    static const struct {
        const char *from, *to;
    } dirs[] = {{"policies/", ""}, {"lua/mc/meta/", "types/"}, {"lua/starter/", ""}};
    static __thread char name[128];

    for (const struct mc_embed *e = mc_embedded; e->path; e++)
        for (int d = 0; d < 3; d++) {
            size_t len = strlen(dirs[d].from);

            if (strncmp(e->path, dirs[d].from, len) != 0 || i-- > 0)
                continue;
            *text = e->text;
            *n = e->n;
            snprintf(name, sizeof name, "%s%s", dirs[d].to, e->path + len);
            return name;
        }
    return NULL;
}

/* ---- opening ----------------------------------------------------------------------- */

static const char *piece(const void *tok, int32_t id, size_t *n, bool *special)
{
    return mc_tok_piece(tok, id, n, special);
}

static void half_close(struct mc_lua *l)
{
    if (!l)
        return;
    l->server->policies = NULL;
    for (int i = 0; i < l->server->n_model; i++)
        mc_policies_close(l->policies[i]); /* the first's builder calls the edge and the rest */
    mc_edge_close(l->edge);
    free(l);
}

static int open_policies(struct mc_lua *l, int i, struct mc_policies_opts *o,
                         struct mc_err *err)
{
    const struct mc_served *m = &l->server->model[i];
    const struct mc_tok *tok = mc_engine_tok(m->engine);

    o->vocab = (struct mc_vocab){mc_tok_n(tok), piece, tok};
    o->model = m->id;
    o->metrics = l->server->metrics;
    o->config = l->server->config;
    return mc_policies_open(o, &l->policies[i], err);
}

static int half_open(struct mc_server *s, const struct mc_lua_opts *o,
                     struct mc_lua **out, struct mc_err *err)
{
    struct mc_lua *l = calloc(1, sizeof *l);
    struct mc_policies_opts first = {.dir = o->policies, .no_watch = !o->watch,
                                     .check = on_check, .live = on_live, .wake = wake_first,
                                     .self = l};
    int rc;

    if (!l)
        return mc_fail(err, MC_ENOMEM, "no memory for the Lua half");
    l->server = s;
    rc = mc_edge_open(s, o->edge_vms, &l->edge, err);
    for (int i = 1; i < s->n_model && rc == 0; i++) {
        struct mc_policies_opts po = {.follows = true, .wake = wake_engine,
                                      .self = s->model[i].engine};

        rc = open_policies(l, i, &po, err);
    }
    first.followers = l->policies + 1;
    first.n_followers = s->n_model - 1;
    if (rc == 0)
        rc = open_policies(l, 0, &first, err);
    if (rc < 0) {
        half_close(l);
        return rc;
    }
    s->policies = &mc_policy_verbs;
    s->policies_self = l->policies[0];
    s->repl = &mc_repl_ops;
    s->repl_self = s;
    *out = l;
    return 0;
}

static void half_stop(struct mc_lua *l)
{
    mc_edge_stop(l->edge);
}

static struct mc_policy half_policy(struct mc_lua *l, int i)
{
    return mc_policies_policy(l->policies[i]);
}

const struct mc_lua_half mc_lua_half = {
    .table = mc_lua_table,
    .check = mc_check_alone,
    .test = mc_test_alone,
    .lone = lone_open,
    .lone_close = mc_lone_close,
    .bench = mc_lua_bench,
    .starter = starter,
    .recipe = mc_lua_recipe,
    .render_open = mc_render_open,
    .render_run = mc_render_run,
    .render_close = mc_render_close,
    .open = half_open,
    .policy = half_policy,
    .edge = &edge_ops,
    .stop = half_stop,
    .close = half_close,
};
