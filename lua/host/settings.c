/* settings.c - the VM of one settings file: no library, no globals, a limit on time.
 *
 * OWNS the VM for the length of the call. THREAD: any. */
#include "lua/host/settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lauxlib.h>
#include <lua.h>
#include <luajit.h>

#include "lua/bind/json.h"

enum { TEXT_MAX = 1 << 20, HOOK_EVERY = 10000, SECONDS_MAX = 1 };

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void too_long(lua_State *L, lua_Debug *ar)
{
    double start;

    lua_getfield(L, LUA_REGISTRYINDEX, "start");
    start = lua_tonumber(L, -1);
    lua_pop(L, 1);
    if (cpu_seconds() - start < SECONDS_MAX)
        return;
    lua_getinfo(L, "Sl", ar);
    luaL_error(L, "%s:%d: runs for more than %d s", ar->short_src, ar->currentline,
               SECONDS_MAX);
}

static int read_file(const char *path, char **out, size_t *n, struct mc_err *err)
{
    FILE *f = fopen(path, "rb");
    char *text;

    if (!f)
        return mc_fail(err, MC_EIO, "%s: %s", path, strerror(errno));
    text = malloc(TEXT_MAX + 1);
    if (!text)
        abort();
    *n = fread(text, 1, TEXT_MAX + 1, f);
    fclose(f);
    if (*n > TEXT_MAX || (*n && text[0] == 0x1B)) {
        free(text);
        return mc_fail(err, MC_EFORMAT, *n > TEXT_MAX ? "larger than 1 MiB"
                                                      : "bytecode is refused: give text");
    }
    *out = text;
    return 0;
}

struct run {
    const char *text;
    size_t n;
    json_t *out;
    struct mc_err *err;
};

static int run(lua_State *L)
{
    struct run *r = lua_touserdata(L, 1);

    lua_pushnumber(L, cpu_seconds());
    lua_setfield(L, LUA_REGISTRYINDEX, "start");
    lua_sethook(L, too_long, LUA_MASKCOUNT, HOOK_EVERY);
    if (luaL_loadbuffer(L, r->text, r->n, "=mascon.lua"))
        return lua_error(L);
    lua_newtable(L);
    lua_setfenv(L, -2);
    lua_call(L, 0, 1);
    if (!lua_istable(L, -1))
        return luaL_error(L, "mascon.lua: it must return a table");
    r->out = mc_json_pull(L, -1, r->err);
    return 0;
}

int mc_lua_table(const char *path, json_t **out, struct mc_err *err)
{
    struct run r = {.err = err};
    char *text = NULL;
    lua_State *L;
    int rc = read_file(path, &text, &r.n, err);

    if (rc < 0)
        return rc;
    r.text = text;
    L = luaL_newstate();
    if (!L)
        abort();
    luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);
    if (lua_cpcall(L, run, &r)) {
        const char *s = lua_tostring(L, -1);

        rc = mc_fail(err, MC_EFORMAT, "%s", s ? s : "an error without text");
    } else if (!r.out) {
        rc = err->code;
    }
    lua_close(L);
    free(text);
    *out = r.out;
    return rc;
}
