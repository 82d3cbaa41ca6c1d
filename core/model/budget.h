/* budget.h - what a model needs of a device's memory, from its configuration alone.
 *
 * Weights as they are stored, by class and a rank, out of the one table of tensors; pages of
 * the KV pool as the engine lays them out. OWNS nothing. THREAD: any. */
#ifndef MC_MODEL_BUDGET_H
#define MC_MODEL_BUDGET_H

#include "core/model/form.h"
#include "core/model/model.h"

enum mc_budget_kind {
    MC_B_EMBED, MC_B_HEAD, MC_B_ATTENTION, MC_B_INDEXER, MC_B_DENSE, MC_B_EXPERTS,
    MC_B_SHARED, MC_B_ROUTER, MC_B_NORMS, MC_B_MTP, MC_N_B,
};
const char *mc_budget_name(enum mc_budget_kind kind);

struct mc_budget_class {
    char form[MC_FORM_NAME]; /* of its largest tensors ... */
    uint64_t form_bytes;     /* ... which have so many bytes */
    int64_t n_tensor, n_param;
    uint64_t bytes;      /* on disk */
    uint64_t bytes_rank; /* of a rank ... */
    uint64_t bytes_each; /* ... of which every rank has the same */
};

/* What decode steps read: the fixed part each, of the experts those that were chosen. */
struct mc_budget_read {
    uint64_t fixed, routed; /* bytes; routed: of all experts of all layers */
};

struct mc_weights_budget {
    struct mc_budget_class cls[MC_N_B], all;
    struct mc_budget_read read, read_rank; /* on disk; by a rank */
    uint64_t decode_bytes; /* read for one token of one sequence, all ranks together */
};

/* Weight bytes that a step of so many sequences reads on average, each of which chooses its
 * experts evenly and by itself: of E experts then E * (1 - (1 - k/E)^seqs). */
double mc_budget_step_bytes(const struct mc_config *c, const struct mc_budget_read *r,
                            int32_t seqs);

/* The form of a tensor of the table; name: with the prefix, of experts the first's. */
typedef struct mc_form (*mc_form_fn)(void *ctx, const struct mc_tensor_spec *t,
                                     const char *name);

/* Of the rank that has most. MC_EUNSUP when the heads can't be shared so. */
int mc_budget_weights(const struct mc_config *c, int32_t ranks, mc_form_fn form,
                      void *ctx, struct mc_weights_budget *out, struct mc_err *err);

/* Attention of a decode step when each rank keeps every token of its heads, and when tokens
 * are spread over `shard` ranks which then attend with all heads and exchange partial
 * results: see budget.c for the model. */
struct mc_speed {
    double hbm;      /* bytes/s that a good kernel reads */
    double flops;    /* of attention in 16 bits */
    double link;     /* bytes/s between ranks */
    double exchange; /* seconds of a small collective */
};
/* The context from which sharding is faster for a batch of so many sequences; -1: at no
 * length. */
double mc_budget_crossover(const struct mc_config *c, const struct mc_kv *kv,
                           int32_t ranks, int32_t shard, int32_t batch,
                           const struct mc_speed *speed);

/* Activations of a step of so many rows in 16 bits, estimated: a backend's own scratch is
 * not known without it. */
uint64_t mc_budget_scratch(const struct mc_config *c, int32_t ranks, int32_t rows);

#endif
