/* chain.c - from raw logits to processed ones, and nll.
 *
 * A row is read once for its copy and maximum, once for its log-sum-exp, and again only
 * for what its sequence asks for: most rows ask for a temperature or nothing.
 * Owns nothing; bodies run on a stream's threads. */
#include <math.h>
#include <string.h>

#include "kernels/comm/comm.h"
#include "kernels/host/host.h"
#include "kernels/host/vocab.h"

static void ban_masks(const struct mc_chain_p *p, const struct mc_samp *s, float *x)
{
    int32_t words = (p->vocab + 31) / 32, i, w;
    uint32_t m;

    for (i = 0; i < s->n_ban; i++) {
        const uint32_t *mask = p->masks + (int64_t)s->ban[i] * words;

        for (w = 0; w < words; w++)
            for (m = mask[w]; m != 0; m &= m - 1)
                x[w * 32 + __builtin_ctz(m)] = -INFINITY;
    }
}

static void penalise(const struct mc_chain_p *p, const struct mc_samp *s, int32_t slot,
                     float *x)
{
    const uint16_t *c = p->counts + (int64_t)slot * p->vocab;
    uint64_t four;
    int32_t i, n;

    for (i = 0; i < p->n_real; i++) {
        if (i % 4 == 0 && i + 4 <= p->n_real) { /* most are 0: skip four at a time */
            memcpy(&four, c + i, sizeof four);
            if (four == 0) {
                i += 3;
                continue;
            }
        }
        if (c[i] == 0)
            continue;
        n = c[i] & MC_COUNT_OUT;
        x[i] = x[i] > 0 ? x[i] / s->rep : x[i] * s->rep;
        if (n > 0)
            x[i] -= s->presence + s->frequency * (float)n;
    }
}

/* Returns whether anything but padding may have changed. */
static bool change(const struct mc_chain_p *p, int32_t slot, float *x)
{
    const struct mc_slot *sl = &p->slots[slot];
    const struct mc_samp *s = &sl->samp;
    const struct mc_bias *bias = p->bias + (int64_t)slot * MC_MAX_BIAS;
    bool eos = sl->n_gen < s->no_eos_until;
    int32_t i;

    for (i = p->n_real; i < p->vocab; i++)
        x[i] = -INFINITY;
    for (i = 0; i < s->n_bias; i++)
        if (bias[i].id >= 0 && bias[i].id < p->n_real)
            x[bias[i].id] += bias[i].add;
    ban_masks(p, s, x);
    if (eos)
        for (i = 0; i < p->n_eos; i++)
            if (p->eos[i] >= 0 && p->eos[i] < p->vocab)
                x[p->eos[i]] = -INFINITY;
    if (s->flags & MC_SAMP_PENALTY)
        penalise(p, s, slot, x);
    return s->n_bias > 0 || s->n_ban > 0 || eos || s->flags & MC_SAMP_PENALTY;
}

static float lse(const float *x, int32_t n, float max)
{
    return isfinite(max) ? max + (float)log(mc_vocab_sum(x, n, max, NULL)) : max;
}

static void chain_row(const struct mc_chain_p *p, int32_t r)
{
    float *x = p->logits + (int64_t)r * p->pitch, *stat = p->stat + (int64_t)r * 4, t;
    int32_t t0 = p->rows.out_row[mc_peer_row(&p->peer, r)];
    int32_t slot = p->rows.slot[p->rows.row_seq[t0]];
    bool changed;

    memcpy(p->raw + (int64_t)r * p->pitch, x, (size_t)p->n_real * sizeof x[0]);
    stat[2] = mc_vocab_max(x, p->n_real, NULL);
    stat[0] = stat[1] = stat[3] = stat[2];
    if (!isfinite(stat[2]))
        return;
    stat[1] = stat[3] = lse(x, p->n_real, stat[2]);
    changed = change(p, slot, x);
    if (changed)
        stat[0] = mc_vocab_max(x, p->n_real, NULL);
    t = p->slots[slot].samp.temperature;
    if (t >= MC_GREEDY_BELOW && t != 1) {
        mc_vocab_divide(x, p->n_real, t);
        stat[0] /= t; /* the greatest stays the greatest */
        changed = true;
    }
    if (changed)
        stat[1] = lse(x, p->n_real, stat[0]);
}

static void chain_rows(void *ctx, int64_t r0, int64_t r1, int lane)
{
    int64_t r;

    (void)lane;
    for (r = r0; r < r1; r++)
        chain_row(ctx, (int32_t)r);
}

static int chain(struct mc_par *par, const struct mc_chain_p *p)
{
    mc_par_for(par, mc_peer_rows(&p->peer, p->rows.live[MC_LIVE_OUT]), 1, chain_rows,
               (void *)p);
    return 0;
}

static int chain_need(const struct mc_chain_p *p, struct mc_need *need, const char **why)
{
    (void)need;
    if (p->vocab < 1 || p->n_real < 1 || p->n_real > p->vocab || p->pitch < p->vocab)
        return mc_refuse(why, "chain: n_real <= vocab <= pitch does not hold");
    return 0;
}

MC_HOST_OP(mc_host_chain, chain, chain_need, chain);

/* ---- nll --------------------------------------------------------------------------- */

static void nll_rows(void *ctx, int64_t r0, int64_t r1, int lane)
{
    const struct mc_nll_p *p = ctx;
    int64_t r;

    (void)lane;
    for (r = r0; r < r1; r++) {
        const float *x = p->logits + r * p->pitch;
        int32_t to = p->target[r];

        if (to < 0 || to >= p->n_real) {
            p->nll[r] = p->lse[r] = 0;
            continue;
        }
        p->lse[r] = lse(x, p->n_real, mc_vocab_max(x, p->n_real, NULL));
        p->nll[r] = p->lse[r] - x[to];
    }
}

static int nll(struct mc_par *par, const struct mc_nll_p *p)
{
    mc_par_for(par, *p->n_live, 1, nll_rows, (void *)p);
    return 0;
}

MC_HOST_NEEDS_NOTHING(nll)
MC_HOST_OP(mc_host_nll, nll, nll_need, nll);
