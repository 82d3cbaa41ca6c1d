/* join.cu - residual add, RMSNorm and quantisation of a row a block, alone or with an
 * all-reduce in front. All ways of it add in rank order: they give the same bits.
 *
 * Few rows, one shot: each rank sends its rows to all others and sums what came. A row of
 * h bf16 values takes 4h bytes of packets, sent n-1 times: at one row and h = 7168, 28 KB
 * to each of 7 ranks. What counts there is the way, about one trip over NVLink: there is
 * one launch, and no flag behind the data.
 *
 * Many rows, two shots: a rank adds up every n-th row, of what the others hold, and then
 * all take the sums from each other: 2 (n-1)/n times the rows' bytes come in, no more
 * than by a ring, in two launches that both begin with a meeting. Owns nothing. */
#include "kernels/cuda/peer.cuh"

enum { N_WARP = 8, N_WARP_RANKS = 16 };

struct join_mem { /* shared */
    uint64_t at[MC_MAX_RANKS];
    float sum[N_WARP_RANKS];
    int32_t row, met;
};

/* Row t; part(c) gives columns c..c+3 of the sum over ranks. The norm is that of the
 * residual as stored, rounded to bf16: the second pass reads what the same thread wrote
 * in the first. there: it is stored already, and part gives it. */
template <int N, typename F>
MC_DEV void join_row(const struct mc_join_p &p, int32_t t, float *shared, F part,
                     bool there = false)
{
    int32_t l = 4 * mc_lane(), c0;
    uint16_t *res = static_cast<uint16_t *>(p.res) + static_cast<int64_t>(t) * p.h;
    uint16_t *out = static_cast<uint16_t *>(p.norm_out);
    float sum = 0, r;

    for (c0 = 128 * mc_warp(); c0 < p.h; c0 += 128 * N) {
        mc_f4 a, b = {};

        if (c0 + l >= p.h)
            continue;
        if (!p.first && !there)
            b = mc_bf16_get4(res + c0 + l);
        a = part(c0 + l);
        for (int i = 0; i < 4; i++) {
            a.v[i] = mc_f32_of_bf16(mc_bf16_of_f32(a.v[i] + b.v[i]));
            sum += a.v[i] * a.v[i];
        }
        if (!there)
            mc_bf16_put4(res + c0 + l, a);
    }
    if (!p.w)
        return;
    sum = mc_block_sum(sum, shared, N);
    r = 1 / sqrtf(sum / static_cast<float>(p.h) + p.eps);
    for (c0 = 128 * mc_warp(); c0 < p.h; c0 += 128 * N) {
        mc_f4 y = {};

        if (c0 + l < p.h) {
            y = mc_bf16_get4(res + c0 + l);
            for (int i = 0; i < 4; i++)
                y.v[i] = y.v[i] * r * p.w[c0 + l + i];
            if (out)
                mc_bf16_put4(out + static_cast<int64_t>(t) * p.h + c0 + l, y);
        }
        if (p.act.x)
            mc_act_put(p.act, t, c0, y);
    }
}

MC_KERNEL(k_join, struct mc_join_p)
{
    int32_t t = static_cast<int32_t>(blockIdx.x);
    const uint16_t *x = static_cast<const uint16_t *>(p.x) +
                        static_cast<int64_t>(t) * p.h;

    if (t < p.rows.live[MC_LIVE_ROWS])
        join_row<N_WARP>(p, t, mc_shared<float>(),
                         [&](int32_t c) { return mc_bf16_get4(x + c); });
}

/* ---- over ranks, one shot ---------------------------------------------------------- */

MC_DEV const uint16_t *x_row(const mc_cu_join &p, int32_t row)
{
    return static_cast<const uint16_t *>(p.p.x) +
           static_cast<int64_t>(row) * p.p.h;
}

MC_DEV void send_row(const mc_cu_join &p, uint32_t e, int32_t row)
{
    const mc_cu_peers &g = p.g;

    for (int32_t c = 4 * static_cast<int32_t>(threadIdx.x); c < p.p.h;
         c += 4 * WARP * N_WARP_RANKS) {
        uint2 u = mc_ld8(x_row(p, row) + c);

        for (int32_t i = 1; i < g.n; i++) /* each begins with another neighbour */
            mc_st_pairs(mc_row_at(g, (g.rank + i) % g.n, g.rank, e, row, p.p.h) + 4 * c,
                        {u.x, e, u.y, e});
    }
}

/* All rows that nobody took: rule 2 of peer.cuh. */
MC_DEV void send_rows(const mc_cu_join &p, uint32_t e, int32_t live, int32_t *shared)
{
    int32_t row = 0;

    if (live == 1)
        send_row(p, e, 0);
    while (live > 1 && row < live) {
        __syncthreads();
        if (threadIdx.x == 0)
            *shared = static_cast<int32_t>(atomicAdd(&p.g.seat[p.g.rank]->taken, 1));
        __syncthreads();
        row = *shared;
        if (row < live)
            send_row(p, e, row);
    }
}

/* In rank order; every rank sees the same bf16 values. */
MC_DEV mc_f4 sum_of_ranks(const mc_cu_join &p, uint32_t e, int32_t row, int32_t c)
{
    const mc_cu_peers &g = p.g;
    uint4 v[MC_MAX_RANKS] = {};
    uint32_t n = 0;
    mc_f4 sum = {};
    bool all;

    do {
        all = true;
#pragma unroll
        for (int32_t r = 0; r < MC_MAX_RANKS; r++) {
            if (r >= g.n || r == g.rank)
                continue;
            v[r] = mc_ld_pairs(mc_row_at(g, g.rank, r, e, row, p.p.h) + 4 * c);
            all = all && v[r].y == e && v[r].w == e;
        }
    } while (!all && !mc_parted(g, n));
#pragma unroll
    for (int32_t r = 0; r < MC_MAX_RANKS; r++) {
        uint2 u = {v[r].x, v[r].z};

        if (r >= g.n)
            continue;
        if (r == g.rank)
            u = mc_ld8(x_row(p, row) + c);
        mc_f4 f = mc_bf16_of_pairs(u);
        for (int i = 0; i < 4; i++)
            sum.v[i] = r == 0 ? f.v[i] : sum.v[i] + f.v[i];
    }
    return sum;
}

MC_KERNEL(k_join_ranks, struct mc_cu_join)
{
    int32_t live = p.p.rows.live[MC_LIVE_ROWS], row = static_cast<int32_t>(blockIdx.x);
    join_mem *s = mc_shared<join_mem>();
    uint32_t e;

    if (row >= live)
        return;
    e = mc_come(p.g);
    send_rows(p, e, live, &s->row);
    join_row<N_WARP_RANKS>(p.p, row, s->sum,
                           [&](int32_t c) { return sum_of_ranks(p, e, row, c); });
    mc_go(p.g, e, static_cast<uint32_t>(live));
}

/* ---- over ranks, two shots --------------------------------------------------------- */

/* This rank's rows: the new residual. */
MC_KERNEL(k_join_sum, struct mc_cu_join)
{
    const mc_cu_peers &g = p.g;
    int32_t row = static_cast<int32_t>(blockIdx.x) * g.n + g.rank;
    int64_t at = static_cast<int64_t>(row) * p.p.h;
    uint16_t *res = static_cast<uint16_t *>(p.p.res) + at;
    join_mem *s = mc_shared<join_mem>();
    uint32_t e = mc_come(g);
    bool met;

    mc_meet(g, e, reinterpret_cast<uint64_t>(p.p.x), s->at);
    met = mc_met(g, &s->met) && row < p.p.rows.live[MC_LIVE_ROWS];
    for (int32_t c = 4 * static_cast<int32_t>(threadIdx.x); met && c < p.p.h;
         c += 4 * WARP * N_WARP) {
        mc_f4 sum = {}, b = {};

        for (int32_t r = 0; r < g.n; r++) {
            mc_f4 f = mc_bf16_get4(reinterpret_cast<const uint16_t *>(s->at[r]) + at + c);

            for (int i = 0; i < 4; i++)
                sum.v[i] = r == 0 ? f.v[i] : sum.v[i] + f.v[i];
        }
        if (!p.p.first)
            b = mc_bf16_get4(res + c);
        for (int i = 0; i < 4; i++)
            sum.v[i] += b.v[i];
        mc_bf16_put4(res + c, sum);
    }
    mc_go(g, e, gridDim.x);
}

/* All rows: those of others are fetched, and then normed as they are. */
MC_KERNEL(k_join_take, struct mc_cu_join)
{
    const mc_cu_peers &g = p.g;
    int32_t row = static_cast<int32_t>(blockIdx.x);
    join_mem *s = mc_shared<join_mem>();
    struct mc_join_p whole = p.p;
    uint32_t e = mc_come(g);

    mc_meet(g, e, reinterpret_cast<uint64_t>(p.p.res), s->at);
    whole.first = true; /* what is fetched is the residual */
    if (mc_met(g, &s->met) && row < p.p.rows.live[MC_LIVE_ROWS]) {
        const uint16_t *from = reinterpret_cast<const uint16_t *>(s->at[row % g.n]) +
                               static_cast<int64_t>(row) * p.p.h;

        join_row<N_WARP>(whole, row, s->sum,
                         [&](int32_t c) { return mc_bf16_get4(from + c); },
                         row % g.n == g.rank); /* others may be reading it */
    }
    mc_go(g, e, gridDim.x);
}
