/* pass.c - one forward pass over ragged rows: its ends, its layers, running it.
 *
 * Owns the activation buffers and the lists of bound operations. THREAD: open and close
 * one; forward and sample the engine's. Always true: after open nothing here changes:
 * running a pass is a list of enqueues with the same params, so that it can be recorded
 * and replayed. */
#include <stdlib.h>

#include "core/model/pass_int.h"

static const struct mc_block *attn_of(const struct mc_pass *p)
{
    return p->m->cfg.attn == MC_ATTN_MLA ? &mc_attn_mla : &mc_attn_gqa;
}

static const struct mc_block *ffn_of(const struct mc_pass *p, int32_t i)
{
    return p->m->cfg.layer[i] & MC_LAYER_MOE ? &mc_ffn_moe : &mc_ffn_dense;
}

/* In a tapped pass: what the step's list says of these rows. Of several ranks the first adds
 * to its partial sum and copies what all of them have; of logits each has its own. */
static void add_tap(struct mc_pass *p, int32_t layer, bool copy, void *x, int32_t cols)
{
    struct mc_tap_p tap = {.taps = p->mem->taps, .layer = layer, .cols = cols, .copy = copy,
                           .x = x};

    if (layer == MC_TAP_LOGITS)
        tap.peer = p->m->be->peer;
    if (p->to == &p->tapped && (layer == MC_TAP_LOGITS || p->m->slice.rank == 0))
        MC_PASS_ADD(p, tap, &tap);
}

/* One layer, from its normed input to the join behind its feed-forward block; the caller
 * says what that join norms by and makes. */
static struct mc_input add_layer(struct mc_pass *p, int32_t i, const struct mc_input *in,
                                 const float *next_norm, unsigned next_wants)
{
    const struct mc_layer *y = &p->m->layer[i];
    const struct mc_block *ffn = ffn_of(p, i);
    struct mc_input mid, in_next;

    attn_of(p)->add(p, i, in);
    mid = mc_pass_join(p, y->v[MC_V_MLP_NORM], false, ffn->wants(p, y));
    ffn->add(p, i, &mid);
    add_tap(p, i + 1, false, p->x, p->m->cfg.hidden);
    in_next = mc_pass_join(p, next_norm, false, next_wants);
    add_tap(p, i + 1, true, p->res, p->m->cfg.hidden);
    return in_next;
}

/* The rows that need logits: gathered from p->norm, and through the head. */
static void add_head(struct mc_pass *p)
{
    const struct mc_model *m = p->m;
    const struct mc_step_mem *s = p->mem;
    const struct mc_w *head = &m->end.w[MC_M_HEAD];
    const int32_t *n_out = &s->rows.live[MC_LIVE_OUT];
    void *picked = mc_pass_buffer(p, MC_USE_PICKED, (size_t)p->caps.outs *
                                                        (size_t)m->cfg.hidden *
                                                        mc_pass_row_bytes(p));
    struct mc_gather_rows_p gather = {
        .rows = s->rows, .norm = p->norm, .h = m->cfg.hidden, .out = picked};
    struct mc_quant_p quant = {.n_live = n_out,
                               .cap = p->caps.outs,
                               .x = picked,
                               .act = mc_pass_act(p, MC_ACT_LAST,
                                                  m->be->act_of(m->be, head->layout),
                                                  p->caps.outs, m->cfg.hidden)};
    struct mc_linear_p linear = {.n_live = n_out, .cap = p->caps.outs, .n_w = 1,
                                 .act = quant.act, .w = {*head}, .y = {s->part},
                                 .pitch = {s->part_pitch}, .y_dt = MC_F32};
    struct mc_all_to_all_p whole = {.n_live = n_out, .cap = p->caps.outs, .in = s->part,
                                    .pitch = s->part_pitch, .out_pitch = m->cfg.vocab,
                                    .out = s->logits, .peer = m->be->peer};
    struct mc_slice of = m->slice;

    MC_PASS_ADD(p, gather_rows, &gather);
    MC_PASS_ADD(p, quant, &quant);
    MC_PASS_ADD(p, linear, &linear);
    if (m->slice.n == 1)
        return;
    for (of.rank = 0; of.rank < of.n; of.rank++) {
        struct mc_span ids = mc_share(m->cfg.vocab, mc_width_unit(m->cfg.vocab, of.n),
                                      of);

        whole.col0[of.rank + 1] = ids.at + ids.n;
    }
    MC_PASS_ADD(p, all_to_all, &whole);
}

static void add_embed(struct mc_pass *p)
{
    const struct mc_embed_p embed = {.rows = p->mem->rows,
                                     .w = p->m->end.w[MC_M_EMBED],
                                     .slots = p->mem->slots,
                                     .row0 = p->m->row0,
                                     .x = p->x};

    MC_PASS_ADD(p, embed, &embed);
}

static void add_check(struct mc_pass *p)
{
    const struct mc_page_check_p check = {
        .rows = p->mem->rows, .kv = p->mem->kv, .slots = p->mem->slots,
        .found = mc_pass_shards(p) > 1
                     ? mc_pass_buffer(p, MC_USE_SHARD_BAD,
                                      (size_t)p->caps.seqs * sizeof *check.found)
                     : NULL,
        .peer = p->m->be->peer};
    const struct mc_agree_p agree = {.rows = check.rows, .kv = check.kv,
                                     .slots = check.slots, .peer = p->m->be->peer};

    if (!p->caps.no_page_check)
        MC_PASS_ADD(p, page_check, &check);
    if (p->m->slice.n > 1)
        MC_PASS_ADD(p, agree, &agree);
}

static void build_forward(struct mc_pass *p, struct mc_list *to)
{
    const struct mc_model *m = p->m;
    const struct mc_block *attn = attn_of(p);
    struct mc_input in;

    p->to = to;
    add_check(p);
    add_embed(p);
    add_tap(p, 0, false, p->x, m->cfg.hidden);
    in = mc_pass_join(p, m->layer[0].v[MC_V_ATTN_NORM], true,
                      attn->wants(p, &m->layer[0]));
    add_tap(p, 0, true, p->res, m->cfg.hidden);
    mc_pass_mark(p, -1);
    for (int32_t i = 0; i < m->cfg.n_layer; i++) {
        const struct mc_layer *next = &m->layer[i + 1];

        /* The last norm is of row values only: what needs logits is quantised after
         * gather_rows. */
        if (i + 1 == m->cfg.n_layer)
            in = add_layer(p, i, &in, m->end.v[MC_V_NORM], MC_WANT_ROWS);
        else
            in = add_layer(p, i, &in, next->v[MC_V_ATTN_NORM], attn->wants(p, next));
        mc_pass_mark(p, i);
    }
    add_tap(p, MC_TAP_NORM, true, p->norm, m->cfg.hidden);
    add_head(p);
    add_tap(p, MC_TAP_LOGITS, true, p->mem->logits, m->cfg.vocab);
    mc_pass_mark(p, m->cfg.n_layer);
}

/* The draft layer, where the model has one; its logits go where the model's do. */
static void build_draft(struct mc_pass *p)
{
    const struct mc_model *m = p->m;
    int32_t i = m->cfg.n_layer;
    const struct mc_layer *y = &m->layer[i];
    struct mc_input in;

    if (m->cfg.n_mtp == 0)
        return;
    p->to = &p->draft;
    add_embed(p);
    mc_pass_add_draft(p);
    in = mc_pass_join(p, y->v[MC_V_ATTN_NORM], true, attn_of(p)->wants(p, y));
    add_layer(p, i, &in, y->v[MC_V_NORM], MC_WANT_ROWS);
    mc_pass_mark(p, i);
    add_head(p);
}

static void build_sample(struct mc_pass *p)
{
    const struct mc_model *m = p->m;
    const struct mc_step_mem *s = p->mem;
    int32_t v = m->cfg.vocab;
    const struct mc_chain_p chain = {.rows = s->rows,
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
                                     .stat = s->stat,
                                     .peer = m->be->peer};
    const struct mc_sample_p sample = {.rows = s->rows,
                                       .logits = s->logits,
                                       .raw = s->raw,
                                       .vocab = v,
                                       .n_real = m->n_real,
                                       .pitch = v,
                                       .slots = s->slots,
                                       .stat = s->stat,
                                       .out = s->mine,
                                       .peer = m->be->peer};
    const struct mc_all_gather_p all = {.n_live = &s->rows.live[MC_LIVE_OUT],
                                        .cap = p->caps.outs,
                                        .in = s->mine,
                                        .out = s->out,
                                        .row_bytes = sizeof *s->out,
                                        .peer = m->be->peer};
    const struct mc_commit_p commit = {.rows = s->rows, .out = s->out, .slots = s->slots,
                                       .counts = s->counts, .vocab = v};

    p->to = &p->sample;
    MC_PASS_ADD(p, chain, &chain);
    MC_PASS_ADD_SCRATCH(p, sample, &sample);
    if (m->slice.n > 1)
        MC_PASS_ADD(p, all_gather, &all);
    MC_PASS_ADD(p, commit, &commit); /* last: see mc_pass_sample */
}

/* Scratch is one block that every operation may use while it runs. */
static void give_scratch(struct mc_pass *p)
{
    struct mc_list *lists[] = {&p->forward, &p->tapped, &p->sample, &p->draft};

    if (p->rc < 0 || p->scratch_bytes == 0)
        return;
    p->scratch = mc_mem_take(&p->own, p->scratch_bytes);
    if (!p->scratch)
        p->rc = mc_fail(p->err, MC_ENOMEM, "no memory for %zu bytes of scratch",
                        p->scratch_bytes);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (int32_t j = 0; j < lists[i]->n; j++)
            if (lists[i]->v[j].scratch >= 0)
                *(void **)((char *)lists[i]->v[j].params +
                           lists[i]->v[j].scratch) = p->scratch;
}

int mc_pass_open(const struct mc_model *m, const struct mc_pass_caps *caps,
                 const struct mc_step_mem *mem, struct mc_pass **out, struct mc_err *err)
{
    struct mc_pass *p = calloc(1, sizeof *p);
    size_t hidden;
    int rc;

    if (!p)
        return mc_fail(err, MC_ENOMEM, "no memory for a pass");
    p->m = m;
    p->caps = *caps;
    p->mem = mem;
    p->err = err;
    mc_mem_init(&p->own, m->be);
    hidden = (size_t)caps->rows * (size_t)m->cfg.hidden * mc_pass_row_bytes(p);
    p->x = mc_pass_buffer(p, MC_USE_X, hidden);
    p->x_next = m->slice.n > 1 ? mc_pass_buffer(p, MC_USE_X_NEXT, hidden) : p->x;
    p->res = mc_pass_buffer(p, MC_USE_RES, hidden);
    p->norm = mc_pass_buffer(p, MC_USE_NORM, hidden);
    build_forward(p, &p->forward);
    if (caps->taps > 0)
        build_forward(p, &p->tapped);
    build_draft(p);
    build_sample(p);
    give_scratch(p);
    p->err = NULL;
    rc = p->rc;
    if (rc < 0) {
        mc_pass_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

static void free_list(struct mc_list *l)
{
    for (int32_t i = 0; i < l->n; i++)
        free(l->v[i].params);
    free(l->v);
}

void mc_pass_close(struct mc_pass *p)
{
    if (!p)
        return;
    free_list(&p->forward);
    free_list(&p->tapped);
    free_list(&p->sample);
    free_list(&p->draft);
    mc_mem_fini(&p->own);
    free(p->act);
    free(p);
}

/* ---- running ----------------------------------------------------------------------- */

/* Enqueues in order and stops at the first refusal. */
static int run(const struct mc_list *l, int32_t n, struct mc_stream *s,
               const struct mc_pass_watch *w)
{
    int rc = 0;

    for (int32_t i = 0; i < n && rc == 0; i++) {
        const struct mc_bound *b = &l->v[i];

        if (b->op)
            rc = b->op->run(s, b->params);
        else if (w && w->on_layer)
            w->on_layer(w->ctx, b->layer);
        if (b->op && w && w->on_op && rc == 0)
            w->on_op(w->ctx, b->op, b->params);
    }
    return rc;
}

int mc_pass_forward(struct mc_pass *p, struct mc_stream *s, const struct mc_pass_watch *w)
{
    return run(&p->forward, p->forward.n, s, w);
}

int mc_pass_tapped(struct mc_pass *p, struct mc_stream *s, const struct mc_pass_watch *w)
{
    return run(&p->tapped, p->tapped.n, s, w);
}

int mc_pass_sample(struct mc_pass *p, struct mc_stream *s, struct mc_out *ring)
{
    const struct mc_bound *last = &p->sample.v[p->sample.n - 1];
    struct mc_commit_p commit = *(const struct mc_commit_p *)last->params;
    int rc = run(&p->sample, p->sample.n - 1, s, NULL);

    commit.ring = ring;
    return rc < 0 ? rc : last->op->run(s, &commit);
}

int mc_pass_draft(struct mc_pass *p, struct mc_stream *s, const struct mc_pass_watch *w)
{
    return run(&p->draft, p->draft.n, s, w);
}

void *mc_pass_draft_hidden(struct mc_pass *p)
{
    return p->buf[MC_USE_DRAFT_HIDDEN].p;
}

const void *mc_pass_peek(const struct mc_pass *p, enum mc_peek what)
{
    static const uint8_t use[] = {
        [MC_PEEK_RESIDUAL] = MC_USE_RES,
        [MC_PEEK_NORM] = MC_USE_NORM,
        [MC_PEEK_EXPERTS] = MC_USE_EXPERT_IDS,
        [MC_PEEK_EXPERT_WEIGHTS] = MC_USE_EXPERT_WEIGHTS,
        [MC_PEEK_INDEX_SET] = MC_USE_INDEX_SET,
    };

    return p->buf[use[what]].p;
}
