/* serve.h - parts of `mascon serve` in files of their own. THREAD: as each says. */
#ifndef MC_CLI_SERVE_H
#define MC_CLI_SERVE_H

#include <stddef.h>

#include "core/cli/config.h"
#include "core/mc.h"
#include "core/serve/keys.h"

/* MODEL is a path or NAME=PATH: *path points into it; name becomes `given` (--name) when that
 * is not empty, else NAME, else the path's basename. Any thread. */
void mc_model_name(const char *arg, const char *given, char *name, size_t cap,
                   const char **path);

/* lane_weight and tenant_weight of s, as far as they are set. Any thread. */
int mc_serve_weights(const struct mc_settings *s, struct mc_engine *e,
                     const struct mc_keys *keys, struct mc_err *err);

#endif
