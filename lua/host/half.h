/* half.h - the Lua half of a server, as core/cli/lua_half.h asks for it.
 * THREAD: as there. */
#ifndef MC_LUA_HALF_H
#define MC_LUA_HALF_H

#include "core/cli/lua_half.h"

extern const struct mc_lua_half mc_lua_half;

#endif
