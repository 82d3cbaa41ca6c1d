/* build.c - what the blocks of a pass are made of: buffers, forms, operations.
 *
 * Owns nothing: all belongs to the pass. THREAD: opening. */
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "core/model/pass_int.h"

static void no_memory(struct mc_pass *p)
{
    if (p->rc == 0)
        p->rc = mc_fail(p->err, MC_ENOMEM, "no memory for a pass of %d rows",
                        p->caps.rows);
}

size_t mc_pass_row_bytes(const struct mc_pass *p)
{
    return p->m->be->row_dt == MC_F32 ? 4 : 2;
}

/* ---- buffers ----------------------------------------------------------------------- */

void *mc_pass_buffer(struct mc_pass *p, enum mc_use use, size_t bytes)
{
    if (p->rc < 0)
        return NULL;
    if (bytes > p->buf[use].bytes) {
        p->buf[use].p = mc_mem_take(&p->own, bytes);
        p->buf[use].bytes = bytes;
        if (!p->buf[use].p)
            no_memory(p);
    }
    return p->buf[use].p;
}

/* Bytes of a value, columns that share a scale (0: no scales), and whether sums lie
 * beside the scales. */
static const struct form {
    uint8_t bytes;
    int16_t block;
    bool sums;
} forms[MC_N_ACT] = {
    [MC_A_F32] = {4, 0, false},    [MC_A_BF16] = {2, 0, false}, [MC_A_I8] = {1, 32, true},
    [MC_A_I16] = {2, 32, true},    [MC_A_E4M3] = {1, 128, false},
};

static struct mc_act take_act(struct mc_pass *p, uint16_t layout, int32_t rows, int32_t k)
{
    const struct form *f = &forms[layout];
    size_t t = (size_t)rows;
    size_t n_scale = f->block
                         ? t * (size_t)((k + f->block - 1) / f->block) * sizeof(float)
                         : 0;
    struct mc_act a = {.k = k, .layout = layout};

    a.x = mc_mem_take(&p->own, t * (size_t)k * f->bytes);
    a.s = mc_mem_take(&p->own, n_scale);
    a.bf = mc_mem_take(&p->own, f->sums ? n_scale : 0);
    if (!a.x || (n_scale && !a.s) || (n_scale && f->sums && !a.bf))
        no_memory(p);
    return a;
}

struct mc_act mc_pass_act(struct mc_pass *p, enum mc_act_use use, uint16_t layout,
                          int32_t rows, int32_t k)
{
    struct mc_act_buf *grown;

    for (int32_t i = 0; i < p->n_act; i++)
        if (p->act[i].use == use && p->act[i].act.layout == layout &&
            p->act[i].act.k == k)
            return p->act[i].act;
    grown = p->rc < 0 ? NULL : realloc(p->act, (size_t)(p->n_act + 1) * sizeof *grown);
    if (!grown) {
        no_memory(p);
        return (struct mc_act){0};
    }
    p->act = grown;
    grown += p->n_act++;
    *grown = (struct mc_act_buf){take_act(p, layout, rows, k), (uint8_t)use};
    return grown->act;
}

/* ---- operations -------------------------------------------------------------------- */

static const char *const op_names[MC_N_OP] = {
#define MC_OP(name) [MC_OP_##name] = #name,
    MC_OPS(MC_OP)
#undef MC_OP
};

/* The body that takes these params: the backend's own, or where that refuses their sizes the
 * one for any. NULL and p->rc when none does. Scratch is shared by all. */
static const struct mc_op *body_for(struct mc_pass *p, enum mc_op_id id,
                                    const void *params)
{
    const struct mc_op *op = p->m->be->op[id], *any = p->m->be->any[id];
    struct mc_need need = {0};
    const char *why = NULL;
    int rc = op->need ? op->need(params, &need, &why) : 0;

    if (rc == MC_K_EUNSUP && any && any->need(params, &need, NULL) == 0) {
        if (!(p->slow >> id & 1) && p->m->slice.rank == 0)
            mc_info("model", "%s runs its scalar body: %s", op->name, why);
        p->slow |= UINT64_C(1) << id;
        op = any;
        rc = 0;
    }
    if (rc < 0) {
        p->rc = mc_fail(p->err, rc, "operation %s: %s", op->name, why ? why : "refused");
        return NULL;
    }
    if (need.scratch > p->scratch_bytes)
        p->scratch_bytes = need.scratch;
    return op;
}

static struct mc_bound *append(struct mc_pass *p)
{
    struct mc_list *l = p->to;

    if (l->n == l->cap) {
        int32_t cap = l->cap ? 2 * l->cap : 64;
        struct mc_bound *grown = realloc(l->v, (size_t)cap * sizeof *grown);

        if (!grown) {
            no_memory(p);
            return NULL;
        }
        l->v = grown;
        l->cap = cap;
    }
    l->v[l->n] = (struct mc_bound){.scratch = -1};
    return &l->v[l->n++];
}

void mc_pass_add(struct mc_pass *p, enum mc_op_id id, const void *params, size_t bytes,
                 int32_t scratch)
{
    const struct mc_op *op = p->m->be->op[id];
    struct mc_bound *b;

    if (p->rc == 0 && !op)
        p->rc = mc_fail(p->err, MC_EUNSUP, "backend %s has no operation %s",
                        p->m->be->name, op_names[id]);
    if (p->rc == 0)
        op = body_for(p, id, params);
    b = p->rc == 0 ? append(p) : NULL;
    if (!b)
        return;
    b->op = op;
    b->scratch = scratch;
    b->params = malloc(bytes);
    if (b->params)
        memcpy(b->params, params, bytes);
    else
        no_memory(p);
}

void mc_pass_mark(struct mc_pass *p, int32_t layer)
{
    struct mc_bound *b = p->rc == 0 ? append(p) : NULL;

    if (b)
        b->layer = layer;
}

float *mc_pass_fresh(struct mc_pass *p, int32_t layer)
{
    const struct mc_kv *kv = &p->mem->kv;
    size_t token = (size_t)(kv->c > 0 ? kv->c + kv->r : 2 * kv->hk * kv->d);
    size_t pages = (size_t)mc_fresh_pages(p->caps.rows, p->caps.seqs);

    if (!p->m->cfg.prefill_bf16 || layer >= p->m->cfg.n_layer ||
        kv->layout == MC_KV_F32 || kv->layout == MC_KV_BF16)
        return NULL;
    return mc_pass_buffer(p, MC_USE_FRESH, pages * MC_PAGE * token * sizeof(float));
}

/* ---- forms ------------------------------------------------------------------------- */

unsigned mc_pass_form(const struct mc_pass *p, const struct mc_w *w)
{
    return 1u << p->m->be->act_of(p->m->be, w->layout);
}

int mc_pass_first_form(unsigned want)
{
    for (int f = 0; f < MC_N_ACT; f++)
        if (want >> f & 1)
            return f;
    return -1;
}

bool mc_pass_needs_rows(unsigned want)
{
    unsigned form = want & ((1u << MC_N_ACT) - 1);

    return (want & MC_WANT_ROWS) || (form & (form - 1));
}

void mc_pass_quant(struct mc_pass *p, struct mc_input *in, enum mc_act_use use, int32_t k,
                   unsigned want)
{
    for (int f = 0; f < MC_N_ACT; f++) {
        struct mc_quant_p q = {.n_live = &p->mem->rows.live[MC_LIVE_ROWS],
                               .cap = p->caps.rows,
                               .x = in->rows};

        if (!(want >> f & 1) || in->have >> f & 1)
            continue;
        q.act = in->act[f] = mc_pass_act(p, use, (uint16_t)f, p->caps.rows, k);
        in->have |= 1u << f;
        MC_PASS_ADD(p, quant, &q);
    }
}

struct mc_input mc_pass_join(struct mc_pass *p, const float *w, bool first, unsigned want)
{
    const struct mc_config *c = &p->m->cfg;
    int form = mc_pass_first_form(want);
    struct mc_input in = {0};
    struct mc_join_p j = {.rows = p->mem->rows,
                          .x = p->x,
                          .res = p->res,
                          .w = w,
                          .eps = c->norm_eps,
                          .h = c->hidden,
                          .first = first,
                          .peer = p->m->be->peer};
    void *x = p->x;

    if (p->whole)
        j.peer = (struct mc_peer){.n = 1};
    if (form >= 0) {
        j.act = in.act[form] =
            mc_pass_act(p, MC_ACT_HIDDEN, (uint16_t)form, p->caps.rows, c->hidden);
        in.have = 1u << form;
    }
    if (mc_pass_needs_rows(want))
        in.rows = j.norm_out = p->norm;
    MC_PASS_ADD(p, join, &j);
    if (!p->whole) {
        p->x = p->x_next;
        p->x_next = x;
    }
    p->whole = false;
    mc_pass_quant(p, &in, MC_ACT_HIDDEN, c->hidden, want);
    return in;
}

void mc_pass_linear(struct mc_pass *p, const struct mc_input *in, const struct mc_fan *f,
                    int n)
{
    for (int form = 0; form < MC_N_ACT; form++) {
        struct mc_linear_p l = {.n_live = &p->mem->rows.live[MC_LIVE_ROWS],
                                .cap = p->caps.rows,
                                .act = in->act[form],
                                .y_dt = p->m->be->row_dt};

        for (int i = 0; i < n; i++) {
            if (mc_pass_form(p, f[i].w) != 1u << form)
                continue;
            l.w[l.n_w] = *f[i].w;
            l.bias[l.n_w] = f[i].bias;
            l.y[l.n_w] = f[i].y;
            l.pitch[l.n_w++] = f[i].w->n;
        }
        if (l.n_w > 0)
            MC_PASS_ADD(p, linear, &l);
    }
}
