/* ids.h - token ids: lists that stay in C, and the tokeniser pool's jobs.
 * THREAD: the VM's. */
#ifndef MC_BIND_IDS_H
#define MC_BIND_IDS_H

#include <lua.h>

#include "core/model/tokenizer.h"

/* Functions list encode take table; for lua/mc/seq.lua and mc.vocab. */
void mc_bind_ids(lua_State *L);
/* The list at idx (a userdata made by list or take), borrowed while it is on the stack. */
const struct mc_ids *mc_ids_check(lua_State *L, int idx);
/* Pushes a list with a copy of these. */
void mc_ids_push_list(lua_State *L, const int32_t *v, size_t n);

#endif
