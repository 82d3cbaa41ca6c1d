/* moe.cuh - the experts of a step: grouped products whose counts stay on the device.
 *
 * gate and up [E][I,H], down [E][H,I] are stacks of packed matrices; order lists a step's
 * places (row*top_k + place) by expert, offset where each expert's begin. blockIdx.y is a
 * piece of work: up to CHUNK places of one expert, found from offset by each warp for
 * itself, so that the grid comes from capacities and idle blocks end at once; blockIdx.x
 * is a panel of 16 rows of the matrix. Two launches, as mid is between them:
 *
 *   glu    8 warps, every eighth unit of H: gate's and up's panel, rows gathered through
 *          order; mid [places,I] in order's order
 *   down   I is short on a rank (256 of 2048 at 8 ranks): the 8 warps are groups of as
 *          many as have a unit of columns each, two panels a group; [place][H] f32
 *          to scratch, which k_moe_sum adds up in the places' order
 *
 * Sums are split over warps by K alone, and as linear's are: a row's bits are those that
 * glu and linear give it. Bound: the bytes of the experts that were chosen; scratch adds
 * 8 bytes a place and column, 3 % of int4 weights at 64 rows, which L2 keeps.
 * In flight, int4 at 2 blocks an SM: 32 KB (glu) and 16 KB (down, whose warps have a unit
 * of each panel only), where 4.8 TB/s times 0.7 us over 132 SMs ask for 25.
 * CHUNK is 16 for up to 64 rows: few experts have more, and those read their weights from
 * L2 again; 64 above that. Shared memory: as linear.cuh. Owns nothing. THREAD: device. */
#ifndef MC_CUDA_MOE_CUH
#define MC_CUDA_MOE_CUH

#include "kernels/cuda/linear.cuh"

/* Places [i0, i0+n) of order, all of expert e; -1: there is no such work. */
struct work {
    int32_t e, i0, n;
};

/* The y-th piece of at most `each` places; the same in every lane. */
MC_DEV work mc_work(const int32_t *offset, int32_t n_expert, int32_t each, int32_t y)
{
    for (int32_t e0 = 0; e0 < n_expert; e0 += WARP) {
        int32_t e = e0 + mc_lane(), lo = 0, hi = 0, n, upto, l;
        uint32_t hit;

        if (e < n_expert) {
            lo = offset[e];
            hi = offset[e + 1];
        }
        n = upto = (hi - lo + each - 1) / each;
        for (uint32_t by = 1; by < WARP; by *= 2) {
            int32_t v = __shfl_up_sync(FULL, upto, by);

            upto += mc_lane() >= static_cast<int32_t>(by) ? v : 0;
        }
        hit = __ballot_sync(FULL, y < upto);
        if (hit) {
            l = __popc(~hit & (hit - 1)); /* its lowest lane */
            lo = __shfl_sync(FULL, lo + (y - upto + n) * each, l);
            hi = __shfl_sync(FULL, hi, l);
            return {e0 + l, lo, hi - lo < each ? hi - lo : each};
        }
        y -= __shfl_sync(FULL, upto, WARP - 1);
    }
    return {-1, 0, 0};
}

/* ---- gate and up ------------------------------------------------------------------- */

template <class F, int NT> MC_DEV void mc_moe_glu_block(const struct mc_moe_p &p, work w)
{
    int32_t at = static_cast<int32_t>(blockIdx.x), g = mc_lane() / 4, row[NT];
    panel a[2] = {mc_panel(mc_ws_at(&p.gate, w.e), at, MC_CU_TILE_BYTES(F::LAYOUT)),
                  mc_panel(mc_ws_at(&p.up, w.e), at, MC_CU_TILE_BYTES(F::LAYOUT))};
    float acc[2][NT][4] = {};

#pragma unroll
    for (int m = 0; m < NT; m++)
        row[m] = 8 * m + g < w.n ? p.order[w.i0 + 8 * m + g] / p.top_k : -1;
    mc_sums<F, 2, NT>(acc, a, p.act, p.act.k, mc_warp(), N_WARP,
                      [&](int m, int32_t) { return row[m]; });
    mc_fold_glu<NT>(acc, [&](int32_t r, int32_t t, float y) {
        int32_t n = at * 16 + r;

        if (n < p.mid.k && t < w.n)
            static_cast<uint16_t *>(
                p.mid.x)[static_cast<int64_t>(w.i0 + t) * p.mid.k + n] =
                mc_bf16_of_f32(y);
    });
}

/* ---- down -------------------------------------------------------------------------- */

template <class F, int NT> MC_DEV void mc_moe_down_block(const struct mc_moe_p &p, work w)
{
    int32_t of = mc_warps_of(p.mid.k, MC_CU_TILE * F::TILES), first = mc_warp() / of * of;
    int32_t at = (static_cast<int32_t>(blockIdx.x) * (N_WARP / of) + first / of) * 2;
    int32_t h = p.down.w.n, n_panel = (h + 15) / 16, g = mc_lane() / 4;
    float acc[2][NT][4] = {};

    if (at < n_panel) {
        const struct mc_w down = mc_ws_at(&p.down, w.e);
        panel a[2] = {mc_panel(down, at, MC_CU_TILE_BYTES(F::LAYOUT)),
                      mc_panel(down, at + 1 < n_panel ? at + 1 : at,
                               MC_CU_TILE_BYTES(F::LAYOUT))};

        mc_sums<F, 2, NT>(acc, a, p.mid, p.mid.k, mc_warp() - first, of,
                          [&](int m, int32_t) {
                              return 8 * m + g < w.n ? w.i0 + 8 * m + g : -1;
                          });
    }
#pragma unroll
    for (int j = 0; j < 2; j++)
        mc_fold_warps<NT>(acc[j], first, of, [&](int32_t r, int32_t t, float y) {
            int32_t n = (at + j) * 16 + r;

            if (n < h && t < w.n)
                static_cast<float *>(
                    p.scratch)[static_cast<int64_t>(p.order[w.i0 + t]) * h + n] = y;
        });
}

/* ---- kernels ----------------------------------------------------------------------- */

#define MC_MOE_BLOCK(block, F, w)    \
    do {                             \
        if ((w).n <= 8)              \
            block<F, 1>(p, w);       \
        else if ((w).n <= 16)        \
            block<F, 2>(p, w);       \
        else if ((w).n <= 32)        \
            block<F, MANY ? 4 : 2>(p, w); \
        else                         \
            block<F, MANY ? 8 : 2>(p, w); \
    } while (0)

template <class F, bool MANY> MC_DEV void mc_moe_glu(const struct mc_moe_p &p)
{
    work w = mc_work(p.offset, p.gate.n, MANY ? MC_CU_CHUNK : MC_CU_FEW,
                     static_cast<int32_t>(blockIdx.y));

    if (w.e >= 0)
        MC_MOE_BLOCK(mc_moe_glu_block, F, w);
}

template <class F, bool MANY> MC_DEV void mc_moe_down(const struct mc_moe_p &p)
{
    work w = mc_work(p.offset, p.down.n, MANY ? MC_CU_CHUNK : MC_CU_FEW,
                     static_cast<int32_t>(blockIdx.y));

    if (w.e >= 0)
        MC_MOE_BLOCK(mc_moe_down_block, F, w);
}

#define MC_MOE(name, F)                           \
    MC_KERNEL(k_moe_glu_##name, struct mc_moe_p)  \
    {                                             \
        mc_moe_glu<F, false>(p);                  \
    }                                             \
    MC_KERNEL(k_moe_glu2_##name, struct mc_moe_p) \
    {                                             \
        mc_moe_glu<F, true>(p);                   \
    }                                             \
    MC_KERNEL(k_moe_down_##name, struct mc_moe_p) \
    {                                             \
        mc_moe_down<F, false>(p);                 \
    }                                             \
    MC_KERNEL(k_moe_down2_##name, struct mc_moe_p) \
    {                                             \
        mc_moe_down<F, true>(p);                  \
    }

#endif
