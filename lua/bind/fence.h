/* fence.h - waiting for tensors' work. THREAD: the VM's. */
#ifndef MC_BIND_FENCE_H
#define MC_BIND_FENCE_H

#include <lua.h>

/* Adds fence and passed to the table at the top. */
void mc_bind_fence(lua_State *L);

#endif
