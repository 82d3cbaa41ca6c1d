/* host.c - "mc.host": the tables of bindings put together, files, odds and ends.
 *
 * OWNS nothing; keeps the generation and the scripts' environment in the registry.
 * THREAD: the VM's. */
#include "lua/bind/host.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "core/base/clock.h"
#include "core/serve/server.h"
#include "lua/bind/base64.h"
#include "lua/bind/bind.h"
#include "lua/bind/data.h"
#include "lua/bind/engine.h"
#include "lua/bind/files.h"
#include "lua/bind/http.h"
#include "lua/bind/ids.h"
#include "lua/bind/json.h"
#include "lua/bind/kv.h"
#include "lua/bind/seq.h"
#include "lua/bind/spawn.h"
#include "lua/bind/tensor.h"
#include "lua/host/embed.h"
#include "lua/host/task.h"

static const char ENV_KEY, GENERATION_KEY; /* registry keys by address */

static void *registry_pointer(lua_State *L, const char *key)
{
    void *p;

    lua_pushlightuserdata(L, (void *)key);
    lua_rawget(L, LUA_REGISTRYINDEX);
    p = lua_touserdata(L, -1);
    lua_pop(L, 1);
    return p;
}

struct mc_generation *mc_bind_generation(lua_State *L)
{
    return registry_pointer(L, &GENERATION_KEY);
}

/* ---- files ------------------------------------------------------------------------- */

/* load(name) -> function that runs the file, its name in messages; nil: there is none */
static int l_load(lua_State *L)
{
    struct mc_generation *g = mc_bind_generation(L);
    const struct mc_source *src;
    struct mc_err err;

    if (mc_generation_source(g, luaL_checkstring(L, 1), &src, &err) < 0)
        return luaL_error(L, "%s", err.text);
    if (!src)
        return 0;
    lua_pushlightuserdata(L, (void *)&ENV_KEY);
    lua_rawget(L, LUA_REGISTRYINDEX);
    mc_vm_push_script(L, src->file, src->text, src->n, lua_gettop(L));
    lua_pushstring(L, src->file);
    return 2;
}

/* compile(text, name) -> function that runs it in the scripts' environment; nil, message
 */
static int l_compile(lua_State *L)
{
    size_t n;
    const char *s = luaL_checklstring(L, 1, &n), *name = luaL_checkstring(L, 2);

    if (n && s[0] == LUA_SIGNATURE[0]) {
        lua_pushnil(L);
        lua_pushliteral(L, "binary chunk refused");
        return 2;
    }
    if (luaL_loadbuffer(L, s, n, name)) {
        lua_pushnil(L);
        lua_insert(L, -2);
        return 2;
    }
    lua_pushlightuserdata(L, (void *)&ENV_KEY);
    lua_rawget(L, LUA_REGISTRYINDEX);
    lua_setfenv(L, -2);
    return 1;
}

/* embedded(path) -> text of a file in the binary, or nil */
static int l_embedded(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1);
    const struct mc_embed *e;

    for (e = mc_embedded; e->path && strcmp(e->path, path) != 0; e++)
        ;
    if (!e->path)
        return 0;
    lua_pushlstring(L, e->text, e->n);
    return 1;
}

/* embedded_in(dir) -> paths of the files in the binary whose names begin so */
static int l_embedded_in(lua_State *L)
{
    size_t n;
    const char *dir = luaL_checklstring(L, 1, &n);
    int k = 0;

    lua_newtable(L);
    for (const struct mc_embed *e = mc_embedded; e->path; e++)
        if (strncmp(e->path, dir, n) == 0) {
            lua_pushstring(L, e->path);
            lua_rawseti(L, -2, ++k);
        }
    return 1;
}

/* out(text): what a session prints */
static int l_out(lua_State *L)
{
    struct mc_tvm *v = mc_tvm_of(L);
    size_t n;
    const char *s = luaL_checklstring(L, 1, &n);

    if (v->out)
        v->out(v, s, n);
    return 0;
}

/* ---- odds and ends ----------------------------------------------------------------- */

static int l_now(lua_State *L)
{
    lua_pushnumber(L, mc_now());
    return 1;
}

static int l_time(lua_State *L)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    lua_pushnumber(L, (double)t.tv_sec + (double)t.tv_nsec * 1e-9);
    return 1;
}

/* unique() -> 24 random hex digits, for ids on the wire */
static int l_unique(lua_State *L)
{
    unsigned char bytes[12];
    char text[25];
    int i;

    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return luaL_error(L, "no random bytes");
    for (i = 0; i < 12; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    lua_pushstring(L, text);
    return 1;
}

/* error(code, message[, param]) -> an error value */
static int l_error(lua_State *L)
{
    struct mc_err err;

    mc_fail_param(&err, mc_bind_code(luaL_checkstring(L, 1)), luaL_optstring(L, 3, ""),
                  "%s", luaL_checkstring(L, 2));
    mc_bind_push_err(L, &err);
    return 1;
}

static int l_freeze(lua_State *L)
{
    const char *name = luaL_checkstring(L, 2);

    luaL_checktype(L, 1, LUA_TTABLE);
    lua_pushvalue(L, 1);
    mc_env_freeze(L, name);
    return 1;
}

static void add(lua_State *L, const char *name, void (*push)(lua_State *L))
{
    push(L);
    lua_setfield(L, -2, name);
}

static void push_server(lua_State *L)
{
    const struct mc_server *s = mc_tvm_of(L)->server;

    lua_createtable(L, 0, 2);
    lua_createtable(L, s->n_model, 0);
    for (int i = 0; i < s->n_model; i++) {
        lua_pushstring(L, s->model[i].id);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "models");
    lua_pushnumber(L, s->started);
    lua_setfield(L, -2, "started");
}

static void push_config(lua_State *L)
{
    mc_json_push(L, mc_tvm_of(L)->server->config, MC_JSON_PLAIN);
}

void mc_bind_host(lua_State *L, struct mc_generation *g)
{
    static const luaL_Reg fns[] = {
        {"load", l_load},     {"now", l_now},     {"time", l_time},
        {"unique", l_unique}, {"error", l_error}, {"freeze", l_freeze},
        {"compile", l_compile}, {"file", mc_bind_file}, {"embedded", l_embedded},
        {"embedded_in", l_embedded_in}, {"out", l_out},
        {NULL, NULL},
    };

    lua_pushlightuserdata(L, (void *)&GENERATION_KEY);
    lua_pushlightuserdata(L, g);
    lua_rawset(L, LUA_REGISTRYINDEX);
    mc_vm_push_module(L, "mc.data");
    mc_bind_json_init(L);
    mc_bind_table(L, fns);
    add(L, "json", mc_bind_json);
    add(L, "ids", mc_bind_ids);
    add(L, "seq", mc_bind_seq);
    add(L, "tensor", mc_bind_tensor);
    add(L, "base64", mc_bind_base64);
    add(L, "kv", mc_bind_kv);
    add(L, "http", mc_bind_http);
    add(L, "engine", mc_bind_engine);
    add(L, "task", mc_bind_task);
    add(L, "shared", mc_bind_shared);
    add(L, "msgpack", mc_bind_msgpack);
    add(L, "metrics", mc_bind_metrics);
    add(L, "log", mc_bind_log);
    add(L, "config", push_config);
    add(L, "server", push_server);
    mc_vm_push_choice(L, &g->only);
    lua_setfield(L, -2, "only");
    mc_vm_push_tested(L, g);
    lua_setfield(L, -2, "tested");
    lua_pushstring(L, mc_vm_of(L)->mode == MC_ENV_REPL ? "repl" : "edge");
    lua_setfield(L, -2, "mode");
    mc_vm_set_module(L, "mc.host");
}

void mc_bind_env(lua_State *L, int api)
{
    lua_pushvalue(L, api);
    mc_env_push(L, mc_vm_of(L)->mode);
    lua_pushlightuserdata(L, (void *)&ENV_KEY);
    lua_pushvalue(L, -2);
    lua_rawset(L, LUA_REGISTRYINDEX);
}
