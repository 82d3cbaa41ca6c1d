/* dsa.cu - dsa_prep and dsa_topk: the indexer, which chooses the positions a row attends.
 *
 * dsa_prep: a block a row, 8 warps that take the query's heads and the key in turn;
 * shared memory f32 cos and sin, then [8 warps][d].
 *
 * dsa_topk: score(t, s) = kscale_s * sum over heads of gate * relu(q . k_s), then the
 * topk largest in rising order of position. No row of scores is as long as a context: a
 * context is cut in segments of 4 topk positions, a block of 16 warps works through some
 * of them with the best of what came before at hand, [topk + segment] f32 in shared
 * memory (40 KB at 2048), selects and packs, which keeps their order. With few rows (a
 * decode bucket) a row has a block a segment, which leave their best in scratch, and
 * k_dsa_merge selects among those, [segments * topk]; with many a block does all of its
 * row's.
 *
 *   scores   D[16 heads][8 positions] by m16n8k32 of e4m3: queries from shared memory (a
 *            pitch 16 bytes off), keys straight from the page in 16-byte loads of columns
 *            64i + 16t of position g, two groups of 8 positions a warp; which columns a
 *            lane has is the same for both operands. Page layout: kv.h, DeepGEMM's
 *   select   exact: the radix descent of vocab.cuh on the value, lowest position on ties
 *
 * Bound, H200, hi 32, d 128: 132 bytes a position at 20.7 bytes a cycle and SM are 6.4
 * cycles; e4m3 mma on sm_90 is f16 mma and conversions, 8 * 18 instructions for 8
 * positions, 4.5 cycles of four schedulers each; selecting adds some 20 %. */
#include "kernels/cuda/head.cuh"
#include "kernels/cuda/params.h"
#include "kernels/cuda/vocab.cuh"
#include "kernels/host/kv.h"

enum { N_WARP = 8, AT_ONCE = 16 /* positions of a warp */ };

/* ---- dsa_prep ---------------------------------------------------------------------- */

/* LayerNorm; each lane works on what it loaded. */
MC_DEV void layer_norm(float *x, const float *w, const float *b, float eps, int32_t d)
{
    float mean = 0, var = 0, r;

    for (int32_t i = mc_lane(); i < d; i += WARP)
        mean += x[i];
    mean = mc_warp_sum(mean) / static_cast<float>(d);
    for (int32_t i = mc_lane(); i < d; i += WARP)
        var += (x[i] - mean) * (x[i] - mean);
    r = 1 / sqrtf(mc_warp_sum(var) / static_cast<float>(d) + eps);
    for (int32_t i = mc_lane(); i < d; i += WARP)
        x[i] = (x[i] - mean) * r * w[i] + b[i];
}

/* x as e4m3; returns its scale. */
MC_DEV float put_e4m3(uint8_t *to, const float *x, int32_t d)
{
    float top = mc_head_amax(x, d), s = (top < 1e-4f ? 1e-4f : top) / 448;

    for (int32_t i = mc_lane(); i < d; i += WARP)
        to[i] = mc_e4m3_of_f32(x[i] / s);
    return s;
}

MC_KERNEL(k_dsa_prep, struct mc_dsa_prep_p)
{
    const struct mc_kv &kv = p.kv;
    int32_t t = static_cast<int32_t>(blockIdx.x), d = kv.index_d, slot, pos;
    float *cs = mc_shared<float>(), *x = cs + p.rope.dim + mc_warp() * d;

    if (t >= p.rows.live[MC_LIVE_ROWS])
        return;
    slot = p.rows.slot[p.rows.row_seq[t]];
    pos = p.rows.pos[t];
    mc_rope_table(cs, p.rope, pos, N_WARP * WARP);
    __syncthreads();
    for (int32_t j = mc_warp(); j <= p.hi; j += N_WARP) {
        int64_t at = static_cast<int64_t>(t) * p.hi + j;
        float s;

        __syncwarp(); /* the head before has been read */
        if (j < p.hi) {
            mc_head_load(x, static_cast<const uint16_t *>(p.q) + at * d, d);
            mc_head_rope(x, p.rope, cs);
            s = put_e4m3(static_cast<uint8_t *>(p.qi) + at * d, x, d);
            if (mc_lane() == 0)
                p.gates[at] = mc_f32_of_bf16(static_cast<const uint16_t *>(p.gate)[at]) *
                              (1 / sqrtf(static_cast<float>(p.hi)) *
                               (1 / sqrtf(static_cast<float>(d)))) *
                              s;
        } else if (!p.slots[slot].bad && mc_kv_mine(&kv, slot, pos)) {
            uint8_t *page = mc_index_page(&kv, p.index, slot, pos);

            mc_head_load(x,
                         static_cast<const uint16_t *>(p.k) + static_cast<int64_t>(t) * d,
                         d);
            layer_norm(x, p.k_norm, p.k_bias, p.eps, d);
            mc_head_rope(x, p.rope, cs);
            s = put_e4m3(static_cast<uint8_t *>(mc_index_key(&kv, page, pos)), x, d);
            if (mc_lane() == 0)
                *mc_index_scale(&kv, page, pos) = s;
        }
    }
}

/* ---- scores ------------------------------------------------------------------------ */

struct topk_mem {
    vocab_mem *v;
    int32_t *count; /* [V_WARPS] */
    uint8_t *q;     /* [heads, in 16s][d + 16] */
    float *gate;    /* [heads, in 16s] */
    float *score;   /* [topk + seg] */
    int32_t *pos;   /* [topk]: of the first scores, kept from segments before */
};

MC_DEV int32_t heads16(int32_t hi) { return (hi + 15) / 16 * 16; }

MC_DEV topk_mem mem_of(const mc_cu_dsa_topk &a)
{
    unsigned char *s = mc_shared<unsigned char>();
    topk_mem m;

    m.v = reinterpret_cast<vocab_mem *>(s);
    s += (sizeof(vocab_mem) + 15) / 16 * 16;
    m.count = reinterpret_cast<int32_t *>(s);
    s += V_WARPS * 4;
    m.q = s;
    s += heads16(a.p.hi) * (a.p.kv.index_d + 16);
    m.gate = reinterpret_cast<float *>(s);
    s += heads16(a.p.hi) * 4;
    m.score = reinterpret_cast<float *>(s);
    s += (a.p.topk + a.seg) * 4;
    m.pos = reinterpret_cast<int32_t *>(s);
    return m;
}

/* The row's queries and gates; heads up to the next 16 are zeros. */
MC_DEV void load_queries(const struct mc_dsa_topk_p &p, int32_t t, const topk_mem &m)
{
    int32_t d = p.kv.index_d, n = heads16(p.hi), me = static_cast<int32_t>(threadIdx.x);
    const uint8_t *q = static_cast<const uint8_t *>(p.qi) +
                       static_cast<int64_t>(t) * p.hi * d;

    for (int32_t i = me; i < n * (d / 16); i += V_THREADS) {
        int32_t h = i / (d / 16), c = i % (d / 16) * 16;
        uint4 x = {0, 0, 0, 0};

        if (h < p.hi)
            x = mc_ld16(q + h * d + c);
        mc_st16(m.q + h * (d + 16) + c, x);
    }
    for (int32_t i = me; i < n; i += V_THREADS)
        m.gate[i] = i < p.hi ? p.gates[static_cast<int64_t>(t) * p.hi + i] : 0;
}

/* Products of 16 heads with two groups of 8 positions; k: this lane's position of each,
 * NULL where it is not to be read. */
MC_DEV void heads_dot(float (&acc)[2][4], const uint8_t *q, const uint8_t *const (&k)[2],
                      int32_t d)
{
    int32_t g = mc_lane() / 4, c = mc_lane() % 4 * 16;

#pragma unroll 1
    for (; c < d; c += 64) {
        uint4 lo = mc_ld16(q + g * (d + 16) + c),
              hi = mc_ld16(q + (g + 8) * (d + 16) + c);

#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint4 x = {0, 0, 0, 0};

            if (k[i])
                x = mc_ld16(k[i] + c);
            mc_mma_e4m3(acc[i], {lo.x, hi.x, lo.y, hi.y}, {x.x, x.y});
            mc_mma_e4m3(acc[i], {lo.z, hi.z, lo.w, hi.w}, {x.z, x.w});
        }
    }
}

/* Scores of positions [s0, s1] of the rank's own, to out[s - s0]. A warp has 16 aligned
 * positions at a time, which a page does not cut. */
MC_DEV void score_all(const struct mc_dsa_topk_p &p, const topk_mem &m, int32_t slot,
                      int32_t s0, int32_t s1, float *out)
{
    int32_t d = p.kv.index_d, g = mc_lane() / 4, t = mc_lane() % 4 * 2;

    for (int32_t s = s0 / AT_ONCE * AT_ONCE + mc_warp() * AT_ONCE; s <= s1;
         s += V_WARPS * AT_ONCE) {
        uint8_t *page = mc_index_page(&p.kv, p.index, slot, mc_kv_pos(&p.kv, slot, s));
        const uint8_t *k[2];
        float sum[2][2] = {};

        for (int i = 0; i < 2; i++)
            k[i] = s + 8 * i + g < s0 || s + 8 * i + g > s1
                       ? nullptr
                       : static_cast<uint8_t *>(mc_index_key(&p.kv, page, s + 8 * i + g));
#pragma unroll 1
        for (int32_t h = 0; h < p.hi; h += 16) {
            float acc[2][4] = {}, lo = m.gate[h + g], hi = m.gate[h + g + 8];

            heads_dot(acc, m.q + h * (d + 16), k, d);
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 2; j++) {
                    float a = acc[i][j], b = acc[i][2 + j];

                    sum[i][j] += lo * (a > 0 ? a : 0) + hi * (b > 0 ? b : 0);
                }
        }
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 2; j++) {
                int32_t at = s + 8 * i + t + j;
                float x = sum[i][j];

                for (int by = 4; by < 32; by *= 2)
                    x += __shfl_xor_sync(FULL, x, by);
                if (g != 0 || at < s0 || at > s1)
                    continue;
                x *= *mc_index_scale(&p.kv, page, at);
                out[at - s0] = isnan(x) ? -INFINITY : x;
            }
    }
}

/* ---- selection --------------------------------------------------------------------- */

/* How many of the block's threads before this one have `in`, and of all. */
MC_DEV int32_t block_rank(bool in, int32_t *count, int32_t *all)
{
    uint32_t b = __ballot_sync(FULL, in);
    int32_t at = __popc(b & ((1u << mc_lane()) - 1)), sum = 0;

    __syncthreads();
    if (mc_lane() == 0)
        count[mc_warp()] = __popc(b);
    __syncthreads();
    for (int w = 0; w < V_WARPS; w++) {
        at += w < mc_warp() ? count[w] : 0;
        sum += count[w];
    }
    *all = sum;
    return at;
}

/* The topk best of n > topk scores, in order: put(from, to) by a thread each, after all
 * have read what they need (pick). */
template <typename Pick, typename Put>
MC_DEV void keep_best(const topk_mem &m, const float *score, int32_t n, int32_t topk,
                      Pick pick, Put put)
{
    uint64_t cut = mc_row_cut(m.v, score, n, static_cast<uint64_t>(topk),
                              [](int32_t) { return UINT64_C(1); });
    int32_t kept = 0, all, at;

    for (int32_t i0 = 0; i0 < n; i0 += V_THREADS) {
        int32_t i = i0 + static_cast<int32_t>(threadIdx.x);
        bool in = i < n && mc_key(score[i], i) <= cut;
        auto what = pick(i < n ? i : n - 1);

        at = kept + block_rank(in, m.count, &all);
        if (in)
            put(at, what);
        kept += all;
    }
    __syncthreads();
}

struct scored {
    float score;
    int32_t pos;
};

/* What a row may choose from: the rank's own positions first..last, in their order. */
struct choice {
    int32_t slot, first, last, n;
    bool all; /* it needs no scores */
};

MC_DEV choice choice_of(const struct mc_dsa_topk_p &p, int32_t t)
{
    int32_t slot = p.rows.slot[p.rows.row_seq[t]], end = p.rows.pos[t] + 1;
    choice c = {slot, mc_kv_own(&p.kv, slot, p.first), -1, 0, true};

    if (!p.slots[slot].bad)
        c.last = mc_kv_own(&p.kv, slot, end) - 1;
    c.n = c.last + 1 - c.first;
    /* those of other ranks are held against ours, but when all together are few */
    c.all = c.n <= p.topk && (!p.score || c.n < 1 || end - p.first <= p.topk);
    return c;
}

/* The i-th of those kept, at place `at` of the rank's own. */
MC_DEV void put_choice(const struct mc_dsa_topk_p &p, int32_t t, int32_t slot, int32_t i,
                       int32_t at, float score)
{
    p.idx[static_cast<int64_t>(t) * p.topk + i] = mc_kv_pos(&p.kv, slot, at);
    if (p.score)
        p.score[static_cast<int64_t>(t) * p.topk + i] = score;
}

/* Positions of the row's own segments, in turn; how many are kept. */
MC_DEV int32_t best_of(const mc_cu_dsa_topk &a, const topk_mem &m, const choice &c,
                       int32_t part)
{
    const struct mc_dsa_topk_p &p = a.p;
    int32_t old = 0, me = static_cast<int32_t>(threadIdx.x), slot = c.slot, last = c.last;

    for (int32_t at = part * a.seg; at <= last; at += a.n_part * a.seg) {
        int32_t s0 = at < c.first ? c.first : at;
        int32_t s1 = last < at + a.seg - 1 ? last : at + a.seg - 1, n = old + s1 - s0 + 1;

        score_all(p, m, slot, s0, s1, m.score + old);
        __syncthreads();
        if (n <= p.topk) {
            for (int32_t i = old + me; i < n; i += V_THREADS)
                m.pos[i] = s0 + i - old;
            __syncthreads();
        } else {
            keep_best(
                m, m.score, n, p.topk,
                [&](int32_t i) {
                    return scored{m.score[i], i < old ? m.pos[i] : s0 + i - old};
                },
                [&](int32_t i, scored x) {
                    m.score[i] = x.score;
                    m.pos[i] = x.pos;
                });
        }
        old = n < p.topk ? n : p.topk;
    }
    return old;
}

/* blockIdx.x: row; y: its first segment. */
MC_KERNEL(k_dsa_topk, mc_cu_dsa_topk)
{
    int32_t t = static_cast<int32_t>(blockIdx.x), part = static_cast<int32_t>(blockIdx.y);
    int32_t me = static_cast<int32_t>(threadIdx.x), topk = p.p.topk, n;
    int32_t *idx = p.p.idx + static_cast<int64_t>(t) * topk;
    topk_mem m = mem_of(p);
    choice c;

    if (t >= p.p.rows.live[MC_LIVE_ROWS])
        return;
    c = choice_of(p.p, t);
    if (c.all) {
        for (int32_t i = me; i < topk && part == 0; i += V_THREADS)
            idx[i] = i < c.n ? mc_kv_pos(&p.p.kv, c.slot, c.first + i) : -1;
        return;
    }
    if (part * p.seg > c.last)
        return;
    load_queries(p.p, t, m);
    __syncthreads();
    n = best_of(p, m, c, part);
    if (p.n_part == 1 || c.last < p.seg) { /* nobody else has any of it */
        for (int32_t i = me; i < topk; i += V_THREADS)
            if (i < n)
                put_choice(p.p, t, c.slot, i, m.pos[i], m.score[i]);
            else
                idx[i] = -1;
        return;
    }
    for (int32_t i = me; i < n; i += V_THREADS) {
        int64_t at = (static_cast<int64_t>(t) * p.n_part + part) * topk + i;

        p.score[at] = m.score[i];
        p.pos[at] = m.pos[i];
    }
}

/* A row's segments are full but for the last, so that what they kept lies without gaps.
 */
MC_KERNEL(k_dsa_merge, mc_cu_dsa_topk)
{
    int32_t t = static_cast<int32_t>(blockIdx.x), topk = p.p.topk, full, rest, n;
    int64_t at = static_cast<int64_t>(t) * p.n_part * topk;
    topk_mem m = mem_of(p);
    choice c;

    if (t >= p.p.rows.live[MC_LIVE_ROWS])
        return;
    c = choice_of(p.p, t);
    if (c.all || c.last < p.seg)
        return;
    full = (c.last + 1) / p.seg;
    rest = (c.last + 1) % p.seg;
    n = full * topk + (rest < topk ? rest : topk);
    keep_best(
        m, p.score + at, n, topk,
        [&](int32_t i) {
            return scored{p.score[at + i], p.pos[at + i]};
        },
        [&](int32_t i, scored x) { put_choice(p.p, t, c.slot, i, x.pos, x.score); });
}
