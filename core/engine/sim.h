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

struct mc_sim_miss {
    double t;    /* when the step began */
    float times; /* measured over estimated */
};

struct mc_sim_opts {
    const struct mc_recording *rec;
    const struct mc_policy *policy;
    struct mc_cost decode, prefill;
    double host_us; /* planning and publishing, a step */
    /* By how much recorded steps missed their estimate, in the order in which they ran: [0]
     * steps of decode rows, [1] those with prompt rows. A simulated step misses its own by as
     * much as a recorded one of its kind about that time did: a machine that is shared is not
     * as fast all the time, and means alone would leave out what makes the slowest tenth. */
    const struct mc_sim_miss *miss[2];
    int32_t n_miss[2];
    bool keep_steps;
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
    struct mc_rec_step *step; /* [steps], as a recording has them; when they are kept */
};

/* Fills cost, misses and host_us from a recording's own steps; MC_EFORMAT when those are too
 * few. The misses are o's until mc_sim_unfit. */
int mc_sim_fit(const struct mc_recording *r, struct mc_sim_opts *o, struct mc_err *err);
void mc_sim_unfit(struct mc_sim_opts *o);
/* The miss of a step that begins now; at[kind] is the next to be used, 0 to begin with. */
double mc_sim_miss(const struct mc_sim_opts *o, int kind, double begins, int32_t at[2]);

int mc_sim_run(const struct mc_sim_opts *o, struct mc_sim *out, struct mc_err *err);
void mc_sim_free(struct mc_sim *s);

/* A made-up recording: bursts, short and long prompts, two lanes, a pool that runs out. For
 * trials of policies; to be freed. */
int mc_sim_shipped(struct mc_recording *out);

#endif
