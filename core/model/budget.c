/* budget.c - what a model needs of a device's memory, from its configuration alone.
 *
 * Owns nothing. THREAD: any.
 *
 * The crossover of token sharding compares the attention of one decode step, b sequences
 * of L tokens, in all layers:
 *   tensor parallel  each rank reads all L tokens for its h/n heads: per token the larger of
 *                    bytes / hbm and flops / rate, where fewer than 16 heads cost as 16 (the
 *                    matrix units' tile)
 *   sharded          each of s ranks reads L/s tokens for all h heads, and a layer needs two
 *                    exchanges more (queries out, partial outputs and their log-sums back;
 *                    with an index a third, of candidates), of a fixed time and their bytes
 * Both are straight lines in L. Where an indexer picks top-k tokens, what grows with L is the
 * index alone: its keys are what is read and scored, on the layers that have one. */
#include "core/model/budget.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *mc_budget_name(enum mc_budget_kind kind)
{
    static const char *const name[MC_N_B] = {
        "embedding", "head", "attention", "indexer", "dense", "experts", "shared", "router",
        "norms", "mtp",
    };

    return name[kind];
}

static enum mc_budget_kind kind_of(const struct mc_config *c, int32_t layer,
                                   const struct mc_tensor_spec *t)
{
    if (layer >= c->n_layer)
        return MC_B_MTP;
    if (t->vector)
        return t->at == MC_V_ROUTER_BIAS ? MC_B_ROUTER : MC_B_NORMS;
    switch (t->at) {
    case MC_M_EMBED:
        return MC_B_EMBED;
    case MC_M_HEAD:
        return MC_B_HEAD;
    case MC_M_INDEX_Q: case MC_M_INDEX_K: case MC_M_INDEX_GATE:
        return MC_B_INDEXER;
    case MC_M_GATE: case MC_M_UP: case MC_M_DOWN:
        return MC_B_DENSE;
    case MC_M_ROUTER: case MC_M_SHARED_MIX:
        return MC_B_ROUTER;
    case MC_M_EXPERT_GATE: case MC_M_EXPERT_UP: case MC_M_EXPERT_DOWN:
        return MC_B_EXPERTS;
    case MC_M_SHARED_GATE: case MC_M_SHARED_UP: case MC_M_SHARED_DOWN:
        return MC_B_SHARED;
    default:
        return MC_B_ATTENTION;
    }
}

/* What a rank has of the walk's tensors. */
struct walk {
    const struct mc_config *c;
    struct mc_slice slice;
    mc_form_fn form;
    void *ctx;
    struct mc_weights_budget *out;
};

/* The tied embedding is read as the head; else only rows of it are. */
static bool read_whole(const struct walk *w, int32_t layer,
                       const struct mc_tensor_spec *t)
{
    if (layer >= w->c->n_layer)
        return false;
    return t->vector || t->at != MC_M_EMBED || w->c->tied;
}

static struct mc_form form_of(const struct walk *w, const struct mc_tensor_spec *t)
{
    char name[MC_TENSOR_NAME + 32];

    mc_tensor_name(t, w->c->prefix, 0, name);
    return w->form(w->ctx, t, name);
}

static void add(const struct walk *w, int32_t layer, const struct mc_tensor_spec *t)
{
    struct mc_budget_class *b = &w->out->cls[kind_of(w->c, layer, t)];
    struct mc_form f = form_of(w, t);
    struct mc_span rows, cols;
    int64_t k = t->vector ? 1 : t->k;
    uint64_t one = mc_form_bytes(&f, t->n, k), bytes = one * (uint64_t)t->count, rank;

    mc_tensor_cut(w->c, t, w->slice, &rows, &cols);
    rank = (uint64_t)t->count * mc_form_bytes(&f, rows.n, t->vector ? 1 : cols.n);
    b->n_tensor += (int64_t)t->count * f.n_tensor;
    b->n_param += (int64_t)t->count * t->n * k;
    b->bytes += bytes;
    b->bytes_rank += rank;
    if (t->cut == MC_CUT_NONE)
        b->bytes_each += rank;
    if (bytes > b->form_bytes) { /* that of the largest tensors */
        b->form_bytes = bytes;
        mc_form_name(&f, b->form);
    }
    if (read_whole(w, layer, t)) {
        w->out->decode_bytes += t->count > 1 ? one * (uint64_t)w->c->top_k_expert : bytes;
        *(t->count > 1 ? &w->out->read.routed : &w->out->read.fixed) += bytes;
        *(t->count > 1 ? &w->out->read_rank.routed : &w->out->read_rank.fixed) += rank;
    }
}

static void walk_all(const struct walk *w)
{
    struct mc_tensor_spec spec[MC_MAX_SPECS];
    struct mc_budget_class *all = &w->out->all;

    memset(w->out, 0, sizeof *w->out);
    for (int32_t layer = -1; layer < w->c->n_layer + w->c->n_mtp; layer++)
        for (int i = 0, n = mc_tensors_of(w->c, layer, spec); i < n; i++)
            add(w, layer, &spec[i]);
    for (int i = 0; i < MC_N_B; i++) {
        const struct mc_budget_class *b = &w->out->cls[i];

        all->n_tensor += b->n_tensor;
        all->n_param += b->n_param;
        all->bytes += b->bytes;
        all->bytes_rank += b->bytes_rank;
        all->bytes_each += b->bytes_each;
    }
}

int mc_budget_weights(const struct mc_config *c, int32_t ranks, mc_form_fn form,
                      void *ctx, struct mc_weights_budget *out, struct mc_err *err)
{
    struct mc_weights_budget rank;
    struct mc_span q, kv;

    memset(out, 0, sizeof *out);
    for (int32_t r = 0; r < ranks; r++) {
        struct walk w = {.c = c, .slice = {r, ranks}, .form = form, .ctx = ctx, .out = &rank};

        if (!mc_share_heads(c, w.slice, &q, &kv) || q.n < 1)
            return mc_fail_param(err, MC_EUNSUP, "ranks",
                                 "--ranks %d: %d heads over %d kv "
                                 "heads can't be shared evenly",
                                 ranks, c->n_head, c->n_kv_head);
        walk_all(&w);
        if (rank.all.bytes_rank > out->all.bytes_rank)
            *out = rank;
    }
    return 0;
}

double mc_budget_step_bytes(const struct mc_config *c, const struct mc_budget_read *r,
                            int32_t seqs)
{
    double skip = c->n_expert > 0 ? 1 - (double)c->top_k_expert / c->n_expert : 1;

    return (double)r->fixed + (double)r->routed * (1 - pow(skip, seqs));
}

/* ---- when token sharding pays ------------------------------------------------------ */

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* Seconds that a token of context costs a rank whose part of it is 1/shard, with so many of
 * the heads. */
static double per_token(const struct mc_config *c, const struct mc_kv *kv, int32_t heads,
                        const struct mc_speed *speed)
{
    double n = kv->n_index > 0 ? kv->n_index : kv->n_layer, bytes, flops;

    if (kv->n_index > 0) { /* scored by all index heads on each rank */
        bytes = (double)kv->index_stride / MC_PAGE;
        flops = 2.0 * c->index_heads * c->index_dim;
    } else {
        bytes = (double)kv->layer_stride / MC_PAGE;
        flops = 2.0 * larger(heads, 16) *
                (c->attn == MC_ATTN_MLA ? 2 * c->kv_lora + c->rope_dim : 2 * c->head_dim);
    }
    return n * larger(bytes / speed->hbm, flops / speed->flops);
}

double mc_budget_crossover(const struct mc_config *c, const struct mc_kv *kv,
                           int32_t ranks, int32_t shard, int32_t batch,
                           const struct mc_speed *speed)
{
    int32_t wide = c->attn == MC_ATTN_MLA ? c->kv_lora : c->head_dim;
    double whole = per_token(c, kv, c->n_head / ranks, speed);
    double part = per_token(c, kv, c->n_head / ranks * shard, speed) / shard;
    double bytes = 2.0 * batch * c->n_head * (2 * wide + mc_rope_dim(c)) / shard;
    double fixed = kv->n_layer * (2 * speed->exchange + bytes / speed->link) +
                   kv->n_index * speed->exchange;

    if (shard <= 1 || part >= whole)
        return -1;
    return fixed / (batch * (whole - part));
}

/* ---- what a step needs besides ----------------------------------------------------- */

uint64_t mc_budget_scratch(const struct mc_config *c, int32_t ranks, int32_t rows)
{
    int64_t heads = (c->n_head + ranks - 1) / ranks, at = 3 * (int64_t)c->hidden, mid,
            experts;

    at += heads * (mc_q_dim(c) + mc_o_dim(c));
    if (c->attn == MC_ATTN_MLA)
        at += c->q_lora + heads * (2 * (int64_t)c->kv_lora + c->rope_dim);
    else
        at += 2 * (int64_t)c->head_dim * ((c->n_kv_head + ranks - 1) / ranks);
    at += (int64_t)c->index_heads * c->index_dim + 2 * (int64_t)c->index_topk;
    mid = 2 * (int64_t)c->inter / ranks;
    experts = (int64_t)c->top_k_expert * (2 * (int64_t)c->moe_inter / ranks + c->hidden) +
              2 * (int64_t)c->shared_inter / ranks;
    return 2 * (uint64_t)rows * (uint64_t)(at + (mid > experts ? mid : experts));
}
