/* dev.cuh - what every kernel includes: the device's vocabulary in nvcc's or the
 * emulator's form, and the few helpers that most kernels share.
 *
 * A kernel is MC_KERNEL(name, params) { ... p ... }: one argument, a plain struct by
 * value; as many threads as kernels/cuda/list.h says. Shared memory is dynamic only.
 * Blocks whose work is beyond the live counts end at once: a whole block always takes the
 * same way. Owns nothing. THREAD: device code. */
#ifndef MC_CUDA_DEV_CUH
#define MC_CUDA_DEV_CUH

#include "kernels/cuda/list.h"

#ifdef __CUDACC__
#include "kernels/cuda/asm.cuh"
#else
#include "kernels/emu/emu_dev.h"
#endif
#include "kernels/kernels.h"

enum { WARP = 32 };
#define FULL 0xffffffffu

MC_DEV int32_t mc_warp() { return static_cast<int32_t>(threadIdx.x) / WARP; }
MC_DEV int32_t mc_lane() { return static_cast<int32_t>(threadIdx.x) % WARP; }

/* ---- a warp's and a block's folds -------------------------------------------------- */

MC_DEV float mc_warp_sum(float x)
{
    for (int by = 16; by > 0; by /= 2)
        x += __shfl_xor_sync(FULL, x, by);
    return x;
}

/* The largest; NaN if one is. */
MC_DEV float mc_warp_max(float x)
{
    for (int by = 16; by > 0; by /= 2) {
        float y = __shfl_xor_sync(FULL, x, by);

        x = y > x || isnan(y) ? y : x;
    }
    return x;
}

/* Of a block of n warps, in the order of warps; buf: n values of shared memory. Everybody
 * gets the result. Callable again at once. */
template <typename T, typename F> MC_DEV T mc_block_fold(T x, T *buf, int32_t n, F fold)
{
    __syncthreads();
    if (mc_lane() == 0)
        buf[mc_warp()] = x;
    __syncthreads();
    x = buf[0];
    for (int32_t i = 1; i < n; i++)
        x = fold(x, buf[i]);
    return x;
}

MC_DEV float mc_block_sum(float x, float *buf, int32_t n)
{
    return mc_block_fold(mc_warp_sum(x), buf, n, [](float a, float b) { return a + b; });
}

/* ---- rows of bf16 ------------------------------------------------------------------ */

struct mc_f4 {
    float v[4];
};

MC_DEV mc_f4 mc_bf16_of_pairs(uint2 u)
{
    return {{__uint_as_float(u.x << 16), __uint_as_float(u.x & 0xffff0000),
             __uint_as_float(u.y << 16), __uint_as_float(u.y & 0xffff0000)}};
}

MC_DEV mc_f4 mc_bf16_get4(const void *p) /* 8-byte aligned */
{
    return mc_bf16_of_pairs(mc_ld8(p));
}

MC_DEV void mc_bf16_put4(void *p, const mc_f4 &x)
{
    mc_st8(p, {mc_bf16x2(x.v[0], x.v[1]), mc_bf16x2(x.v[2], x.v[3])});
}

/* Four e4m3 codes as two bf16 pairs, exactly: the exponent is moved over, which is times
 * 2^-120, and multiplied back, which sets subnormals right too. */
MC_DEV uint2 mc_e4m3_bf16(uint32_t q)
{
    uint32_t lo = mc_prmt(q, 0, 0x1404), hi = mc_prmt(q, 0, 0x3424);

    lo = (lo & 0x80008000) | (lo & 0x7f007f00) >> 4;
    hi = (hi & 0x80008000) | (hi & 0x7f007f00) >> 4;
    return {mc_fma_bf16x2(lo, 0x7b807b80, 0x80008000),
            mc_fma_bf16x2(hi, 0x7b807b80, 0x80008000)};
}

/* A warp writes columns [c0, c0+128) of row t, four a lane: the unit of every activation
 * layout. Columns from k on are not there. */
MC_DEV void mc_act_put(const struct mc_act &a, int64_t t, int32_t c0, const mc_f4 &x)
{
    int32_t c = c0 + 4 * mc_lane();
    int64_t at = t * a.k + c;
    float top = 0, s;

    if (a.layout == MC_A_BF16) {
        if (c < a.k)
            mc_bf16_put4(static_cast<uint16_t *>(a.x) + at, x);
        return;
    }
    for (int i = 0; i < 4 && c < a.k; i++)
        if (isnan(x.v[i]) || fabsf(x.v[i]) > top)
            top = fabsf(x.v[i]);
    top = mc_warp_max(top);
    s = top / 448;
    if (c < a.k) {
        uint32_t q = mc_e4m3x2(x.v[0] / s, x.v[1] / s) |
                     mc_e4m3x2(x.v[2] / s, x.v[3] / s) << 16;

        mc_st4(static_cast<uint8_t *>(a.x) + at, top == 0 ? 0 : q);
    }
    if (mc_lane() == 0)
        a.s[t * ((a.k + 127) / 128) + c0 / 128] = s;
}

#endif
