/* metrics.c - mc.metrics and mc.log. OWNS nothing. THREAD: the VM's. */
#include <stdio.h>
#include <string.h>

#include "core/base/log.h"
#include "core/serve/server.h"
#include "lua/bind/bind.h"
#include "lua/bind/data.h"
#include "lua/host/limit.h"
#include "lua/host/task.h"

/* ---- metrics ----------------------------------------------------------------------- */

/* Strings of the list at idx; the table holds them. */
static int strings(lua_State *L, int idx, const char **out, int max)
{
    int n, i;

    if (lua_isnoneornil(L, idx))
        return 0;
    luaL_checktype(L, idx, LUA_TTABLE);
    n = (int)lua_objlen(L, idx);
    luaL_argcheck(L, n <= max, idx, "too many");
    for (i = 0; i < n; i++) {
        lua_rawgeti(L, idx, i + 1);
        luaL_argcheck(L, lua_type(L, -1) == LUA_TSTRING, idx, "a list of strings");
        out[i] = lua_tostring(L, -1);
        lua_pop(L, 1);
    }
    return n;
}

/* The metrics that the bindings' pointer names now; NULL: nothing is counted. */
static struct mc_metrics *metrics_of(lua_State *L)
{
    return *(struct mc_metrics *const *)lua_touserdata(L, lua_upvalueindex(1));
}

static int bounds(lua_State *L, int idx, double *out)
{
    int n = (int)lua_objlen(L, idx), i;

    luaL_argcheck(L, n >= 1 && n <= MC_METRIC_BUCKETS, idx, "1..20 bounds");
    for (i = 0; i < n; i++) {
        lua_rawgeti(L, idx, i + 1);
        out[i] = luaL_checknumber(L, -1);
        lua_pop(L, 1);
    }
    return n;
}

/* declare(kind, name, help, labels, bounds) -> id; nil, text */
static int l_declare(lua_State *L)
{
    const char *kind = luaL_checkstring(L, 1), *labels[MC_METRIC_LABELS];
    struct mc_metrics *m = metrics_of(L);
    double le[MC_METRIC_BUCKETS];
    struct mc_metric_def d = {.name = luaL_checkstring(L, 2), .help = luaL_checkstring(L, 3),
                              .labels = labels, .le = le};
    struct mc_err err;
    int id = 0, rc = 0;

    d.n_labels = strings(L, 4, labels, MC_METRIC_LABELS);
    if (lua_istable(L, 5))
        d.n_le = bounds(L, 5, le);
    else
        d.le = NULL;
    mc_limit_hold();
    if (m)
        rc = strcmp(kind, "counter") == 0 ? mc_metrics_counter(m, &d, &id, &err)
             : strcmp(kind, "gauge") == 0 ? mc_metrics_gauge(m, &d, &id, &err)
                                          : mc_metrics_histogram(m, &d, &id, &err);
    mc_limit_release();
    if (rc == 0) {
        lua_pushinteger(L, id);
        return 1;
    }
    lua_pushnil(L);
    lua_pushstring(L, err.text);
    return 2;
}

typedef int (*put_fn)(struct mc_metrics *m, int id, const char *const *values, double v);

/* put(id, value, label values...) -> nil, or a text */
static int put(lua_State *L, put_fn fn)
{
    int id = luaL_checkint(L, 1), n = lua_gettop(L) - 2, rc = 0, i;
    double v = luaL_checknumber(L, 2);
    const char *values[MC_METRIC_LABELS] = {NULL};
    struct mc_metrics *m = metrics_of(L);

    luaL_argcheck(L, n <= MC_METRIC_LABELS, 3, "too many labels");
    for (i = 0; i < n; i++)
        values[i] = luaL_checkstring(L, 3 + i);
    mc_limit_hold();
    if (m)
        rc = fn(m, id, values, v);
    mc_limit_release();
    if (rc == 0)
        return 0;
    lua_pushfstring(L, "%f is no value for it", v);
    return 1;
}

static int l_add(lua_State *L)
{
    return put(L, mc_metrics_add);
}

static int l_set(lua_State *L)
{
    return put(L, mc_metrics_set);
}

static int l_observe(lua_State *L)
{
    return put(L, mc_metrics_observe);
}

void mc_bind_metrics_of(lua_State *L, struct mc_metrics *const *metrics)
{
    static const luaL_Reg fns[] = {{"declare", l_declare}, {"add", l_add}, {"set", l_set},
                                   {"observe", l_observe}, {NULL, NULL}};
    const luaL_Reg *f;

    lua_newtable(L);
    for (f = fns; f->name; f++) {
        lua_pushlightuserdata(L, (void *)(uintptr_t)metrics);
        lua_pushcclosure(L, f->func, 1);
        lua_setfield(L, -2, f->name);
    }
}

void mc_bind_metrics(lua_State *L)
{
    mc_bind_metrics_of(L, &mc_tvm_of(L)->server->metrics);
}

/* ---- log --------------------------------------------------------------------------- */

/* write(level, text): level 0..3, a line of the unit "policy" */
static int l_write(lua_State *L)
{
    int level = luaL_checkint(L, 1);

    luaL_argcheck(L, level >= MC_LOG_DEBUG && level <= MC_LOG_ERROR, 1, "a level");
    mc_log_at((enum mc_log_level)level, "policy", "%s", luaL_checkstring(L, 2));
    return 0;
}

void mc_bind_log(lua_State *L)
{
    static const luaL_Reg fns[] = {{"write", l_write}, {NULL, NULL}};

    mc_bind_table(L, fns);
}
