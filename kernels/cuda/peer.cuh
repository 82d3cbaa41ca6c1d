/* peer.cuh - how kernels of one rank meet those of the others, over peer memory.
 *
 * Every rank has a seat in its device's memory (params.h) that all write to. A collective
 * is an epoch; only kernels count epochs, so that a recorded step can be replayed. What
 * is sent carries its epoch: a packet is two pairs {data, tag}, and a pair arrives at
 * once, so that whoever sees the tag has the data, without a fence or a flag.
 *
 * Rules
 *  1. A kernel of epoch e returns when it has seen something of epoch e of every other
 * rank. So a rank that sends in e has seen all others in e-1, whose kernels of e-2 had
 * ended: places alternate between two parities, and what lies in one of them is read out
 * before it is written again.
 *  2. Blocks of one kernel may run in any order, one after another even: no block waits
 * for one of its own rank. Where a row is a block's, whoever comes first sends all rows
 * that nobody took, and waits then.
 *  3. The last block to leave counts the epoch; all have read the old one by then. Tag 0
 * is memory that nobody wrote and is left out. A row that lay idle for exactly 2^32
 * epochs would be taken for new.
 *  4. A spin looks at `parted`, which the host sets, and returns with rubbish when it is:
 * the step's results are not published then. It has no clock: the host's patience ends
 * it.
 *
 * Owns nothing. THREAD: device code, whole blocks. */
#ifndef MC_CUDA_PEER_CUH
#define MC_CUDA_PEER_CUH

#include "kernels/cuda/dev.cuh"
#include "kernels/cuda/params.h"

/* The epoch that this kernel is of, told to the host. */
MC_DEV uint32_t mc_come(const mc_cu_peers &g)
{
    uint32_t e = g.seat[g.rank]->epoch;

    e = e == UINT32_MAX ? 2 : e + 1; /* the parity goes on alternating */
    if (threadIdx.x == 0)
        mc_st_shared_word(&g.words->came, e);
    return e;
}

/* At the end of a block, of so many that came. */
MC_DEV void mc_go(const mc_cu_peers &g, uint32_t e, uint32_t n_block)
{
    mc_cu_seat *s = g.seat[g.rank];

    __syncthreads();
    if (threadIdx.x != 0 || (n_block > 1 && atomicAdd(&s->left, 1) + 1 < n_block))
        return;
    s->left = 0;
    s->taken = 0;
    s->epoch = e;
}

/* Once a round of a spin; n counts them. */
MC_DEV bool mc_parted(const mc_cu_peers &g, uint32_t &n)
{
    if (++n % 256 != 0)
        return false;
    mc_st_shared_word(&g.words->polls, n);
    return mc_ld_shared_word(&g.words->parted) != 0;
}

/* Where the packets of a row of h values from rank `from` lie at rank `at`. */
MC_DEV uint8_t *mc_row_at(const mc_cu_peers &g, int32_t at, int32_t from, uint32_t e,
                          int32_t row, int32_t h)
{
    int64_t place = static_cast<int64_t>(e % 2) * g.n + from;

    return reinterpret_cast<uint8_t *>(g.seat[at]) + MC_CU_HEAD_BYTES +
           place * MC_CU_ROOM + static_cast<int64_t>(row) * h * 4;
}

/* Every rank posts a value; all: [n] of shared memory, what each posted. What a rank
 * wrote before it came can be read by those who met it. */
MC_DEV void mc_meet(const mc_cu_peers &g, uint32_t e, uint64_t v, uint64_t *all)
{
    int32_t r = static_cast<int32_t>(threadIdx.x);
    uint32_t n = 0;

    if (r < g.n) {
        const uint32_t *at = g.seat[g.rank]->post[e % 2][r];
        uint4 got = {static_cast<uint32_t>(v), e, static_cast<uint32_t>(v >> 32), e};

        if (r != g.rank) {
            mc_st_pairs_release(g.seat[r]->post[e % 2][g.rank], got);
            do
                got = mc_ld_pairs_acquire(at);
            while ((got.y != e || got.w != e) && !mc_parted(g, n));
        }
        all[r] = got.x | static_cast<uint64_t>(got.z) << 32;
    }
    __syncthreads();
}

/* Whether the ranks parted: what mc_meet gave is rubbish then. Everybody gets the same.
 */
MC_DEV bool mc_met(const mc_cu_peers &g, int32_t *shared)
{
    if (threadIdx.x == 0)
        *shared = mc_ld_shared_word(&g.words->parted) == 0;
    __syncthreads();
    return *shared;
}

#endif
