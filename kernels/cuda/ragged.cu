/* ragged.cu - attn_ragged: rows of long chunks attend to keys and values that are made of
 * the latents, a round of positions at a time (ragged.cuh): k_ragged_latents, the product
 * with kv_b (linear's), k_ragged_attn.
 *
 * k_ragged_latents: a block of 8 warps for 64 positions, a warp a token, four values a
 * lane. Bound: pages read and bf16 rows written, once.
 *
 * k_ragged_attn: a block of 4 warps for 64 query rows of one head, 16 a warp, and tiles
 * of 64 positions, copied by cp.async while the tile before is multiplied. D = nope + r.
 *
 *   shared   Q bf16 [64][D+8]; K [2][64][D+8], the shared key behind the head's own; V
 *            [2][64][V+8]: rows 4 banks off their neighbours for ldmatrix
 *   scores   S[16][64] = Q K^T, a warp's own; the running softmax stays in its registers
 *   values   O[16][V] += P V: S's accumulators are P's operand (PTX: the C of m16n8 lies
 *            as the A of m16n8k16 does)
 *
 * P is rounded to bf16, as K and V are: this form is a named exception as it is. A tile
 * that a row sees nothing of changes no bit of it, so that bits do not depend on what
 * shares a tile, nor on where a round ends. Bound at D 192, V 128 on H200, a tile of 64
 * positions (computed): 640 mma.sync, at 0.6 a cycle 1,070 cycles; 41 KB from L2 at 64
 * bytes a cycle 640: compute-bound. The product makes 0.26 MFLOP a position and head,
 * once for all rows of a chunk: with 2,000 rows a fifth of the attention's. Owns nothing.
 * THREAD: device code. */
#include "kernels/cuda/ragged.cuh"
#include "kernels/host/kv.h"

static constexpr int R_WARPS = 4, R_THREADS = R_WARPS * WARP, TILE = 64;

/* ---- latents as rows --------------------------------------------------------------- */

/* Four codes times a scale, as bf16. */
MC_DEV uint2 scaled(uint32_t q, float s)
{
    uint2 x = mc_e4m3_bf16(q);

    return {mc_bf16x2(__uint_as_float(x.x << 16) * s,
                      __uint_as_float(x.x & 0xffff0000) * s),
            mc_bf16x2(__uint_as_float(x.y << 16) * s,
                      __uint_as_float(x.y & 0xffff0000) * s)};
}

/* Values c..c+3 of a token. */
MC_DEV uint2 four_of(const struct mc_kv &kv, uint8_t *token, int32_t c, float fixed)
{
    if (kv.layout == MC_KV_BF16)
        return mc_ld8(token + 2 * c);
    if (kv.layout == MC_KV_FP8_PLAIN)
        return scaled(mc_ld4(token + c), fixed);
    if (c < kv.c) /* a power of two: exact */
        return scaled(mc_ld4(token + c), mc_mla_scales(&kv, token)[c / MC_SCALE_COLS]);
    uint16_t *key = mc_mla_key(&kv, token) + (c - kv.c);

    return {mc_ld4(key), mc_ld4(key + 2)}; /* a small model's is 4-byte aligned */
}

/* blockIdx.x: 64 rows of the scratch. Rows behind a chunk's last are zeros. */
MC_KERNEL(k_ragged_latents, struct mc_cu_attn_ragged)
{
    const struct mc_rows &rows = p.p.rows;
    const struct mc_kv &kv = p.p.kv;
    int32_t n = rows.live[MC_LIVE_SEQS], at = static_cast<int32_t>(blockIdx.x) * TILE;
    int32_t s = 0, row = 0, len = 0, d = kv.c + kv.r;
    float fixed = kv.k_scale ? kv.k_scale[p.p.layer] : 1;

    for (; s < n; s++) { /* whose rows these are */
        if (!mc_seq_is_long(rows, s, p.p.long_rows))
            continue;
        len = mc_round_len(p, s);
        if (at < row + (len + 63) / 64 * 64)
            break;
        row += (len + 63) / 64 * 64;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *p.n_live = mc_round_row(p, n);
    if (s == n)
        return;
    for (int32_t i = mc_warp(); i < TILE; i += MC_T_k_ragged_latents / WARP) {
        int32_t slot = rows.slot[s], e = at - row + i, pos = p.round * p.seg + e;
        bool seen = e < len && pos >= p.p.first && !p.p.slots[slot].bad;
        uint8_t *token = kv.base;

        if (seen)
            token = mc_mla_at(&kv, mc_kv_page(&kv, p.p.layer, slot, pos), pos);
        for (int32_t c = 4 * mc_lane(); c < d; c += 4 * WARP) {
            uint2 x = {0, 0};

            if (seen)
                x = four_of(kv, token, c, fixed);
            if (c < kv.c)
                mc_st8(p.latent + static_cast<int64_t>(at + i) * kv.c + c, x);
            else
                mc_st8(p.key + static_cast<int64_t>(at + i) * kv.r + c - kv.c, x);
        }
    }
}

/* ---- attention --------------------------------------------------------------------- */

template <int D_, int V_> struct ragged {
    static constexpr int D = D_, V = V_, DP = D + 8, VP = V + 8;

    static_assert(D % 32 == 0 && V % 16 == 0);
};

template <class S> struct tiles {
    uint16_t *q, *k, *v; /* [64][DP], [2][64][DP], [2][64][VP] */
};

/* Rows g and g + 8 of a warp, and what they have summed. */
template <class S> struct summed {
    float o[S::V / 8][4], m[2], l[2];
};

template <class S> MC_DEV tiles<S> tiles_of()
{
    uint16_t *s = mc_shared<uint16_t>();

    return {s, s + TILE * S::DP, s + 3 * TILE * S::DP};
}

/* Keys and values of 64 rows of the scratch from `row` on, n of which there are. */
template <class S>
MC_DEV void fetch(const mc_cu_attn_ragged &a, int32_t head, int32_t row, int32_t n,
                  uint16_t *k, uint16_t *v)
{
    int32_t nope = a.p.nope, r = a.p.kv.r, width = nope + a.p.v;
    int64_t pitch = static_cast<int64_t>(a.p.h) * width;

    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < TILE * (S::D + S::V) / 8;
         i += R_THREADS) {
        int32_t t = i / ((S::D + S::V) / 8), c = i % ((S::D + S::V) / 8) * 8;
        const uint16_t *y = a.expanded + (row + (t < n ? t : 0)) * pitch + head * width;
        const uint16_t *key = a.key + static_cast<int64_t>(row + (t < n ? t : 0)) * r;

        mc_cp_async16(c < S::D ? k + t * S::DP + c : v + t * S::VP + c - S::D,
                      c < nope   ? y + c
                      : c < S::D ? key + c - nope
                                 : y + c - r,
                      t < n ? 16 : 0);
    }
}

/* S[16][64] of this warp's rows. */
template <class S>
MC_DEV void scores(const uint16_t *q, const uint16_t *k, float (&s)[8][4])
{
    int32_t l = mc_lane();

    q += (mc_warp() * 16 + l % 8 + l / 8 % 2 * 8) * S::DP + l / 16 * 8;
    k += l % 8 * S::DP + l / 8 * 8;
#pragma unroll 2
    for (int i = 0; i < S::D / 32; i++) {
        uint32_t a[4], c[4];

        mc_ldsm4(a, q + 32 * i);
        mc_ldsm4(c, q + 32 * i + 16);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            uint32_t b[4];

            mc_ldsm4(b, k + 8 * n * S::DP + 32 * i);
            mc_mma_bf16(s[n], a, {b[0], b[1]});
            mc_mma_bf16(s[n], c, {b[2], b[3]});
        }
    }
}

MC_DEV float quad_max(float x)
{
    for (int by = 1; by < 4; by *= 2) {
        float y = __shfl_xor_sync(FULL, x, by);

        x = y > x ? y : x;
    }
    return x;
}

MC_DEV float quad_sum(float x)
{
    x += __shfl_xor_sync(FULL, x, 1);
    return x + __shfl_xor_sync(FULL, x, 2);
}

/* Scores become probabilities of positions lo..hi[half] of the tile; sums are scaled. */
template <class S>
MC_DEV void softmax(float (&s)[8][4], summed<S> &u, float scale, int32_t lo,
                    const int32_t (&hi)[2])
{
    int32_t c = mc_lane() % 4 * 2;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        float max = u.m[half], sum = 0, factor;

#pragma unroll
        for (int n = 0; n < 8; n++)
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                int32_t at = 8 * n + c + i % 2;

                s[n][i] = at >= lo && at <= hi[half] ? s[n][i] * scale : -INFINITY;
                max = s[n][i] > max ? s[n][i] : max;
            }
        max = quad_max(max);
#pragma unroll
        for (int n = 0; n < 8; n++)
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                s[n][i] = s[n][i] == -INFINITY ? 0 : expf(s[n][i] - max);
                sum += s[n][i];
            }
        factor = u.l[half] == 0 ? 1 : expf(u.m[half] - max); /* 1: nothing yet */
        u.l[half] = u.l[half] * factor + quad_sum(sum);
        u.m[half] = max;
#pragma unroll
        for (int n = 0; n < S::V / 8; n++)
            for (int i = 2 * half; i < 2 * half + 2; i++)
                u.o[n][i] *= factor;
    }
}

template <class S>
MC_DEV void values(const float (&s)[8][4], const uint16_t *v, summed<S> &u)
{
    int32_t l = mc_lane();

    v += (l / 8 % 2 * 8 + l % 8) * S::VP + l / 16 * 8;
#pragma unroll
    for (int kk = 0; kk < TILE / 16; kk++) {
        uint32_t a[4];

        for (int i = 0; i < 4; i++)
            a[i] = mc_bf16x2(s[2 * kk + i / 2][i % 2 * 2],
                             s[2 * kk + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < S::V / 16; n++) {
            uint32_t b[4];

            mc_ldsm4_t(b, v + 16 * kk * S::VP + 16 * n);
            mc_mma_bf16(u.o[2 * n], a, {b[0], b[1]});
            mc_mma_bf16(u.o[2 * n + 1], a, {b[2], b[3]});
        }
    }
}

/* A lane's part of a row's sums, in the scratch: o [T][h][V], {max, sum} [T][h][2]. */
template <class S>
MC_DEV void carry(const mc_cu_attn_ragged &a, int64_t at, int half, summed<S> &u,
                  bool load)
{
    float *o = a.o + at * S::V + mc_lane() % 4 * 2, *ml = a.ml + 2 * at;

#pragma unroll
    for (int n = 0; n < S::V / 8; n++)
        if (load) {
            uint2 x = mc_ld8(o + 8 * n);

            u.o[n][2 * half] = __uint_as_float(x.x);
            u.o[n][2 * half + 1] = __uint_as_float(x.y);
        } else {
            mc_st8(o + 8 * n, {__float_as_uint(u.o[n][2 * half]),
                               __float_as_uint(u.o[n][2 * half + 1])});
        }
    if (load) {
        u.m[half] = ml[0];
        u.l[half] = ml[1];
    } else if (mc_lane() % 4 == 0) {
        ml[0] = u.m[half];
        ml[1] = u.l[half];
    }
}

/* Rows [i, j) of sequence s, which lie in the tile of rows at t0. */
template <class S>
MC_DEV void chunk_rows(const mc_cu_attn_ragged &a, const tiles<S> &t, int32_t head,
                       int32_t t0, int32_t i, int32_t j, int32_t s)
{
    const struct mc_attn_ragged_p &p = a.p;
    const struct mc_rows &rows = p.rows;
    int32_t from = a.round * a.seg, row0 = mc_round_row(a, s), stage = 0;
    int32_t end = rows.pos[j - 1] + 1 - from < a.seg ? rows.pos[j - 1] + 1 - from : a.seg;
    int32_t at[2], pos[2]; /* of rows g, g + 8 */
    int32_t upto = -1;     /* the warp's last position */
    summed<S> u = {{}, {-INFINITY, -INFINITY}, {0, 0}};

    if (p.slots[rows.slot[s]].bad)
        end = 0;
    __syncthreads(); /* Q of the sequence before has been read */
    for (int32_t k = static_cast<int32_t>(threadIdx.x); k < TILE * S::D / 8;
         k += R_THREADS) {
        int32_t r = t0 + k / (S::D / 8), c = k % (S::D / 8) * 8;
        const uint16_t *q = static_cast<const uint16_t *>(p.q);

        mc_st16(t.q + (r - t0) * S::DP + c,
                r >= i && r < j
                    ? mc_ld16(q + (static_cast<int64_t>(r) * p.h + head) * S::D + c)
                    : uint4{0, 0, 0, 0});
    }
    for (int half = 0; half < 2; half++) {
        at[half] = t0 + mc_warp() * 16 + mc_lane() / 4 + 8 * half;
        pos[half] = at[half] >= i && at[half] < j ? rows.pos[at[half]] - from : -1;
        if (pos[half] >= 0 && a.round > 0)
            carry<S>(a, static_cast<int64_t>(at[half]) * p.h + head, half, u, true);
    }
    for (int32_t k = 0; k < 16; k++) {
        int32_t r = t0 + mc_warp() * 16 + k;

        if (r >= i && r < j)
            upto = rows.pos[r] - from;
    }
    if (end > 0)
        fetch<S>(a, head, row0, end, t.k, t.v);
    mc_cp_commit();
    for (int32_t e0 = 0; e0 < end; e0 += TILE, stage ^= 1) {
        const uint16_t *k = t.k + stage * TILE * S::DP, *v = t.v + stage * TILE * S::VP;
        float sc[8][4] = {};

        mc_cp_wait<0>();
        __syncthreads(); /* the tile has come; nobody works on the one before */
        if (e0 + TILE < end)
            fetch<S>(a, head, row0 + e0 + TILE, end - e0 - TILE,
                     t.k + (stage ^ 1) * TILE * S::DP, t.v + (stage ^ 1) * TILE * S::VP);
        mc_cp_commit();
        if (e0 > upto)
            continue; /* the warp's rows are all before it */
        scores<S>(t.q, k, sc);
        softmax<S>(sc, u, p.scale, p.first - from - e0, {pos[0] - e0, pos[1] - e0});
        values<S>(sc, v, u);
    }
    mc_cp_wait<0>();
    for (int half = 0; half < 2; half++) {
        int64_t row = static_cast<int64_t>(at[half]) * p.h + head;
        float inv = u.l[half] == 0 ? 0 : 1 / u.l[half];
        uint16_t *out = static_cast<uint16_t *>(p.act.x) + row * S::V +
                        mc_lane() % 4 * 2;

        if (pos[half] >= a.seg)
            carry<S>(a, row, half, u, false);
        else if (pos[half] >= 0)
#pragma unroll
            for (int n = 0; n < S::V / 8; n++)
                mc_st4(out + 8 * n, mc_bf16x2(u.o[n][2 * half] * inv,
                                              u.o[n][2 * half + 1] * inv));
    }
}

/* blockIdx.x: 64 rows; y: head. */
template <class S> MC_DEV void ragged_attn(const mc_cu_attn_ragged &a)
{
    const struct mc_rows &rows = a.p.rows;
    int32_t t0 = static_cast<int32_t>(blockIdx.x) * TILE, n = rows.live[MC_LIVE_ROWS];
    int32_t t1 = t0 + TILE < n ? t0 + TILE : n;

    for (int32_t i = t0, j; i < t1; i = j) { /* a sequence's rows are together */
        int32_t s = rows.row_seq[i];

        for (j = i + 1; j < t1 && rows.row_seq[j] == s; j++)
            ;
        if (mc_row_is_long(&rows, i, a.p.long_rows) &&
            rows.pos[j - 1] >= a.round * a.seg)
            chunk_rows<S>(a, tiles_of<S>(), static_cast<int32_t>(blockIdx.y), t0, i, j,
                          s);
    }
}

MC_KERNEL_OF(k_ragged_attn_64_32, struct mc_cu_attn_ragged, 2)
{
    ragged_attn<ragged<64, 32>>(p);
}

MC_KERNEL_OF(k_ragged_attn_192_128, struct mc_cu_attn_ragged, 2)
{
    ragged_attn<ragged<192, 128>>(p);
}
