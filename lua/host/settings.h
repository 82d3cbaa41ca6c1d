/* settings.h - runs a settings file (mascon.lua): a table comes back, nothing else.
 * THREAD: any; the VM lives within the call. */
#ifndef MC_LUA_SETTINGS_H
#define MC_LUA_SETTINGS_H

#include <jansson.h>

#include "core/base/err.h"

/* A new reference. The file sees an empty environment; 1 MiB of text and 1 s of CPU at most. */
int mc_lua_table(const char *path, json_t **out, struct mc_err *err);
/* A recipe of `mascon compress`: a built-in one by name, else a file by path. */
int mc_lua_recipe(const char *name, json_t **out, struct mc_err *err);

#endif
