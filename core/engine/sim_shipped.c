/* sim_shipped.c - the arrivals that every scheduler is tried on: bursts that wait for a pool
 * too small for them. The same each time. Owns nothing. THREAD: any. */
#include <stdlib.h>
#include <string.h>

#include "core/engine/sim.h"
#include "core/mc.h"

int mc_sim_shipped(struct mc_recording *out)
{
    enum { N = 160 };
    uint32_t x = 1;
    double t = 1;

    memset(out, 0, sizeof *out);
    out->head = (struct mc_rec_head){.abi = MC_ABI,
                                     .depth = 2,
                                     .p_tokens = 64,
                                     .p_total = 24,
                                     .tok_cap = 256,
                                     .row_cap = 16,
                                     .max_context = 2048};
    for (int i = 0; i < MC_REC_LANES; i++)
        out->head.weight[i] = i == 1 ? 2 : 1;
    out->req = calloc(N, sizeof *out->req);
    if (!out->req)
        return MC_ENOMEM;
    for (out->n_req = 0; out->n_req < N; out->n_req++) {
        struct mc_rec_req *q = &out->req[out->n_req];
        uint32_t dice = (x = x * 1664525u + 1013904223u) >> 16;

        t += out->n_req % 20 == 0 ? 1 : (dice % 8) * 0.005; /* bursts of twenty */
        q->in = (struct mc_rec_arrive){
            .t = t, .seq = (uint32_t)out->n_req + 1, .gen = 1, .lane = dice % 3 == 0,
            .n_prompt = dice % 10 == 0 ? 900 : 20 + (int32_t)(dice % 300), .limit = 200,
            .priority = dice % 5 == 0,
        };
        q->n_gen = 10 + (int32_t)(dice % 120);
        q->finish = MC_FINISH_STOP;
    }
    return 0;
}
