/* prep.cu - gqa_prep: norms, rope, and the write of k and v into the page.
 *
 * A block a row; the angles are computed once, then each of 8 warps takes heads in turn:
 * the row's query heads, its key heads, its value heads. Everything is f32 between the
 * bf16 that comes in and the one rounding that goes out.
 * Shared memory: f32 cos, sin [dim/2] each, then [8 warps][d]. */
#include "kernels/cuda/head.cuh"
#include "kernels/host/kv.h"

enum { N_WARP = 8 };

/* One head's d values into the page; v: 0 for K, 1 for V. */
MC_DEV void kv_put(const struct mc_kv &kv, uint8_t *page, int v, int32_t g, int32_t pos,
                   const float *fixed, const float *x)
{
    void *to = mc_kv_at(&kv, page, v, g, pos);
    float scale;

    if (kv.layout == MC_KV_BF16) {
        for (int32_t i = mc_lane(); i < kv.d; i += WARP)
            static_cast<uint16_t *>(to)[i] = mc_bf16_of_f32(x[i]);
        return;
    }
    scale = fixed ? *fixed : mc_head_amax(x, kv.d) / 448;
    for (int32_t i = mc_lane(); i < kv.d; i += WARP)
        static_cast<uint8_t *>(to)[i] = scale == 0 ? 0 : mc_e4m3_of_f32(x[i] / scale);
    if (mc_lane() == 0)
        *mc_kv_scale(&kv, page, v, g, pos) = scale;
}

MC_KERNEL(k_gqa_prep, struct mc_gqa_prep_p)
{
    const struct mc_kv &kv = p.kv;
    int32_t t = static_cast<int32_t>(blockIdx.x), half = p.rope.dim / 2, slot, pos,
            d = kv.d;
    float *cs = mc_shared<float>(), *x = cs + 2 * half + mc_warp() * d;
    uint8_t *page = nullptr;

    if (t >= p.rows.live[MC_LIVE_ROWS])
        return;
    slot = p.rows.slot[p.rows.row_seq[t]];
    pos = p.rows.pos[t];
    mc_rope_table(cs, p.rope, pos, N_WARP * WARP);
    __syncthreads();
    if (!p.slots[slot].bad)
        page = mc_kv_page(&kv, p.layer, slot, pos);
    for (int32_t j = mc_warp(); j < p.h + 2 * kv.hk; j += N_WARP) {
        int32_t g = j < p.h ? j : (j - p.h) % kv.hk, v = j < p.h + kv.hk ? 0 : 1;
        uint16_t *row = static_cast<uint16_t *>(j < p.h ? p.q : v ? p.v : p.k) +
                        (static_cast<int64_t>(t) * (j < p.h ? p.h : kv.hk) + g) * d;
        const float *w = j < p.h ? p.q_norm : p.k_norm;
        const float *fixed = v ? kv.v_scale : kv.k_scale;

        if (j >= p.h && !page)
            break;
        __syncwarp(); /* the head before has been read */
        mc_head_load(x, row, d);
        if (w && !v)
            mc_head_norm(x, w, p.eps, d);
        if (!v)
            mc_head_rope(x, p.rope, cs);
        if (j >= p.h)
            kv_put(kv, page, v, g, pos, fixed ? fixed + p.layer : nullptr, x);
        else
            for (int32_t i = mc_lane(); i < d; i += WARP)
                row[i] = mc_bf16_of_f32(x[i]);
    }
}
