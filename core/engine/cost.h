/* cost.h - what a step takes, estimated from what steps took.
 *
 * THREAD: a window belongs to one thread. */
#ifndef MC_ENGINE_COST_H
#define MC_ENGINE_COST_H

#include "core/mc_abi.h"

enum { MC_COST_STEPS = 256, MC_COST_LEAST = 16, MC_COST_TERMS = 6 };

/* One step: what ran in it and how long. */
struct mc_cost_step {
    float us;
    int32_t n_decode, n_prompt_row, n_prompt_tok;
    float ktok_decode, ktok_prompt; /* 1,000 (token, token it attends to) pairs */
};

/* The last MC_COST_STEPS steps, and the estimate made of them. */
struct mc_cost_window {
    struct mc_cost_step step[MC_COST_STEPS];
    uint64_t n; /* steps ever */
    struct mc_cost decode, prefill;
};

void mc_cost_add(struct mc_cost_window *w, const struct mc_cost_step *s);
/* Least squares over n steps (cost.c says how weighted), no term negative; zeros below
 * MC_COST_LEAST steps. */
void mc_cost_fit(const struct mc_cost_step *s, int32_t n, struct mc_cost *decode,
                 struct mc_cost *prefill);
double mc_cost_us(const struct mc_cost *decode, const struct mc_cost *prefill,
                  const struct mc_cost_step *s);

#endif
