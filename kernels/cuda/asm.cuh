/* asm.cuh - every instruction that CUDA C++ has no word for, as seen by nvcc.
 *
 * The only file with assembly of the device (tests/lint.sh). kernels/emu/emu_dev.h has
 * the same names for a host compiler; tests/c/test_emu.c holds their fragment layouts one
 * element at a time. Owns nothing. THREAD: device code. */
#ifndef MC_CUDA_ASM_CUH
#define MC_CUDA_ASM_CUH

#include <stdint.h>

#include "kernels/host/cast.h"

#define MC_DEV static __device__ __forceinline__
#define MC_KERNEL(name, params) MC_KERNEL_OF(name, params, 1)
/* So many blocks shall fit a multiprocessor: a limit of registers. */
#define MC_KERNEL_OF(name, params, blocks)                            \
    extern "C" __global__ void __launch_bounds__(MC_T_##name, blocks) \
        name(const __grid_constant__ params p)

template <typename T> MC_DEV T *mc_shared()
{
    extern __shared__ __align__(128) unsigned char mc_smem[];

    return reinterpret_cast<T *>(mc_smem);
}

MC_DEV uint32_t mc_smem_at(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* ---- memory: 4, 8, 16 bytes; once: read-only and not kept in L1 -------------------- */

MC_DEV uint4 mc_ld16(const void *p) { return *static_cast<const uint4 *>(p); }
MC_DEV uint2 mc_ld8(const void *p) { return *static_cast<const uint2 *>(p); }
MC_DEV uint32_t mc_ld4(const void *p) { return *static_cast<const uint32_t *>(p); }
MC_DEV void mc_st16(void *p, uint4 v) { *static_cast<uint4 *>(p) = v; }
MC_DEV void mc_st8(void *p, uint2 v) { *static_cast<uint2 *>(p) = v; }
MC_DEV void mc_st4(void *p, uint32_t v) { *static_cast<uint32_t *>(p) = v; }

MC_DEV uint4 mc_ld16_once(const void *p)
{
    uint4 v;

    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

MC_DEV uint2 mc_ld8_once(const void *p)
{
    uint2 v;

    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(p));
    return v;
}

/* n bytes of 16 from global, zeros after them. */
MC_DEV void mc_cp_async16(void *shared, const void *global, uint32_t n)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     mc_smem_at(shared)),
                 "l"(global), "r"(n)
                 : "memory");
}

MC_DEV void mc_cp_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> MC_DEV void mc_cp_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

MC_DEV uint32_t mc_ld_acquire(const uint32_t *p)
{
    uint32_t v;

    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

MC_DEV void mc_st_release(uint32_t *p, uint32_t v)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

/* ---- packets between devices: two pairs of words, each pair written and read at once; of
 * the relaxed kind nothing else is ordered ------------------------------------------- */

#define MC_LD_PAIRS(order)                                                        \
    uint64_t a, b;                                                                \
                                                                                  \
    asm volatile("ld." order ".sys.global.v2.u64 {%0, %1}, [%2];"                 \
                 : "=l"(a), "=l"(b)                                               \
                 : "l"(p)                                                         \
                 : "memory");                                                     \
    return {static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32),             \
            static_cast<uint32_t>(b), static_cast<uint32_t>(b >> 32)}

#define MC_ST_PAIRS(order)                                                        \
    asm volatile("st." order ".sys.global.v2.u64 [%0], {%1, %2};" ::"l"(p),       \
                 "l"(v.x | static_cast<uint64_t>(v.y) << 32),                     \
                 "l"(v.z | static_cast<uint64_t>(v.w) << 32)                      \
                 : "memory")

MC_DEV uint4 mc_ld_pairs(const void *p) { MC_LD_PAIRS("relaxed"); }
MC_DEV uint4 mc_ld_pairs_acquire(const void *p) { MC_LD_PAIRS("acquire"); }
MC_DEV void mc_st_pairs(void *p, uint4 v) { MC_ST_PAIRS("relaxed"); }
MC_DEV void mc_st_pairs_release(void *p, uint4 v) { MC_ST_PAIRS("release"); }

/* A word that host and device share, looked at in a spin. */
MC_DEV uint32_t mc_ld_shared_word(const uint32_t *p)
{
    uint32_t v;

    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

MC_DEV void mc_st_shared_word(uint32_t *p, uint32_t v)
{
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

MC_DEV uint64_t mc_atomic_add64(uint64_t *p, uint64_t v)
{
    return atomicAdd(reinterpret_cast<unsigned long long *>(p), v);
}

/* ---- clusters (sm_90 on) ----------------------------------------------------------- */

#if __CUDA_ARCH__ >= 900
MC_DEV void mc_cluster_sync()
{
    asm volatile("barrier.cluster.arrive.aligned;\n"
                 "barrier.cluster.wait.aligned;" ::: "memory");
}

MC_DEV uint32_t mc_cluster_rank()
{
    uint32_t r;

    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

template <typename T> MC_DEV T *mc_cluster_map(T *p, uint32_t rank)
{
    uint64_t at;

    asm("mapa.u64 %0, %1, %2;" : "=l"(at) : "l"(p), "r"(rank));
    return reinterpret_cast<T *>(at);
}
#endif

/* ---- matrices ---------------------------------------------------------------------- */

MC_DEV void mc_ldsm4(uint32_t (&out)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(mc_smem_at(row))
                 : "memory");
}

MC_DEV void mc_ldsm4_t(uint32_t (&out)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(mc_smem_at(row))
                 : "memory");
}

#define MC_MMA(shape)                                                              \
    asm volatile("mma.sync.aligned." shape " {%0, %1, %2, %3}, {%4, %5, %6, %7}, " \
                 "{%8, %9}, {%0, %1, %2, %3};"                                     \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

MC_DEV void mc_mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    MC_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
}

MC_DEV void mc_mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    MC_MMA("m16n8k16.row.col.f32.f16.f16.f32");
}

/* ---- conversions ------------------------------------------------------------------- */

MC_DEV uint32_t mc_prmt(uint32_t a, uint32_t b, uint32_t sel)
{
    uint32_t r;

    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(sel));
    return r;
}

MC_DEV uint32_t mc_bf16x2(float lo, float hi)
{
    uint32_t r;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

MC_DEV uint32_t mc_fma_bf16x2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r;

    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

#if __CUDA_ARCH__ >= 890
MC_DEV uint32_t mc_e4m3x2(float lo, float hi)
{
    uint16_t r;

    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
    return r;
}

MC_DEV void mc_mma_e4m3(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    MC_MMA("m16n8k32.row.col.f32.e4m3.e4m3.f32");
}
#else
MC_DEV uint32_t mc_e4m3x2(float lo, float hi)
{
    return mc_e4m3_of_f32(lo) | static_cast<uint32_t>(mc_e4m3_of_f32(hi)) << 8;
}

/* Bytes 0 and 1, or 2 and 3, as f16: exact, through the f16 unit for subnormals. */
MC_DEV uint32_t mc_e4m3_f16x2(uint32_t q, uint32_t sel)
{
    uint32_t v = mc_prmt(q, 0, sel), r;

    v = (v & 0x80008000) | (v & 0x7f007f00) >> 1; /* times 2^-8 */
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(v), "r"(0x5c005c00));
    return r;
}

/* Two f16 instructions; which k of the 32 each takes is the same for a and b. */
MC_DEV void mc_mma_e4m3(float (&d)[4], const uint32_t (&q)[4], const uint32_t (&x)[2])
{
    for (int i = 0; i < 2; i++) {
        uint32_t a[4] = {mc_e4m3_f16x2(q[2 * i], 0x1404),
                         mc_e4m3_f16x2(q[2 * i + 1], 0x1404),
                         mc_e4m3_f16x2(q[2 * i], 0x3424),
                         mc_e4m3_f16x2(q[2 * i + 1], 0x3424)};
        uint32_t b[2] = {mc_e4m3_f16x2(x[i], 0x1404), mc_e4m3_f16x2(x[i], 0x3424)};

        mc_mma_f16(d, a, b);
    }
}
#endif

#endif
