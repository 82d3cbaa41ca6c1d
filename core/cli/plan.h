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

/* A decode step's time from its bytes: the weights of a rank at 0.85 of its memory's speed
 * and two collectives a layer. Attention, which no recipe changes, is not in it. */
struct mc_plan_step {
    int32_t seqs;
    double bytes_token; /* of weights, all ranks together */
    double bytes_rank;  /* of a step */
    double us, source_us; /* the latter without the recipe */
};
enum { MC_PLAN_STEPS = 3, MC_PLAN_CARDS = 3 };

/* What of the pool another kind of card would leave. */
struct mc_plan_card {
    const char *name;
    int64_t tokens;
    bool fits;
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
    struct mc_weights_budget w, source; /* source: without the recipe */
    const char *reader_path;            /* the model that reads prompts beside it, or NULL */
    double reader;                      /* bytes of a rank for that one's weights */
    struct mc_kv kv; /* of the rank that has most */
    double memory, context, collectives, scratch, logits, staging, pool, used; /* bytes */
    int64_t tokens;
    double cross, cross_many; /* tokens: see mc_budget_crossover; for MC_PLAN_SEQS */
    struct mc_plan_step step[MC_PLAN_STEPS];
    struct mc_plan_card card[MC_PLAN_CARDS];
    bool fits;
};

enum { MC_PLAN_SEQS = 64 }; /* sequences at once; serve's default */

/* "h200"; NULL when there is no such card. */
const struct mc_gpu *mc_plan_gpu(const char *name);
double mc_plan_step_us(const struct mc_gpu *g, int32_t ranks, int32_t n_layer,
                       double bytes_rank);
/* How a matrix lies that a recipe does not keep. */
struct mc_target;
struct mc_form mc_target_form(const struct mc_target *t);

void mc_plan_show(const struct mc_plan_job *p, bool json);

#endif
