/* engine.h - host.engine: verbs, the model's chat template. THREAD: the VM's. */
#ifndef MC_BIND_ENGINE_H
#define MC_BIND_ENGINE_H

#include <lua.h>

void mc_bind_engine(lua_State *L);

#endif
