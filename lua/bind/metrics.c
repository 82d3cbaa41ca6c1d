/* metrics.c - mc.metrics and mc.log. OWNS nothing. THREAD: the VM's. */
#include <stdio.h>
#include <string.h>

#include "core/base/log.h"
#include "core/serve/server.h"
#include "lua/bind/bind.h"
#include "lua/bind/data.h"
#include "lua/host/task.h"

/* ---- metrics --------------------------------------------------------------------------- */

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

/* declare(kind, name, help, labels, bounds) -> id; nil, error */
static int l_declare(lua_State *L)
{
    const char *kind = luaL_checkstring(L, 1), *labels[MC_METRIC_LABELS];
    struct mc_metrics *m = mc_tvm_of(L)->server->metrics;
    double le[MC_METRIC_BUCKETS];
    struct mc_metric_def d = {.name = luaL_checkstring(L, 2), .help = luaL_checkstring(L, 3),
                              .labels = labels};
    struct mc_err err;
    int id, rc, i;

    d.n_labels = strings(L, 4, labels, MC_METRIC_LABELS);
    if (lua_istable(L, 5)) {
        d.n_le = (int)lua_objlen(L, 5);
        d.le = le;
        luaL_argcheck(L, d.n_le >= 1 && d.n_le <= MC_METRIC_BUCKETS, 5, "1..20 bounds");
        for (i = 0; i < d.n_le; i++) {
            lua_rawgeti(L, 5, i + 1);
            le[i] = luaL_checknumber(L, -1);
            lua_pop(L, 1);
        }
    }
    if (strcmp(kind, "counter") == 0)
        rc = mc_metrics_counter(m, &d, &id, &err);
    else if (strcmp(kind, "gauge") == 0)
        rc = mc_metrics_gauge(m, &d, &id, &err);
    else
        rc = mc_metrics_histogram(m, &d, &id, &err);
    if (rc < 0)
        return mc_bind_fail(L, &err);
    lua_pushinteger(L, id);
    return 1;
}

typedef int (*put_fn)(struct mc_metrics *m, int id, const char *const *values, double v);

/* put(id, labels, value, ...): labels is the number of label values that follow */
static int put(lua_State *L, put_fn fn)
{
    int id = luaL_checkint(L, 1), n = luaL_checkint(L, 2), i;
    double v = luaL_checknumber(L, 3);
    const char *values[MC_METRIC_LABELS] = {NULL};

    luaL_argcheck(L, n >= 0 && n <= MC_METRIC_LABELS && lua_gettop(L) == 3 + n, 3,
                  "a value for each label");
    for (i = 0; i < n; i++)
        values[i] = luaL_checkstring(L, 4 + i);
    if (fn(mc_tvm_of(L)->server->metrics, id, values, v) < 0)
        return luaL_error(L, "the metric does not take this value");
    return 0;
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

void mc_bind_metrics(lua_State *L)
{
    static const luaL_Reg fns[] = {{"declare", l_declare}, {"add", l_add}, {"set", l_set},
                                   {"observe", l_observe}, {NULL, NULL}};

    mc_bind_table(L, fns);
}

/* ---- log ------------------------------------------------------------------------------- */

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
