/* mla_attn.cuh - attention over latents that all heads share: a block of 8 warps for up
 * to 16 query rows (the heads of a token, or of a few tokens of a prefill tile) and one
 * split of 256 positions, 32 at a time.
 *
 * Shapes: q [T,h,C+R] bf16, a token of a page C+R values in one of three layouts (kv.h;
 * the 656 bytes of C 512, R 64 are FlashMLA's), o [parts][h][C] f32. Tile plan, per 32
 * positions:
 *
 *   copy     a warp's four tokens by cp.async, through the page table (and the row's list
 *            when it has one): the next tile comes in while this one is worked on
 *   unpack   e4m3 becomes bf16 once, for key and value alike; a 656 token's scales are
 *            powers of two, so that the product is exact
 *   scores   S[16][32] = Q K^T: a warp has 8 positions and half of the columns
 *   softmax  16 threads a row; the row's maximum runs over the split's tiles; P is kept
 * in two bf16 halves, which are 16 of its bits values   O[16][C] += P V: a warp has C/8
 * columns, in registers for the whole split
 *
 * Bound, H200 at C 512, R 64, 8 heads: an SM's share of DRAM is 20.7 bytes a cycle, so
 * 1014 cycles a tile of fp8-656; 400 mma.sync (at 0.6 a cycle 670) and about 3,000 other
 * warp instructions (750) fit under it: memory-bound. A tile of 21 KB in flight for each
 * of two blocks an SM, where 4.8 TB/s times 0.7 us ask for 25 KB. Nothing else is read
 * but q and the table; o is 16 KB a split, a tenth of what the split reads.
 *
 * A position that no row of the block sees is not read but zero; one that some see and
 * others don't is masked. Prefill tiles fold their splits, in o itself, by the arithmetic
 * of attn_merge: a row's bits do not depend on which kind of row it was.
 * Owns nothing. THREAD: device code. */
#ifndef MC_CUDA_MLA_ATTN_CUH
#define MC_CUDA_MLA_ATTN_CUH

#include "kernels/cuda/dev.cuh"
#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/params.h"

static constexpr int L_WARPS = 8, L_THREADS = L_WARPS * WARP, M = 16 /* rows of a tile */,
                     KT = 32 /* positions of a tile */, SP = KT + 4, PP = KT + 8;

template <int C_, int R_, int LAYOUT_> struct latent {
    static constexpr int C = C_, R = R_, LAYOUT = LAYOUT_, D = C + R;
    static constexpr int P = D + 8; /* of a row of bf16: 4 banks off its neighbour */
    static constexpr int BYTES = LAYOUT == MC_KV_BF16        ? 2 * D
                                 : LAYOUT == MC_KV_FP8_PLAIN ? D
                                                             : C + C / 128 * 4 + 2 * R;
    static constexpr int RAW = LAYOUT == MC_KV_BF16 ? P * 2 : (BYTES + 15) / 16 * 16;
    static constexpr int PACKED = LAYOUT != MC_KV_BF16; /* copied raw, then unpacked */
    static constexpr int CW = C / L_WARPS;              /* columns of o a warp has */

    static_assert(C % 128 == 0 && D % 32 == 0);
};

/* What a row of the tile is: entries [lo, hi] of its list; hi < lo: nothing. */
struct limits {
    int32_t lo[M], hi[M], row[M]; /* row: its index in q, t*h + head; -1: none */
};

template <class L> struct tile {
    uint16_t *q, *k;     /* [M][P]; [KT][P], bf16 pages: two of them */
    unsigned char *raw;  /* [2][KT][RAW], or k */
    float *s;            /* [2][M][SP] scores over half of the columns each */
    uint16_t *p;         /* [2][M][PP] high halves, low halves */
    float *factor;       /* [M] on what was summed before this tile */
    float *ml;           /* [M][2] of the split */
    int32_t *count;      /* [8] */
    limits *lim;
};

template <class L> MC_DEV tile<L> mc_tile_of()
{
    unsigned char *s = mc_shared<unsigned char>();
    tile<L> t;

    t.q = reinterpret_cast<uint16_t *>(s);
    s += M * L::P * 2;
    t.k = reinterpret_cast<uint16_t *>(s);
    s += KT * L::P * 2;
    t.raw = L::PACKED ? s : reinterpret_cast<unsigned char *>(t.k);
    s += L::PACKED ? 2 * KT * L::RAW : KT * L::P * 2;
    t.s = reinterpret_cast<float *>(s);
    s += 2 * M * SP * 4;
    t.p = reinterpret_cast<uint16_t *>(s);
    s += 2 * M * PP * 2;
    t.factor = reinterpret_cast<float *>(s);
    t.ml = t.factor + M;
    t.count = reinterpret_cast<int32_t *>(t.ml + 2 * M);
    t.lim = reinterpret_cast<limits *>(t.count + L_WARPS);
    return t;
}

/* Whose tokens are read. */
struct where {
    const int32_t *list; /* positions, or NULL: an entry is its position */
    int32_t slot, lo, hi; /* entries that any row sees */
};

/* ---- a tile of positions ----------------------------------------------------------- */

template <class L>
MC_DEV const uint8_t *mc_token(const struct mc_mla_attn_p &p, int32_t slot, int32_t pos)
{
    int64_t page = p.kv.table[static_cast<int64_t>(slot) * p.kv.pitch + pos / MC_PAGE];

    return p.kv.base + page * p.kv.page_stride + p.layer * p.kv.layer_stride +
           pos % MC_PAGE * L::BYTES;
}

/* Entries e0..e0+31 to stage `to`; zeros for those that nobody sees. */
template <class L>
MC_DEV void mc_fetch(const struct mc_mla_attn_p &p, const where &w, int32_t e0,
                     unsigned char *to)
{
    constexpr int UNIT = L::BYTES % 16 == 0 ? 16 : 4;

#pragma unroll
    for (int j = 0; j < KT / L_WARPS; j++) {
        int32_t r = mc_warp() * (KT / L_WARPS) + j, e = e0 + r;
        bool seen = e >= w.lo && e <= w.hi;
        const uint8_t *from = p.kv.base;

        if (seen)
            from = mc_token<L>(p, w.slot, w.list ? w.list[e] : e);
        for (int32_t i = UNIT * mc_lane(); i < L::BYTES; i += UNIT * WARP)
            if constexpr (UNIT == 16)
                mc_cp_async16(to + r * L::RAW + i, seen ? from + i : from, seen ? 16 : 0);
            else
                mc_st4(to + r * L::RAW + i, seen ? mc_ld4(from + i) : 0);
    }
}

/* Eight e4m3 codes as bf16, times a power of two as a pair of bf16. */
MC_DEV uint4 mc_widen(uint2 q, uint32_t scale)
{
    uint2 a = mc_e4m3_bf16(q.x), b = mc_e4m3_bf16(q.y);

    return {mc_fma_bf16x2(a.x, scale, 0x80008000), mc_fma_bf16x2(a.y, scale, 0x80008000),
            mc_fma_bf16x2(b.x, scale, 0x80008000), mc_fma_bf16x2(b.y, scale, 0x80008000)};
}

/* A warp's four tokens become rows of bf16. */
template <class L> MC_DEV void mc_unpack(uint16_t *k, const unsigned char *raw)
{
    constexpr int CODES = L::LAYOUT == MC_KV_FP8_PLAIN ? L::D : L::C, EIGHTS = CODES / 8;
    int32_t r0 = mc_warp() * (KT / L_WARPS);

    for (int32_t i = mc_lane(); i < KT / L_WARPS * EIGHTS; i += WARP) {
        int32_t r = r0 + i / EIGHTS, c = i % EIGHTS * 8;
        uint2 q = mc_ld8(raw + r * L::RAW + c);

        if constexpr (L::LAYOUT == MC_KV_FP8_656) {
            uint32_t s = mc_ld4(raw + r * L::RAW + L::C + c / 128 * 4) >> 16;

            mc_st16(k + r * L::P + c, mc_widen(q, s * 0x10001u));
        } else {
            uint2 a = mc_e4m3_bf16(q.x), b = mc_e4m3_bf16(q.y);

            mc_st16(k + r * L::P + c, {a.x, a.y, b.x, b.y});
        }
    }
    if constexpr (L::LAYOUT == MC_KV_FP8_656) /* the key is bf16 already */
        for (int32_t i = mc_lane(); i < KT / L_WARPS * (L::R / 2); i += WARP) {
            int32_t r = r0 + i / (L::R / 2), c = i % (L::R / 2) * 2;

            mc_st4(k + r * L::P + L::C + c,
                   mc_ld4(raw + r * L::RAW + L::C + L::C / 128 * 4 + 2 * c));
        }
}

/* Eight positions and half of the columns a warp. */
template <class L>
MC_DEV void mc_scores(const tile<L> &t, const uint16_t *k)
{
    constexpr int N = L::D / 32, HALF = (N + 1) / 2;
    int32_t l = mc_lane(), at = mc_warp() % 4 * 8, half = mc_warp() / 4;
    const uint16_t *q = t.q + (l % 8 + l / 8 % 2 * 8) * L::P + l / 16 * 8;
    const uint16_t *kp = k + (at + l % 8) * L::P + l / 8 * 8;
    float acc[2][4] = {}, *s = t.s + half * M * SP + l / 4 * SP + at + l % 4 * 2;

#pragma unroll 3
    for (int32_t i = half * HALF; i < (half ? N : HALF); i++) {
        uint32_t a[4], b[4], c[4];

        mc_ldsm4(b, kp + 32 * i);
        mc_ldsm4(a, q + 32 * i);
        mc_ldsm4(c, q + 32 * i + 16);
        mc_mma_bf16(acc[0], a, {b[0], b[1]});
        mc_mma_bf16(acc[1], c, {b[2], b[3]});
    }
    for (int i = 0; i < 4; i++)
        s[i / 2 * 8 * SP + i % 2] = acc[0][i] + acc[1][i];
}

/* The running {max, sum} of row threadIdx.x/16, in each of its 16 threads. */
struct running {
    float m, l;
};

template <class L>
MC_DEV void mc_softmax(const tile<L> &t, running &run, int32_t e0, float scale)
{
    int32_t me = static_cast<int32_t>(threadIdx.x), r = me / 16, c = me % 16 * 2;
    int32_t lo = t.lim->lo[r] - e0, hi = t.lim->hi[r] - e0;
    float x[2], max = run.m, sum = 0, factor;
    uint32_t high, low;

    for (int i = 0; i < 2; i++) {
        x[i] = (t.s[r * SP + c + i] + t.s[(M + r) * SP + c + i]) * scale;
        if (c + i >= lo && c + i <= hi)
            max = x[i] > max ? x[i] : max;
    }
    for (int by = 1; by < 16; by *= 2) {
        float y = __shfl_xor_sync(FULL, max, by);

        max = y > max ? y : max;
    }
    for (int i = 0; i < 2; i++) {
        x[i] = c + i >= lo && c + i <= hi ? expf(x[i] - max) : 0;
        sum += x[i];
    }
    for (int by = 1; by < 16; by *= 2)
        sum += __shfl_xor_sync(FULL, sum, by);
    high = mc_bf16x2(x[0], x[1]);
    low = mc_bf16x2(x[0] - __uint_as_float(high << 16),
                    x[1] - __uint_as_float(high & 0xffff0000));
    mc_st4(t.p + r * PP + c, high);
    mc_st4(t.p + (M + r) * PP + c, low);
    factor = run.l == 0 ? 1 : expf(run.m - max); /* 1: nothing was summed yet */
    run.l = run.l * factor + sum;
    run.m = max;
    if (c == 0)
        t.factor[r] = factor;
}

/* o of a warp's columns: acc[n][i] is row g + 8*(i/2), column 8n + 2t + i%2 of them. */
template <class L>
MC_DEV void mc_values(const tile<L> &t, const uint16_t *k, float (&acc)[L::CW / 8][4])
{
    int32_t l = mc_lane();
    const uint16_t *p = t.p + (l % 8 + l / 8 % 2 * 8) * PP + l / 16 * 8;
    const uint16_t *v = k + (l / 8 % 2 * 8 + l % 8) * L::P + mc_warp() * L::CW +
                        l / 16 * 8;
    float f[2] = {t.factor[l / 4], t.factor[l / 4 + 8]};

#pragma unroll
    for (int n = 0; n < L::CW / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc[n][i] *= f[i / 2];
#pragma unroll
    for (int kk = 0; kk < KT / 16; kk++) {
        uint32_t high[4], low[4];

        mc_ldsm4(high, p + 16 * kk);
        mc_ldsm4(low, p + M * PP + 16 * kk);
#pragma unroll
        for (int n = 0; n < L::CW / 16; n++) {
            uint32_t b[4];

            mc_ldsm4_t(b, v + 16 * kk * L::P + 16 * n);
            mc_mma_bf16(acc[2 * n], high, {b[0], b[1]});
            mc_mma_bf16(acc[2 * n], low, {b[0], b[1]});
            mc_mma_bf16(acc[2 * n + 1], high, {b[2], b[3]});
            mc_mma_bf16(acc[2 * n + 1], low, {b[2], b[3]});
        }
    }
}

/* ---- a split ----------------------------------------------------------------------- */

/* Entries [base, base+256) as far as w sees them: o in acc, {max, sum} of rows in t.ml.
 */
template <class L>
MC_DEV void mc_split(const struct mc_mla_attn_p &p, const tile<L> &t, const where &w,
                     int32_t base, float (&acc)[L::CW / 8][4])
{
    float fixed = L::LAYOUT == MC_KV_FP8_PLAIN && p.kv.k_scale ? p.kv.k_scale[p.layer]
                                                               : 1;
    int32_t end = w.hi < base + MC_SPLIT - 1 ? w.hi : base + MC_SPLIT - 1;
    int32_t me = static_cast<int32_t>(threadIdx.x), stage = 0;
    running run = {-INFINITY, 0};

#pragma unroll
    for (int n = 0; n < L::CW / 8; n++)
        for (int i = 0; i < 4; i++)
            acc[n][i] = 0;
    __syncthreads(); /* the split before has been left */
    if (base <= end)
        mc_fetch<L>(p, w, base, t.raw);
    mc_cp_commit();
    for (int32_t e0 = base; e0 <= end; e0 += KT, stage ^= 1) {
        const uint16_t *k = L::PACKED ? t.k : t.k + stage * KT * L::P;

        mc_cp_wait<0>();
        __syncthreads(); /* the tile has come; nobody works on the one before */
        if (e0 + KT <= end)
            mc_fetch<L>(p, w, e0 + KT, t.raw + (stage ^ 1) * KT * L::RAW);
        mc_cp_commit();
        if (L::PACKED) {
            mc_unpack<L>(t.k, t.raw + stage * KT * L::RAW);
            __syncthreads();
        }
        mc_scores<L>(t, k);
        __syncthreads();
        mc_softmax<L>(t, run, e0, p.scale * fixed);
        __syncthreads();
        mc_values<L>(t, k, acc);
    }
    mc_cp_wait<0>();
    if (me % 16 == 0) {
        t.ml[me / 16 * 2] = run.m;
        t.ml[me / 16 * 2 + 1] = run.l;
    }
    __syncthreads();
    if constexpr (L::LAYOUT == MC_KV_FP8_PLAIN)
#pragma unroll
        for (int n = 0; n < L::CW / 8; n++)
            for (int i = 0; i < 4; i++)
                acc[n][i] *= fixed;
}

/* The {max, sum} of rows g and g + 8 that a thread's values belong to. */
struct sums {
    float ml[2][2];
};

/* Folds a split onto what this thread left of its rows in part `part`, by the arithmetic
 * of attn_merge; `was`: that part's {max, sum}, of sum 0 when there is none yet. */
template <class L>
MC_DEV void mc_leave(const struct mc_mla_attn_p &p, const tile<L> &t, int32_t part,
                     const float (&acc)[L::CW / 8][4], sums &was)
{
    int32_t g = mc_lane() / 4, c = mc_warp() * L::CW + mc_lane() % 4 * 2;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        int32_t row = t.lim->row[g + 8 * half];
        const float *ml = t.ml + 2 * (g + 8 * half);
        float(&run)[2] = was.ml[half];
        fold f = mc_fold_of(run[0], run[1], ml[0], ml[1]);
        int64_t at;

        if (row < 0)
            continue;
        at = (mc_part_row(row / p.h, p.cap_decode, p.n_part) + part) * p.h + row % p.h;
#pragma unroll
        for (int n = 0; n < L::CW / 8; n++) {
            float *to = p.o + at * L::C + c + 8 * n;
            float x = acc[n][2 * half], y = acc[n][2 * half + 1];

            if (ml[1] == 0)
                break;
            if (run[1] != 0) {
                uint2 o = mc_ld8(to);

                x = __uint_as_float(o.x) * f.a + x * f.b;
                y = __uint_as_float(o.y) * f.a + y * f.b;
            }
            mc_st8(to, {__float_as_uint(x), __float_as_uint(y)});
        }
        run[0] = f.m;
        run[1] = f.l;
        if (c == 0) {
            p.ml[2 * at] = f.m;
            p.ml[2 * at + 1] = f.l;
        }
    }
}

/* ---- rows -------------------------------------------------------------------------- */

/* How many entries of the split at base a list has. */
MC_DEV int32_t mc_listed(const int32_t *list, int32_t topk, int32_t base, int32_t *count)
{
    int32_t e = base + static_cast<int32_t>(threadIdx.x);
    uint32_t in = __ballot_sync(FULL, e < topk && list[e] >= 0);

    static_assert(L_THREADS == MC_SPLIT);
    return mc_block_fold(__popc(in), count, L_WARPS, [](int32_t a, int32_t b) {
        return a + b;
    });
}

/* The tile's rows: token t0 + i/heads of the batch, head head0 + i%heads; those whose
 * sequence is not s are none, bad and long ones see nothing. */
template <class L>
MC_DEV void mc_rows_of(const struct mc_mla_attn_p &p, const tile<L> &t, int32_t t0,
                       int32_t t1, int32_t head0, int32_t heads, int32_t s)
{
    const struct mc_rows &rows = p.rows;
    int32_t me = static_cast<int32_t>(threadIdx.x);

    __syncthreads();
    if (me < M) {
        int32_t tok = t0 + me / heads;

        t.lim->row[me] = -1;
        t.lim->lo[me] = p.idx ? 0 : p.first;
        t.lim->hi[me] = -1;
        if (tok < t1 && me / heads * heads + heads <= M && rows.row_seq[tok] == s) {
            t.lim->row[me] = tok * p.h + head0 + me % heads;
            if (!p.slots[rows.slot[s]].bad && !mc_row_is_long(&rows, tok, p.long_rows))
                t.lim->hi[me] = p.idx ? INT32_MAX - MC_SPLIT : rows.pos[tok];
        }
    }
    __syncthreads();
    for (int32_t i = me; i < M * (L::D / 8); i += L_THREADS) {
        int32_t r = i / (L::D / 8), c = i % (L::D / 8) * 8;
        uint4 x = {0, 0, 0, 0};

        if (t.lim->row[r] >= 0)
            x = mc_ld16(static_cast<const uint16_t *>(p.q) +
                        static_cast<int64_t>(t.lim->row[r]) * L::D + c);
        mc_st16(t.q + r * L::P + c, x);
    }
    __syncthreads();
}

/* What any of the rows sees of the split at base. With a list the tile is of one token,
 * whose rows' ends are those of the list in this split. */
template <class L>
MC_DEV where mc_where(const struct mc_mla_attn_p &p, const tile<L> &t, int32_t tok,
                      int32_t slot, int32_t base)
{
    where w = {nullptr, slot, INT32_MAX, -1};

    for (int r = 0; r < M; r++)
        if (t.lim->hi[r] >= t.lim->lo[r]) {
            w.lo = t.lim->lo[r] < w.lo ? t.lim->lo[r] : w.lo;
            w.hi = t.lim->hi[r] > w.hi ? t.lim->hi[r] : w.hi;
        }
    if (!p.idx)
        return w;
    w.list = p.idx + static_cast<int64_t>(tok) * p.topk;
    if (w.hi >= 0)
        w.hi = base + mc_listed(w.list, p.topk, base, t.count) - 1;
    __syncthreads(); /* the limits have been read */
    if (threadIdx.x < M && t.lim->hi[threadIdx.x] >= 0)
        t.lim->hi[threadIdx.x] = w.hi < 0 ? 0 : w.hi;
    __syncthreads();
    return w;
}

template <class L>
MC_DEV void mc_decode_row(const struct mc_mla_attn_p &p, const tile<L> &t, int32_t tok,
                          int32_t part, int32_t head0, int32_t heads)
{
    int32_t s = p.rows.row_seq[tok];
    float acc[L::CW / 8][4];
    sums none = {{{-INFINITY, 0}, {-INFINITY, 0}}};

    mc_rows_of<L>(p, t, tok, tok + 1, head0, heads, s);
    mc_split<L>(p, t, mc_where<L>(p, t, tok, p.rows.slot[s], part * MC_SPLIT),
                part * MC_SPLIT, acc);
    mc_leave<L>(p, t, part, acc, none);
}

/* Rows of one sequence of a prefill tile: every split up to the last position. */
template <class L>
MC_DEV void mc_prefill_rows(const struct mc_mla_attn_p &p, const tile<L> &t, int32_t t0,
                            int32_t t1, int32_t head0, int32_t heads, int32_t s,
                            int32_t last)
{
    int32_t end = p.idx && p.topk <= last ? p.topk - 1 : last;
    sums was = {{{-INFINITY, 0}, {-INFINITY, 0}}};
    float acc[L::CW / 8][4];

    mc_rows_of<L>(p, t, t0, t1, head0, heads, s);
    for (int32_t base = 0; base <= end; base += MC_SPLIT) {
        mc_split<L>(p, t, mc_where<L>(p, t, t0, p.rows.slot[s], base), base, acc);
        mc_leave<L>(p, t, 0, acc, was);
    }
}

/* blockIdx.x: decode rows' splits, then prefill tiles; y: groups of 16 heads. */
template <class L> MC_DEV void mc_mla_attn(const mc_cu_mla_attn &a)
{
    const struct mc_mla_attn_p &p = a.p;
    const struct mc_rows &rows = p.rows;
    tile<L> t = mc_tile_of<L>();
    int32_t n_dec = rows.live[MC_LIVE_DECODE], n_rows = rows.live[MC_LIVE_ROWS];
    int32_t head0 = static_cast<int32_t>(blockIdx.y) * M;
    int32_t heads = p.h - head0 < M ? p.h - head0 : M;
    int32_t b = static_cast<int32_t>(blockIdx.x), n = p.n_part * p.cap_decode, t0, t1;

    if (n_dec > p.cap_decode) {
        *a.fault = MC_OP_mla_attn + 1;
        return;
    }
    if (b < n) {
        t0 = b / p.n_part;
        b %= p.n_part;
        if (t0 < n_dec && b <= rows.pos[t0] / MC_SPLIT)
            mc_decode_row<L>(p, t, t0, b, head0, heads);
        return;
    }
    t0 = n_dec + (b - n) * a.n_tok;
    t1 = t0 + a.n_tok < n_rows ? t0 + a.n_tok : n_rows;
    for (int32_t i = t0, j; i < t1; i = j) { /* a sequence's rows are together */
        int32_t s = rows.row_seq[i], last = -1;

        for (j = i; j < t1 && rows.row_seq[j] == s; j++)
            last = rows.pos[j] > last ? rows.pos[j] : last;
        mc_prefill_rows<L>(p, t, t0, t1, head0, heads, s, last);
    }
}

#define MC_MLA_ATTN(kv, C, R, LAYOUT)                            \
    MC_KERNEL_OF(k_mla_attn_##kv##_##C##_##R, mc_cu_mla_attn, 2) \
    {                                                            \
        mc_mla_attn<latent<C, R, LAYOUT>>(p);                    \
    }

#endif
