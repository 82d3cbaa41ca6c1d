/* lua_half.h - what the program asks of its Lua half, as functions.
 *
 * core/ includes no Lua: main.c fills this from lua/host and hands it to the subcommands.
 * THREAD: as each says. */
#ifndef MC_CLI_LUA_HALF_H
#define MC_CLI_LUA_HALF_H

#include <jansson.h>

#include "core/base/err.h"

struct mc_lua_half {
    /* Runs a settings file (no API, no I/O, 1 s at most) that returns a table; any thread.
     * A new reference. */
    int (*table)(const char *path, json_t **out, struct mc_err *err);
};

#endif
