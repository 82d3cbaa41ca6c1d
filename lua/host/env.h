/* env.h - what scripts may name: the allow-lists of all VMs, in one place.
 *
 * It catches mistakes and keeps a script from reaching the host; it is no border between
 * tenants. THREAD: the VM's. */
#ifndef MC_LUA_ENV_H
#define MC_LUA_ENV_H

#include <lua.h>

enum mc_env_mode {
    MC_ENV_STEP, /* scheduler, sampler, cache hooks */
    MC_ENV_EDGE, /* router, routes: also coroutine and require, as the host provides them */
    MC_ENV_REPL, /* edge, and print, io.write, as the session provides them */
};

/* Opens the standard libraries that trusted modules use into the globals, and makes the
 * string metatable safe. Once a VM, before anything else runs. */
void mc_env_open(lua_State *L);
/* Replaces next and pairs, for a VM that compiles: Debian's LuaJIT can emit code for them
 * that cuts a pointer to 32 bits (an exchange of 32-bit halves after its table walk). A C
 * function is never compiled; a loop over pairs is then left by the trace at each turn. */
void mc_env_plain_next(lua_State *L);

/* Takes a table of the host's own values from the stack's top (mc, require, coroutine,
 * print, io: whatever the list of this mode names), pushes the environment. Reading an
 * unknown name and writing any name raise; in the REPL both are allowed and stay in the
 * environment that is pushed. */
void mc_env_push(lua_State *L, enum mc_env_mode mode);

/* Replaces the table at the top by a read-only view of it, whose metatable is hidden.
 * Changing it raises "NAME.key can't be changed". */
void mc_env_freeze(lua_State *L, const char *name);

#endif
