/* bind.h - what all bindings share: error values, tables of functions, checked userdata.
 *
 * A binding checks its arguments first (it may raise), then acquires, then calls only what
 * cannot raise, then releases. Each returns a value, or nil and an error table {code,
 * status, message, param, retry_after} that prints as its message; misuse raises.
 * THREAD: the VM's. */
#ifndef MC_BIND_H
#define MC_BIND_H

#include <stdbool.h>

#include <lauxlib.h>
#include <lua.h>

#include "core/base/err.h"

/* Pushes a new table of these functions. */
void mc_bind_table(lua_State *L, const luaL_Reg *fns);
/* The model that the string at idx names, the first for nil; NULL when there is none (files
 * are tried on their own, or the name is wrong): then nil and an error were pushed. */
struct mc_served;
const struct mc_served *mc_bind_model(lua_State *L, int idx);
/* Pushes nil and the error; returns 2. */
int mc_bind_fail(lua_State *L, const struct mc_err *err);
void mc_bind_push_err(lua_State *L, const struct mc_err *err);
/* An error of any kind as an mc_err: an error table keeps its code (by name) and param,
 * anything else becomes the text of MC_EPOLICY. Never raises, calls no metamethod. */
void mc_bind_pull_err(lua_State *L, int idx, struct mc_err *err);
/* The MC_E code with this API name ("overloaded"), or MC_EPOLICY. */
int mc_bind_code(const char *api);
bool mc_bind_is(lua_State *L, int idx, const char *type);
/* Raises when the VM has as many handles as it may. */
void mc_bind_room(lua_State *L);
/* Pushes a handle of this type, of `bytes` zeros that begin with its struct mc_owned; the
 * running task's scope ends it by `end`. What it gets next can't raise. Raises when the VM
 * has too many. */
struct mc_owned;
void *mc_bind_own(lua_State *L, const char *type, size_t bytes,
                  void (*end)(struct mc_owned *));
/* The __gc of such a type. */
int mc_bind_disown(lua_State *L);
/* Makes the metatable of a type: methods by __index, no access from scripts. */
void mc_bind_type(lua_State *L, const char *type, const luaL_Reg *methods,
                  lua_CFunction gc);

#endif
