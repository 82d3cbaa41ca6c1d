/* crew.h - the ranks at work: a pass on each, and what is common to their steps.
 *
 * A step is enqueued on every rank alike, from the same staging, so that one ticket stands
 * for all; rank 0's results are read. OWNS passes, streams, page pools and step memory.
 * THREAD: its owner's. */
#ifndef MC_MODEL_CREW_H
#define MC_MODEL_CREW_H

#include "core/model/ranks.h"

enum { MC_DEPTH = 2 }; /* steps in flight at most */

/* One rank's part. */
struct mc_run {
    const struct mc_model *m;
    struct mc_backend *be;
    struct mc_mem mem;
    struct mc_step_mem dev;
    struct mc_pass *pass;
    struct mc_stream *stream;
    struct mc_graph *forward, *draft; /* draft NULL: the model has none */
    struct mc_graph *few; /* forward of steps of at most few_rows of the backend's; or NULL */
    struct mc_pass *few_pass;
    struct mc_step_mem few_dev; /* dev, of such capacities */
    struct mc_graph *tapped; /* NULL: the pass has no taps */
    struct mc_graph *sample[MC_DEPTH]; /* by ring; see mc_crew_rings */
};

struct mc_crew {
    struct mc_ranks *ranks;
    int32_t n;
    struct mc_fault fault; /* still to be planted */
    struct mc_run run[MC_MAX_RANKS];
};

struct mc_pool_size {
    enum mc_kv_layout layout;
    int32_t n_page; /* of a rank */
    int32_t n_slot, pitch;
};

/* *c is zero before; closed also after a failure. */
int mc_crew_open(struct mc_crew *c, struct mc_ranks *r, const struct mc_pool_size *size,
                 const struct mc_pass_caps *caps, struct mc_err *err);
/* What is enqueued is waited for; a rank that never comes back leaves everything where it
 * is and the ranks stuck. */
void mc_crew_close(struct mc_crew *c);
/* Records sampling into each of these rings. */
int mc_crew_rings(struct mc_crew *c, struct mc_out *const ring[MC_DEPTH]);

/* Host memory that a step's uploads are read from, on all ranks. */
struct mc_stage {
    const void *rows;
    const struct mc_delta *delta;
    int32_t n_delta;
    const struct mc_slot *slots_in;
    const uint32_t (*init)[2]; /* pages to clear, *n_init of at most max_init */
    const int32_t *n_init;
    int32_t max_init;
    const struct mc_taps *taps; /* or NULL: the step has none */
    size_t taps_bytes;
};
/* Enqueues page_init and table_apply on one rank. */
int mc_run_put(struct mc_run *run, const struct mc_stage *s);

/* All ranks meet, over nothing; a planted fault strikes when it is due in such a place. */
int mc_crew_meet(struct mc_crew *c, enum mc_fault_at at);
/* The same while there is a planted fault, else nothing. */
int mc_crew_plant(struct mc_crew *c, enum mc_fault_at at);

uint64_t mc_crew_mark(const struct mc_crew *c);
/* Until all ranks have passed ticket; MC_ERANK as soon as they have parted, or when one is
 * late by far. */
int mc_crew_wait(struct mc_crew *c, uint64_t ticket);
/* Why the ranks parted, or NULL. */
const char *mc_crew_parted(const struct mc_crew *c);

#endif
