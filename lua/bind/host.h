/* host.h - the module "mc.host" of task VMs: all bindings, for trusted Lua only.
 * THREAD: the VM's. */
#ifndef MC_BIND_HOST_H
#define MC_BIND_HOST_H

#include <lua.h>

#include "lua/host/generation.h"

/* Makes "mc.host" and prepares the data module; under mc_vm_protect, once a VM whose task
 * VM is set. g: where host.load finds files; it outlives the VM. */
struct mc_generation *mc_bind_generation(lua_State *L); /* whose files this VM runs */
void mc_bind_host(lua_State *L, struct mc_generation *g);
/* Pushes what scripts see, with the mode's allow-list; api is the index of the table that
 * lua/mc/edge.lua returned. Kept: host.load gives it to files. */
void mc_bind_env(lua_State *L, int api);

#endif
