/* mla.cu - mla_prep, mla_q, mla_out: what lies around attention over latents.
 *
 * mla_prep: a block a row; shared memory f32 [16] of sums, then the latent [c + r] that
 * goes to the page. mla_q and mla_out: a batch of products, one head's matrix each (W_UK
 * [c,nope], W_UV [v,c], bf16 panels), for up to 64 rows: D[16 rows of W][8 tokens] as in
 * linear.cuh, whose sums these are. nope and c are short (128, 512), so the warps are
 * groups that take a panel each. A head's columns lie in rows of all heads: the
 * activation's pitch is the row's. nope that is no multiple of 32 (a small model's 48)
 * meets weights of zero in what follows it in q. Bound: W_UK and W_UV once, 1 MB a head
 * and layer pair at 512 and 128. */
#include "kernels/cuda/head.cuh"
#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/params.h"
#include "kernels/host/kv.h"

/* ---- mla_prep ---------------------------------------------------------------------- */

MC_DEV float mc_rms(float sum, int32_t n, float eps)
{
    return 1 / sqrtf(sum / static_cast<float>(n) + eps);
}

/* The query's latent, normed; 128 columns a warp at a time. */
MC_DEV void prep_query(const struct mc_mla_prep_p &p, int32_t t, float *sums)
{
    int32_t n = p.q_lora, l = 4 * mc_lane();
    const uint16_t *q = static_cast<const uint16_t *>(p.q_a) +
                        static_cast<int64_t>(t) * n;
    float sum = 0, r;

    for (int32_t c0 = 128 * mc_warp(); c0 + l < n; c0 += 128 * N_WARP) {
        mc_f4 x = mc_bf16_get4(q + c0 + l);

        for (int i = 0; i < 4; i++)
            sum += x.v[i] * x.v[i];
    }
    r = mc_rms(mc_block_sum(sum, sums, N_WARP), n, p.eps);
    for (int32_t c0 = 128 * mc_warp(); c0 < n; c0 += 128 * N_WARP) {
        mc_f4 y = {};

        if (c0 + l < n) {
            y = mc_bf16_get4(q + c0 + l);
            for (int i = 0; i < 4; i++)
                y.v[i] = y.v[i] * r * p.q_norm[c0 + l + i];
            if (p.norm_out)
                mc_bf16_put4(static_cast<uint16_t *>(p.norm_out) +
                                 static_cast<int64_t>(t) * n + c0 + l,
                             y);
        }
        if (p.act.x)
            mc_act_put(p.act, t, c0, y);
    }
}

/* The least power of two that is not below x > 0. */
MC_DEV float pow2_up(float x)
{
    uint32_t u = __float_as_uint(x);

    if (!isfinite(x) || (u & 0x7fffff) == 0)
        return x;
    return __uint_as_float((u & 0x7f800000) + 0x800000);
}

/* 128 values a warp under one scale, the key as bf16. */
MC_DEV void put_656(const struct mc_kv &kv, uint8_t *to, const float *x)
{
    float *scales = mc_mla_scales(&kv, to);
    uint16_t *key = mc_mla_key(&kv, to);

    for (int32_t b = mc_warp(); b * MC_SCALE_COLS < kv.c; b += N_WARP) {
        int32_t c0 = b * MC_SCALE_COLS;
        int32_t n = kv.c - c0 < MC_SCALE_COLS ? kv.c - c0 : MC_SCALE_COLS;
        float s = mc_head_amax(x + c0, n) / 448;

        s = pow2_up(s < 1e-4f ? 1e-4f : s);
        for (int32_t i = mc_lane(); i < n; i += WARP)
            to[c0 + i] = mc_e4m3_of_f32(x[c0 + i] / s);
        if (mc_lane() == 0)
            scales[b] = s;
    }
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < kv.r; i += N_WARP * WARP)
        key[i] = mc_bf16_of_f32(x[kv.c + i]);
}

MC_DEV void latent_put(const struct mc_kv &kv, int32_t layer, uint8_t *to, const float *x)
{
    float fixed = kv.k_scale ? kv.k_scale[layer] : 1;

    if (kv.layout == MC_KV_FP8_656) {
        put_656(kv, to, x);
        return;
    }
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < kv.c + kv.r;
         i += N_WARP * WARP)
        if (kv.layout == MC_KV_BF16)
            reinterpret_cast<uint16_t *>(to)[i] = mc_bf16_of_f32(x[i]);
        else
            to[i] = mc_e4m3_of_f32(kv.k_scale ? x[i] / fixed : x[i]);
}

MC_KERNEL(k_mla_prep, struct mc_mla_prep_p)
{
    const struct mc_kv &kv = p.kv;
    int32_t t = static_cast<int32_t>(blockIdx.x), me = static_cast<int32_t>(threadIdx.x);
    int32_t slot, pos;
    float *sums = mc_shared<float>(), *x = sums + 16, sum = 0, r;
    const uint16_t *a = static_cast<const uint16_t *>(p.kv_a) +
                        static_cast<int64_t>(t) * (kv.c + kv.r);

    if (t >= p.rows.live[MC_LIVE_ROWS])
        return;
    if (p.q_a)
        prep_query(p, t, sums);
    slot = p.rows.slot[p.rows.row_seq[t]];
    pos = p.rows.pos[t];
    if (p.slots[slot].bad || !mc_kv_mine(&kv, slot, pos))
        return;
    for (int32_t i = me; i < kv.c; i += N_WARP * WARP) {
        x[i] = mc_f32_of_bf16(a[i]);
        sum += x[i] * x[i];
    }
    r = mc_rms(mc_block_sum(sum, sums, N_WARP), kv.c, p.eps);
    for (int32_t i = me; i < kv.c; i += N_WARP * WARP) /* what it loaded itself */
        x[i] = x[i] * r * p.kv_norm[i];
    for (int32_t i = me; i < kv.r / 2; i += N_WARP * WARP) {
        int32_t ia = kv.c + mc_rope_a(p.rope, i), ib = kv.c + mc_rope_b(p.rope, i);
        float c, s, xa = mc_f32_of_bf16(a[ia]), xb = mc_f32_of_bf16(a[ib]);

        mc_rope_at(p.rope, pos, i, &c, &s);
        x[ia] = xa * c - xb * s;
        x[ib] = xb * c + xa * s;
    }
    __syncthreads();
    latent_put(kv, p.layer, mc_mla_at(&kv, mc_kv_page(&kv, p.layer, slot, pos), pos), x);
}

/* ---- a head's product -------------------------------------------------------------- */

/* Rows [t0, live) of x, which has a head's columns where it begins, times W; out(row, n,
 * y). blockIdx.x: as many panels as there are groups of warps. */
template <int NT, typename Out>
MC_DEV void head_block(const struct mc_w &w, const struct mc_act &x, int32_t t0,
                       int32_t live, Out out)
{
    int32_t of = mc_warps_of(w.k, MC_CU_TILE), first = mc_warp() / of * of;
    int32_t at = static_cast<int32_t>(blockIdx.x) * (N_WARP / of) + first / of;
    float acc[1][NT][4] = {};

    if (at * 16 < w.n) {
        panel a[1] = {mc_panel(w, at, MC_CU_TILE_BYTES(MC_W_BF16))};

        mc_sums<fmt_bf16, 1, NT>(acc, a, x, w.k, mc_warp() - first, of,
                                 [=](int m, int32_t i) {
                                     return t0 + 8 * m + i < live ? t0 + 8 * m + i : -1;
                                 });
    }
    mc_fold_warps<NT>(acc[0], first, of, [&](int32_t r, int32_t t, float y) {
        if (at * 16 + r < w.n && t0 + t < live)
            out(t0 + t, at * 16 + r, y);
    });
}

template <typename Out>
MC_DEV void head_product(const struct mc_w &w, const struct mc_act &x, int32_t t0,
                         int32_t live, Out out)
{
    if (live - t0 <= 8)
        head_block<1>(w, x, t0, live, out);
    else if (live - t0 <= 16)
        head_block<2>(w, x, t0, live, out);
    else if (live - t0 <= 32)
        head_block<4>(w, x, t0, live, out);
    else
        head_block<8>(w, x, t0, live, out);
}

/* ---- mla_q ------------------------------------------------------------------------- */

/* The end of a head's rows, rotated: a warp a row. Without W_UK the head's beginning goes
 * along; a long chunk's row stays where it is. */
MC_DEV void rotate(const struct mc_mla_q_p &p, int32_t head, int32_t t0, int32_t t1)
{
    int32_t r = p.rope.dim, n = p.nope + r;

    for (int32_t t = t0 + mc_warp(); t < t1; t += N_WARP) {
        int64_t at = static_cast<int64_t>(t) * p.h + head;
        uint16_t *q = static_cast<uint16_t *>(p.q) + at * n, *to = q;
        bool stays = mc_row_is_long(&p.rows, t, p.long_rows), absorbs = p.w_uk.n > 0;

        if (!stays)
            to = static_cast<uint16_t *>(p.out) + at * (absorbs ? p.c + r : n);
        for (int32_t i = mc_lane(); i < p.nope && !absorbs && to != q; i += WARP)
            to[i] = q[i];
        to += absorbs && !stays ? p.c : p.nope;
        for (int32_t i = mc_lane(); i < r / 2; i += WARP) {
            int32_t a = mc_rope_a(p.rope, i), b = mc_rope_b(p.rope, i);
            float c, s, xa = mc_f32_of_bf16(q[p.nope + a]),
                        xb = mc_f32_of_bf16(q[p.nope + b]);

            mc_rope_at(p.rope, p.rows.pos[t], i, &c, &s);
            to[a] = mc_bf16_of_f32(xa * c - xb * s);
            to[b] = mc_bf16_of_f32(xb * c + xa * s);
        }
    }
}

/* blockIdx.y: head, of chunks of 64 rows; x: panels, the last block rotates. */
MC_KERNEL(k_mla_q, struct mc_mla_q_p)
{
    int32_t head = static_cast<int32_t>(blockIdx.y) % p.h;
    int32_t t0 = static_cast<int32_t>(blockIdx.y) / p.h * MC_CU_CHUNK;
    int32_t live = p.rows.live[MC_LIVE_ROWS], n = p.nope + p.rope.dim;
    int64_t pitch = static_cast<int64_t>(p.h) * (p.c + p.rope.dim);
    uint16_t *out = static_cast<uint16_t *>(p.out) + head * (p.c + p.rope.dim);

    if (t0 >= live)
        return;
    if (blockIdx.x == gridDim.x - 1) {
        rotate(p, head, t0, live - t0 < MC_CU_CHUNK ? live : t0 + MC_CU_CHUNK);
        return;
    }
    head_product(mc_ws_at(&p.w_uk, head),
                 {static_cast<uint16_t *>(p.q) + head * n, nullptr, nullptr, p.h * n,
                  MC_A_BF16},
                 t0, live, [&](int32_t t, int32_t i, float y) {
                     if (!mc_row_is_long(&p.rows, t, p.long_rows))
                         out[t * pitch + i] = mc_bf16_of_f32(y);
                 });
}

/* ---- mla_out ----------------------------------------------------------------------- */

MC_KERNEL(k_mla_out, struct mc_mla_out_p)
{
    int32_t head = static_cast<int32_t>(blockIdx.y) % p.h;
    int32_t t0 = static_cast<int32_t>(blockIdx.y) / p.h * MC_CU_CHUNK;
    int32_t live = p.rows.live[MC_LIVE_ROWS];
    uint16_t *out = static_cast<uint16_t *>(p.act.x) + head * p.v;

    if (t0 >= live)
        return;
    head_product(mc_ws_at(&p.w_uv, head),
                 {const_cast<uint16_t *>(static_cast<const uint16_t *>(p.o_lat)) +
                      head * p.c,
                  nullptr, nullptr, p.h * p.c, MC_A_BF16},
                 t0, live, [&](int32_t t, int32_t i, float y) {
                     out[static_cast<int64_t>(t) * p.act.k + i] = mc_bf16_of_f32(y);
                 });
}
