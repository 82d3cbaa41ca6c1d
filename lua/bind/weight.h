/* weight.h - named weights as tensors. THREAD: the VM's. */
#ifndef MC_BIND_WEIGHT_H
#define MC_BIND_WEIGHT_H

#include <lua.h>

/* Adds source, ready, about, rows and done to the table at the top. */
void mc_bind_weight(lua_State *L);

#endif
