/* strangers.h - the tensors of a checkpoint that a model does not load. OWNS nothing.
 * THREAD: any. */
#ifndef MC_MODEL_STRANGERS_H
#define MC_MODEL_STRANGERS_H

#include "core/model/config.h"

struct mc_ckpt;

struct mc_strangers {
    int32_t images;  /* of a vision tower: text alone is served */
    int32_t drafts;  /* of draft layers that the config does not count */
    int32_t copies;  /* of the embedding or the head, which are shared */
    int32_t unknown; /* of no known use ... */
    char first[128]; /* ... and the name of the first of these */
};

/* Counts them. An error where one contradicts the config: a bias or an indexer that the
 * config says there is none of, or no quantised matrix though it declares a method. */
int mc_strangers_find(const struct mc_ckpt *c, const struct mc_config *cfg,
                      struct mc_strangers *out, struct mc_err *err);
/* The same, said in the log. */
int mc_strangers_check(const struct mc_ckpt *c, const struct mc_config *cfg,
                       struct mc_err *err);

#endif
