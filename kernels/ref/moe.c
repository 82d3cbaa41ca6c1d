/* moe.c - route and moe: which experts a row goes to, and what they make of it.
 *
 * A row's sums are its own, place by place: the lists by expert, which are for bodies
 * that read an expert's weights once for all of its rows, only say where a place's mid
 * lies. Owns nothing; bodies run on a stream's threads. */
#include <math.h>
#include <string.h>

#include "kernels/ref/ref.h"

enum { MAX_E = 1024 }; /* experts, on the stack */

/* ---- route ------------------------------------------------------------------------- */

static int route_need(const struct mc_route_p *p, struct mc_need *need, const char **why)
{
    int32_t e = p->w.n;

    (void)need;
    if (p->w.layout != MC_W_F32)
        return mc_refuse(why, "route: weights are not f32");
    if (e > MAX_E || p->top_k < 1 || p->top_k > e)
        return mc_refuse(why, "route: 1 <= top_k <= experts <= 1024 does not hold");
    if (p->n_group > 1 && (e % p->n_group != 0 || p->topk_group < 1 ||
                           p->topk_group > p->n_group ||
                           p->topk_group * (e / p->n_group) < p->top_k))
        return mc_refuse(why,
                         "route: groups that do not divide the experts or are too few");
    return 0;
}

/* The k largest of v[n], largest first; the lowest index on ties. */
static void largest(const float *v, int32_t n, int32_t k, int32_t *ids)
{
    bool taken[MAX_E] = {false};
    int32_t i, j, best;

    for (j = 0; j < k; j++) {
        for (best = -1, i = 0; i < n; i++)
            if (!taken[i] && (best < 0 || v[i] > v[best]))
                best = i;
        taken[best] = true;
        ids[j] = best;
    }
}

/* Leaves only the experts of the best groups: those whose two best sum highest. */
static void mask_groups(float *v, int32_t n_expert, int32_t n_group, int32_t keep)
{
    float sum[MAX_E];
    int32_t n = n_expert / n_group, g, two[2], kept[MAX_E];
    bool in[MAX_E] = {false};

    for (g = 0; g < n_group; g++) {
        largest(v + g * n, n, n < 2 ? n : 2, two);
        sum[g] = n < 2 ? v[g] : v[g * n + two[0]] + v[g * n + two[1]];
    }
    largest(sum, n_group, keep, kept);
    for (g = 0; g < keep; g++)
        in[kept[g]] = true;
    for (g = 0; g < n_expert; g++)
        if (!in[g / n])
            v[g] = -INFINITY;
}

/* Logits become scores. */
static void scores(float *x, int32_t n, bool softmax)
{
    float max = -INFINITY, sum = 0;
    int32_t i;

    for (i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (i = 0; i < n; i++) {
        x[i] = softmax ? expf(x[i] - max) : 1 / (1 + expf(-x[i]));
        sum += x[i];
    }
    for (i = 0; softmax && i < n; i++)
        x[i] /= sum;
}

static void route_row(const struct mc_route_p *p, int32_t t)
{
    int32_t *ids = p->ids + (int64_t)t * p->top_k, n = p->w.n, i;
    float *weights = p->weights + (int64_t)t * p->top_k, sum = 0;
    float score[MAX_E], pick[MAX_E];

    mc_ref_dots((const float *)p->x + (int64_t)t * p->w.k, &p->w, 0, n, score);
    scores(score, n, p->softmax);
    for (i = 0; i < n; i++)
        pick[i] = p->bias ? score[i] + p->bias[i] : score[i];
    if (p->n_group > 1)
        mask_groups(pick, n, p->n_group, p->topk_group);
    largest(pick, n, p->top_k, ids);
    for (i = 0; i < p->top_k; i++)
        sum += score[ids[i]];
    for (i = 0; i < p->top_k; i++)
        weights[i] = (p->norm ? score[ids[i]] / (sum + 1e-20f) : score[ids[i]]) *
                     p->factor;
}

static void route_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    int64_t t;

    (void)lane;
    for (t = t0; t < t1; t++)
        route_row(ctx, (int32_t)t);
}

static int route(struct mc_par *par, const struct mc_route_p *p)
{
    int32_t n = *p->n_live * p->top_k, at = 0, e, i;

    mc_par_for(par, *p->n_live, 1, route_rows, (void *)p);
    for (e = 0; e < p->w.n; e++) {
        p->offset[e] = at;
        for (i = 0; i < n; i++)
            if (p->ids[i] == e)
                p->order[at++] = i;
    }
    p->offset[e] = at;
    return 0;
}

MC_HOST_OP(mc_ref_route, route, route_need, route);

/* ---- moe --------------------------------------------------------------------------- */

static int moe_need(const struct mc_moe_p *p, struct mc_need *need, const char **why)
{
    const char *no = mc_ref_mul_refuse(&p->act, &p->gate.w);

    (void)need;
    if (!no)
        no = mc_ref_mul_refuse(&p->act, &p->up.w);
    if (!no)
        no = mc_ref_mul_refuse(&p->mid, &p->down.w);
    if (!no && (p->gate.w.n != p->mid.k || p->up.w.n != p->mid.k))
        no = "moe: the rows of gate and up are not the columns of down";
    if (!no && (p->top_k < 1 || p->top_k > MAX_E))
        no = "moe: top_k below 1 or above 1024";
    return no ? mc_refuse(why, no) : 0;
}

static int32_t min(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Row i of mid: what the expert of place order[i] makes of its row, before down. */
static void mid_row(const struct mc_moe_p *p, int32_t i)
{
    int32_t at = p->order[i];
    struct mc_w gate = mc_ws_at(&p->gate, p->ids[at]), up = mc_ws_at(&p->up, p->ids[at]);
    float mid[MC_REF_COLS], buf[MC_REF_MAX_K];
    const float *x = mc_ref_act_row(&p->act, at / p->top_k, buf);
    int32_t n0, n;

    for (n0 = 0; n0 < p->mid.k; n0 += n) {
        n = min(p->mid.k - n0, MC_REF_COLS);
        mc_ref_glu_cols(x, &gate, &up, n0, n, mid);
        mc_ref_act_put(&p->mid, i, n0, n, mid);
    }
}

static float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* Where the mids of row t's places lie. */
static void find_mids(const struct mc_moe_p *p, int32_t t, int32_t *where)
{
    int32_t n = *p->n_live * p->top_k, i;

    for (i = 0; i < n; i++)
        if (p->order[i] / p->top_k == t)
            where[p->order[i] % p->top_k] = i;
}

/* Columns [n0, n0+n) of row t of y. */
static void down_cols(const struct mc_moe_p *p, int32_t t, const int32_t *where,
                      int32_t n0, int32_t n)
{
    float *y = (float *)p->y + (int64_t)t * p->down.w.n + n0;
    const float *add = p->add ? (const float *)p->add + (int64_t)t * p->down.w.n + n0
                              : NULL;
    float g = p->add_gate ? sigmoid(((const float *)p->add_gate)[t]) : 1;
    float d[MC_REF_COLS], buf[MC_REF_MAX_K];
    int32_t place, i;

    memset(y, 0, (size_t)n * sizeof y[0]);
    for (place = 0; place < p->top_k; place++) {
        int32_t at = t * p->top_k + place;
        struct mc_w down = mc_ws_at(&p->down, p->ids[at]);

        mc_ref_dots(mc_ref_act_row(&p->mid, where[place], buf), &down, n0, n, d);
        for (i = 0; i < n; i++)
            y[i] += p->weights[at] * d[i];
    }
    for (i = 0; add && i < n; i++)
        y[i] += add[i] * g;
}

static void mid_rows(void *ctx, int64_t i0, int64_t i1, int lane)
{
    int64_t i;

    (void)lane;
    for (i = i0; i < i1; i++)
        mid_row(ctx, (int32_t)i);
}

static void down_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    const struct mc_moe_p *p = ctx;
    int32_t t, n0, h = p->down.w.n, where[MAX_E];

    (void)lane;
    for (t = (int32_t)t0; t < t1; t++) {
        find_mids(p, t, where);
        for (n0 = 0; n0 < h; n0 += MC_REF_COLS)
            down_cols(p, t, where, n0, min(h - n0, MC_REF_COLS));
    }
}

static int moe(struct mc_par *par, const struct mc_moe_p *p)
{
    mc_par_for(par, (int64_t)*p->n_live * p->top_k, 1, mid_rows, (void *)p);
    mc_par_for(par, *p->n_live, 1, down_rows, (void *)p);
    return 0;
}

MC_HOST_OP(mc_ref_moe, moe, moe_need, moe);
