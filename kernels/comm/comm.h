/* comm.h - how the bodies of collectives meet the other ranks. Internal to kernels/.
 *
 * OWNS nothing. THREAD: the leader of the rank's stream. */
#ifndef MC_COMM_H
#define MC_COMM_H

#include "kernels/kernels.h"

/* Posts p and returns when every rank has: *all is what each posted, at its rank, valid
 * until this rank meets again. op and key have to be equal on all ranks. 0, or MC_K_ERANK
 * when the ranks have parted. */
int mc_comm_meet(const struct mc_peer *peer, enum mc_op_id op, uint64_t key,
                 const void *p, const void *const **all);

/* For ranks that meet on a device: what a rank's backend shows to the others' (borrowed), and
 * a word that is set when the ranks part, which kernels look at while they spin. NULL, NULL:
 * it leaves. Any thread. */
void mc_comm_sit(struct mc_comm *c, int32_t rank, void *seat, uint32_t *parted);
void *mc_comm_seat(struct mc_comm *c, int32_t rank);
uint32_t mc_comm_patience_ms(const struct mc_comm *c);

#endif
