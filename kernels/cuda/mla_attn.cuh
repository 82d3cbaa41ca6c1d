/* mla_attn.cuh - attention over latents that all heads share: a block of 8 warps for up
 * to M query rows (the heads of a token, or of a few tokens of a prefill tile) and one
 * split of 256 positions, 32 at a time. M is 16 where a rank has its own heads, 64 where
 * it has those of all ranks and a part of the tokens.
 *
 * Shapes: q [T,h,C+R] bf16, a token of a page C+R values in one of three layouts (kv.h;
 * the 656 bytes of C 512, R 64 are FlashMLA's), o [parts][h][C] f32. Tile plan, per 32
 * positions:
 *
 *   copy     a warp's four tokens by cp.async, through the page table (and the row's list
 *            when it has one): the next tile comes in while this one is worked on
 *   unpack   e4m3 becomes bf16 once, for key and value alike; a 656 token's scales are
 *            powers of two, so that the product is exact
 *   scores   S[M][32] = Q K^T: a warp has 8 positions (of M 64: 16, and 32 rows) and half
 *            of the columns
 *   softmax  256/M threads a row; the row's maximum runs over the split's tiles; P is
 *            kept in two bf16 halves, which are 16 of its bits
 *   values   O[M][C] += P V: a warp has C/8 columns of all rows, in registers for the
 *            whole split: of M 64 half of a thread's registers
 *
 * Bound of M 64, H200 at C 512, R 64, a tile (computed): 576 mma.sync for S and 1,024
 * for O with both halves of P, at 0.6 a cycle 2,700 cycles; 432 + 128 + 64 ldmatrix of 4
 * cycles, 2,500, beside them; its bytes take 1014. Compute-bound, one block an SM. Four
 * blocks of 16 rows would unpack and load what they share four times: 5,700 cycles.
 *
 * Bound of M 16, H200 at C 512, R 64, 8 heads: an SM's share of DRAM is 20.7 bytes a
 * cycle, so 1014 cycles a tile of fp8-656; 400 mma.sync (at 0.6 a cycle 670) and about
 * 3,000 other warp instructions (750) fit under it: memory-bound. A tile of 21 KB in
 * flight for each of two blocks an SM, where 4.8 TB/s times 0.7 us ask for 25 KB. Nothing
 * else is read but q and the table; o is 16 KB a split, a tenth of what the split reads.
 *
 * A position that no row of the block sees is not read but zero; one that some see and
 * others don't is masked. Prefill tiles fold their splits, in o itself, by the arithmetic
 * of attn_merge: a row's bits do not depend on which kind of row it was.
 * Owns nothing. THREAD: device code. */
#ifndef MC_CUDA_MLA_ATTN_CUH
#define MC_CUDA_MLA_ATTN_CUH

#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/mla_tile.cuh"

/* ---- scores, probabilities, sums --------------------------------------------------- */

/* Eight positions and half of the columns a warp. */
template <class L> MC_DEV void mc_scores_16(const tile<L> &t, const uint16_t *k)
{
    constexpr int N = L::D / 32, HALF = (N + 1) / 2;
    int32_t l = mc_lane(), at = mc_warp() % 4 * 8, half = mc_warp() / 4;
    const uint16_t *q = t.q + (l % 8 + l / 8 % 2 * 8) * L::P + l / 16 * 8;
    const uint16_t *kp = k + (at + l % 8) * L::P + l / 8 * 8;
    float acc[2][4] = {}, *s = t.s + half * L::M * SP + l / 4 * SP + at + l % 4 * 2;

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

/* Sixteen positions, 32 rows and half of the columns a warp: three ldmatrix for four
 * products. */
template <class L> MC_DEV void mc_scores_64(const tile<L> &t, const uint16_t *k)
{
    constexpr int N = L::D / 16, HALF = N / 2;
    int32_t l = mc_lane(), at = mc_warp() % 2 * 16, rows = mc_warp() / 2 % 2 * 32,
            half = mc_warp() / 4;
    const uint16_t *q = t.q + (rows + l % 8 + l / 8 % 2 * 8) * L::P + l / 16 * 8;
    const uint16_t *kp = k + (at + l % 8 + l / 16 * 8) * L::P + l / 8 % 2 * 8;
    float acc[2][2][4] = {};
    float *s = t.s + (half * L::M + rows + l / 4) * SP + at + l % 4 * 2;

#pragma unroll 2
    for (int32_t i = half * HALF; i < (half ? N : HALF); i++) {
        uint32_t a[2][4], b[4];

        mc_ldsm4(b, kp + 16 * i);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            mc_ldsm4(a[m], q + 16 * m * L::P + 16 * i);
            mc_mma_bf16(acc[m][0], a[m], {b[0], b[1]});
            mc_mma_bf16(acc[m][1], a[m], {b[2], b[3]});
        }
    }
#pragma unroll
    for (int m = 0; m < 2; m++)
        for (int n = 0; n < 2; n++)
            for (int i = 0; i < 4; i++)
                s[(16 * m + i / 2 * 8) * SP + 8 * n + i % 2] = acc[m][n][i];
}

template <class L> MC_DEV void mc_scores(const tile<L> &t, const uint16_t *k)
{
    if constexpr (L::M == 16)
        mc_scores_16<L>(t, k);
    else
        mc_scores_64<L>(t, k);
}

/* The running {max, sum} of a row, in each of the 256/M threads that share it. */
struct running {
    float m, l;
};

/* Thread j of a row's n takes positions 2j, 2j + 1 of each 2n. */
template <class L>
MC_DEV void mc_softmax(const tile<L> &t, running &run, int32_t e0, float scale)
{
    constexpr int N = L_THREADS / L::M, PAIRS = KT / (2 * N);
    int32_t me = static_cast<int32_t>(threadIdx.x), r = me / N, c = me % N * 2;
    int32_t lo = t.lim->lo[r] - e0, hi = t.lim->hi[r] - e0;
    float x[PAIRS][2], max = run.m, sum = 0, factor;

#pragma unroll
    for (int k = 0; k < PAIRS; k++)
        for (int i = 0; i < 2; i++) {
            int32_t at = 2 * N * k + c + i;

            x[k][i] = (t.s[r * SP + at] + t.s[(L::M + r) * SP + at]) * scale;
            if (at >= lo && at <= hi)
                max = x[k][i] > max ? x[k][i] : max;
        }
    for (int by = 1; by < N; by *= 2) {
        float y = __shfl_xor_sync(FULL, max, by);

        max = y > max ? y : max;
    }
#pragma unroll
    for (int k = 0; k < PAIRS; k++) {
        uint32_t high, low;

        for (int i = 0; i < 2; i++) {
            int32_t at = 2 * N * k + c + i;

            x[k][i] = at >= lo && at <= hi ? expf(x[k][i] - max) : 0;
            sum += x[k][i];
        }
        high = mc_bf16x2(x[k][0], x[k][1]);
        low = mc_bf16x2(x[k][0] - __uint_as_float(high << 16),
                        x[k][1] - __uint_as_float(high & 0xffff0000));
        mc_st4(t.p + r * PP + 2 * N * k + c, high);
        mc_st4(t.p + (L::M + r) * PP + 2 * N * k + c, low);
    }
    for (int by = 1; by < N; by *= 2)
        sum += __shfl_xor_sync(FULL, sum, by);
    factor = run.l == 0 ? 1 : expf(run.m - max); /* 1: nothing was summed yet */
    run.l = run.l * factor + sum;
    run.m = max;
    if (c == 0)
        t.factor[r] = factor;
}

/* What a thread has of O: o[m][n][i] is row 16m + g + 8*(i/2), column 8n + 2t + i%2 of
 * its warp's. */
template <class L> struct held {
    float o[L::MT][L::CW / 8][4];
};

template <class L> MC_DEV void mc_scale(held<L> &acc, int m, float lo, float hi)
{
#pragma unroll
    for (int n = 0; n < L::CW / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc.o[m][n][i] *= i / 2 ? hi : lo;
}

template <class L>
MC_DEV void mc_values(const tile<L> &t, const uint16_t *k, held<L> &acc)
{
    int32_t l = mc_lane();
    const uint16_t *p = t.p + (l % 8 + l / 8 % 2 * 8) * PP + l / 16 * 8;
    const uint16_t *v = k + (l / 8 % 2 * 8 + l % 8) * L::P + mc_warp() * L::CW +
                        l / 16 * 8;

#pragma unroll
    for (int m = 0; m < L::MT; m++)
        mc_scale(acc, m, t.factor[16 * m + l / 4], t.factor[16 * m + l / 4 + 8]);
#pragma unroll
    for (int kk = 0; kk < KT / 16; kk++) {
        uint32_t high[L::MT][4], low[L::MT][4];

#pragma unroll
        for (int m = 0; m < L::MT; m++) {
            mc_ldsm4(high[m], p + 16 * m * PP + 16 * kk);
            mc_ldsm4(low[m], p + (L::M + 16 * m) * PP + 16 * kk);
        }
#pragma unroll
        for (int n = 0; n < L::CW / 16; n++) {
            uint32_t b[4];

            mc_ldsm4_t(b, v + 16 * kk * L::P + 16 * n);
#pragma unroll
            for (int m = 0; m < L::MT; m++) {
                mc_mma_bf16(acc.o[m][2 * n], high[m], {b[0], b[1]});
                mc_mma_bf16(acc.o[m][2 * n], low[m], {b[0], b[1]});
                mc_mma_bf16(acc.o[m][2 * n + 1], high[m], {b[2], b[3]});
                mc_mma_bf16(acc.o[m][2 * n + 1], low[m], {b[2], b[3]});
            }
        }
    }
}

/* ---- a split ----------------------------------------------------------------------- */

/* Entries [base, base+256) as far as w sees them: o in acc, {max, sum} of rows in t.ml.
 */
template <class L>
MC_DEV void mc_split(const struct mc_mla_attn_p &p, const tile<L> &t, const where &w,
                     int32_t base, held<L> &acc)
{
    constexpr int N = L_THREADS / L::M;
    float fixed = L::LAYOUT == MC_KV_FP8_PLAIN && p.kv.k_scale ? p.kv.k_scale[p.layer]
                                                               : 1;
    int32_t end = w.hi < base + MC_SPLIT - 1 ? w.hi : base + MC_SPLIT - 1;
    int32_t me = static_cast<int32_t>(threadIdx.x), stage = 0;
    running run = {-INFINITY, 0};

    acc = {};
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
    if (me % N == 0) {
        t.ml[me / N * 2] = run.m;
        t.ml[me / N * 2 + 1] = run.l;
    }
    __syncthreads();
    if constexpr (L::LAYOUT == MC_KV_FP8_PLAIN)
#pragma unroll
        for (int m = 0; m < L::MT; m++)
            mc_scale(acc, m, fixed, fixed);
}

/* The {max, sum} of rows 16m + g and 16m + g + 8 that a thread's values belong to. */
template <class L> struct sums {
    float ml[L::MT][2][2];

    MC_DEV sums none()
    {
        sums s;

#pragma unroll
        for (int m = 0; m < L::MT; m++)
            for (int half = 0; half < 2; half++) {
                s.ml[m][half][0] = -INFINITY;
                s.ml[m][half][1] = 0;
            }
        return s;
    }
};

/* Folds a row's split, x, onto what this thread left of it in part `part`, by the
 * arithmetic of attn_merge; run: that part's {max, sum}, of sum 0 when there is none. */
template <class L>
MC_DEV void mc_leave_row(const struct mc_mla_attn_p &p, int32_t row, int32_t part,
                         const float *ml, const float (&x)[L::CW / 8][4], int half,
                         float (&run)[2])
{
    int32_t c = mc_warp() * L::CW + mc_lane() % 4 * 2;
    fold f = mc_fold_of(run[0], run[1], ml[0], ml[1]);
    int64_t at = (mc_part_row(row / p.h, p.cap_decode, p.n_part) + part) * p.h +
                 row % p.h;

#pragma unroll
    for (int n = 0; n < L::CW / 8; n++) {
        float *to = p.o + at * L::C + c + 8 * n;
        float x0 = x[n][2 * half], x1 = x[n][2 * half + 1];

        if (ml[1] == 0)
            break;
        if (run[1] != 0) {
            uint2 o = mc_ld8(to);

            x0 = __uint_as_float(o.x) * f.a + x0 * f.b;
            x1 = __uint_as_float(o.y) * f.a + x1 * f.b;
        }
        mc_st8(to, {__float_as_uint(x0), __float_as_uint(x1)});
    }
    run[0] = f.m;
    run[1] = f.l;
    if (c == 0) {
        p.ml[2 * at] = f.m;
        p.ml[2 * at + 1] = f.l;
    }
}

template <class L>
MC_DEV void mc_leave(const struct mc_mla_attn_p &p, const tile<L> &t, int32_t part,
                     const held<L> &acc, sums<L> &was)
{
#pragma unroll
    for (int m = 0; m < L::MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int32_t r = 16 * m + mc_lane() / 4 + 8 * half;

            if (t.lim->row[r] >= 0)
                mc_leave_row<L>(p, t.lim->row[r], part, t.ml + 2 * r, acc.o[m], half,
                                was.ml[m][half]);
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
    if (me < L::M) {
        int32_t tok = t0 + me / heads, slot = rows.slot[s];

        t.lim->row[me] = -1;
        t.lim->lo[me] = p.idx ? 0 : mc_own<L>(p.kv, slot, p.first);
        t.lim->hi[me] = -1;
        if (tok < t1 && me / heads * heads + heads <= L::M && rows.row_seq[tok] == s) {
            t.lim->row[me] = tok * p.h + head0 + me % heads;
            if (!p.slots[slot].bad && !mc_row_is_long(&rows, tok, p.long_rows))
                t.lim->hi[me] = p.idx ? INT32_MAX - MC_SPLIT
                                      : mc_own<L>(p.kv, slot, rows.pos[tok] + 1) - 1;
        }
    }
    __syncthreads();
    for (int32_t i = me; i < L::M * (L::D / 8); i += L_THREADS) {
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

    for (int r = 0; r < L::M; r++)
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
    if (threadIdx.x < L::M && t.lim->hi[threadIdx.x] >= 0)
        t.lim->hi[threadIdx.x] = w.hi < 0 ? 0 : w.hi;
    __syncthreads();
    return w;
}

template <class L>
MC_DEV void mc_decode_row(const struct mc_mla_attn_p &p, const tile<L> &t, int32_t tok,
                          int32_t split, int32_t head0, int32_t heads)
{
    int32_t s = p.rows.row_seq[tok];
    held<L> acc;
    sums<L> none = sums<L>::none();

    mc_rows_of<L>(p, t, tok, tok + 1, head0, heads, s);
    mc_split<L>(p, t, mc_where<L>(p, t, tok, p.rows.slot[s], split * MC_SPLIT),
                split * MC_SPLIT, acc);
    mc_leave<L>(p, t, split, acc, none);
}

/* Rows of one sequence of a prefill tile: every split up to the last position of the
 * rank's own; one at least, which says that there is none. */
template <class L>
MC_DEV void mc_prefill_rows(const struct mc_mla_attn_p &p, const tile<L> &t, int32_t t0,
                            int32_t t1, int32_t head0, int32_t heads, int32_t s,
                            int32_t last)
{
    int32_t end = mc_own<L>(p.kv, p.rows.slot[s], last + 1) - 1;
    sums<L> was = sums<L>::none();
    held<L> acc;

    if (p.idx)
        end = p.topk <= last ? p.topk - 1 : last;
    mc_rows_of<L>(p, t, t0, t1, head0, heads, s);
    for (int32_t base = 0; base == 0 || base <= end; base += MC_SPLIT) {
        mc_split<L>(p, t, mc_where<L>(p, t, t0, p.rows.slot[s], base), base, acc);
        mc_leave<L>(p, t, 0, acc, was);
    }
}

/* blockIdx.x: decode rows' splits, then prefill tiles; y: groups of M heads. */
template <class L> MC_DEV void mc_mla_attn(const mc_cu_mla_attn &a)
{
    const struct mc_mla_attn_p &p = a.p;
    const struct mc_rows &rows = p.rows;
    tile<L> t = mc_tile_of<L>();
    int32_t n_dec = rows.live[MC_LIVE_DECODE], n_rows = rows.live[MC_LIVE_ROWS];
    int32_t head0 = static_cast<int32_t>(blockIdx.y) * L::M;
    int32_t heads = p.h - head0 < L::M ? p.h - head0 : L::M;
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

#define MC_MLA_ATTN(kv, C, R, LAYOUT)                              \
    MC_KERNEL_OF(k_mla_attn_##kv##_##C##_##R, mc_cu_mla_attn, 2)   \
    {                                                              \
        mc_mla_attn<latent<C, R, LAYOUT, 16>>(p);                  \
    }
#define MC_MLA_ATTN64(kv, C, R, LAYOUT)                            \
    MC_KERNEL_OF(k_mla_attn64_##kv##_##C##_##R, mc_cu_mla_attn, 1) \
    {                                                              \
        mc_mla_attn<latent<C, R, LAYOUT, 64>>(p);                  \
    }

#endif
