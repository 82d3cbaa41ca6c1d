/* data.h - host.shared, host.metrics, host.log, host.msgpack: values that leave the VM or
 * are shared with others. THREAD: the VM's. */
#ifndef MC_BIND_DATA_H
#define MC_BIND_DATA_H

#include <lua.h>

void mc_bind_shared(lua_State *L);
void mc_bind_metrics(lua_State *L);
/* The same for a VM that has no server; *metrics is looked at in each call, NULL counts nothing.
 * The pointer outlives the VM. */
struct mc_metrics;
void mc_bind_metrics_of(lua_State *L, struct mc_metrics *const *metrics);
void mc_bind_log(lua_State *L);
void mc_bind_msgpack(lua_State *L);

#endif
