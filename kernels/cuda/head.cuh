/* head.cuh - one head's values in shared memory, a warp's: load, norm, rotate. Owns
 * nothing. THREAD: device code. */
#ifndef MC_CUDA_HEAD_CUH
#define MC_CUDA_HEAD_CUH

#include "kernels/cuda/dev.cuh"
#include "kernels/host/sincos.h"

MC_DEV void mc_head_load(float *x, const uint16_t *from, int32_t d)
{
    for (int32_t i = mc_lane(); i < d; i += WARP)
        x[i] = mc_f32_of_bf16(from[i]);
}

/* Each lane scales what it loaded. */
MC_DEV void mc_head_norm(float *x, const float *w, float eps, int32_t d)
{
    float sum = 0, r;

    for (int32_t i = mc_lane(); i < d; i += WARP)
        sum += x[i] * x[i];
    r = 1 / sqrtf(mc_warp_sum(sum) / static_cast<float>(d) + eps);
    for (int32_t i = mc_lane(); i < d; i += WARP)
        x[i] = x[i] * r * w[i];
}

/* Cosine and sine of pair i at a position, times the table's factor. */
MC_DEV void mc_rope_at(const struct mc_rope &rope, int32_t pos, int32_t i, float *c,
                       float *s)
{
    mc_sincos(static_cast<float>(pos) * rope.inv_freq[i], s, c);
    *c *= rope.mul;
    *s *= rope.mul;
}

/* cs: cos [dim/2], sin [dim/2], made by the whole block. */
MC_DEV void mc_rope_table(float *cs, const struct mc_rope &rope, int32_t pos,
                          int32_t threads)
{
    int32_t half = rope.dim / 2;

    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < half; i += threads) {
        float c, s;

        mc_rope_at(rope, pos, i, &c, &s);
        cs[i] = c;
        cs[half + i] = s;
    }
}

/* The two dims of pair i. */
MC_DEV int32_t mc_rope_a(const struct mc_rope &rope, int32_t i)
{
    return rope.pair == MC_ROPE_HALVES ? i : 2 * i;
}

MC_DEV int32_t mc_rope_b(const struct mc_rope &rope, int32_t i)
{
    return rope.pair == MC_ROPE_HALVES ? i + rope.dim / 2 : 2 * i + 1;
}

MC_DEV void mc_head_rope(float *x, const struct mc_rope &rope, const float *cs)
{
    int32_t half = rope.dim / 2;

    x += rope.off;
    __syncwarp();
    for (int32_t i = mc_lane(); i < half; i += WARP) {
        int32_t a = mc_rope_a(rope, i), b = mc_rope_b(rope, i);
        float c = cs[i], s = cs[half + i], xa = x[a], xb = x[b];

        x[a] = xa * c - xb * s;
        x[b] = xb * c + xa * s;
    }
    __syncwarp();
}

/* The greatest magnitude; NaN if one is. */
MC_DEV float mc_head_amax(const float *x, int32_t d)
{
    float top = 0;

    for (int32_t i = mc_lane(); i < d; i += WARP)
        if (isnan(x[i]) || fabsf(x[i]) > top)
            top = fabsf(x[i]);
    return mc_warp_max(top);
}

#endif
