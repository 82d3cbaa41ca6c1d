/* tensor.h - tensors as Lua holds them. THREAD: the VM's. */
#ifndef MC_BIND_TENSOR_H
#define MC_BIND_TENSOR_H

#include <lua.h>

#include "core/tensor/tensor.h"

/* Functions for lua/mc/tensor.lua. */
void mc_bind_tensor(lua_State *L);
/* The tensor at idx; raises for anything else and for one that is closed. */
const struct mc_tensor *mc_tensor_check(lua_State *L, int idx);
/* Pushes a tensor that the running task's scope owns, and takes the reference over,
 * whatever happens. Raises when the VM has too many handles. */
void mc_tensor_push(lua_State *L, struct mc_tensor *t);
/* This VM's account, opened at first; NULL after an error was pushed as nil, err. */
struct mc_account *mc_tensor_account_of(lua_State *L);

#endif
