/* attn.cuh - gqa_attn: a block of 4 warps attends with up to 16 query rows at once, all
 * of one kv head: the query heads of a decode row, or of the few tokens of a prefill
 * tile.
 *
 * A split of 256 positions is four pages, one a warp. S = Q K^T and O = P V are mma with
 * Q and P as the 16-row operand. K goes from the page straight into registers, its
 * columns shared out among lanes as in layout.h; V through shared memory, 16 positions
 * ahead, and out of it transposed. Scores, probabilities and sums are f32; P is
 * multiplied in two bf16 halves, which keep 16 of its bits. A split's warps fold in
 * order, splits fold left to right: decode and prefill rows take the same way, so a row's
 * bits do not depend on which it was. A position that no row of the tile sees is not
 * read; one that some see and others don't is masked, so that a NaN in its V reaches the
 * rows of its tile.
 *
 * Shared memory: Q bf16 [16][QP]; for each warp V bf16 [2][16][VP], later its o f32
 * [16][OP]; ml f32 [4 warps][16][2] and the tile's running ml [16][2]; the rows' limits.
 * Owns nothing. THREAD: device code. */
#ifndef MC_CUDA_ATTN_CUH
#define MC_CUDA_ATTN_CUH

#include "kernels/cuda/dev.cuh"
#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/params.h"
#include "kernels/host/kv.h"

static constexpr int A_WARPS = 4, M = 16 /* rows of a tile */,
                     KT = 16 /* positions a stage */;

template <int D> struct shape {
    static constexpr int QP = (D + 31) / 64 * 64 + 32; /* 64 bytes off its neighbour's
                                                          banks */
    static constexpr int VP = D + 8, OP = D + 8;
    static constexpr int V_BYTES = 2 * KT * VP * 2; /* a warp's; M * OP * 4 is the same */
    static constexpr int Q_BYTES = M * QP * 2;

    static_assert(V_BYTES == M * OP * 4, "o takes V's place");
};

/* What a row of the tile is: positions [lo, hi] of its sequence; hi < lo: nothing. */
struct limits {
    int32_t lo[M], hi[M], row[M]; /* row: its index in q, t*h + head; -1: none */
};

template <int D> struct tile {
    uint16_t *q;
    unsigned char *v; /* this warp's */
    float *o;         /* of warp 0; others follow by V_BYTES */
    float *ml, *run;  /* [A_WARPS][M][2], [M][2] */
    limits *lim;
};

template <int D> MC_DEV tile<D> mc_tile_of()
{
    unsigned char *s = mc_shared<unsigned char>();
    tile<D> t;

    t.q = reinterpret_cast<uint16_t *>(s);
    s += shape<D>::Q_BYTES;
    t.v = s + mc_warp() * shape<D>::V_BYTES;
    t.o = reinterpret_cast<float *>(s);
    s += A_WARPS * shape<D>::V_BYTES;
    t.ml = reinterpret_cast<float *>(s);
    t.run = t.ml + A_WARPS * M * 2;
    t.lim = reinterpret_cast<limits *>(t.run + M * 2);
    return t;
}

/* ---- K and V in their layouts ------------------------------------------------------ */

struct kv_bf16 {
    static constexpr int BYTES = 2, SCALED = 0;

    MC_DEV uint4 eight(const uint8_t *at) { return mc_ld16(at); }
    MC_DEV uint2 four(const uint8_t *at) { return mc_ld8(at); }
    /* Stages 16 positions of V: copied while the stage before is multiplied. */
    template <int D>
    MC_DEV void stage(uint16_t *to, const uint8_t *v, int32_t lo, int32_t hi)
    {
        for (int32_t i = mc_lane(); i < KT * D / 8; i += WARP) {
            int32_t r = i / (D / 8), c = i % (D / 8) * 8;

            mc_cp_async16(to + r * shape<D>::VP + c, v + (r * D + c) * 2,
                          r >= lo && r <= hi ? 16 : 0);
        }
    }
};

struct kv_fp8 {
    static constexpr int BYTES = 1, SCALED = 1;

    MC_DEV uint4 widen(uint2 q)
    {
        uint2 a = mc_e4m3_bf16(q.x), b = mc_e4m3_bf16(q.y);

        return {a.x, a.y, b.x, b.y};
    }
    MC_DEV uint4 eight(const uint8_t *at) { return widen(mc_ld8(at)); }
    MC_DEV uint2 four(const uint8_t *at) { return mc_e4m3_bf16(mc_ld4(at)); }
    template <int D>
    MC_DEV void stage(uint16_t *to, const uint8_t *v, int32_t lo, int32_t hi)
    {
        for (int32_t i = mc_lane(); i < KT * D / 8; i += WARP) {
            int32_t r = i / (D / 8), c = i % (D / 8) * 8;
            uint4 x = {0, 0, 0, 0};

            if (r >= lo && r <= hi)
                x = widen(mc_ld8(v + r * D + c));
            mc_st16(to + r * shape<D>::VP + c, x);
        }
    }
};

/* ---- one page ---------------------------------------------------------------------- */

/* Scores of 64 positions: s[j][i] is row g + 8*(i/2), position 8j + 2t + i%2. Positions
 * outside [lo, hi] are not read. */
template <class KV, int D>
MC_DEV void mc_scores(float (&s)[8][4], const uint16_t *q, const uint8_t *k, int32_t lo,
                      int32_t hi)
{
    int32_t g = mc_lane() / 4, c = mc_lane() % 4 * 8;

#pragma unroll
    for (int dt = 0; dt < D / 32; dt++) {
        uint4 u = mc_ld16(q + g * shape<D>::QP + 32 * dt + c);
        uint4 v = mc_ld16(q + (g + 8) * shape<D>::QP + 32 * dt + c);

#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint4 x = {0, 0, 0, 0};

            if (8 * j + g >= lo && 8 * j + g <= hi)
                x = KV::eight(k + ((8 * j + g) * D + 32 * dt + c) * KV::BYTES);
            mc_mma_bf16(s[j], {u.x, v.x, u.y, v.y}, {x.x, x.y});
            mc_mma_bf16(s[j], {u.z, v.z, u.w, v.w}, {x.z, x.w});
        }
    }
    if (D % 32 == 16) { /* half a tile: four columns a lane */
        uint2 u = mc_ld8(q + g * shape<D>::QP + D - 16 + c / 2);
        uint2 v = mc_ld8(q + (g + 8) * shape<D>::QP + D - 16 + c / 2);

#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint2 x = {0, 0};

            if (8 * j + g >= lo && 8 * j + g <= hi)
                x = KV::four(k + ((8 * j + g) * D + D - 16 + c / 2) * KV::BYTES);
            mc_mma_bf16(s[j], {u.x, v.x, u.y, v.y}, {x.x, x.y});
        }
    }
}

/* s becomes probabilities under each row's own maximum; v scales multiplied in after the
 * sum. ml[2]: {max, sum} of rows g and g+8. */
template <class KV>
MC_DEV void mc_softmax(float (&s)[8][4], float (&ml)[2][2], const limits &lim,
                       int32_t base, float scale, const float *k_scale,
                       const float *v_scale)
{
    int32_t g = mc_lane() / 4, t = mc_lane() % 4 * 2;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        int32_t lo = lim.lo[g + 8 * half] - base, hi = lim.hi[g + 8 * half] - base;
        float max = -INFINITY, sum = 0;

#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int32_t at = 8 * j + t + i;
                float &x = s[j][2 * half + i];

                if (at < lo || at > hi) {
                    x = -INFINITY;
                    continue;
                }
                x *= KV::SCALED ? scale * k_scale[at] : scale;
                max = x > max ? x : max;
            }
        for (int by = 1; by < 4; by *= 2) {
            float y = __shfl_xor_sync(FULL, max, by);

            max = y > max ? y : max;
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int32_t at = 8 * j + t + i;
                float &x = s[j][2 * half + i];

                if (at < lo || at > hi) {
                    x = 0;
                    continue;
                }
                x = expf(x - max);
                sum += x;
                if (KV::SCALED)
                    x *= v_scale[at];
            }
        for (int by = 1; by < 4; by *= 2)
            sum += __shfl_xor_sync(FULL, sum, by);
        ml[half][0] = max;
        ml[half][1] = sum;
    }
}

/* Sixteen positions' part of o, from a stage: the page's probabilities 16kt.. */
template <int D>
MC_DEV void mc_values(float (&o)[D / 8][4], const float (&s0)[4], const float (&s1)[4],
                      const uint16_t *v)
{
    const float *p[4] = {s0, s0 + 2, s1, s1 + 2}; /* A: rows g, g+8; 8 positions on */
    int32_t l = mc_lane();
    uint32_t hi[4], lo[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        hi[i] = mc_bf16x2(p[i][0], p[i][1]);
        lo[i] = mc_bf16x2(p[i][0] - __uint_as_float(hi[i] << 16),
                          p[i][1] - __uint_as_float(hi[i] & 0xffff0000));
    }
#pragma unroll
    for (int n = 0; n < D / 16; n++) {
        uint32_t b[4];

        mc_ldsm4_t(b, v + (l / 8 % 2 * 8 + l % 8) * shape<D>::VP + n * 16 + l / 16 * 8);
        mc_mma_bf16(o[2 * n], hi, {b[0], b[1]});
        mc_mma_bf16(o[2 * n], lo, {b[0], b[1]});
        mc_mma_bf16(o[2 * n + 1], hi, {b[2], b[3]});
        mc_mma_bf16(o[2 * n + 1], lo, {b[2], b[3]});
    }
}

/* One warp: the page at `base`; leaves {max, sum} and o of all 16 rows in shared memory.
 * lo, hi: what any row sees. */
template <class KV, int D>
MC_DEV void mc_page(const struct mc_kv &kv, const tile<D> &t, const uint8_t *page,
                    int32_t g_kv, int32_t base, float scale, int32_t lo, int32_t hi)
{
    int64_t plane = static_cast<int64_t>(kv.hk) * MC_PAGE;
    const uint8_t *k = page + g_kv * MC_PAGE * D * KV::BYTES,
                  *v = k + plane * D * KV::BYTES;
    const float *ks = reinterpret_cast<const float *>(page + 2 * plane * D * KV::BYTES) +
                      g_kv * MC_PAGE;
    uint16_t *stage = reinterpret_cast<uint16_t *>(t.v);
    float *o = reinterpret_cast<float *>(t.v), *ml = t.ml + mc_warp() * M * 2;
    float s[8][4] = {}, acc[D / 8][4] = {}, top[2][2];
    int32_t g = mc_lane() / 4, c = mc_lane() % 4 * 2;

    KV::template stage<D>(stage, v, lo, hi);
    mc_cp_commit();
    mc_scores<KV, D>(s, t.q, k, lo, hi);
    mc_softmax<KV>(s, top, *t.lim, base, scale, ks, ks + plane);
#pragma unroll
    for (int kt = 0; kt < MC_PAGE / KT; kt++) {
        if (kt + 1 < MC_PAGE / KT)
            KV::template stage<D>(stage + (kt + 1) % 2 * KT * shape<D>::VP,
                                  v + (kt + 1) * KT * D * KV::BYTES, lo - (kt + 1) * KT,
                                  hi - (kt + 1) * KT);
        mc_cp_commit();
        mc_cp_wait<1>();
        __syncwarp();
        mc_values<D>(acc, s[2 * kt], s[2 * kt + 1], stage + kt % 2 * KT * shape<D>::VP);
        __syncwarp();
    }
    mc_cp_wait<0>();
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            o[(g + i / 2 * 8) * shape<D>::OP + 8 * n + c + i % 2] = acc[n][i];
    if (c == 0)
        for (int i = 0; i < 4; i++)
            ml[(g + i / 2 * 8) * 2 + i % 2] = top[i / 2][i % 2];
}

/* ---- a split, and folding ---------------------------------------------------------- */

/* The split at `base`, of the sequence in slot: pages to warps, then the warps' parts
 * fold onto the part that is there (first: onto nothing) in o and ml of global memory.
 * `only`: the split is all there is (decode); else it joins those before it. */
template <class KV, int D>
MC_DEV void mc_split(const mc_cu_gqa_attn &p, const tile<D> &t, int32_t slot,
                     int32_t g_kv, int32_t base, bool only)
{
    const struct mc_kv &kv = p.p.kv;
    int32_t at = base + mc_warp() * MC_PAGE, lo = INT32_MAX, hi = -1, l = mc_lane();
    int32_t me = static_cast<int32_t>(threadIdx.x);

    for (int r = 0; r < M; r++) {
        lo = t.lim->lo[r] < lo && t.lim->hi[r] >= t.lim->lo[r] ? t.lim->lo[r] : lo;
        hi = t.lim->hi[r] > hi ? t.lim->hi[r] : hi;
    }
    lo -= at;
    hi -= at;
    if (hi >= 0 && lo < MC_PAGE) {
        mc_page<KV, D>(kv, t, mc_kv_page(&kv, p.p.layer, slot, at), g_kv, at, p.p.scale,
                       lo, hi);
    } else if (l < M) {
        t.ml[(mc_warp() * M + l) * 2] = -INFINITY;
        t.ml[(mc_warp() * M + l) * 2 + 1] = 0;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < M * D / (A_WARPS * WARP); i++) {
        int32_t e = i * A_WARPS * WARP + me, r = e / D, c = e % D;
        float m = t.ml[2 * r], sum = t.ml[2 * r + 1], o = 0;
        int32_t q = t.lim->row[r];
        int64_t part;

        if (q < 0)
            continue;
        part = mc_part_row(q / p.p.h, p.p.cap_decode, p.p.n_part) +
               (only ? base / MC_SPLIT : 0);
        part = part * p.p.h + q % p.p.h;
        if (sum != 0)
            o = t.o[r * shape<D>::OP + c];
        for (int w = 1; w < A_WARPS; w++) {
            const float *ml = t.ml + (w * M + r) * 2;
            fold f = mc_fold_of(m, sum, ml[0], ml[1]);

            if (ml[1] != 0)
                o = o * f.a +
                    t.o[w * (shape<D>::V_BYTES / 4) + r * shape<D>::OP + c] * f.b;
            m = f.m;
            sum = f.l;
        }
        if (!only) {
            fold f = mc_fold_of(t.run[2 * r], t.run[2 * r + 1], m, sum);

            if (t.run[2 * r + 1] != 0)
                o = p.p.o[part * D + c] * f.a + o * f.b;
            m = f.m;
            sum = f.l;
        }
        if (sum != 0)
            p.p.o[part * D + c] = o;
        if (c == 0) {
            p.p.ml[2 * part] = m;
            p.p.ml[2 * part + 1] = sum;
        }
    }
    __syncthreads();
    if (!only && me < M) { /* what the next split folds onto */
        float m = t.run[2 * me], sum = t.run[2 * me + 1], pm = t.ml[2 * me];
        float ps = t.ml[2 * me + 1];

        for (int w = 1; w < A_WARPS; w++) {
            fold f = mc_fold_of(pm, ps, t.ml[(w * M + me) * 2],
                                t.ml[(w * M + me) * 2 + 1]);

            pm = f.m;
            ps = f.l;
        }
        fold f = mc_fold_of(m, sum, pm, ps);

        t.run[2 * me] = f.m;
        t.run[2 * me + 1] = f.l;
    }
    __syncthreads();
}

/* ---- tiles ------------------------------------------------------------------------- */

/* Row r of the tile: token t0 + r/group of the batch, query head of the group. Rows whose
 * sequence is not s, that are bad or beyond the last see nothing. */
template <int D>
MC_DEV void mc_rows_of(const mc_cu_gqa_attn &p, const tile<D> &t, int32_t t0, int32_t t1,
                       int32_t head0, int32_t heads, int32_t s)
{
    const struct mc_rows &rows = p.p.rows;
    int32_t me = static_cast<int32_t>(threadIdx.x);

    __syncthreads();
    if (me < M) {
        int32_t tok = t0 + me / heads, pos;

        t.lim->row[me] = -1;
        t.lim->lo[me] = 0;
        t.lim->hi[me] = -1;
        t.run[2 * me] = -INFINITY;
        t.run[2 * me + 1] = 0;
        if (tok < t1 && me / heads * heads + heads <= M && rows.row_seq[tok] == s) {
            pos = rows.pos[tok];
            t.lim->row[me] = tok * p.p.h + head0 + me % heads;
            if (!p.p.slots[rows.slot[s]].bad) {
                t.lim->hi[me] = pos;
                t.lim->lo[me] = p.p.window > 0 && pos >= p.p.window ? pos - p.p.window + 1
                                                                    : 0;
            }
        }
    }
    __syncthreads();
    for (int32_t i = me; i < M * D / 8; i += A_WARPS * WARP) {
        int32_t r = i / (D / 8), c = i % (D / 8) * 8;
        uint4 x = {0, 0, 0, 0};

        if (t.lim->row[r] >= 0)
            x = mc_ld16(static_cast<const uint16_t *>(p.p.q) +
                        static_cast<int64_t>(t.lim->row[r]) * D + c);
        mc_st16(t.q + r * shape<D>::QP + c, x);
    }
    __syncthreads();
}

/* blockIdx.x: decode rows' splits, then prefill tiles; y: kv heads, times groups of 16
 * query heads when there are more. */
template <class KV, int D> MC_DEV void mc_attn(const mc_cu_gqa_attn &p)
{
    const struct mc_rows &rows = p.p.rows;
    tile<D> t = mc_tile_of<D>();
    int32_t n_dec = rows.live[MC_LIVE_DECODE], n_rows = rows.live[MC_LIVE_ROWS];
    int32_t subs = (p.group + M - 1) / M, g_kv = static_cast<int32_t>(blockIdx.y) / subs;
    int32_t sub = static_cast<int32_t>(blockIdx.y) % subs * M;
    int32_t heads = p.group - sub < M ? p.group - sub : M, head0 = g_kv * p.group + sub;
    int32_t b = static_cast<int32_t>(blockIdx.x), n = p.p.n_part * p.p.cap_decode, t0, t1,
            s;
    if (b < n) {
        t0 = b / p.p.n_part;
        b %= p.p.n_part;
        if (t0 >= n_dec || b > rows.pos[t0] / MC_SPLIT)
            return;
        s = rows.row_seq[t0];
        mc_rows_of<D>(p, t, t0, t0 + 1, head0, heads, s);
        mc_split<KV, D>(p, t, rows.slot[s], g_kv, b * MC_SPLIT, true);
        return;
    }
    t0 = n_dec + (b - n) * p.n_tok;
    t1 = t0 + p.n_tok < n_rows ? t0 + p.n_tok : n_rows;
    for (int32_t i = t0; i < t1; i++) {
        s = rows.row_seq[i];
        if (i > t0 && rows.row_seq[i - 1] == s)
            continue; /* a sequence's rows are together */
        int32_t last = -1;

        for (int32_t j = i; j < t1 && rows.row_seq[j] == s; j++)
            last = rows.pos[j] > last ? rows.pos[j] : last;
        mc_rows_of<D>(p, t, t0, t1, head0, heads, s);
        for (int32_t base = 0; base <= last; base += MC_SPLIT)
            mc_split<KV, D>(p, t, rows.slot[s], g_kv, base, false);
    }
}

#define MC_ATTN(kv, D)                               \
    MC_KERNEL(k_gqa_attn_##kv##_##D, mc_cu_gqa_attn) \
    {                                                \
        mc_attn<kv_##kv, D>(p);                      \
    }

#endif
