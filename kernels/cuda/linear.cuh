/* linear.cuh - products with a packed matrix for up to 64 rows at a time: linear, glu,
 * and the sums that moe.cuh and heads.cuh are made of.
 *
 * D[16 rows of W][8 tokens] = A (W) x B (tokens) by mma. A block of 8 warps takes one or
 * two panels, and its warps every eighth unit of columns; each warp's sums are folded in
 * the order of warps. So a result's sum runs in one order whatever the other rows are and
 * however many: that needs the split of K to depend on K alone. Codes are multiplied as
 * the exact integers or floats that they are, in bf16, and a tile's sum scaled in f32.
 * Weights are read once for 64 rows, past L1; activations come from L2. More than 64 rows
 * are chunks of 64 (blockIdx.y).
 *
 * Shared memory: f32 [8 warps][tokens][ROW], and for glu [tokens][16]. Owns nothing.
 * THREAD: device code. */
#ifndef MC_CUDA_LINEAR_CUH
#define MC_CUDA_LINEAR_CUH

#include "kernels/cuda/dev.cuh"
#include "kernels/cuda/layout.h"

enum { N_WARP = 8, ROW = 20 /* of 16: tokens of a lane's pair fall in other banks */ };

/* One panel of one matrix. */
struct panel {
    const uint8_t *q;
    const uint8_t *scale, *zero; /* of the panel */
    struct mc_cu_head head;
};

MC_DEV panel mc_panel(const struct mc_w &w, int32_t i, int32_t tile_bytes)
{
    panel p;

    p.head = *static_cast<const struct mc_cu_head *>(w.q);
    p.q = static_cast<const uint8_t *>(w.q) + MC_CU_HEAD +
          static_cast<int64_t>(i) * MC_CU_TILES(w.k) * tile_bytes;
    p.scale = static_cast<const uint8_t *>(w.scale);
    p.zero = static_cast<const uint8_t *>(w.zero);
    if (p.scale) { /* 16 rows a group; NVFP4's words of two tiles are 64 bytes of 64
                      columns */
        int32_t each = p.head.scale_dt == MC_F32 ? 4 : p.head.scale_dt == MC_BF16 ? 2 : 1;

        p.scale += static_cast<int64_t>(i) * p.head.n_group * 16 * each;
    }
    if (p.head.zeros)
        p.zero += static_cast<int64_t>(i) * p.head.n_group * 16;
    return p;
}

/* ---- formats: load a unit of columns, and a tile of it as two A operands ----------- */

struct ab {
    uint32_t a[2][4]; /* two k16 steps */
};

/* Scales of rows g and g+8 for the group that column c is in. */
struct pair {
    float lo, hi;
};

MC_DEV pair scales_at(const panel &p, int32_t c)
{
    int32_t at = c / p.head.group * 8 + mc_lane() / 4;

    if (p.head.scale_dt == MC_BF16) {
        uint32_t v = mc_ld4(p.scale + 4 * at);

        return {__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000)};
    }
    uint2 v = mc_ld8(p.scale + 8 * at);

    return {__uint_as_float(v.x), __uint_as_float(v.y)};
}

struct fmt_bf16 {
    static constexpr int LAYOUT = MC_W_BF16, TILES = 1, SCALED = 0, ACT_BYTES = 2;
    struct unit {
        uint4 s[2];
    };

    MC_DEV unit load(const panel &p, int32_t u)
    {
        const uint8_t *at = p.q + static_cast<int64_t>(u) * 1024 + 16 * mc_lane();

        return {{mc_ld16_once(at), mc_ld16_once(at + 512)}};
    }
    MC_DEV ab tile(const panel &, const unit &v, int32_t, int32_t)
    {
        return {{{v.s[0].x, v.s[0].y, v.s[0].z, v.s[0].w},
                 {v.s[1].x, v.s[1].y, v.s[1].z, v.s[1].w}}};
    }
    MC_DEV pair scale(const panel &, int32_t) { return {1, 1}; }
};

struct fmt_e4m3 {
    static constexpr int LAYOUT = MC_W_E4M3, TILES = 1, SCALED = 1, ACT_BYTES = 2;
    struct unit {
        uint4 s;
    };

    MC_DEV unit load(const panel &p, int32_t u)
    {
        return {mc_ld16_once(p.q + static_cast<int64_t>(u) * 512 + 16 * mc_lane())};
    }
    MC_DEV ab tile(const panel &, const unit &v, int32_t, int32_t)
    {
        uint2 a = mc_e4m3_bf16(v.s.x), b = mc_e4m3_bf16(v.s.y), c = mc_e4m3_bf16(v.s.z),
              d = mc_e4m3_bf16(v.s.w);

        return {{{a.x, b.x, a.y, b.y}, {c.x, d.x, c.y, d.y}}};
    }
    MC_DEV pair scale(const panel &p, int32_t c) { return scales_at(p, c); }
};

/* A unit of both 4-bit formats: two tiles, four words. */
struct unit4 {
    uint4 s;
};

MC_DEV unit4 mc_load4(const panel &p, int32_t u)
{
    return {mc_ld16_once(p.q + static_cast<int64_t>(u) * 512 + 16 * mc_lane())};
}

struct fmt_i4 {
    static constexpr int LAYOUT = MC_W_I4, TILES = 2, SCALED = 1, ACT_BYTES = 2;
    using unit = unit4;

    MC_DEV unit load(const panel &p, int32_t u) { return mc_load4(p, u); }
    /* A code under bf16's mantissa is 128 + code; minus 128 + zero is exact. */
    MC_DEV ab tile(const panel &p, const unit &v, int32_t i, int32_t c)
    {
        uint32_t w0 = i ? v.s.z : v.s.x, w1 = i ? v.s.w : v.s.y, z0 = 0xc308c308, z1 = z0;
        ab r;

        if (p.head.zeros) { /* -(128 + zero) for rows g and g+8 */
            const uint8_t *z = p.zero + 2 * (c / p.head.group * 8 + mc_lane() / 4);

            z0 = 0xc300c300 | z[0] * 0x10001u;
            z1 = 0xc300c300 | z[1] * 0x10001u;
        }
        for (int s = 0; s < 2; s++)
            for (int j = 0; j < 2; j++, w0 >>= 4, w1 >>= 4) {
                r.a[s][2 * j] = mc_fma_bf16x2((w0 & 0x000f000f) | 0x43004300, 0x3f803f80,
                                              z0);
                r.a[s][2 * j + 1] =
                    mc_fma_bf16x2((w1 & 0x000f000f) | 0x43004300, 0x3f803f80, z1);
            }
        return r;
    }
    MC_DEV pair scale(const panel &p, int32_t c) { return scales_at(p, c); }
};

struct fmt_nvfp4 {
    static constexpr int LAYOUT = MC_W_NVFP4, TILES = 2, SCALED = 1, ACT_BYTES = 2;
    using unit = unit4;

    MC_DEV unit load(const panel &p, int32_t u) { return mc_load4(p, u); }
    /* e2m1 under bf16's exponent is the value times 2^-126; the group's scale, times
     * 2^118 so that it fits, makes it value * scale * 2^-8: at most 6 bits, exact. */
    MC_DEV ab tile(const panel &p, const unit &v, int32_t i, int32_t c)
    {
        uint32_t w0 = i ? v.s.z : v.s.x, w1 = i ? v.s.w : v.s.y;
        uint32_t four = mc_ld4(p.scale + c / 64 * 64 +
                               4 * (mc_lane() / 4 * 2 + mc_lane() % 4 / 2));
        uint2 s = mc_e4m3_bf16(four); /* (g, g+8) of the first tile, of the second */
        uint32_t both = mc_fma_bf16x2(i ? s.y : s.x, 0x7a807a80, 0x80008000);
        uint32_t s0 = (both & 0xffff) * 0x10001u, s1 = (both >> 16) * 0x10001u;
        ab r;

        for (int k = 0; k < 2; k++)
            for (int j = 0; j < 2; j++, w0 >>= 4, w1 >>= 4) {
                uint32_t x0 = (w0 & 0x00080008) << 12 | (w0 & 0x00070007) << 6;
                uint32_t x1 = (w1 & 0x00080008) << 12 | (w1 & 0x00070007) << 6;

                r.a[k][2 * j] = mc_fma_bf16x2(x0, s0, 0x80008000);
                r.a[k][2 * j + 1] = mc_fma_bf16x2(x1, s1, 0x80008000);
            }
        return r;
    }
    MC_DEV pair scale(const panel &p, int32_t)
    {
        return {p.head.global * 256, p.head.global * 256};
    }
};

/* e4m3 weights and e4m3 activations: 8-bit products, scales of both. */
struct fmt_w8a8 {
    static constexpr int LAYOUT = MC_W_E4M3, TILES = 1, SCALED = 1, ACT_BYTES = 1;
    using unit = fmt_e4m3::unit;

    MC_DEV unit load(const panel &p, int32_t u) { return fmt_e4m3::load(p, u); }
    MC_DEV ab tile(const panel &, const unit &v, int32_t, int32_t)
    {
        return {{{v.s.x, v.s.y, v.s.z, v.s.w}, {0, 0, 0, 0}}};
    }
    MC_DEV pair scale(const panel &p, int32_t c) { return scales_at(p, c); }
};

/* ---- sums -------------------------------------------------------------------------- */

/* A lane's eight activations of a row and the tile columns c; zeros for no row. */
template <class F> MC_DEV uint4 mc_tokens(const struct mc_act &x, int32_t row, int32_t c)
{
    const uint8_t *at = static_cast<const uint8_t *>(x.x) +
                        (static_cast<int64_t>(row) * x.k + c + 8 * (mc_lane() % 4)) *
                            F::ACT_BYTES;

    if (row < 0)
        return {0, 0, 0, 0};
    if (F::ACT_BYTES == 1) {
        uint2 v = mc_ld8(at);

        return {v.x, v.y, 0, 0};
    }
    return mc_ld16(at);
}

/* A tile's product with eight tokens, onto acc; row0, row1: of the two whose sums a lane
 * holds. */
template <class F>
MC_DEV void mc_tile(float (&acc)[4], const ab &w, const uint4 &x, const pair &s,
                    const struct mc_act &act, int32_t row0, int32_t row1, int32_t c)
{
    if (!F::SCALED) {
        mc_mma_bf16(acc, w.a[0], {x.x, x.y});
        mc_mma_bf16(acc, w.a[1], {x.z, x.w});
        return;
    }
    float part[4] = {0, 0, 0, 0}, x0 = 1, x1 = 1;

    if (F::ACT_BYTES == 1) {
        int32_t pitch = (act.k + 127) / 128;

        mc_mma_e4m3(part, w.a[0], {x.x, x.y});
        x0 = row0 >= 0 ? act.s[static_cast<int64_t>(row0) * pitch + c / 128] : 0;
        x1 = row1 >= 0 ? act.s[static_cast<int64_t>(row1) * pitch + c / 128] : 0;
    } else {
        mc_mma_bf16(part, w.a[0], {x.x, x.y});
        mc_mma_bf16(part, w.a[1], {x.z, x.w});
    }
    acc[0] = fmaf(part[0], s.lo * x0, acc[0]);
    acc[1] = fmaf(part[1], s.lo * x1, acc[1]);
    acc[2] = fmaf(part[2], s.hi * x0, acc[2]);
    acc[3] = fmaf(part[3], s.hi * x1, acc[3]);
}

/* acc[panel][eight tokens][4] over a warp's part of `cols` columns: units at, at + of,
 * ... row(m, i): the activation's row that is token 8m + i, -1: none; i is the lane's g,
 * or (8-bit activations) the tokens of its sums. */
template <class F, int P, int NT, typename Row>
MC_DEV void mc_sums(float (&acc)[P][NT][4], const panel (&w)[P], const struct mc_act &x,
                    int32_t cols, int32_t at, int32_t of, Row row)
{
    /* Units in flight, as registers allow. */
    constexpr int AHEAD = F::TILES * P * NT >= 16 ? 1 : F::TILES * P > 1 ? 2 : 4;
    constexpr int UNIT = MC_CU_TILE * F::TILES;
    int32_t n = (cols + UNIT - 1) / UNIT, g = mc_lane() / 4, t = mc_lane() % 4 * 2;

    for (int32_t u0 = at; u0 < n; u0 += AHEAD * of) {
        typename F::unit v[AHEAD][P];

#pragma unroll
        for (int a = 0; a < AHEAD; a++)
#pragma unroll
            for (int i = 0; i < P; i++)
                if (u0 + a * of < n)
                    v[a][i] = F::load(w[i], u0 + a * of);
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            if (u0 + a * of >= n)
                break;
#pragma unroll 1
            for (int i = 0; i < F::TILES; i++) {
                int32_t c = ((u0 + a * of) * F::TILES + i) * MC_CU_TILE;
                ab q[P];
                pair s[P];

#pragma unroll
                for (int j = 0; j < P; j++) {
                    q[j] = F::tile(w[j], v[a][j], i, c);
                    s[j] = F::scale(w[j], c);
                }
#pragma unroll
                for (int m = 0; m < NT; m++) {
                    uint4 b = mc_tokens<F>(x, row(m, g), c);

#pragma unroll
                    for (int j = 0; j < P; j++)
                        mc_tile<F>(acc[j][m], q[j], b, s[j], x, row(m, t), row(m, t + 1),
                                   c);
                }
            }
        }
    }
}

/* Folds the sums of one panel over warps [first, first + n); out(row 0..15, token, sum)
 * by one thread of theirs each. All warps of the block come here. */
template <int NT, typename Out>
MC_DEV void mc_fold_warps(const float (&acc)[NT][4], int32_t first, int32_t n, Out out)
{
    float *buf = mc_shared<float>();
    int32_t g = mc_lane() / 4, t = mc_lane() % 4 * 2;
    float *mine = buf + mc_warp() * NT * 8 * ROW;

    __syncthreads(); /* the panel before has been read */
#pragma unroll
    for (int m = 0; m < NT; m++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            mine[(8 * m + t + i % 2) * ROW + g + i / 2 * 8] = acc[m][i];
    __syncthreads();
    for (int32_t i = static_cast<int32_t>(threadIdx.x) - first * WARP; i < NT * 8 * 16;
         i += n * WARP) {
        const float *at = buf + first * NT * 8 * ROW + i / 16 * ROW + i % 16;
        float sum = at[0];

        for (int32_t w = 1; w < n; w++)
            sum += at[w * NT * 8 * ROW];
        out(i % 16, i / 16, sum);
    }
}

/* Warps that share a panel when K is short: as many as have a unit of columns, so that
 * the sum's order is the one that all of them would give. */
MC_DEV int32_t mc_warps_of(int32_t k, int32_t unit)
{
    int32_t n = (k + unit - 1) / unit;

    return n > 4 ? 8 : n > 2 ? 4 : n;
}

/* The same of silu(first panel) * second, by all warps. */
template <int NT, typename Out>
MC_DEV void mc_fold_glu(const float (&acc)[2][NT][4], Out out)
{
    float *gate = mc_shared<float>() + N_WARP * NT * 8 * ROW;

    mc_fold_warps<NT>(acc[0], 0, N_WARP, [&](int32_t r, int32_t t, float y) {
        gate[t * 16 + r] = y / (1 + expf(-y)); /* until this very thread comes again */
    });
    mc_fold_warps<NT>(acc[1], 0, N_WARP, [&](int32_t r, int32_t t, float y) {
        out(r, t, y * gate[t * 16 + r]);
    });
}

/* ---- linear ------------------------------------------------------------------------ */

/* Which matrix and panel a block has: panels of all matrices in a row, P at a time. */
template <int P> MC_DEV int32_t mc_which(const struct mc_linear_p &p, int32_t &at)
{
    int32_t i = 0;

    at = static_cast<int32_t>(blockIdx.x);
    for (; at >= (p.w[i].n + 16 * P - 1) / (16 * P); i++)
        at -= (p.w[i].n + 16 * P - 1) / (16 * P);
    at *= P;
    return i;
}

template <class F, int P, int NT>
MC_DEV void mc_linear_block(const struct mc_linear_p &p, int32_t t0, int32_t live)
{
    int32_t at, i = mc_which<P>(p, at), n_panel = (p.w[i].n + 15) / 16;
    const struct mc_w &w = p.w[i];
    float acc[P][NT][4] = {};
    panel a[P];

#pragma unroll
    for (int j = 0; j < P; j++) /* an odd panel's partner is computed, not written */
        a[j] = mc_panel(w, at + j < n_panel ? at + j : at, MC_CU_TILE_BYTES(F::LAYOUT));
    mc_sums<F, P, NT>(acc, a, p.act, p.act.k, mc_warp(), N_WARP, [=](int m, int32_t i) {
        return t0 + 8 * m + i < live ? t0 + 8 * m + i : -1;
    });
#pragma unroll
    for (int j = 0; j < P; j++)
        mc_fold_warps<NT>(acc[j], 0, N_WARP, [&](int32_t r, int32_t t, float y) {
            int32_t n = (at + j) * 16 + r;
            int64_t to = static_cast<int64_t>(t0 + t) * p.pitch[i] + n;

            if (n >= w.n || t0 + t >= live)
                return;
            if (p.bias[i])
                y += p.bias[i][n];
            if (p.y_dt == MC_F32)
                static_cast<float *>(p.y[i])[to] = y;
            else
                static_cast<uint16_t *>(p.y[i])[to] = mc_bf16_of_f32(y);
        });
}

/* As many tokens as are live, in powers of two of eight. */
template <class F, int P> MC_DEV void mc_linear(const struct mc_linear_p &p)
{
    int32_t live = *p.n_live, t0 = static_cast<int32_t>(blockIdx.y) * MC_CU_CHUNK;

    if (t0 >= live)
        return;
    if (live - t0 <= 8)
        mc_linear_block<F, P, 1>(p, t0, live);
    else if (live - t0 <= 16)
        mc_linear_block<F, P, 2>(p, t0, live);
    else if (P > 1 && live - t0 <= 32)
        mc_linear_block<F, P, P == 1 ? 2 : 4>(p, t0, live);
    else if (P > 1)
        mc_linear_block<F, P, P == 1 ? 2 : 8>(p, t0, live);
}

/* ---- glu --------------------------------------------------------------------------- */

template <class F, int NT>
MC_DEV void mc_glu_block(const struct mc_glu_p &p, int32_t t0, int32_t live)
{
    int32_t at = static_cast<int32_t>(blockIdx.x);
    panel a[2] = {mc_panel(p.gate, at, MC_CU_TILE_BYTES(F::LAYOUT)),
                  mc_panel(p.up, at, MC_CU_TILE_BYTES(F::LAYOUT))};
    float acc[2][NT][4] = {};

    mc_sums<F, 2, NT>(acc, a, p.act, p.act.k, mc_warp(), N_WARP, [=](int m, int32_t i) {
        return t0 + 8 * m + i < live ? t0 + 8 * m + i : -1;
    });
    mc_fold_glu<NT>(acc, [&](int32_t r, int32_t t, float y) {
        int32_t n = at * 16 + r;
        int64_t to = static_cast<int64_t>(t0 + t) * p.out.k + n;

        if (n >= p.out.k || t0 + t >= live)
            return;
        if (p.out.layout == MC_A_BF16)
            static_cast<uint16_t *>(p.out.x)[to] = mc_bf16_of_f32(y);
        else /* its amax needs 128 columns: k_glu_quant makes it e4m3 */
            static_cast<float *>(p.scratch)[to] = y;
    });
}

/* FEW: for capacities up to 16, so that the registers of wider sums do not cost blocks.
 */
template <class F, bool FEW> MC_DEV void mc_glu(const struct mc_glu_p &p)
{
    int32_t live = *p.n_live, t0 = static_cast<int32_t>(blockIdx.y) * MC_CU_CHUNK;

    if (t0 >= live)
        return;
    if (live - t0 <= 8)
        mc_glu_block<F, 1>(p, t0, live);
    else if (FEW || live - t0 <= 16)
        mc_glu_block<F, 2>(p, t0, live);
    else if (live - t0 <= 32)
        mc_glu_block<F, FEW ? 2 : 4>(p, t0, live);
    else
        mc_glu_block<F, FEW ? 2 : 8>(p, t0, live);
}

#define MC_LINEARS(name, F)                         \
    MC_KERNEL(k_linear_##name, struct mc_linear_p)  \
    {                                               \
        mc_linear<F, 1>(p);                         \
    }                                               \
    MC_KERNEL(k_linear2_##name, struct mc_linear_p) \
    {                                               \
        mc_linear<F, 2>(p);                         \
    }                                               \
    MC_KERNEL(k_glu_##name, struct mc_glu_p)        \
    {                                               \
        mc_glu<F, true>(p);                         \
    }                                               \
    MC_KERNEL(k_glu2_##name, struct mc_glu_p)       \
    {                                               \
        mc_glu<F, false>(p);                        \
    }

#endif
