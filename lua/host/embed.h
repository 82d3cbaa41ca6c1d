/* embed.h - the Lua files that travel inside the binary: lua/mc/ and policies/.
 * Made by lua/embed.sh at build time; constant; ends with a row whose path is NULL. */
#ifndef MC_LUA_EMBED_H
#define MC_LUA_EMBED_H

#include <stddef.h>

struct mc_embed {
    const char *path; /* "policies/scheduler.lua" */
    const char *text;
    size_t n;
};
extern const struct mc_embed mc_embedded[];

#endif
