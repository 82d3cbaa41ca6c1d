/* wrappers.cu - each wrapper of the device vocabulary alone in a kernel, for test_emu, and
 * for tests/gpu/test_wrappers.c, which runs them on a card too. */
#include "kernels/cuda/dev.cuh"
#include "tests/emu/kernels.h"

template <typename F> MC_DEV void mma_run(const wrap_p &p, F mma)
{
    int32_t l = mc_lane();
    uint32_t a[4], b[2];
    float d[4];

    for (int i = 0; i < 4; i++)
        a[i] = p.a[l * 4 + i];
    for (int i = 0; i < 2; i++)
        b[i] = p.b[l * 2 + i];
    for (int i = 0; i < 4; i++)
        d[i] = p.d[l * 4 + i];
    mma(d, a, b);
    for (int i = 0; i < 4; i++)
        p.d[l * 4 + i] = d[i];
}

MC_KERNEL(w_mma_bf16, wrap_p)
{
    mma_run(p,
            [](float(&d)[4], uint32_t(&a)[4], uint32_t(&b)[2]) { mc_mma_bf16(d, a, b); });
}

MC_KERNEL(w_mma_f16, wrap_p)
{
    mma_run(p,
            [](float(&d)[4], uint32_t(&a)[4], uint32_t(&b)[2]) { mc_mma_f16(d, a, b); });
}

MC_KERNEL(w_mma_e4m3, wrap_p)
{
    mma_run(p,
            [](float(&d)[4], uint32_t(&a)[4], uint32_t(&b)[2]) { mc_mma_e4m3(d, a, b); });
}

/* p.b [4 matrices][8 rows][8] 16-bit -> p.d as bits, four a lane */
template <bool TRANS> MC_DEV void ldsm_run(const wrap_p &p)
{
    uint32_t *s = mc_shared<uint32_t>(), out[4];
    int32_t l = mc_lane();

    for (int i = 0; i < 4; i++)
        mc_st4(s + l * 4 + i, p.b[l * 4 + i]);
    __syncwarp();
    if (TRANS)
        mc_ldsm4_t(out, s + l * 4);
    else
        mc_ldsm4(out, s + l * 4);
    for (int i = 0; i < 4; i++)
        p.d[l * 4 + i] = __uint_as_float(out[i]);
}

MC_KERNEL(w_ldsm, wrap_p)
{
    ldsm_run<false>(p);
}

MC_KERNEL(w_ldsm_t, wrap_p)
{
    ldsm_run<true>(p);
}

/* Conversions of a lane's words: a0, a1 as floats; bits of the results in d. */
MC_KERNEL(w_convert, wrap_p)
{
    int32_t l = mc_lane();
    float x = __uint_as_float(p.a[l * 4]), y = __uint_as_float(p.a[l * 4 + 1]);

    p.d[l * 4] = __uint_as_float(mc_bf16x2(x, y));
    p.d[l * 4 + 1] = __uint_as_float(mc_e4m3x2(x, y));
    p.d[l * 4 + 2] = __uint_as_float(mc_prmt(p.a[l * 4], p.a[l * 4 + 1], p.b[l]));
    p.d[l * 4 + 3] = __uint_as_float(
        mc_fma_bf16x2(p.a[l * 4], p.a[l * 4 + 1], p.a[l * 4 + 2]));
}

/* The lane's own number, seen through each warp operation. */
MC_KERNEL(w_warp, wrap_p)
{
    int32_t l = mc_lane();

    p.d[l] = static_cast<float>(__shfl_sync(FULL, l, 5));
    p.d[32 + l] = static_cast<float>(__shfl_xor_sync(FULL, l, 3));
    p.d[64 + l] = static_cast<float>(__shfl_down_sync(FULL, l, 30u));
    p.d[96 + l] = __uint_as_float(__ballot_sync(FULL, l % 3 == 0));
}

#ifndef __CUDACC__ /* these need a launch of their own kind */
/* Two blocks of a cluster write into each other's shared memory. */
MC_KERNEL(w_cluster, wrap_p)
{
    float *s = mc_shared<float>();
    uint32_t me = mc_cluster_rank(), other = 1 - me;

    mc_cluster_map(s, other)[threadIdx.x] = static_cast<float>(me * 100 + threadIdx.x);
    mc_cluster_sync();
    p.d[me * 32 + threadIdx.x] = s[threadIdx.x];
}

/* Waits for the other rank's word, then answers: p.a is ours, p.b the other's. */
MC_KERNEL(w_ranks, wrap_p)
{
    for (uint32_t i = 1; i <= 50; i++) {
        if (threadIdx.x == 0) {
            mc_st_release(p.b, i);
            while (mc_ld_acquire(p.a) < i)
                ;
        }
        __syncthreads();
    }
    p.d[threadIdx.x] = static_cast<float>(threadIdx.x);
}
#endif
