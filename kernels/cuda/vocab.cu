/* vocab.cu - chain, sample, nll: a block a row of logits. */
#include "kernels/cuda/vocab.cuh"
#include "kernels/host/philox.h"

/* ---- chain ------------------------------------------------------------------------- */

MC_DEV float penalised(const struct mc_samp &s, uint16_t count, float x)
{
    int32_t n = count & MC_COUNT_OUT;

    if (count == 0)
        return x;
    x = x > 0 ? x / s.rep : x * s.rep;
    return n > 0 ? x - (s.presence + s.frequency * static_cast<float>(n)) : x;
}

/* An id's logit belongs to one thread all along, so nothing here waits. */
MC_DEV bool change(const struct mc_chain_p &p, int32_t slot, float *x)
{
    const struct mc_slot &sl = p.slots[slot];
    const struct mc_samp &s = sl.samp;
    const struct mc_bias *bias = p.bias + static_cast<int64_t>(slot) * MC_MAX_BIAS;
    const uint16_t *counts = p.counts + static_cast<int64_t>(slot) * p.vocab;
    int32_t me = static_cast<int32_t>(threadIdx.x), words = (p.vocab + 31) / 32, i, j;
    bool eos = sl.n_gen < s.no_eos_until, penalty = s.flags & MC_SAMP_PENALTY;

    for (i = 0; i < s.n_bias; i++)
        if (bias[i].id >= 0 && bias[i].id < p.n_real && bias[i].id % V_THREADS == me)
            x[bias[i].id] += bias[i].add;
    for (i = me; i < p.vocab; i += V_THREADS) {
        bool banned = i >= p.n_real;

        for (j = 0; j < s.n_ban; j++)
            banned |= p.masks[static_cast<int64_t>(s.ban[j]) * words + i / 32] >> i % 32 &
                      1;
        if (banned)
            x[i] = -INFINITY;
    }
    for (i = 0; eos && i < p.n_eos; i++)
        if (p.eos[i] >= 0 && p.eos[i] < p.vocab && p.eos[i] % V_THREADS == me)
            x[p.eos[i]] = -INFINITY;
    for (i = me; penalty && i < p.n_real; i += V_THREADS)
        x[i] = penalised(s, counts[i], x[i]);
    return s.n_bias > 0 || s.n_ban > 0 || eos || penalty;
}

MC_KERNEL(k_chain, struct mc_chain_p)
{
    int32_t r = static_cast<int32_t>(blockIdx.x), me = static_cast<int32_t>(threadIdx.x),
            slot;
    vocab_mem *s = mc_shared<vocab_mem>();
    float *x = p.logits + static_cast<int64_t>(r) * p.pitch;
    float *raw = p.raw + static_cast<int64_t>(r) * p.pitch, top, lse, raw_top, raw_lse, t;
    bool changed;

    if (r >= mc_peer_rows(&p.peer, p.rows.live[MC_LIVE_OUT]))
        return;
    slot = p.rows.slot[p.rows.row_seq[p.rows.out_row[mc_peer_row(&p.peer, r)]]];
    for (int32_t i = me; i < p.n_real; i += V_THREADS)
        raw[i] = x[i];
    top = raw_top = mc_row_max(s, x, p.n_real);
    lse = raw_lse = mc_row_lse(s, x, p.n_real, top);
    if (isfinite(raw_top)) {
        __syncthreads(); /* warps read others' logits for the sum */
        changed = change(p, slot, x);
        if (changed)
            top = mc_row_max(s, x, p.n_real);
        t = p.slots[slot].samp.temperature;
        if (t >= MC_GREEDY_BELOW && t != 1) {
            for (int32_t i = me; i < p.n_real; i += V_THREADS)
                x[i] /= t;
            top /= t; /* the greatest stays the greatest */
            changed = true;
        }
        __syncthreads();
        if (changed)
            lse = mc_row_lse(s, x, p.n_real, top);
    }
    if (me == 0) {
        float *stat = p.stat + static_cast<int64_t>(r) * 4;

        stat[0] = top;
        stat[1] = lse;
        stat[2] = raw_top;
        stat[3] = raw_lse;
    }
}

/* ---- sample ------------------------------------------------------------------------ */

MC_DEV int32_t draw(vocab_mem *s, const float *x, int32_t n, float max,
                    const struct mc_samp &sp, int32_t pos)
{
    vset v = {UINT64_MAX, max, 0};
    uint64_t total, at;

    if (sp.temperature < MC_GREEDY_BELOW || sp.top_k == 1)
        return mc_row_walk(s, n, 1,
                           [&](int32_t i) { return static_cast<uint64_t>(x[i] == max); });
    auto weight = [&](int32_t i) { return mc_set_weight(v, x[i], i); };
    if (sp.top_k > 0 && sp.top_k < n) {
        auto one = [&](int32_t i) { return static_cast<uint64_t>(x[i] > -INFINITY); };

        v.cut = mc_row_cut(s, x, n, static_cast<uint64_t>(sp.top_k), one);
    }
    if (sp.top_p < 1) {
        total = mc_row_total(s, n, weight);
        at = static_cast<uint64_t>(ceil(static_cast<double>(sp.top_p) *
                                        static_cast<double>(total)));
        v.cut = mc_row_cut(s, x, n, at > 0 ? at : 1, weight);
    }
    v.min_p = sp.min_p < 1 ? sp.min_p : 1; /* the best stays */
    total = mc_row_total(s, n, weight);
    at = static_cast<uint64_t>(mc_philox_draw(sp.seed_lo, sp.seed_hi, pos) *
                               static_cast<double>(total));
    return mc_row_walk(s, n, (at < total ? at : total - 1) + 1, weight);
}

MC_DEV void list_top(vocab_mem *s, const float *raw, int32_t n, float lse,
                     struct mc_out &out)
{
    int32_t m = mc_row_top(s, raw, n, MC_TOP), me = static_cast<int32_t>(threadIdx.x);

    if (me == 0)
        out.n_top = m;
    if (me < m) {
        out.top_id[me] = mc_key_id(s->sorted[me]);
        out.top_logprob[me] = raw[mc_key_id(s->sorted[me])] - lse;
    }
}

MC_DEV void list_cands(vocab_mem *s, const float *x, int32_t n, float lse,
                       struct mc_out &out)
{
    int32_t m = mc_row_top(s, x, n, MC_CANDS), me = static_cast<int32_t>(threadIdx.x);
    double rest = 1;

    if (me < m) {
        out.cand_id[me] = mc_key_id(s->sorted[me]);
        out.cand_logit[me] = x[mc_key_id(s->sorted[me])];
        out.cand_p[me] = expf(x[mc_key_id(s->sorted[me])] - lse);
    }
    if (me != 0)
        return;
    for (int32_t i = 0; i < m; i++)
        rest -= static_cast<double>(expf(x[mc_key_id(s->sorted[i])] - lse));
    out.n_cand = m;
    out.rest = rest > 0 ? static_cast<float>(rest) : 0;
    out.lse = lse;
}

MC_KERNEL(k_sample, struct mc_sample_p)
{
    int32_t r = static_cast<int32_t>(blockIdx.x), me = static_cast<int32_t>(threadIdx.x);
    int32_t at, t, slot, target, tok, pos;
    vocab_mem *s = mc_shared<vocab_mem>();
    const float *x = p.logits + static_cast<int64_t>(r) * p.pitch,
                *stat = p.stat + 4LL * r;
    const float *raw = p.raw + static_cast<int64_t>(r) * p.pitch;
    struct mc_out &out = p.out[r];
    uint32_t bad;

    if (r >= mc_peer_rows(&p.peer, p.rows.live[MC_LIVE_OUT]))
        return;
    at = mc_peer_row(&p.peer, r);
    t = p.rows.out_row[at];
    slot = p.rows.slot[p.rows.row_seq[t]];
    target = p.rows.target ? p.rows.target[at] : -1;
    pos = p.rows.pos[t] + 1;
    const struct mc_slot &sl = p.slots[slot];

    bad = sl.bad | (isfinite(stat[0]) ? 0u : static_cast<uint32_t>(MC_BAD_LOGITS));
    for (uint32_t i = threadIdx.x; i < sizeof out / 4; i += V_THREADS)
        reinterpret_cast<uint32_t *>(&out)[i] = 0;
    tok = -1;
    if (!bad) {
        tok = target >= 0 ? target : draw(s, x, p.n_real, stat[0], sl.samp, pos);
        if (tok < 0 ||
            tok >= p.n_real) { /* settings that nobody should have let through */
            tok = -1;
            bad = MC_BAD_LOGITS;
        }
    }
    __syncthreads();
    if (me == 0) {
        out.slot = slot;
        out.pos = pos;
        out.tok = tok;
        out.bad = bad;
        out.logprob = bad ? 0 : raw[tok] - stat[3];
        out.raw_lse = bad ? 0 : stat[3];
    }
    if (bad)
        return;
    if (sl.samp.flags & MC_SAMP_TOP)
        list_top(s, raw, p.n_real, stat[3], out);
    if (sl.samp.flags & MC_SAMP_CANDS && target < 0)
        list_cands(s, x, p.n_real, stat[1], out);
}

/* ---- nll --------------------------------------------------------------------------- */

MC_KERNEL(k_nll, struct mc_nll_p)
{
    int32_t r = static_cast<int32_t>(blockIdx.x), to;
    vocab_mem *s = mc_shared<vocab_mem>();
    const float *x = p.logits + static_cast<int64_t>(r) * p.pitch;
    float lse = 0;

    if (r >= *p.n_live)
        return;
    to = p.target[r];
    if (to >= 0 && to < p.n_real)
        lse = mc_row_lse(s, x, p.n_real, mc_row_max(s, x, p.n_real));
    if (threadIdx.x == 0) {
        p.lse[r] = lse;
        p.nll[r] = to >= 0 && to < p.n_real ? lse - x[to] : 0;
    }
}
