/* settings.c - the VM of one file that returns a table: no library, no globals, a limit on
 * time.
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
#include "lua/host/embed.h"

#define RECIPES "policies/recipes/"

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
    const char *name; /* for messages */
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
    if (luaL_loadbuffer(L, r->text, r->n, lua_pushfstring(L, "=%s", r->name)))
        return lua_error(L);
    lua_newtable(L);
    lua_setfenv(L, -2);
    lua_call(L, 0, 1);
    if (!lua_istable(L, -1))
        return luaL_error(L, "%s: it must return a table", r->name);
    r->out = mc_json_pull(L, -1, r->err);
    return 0;
}

/* r->text becomes *out. */
static int run_text(struct run *r, json_t **out)
{
    lua_State *L = luaL_newstate();
    int rc = 0;

    if (!L)
        abort();
    luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);
    if (lua_cpcall(L, run, r)) {
        const char *s = lua_tostring(L, -1);

        rc = mc_fail(r->err, MC_EFORMAT, "%s", s ? s : "an error without text");
    } else if (!r->out) {
        rc = r->err->code;
    }
    lua_close(L);
    *out = r->out;
    return rc;
}

int mc_lua_table(const char *path, json_t **out, struct mc_err *err)
{
    const char *slash = strrchr(path, '/');
    struct run r = {.name = slash ? slash + 1 : path, .err = err};
    char *text = NULL;
    int rc = read_file(path, &text, &r.n, err);

    if (rc < 0)
        return rc;
    r.text = text;
    rc = run_text(&r, out);
    free(text);
    return rc;
}

/* The names of the built-in recipes, for an error. */
static void list_recipes(char *out, size_t cap)
{
    const size_t skip = sizeof RECIPES - 1;
    size_t at = 0;

    out[0] = 0;
    for (const struct mc_embed *e = mc_embedded; e->path; e++)
        if (strncmp(e->path, RECIPES, skip) == 0 && at < cap)
            at += (size_t)snprintf(out + at, cap - at, "%s%.*s", at ? ", " : "",
                                   (int)(strlen(e->path) - skip - 4), e->path + skip);
}

int mc_lua_recipe(const char *name, json_t **out, struct mc_err *err)
{
    struct run r = {.name = name, .err = err};
    char path[128], names[160];

    *out = NULL;
    if (strchr(name, '/') || strstr(name, ".lua"))
        return mc_lua_table(name, out, err);
    snprintf(path, sizeof path, RECIPES "%.64s.lua", name);
    for (const struct mc_embed *e = mc_embedded; e->path; e++)
        if (strcmp(e->path, path) == 0) {
            r.text = e->text;
            r.n = e->n;
            return run_text(&r, out);
        }
    list_recipes(names, sizeof names);
    return mc_fail_param(err, MC_ENOENT, "recipe",
                         "no recipe '%.40s'; there are %s, or name "
                         "a FILE.lua",
                         name, names);
}
