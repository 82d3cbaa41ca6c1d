/* config_int.h - the two readers of a model's configuration, and limits they share.
 *
 * The limits are beyond any model known; they keep products of sizes inside 64 bits and
 * refuse nonsense by its field's name. */
#ifndef MC_MODEL_CONFIG_INT_H
#define MC_MODEL_CONFIG_INT_H

#include "core/model/config.h"
#include "core/weights/weights.h"

enum {
    MC_LIMIT_VOCAB = 1 << 24,
    MC_LIMIT_WIDTH = 1 << 18, /* hidden_size, intermediate_size */
    MC_LIMIT_LAYERS = MC_MAX_LAYERS,
    MC_LIMIT_HEADS = 4096,
    MC_LIMIT_HEAD_DIM = 1024,
    MC_LIMIT_CONTEXT = 1 << 27,
};

/* Each fills *out, which has the defaults, from its kind of checkpoint. */
int mc_config_from_hf(const struct mc_ckpt *c, struct mc_config *out, struct mc_err *err);
int mc_config_from_gguf(const struct mc_ckpt *c, struct mc_config *out,
                        struct mc_err *err);

/* Adds a stop id, once. */
int mc_config_add_eos(struct mc_config *out, int32_t id, struct mc_err *err);

#endif
