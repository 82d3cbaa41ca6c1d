/* bench_rig.h - decode steps of many sequences on all ranks, without an engine around
 * them: what a step takes, what one of its operations takes, what it reads of the page
 * pool. OWNS its passes and pages. THREAD: one. */
#ifndef MC_CLI_BENCH_RIG_H
#define MC_CLI_BENCH_RIG_H

#include "core/model/crew.h"

struct mc_rig;

/* Decode rows of `seqs` sequences of `context` tokens, the last of which is the row's. */
int mc_rig_open(struct mc_ranks *r, enum mc_kv_layout kv, int32_t seqs, int32_t context,
                struct mc_rig **out, struct mc_err *err);
void mc_rig_close(struct mc_rig *g);

/* Seconds of a forward pass, page_check in it: the median of n. */
int mc_rig_step(struct mc_rig *g, int n, double *seconds, struct mc_err *err);
/* Seconds of its page_check alone, over n of them. */
int mc_rig_check(struct mc_rig *g, int n, double *seconds, struct mc_err *err);
/* Bytes of rank 0's page pool that one pass touches, as the operating system counts them
 * (in pages of memory); -1 where it does not, and of a pool below 1 MiB. */
int mc_rig_touched(struct mc_rig *g, double *bytes, struct mc_err *err);
/* The pool's shape on rank 0. */
const struct mc_kv *mc_rig_kv(const struct mc_rig *g);

#endif
