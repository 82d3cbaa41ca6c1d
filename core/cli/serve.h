/* serve.h - parts of `mascon serve` in files of their own. THREAD: as each says. */
#ifndef MC_CLI_SERVE_H
#define MC_CLI_SERVE_H

#include <stddef.h>

#include "core/cli/config.h"
#include "core/serve/server.h"

/* MODEL is a path or NAME=PATH: *path points into it; name becomes `given` (--name) when that
 * is not empty, else NAME, else the path's basename. Any thread. */
void mc_model_name(const char *arg, const char *given, char *name, size_t cap,
                   const char **path);

/* Names the models that MODEL... ask for, and checks that each has its share of memory;
 * paths[i] points into args. Nothing is loaded yet. */
int mc_models_name(struct mc_server *s, const struct mc_settings *set,
                   const char *const *args, int n, const char **paths,
                   struct mc_err *err);
/* Their engines (not started), pumps and tokenisers; after a failure some are open. */
int mc_models_open(struct mc_server *s, const struct mc_settings *set,
                   const char *const *paths, struct mc_keys *keys, struct mc_err *err);
/* Makes the running engines' KV pools as large as kv_memory says, and waits for it. */
int mc_models_resize(struct mc_server *s, const struct mc_settings *set,
                     struct mc_err *err);
/* 0, or the code of one that has failed. Once all are open. */
int mc_models_failed(const struct mc_server *s, struct mc_err *err);
void mc_models_show(const struct mc_server *s); /* two lines each, to stdout */

/* lane_weight and tenant_weight of s, as far as they are set. Any thread. */
int mc_serve_weights(const struct mc_settings *s, struct mc_engine *e,
                     struct mc_keys *keys, struct mc_err *err);
/* tenant_rate of s; the same. */
int mc_serve_rates(const struct mc_settings *s, struct mc_keys *keys, struct mc_err *err);

#endif
