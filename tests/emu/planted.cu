/* planted.cu - kernels with one fault each, chosen by p.fault; fault NONE is right. They
 * sum rows of 64 floats, by four warps, in two stages of shared memory: small, but with
 * the habits of real kernels. */
#include "kernels/cuda/dev.cuh"
#include "tests/emu/kernels.h"

/* Four warps leave partial sums, warp 0 adds them up. */
MC_KERNEL(f_sum, fault_p)
{
    float *s = mc_shared<float>();
    float x = p.in[blockIdx.x * 128 + threadIdx.x];

    x = mc_warp_sum(x);
    if (mc_lane() == 0)
        s[mc_warp() + (p.fault == FAULT_OFF_BY_ONE)] = x;
    if (p.fault != FAULT_NO_BARRIER)
        __syncthreads();
    if (threadIdx.x == 0)
        p.out[blockIdx.x] = s[0] + s[1] + s[2] + s[3];
}

/* A loop that reuses its buffer: the barrier at its end is the one that is forgotten. */
MC_KERNEL(f_loop, fault_p)
{
    float *s = mc_shared<float>(), sum = 0;

    for (int i = 0; i < 4; i++) {
        s[threadIdx.x] = p.in[i * 128 + threadIdx.x];
        __syncthreads();
        sum += s[threadIdx.x ^ 64];
        if (p.fault != FAULT_NO_BARRIER)
            __syncthreads();
    }
    p.out[threadIdx.x] = sum;
}

/* Lanes pass values through shared memory: a shuffle orders nothing. */
MC_KERNEL(f_warp, fault_p)
{
    float *s = mc_shared<float>();

    s[threadIdx.x] = p.in[threadIdx.x];
    if (p.fault != FAULT_NO_BARRIER)
        __syncwarp();
    else
        __shfl_xor_sync(FULL, 1, 1);
    p.out[threadIdx.x] = s[threadIdx.x ^ 1];
}

/* Two stages of cp.async, the copy of the next under the sum of this. */
MC_KERNEL(f_pipe, fault_p)
{
    float *s = mc_shared<float>(), sum = 0; /* [2][128] */
    int32_t t = static_cast<int32_t>(threadIdx.x);

    if (t < 32)
        mc_cp_async16(s + 4 * t, p.in + 4 * t, 16);
    mc_cp_commit();
    for (int i = 0; i < 4; i++) {
        if (t < 32 && i < 3)
            mc_cp_async16(s + (i + 1) % 2 * 128 + 4 * t, p.in + (i + 1) * 128 + 4 * t,
                          16);
        mc_cp_commit();
        if (p.fault != FAULT_NO_WAIT)
            mc_cp_wait<1>();
        __syncthreads();
        sum += s[(i + (p.fault == FAULT_STAGE)) % 2 * 128 + t];
        __syncthreads();
    }
    mc_cp_wait<0>();
    p.out[t] = sum;
}

MC_KERNEL(f_diverge, fault_p)
{
    float x = p.in[threadIdx.x];

    if (p.fault == FAULT_DIVERGE && threadIdx.x >= 64) {
        x += 1;
        __syncthreads();
    } else {
        __syncthreads();
    }
    if (p.fault == FAULT_EXIT && threadIdx.x == 77)
        return;
    if (p.fault == FAULT_LANES && threadIdx.x % 2)
        x = __shfl_sync(FULL, x, 0);
    else
        x = __shfl_xor_sync(FULL, x, 1);
    __syncthreads();
    p.out[threadIdx.x] = x;
}

MC_KERNEL(f_vector, fault_p)
{
    const char *at = reinterpret_cast<const char *>(p.in) + 16 * threadIdx.x;
    uint4 v = mc_ld16(at + (p.fault == FAULT_MISALIGNED ? 4 : 0));

    p.out[threadIdx.x] = __uint_as_float(v.x);
}

/* Rows of 32 floats read along a row, or down a column. */
MC_KERNEL(f_coalesce, fault_p)
{
    float *s = mc_shared<float>(); /* [32][32 or 33] */
    int32_t l = mc_lane(), w = mc_warp(), pitch = p.fault == FAULT_BANKS ? 32 : 33;

    for (int i = w; i < 32; i += 4)
        s[i * pitch + l] = p.in[p.fault == FAULT_UNCOALESCED ? l * 32 + i : i * 32 + l];
    __syncthreads();
    for (int i = w; i < 32; i += 4)
        p.out[i * 32 + l] = s[l * pitch + i];
}
