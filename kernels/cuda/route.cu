/* route.cu - which experts a row goes to, the experts' lists of rows, and the sum of what
 * they made: small things around moe.cuh.
 *
 * The router's logits are a linear's, f32, in route's scratch [T,E]. k_route: a warp a
 * row; shared memory f32 [8 warps][2][E], its scores and what it picks by. k_route_lists:
 * a warp an expert, which reads all of the step's ids: how many are below its own is
 * where its list begins, so that nobody waits for a count; 2 KB at 64 rows of 8, from L2.
 * k_moe_sum: a block a row, 4 columns a lane. Bound: launches, not bytes. */
#include "kernels/cuda/dev.cuh"

enum { R_WARP = 8 };

/* ---- route ------------------------------------------------------------------------- */

/* Logits become scores. */
MC_DEV void mc_route_scores(const float *x, int32_t n, bool softmax, float *score)
{
    float max = -INFINITY, sum = 0;

    for (int32_t i = mc_lane(); i < n; i += WARP)
        max = x[i] > max ? x[i] : max;
    max = mc_warp_max(max);
    for (int32_t i = mc_lane(); i < n; i += WARP) {
        score[i] = softmax ? expf(x[i] - max) : 1 / (1 + expf(-x[i]));
        sum += score[i];
    }
    if (!softmax)
        return;
    sum = mc_warp_sum(sum);
    for (int32_t i = mc_lane(); i < n; i += WARP)
        score[i] /= sum;
}

/* The largest of the lanes' values, the lowest id on ties; every lane gets its id. */
MC_DEV int32_t mc_warp_best(float v, int32_t id)
{
    for (int by = 16; by > 0; by /= 2) {
        float v1 = __shfl_xor_sync(FULL, v, by);
        int32_t id1 = __shfl_xor_sync(FULL, id, by);

        if (id < 0 || (id1 >= 0 && (v1 > v || (v1 == v && id1 < id)))) {
            v = v1;
            id = id1;
        }
    }
    return id;
}

/* Leaves only the experts of the best groups, a lane a group: those whose two best sum
 * highest. */
MC_DEV void mc_route_groups(float *pick, int32_t n_expert, int32_t n_group, int32_t keep)
{
    int32_t n = n_expert / n_group, me = mc_lane();
    float a = -INFINITY, b = -INFINITY, sum;
    uint32_t kept = 0;

    for (int32_t i = me * n; i < me * n + n && me < n_group; i++) {
        if (pick[i] > a) {
            b = a;
            a = pick[i];
        } else if (pick[i] > b) {
            b = pick[i];
        }
    }
    sum = n < 2 ? a : a + b;
    for (int32_t i = 0; i < keep; i++) {
        bool in = me < n_group && !(kept >> me & 1);
        int32_t best = mc_warp_best(sum, in ? me : -1);

        kept |= best < 0 ? 0 : 1u << best;
    }
    __syncwarp(); /* all groups have been read */
    for (int32_t i = me; i < n_expert; i += WARP)
        if (!(kept >> i / n & 1))
            pick[i] = -INFINITY;
}

MC_KERNEL(k_route, struct mc_route_p)
{
    int32_t t = static_cast<int32_t>(blockIdx.x) * R_WARP + mc_warp(), n = p.w.n, id = 0;
    float *score = mc_shared<float>() + mc_warp() * 2 * n, *pick = score + n, sum = 0;

    if (t >= *p.n_live)
        return;
    mc_route_scores(static_cast<const float *>(p.scratch) + static_cast<int64_t>(t) * n,
                    n, p.softmax, score);
    for (int32_t i = mc_lane(); i < n; i += WARP)
        pick[i] = p.bias ? score[i] + p.bias[i] : score[i];
    __syncwarp();
    if (p.n_group > 1) {
        mc_route_groups(pick, n, p.n_group, p.topk_group);
        __syncwarp();
    }
    for (int32_t k = 0; k < p.top_k; k++) {
        float best = 0;
        int32_t at = -1;

        for (int32_t i = mc_lane(); i < n; i += WARP)
            if (at < 0 ? !isnan(pick[i]) : pick[i] > best) { /* who is taken is NaN */
                best = pick[i];
                at = i;
            }
        at = mc_warp_best(best, at);
        at = at < 0 ? k : at; /* a row of NaNs still goes somewhere */
        if (at % WARP == mc_lane())
            pick[at] = NAN;
        sum += score[at];
        id = mc_lane() == k ? at : id;
    }
    if (mc_lane() < p.top_k) {
        int64_t at = static_cast<int64_t>(t) * p.top_k + mc_lane();

        p.ids[at] = id;
        p.weights[at] = (p.norm ? score[id] / (sum + 1e-20f) : score[id]) * p.factor;
    }
}

MC_KERNEL(k_route_lists, struct mc_route_p)
{
    int32_t e = static_cast<int32_t>(blockIdx.x) * R_WARP + mc_warp();
    int32_t n = *p.n_live * p.top_k, at = 0;
    uint32_t below = (1u << mc_lane()) - 1;

    if (e > p.w.n)
        return;
    for (int32_t i0 = 0; i0 < n; i0 += WARP) {
        int32_t i = i0 + mc_lane();

        at += __popc(__ballot_sync(FULL, i < n && p.ids[i] < e));
    }
    if (mc_lane() == 0)
        p.offset[e] = at;
    if (e == p.w.n)
        return;
    for (int32_t i0 = 0; i0 < n; i0 += WARP) {
        int32_t i = i0 + mc_lane();
        bool mine = i < n && p.ids[i] == e;
        uint32_t all = __ballot_sync(FULL, mine);

        if (mine)
            p.order[at + __popc(all & below)] = i;
        at += __popc(all);
    }
}

/* ---- the experts' sum -------------------------------------------------------------- */

MC_KERNEL(k_moe_sum, struct mc_moe_p)
{
    int32_t t = static_cast<int32_t>(blockIdx.x), h = p.down.w.n;
    const float *d = static_cast<const float *>(p.scratch) +
                     static_cast<int64_t>(t) * p.top_k * h;
    const float *weight = p.weights + static_cast<int64_t>(t) * p.top_k;
    float g = 1;

    if (t >= *p.n_live)
        return;
    if (p.add_gate)
        g = 1 / (1 + expf(-mc_f32_of_bf16(static_cast<const uint16_t *>(p.add_gate)[t])));
    for (int32_t c = 4 * static_cast<int32_t>(threadIdx.x); c < h;
         c += 4 * R_WARP * WARP) {
        mc_f4 y = {};

        for (int32_t i = 0; i < p.top_k; i++) {
            uint4 u = mc_ld16(d + static_cast<int64_t>(i) * h + c);

            y.v[0] += weight[i] * __uint_as_float(u.x);
            y.v[1] += weight[i] * __uint_as_float(u.y);
            y.v[2] += weight[i] * __uint_as_float(u.z);
            y.v[3] += weight[i] * __uint_as_float(u.w);
        }
        if (p.add) {
            mc_f4 a = mc_bf16_get4(static_cast<const uint16_t *>(p.add) +
                                   static_cast<int64_t>(t) * h + c);

            for (int i = 0; i < 4; i++)
                y.v[i] += a.v[i] * g;
        }
        mc_bf16_put4(static_cast<uint16_t *>(p.y) + static_cast<int64_t>(t) * h + c, y);
    }
}
