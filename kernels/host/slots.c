/* slots.c - what changes sequence state: table_apply before a step, commit after it; and
 * gather_rows, which picks the rows that are sampled.
 *
 * counts [n_slot][V] are kept only for slots that sample with penalties, since nobody else
 * looks at them: clearing V counters at every admission would cost more than the admission.
 * Owns nothing; bodies run on a stream's threads. */
#include <string.h>

#include "kernels/host/cast.h"
#include "kernels/host/kv.h"
#include "kernels/host/host.h"

static void count_add(uint16_t *c, int by)
{
    int n = (*c & MC_COUNT_OUT) + by;

    n = n < 0 ? 0 : n > MC_COUNT_OUT ? MC_COUNT_OUT : n;
    *c = (uint16_t)((*c & MC_COUNT_SEEN) | n);
}

/* ---- table_apply ------------------------------------------------------------------- */

static bool delta_ok(const struct mc_table_apply_p *p, const struct mc_delta *d)
{
    if (d->slot < 0 || d->slot >= p->kv.n_slot)
        return false;
    switch (d->what) {
    case MC_DELTA_PAGE:
        return d->at >= 0 && d->at < p->kv.pitch && d->value < mc_kv_pages(&p->kv);
    case MC_DELTA_SLOT:
        return d->value >= 0;
    case MC_DELTA_BIAS:
        return d->at >= 0 && d->at < MC_MAX_BIAS;
    case MC_DELTA_SEEN:
    case MC_DELTA_GEN:
    case MC_DELTA_TOK:
        return d->value >= 0 && d->value < p->vocab;
    }
    return false;
}

static void delta_apply(const struct mc_table_apply_p *p, const struct mc_delta *d)
{
    struct mc_slot *slot = &p->slots[d->slot];
    uint16_t *counts = p->counts + (int64_t)d->slot * p->vocab;
    bool keep = slot->samp.flags & MC_SAMP_PENALTY;
    int64_t at = (int64_t)d->slot * p->kv.pitch + d->at;

    switch (d->what) {
    case MC_DELTA_PAGE:
        p->kv.table[at] = d->value;
        p->kv.want_tag[at] = d->tag;
        break;
    case MC_DELTA_SLOT:
        *slot = p->slots_in[d->value];
        if (slot->samp.flags & MC_SAMP_PENALTY)
            memset(counts, 0, (size_t)p->vocab * sizeof counts[0]);
        break;
    case MC_DELTA_SEEN:
        if (keep)
            counts[d->value] |= MC_COUNT_SEEN;
        break;
    case MC_DELTA_GEN:
        if (keep)
            count_add(&counts[d->value], 1);
        break;
    case MC_DELTA_BIAS:
        p->bias[(int64_t)d->slot * MC_MAX_BIAS + d->at] =
            (struct mc_bias){d->value, mc_f32_of_bits(d->tag)};
        break;
    case MC_DELTA_TOK:
        if (keep && slot->tok >= 0 && slot->tok < p->vocab)
            count_add(&counts[slot->tok], -1);
        if (keep)
            count_add(&counts[d->value], 1);
        slot->tok = d->value;
        break;
    }
}

static int table_apply(struct mc_par *par, const struct mc_table_apply_p *p)
{
    int32_t i;

    (void)par;
    if (p->rows_bytes)
        memcpy(p->rows_to, p->rows_from, p->rows_bytes);
    for (i = 0; i < p->n_delta; i++) {
        if (!delta_ok(p, &p->delta[i]))
            return MC_K_EINTERNAL;
        delta_apply(p, &p->delta[i]);
    }
    return 0;
}

MC_HOST_NEEDS_NOTHING(table_apply)
MC_HOST_OP(mc_host_table_apply, table_apply, table_apply_need, table_apply);

/* ---- gather_rows ------------------------------------------------------------------- */

static int gather_rows(struct mc_par *par, const struct mc_gather_rows_p *p)
{
    const float *norm = p->norm;
    float *out = p->out;
    int64_t r;

    (void)par;
    for (r = 0; r < p->rows.live[MC_LIVE_OUT]; r++)
        memcpy(out + r * p->h, norm + (int64_t)p->rows.out_row[r] * p->h,
               (size_t)p->h * sizeof out[0]);
    return 0;
}

MC_HOST_NEEDS_NOTHING(gather_rows)
MC_HOST_OP(mc_host_gather_rows, gather_rows, gather_rows_need, gather_rows);

/* ---- commit ------------------------------------------------------------------------ */

static int commit(struct mc_par *par, const struct mc_commit_p *p)
{
    int64_t r;

    (void)par;
    for (r = 0; r < p->rows.live[MC_LIVE_OUT]; r++) {
        const struct mc_out *out = &p->out[r];
        struct mc_slot *slot = &p->slots[out->slot];

        if (p->ring)
            p->ring[r] = *out;
        slot->bad |= out->bad;
        if (out->tok < 0 || (p->rows.target && p->rows.target[r] >= 0))
            continue;
        slot->tok = out->tok;
        slot->pos = out->pos;
        slot->n_gen++;
        if (slot->samp.flags & MC_SAMP_PENALTY)
            count_add(&p->counts[(int64_t)out->slot * p->vocab + out->tok], 1);
    }
    return 0;
}

MC_HOST_NEEDS_NOTHING(commit)
MC_HOST_OP(mc_host_commit, commit, commit_need, commit);
