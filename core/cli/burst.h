/* burst.h - n requests at once against an engine, for benchmarks.
 * OWNS nothing after a call. THREAD: main; sinks are called on the engine's. */
#ifndef MC_CLI_BURST_H
#define MC_CLI_BURST_H

#include "core/mc.h"

struct mc_burst {
    int32_t n, n_prompt, n_gen;
    uint32_t seed; /* of the prompts' ids; equal seeds give equal prompts */
};

struct mc_burst_took {
    double seconds; /* from the first submission to the last end */
    double decode;  /* from the first token to the last end */
    double first;   /* from the first submission to the first token */
};

/* Greedy requests of random ids, each of n_gen tokens, until all have ended; an error
 * when one of them ended otherwise. */
int mc_burst_run(struct mc_engine *e, const struct mc_burst *b, struct mc_burst_took *out,
                 struct mc_err *err);

#endif
