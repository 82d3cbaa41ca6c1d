/* ranks.h - a model loaded onto the ranks that will run it together.
 *
 * Each rank has a backend and its part of the weights (tensors.h says which). One rank is
 * the same code and meets nobody.
 *
 * MC_FAIL=rank:K:error|stall[@load|prefill|decode|idle] in the environment plants a fault
 * on rank K: the first time that it loads, runs such a step, or is looked after while
 * idle; without a place, at its first step. For tests of what happens then. OWNS backends
 * and weights. THREAD: open, load and close one. */
#ifndef MC_MODEL_RANKS_H
#define MC_MODEL_RANKS_H

#include "core/model/load.h"

enum mc_fault_at { MC_AT_ANY, MC_AT_LOAD, MC_AT_PREFILL, MC_AT_DECODE, MC_AT_IDLE };

struct mc_fault {
    int32_t rank, what; /* MC_FAULT_... of kernels.h */
    enum mc_fault_at at;
};

struct mc_rank {
    struct mc_backend *be;
    struct mc_model model; /* its part */
};

struct mc_ranks {
    int32_t n;
    struct mc_comm *comm; /* NULL: one rank */
    struct mc_fault fault;
    int32_t mla_expand; /* set before loading: see config.h; below 0: as mc_expand_from says */
    bool prefill_bf16;  /* the same */
    int32_t n_shard; /* ranks that a sequence's tokens are spread over; 0: each has all */
    bool stuck; /* a thread of a rank never came back: nothing is freed any more */
    struct mc_rank rank[MC_MAX_RANKS];
};

/* n backends of that name, with o's threads divided among them. *r is zero before; closed
 * also after a failure. */
int mc_ranks_open(struct mc_ranks *r, const char *backend,
                  const struct mc_backend_opts *o, int32_t n, struct mc_err *err);
/* Tokenizer and weights of the checkpoint at path, each rank's on a thread of its own. A
 * number of ranks that the model can't be shared among is refused with those that do.
 * When a rank fails the others stop; one that makes no progress is given up. */
int mc_ranks_load(struct mc_ranks *r, const char *path, struct mc_tok **tok,
                  struct mc_err *err);
void mc_ranks_close(struct mc_ranks *r);

/* Of a loaded model: spreads tokens over groups of n ranks (--shard-tokens), or says why
 * they can't be: it takes latents, and an n that divides the ranks. 0 and 1: each has
 * all. */
int mc_ranks_shard(struct mc_ranks *r, int32_t n, struct mc_err *err);
static inline int32_t mc_ranks_shards(const struct mc_ranks *r)
{
    return r->n_shard > 1 ? r->n_shard : 1;
}

#endif
