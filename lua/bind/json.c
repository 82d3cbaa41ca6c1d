/* json.c - JSON values as Lua values and back; the mc.json table.
 *
 * OWNS, in the registry of each VM, references to the data module's marks. THREAD: the
 * VM's.
 * Always true: a json_t or string that must outlive a call that may raise hangs in a box (a
 * userdata with a finalizer), so that no error leaks it. */
#include "lua/bind/json.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>

#include "core/base/json.h"
#include "lua/bind/bind.h"

enum { PULL_SLOTS = 4 * MC_JSON_DEPTH + 16 };
static const double EXACT = 9007199254740992.0; /* 2^53 */

static const char BOX[] = "mc.box";

/* Their addresses are the registry's keys. */
static const char MARK_NULL, MARK_ARRAY, MARK_MAP, MARK_NUMBER, MARK_DATA;

struct box {
    json_t *v;
    char *text;
};

static void push_mark(lua_State *L, const char *mark)
{
    lua_pushlightuserdata(L, (void *)mark);
    lua_rawget(L, LUA_REGISTRYINDEX);
}

static void empty_box(struct box *b)
{
    json_decref(b->v);
    free(b->text);
    memset(b, 0, sizeof *b);
}

static int box_gc(lua_State *L)
{
    empty_box(lua_touserdata(L, 1));
    return 0;
}

static struct box *push_box(lua_State *L)
{
    struct box *b = lua_newuserdata(L, sizeof *b);

    memset(b, 0, sizeof *b);
    luaL_getmetatable(L, BOX);
    lua_setmetatable(L, -2);
    return b;
}

/* ---- to Lua ------------------------------------------------------------------------ */

static void push_marked_number(lua_State *L, double value, const char *text)
{
    lua_createtable(L, 0, 2);
    lua_pushnumber(L, value);
    lua_setfield(L, -2, "value");
    lua_pushstring(L, text);
    lua_setfield(L, -2, "text");
    push_mark(L, &MARK_NUMBER);
    lua_setmetatable(L, -2);
}

static void push_number(lua_State *L, const json_t *v, enum mc_json_shape shape)
{
    double d = json_number_value(v);
    char text[40];

    if (json_is_integer(v) && fabs(d) >= EXACT) {
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        push_marked_number(L, d, text);
    } else if (json_is_real(v) && shape == MC_JSON_EXACT && d == floor(d) &&
               fabs(d) < 1e16) {
        snprintf(text, sizeof text, "%.1f", d);
        push_marked_number(L, d, text);
    } else {
        lua_pushnumber(L, d);
    }
}

static void push_array(lua_State *L, const json_t *v, enum mc_json_shape shape)
{
    size_t n = json_array_size(v), i;

    lua_createtable(L, (int)n, 0);
    for (i = 0; i < n; i++) {
        mc_json_push(L, json_array_get(v, i), shape);
        lua_rawseti(L, -2, (int)i + 1);
    }
    push_mark(L, &MARK_ARRAY);
    lua_setmetatable(L, -2);
}

static void push_object(lua_State *L, const json_t *v, enum mc_json_shape shape)
{
    int n = (int)json_object_size(v), i = 0;
    const char *key;
    json_t *item;

    lua_createtable(L, n, n);
    json_object_foreach((json_t *)v, key, item) {
        lua_pushstring(L, key);
        lua_pushvalue(L, -1);
        lua_rawseti(L, -3, ++i);
        mc_json_push(L, item, shape);
        lua_rawset(L, -3);
    }
    push_mark(L, &MARK_MAP);
    lua_setmetatable(L, -2);
}

static void push_plain(lua_State *L, const json_t *v)
{
    const char *key;
    json_t *item;

    lua_createtable(L, 0, (int)json_object_size(v));
    json_object_foreach((json_t *)v, key, item) {
        if (json_is_null(item))
            continue;
        mc_json_push(L, item, MC_JSON_PLAIN);
        lua_setfield(L, -2, key);
    }
}

void mc_json_push(lua_State *L, const json_t *v, enum mc_json_shape shape)
{
    luaL_checkstack(L, 8, "JSON nested too deep");
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT:
        if (shape == MC_JSON_PLAIN)
            push_plain(L, v);
        else
            push_object(L, v, shape);
        break;
    case JSON_ARRAY: push_array(L, v, shape); break;
    case JSON_STRING:
        lua_pushlstring(L, json_string_value(v), json_string_length(v));
        break;
    case JSON_INTEGER:
    case JSON_REAL: push_number(L, v, shape); break;
    case JSON_TRUE: lua_pushboolean(L, 1); break;
    case JSON_FALSE: lua_pushboolean(L, 0); break;
    case JSON_NULL: push_mark(L, &MARK_NULL); break;
    }
}

/* A box that can't be made costs one leak: the VM's memory is used up then. */
void mc_json_push_new(lua_State *L, json_t *v, enum mc_json_shape shape)
{
    struct box *b = push_box(L);

    b->v = v;
    mc_json_push(L, v, shape);
    empty_box(b);
    lua_remove(L, -2);
}

void mc_json_push_buffer(lua_State *L, char *s, size_t n)
{
    struct box *b = push_box(L);

    b->text = s;
    lua_pushlstring(L, s, n);
    empty_box(b);
    lua_remove(L, -2);
}

int mc_json_push_text(lua_State *L, const char *text, size_t n, enum mc_json_shape shape,
                      struct mc_err *err)
{
    struct box *b = push_box(L);

    b->v = mc_json_read(text, n, err);
    if (!b->v) {
        lua_pop(L, 1);
        return err->code;
    }
    mc_json_push(L, b->v, shape);
    empty_box(b);
    lua_remove(L, -2);
    return 0;
}

/* ---- from Lua ---------------------------------------------------------------------- */

struct pull {
    bool bytes; /* strings need not be UTF-8 */
    struct mc_err *err;
};

static json_t *pull(lua_State *L, int idx, int depth, struct pull *p);

/* Pushes nothing. */
static bool has_mark(lua_State *L, int idx, const char *mark)
{
    bool same;

    if (!lua_getmetatable(L, idx))
        return false;
    push_mark(L, mark);
    same = lua_rawequal(L, -1, -2);
    lua_pop(L, 2);
    return same;
}

bool mc_json_is_null(lua_State *L, int idx)
{
    bool same;

    lua_pushvalue(L, idx);
    push_mark(L, &MARK_NULL);
    same = lua_rawequal(L, -1, -2);
    lua_pop(L, 2);
    return same && lua_istable(L, idx);
}

bool mc_json_is_array(lua_State *L, int idx)
{
    return has_mark(L, idx, &MARK_ARRAY);
}

bool mc_json_is_map(lua_State *L, int idx)
{
    return has_mark(L, idx, &MARK_MAP);
}

bool mc_json_is_number(lua_State *L, int idx)
{
    return has_mark(L, idx, &MARK_NUMBER);
}

static json_t *pull_array(lua_State *L, int idx, int depth, struct pull *p)
{
    size_t n = lua_objlen(L, idx), i;
    json_t *out = json_array(), *item;

    for (i = 1; i <= n; i++) {
        lua_rawgeti(L, idx, (int)i);
        item = pull(L, lua_gettop(L), depth + 1, p);
        lua_pop(L, 1);
        if (!item) {
            json_decref(out);
            return NULL;
        }
        json_array_append_new(out, item);
    }
    return out;
}

static int set_field(json_t *out, const char *key, json_t *item, const struct pull *p)
{
    return p->bytes ? json_object_set_new_nocheck(out, key, item)
                    : json_object_set_new(out, key, item);
}

/* Adds table[key] to out, for the string key on the stack's top, unless it is nil. */
static int add_field(lua_State *L, int idx, json_t *out, int depth, struct pull *p)
{
    size_t n;
    const char *key = lua_tolstring(L, -1, &n);
    json_t *item;

    lua_pushvalue(L, -1);
    lua_rawget(L, idx);
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        return 0;
    }
    item = pull(L, lua_gettop(L), depth + 1, p);
    lua_pop(L, 1);
    if (!item)
        return MC_EARG;
    if (memchr(key, 0, n)) {
        json_decref(item);
        return mc_fail(p->err, MC_EARG, "a key holds a NUL");
    }
    if (set_field(out, key, item, p) < 0)
        return mc_fail(p->err, MC_EARG, "a key is not valid UTF-8");
    return 0;
}

struct key {
    const char *s;
    size_t n;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct key *)a)->s, ((const struct key *)b)->s);
}

/* The keys that the order does not name, sorted, so that the text never depends on a hash. */
static int add_rest(lua_State *L, int idx, bool ordered, json_t *out, int depth,
                    struct pull *p)
{
    struct key *keys = NULL;
    size_t n = 0, cap = 0, i;
    int rc = 0;

    lua_pushnil(L);
    while (lua_next(L, idx)) {
        lua_pop(L, 1);
        if (ordered && lua_type(L, -1) == LUA_TNUMBER)
            continue;
        if (lua_type(L, -1) != LUA_TSTRING) {
            rc = mc_fail(p->err, MC_EARG, "a %s as the key of an object",
                         lua_typename(L, lua_type(L, -1)));
            lua_pop(L, 1);
            break;
        }
        if (json_object_get(out, lua_tostring(L, -1)))
            continue;
        if (n == cap) {
            cap = cap ? 2 * cap : 16;
            keys = realloc(keys, cap * sizeof *keys);
            if (!keys)
                abort();
        }
        keys[n].s = lua_tolstring(L, -1, &keys[n].n);
        n++;
    }
    if (n)
        qsort(keys, n, sizeof *keys, by_name);
    for (i = 0; i < n && rc == 0; i++) {
        lua_pushlstring(L, keys[i].s, keys[i].n); /* interned already: does not allocate */
        rc = add_field(L, idx, out, depth, p);
        lua_pop(L, 1);
    }
    free(keys);
    return rc;
}

static json_t *pull_object(lua_State *L, int idx, int depth, struct pull *p)
{
    bool ordered = has_mark(L, idx, &MARK_MAP);
    size_t n = ordered ? lua_objlen(L, idx) : 0, i;
    json_t *out = json_object();
    int rc = 0;

    for (i = 1; i <= n && rc == 0; i++) {
        lua_rawgeti(L, idx, (int)i);
        if (lua_type(L, -1) == LUA_TSTRING)
            rc = add_field(L, idx, out, depth, p);
        lua_pop(L, 1);
    }
    if (rc == 0)
        rc = add_rest(L, idx, ordered, out, depth, p);
    if (rc < 0) {
        json_decref(out);
        return NULL;
    }
    return out;
}

static json_t *pull_number(double d, struct pull *p)
{
    if (!isfinite(d)) {
        mc_fail(p->err, MC_EARG, "JSON has no infinity and no NaN");
        return NULL;
    }
    return d == floor(d) && fabs(d) <= EXACT ? json_integer((json_int_t)d) : json_real(d);
}

/* A data.NUMBER: its text says it all. */
static json_t *pull_marked_number(lua_State *L, int idx, struct pull *p)
{
    json_t *v = NULL;
    const char *s;
    size_t n;

    lua_pushliteral(L, "text");
    lua_rawget(L, idx);
    s = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &n) : NULL;
    if (s)
        v = json_loadb(s, n, JSON_DECODE_ANY, NULL);
    lua_pop(L, 1);
    if (json_is_number(v))
        return v;
    json_decref(v);
    mc_fail(p->err, MC_EARG, "a marked number without a number's text");
    return NULL;
}

static json_t *pull_table(lua_State *L, int idx, int depth, struct pull *p)
{
    bool list;

    if (mc_json_is_null(L, idx))
        return json_null();
    if (has_mark(L, idx, &MARK_NUMBER))
        return pull_marked_number(L, idx, p);
    if (has_mark(L, idx, &MARK_MAP))
        return pull_object(L, idx, depth, p);
    lua_rawgeti(L, idx, 1);
    list = !lua_isnil(L, -1) || has_mark(L, idx, &MARK_ARRAY);
    lua_pop(L, 1);
    return list ? pull_array(L, idx, depth, p) : pull_object(L, idx, depth, p);
}

static json_t *pull(lua_State *L, int idx, int depth, struct pull *p)
{
    const char *s;
    json_t *v;
    size_t n;

    if (depth > MC_JSON_DEPTH) {
        mc_fail(p->err, MC_EARG, "a table is nested deeper than %d, or holds itself",
                MC_JSON_DEPTH);
        return NULL;
    }
    switch (lua_type(L, idx)) {
    case LUA_TBOOLEAN: return json_boolean(lua_toboolean(L, idx));
    case LUA_TNUMBER: return pull_number(lua_tonumber(L, idx), p);
    case LUA_TTABLE: return pull_table(L, idx, depth, p);
    case LUA_TSTRING:
        s = lua_tolstring(L, idx, &n);
        v = p->bytes ? json_stringn_nocheck(s, n) : json_stringn(s, n);
        if (!v)
            mc_fail(p->err, MC_EARG, "a string is not valid UTF-8");
        return v;
    }
    mc_fail(p->err, MC_EARG, "a %s has no place in JSON",
            lua_typename(L, lua_type(L, idx)));
    return NULL;
}

static json_t *pull_any(lua_State *L, int idx, bool bytes, struct mc_err *err)
{
    struct pull p = {bytes, err};

    if (idx < 0 && idx > LUA_REGISTRYINDEX)
        idx = lua_gettop(L) + idx + 1;
    if (!lua_checkstack(L, PULL_SLOTS)) {
        mc_fail(err, MC_ENOMEM, "no room on the Lua stack");
        return NULL;
    }
    return pull(L, idx, 0, &p);
}

json_t *mc_json_pull(lua_State *L, int idx, struct mc_err *err)
{
    return pull_any(L, idx, false, err);
}

json_t *mc_json_pull_bytes(lua_State *L, int idx, struct mc_err *err)
{
    return pull_any(L, idx, true, err);
}

/* ---- mc.json ----------------------------------------------------------------------- */

static int l_decode(lua_State *L)
{
    size_t n;
    const char *s = luaL_checklstring(L, 1, &n);
    struct mc_err err;

    if (mc_json_push_text(L, s, n, lua_toboolean(L, 2) ? MC_JSON_EXACT : MC_JSON_ORDERED,
                          &err) < 0)
        return mc_bind_fail(L, &err);
    return 1;
}

static int l_encode(lua_State *L)
{
    struct mc_err err;
    struct box *b;

    luaL_checkany(L, 1);
    b = push_box(L);
    b->v = mc_json_pull(L, 1, &err);
    if (!b->v)
        return mc_bind_fail(L, &err);
    b->text = json_dumps(b->v, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!b->text)
        return luaL_error(L, "not enough memory");
    lua_pushstring(L, b->text);
    empty_box(b); /* not left to the collector: a VM may be lost with its garbage */
    return 1;
}

void mc_bind_json_init(lua_State *L)
{
    static const struct {
        const char *name, *mark;
    } marks[] = {{"null", &MARK_NULL}, {"ARRAY", &MARK_ARRAY}, {"MAP", &MARK_MAP},
                 {"NUMBER", &MARK_NUMBER}};
    size_t i;

    for (i = 0; i < sizeof marks / sizeof *marks; i++) {
        lua_pushlightuserdata(L, (void *)marks[i].mark);
        lua_getfield(L, -2, marks[i].name);
        lua_rawset(L, LUA_REGISTRYINDEX);
    }
    lua_pushlightuserdata(L, (void *)&MARK_DATA);
    lua_insert(L, -2);
    lua_rawset(L, LUA_REGISTRYINDEX);
    luaL_newmetatable(L, BOX);
    lua_pushcfunction(L, box_gc);
    lua_setfield(L, -2, "__gc");
    lua_pop(L, 1);
}

void mc_bind_json(lua_State *L)
{
    static const luaL_Reg fns[] = {{"decode", l_decode}, {"encode", l_encode}, {NULL, NULL}};
    static const char *const shared[] = {"null", "array", "map", "set", "keys", "kind"};
    size_t i;

    mc_bind_table(L, fns);
    push_mark(L, &MARK_DATA);
    for (i = 0; i < sizeof shared / sizeof *shared; i++) {
        lua_getfield(L, -1, shared[i]);
        lua_setfield(L, -3, shared[i]);
    }
    lua_pop(L, 1);
}
