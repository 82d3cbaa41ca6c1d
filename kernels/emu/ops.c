/* ops.c - what the lanes of a warp compute together, and raw memory for the wrappers.
 *
 * Compiled without hooks and without TSan: the last lane to come reads and writes the
 * others' stacks. g = lane / 4 and t = lane % 4 in PTX's fragment layouts. Owns nothing.
 * THREAD: a fiber of a launch. */
#include "kernels/emu/ops.h"

#include <string.h>
#include <unistd.h>

#include "kernels/host/cast.h"

#if defined(EMU_TSAN)
void __tsan_acquire(void *p);
void __tsan_release(void *p);
#else
#define __tsan_acquire(p) ((void)0)
#define __tsan_release(p) ((void)0)
#endif

/* ---- who asks ---------------------------------------------------------------------- */

struct emu_dim emu_thread_idx(void)
{
    return emu_me->thread_idx;
}

struct emu_dim emu_block_idx(void)
{
    return emu_me->block->idx;
}

struct emu_dim emu_grid_dim(void)
{
    return emu_me->block->grid;
}

uint32_t emu_lane(void)
{
    return emu_me->lane;
}

uint32_t emu_rank(void)
{
    return emu_me->block->rank;
}

unsigned char *emu_shared(void)
{
    return emu_me->block->smem;
}

unsigned char *emu_cluster_shared(uint32_t rank)
{
    return emu_cluster_block(rank)->smem;
}

/* ---- warp operations --------------------------------------------------------------- */

void emu_shfl_fn(void **arg, uint32_t mask)
{
    int i;

    for (i = 0; i < 32; i++) {
        struct emu_shfl *a = arg[i];

        if (!(mask >> i & 1))
            continue;
        if (!(mask >> a->from & 1))
            emu_fault("a shuffle from lane %u, which its mask %08x has not", a->from,
                      mask);
        a->out = ((struct emu_shfl *)arg[a->from])->in;
    }
}

void emu_ballot_fn(void **arg, uint32_t mask)
{
    uint32_t all = 0;
    int i;

    for (i = 0; i < 32; i++)
        if (mask >> i & 1)
            all |= ((struct emu_vote *)arg[i])->in << i;
    for (i = 0; i < 32; i++)
        if (mask >> i & 1)
            ((struct emu_vote *)arg[i])->out = all;
}

void emu_ldsm_fn(void **arg, uint32_t mask)
{
    int m, l, j;

    (void)mask;
    for (m = 0; m < 4; m++)
        for (l = 0; l < 32; l++) {
            struct emu_ldsm *me = arg[l];
            uint32_t v = 0;

            for (j = 0; j < 2; j++) {
                int r = me->trans ? 2 * (l % 4) + j : l / 4;
                int c = me->trans ? l / 4 : 2 * (l % 4) + j;
                const struct emu_ldsm *row = arg[8 * m + r];
                uint16_t h;

                memcpy(&h, (const char *)row->row + 2 * c, 2);
                v |= (uint32_t)h << 16 * j;
            }
            me->out[m] = v;
        }
}

/* ---- matrix products: exact products, f32 sums in four interleaved chains ---------- */

static void product(void **arg, const float *a, const float *b, int kk)
{
    int l, i, j, k;

    for (l = 0; l < 32; l++) {
        const struct emu_mma *m = arg[l];

        for (i = 0; i < 4; i++) {
            const float *x = a + (l / 4 + 8 * (i / 2)) * kk,
                        *y = b + (2 * (l % 4) + i % 2) * kk;
            float s[4] = {0, 0, 0, 0};

            for (k = 0; k < kk; k += 4)
                for (j = 0; j < 4; j++)
                    s[j] += x[k + j] * y[k + j];
            m->d[i] += (s[0] + s[2]) + (s[1] + s[3]);
        }
    }
}

static float of_bf16(uint32_t v, int j)
{
    return mc_f32_of_bits(j ? v & 0xffff0000 : v << 16);
}

static float of_f16(uint32_t v, int j)
{
    return mc_f32_of_f16((uint16_t)(v >> 16 * j));
}

static float of_e4m3(uint32_t v, int j)
{
    return mc_f32_of_e4m3((uint8_t)(v >> 8 * j));
}

/* kk columns, `one` of them a register. */
static inline __attribute__((always_inline)) void mma(void **arg, int kk, int one,
                                                      float (*value)(uint32_t, int))
{
    float a[16 * 32], b[8 * 32];
    int l, r, j;

    for (l = 0; l < 32; l++) {
        const struct emu_mma *m = arg[l];

        for (r = 0; r < 4; r++)
            for (j = 0; j < one; j++)
                a[(l / 4 + 8 * (r % 2)) * kk + one * (l % 4) + j + kk / 2 * (r / 2)] =
                    value(m->a[r], j);
        for (r = 0; r < 2; r++)
            for (j = 0; j < one; j++)
                b[l / 4 * kk + one * (l % 4) + j + kk / 2 * r] = value(m->b[r], j);
    }
    product(arg, a, b, kk);
}

void emu_mma_bf16_fn(void **arg, uint32_t mask)
{
    (void)mask;
    mma(arg, 16, 2, of_bf16);
}

void emu_mma_f16_fn(void **arg, uint32_t mask)
{
    (void)mask;
    mma(arg, 16, 2, of_f16);
}

void emu_mma_e4m3_fn(void **arg, uint32_t mask)
{
    (void)mask;
    mma(arg, 32, 4, of_e4m3);
}

/* ---- memory ------------------------------------------------------------------------ */

void emu_raw_copy(void *to, const void *from, size_t n)
{
    memcpy(to, from, n);
}

uint32_t emu_load_acquire(const uint32_t *p)
{
    uint32_t v;

    emu_yield(); /* whoever polls lets others run */
    v = __atomic_load_n(p, __ATOMIC_ACQUIRE);
    __tsan_acquire((void *)(uintptr_t)p);
    return v;
}

void emu_store_release(uint32_t *p, uint32_t v)
{
    __tsan_release(p);
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

void emu_load_pairs(void *to, const void *p, bool acquire)
{
    const uint64_t *at = p;
    uint64_t v[2];
    int first = (int)(emu_rnd() & 1);

    emu_touch(p, 16, false);
    emu_await();
    v[first] = __atomic_load_n(at + first, __ATOMIC_ACQUIRE);
    if (emu_rnd() % 8 == 0)
        emu_await();
    v[!first] = __atomic_load_n(at + !first, __ATOMIC_ACQUIRE);
    if (acquire)
        __tsan_acquire((void *)(uintptr_t)p);
    memcpy(to, v, sizeof v);
}

/* The second pair may be much younger than the first: now and then so much that another
 * rank's thread finds one without the other. */
void emu_store_pairs(void *p, const void *from, bool release)
{
    uint64_t *at = p, v[2];
    uint32_t late = emu_rnd() % 64;
    int first = (int)(emu_rnd() & 1);

    memcpy(v, from, sizeof v);
    emu_touch(p, 16, true);
    if (release)
        __tsan_release(p);
    __atomic_store_n(at + first, v[first], __ATOMIC_RELEASE);
    if (late == 0)
        usleep(50);
    else if (late < 8)
        emu_await();
    __atomic_store_n(at + !first, v[!first], __ATOMIC_RELEASE);
}

uint32_t emu_load_word(const uint32_t *p)
{
    emu_touch_atomic(p, sizeof *p);
    emu_await();
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

void emu_store_word(uint32_t *p, uint32_t v)
{
    emu_touch_atomic(p, sizeof *p);
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
}

uint32_t emu_add32(uint32_t *p, uint32_t v)
{
    emu_touch_atomic(p, sizeof *p);
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

uint64_t emu_add64(uint64_t *p, uint64_t v)
{
    emu_touch_atomic(p, sizeof *p);
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

uint32_t emu_or32(uint32_t *p, uint32_t v)
{
    emu_touch_atomic(p, sizeof *p);
    return __atomic_fetch_or(p, v, __ATOMIC_RELAXED);
}
