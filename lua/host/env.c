/* env.c - the allow-lists, and the tables made from them.
 *
 * Owns nothing. THREAD: the VM's.
 *
 * Always true: a script reaches only tables that are empty proxies of read-only copies, so
 * nothing that one script does is seen by the next; it never reaches the globals, a real
 * library table, or a metatable. Every function named here is safe to call with any
 * arguments; what can load code, name files, reach ffi, or make finalizers is not here. */
#include "lua/host/env.h"

#include <assert.h>
#include <lauxlib.h>
#include <lualib.h>
#include <string.h>

enum {
    STEP = 1 << MC_ENV_STEP,
    EDGE = 1 << MC_ENV_EDGE,
    REPL = 1 << MC_ENV_REPL,
    ALL = STEP | EDGE | REPL,
    HOST = 1 << 8, /* taken from what the host passes; else from the standard library */
};

/* Names without a dot are globals; "lib.name" puts name into a frozen table lib. */
static const struct allowed {
    int modes;
    const char *names;
} lists[] = {
    {ALL, "assert error pcall xpcall ipairs pairs next select tonumber tostring type unpack "
          "setmetatable "},
    {ALL, "string.byte string.char string.find string.format string.gmatch string.gsub "
          "string.len string.lower string.match string.rep string.reverse string.sub "
          "string.upper "},
    {ALL, "table.concat table.insert table.maxn table.remove table.sort "},
    {ALL, "math.abs math.acos math.asin math.atan math.atan2 math.ceil math.cos math.cosh "
          "math.deg math.exp math.floor math.fmod math.frexp math.huge math.ldexp math.log "
          "math.log10 math.max math.min math.modf math.pi math.pow math.rad math.random "
          "math.randomseed math.sin math.sinh math.sqrt math.tan math.tanh "},
    {ALL, "bit.arshift bit.band bit.bnot bit.bor bit.bswap bit.bxor bit.lshift bit.rol "
          "bit.ror bit.rshift bit.tobit bit.tohex "},
    {ALL | HOST, "mc "},
    {EDGE | REPL | HOST, "require coroutine.create coroutine.resume coroutine.running "
                         "coroutine.status coroutine.wrap coroutine.yield "},
    {REPL | HOST, "print help tutorial io.write "},
};

/* collectgarbage("count") and nothing else: a script that could stop the collector, or run
 * it, would own the VM's pauses. */
static int count_only(lua_State *L)
{
    const char *what = luaL_optstring(L, 1, "collect");

    if (strcmp(what, "count") != 0)
        return luaL_error(L, "collectgarbage: only \"count\" is available");
    lua_pushnumber(L, lua_gc(L, LUA_GCCOUNT, 0) + lua_gc(L, LUA_GCCOUNTB, 0) / 1024.0);
    return 1;
}

static int refuse_write(lua_State *L)
{
    const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "?";

    return luaL_error(L, "%s.%s can't be changed", lua_tostring(L, lua_upvalueindex(1)),
                      key);
}

static int refuse_global(lua_State *L)
{
    const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "?";

    return luaL_error(L, "assignment to global '%s' (say local)", key);
}

static int refuse_unknown(lua_State *L)
{
    const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "?";

    return luaL_error(L, "'%s' is not defined for scripts", key);
}

static const char FROZEN; /* its address: the key that marks a proxy's metatable */

static int next_frozen(lua_State *L)
{
    lua_settop(L, 2);
    return lua_next(L, lua_upvalueindex(1)) ? 2 : 0;
}

/* pairs for VMs that interpret: what a proxy stands for, without handing it out. */
static int pairs_too(lua_State *L)
{
    luaL_checkany(L, 1);
    lua_settop(L, 1);
    if (lua_getmetatable(L, 1)) {
        lua_pushlightuserdata(L, (void *)&FROZEN);
        lua_rawget(L, -2);
        if (lua_istable(L, -1)) {
            lua_pushcclosure(L, next_frozen, 1);
            lua_pushvalue(L, 1);
            lua_pushnil(L);
            return 3;
        }
        lua_settop(L, 1);
    }
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, 1, LUA_MULTRET);
    return lua_gettop(L);
}

/* [table] -> [empty table that reads from it]; on_write NULL: it keeps what is written */
static void push_proxy(lua_State *L, lua_CFunction on_write, const char *name)
{
    lua_newtable(L);
    lua_createtable(L, 0, 4);
    lua_pushvalue(L, -3);
    lua_setfield(L, -2, "__index");
    if (on_write) {
        lua_pushstring(L, name);
        lua_pushcclosure(L, on_write, 1);
        lua_setfield(L, -2, "__newindex");
        lua_pushlightuserdata(L, (void *)&FROZEN);
        lua_pushvalue(L, -4);
        lua_rawset(L, -3);
    }
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
    lua_setmetatable(L, -2);
    lua_remove(L, -2);
}

void mc_env_freeze(lua_State *L, const char *name)
{
    push_proxy(L, refuse_write, name);
}

/* Pushes from[lib][name], or from[name] when lib is ""; nil when it isn't there. */
static void push_value(lua_State *L, int from, const char *lib, const char *name)
{
    lua_pushvalue(L, from);
    if (lib[0]) {
        lua_getfield(L, -1, lib);
        lua_remove(L, -2);
    }
    if (lua_istable(L, -1))
        lua_getfield(L, -1, name);
    else
        lua_pushnil(L);
    lua_remove(L, -2);
}

/* to[lib][name] = the value at the top, which is popped; makes lib. */
static void set_member(lua_State *L, int to, const char *lib, const char *name)
{
    lua_getfield(L, to, lib);
    if (!lua_istable(L, -1)) {
        lua_pop(L, 1);
        lua_newtable(L);
        lua_pushvalue(L, -1);
        lua_setfield(L, to, lib);
    }
    lua_insert(L, -2);
    lua_setfield(L, -2, name);
    lua_pop(L, 1);
}

/* Copies what one list allows into the table at `to`. */
static void copy_list(lua_State *L, int from, int to, const char *names)
{
    char word[32];

    for (size_t n; *names; names += n + 1) {
        char *dot;

        n = strcspn(names, " ");
        assert(n < sizeof word);
        memcpy(word, names, n);
        word[n] = 0;
        dot = strchr(word, '.');
        if (dot)
            *dot = 0;
        push_value(L, from, dot ? word : "", dot ? dot + 1 : word);
        if (lua_isnil(L, -1))
            lua_pop(L, 1);
        else if (dot)
            set_member(L, to, word, dot + 1);
        else
            lua_setfield(L, to, word);
    }
}

/* Freezes the library tables inside the table at `in`, and makes strings use the copy. */
static void freeze_libraries(lua_State *L, int in)
{
    static const char *const libs[] = {"string", "table", "math", "bit", "coroutine", "io"};

    lua_pushliteral(L, "");
    lua_getmetatable(L, -1);
    lua_getfield(L, in, "string");
    lua_setfield(L, -2, "__index");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
    lua_pop(L, 2);
    for (size_t i = 0; i < sizeof libs / sizeof *libs; i++) {
        lua_getfield(L, in, libs[i]);
        if (lua_istable(L, -1)) {
            mc_env_freeze(L, libs[i]);
            lua_setfield(L, in, libs[i]);
        } else {
            lua_pop(L, 1);
        }
    }
}

void mc_env_push(lua_State *L, enum mc_env_mode mode)
{
    int host = lua_gettop(L), to = host + 1;

    luaL_checkstack(L, 12, "environment");
    lua_newtable(L);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (lists[i].modes & (1 << mode))
            copy_list(L, lists[i].modes & HOST ? host : LUA_GLOBALSINDEX, to,
                      lists[i].names);
    lua_pushcfunction(L, count_only);
    lua_setfield(L, to, "collectgarbage");
    if (mode != MC_ENV_STEP) { /* there compiled code walks tables itself */
        lua_getfield(L, to, "pairs");
        lua_pushcclosure(L, pairs_too, 1);
        lua_setfield(L, to, "pairs");
    }
    freeze_libraries(L, to);
    lua_remove(L, host);
    if (mode == MC_ENV_REPL) { /* names of the session's own fall through to nil */
        push_proxy(L, NULL, "");
        return;
    }
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, refuse_unknown);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
    push_proxy(L, refuse_global, "");
}

static int plain_next(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 2);
    if (lua_next(L, 1))
        return 2;
    lua_pushnil(L);
    return 1;
}

static int plain_pairs(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_pushcfunction(L, plain_next);
    lua_pushvalue(L, 1);
    lua_pushnil(L);
    return 3;
}

void mc_env_plain_next(lua_State *L)
{
    lua_pushcfunction(L, plain_next);
    lua_setglobal(L, "next");
    lua_pushcfunction(L, plain_pairs);
    lua_setglobal(L, "pairs");
}

void mc_env_open(lua_State *L)
{
    static const struct {
        const char *name;
        lua_CFunction open;
    } libs[] = {
        {"", luaopen_base},        {"string", luaopen_string}, {"table", luaopen_table},
        {"math", luaopen_math},    {"bit", luaopen_bit},       {"debug", luaopen_debug},
    };

    for (size_t i = 0; i < sizeof libs / sizeof *libs; i++) {
        lua_pushcfunction(L, libs[i].open);
        lua_pushstring(L, libs[i].name);
        lua_call(L, 1, 0);
    }
    lua_pushcfunction(L, luaopen_ffi); /* the only one that sets no global */
    lua_call(L, 0, 1);
    lua_setglobal(L, "ffi");
}
