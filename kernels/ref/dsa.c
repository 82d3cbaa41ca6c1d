/* dsa.c - dsa_prep, dsa_topk: the indexer, which chooses the positions that a row
 * attends.
 *
 * Queries and keys lie as the pool does: f32, or e4m3 under a scale, the key's in its
 * page, the query's in its gate. A row's best are kept in a list of keys
 * (kernels/host/vocab.h) that is sorted and cut whenever a tile of positions was added to
 * it. Owns nothing; bodies run on a stream's threads. */
#include <math.h>
#include <string.h>

#include "kernels/host/cast.h"
#include "kernels/host/kv.h"
#include "kernels/host/vocab.h"
#include "kernels/ref/ref.h"

enum {
    MAX_D = 512,     /* a head's values, on the stack */
    MAX_TOPK = 4096, /* so are the best positions */
    TILE = 4096,
};

static const char *index_refuse(const struct mc_kv *kv, int32_t index, int32_t hi)
{
    const char *no = mc_mla_refuse(kv);

    if (!no && (index < 0 || index >= kv->n_index || hi < 1))
        no = "the pool has no such index, or the index no head";
    if (!no && kv->index_d > MAX_D)
        no = "an index head above 512 values";
    return no;
}

static bool is_f32(const struct mc_kv *kv)
{
    return kv->layout == MC_KV_F32;
}

/* ---- dsa_prep ---------------------------------------------------------------------- */

static int dsa_prep_need(const struct mc_dsa_prep_p *p, struct mc_need *need,
                         const char **why)
{
    const char *no = index_refuse(&p->kv, p->index, p->hi);

    (void)need;
    if (!no && (p->rope.dim % 2 != 0 || p->rope.off != 0 || p->rope.dim < 0 ||
                p->rope.dim > p->kv.index_d))
        no = "dsa_prep: rotated dims are odd or not the first of a head";
    return no ? mc_refuse(why, no) : 0;
}

static void layer_norm(const float *x, const float *w, const float *b, float eps,
                       int32_t n, float *out)
{
    float mean = 0, var = 0, r;
    int32_t i;

    for (i = 0; i < n; i++)
        mean += x[i];
    mean /= (float)n;
    for (i = 0; i < n; i++)
        var += (x[i] - mean) * (x[i] - mean);
    r = 1 / sqrtf(var / (float)n + eps);
    for (i = 0; i < n; i++)
        out[i] = (x[i] - mean) * r * w[i] + b[i];
}

/* x as e4m3; returns its scale. */
static float put_e4m3(uint8_t *to, const float *x, int32_t n)
{
    float m = mc_ref_amax(x, n), s = (m < 1e-4f ? 1e-4f : m) / 448;
    int32_t i;

    for (i = 0; i < n; i++)
        to[i] = mc_e4m3_of_f32(x[i] / s);
    return s;
}

static void prep_query(const struct mc_dsa_prep_p *p, int32_t t, int32_t head)
{
    int32_t d = p->kv.index_d;
    int64_t at = (int64_t)t * p->hi + head;
    float x[MAX_D], gate = ((const float *)p->gate)[at];

    memcpy(x, (const float *)p->q + at * d, (size_t)d * sizeof x[0]);
    mc_ref_rope(x, &p->rope, p->rows.pos[t]);
    gate *= 1 / sqrtf((float)p->hi) * (1 / sqrtf((float)d));
    if (is_f32(&p->kv))
        memcpy((float *)p->qi + at * d, x, (size_t)d * sizeof x[0]);
    else
        gate *= put_e4m3((uint8_t *)p->qi + at * d, x, d);
    p->gates[at] = gate;
}

static void prep_key(const struct mc_dsa_prep_p *p, int32_t t)
{
    const struct mc_kv *kv = &p->kv;
    int32_t d = kv->index_d, pos = p->rows.pos[t];
    uint8_t *page = mc_index_page(kv, p->index, mc_ref_slot(&p->rows, t), pos);
    float x[MAX_D];

    layer_norm((const float *)p->k + (int64_t)t * d, p->k_norm, p->k_bias, p->eps, d, x);
    mc_ref_rope(x, &p->rope, pos);
    if (is_f32(kv))
        memcpy(mc_index_key(kv, page, pos), x, (size_t)d * sizeof x[0]);
    else
        *mc_index_scale(kv, page, pos) = put_e4m3(mc_index_key(kv, page, pos), x, d);
}

static void prep_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    const struct mc_dsa_prep_p *p = ctx;
    int32_t t, head;

    (void)lane;
    for (t = (int32_t)t0; t < t1; t++) {
        for (head = 0; head < p->hi; head++)
            prep_query(p, t, head);
        if (!p->slots[mc_ref_slot(&p->rows, t)].bad &&
            mc_kv_mine(&p->kv, mc_ref_slot(&p->rows, t), p->rows.pos[t]))
            prep_key(p, t);
    }
}

static int dsa_prep(struct mc_par *par, const struct mc_dsa_prep_p *p)
{
    mc_par_for(par, p->rows.live[MC_LIVE_ROWS], 1, prep_rows, (void *)p);
    return 0;
}

MC_HOST_OP(mc_ref_dsa_prep, dsa_prep, dsa_prep_need, dsa_prep);

/* ---- dsa_topk ---------------------------------------------------------------------- */

static int dsa_topk_need(const struct mc_dsa_topk_p *p, struct mc_need *need,
                         const char **why)
{
    const char *no = index_refuse(&p->kv, p->index, p->hi);

    (void)need;
    if (!no && (p->topk < 1 || p->topk > MAX_TOPK || p->first < 0))
        no = "dsa_topk: topk below 1 or above 4096, or positions below 0";
    return no ? mc_refuse(why, no) : 0;
}

static float score(const struct mc_dsa_topk_p *p, int32_t t, int32_t slot, int32_t s)
{
    const struct mc_kv *kv = &p->kv;
    uint8_t *page = mc_index_page(kv, p->index, slot, s);
    const void *k = mc_index_key(kv, page, s);
    uint16_t layout = is_f32(kv) ? MC_KV_F32 : MC_KV_FP8;
    float sum = 0;
    int32_t head, i, d = kv->index_d;

    for (head = 0; head < p->hi; head++) {
        int64_t at = (int64_t)t * p->hi + head;
        const uint8_t *q = (const uint8_t *)p->qi + at * d * (is_f32(kv) ? 4 : 1);
        float dot = 0;

        for (i = 0; i < d; i++)
            dot += mc_ref_kv_value(q, layout, i) * mc_ref_kv_value(k, layout, i);
        sum += p->gates[at] * (dot > 0 ? dot : 0);
    }
    if (!is_f32(kv))
        sum *= *mc_index_scale(kv, page, s);
    return isnan(sum) ? -INFINITY : sum;
}

static void topk_row(const struct mc_dsa_topk_p *p, int32_t t)
{
    const struct mc_kv *kv = &p->kv;
    int32_t slot = mc_ref_slot(&p->rows, t), pos = p->rows.pos[t], n = 0, s, i;
    int32_t end = p->slots[slot].bad ? 0 : mc_kv_own(kv, slot, pos + 1);
    int32_t *idx = p->idx + (int64_t)t * p->topk;
    bool few = pos - p->first < p->topk;
    uint64_t best[MAX_TOPK + TILE];

    for (i = mc_kv_own(kv, slot, p->first); i < end; i++) {
        s = mc_kv_pos(kv, slot, i);
        best[n++] = mc_key(few ? 0 : score(p, t, slot, s), s);
        if (n == p->topk + TILE || i == end - 1) {
            mc_vocab_sort(best, n);
            n = n < p->topk ? n : p->topk;
        }
    }
    for (i = 0; i < n; i++)
        best[i] = (uint64_t)mc_key_id(best[i]);
    mc_vocab_sort(best, n);
    for (i = 0; i < p->topk; i++)
        idx[i] = i < n ? (int32_t)best[i] : -1;
    for (i = 0; i < n && p->score && !few; i++)
        p->score[(int64_t)t * p->topk + i] = score(p, t, slot, idx[i]);
}

static void topk_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    int64_t t;

    (void)lane;
    for (t = t0; t < t1; t++)
        topk_row(ctx, (int32_t)t);
}

static int dsa_topk(struct mc_par *par, const struct mc_dsa_topk_p *p)
{
    mc_par_for(par, p->rows.live[MC_LIVE_ROWS], 1, topk_rows, (void *)p);
    return 0;
}

MC_HOST_OP(mc_ref_dsa_topk, dsa_topk, dsa_topk_need, dsa_topk);
