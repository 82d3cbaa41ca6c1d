/* base64.h - tensors as base64. THREAD: the VM's. */
#ifndef MC_BIND_BASE64_H
#define MC_BIND_BASE64_H

#include <lua.h>

void mc_bind_base64(lua_State *L); /* pushes the function */

#endif
