/* rows.c - embed, join, mtp_in: what happens to a whole row of the residual stream; norm
 * and rope, which attention shares. Owns nothing; bodies run on a stream's threads. */
#include <math.h>
#include <string.h>

#include "kernels/comm/comm.h"
#include "kernels/ref/ref.h"

void mc_ref_norm(const float *x, const float *w, float eps, int32_t n, float *out)
{
    float sum = 0, r;
    int32_t i;

    for (i = 0; i < n; i++)
        sum += x[i] * x[i];
    r = 1 / sqrtf(sum / (float)n + eps);
    for (i = 0; i < n; i++)
        out[i] = x[i] * r * w[i];
}

void mc_ref_rope(float *x, const struct mc_rope *rope, int32_t pos)
{
    int32_t half = rope->dim / 2, i;

    x += rope->off;
    for (i = 0; i < half; i++) {
        int32_t a = rope->pair == MC_ROPE_HALVES ? i : 2 * i;
        int32_t b = rope->pair == MC_ROPE_HALVES ? i + half : 2 * i + 1;
        float angle = (float)pos * rope->inv_freq[i];
        float c = cosf(angle) * rope->mul, s = sinf(angle) * rope->mul;
        float xa = x[a], xb = x[b];

        x[a] = xa * c - xb * s;
        x[b] = xb * c + xa * s;
    }
}

/* ---- embed ------------------------------------------------------------------------- */

static int embed_need(const struct mc_embed_p *p, struct mc_need *need, const char **why)
{
    (void)need;
    return p->w.layout == MC_W_F32 ? 0 : mc_refuse(why, "embed: weights are not f32");
}

static void embed_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    const struct mc_embed_p *p = ctx;
    const struct mc_rows *r = &p->rows;
    int64_t t, k = p->w.k;

    (void)lane;
    for (t = t0; t < t1; t++) {
        int32_t tok = r->tok[t] >= 0 ? r->tok[t] : p->slots[r->slot[r->row_seq[t]]].tok;
        int64_t row = (int64_t)tok - p->row0;
        float *x = (float *)p->x + t * k;

        if (row >= 0 && row < p->w.n)
            memcpy(x, (const float *)p->w.q + row * k, (size_t)k * sizeof x[0]);
        else
            memset(x, 0, (size_t)k * sizeof x[0]);
    }
}

static int embed(struct mc_par *par, const struct mc_embed_p *p)
{
    mc_par_for(par, p->rows.live[MC_LIVE_ROWS], 8, embed_rows, (void *)p);
    return 0;
}

MC_HOST_OP(mc_ref_embed, embed, embed_need, embed);

/* ---- join -------------------------------------------------------------------------- */

static int join_need(const struct mc_join_p *p, struct mc_need *need, const char **why)
{
    const char *no = p->w && p->act.x ? mc_ref_act_refuse(p->act.layout, p->h) : NULL;

    if (no)
        return mc_refuse(why, no);
    need->scratch = 0;
    return 0;
}

/* What the ranks bring, in their order; one when there is no other. */
struct parts {
    const struct mc_join_p *p;
    const void *const *x;
    int32_t n;
};

static void join_row(const struct parts *in, int32_t t)
{
    const struct mc_join_p *p = in->p;
    int64_t at = (int64_t)t * p->h;
    float *res = (float *)p->res + at;
    float sum = 0, r, norm[128];
    int32_t i, j, n;

    for (i = 0; i < p->h; i++) {
        float x = ((const float *)in->x[0])[at + i];

        for (j = 1; j < in->n; j++)
            x += ((const float *)in->x[j])[at + i];
        res[i] = p->first ? x : res[i] + x;
        sum += res[i] * res[i];
    }
    if (!p->w)
        return;
    r = 1 / sqrtf(sum / (float)p->h + p->eps);
    for (i = 0; i < p->h; i += n) { /* 128: a whole block of every layout */
        n = p->h - i < 128 ? p->h - i : 128;
        for (j = 0; j < n; j++)
            norm[j] = res[i + j] * r * p->w[i + j];
        if (p->act.x)
            mc_ref_act_put(&p->act, t, i, n, norm);
        if (p->norm_out)
            memcpy((float *)p->norm_out + at + i, norm, (size_t)n * 4);
    }
}

static void join_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    int64_t t;

    (void)lane;
    for (t = t0; t < t1; t++)
        join_row(ctx, (int32_t)t);
}

static int join(struct mc_par *par, const struct mc_join_p *p)
{
    int32_t rows = p->rows.live[MC_LIVE_ROWS];
    struct parts in = {p, &p->x, 1};
    int rc = 0;

    if (p->peer.n > 1) {
        rc = mc_comm_meet(&p->peer, MC_OP_join, (uint64_t)rows, p->x, &in.x);
        in.n = p->peer.n;
    }
    if (rc == 0)
        mc_par_for(par, rows, 1, join_rows, &in);
    return rc;
}

MC_HOST_OP(mc_ref_join, join, join_need, join);

/* ---- mtp_in ------------------------------------------------------------------------ */

static int mtp_in_need(const struct mc_mtp_in_p *p, struct mc_need *need,
                       const char **why)
{
    const char *no = mc_ref_act_refuse(p->act.layout, p->act.k);

    (void)need;
    if (!no && (p->act.k != 2 * p->h || p->act.k > MC_REF_MAX_K))
        no = "mtp_in: columns that are not 2 h, or more than 65536 of them";
    return no ? mc_refuse(why, no) : 0;
}

static void mtp_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    const struct mc_mtp_in_p *p = ctx;
    float row[MC_REF_MAX_K];
    int32_t h = p->h;
    int64_t t;

    (void)lane;
    for (t = t0; t < t1; t++) {
        mc_ref_norm((const float *)p->emb + t * h, p->enorm, p->eps, h, row);
        mc_ref_norm((const float *)p->hidden + t * h, p->hnorm, p->eps, h, row + h);
        mc_ref_act_put(&p->act, (int32_t)t, 0, 2 * h, row);
    }
}

static int mtp_in(struct mc_par *par, const struct mc_mtp_in_p *p)
{
    mc_par_for(par, *p->n_live, 1, mtp_rows, (void *)p);
    return 0;
}

MC_HOST_OP(mc_ref_mtp_in, mtp_in, mtp_in_need, mtp_in);
