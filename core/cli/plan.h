/* plan.h - between the files of `mascon plan`. THREAD: main. */
#ifndef MC_CLI_PLAN_H
#define MC_CLI_PLAN_H

#include "core/model/budget.h"

struct mc_ckpt;
struct mc_recipe;

/* What a rank may be. */
struct mc_gpu {
    const char *name;
    double bytes, hbm, flops, link; /* of memory; a second */
};

struct mc_plan_job {
    const char *path, *gpu_name, *kv_name, *recipe; /* the last may be NULL */
    int32_t ranks, shard;
    double pool_asked; /* 0: not given */
    const struct mc_gpu *gpu; /* NULL: this machine */
    struct mc_ckpt *ckpt;
    struct mc_scheme *scheme; /* NULL: the tensors are there */
    struct mc_recipe *rules;  /* NULL: as it is */
    struct mc_err unread;     /* the first tensor that can't be read */
    struct mc_config cfg;
    enum mc_kv_layout layout;
    struct mc_weights_budget w;
    struct mc_kv kv; /* of the rank that has most */
    double memory, context, collectives, scratch, logits, staging, pool, used; /* bytes */
    int64_t tokens;
    double cross, cross_many; /* tokens: see mc_budget_crossover; for MC_PLAN_SEQS */
    bool fits;
};

enum { MC_PLAN_SEQS = 64 }; /* sequences at once; serve's default */

void mc_plan_show(const struct mc_plan_job *p, bool json);

#endif
