/* ragged.c - attn_ragged: long chunks attend to keys and values expanded from latents.
 *
 * A few rows of a chunk and one head at a time: each split's keys and values are made anew
 * from the latents as stored, in f32. Owns nothing; bodies run on a stream's threads. */
#include <math.h>
#include <string.h>

#include "kernels/host/fold.h"
#include "kernels/host/kv.h"
#include "kernels/ref/ref.h"

enum {
    MAX_D = 256, /* nope + r, and v */
    MAX_LATENT = 1024,
    ROWS = 16, /* that share an expansion */
};

struct expanded {
    float key[MC_SPLIT][MAX_D], value[MC_SPLIT][MAX_D];
};

static int attn_ragged_need(const struct mc_attn_ragged_p *p, struct mc_need *need,
                            const char **why)
{
    const char *no = mc_mla_refuse(&p->kv);

    (void)need;
    if (!no)
        no = mc_ref_act_refuse(p->act.layout, p->act.k);
    if (!no &&
        (p->kv.c + p->kv.r > MAX_LATENT || p->nope + p->kv.r > MAX_D || p->v > MAX_D))
        no = "attn_ragged: nope + r or v above 256, or a latent above 1024 values";
    if (!no && (p->kv_b.layout != MC_W_F32 || p->kv_b.n != p->h * (p->nope + p->v) ||
                p->kv_b.k != p->kv.c))
        no = "attn_ragged: kv_b is not [h*(nope+v), c] of f32";
    if (!no && (p->act.k != p->h * p->v || p->v % mc_ref_act_block(p->act.layout) != 0))
        no = "attn_ragged: columns that are not h*v, or v no block of theirs";
    return no ? mc_refuse(why, no) : 0;
}

/* Keys and values of positions [a, b) for a head. */
static void expand(const struct mc_attn_ragged_p *p, int32_t slot, int32_t head,
                   int32_t a, int32_t b, struct expanded *e)
{
    int32_t n0 = head * (p->nope + p->v), i;
    float x[MAX_LATENT];

    for (i = 0; i < b - a; i++) {
        mc_ref_latent(&p->kv, p->layer, slot, a + i, x);
        mc_ref_dots(x, &p->kv_b, n0, p->nope, e->key[i]);
        memcpy(e->key[i] + p->nope, x + p->kv.c, (size_t)p->kv.r * sizeof x[0]);
        mc_ref_dots(x, &p->kv_b, n0 + p->nope, p->v, e->value[i]);
    }
}

/* Row t over positions [a, b), expanded: {max, sum} and o[v]. */
static void attend(const struct mc_attn_ragged_p *p, int32_t t, int32_t head,
                   const struct expanded *e, int32_t n, float *ml, float *o)
{
    int32_t d = p->nope + p->kv.r, i, j;
    const float *q = (const float *)p->q + ((int64_t)t * p->h + head) * d;
    float score[MC_SPLIT], prob;

    ml[0] = -INFINITY;
    ml[1] = 0;
    for (j = 0; j < n; j++) {
        for (score[j] = 0, i = 0; i < d; i++)
            score[j] += q[i] * e->key[j][i];
        score[j] *= p->scale;
        ml[0] = score[j] > ml[0] ? score[j] : ml[0];
    }
    memset(o, 0, (size_t)p->v * sizeof o[0]);
    for (j = 0; j < n; j++) {
        prob = expf(score[j] - ml[0]);
        ml[1] += prob;
        for (i = 0; i < p->v; i++)
            o[i] += prob * e->value[j][i];
    }
}

/* Rows [t0, t1) of one chunk, at most ROWS. */
static void ragged_rows(const struct mc_attn_ragged_p *p, int32_t head, int32_t t0,
                        int32_t t1)
{
    const struct mc_rows *r = &p->rows;
    int32_t slot = r->slot[r->row_seq[t0]], last = r->pos[t1 - 1], t, a, b;
    float ml[ROWS][2], o[ROWS][MAX_D], ml1[2], o1[MAX_D];
    struct expanded e;

    for (t = 0; t < t1 - t0; t++) {
        ml[t][0] = -INFINITY;
        ml[t][1] = 0;
        memset(o[t], 0, sizeof o[t]);
    }
    for (a = 0; a <= last && !p->slots[slot].bad; a += MC_SPLIT) {
        int32_t from = a > p->first ? a : p->first;

        b = last + 1 < a + MC_SPLIT ? last + 1 : a + MC_SPLIT;
        if (from >= b)
            continue;
        expand(p, slot, head, from, b, &e);
        for (t = t0; t < t1; t++) {
            int32_t end = r->pos[t] + 1 < b ? r->pos[t] + 1 : b;

            if (from >= end)
                continue;
            attend(p, t, head, &e, end - from, ml1, o1);
            mc_fold(ml[t - t0], o[t - t0], ml1, o1, p->v);
        }
    }
    for (t = t0; t < t1; t++) {
        mc_fold_end(ml[t - t0], o[t - t0], p->v);
        mc_ref_act_put(&p->act, t, head * p->v, p->v, o[t - t0]);
    }
}

static void ragged_items(void *ctx, int64_t i0, int64_t i1, int lane)
{
    const struct mc_attn_ragged_p *p = ctx;
    const struct mc_rows *r = &p->rows;
    int32_t t, t0, t1, end, head;

    (void)lane;
    for (; i0 < i1; i0++) {
        head = (int32_t)(i0 % p->h);
        t0 = (int32_t)(i0 / p->h) * ROWS;
        end = t0 + ROWS < r->live[MC_LIVE_ROWS] ? t0 + ROWS : r->live[MC_LIVE_ROWS];
        for (t = t0; t < end; t = t1) {
            for (t1 = t + 1; t1 < end && r->row_seq[t1] == r->row_seq[t]; t1++)
                ;
            if (mc_row_is_long(r, t, p->long_rows))
                ragged_rows(p, head, t, t1);
        }
    }
}

static int attn_ragged(struct mc_par *par, const struct mc_attn_ragged_p *p)
{
    int64_t n = (p->rows.live[MC_LIVE_ROWS] + ROWS - 1) / ROWS;

    mc_par_for(par, n * p->h, 1, ragged_items, (void *)p);
    return 0;
}

MC_HOST_OP(mc_ref_attn_ragged, attn_ragged, attn_ragged_need, attn_ragged);
