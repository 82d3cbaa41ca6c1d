/* comm.h - how the bodies of collectives meet the other ranks. Internal to kernels/.
 *
 * OWNS nothing. THREAD: the leader of the rank's stream. */
#ifndef MC_COMM_H
#define MC_COMM_H

#include "kernels/kernels.h"

/* Posts p and returns when every rank has: *all is what each posted, at its rank, valid
 * until this rank meets again. op and key have to be equal on all ranks. 0, or MC_K_ERANK
 * when the ranks have parted. */
int mc_comm_meet(const struct mc_peer *peer, enum mc_op_id op, uint64_t key, const void *p,
                 const void *const **all);

/* Rows of `rows` that fall to a rank when row r is rank r mod n's. */
static inline int32_t mc_peer_rows(const struct mc_peer *peer, int32_t rows)
{
    return peer->n > 1 ? (rows - peer->rank + peer->n - 1) / peer->n : rows;
}

/* The row of all that is a rank's i-th. */
static inline int32_t mc_peer_row(const struct mc_peer *peer, int32_t i)
{
    return peer->n > 1 ? i * peer->n + peer->rank : i;
}

#endif
