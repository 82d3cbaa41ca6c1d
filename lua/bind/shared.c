/* shared.c - mc.shared and mc.msgpack. OWNS nothing. THREAD: the VM's. */
#include <math.h>
#include <stdlib.h>

#include "core/base/clock.h"
#include "core/serve/server.h"
#include "core/serve/wire.h"
#include "lua/bind/bind.h"
#include "lua/bind/data.h"
#include "lua/bind/json.h"
#include "lua/host/task.h"

enum { PACK_MAX = 32 << 20 };

static struct mc_shared *shared(lua_State *L)
{
    return mc_tvm_of(L)->server->shared;
}

/* get(key) -> value or nil */
static int l_get(lua_State *L)
{
    struct mc_shared_value v;
    size_t n;
    const char *key = luaL_checklstring(L, 1, &n);

    if (!mc_shared_get(shared(L), key, n, mc_now(), &v))
        return 0;
    if (!v.is_text) {
        lua_pushnumber(L, v.number);
        return 1;
    }
    lua_pushlstring(L, v.text, v.n); /* short of memory this leaks 64 KiB at most */
    free(v.text);
    return 1;
}

/* set(key, value[, ttl]) -> true; nil, error. value nil: removes */
static int l_set(lua_State *L)
{
    struct mc_shared_value v = {0};
    size_t n;
    const char *key = luaL_checklstring(L, 1, &n);
    double ttl = luaL_optnumber(L, 3, 0);
    struct mc_err err;
    int rc = 0;

    if (lua_isnoneornil(L, 2)) {
        mc_shared_drop(shared(L), key, n);
    } else {
        v.is_text = lua_type(L, 2) == LUA_TSTRING;
        if (v.is_text)
            v.text = (char *)lua_tolstring(L, 2, &v.n);
        else
            v.number = luaL_checknumber(L, 2);
        rc = mc_shared_set(shared(L), key, n, &v, ttl, mc_now(), &err);
    }
    if (rc < 0)
        return mc_bind_fail(L, &err);
    lua_pushboolean(L, 1);
    return 1;
}

/* incr(key[, by[, ttl]]) -> the sum */
static int l_incr(lua_State *L)
{
    size_t n;
    const char *key = luaL_checklstring(L, 1, &n);
    double by = luaL_optnumber(L, 2, 1), ttl = luaL_optnumber(L, 3, 0), sum;
    struct mc_err err;

    if (mc_shared_incr(shared(L), key, n, by, ttl, mc_now(), &sum, &err) < 0)
        return mc_bind_fail(L, &err);
    lua_pushnumber(L, sum);
    return 1;
}

/* take(key, n, rate, burst) -> true; nil, error with retry_after */
static int l_take(lua_State *L)
{
    size_t n;
    const char *key = luaL_checklstring(L, 1, &n);
    double want = luaL_checknumber(L, 2), rate = luaL_checknumber(L, 3);
    double burst = luaL_checknumber(L, 4), after;
    struct mc_err err;
    int rc = mc_shared_take(shared(L), key, n, want, rate, burst, mc_now(), &after, &err);

    if (rc == 0) {
        lua_pushboolean(L, 1);
        return 1;
    }
    mc_bind_fail(L, &err);
    if (rc == MC_ELIMIT) {
        lua_pushnumber(L, ceil(after * 10) / 10);
        lua_setfield(L, -2, "retry_after");
    }
    return 2;
}

void mc_bind_shared(lua_State *L)
{
    static const luaL_Reg fns[] = {
        {"get", l_get}, {"set", l_set}, {"incr", l_incr}, {"take", l_take}, {NULL, NULL}};

    mc_bind_table(L, fns);
}

/* ---- msgpack ----------------------------------------------------------------------- */

static int l_pack(lua_State *L)
{
    struct mc_err err;
    json_t *v;
    char *data;
    size_t n;

    luaL_checkany(L, 1);
    v = mc_json_pull_bytes(L, 1, &err);
    if (!v)
        return mc_bind_fail(L, &err);
    data = mc_wire_write(v, &n);
    json_decref(v);
    if (!data) {
        mc_fail(&err, MC_EARG, "nested deeper than %d", MC_WIRE_DEPTH);
        return mc_bind_fail(L, &err);
    }
    mc_json_push_buffer(L, data, n);
    return 1;
}

static int l_unpack(lua_State *L)
{
    size_t n;
    const char *s = luaL_checklstring(L, 1, &n);
    struct mc_err err;
    json_t *v;

    luaL_argcheck(L, n <= PACK_MAX, 1, "over 32 MiB");
    if (mc_wire_read(s, n, true, &v, &err) < 0)
        return mc_bind_fail(L, &err);
    mc_json_push_new(L, v, MC_JSON_ORDERED);
    return 1;
}

void mc_bind_msgpack(lua_State *L)
{
    static const luaL_Reg fns[] = {{"encode", l_pack}, {"decode", l_unpack}, {NULL, NULL}};

    mc_bind_table(L, fns);
}
