/* sample.c - one token a row, drawn exactly over the whole vocabulary.
 *
 * What may be drawn is a set "key <= cut and weight >= min_p", weights exp(x - max); a draw
 * walks it in rising ids until the weights pass u times their sum. Sets of at most MC_LIST
 * ids are walked as a list, wider ones in the row. Which way is taken depends on the row's
 * own values only, so a draw does not depend on the batch.
 * Owns nothing; bodies run on a stream's threads. scratch: f32 [R][blocks of a row]. */
#include <math.h>
#include <string.h>

#include "kernels/comm/comm.h"
#include "kernels/host/host.h"
#include "kernels/host/philox.h"
#include "kernels/host/vocab.h"

enum { FIRST_LIST = 64 }; /* a nucleus is looked for among so many, then more */

struct row {
    const float *x;   /* processed logits */
    int32_t n;        /* real vocabulary */
    float max;
    float *block;     /* scratch: a value a block */
    double u;
};

static float weight(const struct row *w, int32_t id)
{
    return mc_vocab_exp(w->x[id] - w->max);
}

/* ---- draws ------------------------------------------------------------------------- */

static const struct mc_vset ALL = {.low = -INFINITY, .last = -1};

/* Over a set: sums of blocks, then one block. */
static int32_t draw_set(const struct row *w, struct mc_vset set)
{
    int32_t nb = mc_vblocks(w->n), b, i, tok = -1;
    double sum = 0, at;

    at = w->u * mc_vocab_sum_set(w->x, w->n, w->max, set, w->block);
    for (b = 0; b < nb - 1 && sum + (double)w->block[b] <= at; b++)
        sum += (double)w->block[b];
    /* A block's f32 sum may round above its parts' total: then the walk goes on, and at the
     * row's end the last possible id is drawn. */
    for (i = b * MC_VBLOCK; i < w->n; i++) {
        float p = weight(w, i);

        if (p == 0 || !mc_vset_has(set, w->x[i], i, p))
            continue;
        tok = i;
        sum += (double)p;
        if (sum > at)
            break;
    }
    return tok;
}

/* Over the first n of a list. */
static int32_t draw_list(const struct row *w, uint64_t *keys, int32_t n)
{
    double sum = 0, at;
    int32_t i;

    for (i = 0; i < n; i++)
        keys[i] = (uint64_t)mc_key_id(keys[i]);
    mc_vocab_sort(keys, n);
    for (i = 0; i < n; i++)
        sum += weight(w, mc_key_id(keys[i]));
    at = w->u * sum;
    sum = 0;
    for (i = 0; i < n - 1; i++) {
        sum += weight(w, mc_key_id(keys[i]));
        if (sum > at)
            break;
    }
    return mc_key_id(keys[i]);
}

/* ---- what may be drawn ------------------------------------------------------------- */

/* How many of the list's first it takes to reach mass; n + 1 when all are too few. */
static int32_t nucleus(const struct row *w, const uint64_t *keys, int32_t n, double mass)
{
    double sum = 0;
    int32_t i;

    for (i = 0; i < n; i++) {
        sum += weight(w, mc_key_id(keys[i]));
        if (sum >= mass)
            return i + 1;
    }
    return n + 1;
}

/* How many of the list's first have weight min_p; at least one. */
static int32_t above(const struct row *w, const uint64_t *keys, int32_t n, float min_p)
{
    while (n > 1 && weight(w, mc_key_id(keys[n - 1])) < min_p)
        n--;
    return n;
}

static double mass_of(const struct row *w, const uint64_t *keys, int32_t n)
{
    double sum = 0;
    int32_t i;

    for (i = 0; i < n; i++)
        sum += weight(w, mc_key_id(keys[i]));
    return sum;
}

/* top_k of a list's size: everything happens in the list. */
static int32_t draw_top_k(const struct row *w, const struct mc_samp *s)
{
    uint64_t keys[MC_LIST];
    int32_t n, m;

    mc_vocab_max(w->x, w->n, w->block);
    n = mc_vocab_top(w->x, w->n, s->top_k, w->block, keys);
    if (s->top_p < 1) {
        m = nucleus(w, keys, n, s->top_p * mass_of(w, keys, n));
        n = m < n ? m : n;
    }
    return draw_list(w, keys, above(w, keys, n, s->min_p));
}

static struct mc_vset to_cut(uint64_t key)
{
    return (struct mc_vset){.low = mc_key_value(key), .last = mc_key_id(key)};
}

/* top_p, min_p, or a top_k beyond a list. */
static int32_t draw_top_p(const struct row *w, const struct mc_samp *s)
{
    uint64_t keys[MC_LIST], cut = UINT64_MAX;
    struct mc_vset set = ALL;
    double mass;
    int32_t k, n, m;

    if (s->top_k > 0 && s->top_k < w->n) {
        cut = mc_vocab_cut(w->x, w->n, NAN, s->top_k, cut);
        set = to_cut(cut);
    }
    if (s->top_p < 1) {
        mass = (double)s->top_p * mc_vocab_sum_set(w->x, w->n, w->max, set, NULL);
        mc_vocab_max(w->x, w->n, w->block);
        for (k = FIRST_LIST; k <= MC_LIST; k *= 4) { /* most nuclei are narrow */
            n = mc_vocab_top(w->x, w->n, k, w->block, keys);
            m = nucleus(w, keys, n, mass);
            if (m <= n)
                return draw_list(w, keys, above(w, keys, m, s->min_p));
        }
        set = to_cut(mc_vocab_cut(w->x, w->n, w->max, mass, cut));
    }
    set.min_p = s->min_p < 1 ? s->min_p : 1; /* the best stays */
    return draw_set(w, set);
}

static int32_t draw(const struct row *w, const struct mc_samp *s)
{
    bool top_k = s->top_k > 0 && s->top_k < w->n;

    if (s->temperature < MC_GREEDY_BELOW || s->top_k == 1)
        return mc_vocab_next(w->x, 0, w->n, w->max, w->max);
    if (top_k && s->top_k <= MC_LIST)
        return draw_top_k(w, s);
    if (top_k || s->top_p < 1 || s->min_p > 0)
        return draw_top_p(w, s);
    return draw_set(w, ALL);
}

/* ---- what the host sees ------------------------------------------------------------ */

static void list_top(const struct row *w, const float *raw, float raw_lse,
                     struct mc_out *out)
{
    uint64_t keys[MC_TOP];
    int32_t i;

    mc_vocab_max(raw, w->n, w->block);
    out->n_top = mc_vocab_top(raw, w->n, MC_TOP, w->block, keys);
    for (i = 0; i < out->n_top; i++) {
        out->top_id[i] = mc_key_id(keys[i]);
        out->top_logprob[i] = raw[out->top_id[i]] - raw_lse;
    }
}

static void list_cands(const struct row *w, float lse, struct mc_out *out)
{
    uint64_t keys[MC_CANDS];
    double rest = 1;
    int32_t i;

    mc_vocab_max(w->x, w->n, w->block);
    out->n_cand = mc_vocab_top(w->x, w->n, MC_CANDS, w->block, keys);
    for (i = 0; i < out->n_cand; i++) {
        out->cand_id[i] = mc_key_id(keys[i]);
        out->cand_logit[i] = w->x[out->cand_id[i]];
        out->cand_p[i] = expf(out->cand_logit[i] - lse);
        rest -= out->cand_p[i];
    }
    out->rest = rest > 0 ? (float)rest : 0;
    out->lse = lse;
}

static void sample_row(const struct mc_sample_p *p, int32_t r)
{
    int32_t at = mc_peer_row(&p->peer, r);
    int32_t target = p->rows.target ? p->rows.target[at] : -1;
    int32_t t = p->rows.out_row[at], slot = p->rows.slot[p->rows.row_seq[t]], tok;
    const struct mc_slot *sl = &p->slots[slot];
    const float *raw = p->raw + (int64_t)r * p->pitch, *stat = p->stat + (int64_t)r * 4;
    struct mc_out *out = memset(&p->out[r], 0, sizeof *out);
    struct row w = {
        .x = p->logits + (int64_t)r * p->pitch,
        .n = p->n_real,
        .max = stat[0],
        .block = (float *)p->scratch + (int64_t)r * mc_vblocks(p->n_real),
    };

    out->slot = slot;
    out->pos = p->rows.pos[t] + 1;
    out->tok = -1;
    out->bad = sl->bad | (isfinite(stat[0]) ? 0 : MC_BAD_LOGITS);
    if (out->bad)
        return;
    w.u = mc_philox_draw(sl->samp.seed_lo, sl->samp.seed_hi, out->pos);
    tok = target >= 0 ? target : draw(&w, &sl->samp);
    if (tok < 0 || tok >= p->n_real) { /* settings that nobody should have let through */
        out->bad = MC_BAD_LOGITS;
        return;
    }
    out->tok = tok;
    out->logprob = raw[out->tok] - stat[3];
    out->raw_lse = stat[3];
    if (sl->samp.flags & MC_SAMP_TOP)
        list_top(&w, raw, stat[3], out);
    if (sl->samp.flags & MC_SAMP_CANDS && target < 0)
        list_cands(&w, stat[1], out);
}

static void sample_rows(void *ctx, int64_t r0, int64_t r1, int lane)
{
    int64_t r;

    (void)lane;
    for (r = r0; r < r1; r++)
        sample_row(ctx, (int32_t)r);
}

static int sample(struct mc_par *par, const struct mc_sample_p *p)
{
    mc_par_for(par, mc_peer_rows(&p->peer, p->rows.live[MC_LIVE_OUT]), 1, sample_rows,
               (void *)p);
    return 0;
}

static int sample_need(const struct mc_sample_p *p, struct mc_need *need,
                       const char **why)
{
    if (p->vocab < 1 || p->n_real < 1 || p->n_real > p->vocab || p->pitch < p->vocab)
        return mc_refuse(why, "sample: n_real <= vocab <= pitch does not hold");
    need->scratch = (size_t)p->rows.cap_out * (size_t)mc_vblocks(p->n_real) *
                    sizeof(float);
    return 0;
}

MC_HOST_OP(mc_host_sample, sample, sample_need, sample);
