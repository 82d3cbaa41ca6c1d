/* leaf.h - what the trusted Lua of a step VM gets from C.
 *
 * THREAD: the VM's. Leaves are called through ffi: they check their arguments, block on
 * nothing but memory, and cannot reach Lua. */
#ifndef MC_LUA_LEAF_H
#define MC_LUA_LEAF_H

#include <lua.h>

struct mc_stepvm;

/* Pushes the table that `require "mc.host"` gives. May raise. */
void mc_leaf_push_host(lua_State *L, struct mc_stepvm *s);

#endif
