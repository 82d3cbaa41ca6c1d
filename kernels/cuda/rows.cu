/* rows.cu - embed, quant, gather_rows, mtp_in: whole rows, a block of 8 warps each, a warp
 * 128 columns at a time; tap: columns of any rows, a word a thread. */
#include "kernels/cuda/dev.cuh"
#include "kernels/cuda/layout.h"

enum { N_WARP = 8 };

/* ---- embed: a packed matrix's rows, decoded ---------------------------------------- */

/* Columns 8t..8t+7 of a tile of row `row`, as codes of the layout times their scale. */
struct eight {
    float v[8];
};

MC_DEV float scale_of(const struct mc_w &w, const struct mc_cu_head &h, int32_t row,
                      int32_t c)
{
    int64_t at = (static_cast<int64_t>(row / 16) * h.n_group + c / h.group) * 16 +
                 row % 8 * 2 + row % 16 / 8;

    if (h.scale_dt == MC_BF16)
        return mc_f32_of_bf16(static_cast<const uint16_t *>(w.scale)[at]);
    return static_cast<const float *>(w.scale)[at];
}

MC_DEV const uint8_t *tile_of(const struct mc_w &w, int32_t row, int32_t c, int32_t bytes)
{
    return static_cast<const uint8_t *>(w.q) + MC_CU_HEAD +
           (static_cast<int64_t>(row / 16) * MC_CU_TILES(w.k) + c / MC_CU_TILE) * bytes;
}

MC_DEV eight eight_bf16(const struct mc_w &w, int32_t row, int32_t c)
{
    const uint8_t *at = tile_of(w, row, c, 1024) +
                        16 * (row % 8 * 4 + c % MC_CU_TILE / 8) + row % 16 / 8 * 4;
    eight r;

    for (int i = 0; i < 4; i++) {
        uint32_t v = mc_ld4(at + i / 2 * 512 + i % 2 * 8);

        r.v[2 * i] = __uint_as_float(v << 16);
        r.v[2 * i + 1] = __uint_as_float(v & 0xffff0000);
    }
    return r;
}

MC_DEV eight eight_e4m3(const struct mc_w &w, const struct mc_cu_head &h, int32_t row,
                        int32_t c)
{
    const uint8_t *at = tile_of(w, row, c, 512) +
                        16 * (row % 8 * 4 + c % MC_CU_TILE / 8) + row % 16 / 8 * 4;
    float s = scale_of(w, h, row, c);
    eight r;

    for (int i = 0; i < 8; i++)
        r.v[i] = mc_f32_of_e4m3(
                     static_cast<uint8_t>(mc_ld4(at + i / 4 * 8) >> i % 4 * 8)) *
                 s;
    return r;
}

/* The word of eight 4-bit codes; column i is nibble i/2 of half i%2. */
MC_DEV uint32_t word4(const struct mc_w &w, int32_t row, int32_t c)
{
    return mc_ld4(tile_of(w, row, c / 64 * 64, 256) +
                  16 * (row % 8 * 4 + c % MC_CU_TILE / 8) + c % 64 / 32 * 8 +
                  row % 16 / 8 * 4);
}

MC_DEV eight eight_i4(const struct mc_w &w, const struct mc_cu_head &h, int32_t row,
                      int32_t c)
{
    uint32_t q = word4(w, row, c);
    float s = scale_of(w, h, row, c), zero = 8;
    eight r;

    if (h.zeros)
        zero = static_cast<const uint8_t *>(
            w.zero)[(static_cast<int64_t>(row / 16) * h.n_group + c / h.group) * 16 +
                    row % 8 * 2 + row % 16 / 8];
    for (int i = 0; i < 8; i++)
        r.v[i] = (static_cast<float>(q >> (i / 2 * 4 + i % 2 * 16) & 15) - zero) * s;
    return r;
}

MC_DEV eight eight_nvfp4(const struct mc_w &w, const struct mc_cu_head &h, int32_t row,
                         int32_t c)
{
    uint32_t q = word4(w, row, c);
    int64_t at = (static_cast<int64_t>(row / 16) * (w.k / 64) + c / 64) * 64 +
                 (row % 8 * 2 + c % MC_CU_TILE / 16) * 4 + c % 64 / 32 * 2 + row % 16 / 8;
    float s = mc_f32_of_e4m3(static_cast<const uint8_t *>(w.scale)[at]) * h.global;
    eight r;

    for (int i = 0; i < 8;
         i++) { /* e2m1 under bf16's exponent is the value times 2^-126 */
        uint32_t x = q >> (i / 2 * 4 + i % 2 * 16);

        r.v[i] = __uint_as_float((x & 8) << 28 | (x & 7) << 22) * 0x1p126f * s;
    }
    return r;
}

MC_KERNEL(k_embed, struct mc_embed_p)
{
    const struct mc_rows &r = p.rows;
    int32_t t = static_cast<int32_t>(blockIdx.x), tok, row;
    struct mc_cu_head h;

    if (t >= r.live[MC_LIVE_ROWS])
        return;
    tok = r.tok[t] >= 0 ? r.tok[t] : p.slots[r.slot[r.row_seq[t]]].tok;
    row = tok - p.row0;
    h = *static_cast<const struct mc_cu_head *>(p.w.q);
    for (int32_t c = 8 * static_cast<int32_t>(threadIdx.x); c < p.w.k;
         c += 8 * N_WARP * WARP) {
        eight e = {};

        if (row >= 0 && row < p.w.n)
            e = p.w.layout == MC_W_BF16   ? eight_bf16(p.w, row, c)
                : p.w.layout == MC_W_E4M3 ? eight_e4m3(p.w, h, row, c)
                : p.w.layout == MC_W_I4   ? eight_i4(p.w, h, row, c)
                                          : eight_nvfp4(p.w, h, row, c);
        mc_st16(static_cast<uint16_t *>(p.x) + static_cast<int64_t>(t) * p.w.k + c,
                {mc_bf16x2(e.v[0], e.v[1]), mc_bf16x2(e.v[2], e.v[3]),
                 mc_bf16x2(e.v[4], e.v[5]), mc_bf16x2(e.v[6], e.v[7])});
    }
}

/* ---- quant, gather_rows ------------------------------------------------------------ */

MC_KERNEL(k_quant, struct mc_quant_p)
{
    int32_t t = static_cast<int32_t>(blockIdx.x), k = p.act.k, l = 4 * mc_lane();
    const uint16_t *x = static_cast<const uint16_t *>(p.x) + static_cast<int64_t>(t) * k;

    if (t >= *p.n_live)
        return;
    for (int32_t c0 = 128 * mc_warp(); c0 < k; c0 += 128 * N_WARP)
        mc_act_put(p.act, t, c0, c0 + l < k ? mc_bf16_get4(x + c0 + l) : mc_f4{});
}

/* The products that glu left as f32. */
MC_KERNEL(k_glu_quant, struct mc_glu_p)
{
    int32_t t = static_cast<int32_t>(blockIdx.x), k = p.out.k, l = 4 * mc_lane();
    const float *x = static_cast<const float *>(p.scratch) + static_cast<int64_t>(t) * k;

    if (t >= *p.n_live)
        return;
    for (int32_t c0 = 128 * mc_warp(); c0 < k; c0 += 128 * N_WARP) {
        mc_f4 y = {};

        if (c0 + l < k) {
            uint4 u = mc_ld16(x + c0 + l);

            y = {{__uint_as_float(u.x), __uint_as_float(u.y), __uint_as_float(u.z),
                  __uint_as_float(u.w)}};
        }
        mc_act_put(p.out, t, c0, y);
    }
}

MC_KERNEL(k_gather_rows, struct mc_gather_rows_p)
{
    int32_t r = static_cast<int32_t>(blockIdx.x);

    if (r >= p.rows.live[MC_LIVE_OUT])
        return;
    for (int32_t c = 8 * static_cast<int32_t>(threadIdx.x); c < p.h; c += 8 * 128)
        mc_st16(static_cast<uint16_t *>(p.out) + static_cast<int64_t>(r) * p.h + c,
                mc_ld16(static_cast<const uint16_t *>(p.norm) +
                        static_cast<int64_t>(p.rows.out_row[r]) * p.h + c));
}

/* ---- mtp_in ------------------------------------------------------------------------ */

/* 1 / rms of a row of bf16 */
MC_DEV float row_rms(const uint16_t *x, int32_t n, float eps)
{
    float sum = 0;

    for (int32_t c = 4 * static_cast<int32_t>(threadIdx.x); c < n;
         c += 4 * N_WARP * WARP) {
        mc_f4 a = mc_bf16_get4(x + c);

        for (int i = 0; i < 4; i++)
            sum += a.v[i] * a.v[i];
    }
    sum = mc_block_sum(sum, mc_shared<float>(), N_WARP);
    return 1 / sqrtf(sum / static_cast<float>(n) + eps);
}

/* Two normed rows, one behind the other. */
MC_KERNEL(k_mtp_in, struct mc_mtp_in_p)
{
    int32_t t = static_cast<int32_t>(blockIdx.x), l = 4 * mc_lane();
    const uint16_t *x[2] = {
        static_cast<const uint16_t *>(p.emb) + static_cast<int64_t>(t) * p.h,
        static_cast<const uint16_t *>(p.hidden) + static_cast<int64_t>(t) * p.h};
    float r0, r1;

    if (t >= *p.n_live)
        return;
    r0 = row_rms(x[0], p.h, p.eps);
    r1 = row_rms(x[1], p.h, p.eps);
    for (int32_t c0 = 128 * mc_warp(); c0 < 2 * p.h; c0 += 128 * N_WARP) {
        bool second = c0 + l >= p.h;
        int32_t c = c0 + l - (second ? p.h : 0);
        const float *w = second ? p.hnorm : p.enorm;
        mc_f4 y = {};

        if (c < p.h) {
            y = mc_bf16_get4((second ? x[1] : x[0]) + c);
            for (int i = 0; i < 4; i++)
                y.v[i] = y.v[i] * (second ? r1 : r0) * w[c + i];
        }
        mc_act_put(p.act, t, c0, y);
    }
}

/* ---- tap --------------------------------------------------------------------------- */

/* A word of x += scale * add: a pair of bf16, or an f32. */
MC_DEV uint32_t steered(uint32_t x, uint32_t add, float scale, bool f32)
{
    if (f32)
        return __float_as_uint(__uint_as_float(x) + scale * __uint_as_float(add));
    return mc_bf16x2(__uint_as_float(x << 16) + scale * __uint_as_float(add << 16),
                     __uint_as_float(x & 0xffff0000) +
                         scale * __uint_as_float(add & 0xffff0000));
}

/* blockIdx.x: words of a row, 256 a block; y: the rows that leave it as remainder. So a
 * thread alone has its words, and the list's order is kept. */
MC_KERNEL(k_tap, struct mc_tap_p)
{
    bool f32 = p.layer == MC_TAP_LOGITS;
    int32_t n = p.peer.n > 1 ? p.peer.n : 1, words = f32 ? p.cols : p.cols / 2;
    int32_t w = static_cast<int32_t>(blockIdx.x * MC_T_k_tap + threadIdx.x);
    int32_t by = static_cast<int32_t>(gridDim.y), me = static_cast<int32_t>(blockIdx.y);

    if (w >= words)
        return;
    for (int32_t k = 0; k < p.taps->n; k++) {
        const struct mc_tap &t = p.taps->v[k];
        const void *other = p.copy ? t.out : t.add;

        if (t.layer != p.layer || !other)
            continue;
        for (int32_t r = t.row + (me - t.row % by + by) % by; r < t.row + t.n; r += by) {
            uint32_t *x = static_cast<uint32_t *>(p.x) +
                          static_cast<int64_t>(r / n) * words + w;

            if (n > 1 && r % n != p.peer.rank)
                continue;
            if (p.copy)
                mc_st4(static_cast<uint32_t *>(t.out) +
                           static_cast<int64_t>(r - t.row) * words + w,
                       mc_ld4(x));
            else
                mc_st4(x, steered(mc_ld4(x),
                                  mc_ld4(static_cast<const uint32_t *>(t.add) + w),
                                  t.scale, f32));
        }
    }
}
