/* ids.c - lists of token ids, encode jobs, decoding.
 *
 * A list is one userdata with the ids inside: a prompt of 100,000 tokens is no Lua table.
 * A job is a handle (lua/host/task.h): it rings when the pool is done with it.
 * THREAD: the VM's; done() on the pool's. */
#include "lua/bind/ids.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/utf8.h"
#include "core/serve/server.h"
#include "lua/bind/bind.h"
#include "lua/bind/json.h"
#include "lua/host/task.h"

static const char LIST[] = "mc.ids", JOB[] = "mc.encode";
enum { PARTS_MAX = 4096 };

struct job {
    struct mc_owned own;
    struct mc_tokjob *job; /* NULL: over */
    struct mc_bell bell;
};

/* ---- lists ------------------------------------------------------------------------- */

static struct mc_ids *push_list(lua_State *L, size_t n)
{
    struct mc_ids *ids = lua_newuserdata(L, sizeof *ids + n * sizeof *ids->v);

    *ids = (struct mc_ids){.v = (int32_t *)(ids + 1), .n = n, .cap = n};
    luaL_getmetatable(L, LIST);
    lua_setmetatable(L, -2);
    return ids;
}

void mc_ids_push_list(lua_State *L, const int32_t *v, size_t n)
{
    struct mc_ids *ids = push_list(L, n);

    if (n)
        memcpy(ids->v, v, n * sizeof *v);
}

const struct mc_ids *mc_ids_check(lua_State *L, int idx)
{
    return luaL_checkudata(L, idx, LIST);
}

/* list(table, field) -> list, or nil and an error about the field: the ids came from a
 * client. */
static int l_list(lua_State *L)
{
    const char *field = luaL_checkstring(L, 2);
    struct mc_ids *ids;
    struct mc_err err;
    size_t n, i;

    luaL_checktype(L, 1, LUA_TTABLE);
    n = lua_objlen(L, 1);
    ids = push_list(L, n);
    for (i = 0; i < n; i++) {
        double v;

        lua_rawgeti(L, 1, (int)i + 1);
        v = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : NAN;
        lua_pop(L, 1);
        if (!(v >= 0 && v <= INT32_MAX && v == floor(v))) {
            mc_fail_param(&err, MC_EARG, field, "%s[%zu] is no token id", field, i);
            return mc_bind_fail(L, &err);
        }
        ids->v[i] = (int32_t)v;
    }
    return 1;
}

/* table(list[, from[, to]]) -> array of numbers */
static int l_table(lua_State *L)
{
    const struct mc_ids *ids = mc_ids_check(L, 1);
    size_t i;

    lua_createtable(L, (int)ids->n, 0);
    for (i = 0; i < ids->n; i++) {
        lua_pushinteger(L, ids->v[i]);
        lua_rawseti(L, -2, (int)i + 1);
    }
    return 1;
}

/* join(list, list) -> list */
static int l_join(lua_State *L)
{
    const struct mc_ids *a = mc_ids_check(L, 1), *b = mc_ids_check(L, 2);
    struct mc_ids *both = push_list(L, a->n + b->n);

    memcpy(both->v, a->v, a->n * sizeof *a->v);
    memcpy(both->v + a->n, b->v, b->n * sizeof *b->v);
    return 1;
}

static int l_count(lua_State *L)
{
    lua_pushinteger(L, (lua_Integer)mc_ids_check(L, 1)->n);
    return 1;
}

/* ---- encoding ---------------------------------------------------------------------- */

static void on_done(void *ctx)
{
    mc_bell_ring(&((struct job *)ctx)->bell);
}

static void on_bell(struct mc_bell *b)
{
    struct job *j = (struct job *)((char *)b - offsetof(struct job, bell));

    mc_task_wake(&j->own.waiter);
}

static void end_job(struct mc_owned *o)
{
    struct job *j = (struct job *)o;

    mc_tokjob_drop(j->job);
    j->job = NULL;
    mc_bell_still(&j->bell);
    mc_task_wake(&j->own.waiter);
}

static void free_job(struct mc_owned *o)
{
    free(o);
}

static int gc_job(lua_State *L)
{
    struct job **at = lua_touserdata(L, 1);

    if (*at)
        mc_disown(&(*at)->own);
    *at = NULL;
    return 0;
}

/* Fills parts from {text, special, text, special, ...}. */
static int read_parts(lua_State *L, int idx, struct mc_tokpart *parts)
{
    int n = (int)lua_objlen(L, idx) / 2, i;

    luaL_argcheck(L, n >= 1 && n <= PARTS_MAX, idx, "1..4096 parts");
    for (i = 0; i < n; i++) {
        lua_rawgeti(L, idx, 2 * i + 1);
        lua_rawgeti(L, idx, 2 * i + 2);
        luaL_argcheck(L, lua_type(L, -2) == LUA_TSTRING, idx, "a part is no text");
        parts[i].text = lua_tolstring(L, -2, &parts[i].n);
        parts[i].special = lua_toboolean(L, -1);
        lua_pop(L, 2); /* the table holds the text */
    }
    return n;
}

/* encode({text, special, ...}, bos, model) -> job */
static int l_encode(lua_State *L)
{
    struct mc_tvm *v = mc_tvm_of(L);
    unsigned flags = lua_toboolean(L, 2) ? MC_TOK_BOS : 0;
    struct mc_tokpart *parts;
    const struct mc_served *m;
    struct job **at, *j;
    struct mc_err err;
    int n, rc;

    luaL_checktype(L, 1, LUA_TTABLE);
    mc_task_need(L);
    mc_bind_room(L);
    m = mc_bind_model(L, 3);
    if (!m)
        return 2;
    parts = lua_newuserdata(L, PARTS_MAX * sizeof *parts);
    n = read_parts(L, 1, parts);
    at = lua_newuserdata(L, sizeof *at);
    *at = NULL;
    luaL_getmetatable(L, JOB);
    lua_setmetatable(L, -2);
    j = calloc(1, sizeof *j);
    if (!j)
        return luaL_error(L, "not enough memory");
    j->own.end = end_job;
    j->own.free = free_job;
    mc_bell_init(&j->bell, v->loop, on_bell);
    rc = mc_tokpool_encode(m->tokpool, parts, n, flags, on_done, j, &j->job, &err);
    if (rc < 0) {
        free(j);
        return mc_bind_fail(L, &err);
    }
    mc_own(v, &v->now->scope, &j->own);
    *at = j;
    return 1;
}

/* take(job) -> list; false: not yet, and the running task will be woken; nil, error. */
static int l_take(lua_State *L)
{
    struct job **at = luaL_checkudata(L, 1, JOB), *j = *at;
    const struct mc_ids *ids = NULL;
    struct mc_err err;
    int rc;

    if (!j || !j->job) {
        mc_fail(&err, MC_ESTALE, "the text is no longer being tokenised");
        return mc_bind_fail(L, &err);
    }
    rc = mc_tokjob_take(j->job, &ids, &err);
    if (rc < 0)
        return mc_bind_fail(L, &err);
    if (rc == 0) {
        if (!mc_task_wait(mc_tvm_of(L), &j->own.waiter))
            return luaL_error(L, "another task waits for this");
        lua_pushboolean(L, 0);
        return 1;
    }
    mc_ids_push_list(L, ids->v, ids->n);
    *at = NULL;
    mc_disown(&j->own);
    return 1;
}

/* ---- decoding ---------------------------------------------------------------------- */

/* The string at the stack's top with what is no UTF-8 as U+FFFD. */
static void clean(lua_State *L)
{
    size_t n;
    const char *s = lua_tolstring(L, -1, &n);
    char *to;

    if (mc_utf8_valid(s, n))
        return;
    to = lua_newuserdata(L, 3 * n);
    lua_pushlstring(L, to, mc_utf8_clean(s, n, to));
}

/* decode(list[, specials[, model]]) -> text: always UTF-8, whatever the ids say. */
static int l_decode(lua_State *L)
{
    const struct mc_ids *ids = mc_ids_check(L, 1);
    bool keep = lua_toboolean(L, 2), special;
    const struct mc_served *m;
    const struct mc_tok *tok;
    struct mc_err err;
    luaL_Buffer b;
    size_t i, n;

    m = mc_bind_model(L, 3);
    if (!m)
        return 2;
    tok = mc_engine_tok(m->engine);
    luaL_buffinit(L, &b);
    for (i = 0; i < ids->n; i++) {
        const char *s;

        if (ids->v[i] >= mc_tok_n(tok)) {
            mc_fail_param(&err, MC_EARG, "tokens", "token %d is outside 0..%d", ids->v[i],
                          mc_tok_n(tok) - 1);
            return mc_bind_fail(L, &err);
        }
        s = mc_tok_piece(tok, ids->v[i], &n, &special);
        if (keep || !special)
            luaL_addlstring(&b, s, n);
    }
    luaL_pushresult(&b);
    clean(L);
    return 1;
}

void mc_bind_ids(lua_State *L)
{
    static const luaL_Reg none[] = {{NULL, NULL}};
    static const luaL_Reg fns[] = {
        {"list", l_list},     {"table", l_table}, {"count", l_count},
        {"join", l_join},     {"encode", l_encode},
        {"take", l_take},     {"decode", l_decode}, {NULL, NULL},
    };

    mc_bind_type(L, LIST, none, NULL);
    mc_bind_type(L, JOB, none, gc_job);
    mc_bind_table(L, fns);
}
