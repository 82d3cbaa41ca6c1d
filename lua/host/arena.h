/* arena.h - the memory of one Lua VM: a capped heap in one mapping.
 *
 * Exists so that a VM can be given up whole, in any state, by unmapping it. OWNS the
 * mapping; the arena's own header lies at its start. THREAD: the VM's; release may be
 * called by another once no other uses it. */
#ifndef MC_LUA_ARENA_H
#define MC_LUA_ARENA_H

#include <stddef.h>

struct mc_arena;

struct mc_arena *mc_arena_new(size_t cap); /* NULL when the mapping is refused */
/* realloc and free in one, as lua_Alloc asks for: NULL over the cap. Shrinking never
 * fails. Blocks are aligned to 16 bytes. */
void *mc_arena_realloc(struct mc_arena *a, void *p, size_t n);
size_t mc_arena_used(const struct mc_arena *a); /* bytes handed out, headers included */
size_t mc_arena_cap(const struct mc_arena *a);
/* Gives everything back. Sanitizer builds keep the addresses, unreadable, so that a
 * pointer left behind is a crash and not a read of someone else's memory. */
void mc_arena_release(struct mc_arena *a);

#endif
