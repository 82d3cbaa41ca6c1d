/* bind.c - error values, tables of functions, owned handles. OWNS nothing. THREAD: the VM's. */
#include "lua/bind/bind.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/serve/server.h"
#include "lua/host/task.h"

static const char ERROR[] = "mc.error";

void mc_bind_table(lua_State *L, const luaL_Reg *fns)
{
    lua_newtable(L);
    for (; fns->name; fns++) {
        lua_pushcfunction(L, fns->func);
        lua_setfield(L, -2, fns->name);
    }
}

static int error_tostring(lua_State *L)
{
    lua_getfield(L, 1, "message");
    return 1;
}

void mc_bind_push_err(lua_State *L, const struct mc_err *err)
{
    lua_createtable(L, 0, 5);
    lua_pushstring(L, mc_code_api(err->code));
    lua_setfield(L, -2, "code");
    lua_pushinteger(L, mc_code_http(err->code));
    lua_setfield(L, -2, "status");
    lua_pushstring(L, *err->text ? err->text : mc_code_text(err->code));
    lua_setfield(L, -2, "message");
    if (*err->param) {
        lua_pushstring(L, err->param);
        lua_setfield(L, -2, "param");
    }
    if (luaL_newmetatable(L, ERROR)) {
        lua_pushcfunction(L, error_tostring);
        lua_setfield(L, -2, "__tostring");
        lua_pushboolean(L, 0);
        lua_setfield(L, -2, "__metatable");
    }
    lua_setmetatable(L, -2);
}

int mc_bind_fail(lua_State *L, const struct mc_err *err)
{
    lua_pushnil(L);
    mc_bind_push_err(L, err);
    return 2;
}

const struct mc_served *mc_bind_model(lua_State *L, int idx)
{
    const char *name = luaL_optstring(L, idx, NULL);
    const struct mc_served *m = mc_served_find(mc_tvm_of(L)->server, name);
    struct mc_err err;

    if (m && m->engine)
        return m;
    if (m)
        mc_fail(&err, MC_ELOADING, "no model is loaded here: these files are only tried");
    else
        mc_fail_param(&err, MC_EMODEL, "model", "The model '%.80s' does not exist", name);
    mc_bind_fail(L, &err);
    return NULL;
}

int mc_bind_code(const char *api)
{
    static const struct {
        const char *api;
        int code;
    } rows[] = {
#define MC_ERR(name, http, type, code, text) {code, MC_##name},
#include "core/mc_err.def"
#undef MC_ERR
    };
    size_t i;

    for (i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].api, api) == 0)
            return rows[i].code;
    return MC_EPOLICY;
}

/* A raw string field, borrowed while the table holds it. */
static const char *raw_field(lua_State *L, int idx, const char *key)
{
    const char *s;

    lua_pushstring(L, key);
    lua_rawget(L, idx);
    s = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
    lua_pop(L, 1);
    return s;
}

void mc_bind_pull_err(lua_State *L, int idx, struct mc_err *err)
{
    const char *code, *message, *param;

    if (idx < 0)
        idx = lua_gettop(L) + idx + 1;
    if (lua_type(L, idx) == LUA_TSTRING) {
        mc_fail(err, MC_EPOLICY, "%s", lua_tostring(L, idx));
        return;
    }
    if (!lua_istable(L, idx)) {
        mc_fail(err, MC_EPOLICY, "an error that is a %s",
                lua_typename(L, lua_type(L, idx)));
        return;
    }
    code = raw_field(L, idx, "code");
    message = raw_field(L, idx, "message");
    param = raw_field(L, idx, "param");
    err->code = code ? mc_bind_code(code) : MC_EPOLICY;
    mc_fail_param(err, err->code, param ? param : "", "%s",
                  message ? message : mc_code_text(err->code));
}

bool mc_bind_is(lua_State *L, int idx, const char *type)
{
    bool same;

    if (!lua_touserdata(L, idx) || !lua_getmetatable(L, idx))
        return false;
    luaL_getmetatable(L, type);
    same = lua_rawequal(L, -1, -2);
    lua_pop(L, 2);
    return same;
}

void mc_bind_type(lua_State *L, const char *type, const luaL_Reg *methods,
                  lua_CFunction gc)
{
    luaL_newmetatable(L, type);
    mc_bind_table(L, methods);
    lua_setfield(L, -2, "__index");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
    if (gc) {
        lua_pushcfunction(L, gc);
        lua_setfield(L, -2, "__gc");
    }
    lua_pop(L, 1);
}

/* ---- owned handles ----------------------------------------------------------------- */

static void free_owned(struct mc_owned *o)
{
    free(o);
}

void mc_bind_room(lua_State *L)
{
    const struct mc_tvm *v = mc_tvm_of(L);

    if (!mc_own_room(v))
        lua_gc(L, LUA_GCCOLLECT, 0);
    if (!mc_own_room(v))
        luaL_error(L, "more than %d tasks, sequences and tensors in this VM",
                   MC_OWNED_MAX);
}

void *mc_bind_own(lua_State *L, const char *type, size_t bytes,
                  void (*end)(struct mc_owned *))
{
    struct mc_tvm *v = mc_tvm_of(L);
    struct mc_owned **at, *o;

    mc_bind_room(L);
    at = lua_newuserdata(L, sizeof *at);
    *at = NULL;
    luaL_getmetatable(L, type);
    lua_setmetatable(L, -2);
    o = calloc(1, bytes);
    if (!o)
        luaL_error(L, "not enough memory");
    o->end = end;
    o->free = free_owned;
    mc_own(v, &v->now->scope, o);
    *at = o;
    return o;
}

int mc_bind_disown(lua_State *L)
{
    struct mc_owned **at = lua_touserdata(L, 1);

    if (*at)
        mc_disown(*at);
    *at = NULL;
    return 0;
}
