/* load.h - what an operator names: a backend, a layout of pages, a checkpoint.
 *
 * OWNS nothing: what is opened is the caller's. THREAD: any. */
#ifndef MC_MODEL_LOAD_H
#define MC_MODEL_LOAD_H

#include "core/model/model.h"
#include "core/model/tokenizer.h"

/* "cpu" or "ref"; the caller closes it. */
int mc_backend_open(const char *name, const struct mc_backend_opts *o,
                    struct mc_backend **out, struct mc_err *err);

/* What --kv NAME is for this model: auto is the scheme that the checkpoint declares, else
 * bf16; fp8 on a model with latents is fp8-656. Others are refused with the list of what
 * the model takes. */
int mc_kv_layout_of(const struct mc_config *c, const char *name, enum mc_kv_layout *out,
                    struct mc_err *err);
const char *mc_kv_layout_name(enum mc_kv_layout layout);

#endif
