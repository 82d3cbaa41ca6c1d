/* spawn.h - host.task: sleep spawn ended cancel context keep. THREAD: the VM's. */
#ifndef MC_BIND_SPAWN_H
#define MC_BIND_SPAWN_H

#include <lua.h>

void mc_bind_task(lua_State *L);

#endif
