/* philox.h - Philox4x32-10, the counter-based generator that every backend draws with.
 *
 * J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw: "Parallel random numbers: as easy
 * as 1, 2, 3", SC11; constants and known answers as in their Random123 library. A draw is
 * a pure function of (seed, position): it does not depend on batch, rank or backend. */
#ifndef MC_HOST_PHILOX_H
#define MC_HOST_PHILOX_H

#include <stdint.h>

#include "kernels/inline.h"

MC_INLINE void mc_philox4x32(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    int i;

    for (i = 0; i < 10; i++) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];

        c[0] = (uint32_t)(b >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)b;
        c[2] = (uint32_t)(a >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)a;
        k0 += 0x9E3779B9u; /* Weyl sequence: golden ratio, sqrt(3) - 1 */
        k1 += 0xBB67AE85u;
    }
}

/* 53 bits in [0, 1) for the token that takes position pos. */
MC_INLINE double mc_philox_draw(uint32_t seed_lo, uint32_t seed_hi, int32_t pos)
{
    uint32_t c[4] = {(uint32_t)pos, 0, 0, 0};

    mc_philox4x32(c, seed_lo, seed_hi);
    return (double)(((uint64_t)c[0] << 32 | c[1]) >> 11) * 0x1p-53;
}

#endif
