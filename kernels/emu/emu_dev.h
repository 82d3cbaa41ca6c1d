/* emu_dev.h - the device vocabulary for a host compiler: CUDA's built-ins and the
 * wrappers of kernels/cuda/asm.cuh, the same names with the same meaning.
 *
 * What wrappers do in memory is not seen by the compiler's hooks but told to the watcher
 * (emu_touch), whole vectors at a time, as the hardware sees them; a sanitizer build lets
 * the sanitizer see it. Owns nothing. THREAD: a fiber of a launch. */
#ifndef MC_EMU_DEV_H
#define MC_EMU_DEV_H

#include <math.h>
#include <string.h>

#include "kernels/emu/ops.h"
#include "kernels/host/cast.h"

#define EMU_DEV static inline __attribute__((always_inline, unused))
#define EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

#define threadIdx (emu_thread_idx())
#define blockIdx (emu_block_idx())
#define gridDim (emu_grid_dim())

#define MC_DEV static inline __attribute__((unused))
#define MC_KERNEL(name, params)                       \
    static void name##_body(const params &p);         \
    extern "C" void name(const void *p);              \
    extern "C" void name(const void *p)               \
    {                                                 \
        name##_body(*static_cast<const params *>(p)); \
    }                                                 \
    static void name##_body(const params &p)

#define MC_KERNEL_OF(name, params, blocks) MC_KERNEL(name, params)

struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};

/* The launch's dynamic shared memory. */
template <typename T> EMU_DEV T *mc_shared()
{
    return reinterpret_cast<T *>(emu_shared());
}

/* ---- where threads meet ------------------------------------------------------------ */

EMU_DEV void __syncthreads(EMU_HERE)
{
    emu_barrier(file, line);
}

EMU_DEV void __syncwarp(uint32_t mask = 0xffffffff, EMU_HERE)
{
    emu_meet(mask, "__syncwarp", file, line, nullptr, nullptr, true);
}

template <typename T>
EMU_DEV T emu_shuffle(uint32_t mask, T v, uint32_t from, const char *op, const char *file,
                      int line)
{
    emu_shfl a = {0, 0, from};

    static_assert(sizeof v <= 8);
    emu_raw_copy(&a.in, &v, sizeof v);
    emu_meet(mask, op, file, line, &a, emu_shfl_fn, false);
    emu_raw_copy(&v, &a.out, sizeof v);
    return v;
}

template <typename T> EMU_DEV T __shfl_sync(uint32_t mask, T v, int lane, EMU_HERE)
{
    return emu_shuffle(mask, v, static_cast<uint32_t>(lane) & 31, "__shfl_sync", file,
                       line);
}

template <typename T> EMU_DEV T __shfl_xor_sync(uint32_t mask, T v, int by, EMU_HERE)
{
    return emu_shuffle(mask, v, emu_lane() ^ static_cast<uint32_t>(by), "__shfl_xor_sync",
                       file, line);
}

template <typename T>
EMU_DEV T __shfl_down_sync(uint32_t mask, T v, uint32_t by, EMU_HERE)
{
    uint32_t from = emu_lane() + by;

    return emu_shuffle(mask, v, from > 31 ? emu_lane() : from, "__shfl_down_sync", file,
                       line);
}

template <typename T> EMU_DEV T __shfl_up_sync(uint32_t mask, T v, uint32_t by, EMU_HERE)
{
    return emu_shuffle(mask, v, emu_lane() < by ? emu_lane() : emu_lane() - by,
                       "__shfl_up_sync", file, line);
}

EMU_DEV uint32_t __ballot_sync(uint32_t mask, bool v, EMU_HERE)
{
    emu_vote a = {v, 0};

    emu_meet(mask, "__ballot_sync", file, line, &a, emu_ballot_fn, false);
    return a.out;
}

/* ---- bits, atomics ----------------------------------------------------------------- */

EMU_DEV int __popc(uint32_t x) { return __builtin_popcount(x); }
EMU_DEV float __uint_as_float(uint32_t x) { return mc_f32_of_bits(x); }
EMU_DEV uint32_t __float_as_uint(float x) { return mc_bits_of_f32(x); }
EMU_DEV uint32_t atomicAdd(uint32_t *p, uint32_t v) { return emu_add32(p, v); }
EMU_DEV uint64_t mc_atomic_add64(uint64_t *p, uint64_t v) { return emu_add64(p, v); }
EMU_DEV uint32_t atomicOr(uint32_t *p, uint32_t v) { return emu_or32(p, v); }

/* ---- memory ------------------------------------------------------------------------ */

template <typename T> EMU_DEV T emu_load(const void *p)
{
    T v;

    emu_touch(p, sizeof v, false);
#ifdef MC_SANITIZE
    __builtin_memcpy(&v, p, sizeof v);
#else
    emu_raw_copy(&v, p, sizeof v);
#endif
    return v;
}

template <typename T> EMU_DEV void emu_store(void *p, T v)
{
    emu_touch(p, sizeof v, true);
#ifdef MC_SANITIZE
    __builtin_memcpy(p, &v, sizeof v);
#else
    emu_raw_copy(p, &v, sizeof v);
#endif
}

EMU_DEV uint4 mc_ld16(const void *p) { return emu_load<uint4>(p); }
EMU_DEV uint2 mc_ld8(const void *p) { return emu_load<uint2>(p); }
EMU_DEV uint32_t mc_ld4(const void *p) { return emu_load<uint32_t>(p); }
EMU_DEV uint4 mc_ld16_once(const void *p) { return emu_load<uint4>(p); }
EMU_DEV uint2 mc_ld8_once(const void *p) { return emu_load<uint2>(p); }
EMU_DEV void mc_st16(void *p, uint4 v) { emu_store(p, v); }
EMU_DEV void mc_st8(void *p, uint2 v) { emu_store(p, v); }
EMU_DEV void mc_st4(void *p, uint32_t v) { emu_store(p, v); }
EMU_DEV uint32_t mc_ld_acquire(const uint32_t *p) { return emu_load_acquire(p); }
EMU_DEV void mc_st_release(uint32_t *p, uint32_t v) { emu_store_release(p, v); }

/* Packets between devices: who polls lets others run. */
EMU_DEV uint4 emu_pairs(const void *p, bool acquire)
{
    uint4 v;

    emu_load_pairs(&v, p, acquire);
    return v;
}

EMU_DEV uint4 mc_ld_pairs(const void *p) { return emu_pairs(p, false); }
EMU_DEV uint4 mc_ld_pairs_acquire(const void *p) { return emu_pairs(p, true); }
EMU_DEV void mc_st_pairs(void *p, uint4 v) { emu_store_pairs(p, &v, false); }
EMU_DEV void mc_st_pairs_release(void *p, uint4 v) { emu_store_pairs(p, &v, true); }
EMU_DEV uint32_t mc_ld_shared_word(const uint32_t *p) { return emu_load_word(p); }
EMU_DEV void mc_st_shared_word(uint32_t *p, uint32_t v) { emu_store_word(p, v); }

EMU_DEV void mc_cp_async16(void *shared, const void *global, uint32_t n)
{
    emu_copy_async(shared, global, n);
}

EMU_DEV void mc_cp_commit() { emu_copy_commit(); }
template <int N> EMU_DEV void mc_cp_wait() { emu_copy_wait(N); }

/* ---- clusters ---------------------------------------------------------------------- */

EMU_DEV void mc_cluster_sync(EMU_HERE) { emu_cluster_barrier(file, line); }
EMU_DEV uint32_t mc_cluster_rank() { return emu_rank(); }

/* The same place in the shared memory of another block of the cluster. */
template <typename T> EMU_DEV T *mc_cluster_map(T *p, uint32_t rank)
{
    int64_t off = reinterpret_cast<unsigned char *>(p) - emu_shared();

    return reinterpret_cast<T *>(emu_cluster_shared(rank) + off);
}

/* ---- matrices ---------------------------------------------------------------------- */

EMU_DEV void emu_ldmatrix(uint32_t *out, const void *row, bool trans, const char *file,
                          int line)
{
    emu_ldsm a = {row, out, trans};

    emu_touch(row, 16, false);
    emu_meet(0xffffffff, "ldmatrix", file, line, &a, emu_ldsm_fn, false);
}

EMU_DEV void mc_ldsm4(uint32_t (&out)[4], const void *row, EMU_HERE)
{
    emu_ldmatrix(out, row, false, file, line);
}

EMU_DEV void mc_ldsm4_t(uint32_t (&out)[4], const void *row, EMU_HERE)
{
    emu_ldmatrix(out, row, true, file, line);
}

#define EMU_MMA(name)                                                                  \
    EMU_DEV void mc_##name(float(&d)[4], const uint32_t(&a)[4], const uint32_t(&b)[2], \
                           EMU_HERE)                                                   \
    {                                                                                  \
        emu_mma m = {a, b, d};                                                         \
                                                                                       \
        emu_meet(0xffffffff, #name, file, line, &m, emu_##name##_fn, false);           \
    }
EMU_MMA(mma_bf16)
EMU_MMA(mma_f16)
EMU_MMA(mma_e4m3)
#undef EMU_MMA

/* ---- conversions ------------------------------------------------------------------- */

EMU_DEV uint32_t mc_bf16x2(float lo, float hi)
{
    return mc_bf16_of_f32(lo) | static_cast<uint32_t>(mc_bf16_of_f32(hi)) << 16;
}

EMU_DEV uint32_t mc_e4m3x2(float lo, float hi)
{
    return mc_e4m3_of_f32(lo) | static_cast<uint32_t>(mc_e4m3_of_f32(hi)) << 8;
}

/* Byte i of the result is byte sel[i] of a (0..3) or b (4..7). */
EMU_DEV uint32_t mc_prmt(uint32_t a, uint32_t b, uint32_t sel)
{
    uint64_t both = a | static_cast<uint64_t>(b) << 32;
    uint32_t r = 0;

    for (int i = 0; i < 4; i++)
        r |= static_cast<uint32_t>(both >> 8 * (sel >> 4 * i & 7) & 0xff) << 8 * i;
    return r;
}

/* a*b + c of two bf16 pairs. The hardware rounds once, this rounds to f32 first: the same
 * wherever a*b + c has at most 24 bits, as in all conversions of codes. */
EMU_DEV uint32_t mc_fma_bf16x2(uint32_t a, uint32_t b, uint32_t c)
{
    float lo = fmaf(mc_f32_of_bits(a << 16), mc_f32_of_bits(b << 16),
                    mc_f32_of_bits(c << 16));
    float hi = fmaf(mc_f32_of_bits(a & 0xffff0000), mc_f32_of_bits(b & 0xffff0000),
                    mc_f32_of_bits(c & 0xffff0000));

    return mc_bf16x2(lo, hi);
}

#endif
