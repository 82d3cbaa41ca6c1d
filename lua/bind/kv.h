/* kv.h - contexts that scripts keep, save and load. THREAD: the VM's. */
#ifndef MC_BIND_KV_H
#define MC_BIND_KV_H

#include <lua.h>

/* Functions hold save load finish ids bytes drop; for lua/mc/kv.lua. */
void mc_bind_kv(lua_State *L);

#endif
