/* invent.h - a checkpoint of random weights: the shape of a model that can't be brought
 * along.
 *
 * For benchmarks, where time and bytes count and not what is said. The tensors are those
 * of the one table (core/model/tensors.h), each stored as quantization_config says: bf16,
 * fp8 in blocks of 128 x 128, or int4 in groups. OWNS nothing; the directory is the
 * caller's. THREAD: any. */
#ifndef MC_CLI_INVENT_H
#define MC_CLI_INVENT_H

#include <stdint.h>

#include <jansson.h>

#include "core/base/err.h"

struct mc_invent {
    const json_t *config;  /* what becomes config.json */
    const char *tokenizer; /* a directory whose tokenizer is copied; NULL: bytes, and
                            * names for all other ids of the vocabulary */
    uint64_t seed;         /* equal seeds give equal files */
};

/* Writes config.json, model.safetensors and the tokenizer to dir, which exists. */
int mc_invent(const struct mc_invent *v, const char *dir, struct mc_err *err);

#endif
