/* pass.c - one forward pass over ragged rows: buffers and bound params of the dense
 * family.
 *
 * Owns the activation buffers. THREAD: open and close one; forward and sample the
 * engine's. Always true: after open nothing here changes: running a pass is a list of
 * enqueues with the same params, so that it can be recorded and replayed.
 *
 * Buffers are shared where lifetimes allow: `act` feeds qkv, then gate and up; `attn` the
 * output projection; `mid` the down projection; `x` takes every partial sum that a join
 * adds to the residual stream `res`. */
#include <math.h>
#include <stdlib.h>

#include "core/model/memory.h"
#include "core/model/model.h"

struct layer_ops {
    struct mc_linear_p qkv;
    struct mc_gqa_prep_p prep;
    struct mc_gqa_attn_p attn;
    struct mc_attn_merge_p merge;
    struct mc_linear_p o;
    struct mc_join_p mid;
    struct mc_glu_p glu;
    struct mc_linear_p down;
    struct mc_join_p next; /* into the next layer's norm, or the final norm */
};

struct mc_pass {
    const struct mc_model *m;
    struct mc_pass_caps caps;
    const struct mc_step_mem *mem;
    struct mc_mem own;
    size_t scratch_bytes;
    void *scratch;
    void *x, *res, *norm; /* [T,H] row type */
    void *q, *k, *v;      /* [T, h*d] [T, hk*d] x2 */
    float *parts, *ml;
    struct mc_act act, attn, mid, last;
    void *picked; /* [R,H] rows that need logits */
    struct mc_page_check_p check;
    struct mc_embed_p embed;
    struct mc_join_p first;
    struct layer_ops *layer;
    struct mc_gather_rows_p gather;
    struct mc_quant_p quant;
    struct mc_linear_p head;
    struct mc_chain_p chain;
    struct mc_sample_p sample;
    struct mc_commit_p commit;
};

/* ---- buffers ----------------------------------------------------------------------- */

static size_t dt_bytes(uint16_t row_dt)
{
    return row_dt == MC_F32 ? 4 : 2;
}

/* An activation buffer for t rows of k columns in the form that run layout w reads. */
static int take_act(struct mc_pass *p, const struct mc_w *w, int32_t t, int32_t k,
                    struct mc_act *out)
{
    static const struct {
        uint8_t bytes;
        int16_t block;
        bool sums;
    } form[MC_N_ACT] = {
        [MC_A_F32] = {4, 0, false},    [MC_A_BF16] = {2, 0, false},
        [MC_A_I8] = {1, 32, true},     [MC_A_I16] = {2, 32, true},
        [MC_A_E4M3] = {1, 128, false},
    };
    const struct mc_backend *be = p->m->be;
    uint16_t layout = be->act_of(be, w->layout);
    int32_t block = form[layout].block;
    size_t n_scale = block ? (size_t)t * (size_t)((k + block - 1) / block) * sizeof(float)
                           : 0;

    *out = (struct mc_act){.k = k, .layout = layout};
    out->x = mc_mem_take(&p->own, (size_t)t * (size_t)k * form[layout].bytes);
    out->s = mc_mem_take(&p->own, n_scale);
    out->bf = mc_mem_take(&p->own, form[layout].sums ? n_scale : 0);
    return !out->x || (n_scale && !out->s) || (n_scale && form[layout].sums && !out->bf)
               ? MC_ENOMEM
               : 0;
}

static int take_buffers(struct mc_pass *p)
{
    const struct mc_model *m = p->m;
    const struct mc_config *c = &m->cfg;
    size_t e = dt_bytes(m->be->row_dt), t = (size_t)p->caps.rows;
    size_t hd = (size_t)c->n_head * (size_t)c->head_dim;
    size_t kd = (size_t)c->n_kv_head * (size_t)c->head_dim;
    int32_t n_part = (p->caps.context + MC_SPLIT - 1) / MC_SPLIT;
    size_t n_parts = (size_t)mc_part_row(p->caps.rows, p->caps.seqs, n_part);
    const struct mc_layer *y = &m->layer[0];

    p->x = mc_mem_take(&p->own, t * (size_t)c->hidden * e);
    p->res = mc_mem_take(&p->own, t * (size_t)c->hidden * e);
    p->norm = mc_mem_take(&p->own, t * (size_t)c->hidden * e);
    p->q = mc_mem_take(&p->own, t * hd * e);
    p->k = mc_mem_take(&p->own, t * kd * e);
    p->v = mc_mem_take(&p->own, t * kd * e);
    p->parts = mc_mem_take(&p->own, n_parts * hd * sizeof(float));
    p->ml = mc_mem_take(&p->own, n_parts * (size_t)c->n_head * 2 * sizeof(float));
    p->picked = mc_mem_take(&p->own, (size_t)p->caps.outs * (size_t)c->hidden * e);
    if (!p->x || !p->res || !p->norm || !p->q || !p->k || !p->v || !p->parts || !p->ml ||
        !p->picked)
        return MC_ENOMEM;
    if (take_act(p, &y->qkv[0], p->caps.rows, c->hidden, &p->act) < 0 ||
        take_act(p, &y->o, p->caps.rows, c->n_head * c->head_dim, &p->attn) < 0 ||
        take_act(p, &y->down, p->caps.rows, c->inter, &p->mid) < 0 ||
        take_act(p, &m->head, p->caps.outs, c->hidden, &p->last) < 0)
        return MC_ENOMEM;
    return 0;
}

/* ---- binding ----------------------------------------------------------------------- */

static struct mc_linear_p linear(const struct mc_pass *p, const struct mc_act *act,
                                 const struct mc_w *w, void *y)
{
    struct mc_linear_p l = {.n_live = &p->mem->rows.live[MC_LIVE_ROWS],
                            .cap = p->caps.rows,
                            .n_w = 1,
                            .act = *act,
                            .y_dt = p->m->be->row_dt};

    l.w[0] = *w;
    l.y[0] = y;
    l.pitch[0] = w->n;
    return l;
}

static struct mc_join_p join(const struct mc_pass *p, const float *w, bool first)
{
    return (struct mc_join_p){.rows = p->mem->rows,
                              .x = p->x,
                              .res = p->res,
                              .w = w,
                              .eps = p->m->cfg.norm_eps,
                              .h = p->m->cfg.hidden,
                              .first = first,
                              .act = p->act,
                              .peer = {.n = 1}};
}

static void bind_attention(struct mc_pass *p, int32_t i, struct layer_ops *o)
{
    const struct mc_model *m = p->m;
    const struct mc_config *c = &m->cfg;
    const struct mc_layer *y = &m->layer[i];
    const struct mc_step_mem *s = p->mem;
    void *out[3] = {p->q, p->k, p->v};
    int32_t n_part = (p->caps.context + MC_SPLIT - 1) / MC_SPLIT;

    o->qkv = linear(p, &p->act, &y->qkv[0], p->q);
    o->qkv.n_w = 3;
    for (int j = 0; j < 3; j++) {
        o->qkv.w[j] = y->qkv[j];
        o->qkv.bias[j] = y->qkv_bias[j];
        o->qkv.y[j] = out[j];
        o->qkv.pitch[j] = y->qkv[j].n;
    }
    o->prep = (struct mc_gqa_prep_p){.rows = s->rows,
                                     .kv = s->kv,
                                     .slots = s->slots,
                                     .layer = i,
                                     .h = c->n_head,
                                     .q = p->q,
                                     .k = p->k,
                                     .v = p->v,
                                     .q_norm = y->q_norm,
                                     .k_norm = y->k_norm,
                                     .eps = c->norm_eps,
                                     .rope = {.inv_freq = m->inv_freq,
                                              .mul = m->rope_mul,
                                              .dim = (int16_t)c->head_dim,
                                              .pair = c->rope_neighbours
                                                          ? MC_ROPE_NEIGHBOURS
                                                          : MC_ROPE_HALVES}};
    o->attn = (struct mc_gqa_attn_p){
        .rows = s->rows, .kv = s->kv, .slots = s->slots, .layer = i, .h = c->n_head,
        .n_part = n_part, .window = c->window, .cap_decode = p->caps.seqs,
        .scale = 1.0f / sqrtf((float)c->head_dim), .q = p->q, .o = p->parts, .ml = p->ml};
    o->merge = (struct mc_attn_merge_p){
        .rows = s->rows, .h = c->n_head, .d = c->head_dim, .n_part = n_part,
        .cap_decode = p->caps.seqs, .o = p->parts, .ml = p->ml, .act = p->attn};
    o->o = linear(p, &p->attn, &y->o, p->x);
}

static void bind_layer(struct mc_pass *p, int32_t i)
{
    const struct mc_model *m = p->m;
    const struct mc_layer *y = &m->layer[i];
    struct layer_ops *o = &p->layer[i];
    bool last = i + 1 == m->cfg.n_layer;

    bind_attention(p, i, o);
    o->mid = join(p, y->mlp_norm, false);
    o->glu = (struct mc_glu_p){.n_live = &p->mem->rows.live[MC_LIVE_ROWS],
                               .cap = p->caps.rows,
                               .act = p->act,
                               .gate = y->gate,
                               .up = y->up,
                               .out = p->mid};
    o->down = linear(p, &p->mid, &y->down, p->x);
    o->next = join(p, last ? m->norm : m->layer[i + 1].attn_norm, false);
    if (last) { /* only the rows that need logits are quantised, after gather_rows */
        o->next.act = (struct mc_act){0};
        o->next.norm_out = p->norm;
    }
}

static void bind_ends(struct mc_pass *p)
{
    const struct mc_model *m = p->m;
    const struct mc_step_mem *s = p->mem;
    const int32_t *n_out = &s->rows.live[MC_LIVE_OUT];
    int32_t v = m->cfg.vocab;

    p->check = (struct mc_page_check_p){.rows = s->rows, .kv = s->kv, .slots = s->slots};
    p->embed =
        (struct mc_embed_p){.rows = s->rows, .w = m->embed, .slots = s->slots, .x = p->x};
    p->first = join(p, m->layer[0].attn_norm, true);
    p->gather = (struct mc_gather_rows_p){.rows = s->rows,
                                          .norm = p->norm,
                                          .h = m->cfg.hidden,
                                          .out = p->picked};
    p->quant = (struct mc_quant_p){.n_live = n_out, .cap = p->caps.outs, .x = p->picked,
                                   .act = p->last};
    p->head = linear(p, &p->last, &m->head, s->logits);
    p->head.n_live = n_out;
    p->head.cap = p->caps.outs;
    p->head.y_dt = MC_F32;
    p->chain = (struct mc_chain_p){.rows = s->rows,
                                   .logits = s->logits,
                                   .raw = s->raw,
                                   .vocab = v,
                                   .n_real = m->n_real,
                                   .pitch = v,
                                   .slots = s->slots,
                                   .counts = s->counts,
                                   .bias = s->bias,
                                   .masks = s->masks,
                                   .eos = s->eos,
                                   .n_eos = m->cfg.n_eos,
                                   .stat = s->stat};
    p->sample = (struct mc_sample_p){.rows = s->rows, .logits = s->logits, .raw = s->raw,
                                     .vocab = v, .n_real = m->n_real, .pitch = v,
                                     .slots = s->slots, .stat = s->stat, .out = s->out};
    p->commit = (struct mc_commit_p){.rows = s->rows, .out = s->out, .slots = s->slots,
                                     .counts = s->counts, .vocab = v};
}

/* Asks an operation whether it takes these params; scratch is shared by all. */
static int ask(struct mc_pass *p, enum mc_op_id id, const void *params,
               struct mc_err *err)
{
    const struct mc_op *op = p->m->be->op[id];
    struct mc_need need = {0};
    const char *why = NULL;
    int rc;

    if (!op)
        return mc_fail(err, MC_EUNSUP, "backend %s has no operation %d", p->m->be->name,
                       id);
    if (!op->need)
        return 0;
    rc = op->need(params, &need, &why);
    if (rc < 0)
        return mc_fail(err, rc, "operation %s: %s", op->name, why ? why : "refused");
    if (need.scratch > p->scratch_bytes)
        p->scratch_bytes = need.scratch;
    return 0;
}

struct question {
    enum mc_op_id id;
    const void *params;
};

static int ask_list(struct mc_pass *p, const struct question *q, size_t n,
                    struct mc_err *err)
{
    int rc = 0;

    for (size_t i = 0; i < n && rc == 0; i++)
        rc = ask(p, q[i].id, q[i].params, err);
    return rc;
}

static int ask_layer(struct mc_pass *p, const struct layer_ops *o, struct mc_err *err)
{
    const struct question list[] = {
        {MC_OP_linear, &o->qkv},       {MC_OP_gqa_prep, &o->prep},
        {MC_OP_gqa_attn, &o->attn},    {MC_OP_attn_merge, &o->merge},
        {MC_OP_linear, &o->o},         {MC_OP_join, &o->mid},
        {MC_OP_glu, &o->glu},          {MC_OP_linear, &o->down},
        {MC_OP_join, &o->next},
    };

    return ask_list(p, list, sizeof list / sizeof list[0], err);
}

static int ask_all(struct mc_pass *p, struct mc_err *err)
{
    const struct question ends[] = {
        {MC_OP_page_check, &p->check},   {MC_OP_embed, &p->embed},
        {MC_OP_join, &p->first},         {MC_OP_gather_rows, &p->gather},
        {MC_OP_quant, &p->quant},        {MC_OP_linear, &p->head},
        {MC_OP_chain, &p->chain},        {MC_OP_sample, &p->sample},
        {MC_OP_commit, &p->commit},
    };
    int rc = ask_list(p, ends, sizeof ends / sizeof ends[0], err);

    for (int32_t i = 0; i < p->m->cfg.n_layer && rc == 0; i++)
        rc = ask_layer(p, &p->layer[i], err); /* formats may differ from layer to layer */
    return rc;
}

/* Layers may differ in format (gate in one layout, down in another), but the activation
 * buffers were made for layer 0. */
static int same_forms(const struct mc_pass *p, struct mc_err *err)
{
    const struct mc_backend *be = p->m->be;

    for (int32_t i = 0; i < p->m->cfg.n_layer; i++) {
        const struct mc_layer *y = &p->m->layer[i];
        const struct mc_w *of_act[] = {&y->qkv[0], &y->qkv[1], &y->qkv[2], &y->gate,
                                       &y->up};

        for (size_t j = 0; j < sizeof of_act / sizeof of_act[0]; j++)
            if (be->act_of(be, of_act[j]->layout) != p->act.layout)
                return mc_fail(
                    err, MC_EUNSUP,
                    "layer %d mixes weight formats that read different activations", i);
        if (be->act_of(be, y->o.layout) != p->attn.layout ||
            be->act_of(be, y->down.layout) != p->mid.layout)
            return mc_fail(err, MC_EUNSUP,
                           "layer %d has other weight formats than layer 0", i);
    }
    return 0;
}

int mc_pass_open(const struct mc_model *m, const struct mc_pass_caps *caps,
                 const struct mc_step_mem *mem, struct mc_pass **out, struct mc_err *err)
{
    struct mc_pass *p = calloc(1, sizeof *p);
    int rc = MC_ENOMEM;

    if (!p)
        return mc_fail(err, MC_ENOMEM, "no memory for a pass");
    p->m = m;
    p->caps = *caps;
    p->mem = mem;
    mc_mem_init(&p->own, m->be);
    p->layer = calloc((size_t)m->cfg.n_layer, sizeof *p->layer);
    if (!p->layer || take_buffers(p) < 0) {
        mc_fail(err, rc, "no memory for the activations of %d rows", caps->rows);
        goto fail;
    }
    rc = same_forms(p, err);
    if (rc < 0)
        goto fail;
    for (int32_t i = 0; i < m->cfg.n_layer; i++)
        bind_layer(p, i);
    bind_ends(p);
    rc = ask_all(p, err);
    if (rc < 0)
        goto fail;
    p->scratch = mc_mem_take(&p->own, p->scratch_bytes);
    if (p->scratch_bytes && !p->scratch) {
        rc = mc_fail(err, MC_ENOMEM, "no memory for %zu bytes of scratch",
                     p->scratch_bytes);
        goto fail;
    }
    for (int32_t i = 0; i < m->cfg.n_layer; i++)
        p->layer[i].glu.scratch = p->scratch;
    p->sample.scratch = p->scratch;
    *out = p;
    return 0;
fail:
    mc_pass_close(p);
    return rc;
}

void mc_pass_close(struct mc_pass *p)
{
    if (!p)
        return;
    mc_mem_fini(&p->own);
    free(p->layer);
    free(p);
}

/* ---- running ----------------------------------------------------------------------- */

/* Enqueues in order and stops at the first refusal. */
#define RUN(name, params)                            \
    do {                                             \
        int rc_ = mc_k_##name(be, s, (params));      \
        if (rc_ < 0)                                 \
            return rc_;                              \
    } while (0)

static int forward_layer(const struct mc_backend *be, struct mc_stream *s,
                         const struct layer_ops *o)
{
    RUN(linear, &o->qkv);
    RUN(gqa_prep, &o->prep);
    RUN(gqa_attn, &o->attn);
    RUN(attn_merge, &o->merge);
    RUN(linear, &o->o);
    RUN(join, &o->mid);
    RUN(glu, &o->glu);
    RUN(linear, &o->down);
    RUN(join, &o->next);
    return 0;
}

static void watch(const struct mc_pass_watch *w, int32_t layer)
{
    if (w)
        w->on_layer(w->ctx, layer);
}

int mc_pass_forward(struct mc_pass *p, struct mc_stream *s, const struct mc_pass_watch *w)
{
    const struct mc_backend *be = p->m->be;

    if (!p->caps.no_page_check)
        RUN(page_check, &p->check);
    RUN(embed, &p->embed);
    RUN(join, &p->first);
    watch(w, -1);
    for (int32_t i = 0; i < p->m->cfg.n_layer; i++) {
        int rc = forward_layer(be, s, &p->layer[i]);

        if (rc < 0)
            return rc;
        watch(w, i);
    }
    RUN(gather_rows, &p->gather);
    RUN(quant, &p->quant);
    RUN(linear, &p->head);
    watch(w, p->m->cfg.n_layer);
    return 0;
}

int mc_pass_sample(struct mc_pass *p, struct mc_stream *s, struct mc_out *ring)
{
    const struct mc_backend *be = p->m->be;
    struct mc_commit_p commit = p->commit;

    commit.ring = ring;
    RUN(chain, &p->chain);
    RUN(sample, &p->sample);
    RUN(commit, &commit);
    return 0;
}

const void *mc_pass_residual(const struct mc_pass *p)
{
    return p->res;
}

const void *mc_pass_norm(const struct mc_pass *p)
{
    return p->norm;
}
