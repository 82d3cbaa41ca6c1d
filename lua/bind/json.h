/* json.h - JSON values as Lua values and back, in the shape of lua/mc/data.lua.
 *
 * THREAD: the VM's. */
#ifndef MC_BIND_JSON_H
#define MC_BIND_JSON_H

#include <stdbool.h>

#include <jansson.h>
#include <lua.h>

#include "core/base/err.h"

/* Keeps the data module's marks in the registry; needed once a VM before what follows. The
 * module (lua/mc/data.lua) is on the stack's top and is popped. */
void mc_bind_json_init(lua_State *L);
/* Pushes the mc.json table. */
void mc_bind_json(lua_State *L);

enum mc_json_shape {
    MC_JSON_ORDERED, /* as data.lua says */
    MC_JSON_EXACT,   /* and 1.0 is a data.NUMBER, so that it prints back as written */
    MC_JSON_PLAIN,   /* objects as Lua's own tables: no order, a field that is null is nil */
};

/* Pushes v, borrowed; v must hang where an error cannot leak it, since this may raise. */
void mc_json_push(lua_State *L, const json_t *v, enum mc_json_shape shape);
/* The same for a reference that the call takes over. */
void mc_json_push_new(lua_State *L, json_t *v, enum mc_json_shape shape);
/* Pushes a string of n malloced bytes, which it frees. */
void mc_json_push_buffer(lua_State *L, char *s, size_t n);
/* Parses and pushes; on failure nothing is pushed and the code returned. */
int mc_json_push_text(lua_State *L, const char *text, size_t n, enum mc_json_shape shape,
                      struct mc_err *err);

/* The value at idx as a new reference; NULL with err when it cannot be JSON (a function, a
 * cycle, a NaN, text that is not UTF-8). Raises only for want of memory, before it holds
 * anything. */
json_t *mc_json_pull(lua_State *L, int idx, struct mc_err *err);
/* The same for msgpack, whose strings may be any bytes. */
json_t *mc_json_pull_bytes(lua_State *L, int idx, struct mc_err *err);

/* What the value at idx is, by the data module's marks. */
bool mc_json_is_null(lua_State *L, int idx);
bool mc_json_is_array(lua_State *L, int idx);
bool mc_json_is_map(lua_State *L, int idx);
bool mc_json_is_number(lua_State *L, int idx); /* a marked one: {value, text} */

#endif
