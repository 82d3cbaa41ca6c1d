/* weight.c - host.tensor's source, ready, about and rows: a tensor of a model's checkpoint.
 *
 * The file is opened and read by the thread of the tensors' pool, as jobs that a fence awaits
 * (lua/mc/tensor.lua). A source is counted: its handle's reference and a job's, which may
 * outlive it. OWNS both. THREAD: the loop's; jobs run on the pool's.
 * Always true: a source has one job at a time, and between `done` and the next job it is the
 * loop's alone. */
#include "lua/bind/weight.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/serve/server.h"
#include "core/weights/named.h"
#include "lua/bind/bind.h"
#include "lua/bind/tensor.h"
#include "lua/host/task.h"

static const char SOURCE[] = "mc.tensor.source";

struct source {
    atomic_int refs;
    atomic_bool done;
    char path[4096], name[128];
    bool open;
    struct mc_named w;
    struct mc_tensor to; /* of a job that reads: host memory */
    int32_t from, n;
    int rc;
    struct mc_err err;
};

struct lsource {
    struct mc_owned own;
    struct source *s; /* NULL: closed */
};

static void drop(struct source *s)
{
    if (!s || atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    if (s->open)
        mc_named_close(&s->w);
    free(s);
}

static void end_source(struct mc_owned *o)
{
    struct lsource *h = (struct lsource *)o;

    drop(h->s);
    h->s = NULL;
}

/* ---- the pool's thread ------------------------------------------------------------- */

static void run(void *ctx)
{
    struct source *s = ctx;

    if (s->open) {
        s->rc = mc_named_rows(&s->w, s->from, s->n, s->to.v.p, &s->err);
    } else {
        s->rc = mc_named_open(s->path, s->name, &s->w, &s->err);
        s->open = s->rc == 0;
    }
    mc_tensor_drop(&s->to);
    atomic_store(&s->done, true);
    drop(s);
}

/* ---- functions --------------------------------------------------------------------- */

static struct source *check(lua_State *L)
{
    struct lsource *h = *(struct lsource **)luaL_checkudata(L, 1, SOURCE);

    luaL_argcheck(L, h && h->s, 1, "the source is closed");
    return h->s;
}

static struct source *check_done(lua_State *L)
{
    struct source *s = check(L);

    luaL_argcheck(L, atomic_load(&s->done) && s->rc == 0, 1, "the source is not ready");
    return s;
}

/* Queues the source's next job; what it takes along is dropped when it can't. */
static int start(struct mc_account *a, struct source *s, struct mc_err *err)
{
    int rc;

    atomic_store(&s->done, false);
    atomic_fetch_add(&s->refs, 1);
    rc = mc_tensors_call(mc_account_pool(a), run, s, err);
    if (rc < 0) {
        atomic_store(&s->done, true);
        mc_tensor_drop(&s->to);
        drop(s);
    }
    return rc;
}

/* source(model, name) -> source, for ready; nil, error */
static int l_source(lua_State *L)
{
    const char *name = luaL_checkstring(L, 2);
    struct mc_account *a = mc_tensor_account_of(L);
    const struct mc_served *m = a ? mc_bind_model(L, 1) : NULL;
    struct lsource *h;
    struct mc_err err;

    if (!m)
        return 2;
    luaL_argcheck(L, strlen(name) < sizeof h->s->name, 2,
                  "a tensor's name has up to 127 bytes");
    h = mc_bind_own(L, SOURCE, sizeof *h, end_source);
    h->s = calloc(1, sizeof *h->s);
    if (!h->s)
        return luaL_error(L, "not enough memory");
    atomic_init(&h->s->refs, 1);
    snprintf(h->s->path, sizeof h->s->path, "%s", mc_engine_path(m->engine));
    snprintf(h->s->name, sizeof h->s->name, "%s", name);
    return start(a, h->s, &err) < 0 ? mc_bind_fail(L, &err) : 1;
}

/* ready(source) -> true; false: a job of it runs; nil and its error */
static int l_ready(lua_State *L)
{
    struct source *s = check(L);
    bool done = atomic_load(&s->done);

    if (done && s->rc < 0)
        return mc_bind_fail(L, &s->err);
    lua_pushboolean(L, done);
    return 1;
}

/* about(source) -> dtype, axes, rows (of a vector 1), columns */
static int l_about(lua_State *L)
{
    struct source *s = check_done(L);

    lua_pushstring(L, mc_dtype_name(mc_named_type(&s->w)));
    lua_pushinteger(L, s->w.n_dim);
    lua_pushinteger(L, s->w.d.n);
    lua_pushinteger(L, s->w.d.k);
    return 4;
}

/* rows(source, from, n, tensor) -> true: rows from (0..) are being read into the front of a
 * tensor in host memory; nil, error */
static int l_rows(lua_State *L)
{
    struct source *s = check_done(L);
    double from = luaL_checknumber(L, 2), n = luaL_checknumber(L, 3);
    const struct mc_tensor *to = mc_tensor_check(L, 4);
    struct mc_err err;

    luaL_argcheck(L, from >= 0 && n >= 1 && from + n <= s->w.d.n, 2, "no such rows");
    luaL_argcheck(L, to->v.dt == MC_F32 && n * s->w.d.k <= (double)mc_tensor_count(to), 4,
                  "it has no room");
    s->from = (int32_t)from;
    s->n = (int32_t)n;
    s->to = mc_tensor_ref(to);
    if (start(mc_tensor_account_of(L), s, &err) < 0)
        return mc_bind_fail(L, &err);
    lua_pushboolean(L, 1);
    return 1;
}

/* done(source): lets go of it */
static int l_done(lua_State *L)
{
    struct lsource *h = *(struct lsource **)luaL_checkudata(L, 1, SOURCE);

    if (h)
        end_source(&h->own);
    return 0;
}

void mc_bind_weight(lua_State *L)
{
    static const luaL_Reg none[] = {{NULL, NULL}};
    static const luaL_Reg fns[] = {{"source", l_source}, {"ready", l_ready}, {"about", l_about},
                                   {"rows", l_rows},     {"done", l_done},   {NULL, NULL}};

    mc_bind_type(L, SOURCE, none, mc_bind_disown);
    for (const luaL_Reg *f = fns; f->name; f++) {
        lua_pushcfunction(L, f->func);
        lua_setfield(L, -2, f->name);
    }
}
