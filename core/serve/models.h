/* models.h - the verbs status, stats, models, kv and kv.dump: what is served, and its
 * pages.
 *
 * Rows of admin.c's table. OWNS nothing. THREAD: any. */
#ifndef MC_SERVE_MODELS_H
#define MC_SERVE_MODELS_H

#include "core/serve/server.h"

/* status [MODEL] -> {state, model, backend, kv, waiting, running, ..., policy_error?};
 * of several models their sums, and models: a row for each */
int mc_models_status(struct mc_server *s, const json_t *args, json_t **out,
                     struct mc_err *err);
/* stats [MODEL] -> {counter: number} */
int mc_models_stats(struct mc_server *s, const json_t *args, json_t **out,
                    struct mc_err *err);
/* models -> [{id, created, max_context, family, n_layer, hidden, ...}] */
int mc_models_list(struct mc_server *s, const json_t *args, json_t **out,
                   struct mc_err *err);
/* kv [MODEL] -> {total, free, held, cached, pending, ...} in pages; of several models
 * rows */
int mc_models_kv(struct mc_server *s, const json_t *args, json_t **out,
                 struct mc_err *err);
/* kv.dump PAGE [LAYER | indexN] [RANK] [MODEL] -> {state, tag, layout, bytes: hex} */
int mc_models_kv_dump(struct mc_server *s, const json_t *args, json_t **out,
                      struct mc_err *err);

#endif
