/* submit.h - the table that mc.submit takes, as what mc_gen_open takes.
 * THREAD: the VM's. */
#ifndef MC_BIND_SUBMIT_H
#define MC_BIND_SUBMIT_H

#include <lua.h>

#include "core/mc.h"
#include "core/serve/gen.h"

enum { MC_SUBMIT_STOPS = 16, MC_SUBMIT_STOP_IDS = 64 };

/* What a struct mc_gen_opts points into; strings are borrowed from the table. */
struct mc_submit {
    struct mc_gen_opts o;
    uint32_t index; /* of several sequences of one request: each has a seed of its own */
    const char *stop[MC_SUBMIT_STOPS];
    size_t stop_len[MC_SUBMIT_STOPS];
    int32_t stop_ids[MC_SUBMIT_STOP_IDS];
    struct mc_bias bias[MC_MAX_BIAS];
    struct mc_steer steer[MC_MAX_TAPS];
    struct mc_capture capture[MC_MAX_TAPS];
};

/* Pushes {field = true} of what mc_submit_read reads. */
void mc_submit_push_fields(lua_State *L);
/* The arrays of {layer, tensor[, scale]} at captures and steers (or nil), as lua/mc/seq.lua
 * makes them, whose tensors are borrowed; raises. */
void mc_submit_taps(lua_State *L, int captures, int steers, struct mc_submit *out);
/* Reads the table at idx over the defaults. Types and list lengths are checked here, ranges
 * by the engine; err->param names the field. Fields that do not
 * exist are not looked at. */
int mc_submit_read(lua_State *L, int idx, const struct mc_config *c,
                   struct mc_submit *out, struct mc_err *err);

#endif
