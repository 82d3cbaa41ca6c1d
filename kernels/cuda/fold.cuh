/* fold.cuh - how two parts of a softmax become one; attention over pages and over latents.
 * Owns nothing. THREAD: device code. */
#ifndef MC_CUDA_FOLD_CUH
#define MC_CUDA_FOLD_CUH

#include "kernels/cuda/dev.cuh"

/* The weights of two parts in their fold, and the fold's {max, sum}; see host/fold.h. */
struct fold {
    float a, b, m, l;
};

MC_DEV fold mc_fold_of(float m0, float l0, float m1, float l1)
{
    float m = m0 > m1 ? m0 : m1, a, b;

    if (l1 == 0)
        return {1, 0, m0, l0};
    if (l0 == 0)
        return {0, 1, m1, l1};
    a = expf(m0 - m);
    b = expf(m1 - m);
    return {a, b, m, l0 * a + l1 * b};
}

#endif
