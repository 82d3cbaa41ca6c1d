/* ranks_help.h - backends that are ranks of one group, held by one test. */
#ifndef MC_TEST_RANKS_HELP_H
#define MC_TEST_RANKS_HELP_H

#include "kernels/comm/comm.h"
#include "tests/c/kern.h"

struct ranks {
    int32_t n;
    struct mc_comm *comm;
    struct kern k[MC_MAX_RANKS];
};

static inline void ranks_close(struct ranks *r)
{
    for (int32_t i = 0; i < r->n; i++)
        kern_close(&r->k[i]);
    mc_comm_close(r->comm);
}

static inline int ranks_wait(struct ranks *r, int32_t i)
{
    return r->k[i].b->wait(r->k[i].s, r->k[i].b->mark(r->k[i].s));
}

static inline void ranks_all_well(struct ranks *r)
{
    for (int32_t i = 0; i < r->n; i++)
        if (ranks_wait(r, i) != 0)
            fail_msg("rank %d of %d: %s", i, r->n, mc_comm_broken(r->comm));
    assert_null(mc_comm_broken(r->comm));
}

#endif
