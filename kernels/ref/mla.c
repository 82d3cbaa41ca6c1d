/* mla.c - mla_prep, mla_q, mla_attn, mla_out: attention over latents that all heads
 * share.
 *
 * In the absorbed form W_UK belongs to the query and W_UV to the output, so that a
 * token's latent is its key (with the rotated part) and its value. Positions are read as
 * a list, which counts up from 0 where none is given: splits are cut by place in the
 * list, and so a list of every position gives the bits that no list gives. Nothing that a
 * row may not see is read. Owns nothing; bodies run on a stream's threads. */
#include <math.h>
#include <string.h>

#include "kernels/host/cast.h"
#include "kernels/host/fold.h"
#include "kernels/host/fresh.h"
#include "kernels/host/kv.h"
#include "kernels/ref/ref.h"

enum { MAX_C = 1024 /* a latent and its key, on the stack */ };

static const char *latent_refuse(const struct mc_kv *kv)
{
    const char *no = mc_mla_refuse(kv);

    return !no && kv->c + kv->r > MAX_C ? "a latent above 1024 values" : no;
}

static bool rotates(const struct mc_rope *rope, int32_t off, int32_t r)
{
    return rope->dim == r && rope->off == off && r % 2 == 0;
}

/* ---- mla_prep ---------------------------------------------------------------------- */

static int mla_prep_need(const struct mc_mla_prep_p *p, struct mc_need *need,
                         const char **why)
{
    const char *no = latent_refuse(&p->kv);

    (void)need;
    if (!no && p->q_a && p->act.x)
        no = mc_ref_act_refuse(p->act.layout, p->act.k);
    if (!no && p->q_a &&
        (p->q_lora > MC_REF_MAX_K || (p->act.x && p->act.k != p->q_lora)))
        no = "mla_prep: the query's latent is no row of its activation";
    if (!no && !rotates(&p->rope, 0, p->kv.r))
        no = "mla_prep: the rotated dims are not the key";
    return no ? mc_refuse(why, no) : 0;
}

/* The least power of two that is not below x > 0. */
static float pow2_up(float x)
{
    uint32_t u = mc_bits_of_f32(x);

    if (!isfinite(x) || (u & 0x7fffff) == 0)
        return x;
    return mc_f32_of_bits((u & 0x7f800000) + 0x800000);
}

/* The latent's values under a scale for each 128, the key as bf16. */
static void put_656(const struct mc_kv *kv, uint8_t *to, const float *x)
{
    float *s = mc_mla_scales(kv, to);
    uint16_t *key = mc_mla_key(kv, to);
    int32_t i, b, end;

    for (b = 0; b < kv->c; b = end, s++) {
        end = b + MC_SCALE_COLS < kv->c ? b + MC_SCALE_COLS : kv->c;
        *s = mc_ref_amax(x + b, end - b) / 448;
        *s = pow2_up(*s < 1e-4f ? 1e-4f : *s);
        for (i = b; i < end; i++)
            to[i] = mc_e4m3_of_f32(x[i] / *s);
    }
    for (i = 0; i < kv->r; i++)
        key[i] = mc_bf16_of_f32(x[kv->c + i]);
}

/* c + r values into a token's place. */
static void latent_put(const struct mc_kv *kv, int32_t layer, uint8_t *to, const float *x)
{
    int32_t n = kv->c + kv->r, i;

    if (kv->layout == MC_KV_F32)
        memcpy(to, x, (size_t)n * sizeof x[0]);
    else if (kv->layout == MC_KV_FP8_656)
        put_656(kv, to, x);
    else if (kv->layout == MC_KV_BF16)
        for (i = 0; i < n; i++)
            ((uint16_t *)to)[i] = mc_bf16_of_f32(x[i]);
    else
        for (i = 0; i < n; i++)
            to[i] = mc_e4m3_of_f32(kv->k_scale ? x[i] / kv->k_scale[layer] : x[i]);
}

static void prep_row(const struct mc_mla_prep_p *p, int32_t t)
{
    const struct mc_kv *kv = &p->kv;
    int32_t slot = mc_ref_slot(&p->rows, t), pos = p->rows.pos[t], n = p->q_lora;
    const float *kv_a = (const float *)p->kv_a + (int64_t)t * (kv->c + kv->r);
    float x[MAX_C], norm[MC_REF_MAX_K];
    uint8_t *page;

    if (p->q_a) {
        mc_ref_norm((const float *)p->q_a + (int64_t)t * n, p->q_norm, p->eps, n, norm);
        if (p->act.x)
            mc_ref_act_put(&p->act, t, 0, n, norm);
        if (p->norm_out)
            memcpy((float *)p->norm_out + (int64_t)t * n, norm,
                   (size_t)n * sizeof norm[0]);
    }
    if (p->slots[slot].bad || !mc_kv_mine(kv, slot, pos))
        return;
    mc_ref_norm(kv_a, p->kv_norm, p->eps, kv->c, x);
    memcpy(x + kv->c, kv_a + kv->c, (size_t)kv->r * sizeof x[0]);
    mc_ref_rope(x + kv->c, &p->rope, pos);
    page = mc_kv_page(kv, p->layer, slot, pos);
    latent_put(kv, p->layer, mc_mla_at(kv, page, pos), x);
    if (p->fresh && t >= p->rows.live[MC_LIVE_DECODE])
        mc_fresh_put_mla(p, t, x);
}

static void prep_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    int64_t t;

    (void)lane;
    for (t = t0; t < t1; t++)
        prep_row(ctx, (int32_t)t);
}

static int mla_prep(struct mc_par *par, const struct mc_mla_prep_p *p)
{
    mc_par_for(par, p->rows.live[MC_LIVE_ROWS], 1, prep_rows, (void *)p);
    return 0;
}

MC_HOST_OP(mc_ref_mla_prep, mla_prep, mla_prep_need, mla_prep);

/* ---- mla_q ------------------------------------------------------------------------- */

static int mla_q_need(const struct mc_mla_q_p *p, struct mc_need *need, const char **why)
{
    const struct mc_ws *w = &p->w_uk;

    (void)need;
    if (p->nope < 0 || p->rope.dim < 0 || !rotates(&p->rope, p->nope, p->rope.dim))
        return mc_refuse(why, "mla_q: the rotated dims are not the end of a head");
    if (p->nope + p->rope.dim > MAX_C)
        return mc_refuse(why, "mla_q: a head above 1024 values");
    if (w->n > 0 && (w->w.layout != MC_W_F32 || w->n < p->h || w->w.n != p->c ||
                     w->w.k != p->nope))
        return mc_refuse(why, "mla_q: w_uk is not h matrices [c,nope] of f32");
    return 0;
}

static void q_head(const struct mc_mla_q_p *p, int32_t t, int32_t head)
{
    bool is_long = mc_row_is_long(&p->rows, t, p->long_rows);
    bool absorb = p->w_uk.n > 0 && !is_long;
    int32_t r = p->rope.dim, n = p->nope + r, n_out = absorb ? p->c + r : n;
    int64_t at = (int64_t)t * p->h + head;
    float *out = (float *)(is_long ? p->q : p->out) + at * n_out, x[MAX_C];

    memcpy(x, (const float *)p->q + at * n, (size_t)n * sizeof x[0]);
    mc_ref_rope(x, &p->rope, p->rows.pos[t]);
    if (absorb) {
        struct mc_w w = mc_ws_at(&p->w_uk, head);

        mc_ref_dots(x, &w, 0, p->c, out);
        memcpy(out + p->c, x + p->nope, (size_t)r * sizeof x[0]);
    } else {
        memcpy(out, x, (size_t)n * sizeof x[0]);
    }
}

static void q_heads(void *ctx, int64_t i0, int64_t i1, int lane)
{
    const struct mc_mla_q_p *p = ctx;
    int64_t i;

    (void)lane;
    for (i = i0; i < i1; i++)
        q_head(p, (int32_t)(i / p->h), (int32_t)(i % p->h));
}

static int mla_q(struct mc_par *par, const struct mc_mla_q_p *p)
{
    mc_par_for(par, (int64_t)p->rows.live[MC_LIVE_ROWS] * p->h, 1, q_heads, (void *)p);
    return 0;
}

MC_HOST_OP(mc_ref_mla_q, mla_q, mla_q_need, mla_q);

/* ---- mla_attn ---------------------------------------------------------------------- */

static int mla_attn_need(const struct mc_mla_attn_p *p, struct mc_need *need,
                         const char **why)
{
    const char *no = latent_refuse(&p->kv);

    (void)need;
    if (!no && (p->h < 1 || p->n_part < 1 || p->first < 0 || (p->idx && p->topk < 1)))
        no = "mla_attn: h, n_part or topk below 1, or positions below 0";
    if (!no && p->fresh && (p->idx || p->kv.n_shard > 1))
        no = "mla_attn: fresh latents under an index, or of sharded tokens";
    return no ? mc_refuse(why, no) : 0;
}

void mc_ref_latent(const struct mc_kv *kv, int32_t layer, int32_t slot, int32_t pos,
                   float *x)
{
    uint8_t *at = mc_mla_at(kv, mc_kv_page(kv, layer, slot, pos), pos);
    float fixed = kv->layout == MC_KV_FP8_PLAIN && kv->k_scale ? kv->k_scale[layer] : 1;
    int32_t i;

    if (kv->layout != MC_KV_FP8_656) {
        for (i = 0; i < kv->c + kv->r; i++)
            x[i] = mc_ref_kv_value(at, kv->layout, i) * fixed;
        return;
    }
    for (i = 0; i < kv->c; i++)
        x[i] = mc_f32_of_e4m3(at[i]) * mc_mla_scales(kv, at)[i / MC_SCALE_COLS];
    for (i = 0; i < kv->r; i++)
        x[kv->c + i] = mc_f32_of_bf16(mc_mla_key(kv, at)[i]);
}

/* The latent at a position, as row t sees it. */
static void see(const struct mc_mla_attn_p *p, int32_t t, int32_t pos, float *x)
{
    const struct mc_kv *kv = &p->kv;
    float *own;
    int32_t from;

    if (p->fresh && t >= p->rows.live[MC_LIVE_DECODE]) {
        own = mc_fresh_of(kv, &p->rows, p->rows.row_seq[t], p->fresh, &from);
        if (pos >= from) {
            memcpy(x, mc_fresh_latent(kv, own, pos - from),
                   (size_t)(kv->c + kv->r) * sizeof x[0]);
            return;
        }
    }
    mc_ref_latent(kv, p->layer, mc_ref_slot(&p->rows, t), pos, x);
}

/* Entries [a, b) of the list, all within one split, for one head: {max, sum} and o[c]. */
static void attend(const struct mc_mla_attn_p *p, int32_t t, const int32_t *list,
                   const float *q, int32_t a, int32_t b, float *ml, float *o)
{
    const struct mc_kv *kv = &p->kv;
    float score[MC_SPLIT], x[MAX_C], max = -INFINITY, sum = 0;
    int32_t slot = mc_ref_slot(&p->rows, t), i, j;

    for (j = a; j < b; j++) {
        float dot = 0;

        see(p, t, list ? list[j] : mc_kv_pos(kv, slot, j), x);
        for (i = 0; i < kv->c + kv->r; i++)
            dot += q[i] * x[i];
        score[j - a] = dot * p->scale;
        if (score[j - a] > max)
            max = score[j - a];
    }
    memset(o, 0, (size_t)kv->c * sizeof o[0]);
    for (j = a; j < b; j++) {
        float prob = expf(score[j - a] - max);

        see(p, t, list ? list[j] : mc_kv_pos(kv, slot, j), x);
        sum += prob;
        for (i = 0; i < kv->c; i++)
            o[i] += prob * x[i];
    }
    ml[0] = max;
    ml[1] = sum;
}

/* How many positions row t sees, of its own rank's. */
static int32_t seen(const struct mc_mla_attn_p *p, int32_t t)
{
    const int32_t *list = p->idx + (int64_t)t * p->topk;
    int32_t n = 0;

    if (p->slots[mc_ref_slot(&p->rows, t)].bad ||
        mc_row_is_long(&p->rows, t, p->long_rows))
        return 0;
    if (!p->idx)
        return mc_kv_own(&p->kv, mc_ref_slot(&p->rows, t), p->rows.pos[t] + 1);
    while (n < p->topk && list[n] >= 0)
        n++;
    return n;
}

static void attend_head(const struct mc_mla_attn_p *p, int32_t t, int32_t head)
{
    const struct mc_rows *r = &p->rows;
    int32_t c = p->kv.c, n = seen(p, t), n_part = r->pos[t] / MC_SPLIT + 1, i;
    const int32_t *list = p->idx ? p->idx + (int64_t)t * p->topk : NULL;
    const float *q = (const float *)p->q + ((int64_t)t * p->h + head) * (c + p->kv.r);
    int32_t first = mc_kv_own(&p->kv, mc_ref_slot(r, t), p->first);
    bool decode = t < r->live[MC_LIVE_DECODE];
    int64_t part = mc_part_row(t, p->cap_decode, p->n_part) * p->h + head;
    float ml1[2], o1[MAX_C], *ml = p->ml + part * 2, *o = p->o + part * c;

    if (decode && n_part > p->n_part)
        n_part = p->n_part;
    ml[0] = -INFINITY;
    ml[1] = 0;
    for (i = 0; i < n_part; i++) {
        int32_t a = i * MC_SPLIT, b = n < a + MC_SPLIT ? n : a + MC_SPLIT;

        if (!list && a < first)
            a = first;
        ml1[0] = -INFINITY;
        ml1[1] = 0;
        if (a < b)
            attend(p, t, list, q, a, b, ml1, o1);
        if (decode) {
            memcpy(ml + (int64_t)i * p->h * 2, ml1, sizeof ml1);
            if (ml1[1] != 0)
                memcpy(o + (int64_t)i * p->h * c, o1, (size_t)c * sizeof o1[0]);
        } else {
            mc_fold(ml, o, ml1, o1, c);
        }
    }
}

static void attend_heads(void *ctx, int64_t i0, int64_t i1, int lane)
{
    const struct mc_mla_attn_p *p = ctx;
    int64_t i;

    (void)lane;
    for (i = i0; i < i1; i++)
        attend_head(p, (int32_t)(i / p->h), (int32_t)(i % p->h));
}

static int mla_attn(struct mc_par *par, const struct mc_mla_attn_p *p)
{
    const struct mc_rows *r = &p->rows;
    int32_t t;

    if (r->live[MC_LIVE_DECODE] > p->cap_decode)
        return MC_K_EINTERNAL;
    for (t = 0; t < r->live[MC_LIVE_DECODE]; t++)
        if (seen(p, t) > p->n_part * MC_SPLIT)
            return MC_K_EINTERNAL;
    mc_par_for(par, (int64_t)r->live[MC_LIVE_ROWS] * p->h, 1, attend_heads, (void *)p);
    return 0;
}

MC_HOST_OP(mc_ref_mla_attn, mla_attn, mla_attn_need, mla_attn);

/* ---- mla_out ----------------------------------------------------------------------- */

static int mla_out_need(const struct mc_mla_out_p *p, struct mc_need *need,
                        const char **why)
{
    const struct mc_ws *w = &p->w_uv;
    const char *no = mc_ref_act_refuse(p->act.layout, p->act.k);

    (void)need;
    if (!no && (p->act.k != p->h * p->v || p->act.k > MC_REF_MAX_K))
        no = "mla_out: columns that are not h*v, or more than 65536 of them";
    if (!no &&
        (w->w.layout != MC_W_F32 || w->n < p->h || w->w.n != p->v || w->w.k != p->c))
        no = "mla_out: w_uv is not h matrices [v,c] of f32";
    return no ? mc_refuse(why, no) : 0;
}

static void out_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    const struct mc_mla_out_p *p = ctx;
    float row[MC_REF_MAX_K];
    int64_t t;
    int32_t head;

    (void)lane;
    for (t = t0; t < t1; t++) {
        for (head = 0; head < p->h; head++) {
            struct mc_w w = mc_ws_at(&p->w_uv, head);

            mc_ref_dots((const float *)p->o_lat + (t * p->h + head) * p->c, &w, 0, p->v,
                        row + head * p->v);
        }
        mc_ref_act_put(&p->act, (int32_t)t, 0, p->act.k, row);
    }
}

static int mla_out(struct mc_par *par, const struct mc_mla_out_p *p)
{
    mc_par_for(par, p->rows.live[MC_LIVE_ROWS], 1, out_rows, (void *)p);
    return 0;
}

MC_HOST_OP(mc_ref_mla_out, mla_out, mla_out_need, mla_out);
