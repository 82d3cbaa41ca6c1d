/* weight_ops.h - how fast a model's operations read their weights.
 * OWNS nothing after a call. THREAD: one. */
#ifndef MC_CLI_WEIGHT_OPS_H
#define MC_CLI_WEIGHT_OPS_H

#include "core/model/ranks.h"

/* All calls of one operation on weights of one form, in one pass of one row. */
struct mc_weight_op {
    const char *op, *form; /* "moe", "int4" */
    double bytes, seconds; /* the least over the passes */
};
enum { MC_WEIGHT_OPS = 32 };

/* Runs n_token single rows and clocks every operation that goes through weights; *n of out.
 * Host backends, one rank. */
int mc_weight_ops(struct mc_ranks *r, int32_t n_token,
                  struct mc_weight_op out[MC_WEIGHT_OPS], int *n, struct mc_err *err);

#endif
