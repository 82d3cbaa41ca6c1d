/* attn.c - gqa_prep, gqa_attn, attn_merge: grouped-query attention over the page pool.
 *
 * A split of MC_SPLIT absolute positions is computed on its own (its max, its sum, its
 * unnormalised o) and only mc_fold puts splits together, so that a row's bits depend
 * neither on the batch nor on how its context was chunked. Positions that a row may not
 * see are not read at all: a page's other bytes may be anything. Owns nothing; bodies run
 * on a stream's threads. */
#include <math.h>
#include <string.h>

#include "kernels/host/cast.h"
#include "kernels/host/fold.h"
#include "kernels/host/fresh.h"
#include "kernels/host/kv.h"
#include "kernels/ref/ref.h"

enum { MAX_D = 512 /* a head's values, on the stack */ };

/* ---- gqa_prep ---------------------------------------------------------------------- */

static const char *heads_refuse(const struct mc_kv *kv, int32_t h)
{
    if (kv->hk < 1 || h < 1 || h % kv->hk != 0)
        return "attention: query heads are no multiple of kv heads";
    if (kv->d < 1 || kv->d > MAX_D)
        return "attention: head dim above 512";
    return mc_kv_refuse(kv);
}

static int gqa_prep_need(const struct mc_gqa_prep_p *p, struct mc_need *need,
                         const char **why)
{
    const char *no = heads_refuse(&p->kv, p->h);

    (void)need;
    if (!no && (p->rope.dim % 2 != 0 || p->rope.off < 0 || p->rope.dim < 0 ||
                p->rope.off + p->rope.dim > p->kv.d))
        no = "gqa_prep: rotated dims are odd or outside of the head";
    return no ? mc_refuse(why, no) : 0;
}

/* Casts one head's d values into the page. */
static void kv_put(const struct mc_kv *kv, uint8_t *page, int v, int32_t g, int32_t pos,
                   const float *fixed, const float *x)
{
    void *to = mc_kv_at(kv, page, v, g, pos);
    float scale = 0;
    int32_t i;

    if (kv->layout == MC_KV_F32) {
        memcpy(to, x, (size_t)kv->d * sizeof x[0]);
        return;
    }
    if (kv->layout == MC_KV_BF16) {
        for (i = 0; i < kv->d; i++)
            ((uint16_t *)to)[i] = mc_bf16_of_f32(x[i]);
        return;
    }
    for (i = 0; i < kv->d && !isnan(scale); i++)
        if (isnan(x[i]) || fabsf(x[i]) > scale)
            scale = fabsf(x[i]);
    scale = fixed ? *fixed : scale / 448;
    for (i = 0; i < kv->d; i++)
        ((uint8_t *)to)[i] = scale == 0 ? 0 : mc_e4m3_of_f32(x[i] / scale);
    *mc_kv_scale(kv, page, v, g, pos) = scale;
}

static void prep_row(const struct mc_gqa_prep_p *p, int32_t t)
{
    const struct mc_kv *kv = &p->kv;
    int32_t slot = mc_ref_slot(&p->rows, t), pos = p->rows.pos[t], d = kv->d, g;
    float *q = (float *)p->q + (int64_t)t * p->h * d;
    float *k = (float *)p->k + (int64_t)t * kv->hk * d;
    const float *v = (const float *)p->v + (int64_t)t * kv->hk * d;
    uint8_t *page;

    for (g = 0; g < p->h; g++) {
        if (p->q_norm)
            mc_ref_norm(q + g * d, p->q_norm, p->eps, d, q + g * d);
        mc_ref_rope(q + g * d, &p->rope, pos);
    }
    if (p->slots[slot].bad)
        return;
    page = mc_kv_page(kv, p->layer, slot, pos);
    for (g = 0; g < kv->hk; g++) {
        if (p->k_norm)
            mc_ref_norm(k + g * d, p->k_norm, p->eps, d, k + g * d);
        mc_ref_rope(k + g * d, &p->rope, pos);
        kv_put(kv, page, 0, g, pos, kv->k_scale ? kv->k_scale + p->layer : NULL,
               k + g * d);
        kv_put(kv, page, 1, g, pos, kv->v_scale ? kv->v_scale + p->layer : NULL,
               v + g * d);
    }
    if (p->fresh && t >= p->rows.live[MC_LIVE_DECODE])
        mc_fresh_put_gqa(p, t, k, v);
}

static void prep_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    int64_t t;

    (void)lane;
    for (t = t0; t < t1; t++)
        prep_row(ctx, (int32_t)t);
}

static int gqa_prep(struct mc_par *par, const struct mc_gqa_prep_p *p)
{
    mc_par_for(par, p->rows.live[MC_LIVE_ROWS], 1, prep_rows, (void *)p);
    return 0;
}

MC_HOST_OP(mc_ref_gqa_prep, gqa_prep, gqa_prep_need, gqa_prep);

/* ---- gqa_attn ---------------------------------------------------------------------- */

static int gqa_attn_need(const struct mc_gqa_attn_p *p, struct mc_need *need,
                         const char **why)
{
    const char *no = heads_refuse(&p->kv, p->h);

    (void)need;
    if (!no && p->n_part < 1)
        no = "gqa_attn: n_part below 1";
    return no ? mc_refuse(why, no) : 0;
}

float mc_ref_kv_value(const void *x, uint16_t layout, int32_t i)
{
    switch (layout) {
    case MC_KV_F32:
        return ((const float *)x)[i];
    case MC_KV_BF16:
        return mc_f32_of_bf16(((const uint16_t *)x)[i]);
    default:
        return mc_f32_of_e4m3(((const uint8_t *)x)[i]);
    }
}

/* A head's values at a position, as row t sees them. */
struct seen {
    const void *x;
    uint16_t layout;
    float scale;
};

static struct seen see(const struct mc_gqa_attn_p *p, int32_t t, int v, int32_t g,
                       int32_t pos)
{
    const struct mc_kv *kv = &p->kv;
    uint8_t *page;
    float *own;
    int32_t from;

    if (p->fresh && t >= p->rows.live[MC_LIVE_DECODE]) {
        own = mc_fresh_of(kv, &p->rows, p->rows.row_seq[t], p->fresh, &from);
        if (pos >= from)
            return (struct seen){mc_fresh_kv(kv, own, v, g, pos - from), MC_KV_F32, 1};
    }
    page = mc_kv_page(kv, p->layer, mc_ref_slot(&p->rows, t), pos);
    return (struct seen){mc_kv_at(kv, page, v, g, pos), kv->layout,
                         kv->layout == MC_KV_FP8 ? *mc_kv_scale(kv, page, v, g, pos) : 1};
}

/* Positions [a, b), all within one split, for one query head of row t: {max, sum} and
 * o[d]. */
static void attend(const struct mc_gqa_attn_p *p, int32_t t, int32_t g, const float *q,
                   int32_t a, int32_t b, float *ml, float *o)
{
    const struct mc_kv *kv = &p->kv;
    float score[MC_SPLIT], max = -INFINITY, sum = 0;
    int32_t i, j, n = b - a;

    for (j = 0; j < n; j++) {
        struct seen k = see(p, t, 0, g, a + j);
        float dot = 0;

        for (i = 0; i < kv->d; i++)
            dot += q[i] * mc_ref_kv_value(k.x, k.layout, i);
        score[j] = dot * (p->scale * k.scale);
        if (score[j] > max)
            max = score[j];
    }
    memset(o, 0, (size_t)kv->d * sizeof o[0]);
    for (j = 0; j < n; j++) {
        struct seen v = see(p, t, 1, g, a + j);
        float prob = expf(score[j] - max);

        sum += prob;
        prob *= v.scale;
        for (i = 0; i < kv->d; i++)
            o[i] += prob * mc_ref_kv_value(v.x, v.layout, i);
    }
    ml[0] = max;
    ml[1] = sum;
}

static void attend_head(const struct mc_gqa_attn_p *p, int32_t t, int32_t head)
{
    const struct mc_rows *r = &p->rows;
    int32_t d = p->kv.d, slot = mc_ref_slot(r, t), pos = r->pos[t], i;
    int32_t from = p->window > 0 && pos >= p->window ? pos - p->window + 1 : 0;
    const float *q = (const float *)p->q + ((int64_t)t * p->h + head) * d;
    bool decode = t < r->live[MC_LIVE_DECODE], bad = p->slots[slot].bad;
    int64_t part = mc_part_row(t, p->cap_decode, p->n_part) * p->h + head;
    float ml1[2], o1[MAX_D], *ml = p->ml + part * 2, *o = p->o + part * d;

    ml[0] = -INFINITY;
    ml[1] = 0;
    for (i = 0; i <= pos / MC_SPLIT; i++) {
        int32_t a = i * MC_SPLIT, b = a + MC_SPLIT;

        a = a > from ? a : from;
        b = b < pos + 1 ? b : pos + 1;
        ml1[0] = -INFINITY;
        ml1[1] = 0;
        if (!bad && a < b)
            attend(p, t, head / (p->h / p->kv.hk), q, a, b, ml1, o1);
        if (decode) {
            memcpy(ml + (int64_t)i * p->h * 2, ml1, sizeof ml1);
            if (ml1[1] != 0)
                memcpy(o + (int64_t)i * p->h * d, o1, (size_t)d * sizeof o1[0]);
        } else {
            mc_fold(ml, o, ml1, o1, d);
        }
    }
}

static void attend_heads(void *ctx, int64_t i0, int64_t i1, int lane)
{
    const struct mc_gqa_attn_p *p = ctx;
    int64_t i;

    (void)lane;
    for (i = i0; i < i1; i++)
        attend_head(p, (int32_t)(i / p->h), (int32_t)(i % p->h));
}

static int gqa_attn(struct mc_par *par, const struct mc_gqa_attn_p *p)
{
    const struct mc_rows *r = &p->rows;
    int32_t t;

    if (r->live[MC_LIVE_DECODE] > p->cap_decode)
        return MC_K_EINTERNAL;
    for (t = 0; t < r->live[MC_LIVE_DECODE]; t++)
        if (r->pos[t] / MC_SPLIT >= p->n_part)
            return MC_K_EINTERNAL;
    mc_par_for(par, (int64_t)r->live[MC_LIVE_ROWS] * p->h, 1, attend_heads, (void *)p);
    return 0;
}

MC_HOST_OP(mc_ref_gqa_attn, gqa_attn, gqa_attn_need, gqa_attn);

/* ---- attn_merge -------------------------------------------------------------------- */

static int attn_merge_need(const struct mc_attn_merge_p *p, struct mc_need *need,
                           const char **why)
{
    bool act = !p->out && !p->fold;
    const char *no = act ? mc_ref_act_refuse(p->act.layout, p->act.k) : NULL;

    (void)need;
    if (!no && act && (p->act.k != p->h * p->d || p->act.k > MC_REF_MAX_K))
        no = "attn_merge: columns that are not h*d, or more than 65536 of them";
    return no ? mc_refuse(why, no) : 0;
}

static void merge_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    const struct mc_attn_merge_p *p = ctx;
    float row[MC_REF_MAX_K], none[2], *ml = none, *to, *o;
    int64_t t, part;
    int32_t head, i, n;

    (void)lane;
    for (t = t0; t < t1; t++) {
        to = p->fold  ? p->fold + t * p->h * p->d
             : p->out ? (float *)p->out + t * p->h * p->d
                      : row;
        n = t < p->rows.live[MC_LIVE_DECODE] ? p->rows.pos[t] / MC_SPLIT + 1 : 1;
        n = n < p->n_part ? n : p->n_part;
        for (head = 0; head < p->h; head++) {
            o = memset(to + (int64_t)head * p->d, 0, (size_t)p->d * sizeof o[0]);
            if (p->fold)
                ml = p->fold + (int64_t)p->rows.cap * p->h * p->d + (t * p->h + head) * 2;
            ml[0] = -INFINITY;
            ml[1] = 0;
            for (i = 0; i < n; i++) {
                part = mc_part_row((int32_t)t, p->cap_decode, p->n_part) + i;
                part = part * p->h + head;
                mc_fold(ml, o, p->ml + part * 2, p->o + part * p->d, p->d);
            }
            if (!p->fold)
                mc_fold_end(ml, o, p->d);
        }
        if (!p->out && !p->fold)
            mc_ref_act_put(&p->act, (int32_t)t, 0, p->act.k, row);
    }
}

static int attn_merge(struct mc_par *par, const struct mc_attn_merge_p *p)
{
    mc_par_for(par, p->rows.live[MC_LIVE_ROWS], 1, merge_rows, (void *)p);
    return 0;
}

MC_HOST_OP(mc_ref_attn_merge, attn_merge, attn_merge_need, attn_merge);
