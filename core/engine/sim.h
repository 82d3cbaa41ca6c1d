/* sim.h - the scheduler run against recorded arrivals: no model, a clock that jumps.
 *
 * Sequences, pages and the look-ahead behave as the engine's (the same states, the same
 * checks of a plan); a step takes what mc_cost says. What it leaves out: prefixes found
 * again other than those that were recorded, and sampling.
 * OWNS what it makes; THREAD: any one; the policy is called on it. */
#ifndef MC_ENGINE_SIM_H
#define MC_ENGINE_SIM_H

#include "core/engine/policy.h"
#include "core/engine/record.h"

struct mc_sim_opts {
    const struct mc_recording *rec;
    const struct mc_policy *policy;
    struct mc_cost decode, prefill;
    double host_us; /* planning and publishing, a step */
    const float *slow; /* [n_slow] how many times longer steps took in each second, or NULL:
                          a machine that is shared is not as fast all the time */
    int32_t n_slow;
};

struct mc_sim_req { /* one a request of the recording; 0: never */
    double t_start, t_first, t_last, t_end;
    int32_t n_gen, n_preempt;
    bool skipped, starved;
};

struct mc_sim {
    struct mc_sim_req *req;
    float *gap; /* seconds between tokens of a sequence */
    int32_t n_gap;
    int32_t steps, preempted, trimmed, failed, starved, views;
    double idle_s;  /* work waited and nothing was planned */
    bool stuck;     /* given up: nothing ran for a minute */
    struct mc_err err; /* the first failure of the policy */
    float us[1024]; /* what plan() took, of the last calls */
};

int mc_sim_run(const struct mc_sim_opts *o, struct mc_sim *out, struct mc_err *err);
void mc_sim_free(struct mc_sim *s);

/* A made-up recording: bursts, short and long prompts, two lanes, a pool that runs out. For
 * trials of policies; to be freed. */
int mc_sim_shipped(struct mc_recording *out);

#endif
