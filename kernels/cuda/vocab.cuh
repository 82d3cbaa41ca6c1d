/* vocab.cuh - a block over one row of logits: maxima, sums, exact selection, draws.
 *
 * Keys, their order and the exponential are those of host/vocab.h. Where weights decide
 * (nuclei, draws) they are integers, exp(x - max) in units of 2^-44: sums are then exact
 * in any order, so that neither the number of threads nor their pace can move a token. An
 * id of less weight is never drawn. Selection is a radix descent, a byte of the value a
 * pass. Owns nothing. THREAD: device code, whole blocks. */
#ifndef MC_CUDA_VOCAB_CUH
#define MC_CUDA_VOCAB_CUH

#include "kernels/cuda/dev.cuh"
#include "kernels/host/vocab.h"

enum { V_THREADS = 512, V_WARPS = V_THREADS / WARP };

struct vocab_mem { /* shared */
    uint64_t hist[256];
    uint64_t total[V_WARPS];
    uint64_t keys[MC_CANDS], sorted[MC_CANDS];
    double dsum[V_WARPS];
    float fmax[V_WARPS];
    uint64_t before, need;
    uint32_t bin, n_keys;
    int32_t id;
};

/* The largest; NaN when one is NaN or +inf. */
MC_DEV float mc_row_max(vocab_mem *s, const float *x, int32_t n)
{
    float m = -INFINITY;

    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < n; i += V_THREADS)
        m = !(x[i] < INFINITY) || isnan(m) ? NAN : x[i] > m ? x[i] : m;
    return mc_block_fold(mc_warp_max(m), s->fmax, V_WARPS, [](float a, float b) {
        return isnan(a) || isnan(b) ? NAN : a > b ? a : b;
    });
}

/* max + log of the sum of weights: blocks of 64 fold as on the host, then doubles. */
MC_DEV float mc_row_lse(vocab_mem *s, const float *x, int32_t n, float max)
{
    double sum = 0;

    if (!isfinite(max))
        return max;
    for (int32_t b = mc_warp(); b < mc_vblocks(n); b += V_WARPS) {
        int32_t i = b * MC_VBLOCK + mc_lane();
        float w = i < n ? mc_vocab_exp(x[i] - max) : 0;

        w += i + WARP < n ? mc_vocab_exp(x[i + WARP] - max) : 0;
        for (uint32_t by = 16; by > 0; by /= 2)
            w += __shfl_down_sync(FULL, w, by);
        sum += static_cast<double>(w);
    }
    sum = mc_block_fold(sum, s->dsum, V_WARPS, [](double a, double b) { return a + b; });
    return max + static_cast<float>(log(sum));
}

/* ---- integer weights --------------------------------------------------------------- */

MC_DEV uint64_t mc_weight_of(float x, float max)
{
    return static_cast<uint64_t>(mc_vocab_exp(x - max) * 0x1p44f);
}

/* What may be drawn: keys up to cut, weights of min_p. */
struct vset {
    uint64_t cut;
    float max, min_p;
};

MC_DEV uint64_t mc_set_weight(const vset &v, float x, int32_t id)
{
    if (!(x > -INFINITY) || mc_key(x, id) > v.cut || mc_vocab_exp(x - v.max) < v.min_p)
        return 0;
    return mc_weight_of(x, v.max);
}

template <typename W> MC_DEV uint64_t mc_row_total(vocab_mem *s, int32_t n, W weight)
{
    uint64_t sum = 0;

    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < n; i += V_THREADS)
        sum += weight(i);
    for (int by = 16; by > 0; by /= 2)
        sum += __shfl_xor_sync(FULL, sum, by);
    return mc_block_fold(sum, s->total, V_WARPS,
                         [](uint64_t a, uint64_t b) { return a + b; });
}

/* The first id, rising, at which the weights of all up to it reach need >= 1; the last of
 * any weight when they never do; -1 when there is none. Warps have segments. */
template <typename W>
MC_DEV int32_t mc_row_walk(vocab_mem *s, int32_t n, uint64_t need, W weight)
{
    int32_t each = (n + V_WARPS - 1) / V_WARPS, i0 = mc_warp() * each;
    int32_t i1 = i0 + each < n ? i0 + each : n, last = -1;
    uint64_t sum = 0, all = 0, before = 0;

    for (int32_t i = i0 + mc_lane(); i < i1; i += WARP)
        sum += weight(i);
    for (int by = 16; by > 0; by /= 2)
        sum += __shfl_xor_sync(FULL, sum, by);
    __syncthreads();
    if (mc_lane() == 0)
        s->total[mc_warp()] = sum;
    if (threadIdx.x == 0)
        s->id = -1;
    __syncthreads();
    for (int w = 0; w < V_WARPS; w++) {
        before += w < mc_warp() ? s->total[w] : 0;
        all += s->total[w];
    }
    if (need > all)
        need = all;
    if (need > before && need <= before + sum) /* one warp has it */
        for (int32_t i = i0; i < i1 && last < 0; i += WARP) {
            uint64_t w = i + mc_lane() < i1 ? weight(i + mc_lane()) : 0, upto = w;
            uint32_t hit;

            for (uint32_t by = 1; by < WARP; by *= 2) {
                uint64_t v = __shfl_up_sync(FULL, upto, by);

                upto += mc_lane() >= static_cast<int32_t>(by) ? v : 0;
            }
            hit = __ballot_sync(FULL, before + upto >= need);
            if (hit) {
                last = i + __popc(~hit & (hit - 1));
                if (mc_lane() == 0)
                    s->id = last;
            }
            before += __shfl_sync(FULL, upto, WARP - 1);
        }
    __syncthreads();
    return s->id;
}

/* ---- selection --------------------------------------------------------------------- */

/* The bin of hist in which sums reach need, or the last that is not empty; by warp 0. */
MC_DEV void mc_find_bin(vocab_mem *s, uint64_t need)
{
    uint64_t mine = 0, upto, before = s->before;
    uint32_t hit, some;
    int32_t l = mc_lane(), at, bin = -1;

    for (int i = 0; i < 8; i++)
        mine += s->hist[8 * l + i];
    upto = mine;
    for (uint32_t by = 1; by < WARP; by *= 2) {
        uint64_t v = __shfl_up_sync(FULL, upto, by);

        upto += l >= static_cast<int32_t>(by) ? v : 0;
    }
    hit = __ballot_sync(FULL, mine > 0 && before + upto >= need);
    some = __ballot_sync(FULL, mine > 0);
    if (hit) /* its lowest lane, or the highest that has any */
        at = __popc(~hit & (hit - 1));
    else
        for (at = WARP - 1; at > 0 && !(some >> at & 1); at--)
            ;
    __syncwarp(); /* all have read s->before */
    if (l != at)
        return;
    before += upto - mine;
    for (int i = 0; i < 8; i++) {
        uint64_t h = s->hist[8 * l + i];

        if (h == 0)
            continue;
        if (bin >= 0)
            before += s->hist[8 * l + bin];
        bin = i;
        if (before + h >= need)
            break;
    }
    s->bin = static_cast<uint32_t>(8 * l + (bin < 0 ? 0 : bin));
    s->before = before;
}

/* The first key, in order, at which the weights of all up to it reach need >= 1, or the
 * last of any weight; weight(i) is 0 for what does not count. */
template <typename W>
MC_DEV uint64_t mc_row_cut(vocab_mem *s, const float *x, int32_t n, uint64_t need,
                           W weight)
{
    uint32_t prefix = 0;
    uint64_t before, each;
    int32_t id, me = static_cast<int32_t>(threadIdx.x);

    __syncthreads();
    if (me == 0)
        s->before = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        __syncthreads();
        if (me < 256)
            s->hist[me] = 0;
        __syncthreads();
        for (int32_t i = me; i < n; i += V_THREADS) {
            uint32_t key = static_cast<uint32_t>(mc_key(x[i], i) >> 32);
            uint64_t w;

            if (shift < 24 && key >> (shift + 8) != prefix)
                continue;
            w = weight(i);
            if (w)
                mc_atomic_add64(&s->hist[key >> shift & 255], w);
        }
        __syncthreads();
        if (mc_warp() == 0)
            mc_find_bin(s, need);
        __syncthreads();
        prefix = prefix << 8 | s->bin;
    }
    before = s->before;
    auto tie = [&](int32_t i) {
        return static_cast<uint32_t>(mc_key(x[i], i) >> 32) == prefix ? weight(i) : 0;
    };
    each = need > before ? need - before : 1;
    id = mc_row_walk(s, n, each, tie);
    return static_cast<uint64_t>(prefix) << 32 | static_cast<uint32_t>(id);
}

/* The k best that are not -inf, in order, to s->sorted; k <= MC_CANDS. Returns how many.
 */
MC_DEV int32_t mc_row_top(vocab_mem *s, const float *x, int32_t n, int32_t k)
{
    auto one = [&](int32_t i) { return static_cast<uint64_t>(x[i] > -INFINITY); };
    uint64_t cut = mc_row_cut(s, x, n, static_cast<uint64_t>(k), one);
    int32_t me = static_cast<int32_t>(threadIdx.x), m, rank = 0;

    __syncthreads();
    if (me == 0)
        s->n_keys = 0;
    __syncthreads();
    for (int32_t i = me; i < n; i += V_THREADS)
        if (x[i] > -INFINITY && mc_key(x[i], i) <= cut)
            s->keys[atomicAdd(&s->n_keys, 1u)] = mc_key(x[i], i);
    __syncthreads();
    m = static_cast<int32_t>(s->n_keys);
    if (me < m) {
        for (int32_t i = 0; i < m; i++)
            rank += s->keys[i] < s->keys[me];
        s->sorted[rank] = s->keys[me];
    }
    __syncthreads();
    return m;
}

#endif
