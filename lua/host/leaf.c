/* leaf.c - leaf functions and the mc.host table.
 *
 * Owns nothing. THREAD: the VM's. A leaf takes its struct mc_stepvm first, as Lua got it
 * from the table. */
#include "lua/host/leaf.h"

#include <lauxlib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/log.h"
#include "lua/bind/data.h"
#include "lua/host/limit.h"
#include "lua/host/scene.h"
#include "lua/host/shown.h"
#include "lua/host/step.h"
#include "mc_cdef.h"

/* ---- leaves --------------------------------------------------------------------------- */

static const char *leaf_piece(struct mc_stepvm *s, int32_t id, int32_t *n)
{
    size_t len;
    const char *text = mc_vocab_text(&s->opts.sets->vocab, id, &len);

    *n = (int32_t)len;
    return text;
}

/* Compares from the end, token by token, until all of text is matched. */
static int32_t leaf_ends_with(struct mc_stepvm *s, const char *text, int32_t n)
{
    const struct mc_pick_seq *q = &s->shown->seq;

    for (int32_t i = q->n_tail - 1; i >= 0 && n > 0; i--) {
        size_t len, k;
        const char *piece = mc_vocab_text(&s->opts.sets->vocab, q->tail[i], &len);

        k = len < (size_t)n ? len : (size_t)n;
        if (k > 0 && memcmp(text + n - k, piece + len - k, k) != 0)
            return 0;
        n -= (int32_t)k;
    }
    return n == 0;
}

/* The k-th number of a token is a function of the seed and the place alone (splitmix64's
 * finisher over a counter), so that it does not depend on the batch. */
static double leaf_random(struct mc_stepvm *s)
{
    const struct mc_pick_seq *q = &s->shown->seq;
    uint64_t x = (uint64_t)q->seed_hi << 32 | q->seed_lo;
    uint64_t at = (uint64_t)(uint32_t)q->done << 32 | (uint32_t)s->shown->io.n_random++;

    for (int round = 0; round < 2; round++) {
        x += (at + 1) * 0x9E3779B97F4A7C15ull;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
        x ^= x >> 31;
    }
    return (double)(x >> 11) * 0x1p-53;
}

static int32_t leaf_find_set(struct mc_stepvm *s, const char *pattern, int32_t n)
{
    return mc_sets_find(s->opts.sets, pattern, (size_t)n);
}

static int32_t leaf_add_set(struct mc_stepvm *s, const char *pattern, int32_t n,
                            const uint32_t *bits)
{
    return mc_sets_add(s->opts.sets, pattern, (size_t)n, bits);
}

static const uint32_t *leaf_set_bits(struct mc_stepvm *s, int32_t handle)
{
    return mc_sets_bits(s->opts.sets, handle);
}

static double leaf_wall_time(struct mc_stepvm *s)
{
    struct timespec t;

    (void)s;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int32_t leaf_list_rows(struct mc_stepvm *s, int32_t kind, int32_t order, int32_t lane)
{
    return mc_shown_list(s->shown, (enum mc_list)kind, order, lane);
}

static int32_t leaf_head_of(struct mc_stepvm *s, int32_t lane)
{
    return mc_shown_head(s->shown, lane);
}

static int32_t leaf_find_lane(struct mc_stepvm *s, double id)
{
    for (int32_t i = 0; i < s->shown->view.n_lane; i++)
        if (s->shown->lanes[i].id == id)
            return i;
    return -1;
}

/* ---- for tests of hooks: trusted Lua made the block ------------------------------------ */

/* Shows a block, whose orders are still to be made, as a hook call does. -1: too much. */
static int32_t leaf_show(struct mc_stepvm *s, struct mc_step_view *v, int32_t tokens,
                         int32_t rows, int32_t pages)
{
    struct mc_plan p = {.abi = MC_ABI, .cap = MC_PLAN_CAP, .tok_left = tokens,
                        .row_left = rows, .page_left = pages};

    mc_view_sort(v);
    if (mc_shown_view(s->shown, v, NULL) < 0)
        return -1;
    mc_shown_plan(s->shown, &p);
    s->shown->n_list = 0;
    s->shown->io.now = v->now;
    s->epoch += s->epoch == UINT32_MAX ? 2 : 1;
    s->shown->io.epoch = s->epoch;
    return 0;
}

static void leaf_hide(struct mc_stepvm *s)
{
    s->shown->io.epoch = 0;
}

static void put_scene(struct mc_stepvm *s, const struct mc_record *r)
{
    mc_shown_view(s->shown, r->view, NULL);
    s->shown->plan.tok_left = r->tok_left;
    s->shown->plan.row_left = r->row_left;
    s->shown->plan.page_left = r->page_left;
}

/* The i-th recorded or shipped view, to be read from where views lie; its name, or NULL. */
static const char *leaf_scene(struct mc_stepvm *s, int32_t i)
{
    struct mc_scene *made;
    const char *name;

    if (s->opts.n_views > 0) {
        if (i >= s->opts.n_views)
            return NULL;
        put_scene(s, &s->opts.views[i]);
        return "recorded";
    }
    made = malloc(sizeof *made);
    name = made ? mc_scene_make(made, i) : NULL;
    if (name)
        put_scene(s, &made->record);
    free(made);
    return name;
}

/* Declared state starts afresh. */
static void leaf_reset(struct mc_stepvm *s)
{
    memcpy(s->shown->io.state, s->layout[0].start, sizeof s->shown->io.state);
    memcpy(s->shown->seq.state, s->layout[1].start, sizeof s->shown->seq.state);
}

/* ---- C functions ---------------------------------------------------------------------- */

static struct mc_stepvm *self(lua_State *L)
{
    return lua_touserdata(L, lua_upvalueindex(1));
}

/* load(name) -> the file's chunk in the scripts' environment, the file's name; or nil. */
static int host_load(lua_State *L)
{
    struct mc_stepvm *s = self(L);
    const char *name = luaL_checkstring(L, 1);
    const struct mc_source *src;
    struct mc_err err;
    int rc;

    mc_limit_hold();
    rc = mc_generation_source(s->gen, name, &src, &err);
    mc_limit_release();
    if (rc < 0)
        return luaL_error(L, "%s", err.text);
    if (!src)
        return 0;
    lua_rawgeti(L, LUA_REGISTRYINDEX, s->env);
    mc_vm_push_script(L, src->file, src->text, src->n, lua_gettop(L));
    lua_pushstring(L, src->file);
    return 2;
}

static void note_place(struct mc_stepvm *s, const char *hook, const char *text)
{
    for (int h = 0; h < MC_N_HOOK; h++)
        if (strcmp(mc_hook_names[h], hook) == 0)
            snprintf(s->place[h], sizeof s->place[h], "%s", text);
}

/* note(what, kind, position, text, number): "kind", "state" or "why"; "place", of a hook. */
static int host_note(lua_State *L)
{
    struct mc_stepvm *s = self(L);
    const char *what = luaL_checkstring(L, 1), *kind = luaL_checkstring(L, 2);
    int at = luaL_checkint(L, 3), rc = 0;
    const char *text = luaL_checkstring(L, 4);
    double number = luaL_checknumber(L, 5);
    struct mc_layout *l = &s->layout[strcmp(kind, "sampler") == 0];
    struct mc_err err;

    luaL_argcheck(L, at >= 0 && at < (what[0] == 's' ? MC_N_STATE : MC_N_WHY), 3, "range");
    mc_limit_hold();
    if (strcmp(what, "kind") == 0) {
        rc = mc_generation_choose(s->gen, kind, text, &err);
    } else if (strcmp(what, "state") == 0) {
        snprintf(l->name[at], sizeof l->name[at], "%s", text);
        l->start[at] = number;
        l->n = at + 1;
    } else if (strcmp(what, "place") == 0) {
        note_place(s, kind, text);
    } else {
        free(s->why[at]);
        s->why[at] = strdup(text);
    }
    mc_limit_release();
    return rc < 0 ? luaL_error(L, "%s", err.text) : 0;
}

/* Appends " key=value"; returns the new length. */
static size_t add_field(char *line, size_t n, size_t cap, const char *key, const char *value)
{
    int k = n < cap ? snprintf(line + n, cap - n, " %s=%s", key, value) : 0;

    return n + (k > 0 ? (size_t)k : 0);
}

/* log(level, message, fields): fields of strings, numbers and booleans. */
static int host_log(lua_State *L)
{
    struct mc_stepvm *s = self(L);
    int level = luaL_checkint(L, 1);
    const char *message = luaL_checkstring(L, 2);
    char line[256];
    size_t n;

    if (!mc_log_on((enum mc_log_level)level, "policy"))
        return 0;
    n = (size_t)snprintf(line, sizeof line, "%s", message);
    lua_settop(L, 3);
    if (lua_istable(L, 3)) {
        lua_pushnil(L);
        while (lua_next(L, 3)) {
            const char *key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "?";

            if (lua_isboolean(L, -1))
                n = add_field(line, n, sizeof line, key, lua_toboolean(L, -1) ? "true" : "false");
            else
                n = add_field(line, n, sizeof line, key,
                              lua_isstring(L, -1) ? lua_tostring(L, -1) : luaL_typename(L, -1));
            lua_pop(L, 1);
        }
    }
    mc_limit_hold();
    s->opts.log(s->opts.log_ctx, level, line);
    mc_limit_release();
    return 0;
}

/* ---- the table ------------------------------------------------------------------------ */

static void set_address(lua_State *L, const char *key, void *p)
{
    lua_pushlightuserdata(L, p);
    lua_setfield(L, -2, key);
}

static void set_function(lua_State *L, const char *key, lua_CFunction fn, struct mc_stepvm *s)
{
    lua_pushlightuserdata(L, s);
    lua_pushcclosure(L, fn, 1);
    lua_setfield(L, -2, key);
}

static void push_addresses(lua_State *L, struct mc_stepvm *s)
{
    struct mc_shown *m = s->shown;

    lua_newtable(L);
    set_address(L, "host", s);
    set_address(L, "io", &m->io);
    set_address(L, "view", &m->view);
    set_address(L, "plan", &m->plan);
    set_address(L, "cands", &m->cands);
    set_address(L, "seq", &m->seq);
    set_address(L, "want", &m->seq.want);
    set_address(L, "params", &m->params);
    set_address(L, "blocks", m->blocks);
    set_address(L, "rows", m->rows);
    set_address(L, "lanes", m->lanes);
    set_address(L, "tenants", m->tenants);
    set_address(L, "lists", m->lists);
    set_address(L, "moving", m->moving);
    set_address(L, "moving_tenants", m->moving_tenants);
    set_address(L, "marks", m->marks);
}

/* Settings are numbers, texts and switches. */
static void push_config(lua_State *L, const json_t *config)
{
    const char *key;
    json_t *v;

    lua_newtable(L);
    json_object_foreach((json_t *)(uintptr_t)config, key, v) {
        if (json_is_number(v))
            lua_pushnumber(L, json_number_value(v));
        else if (json_is_boolean(v))
            lua_pushboolean(L, json_is_true(v));
        else
            lua_pushstring(L, json_string_value(v));
        lua_setfield(L, -2, key);
    }
}

void mc_leaf_push_host(lua_State *L, struct mc_stepvm *s)
{
    lua_newtable(L);
    lua_pushstring(L, mc_cdef_text);
    lua_setfield(L, -2, "cdef");
    push_addresses(L, s);
    lua_setfield(L, -2, "at");

    lua_newtable(L);
    set_address(L, "piece", (void *)leaf_piece);
    set_address(L, "ends_with", (void *)leaf_ends_with);
    set_address(L, "random", (void *)leaf_random);
    set_address(L, "find_set", (void *)leaf_find_set);
    set_address(L, "add_set", (void *)leaf_add_set);
    set_address(L, "set_bits", (void *)leaf_set_bits);
    set_address(L, "wall_time", (void *)leaf_wall_time);
    set_address(L, "list_rows", (void *)leaf_list_rows);
    set_address(L, "head_of", (void *)leaf_head_of);
    set_address(L, "find_lane", (void *)leaf_find_lane);
    set_address(L, "show", (void *)leaf_show);
    set_address(L, "hide", (void *)leaf_hide);
    set_address(L, "scene", (void *)leaf_scene);
    set_address(L, "reset", (void *)leaf_reset);
    lua_setfield(L, -2, "leaf");

    lua_newtable(L);
#define X(name) lua_pushinteger(L, sizeof(struct name)), lua_setfield(L, -2, #name);
    MC_ABI_SIZES(X)
#undef X
    lua_setfield(L, -2, "sizes");

    lua_newtable(L);
    for (int code = -1; code > -MC_E_END_; code--) {
        lua_pushinteger(L, code);
        lua_setfield(L, -2, mc_code_api(code));
    }
    lua_setfield(L, -2, "codes");

    mc_vm_push_choice(L, &s->gen->only);
    lua_setfield(L, -2, "only");
    mc_vm_push_tested(L, s->gen);
    lua_setfield(L, -2, "tested");
    set_function(L, "load", host_load, s);
    set_function(L, "note", host_note, s);
    set_function(L, "log", host_log, s);
    mc_bind_metrics_of(L, &s->opts.metrics);
    lua_setfield(L, -2, "metrics");
    push_config(L, s->opts.config);
    lua_setfield(L, -2, "config");
    lua_pushstring(L, s->opts.model ? s->opts.model : "");
    lua_setfield(L, -2, "model");
}
