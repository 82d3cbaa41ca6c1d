/* attn_mla.c - the block of attention over a latent (MLA), dense or by DSA's choice.
 *
 * Owns nothing. THREAD: opening.
 * Absorbed form: W_UK goes to the query, so that it meets the cached latent, and W_UV to
 * what attention leaves, so that no key or value is ever expanded; but for the rows of
 * long chunks (--mla-expand): a token's keys and values, made once, then serve many rows.
 * A layer that owns an indexer chooses topk positions for
 * each row; the layers behind it that own none see the same ones, so the set's buffer lives
 * until the next indexer.
 * Tokens spread over a group of ranks: each has the queries of all its heads gathered, lets
 * them see its own tokens, and gets back what all found for its own heads; an indexer's
 * choice is made among the ranks' choices. Nothing is expanded then.
 * Buffers: K holds the query's latent before its norm, V the token's. */
#include "core/model/pass_int.h"

static unsigned wants(const struct mc_pass *p, const struct mc_layer *y)
{
    static const uint8_t of_hidden[] = {MC_M_Q, MC_M_Q_A, MC_M_KV_A, MC_M_INDEX_K,
                                        MC_M_INDEX_GATE};
    unsigned want = 0;

    for (size_t i = 0; i < sizeof of_hidden; i++)
        if (y->w[of_hidden[i]].n > 0)
            want |= mc_pass_form(p, &y->w[of_hidden[i]]);
    return want;
}

static struct mc_rope rope_of(const struct mc_model *m, int32_t off, bool neighbours)
{
    return (struct mc_rope){.inv_freq = m->inv_freq, .mul = m->rope_mul,
                            .dim = (int16_t)m->cfg.rope_dim, .off = (int16_t)off,
                            .pair = neighbours ? MC_ROPE_NEIGHBOURS : MC_ROPE_HALVES};
}

static void *rows(struct mc_pass *p, enum mc_use use, int32_t width)
{
    return mc_pass_buffer(p, use,
                          (size_t)p->caps.rows * (size_t)width * mc_pass_row_bytes(p));
}

/* Those of the matrices that the layer has. */
static void add_fan(struct mc_pass *p, const struct mc_layer *y,
                    const struct mc_input *in, const uint8_t *at, void *const *to, int n)
{
    struct mc_fan fan[MC_MAX_FAN];
    int have = 0;

    for (int i = 0; i < n; i++)
        if (y->w[at[i]].n > 0)
            fan[have++] = (struct mc_fan){&y->w[at[i]], NULL, to[i]};
    mc_pass_linear(p, in, fan, have);
}

/* The latents: the query's normed, for the matrices behind it; the token's to its page.
 */
static struct mc_input add_prep(struct mc_pass *p, int32_t layer, void *q_a, void *kv_a)
{
    const struct mc_config *c = &p->m->cfg;
    const struct mc_layer *y = &p->m->layer[layer];
    const struct mc_step_mem *s = p->mem;
    struct mc_input latent = {0};
    struct mc_mla_prep_p prep = {.rows = s->rows,
                                 .kv = s->kv,
                                 .slots = s->slots,
                                 .layer = layer,
                                 .q_lora = c->q_lora,
                                 .q_a = q_a,
                                 .kv_a = kv_a,
                                 .q_norm = y->v[MC_V_Q_NORM],
                                 .kv_norm = y->v[MC_V_K_NORM],
                                 .eps = c->lora_norm_eps,
                                 .rope = rope_of(p->m, 0, c->rope_neighbours),
                                 .fresh = mc_pass_fresh(p, layer)};
    unsigned want = 0;

    if (q_a) {
        want = mc_pass_form(p, &y->w[MC_M_Q_B]);
        if (y->w[MC_M_INDEX_Q].n > 0)
            want |= mc_pass_form(p, &y->w[MC_M_INDEX_Q]);
        prep.act = mc_pass_act(p, MC_ACT_LATENT, (uint16_t)mc_pass_first_form(want),
                               p->caps.rows, c->q_lora);
        latent.act[prep.act.layout] = prep.act;
        latent.have = 1u << prep.act.layout;
        if (mc_pass_needs_rows(want))
            latent.rows = prep.norm_out = rows(p, MC_USE_LATENT, c->q_lora);
    }
    MC_PASS_ADD(p, mla_prep, &prep);
    mc_pass_quant(p, &latent, MC_ACT_LATENT, c->q_lora, want);
    return latent;
}

/* Each rank's best of its own tokens, then the best of all. */
static void add_shared_choice(struct mc_pass *p, struct mc_dsa_topk_p *topk)
{
    size_t n = (size_t)p->caps.rows * (size_t)topk->topk;
    int32_t *list = mc_pass_buffer(p, MC_USE_SHARD_LIST,
                                   n * (sizeof *list + sizeof(float)));
    struct mc_dsa_merge_p merge = {.rows = topk->rows, .kv = topk->kv, .topk = topk->topk,
                                   .first = topk->first, .lists = list, .idx = topk->idx,
                                   .peer = p->m->be->peer};

    topk->idx = list;
    topk->score = list ? (float *)(list + n) : NULL;
    MC_PASS_ADD_SCRATCH(p, dsa_topk, topk);
    MC_PASS_ADD(p, dsa_merge, &merge);
}

/* The positions that each row sees, rising: [T,topk]. */
static void add_index(struct mc_pass *p, int32_t layer, void *q, void *k, void *gate,
                      int32_t *set)
{
    const struct mc_config *c = &p->m->cfg;
    const struct mc_layer *y = &p->m->layer[layer];
    const struct mc_step_mem *s = p->mem;
    size_t heads = (size_t)p->caps.rows * (size_t)c->index_heads;
    struct mc_dsa_prep_p prep = {
        .rows = s->rows,
        .kv = s->kv,
        .slots = s->slots,
        .index = y->index,
        .hi = c->index_heads,
        .q = q,
        .k = k,
        .gate = gate,
        .k_norm = y->v[MC_V_INDEX_NORM],
        .k_bias = y->v[MC_V_INDEX_BIAS],
        .eps = 1e-6f,
        .rope = rope_of(p->m, 0, c->index_neighbours),
        .qi = mc_pass_buffer(p, MC_USE_INDEX_QI,
                             heads * (size_t)c->index_dim * sizeof(float)),
        .gates = mc_pass_buffer(p, MC_USE_INDEX_GATES, heads * sizeof(float))};
    struct mc_dsa_topk_p topk = {
        .rows = s->rows, .kv = s->kv, .slots = s->slots, .index = y->index,
        .hi = c->index_heads, .topk = c->index_topk, .context = p->caps.context,
        .first = mc_pass_first(p, layer), .qi = prep.qi, .gates = prep.gates, .idx = set};

    MC_PASS_ADD(p, dsa_prep, &prep);
    if (mc_pass_shards(p) > 1)
        add_shared_choice(p, &topk);
    else
        MC_PASS_ADD_SCRATCH(p, dsa_topk, &topk);
}

/* The queries of the group's heads, gathered: [T,n*h,c+r]. */
static const void *add_gather(struct mc_pass *p, const void *q)
{
    int32_t width = p->m->heads.n * (p->m->cfg.kv_lora + p->m->cfg.rope_dim);
    int32_t n = mc_pass_shards(p);
    struct mc_all_gather_p all = {.n_live = &p->mem->rows.live[MC_LIVE_ROWS],
                                  .cap = p->caps.rows,
                                  .in = q,
                                  .out = rows(p, MC_USE_SHARD_Q, n * width),
                                  .row_bytes = width * (int32_t)mc_pass_row_bytes(p),
                                  .n_shard = n,
                                  .peer = p->m->be->peer};

    MC_PASS_ADD(p, all_gather, &all);
    return all.out;
}

/* Parts of all heads of the group to one result of this rank's own. */
static void add_merge(struct mc_pass *p, struct mc_attn_merge_p *merge)
{
    struct mc_shard_merge_p all = {.rows = merge->rows, .kv = p->mem->kv,
                                   .h = p->m->heads.n, .d = merge->d, .out = merge->out,
                                   .peer = p->m->be->peer};
    size_t head = (size_t)(merge->d + 2) * sizeof(float);

    if (mc_pass_shards(p) > 1)
        all.fold = merge->fold =
            mc_pass_buffer(p, MC_USE_SHARD_FOLD,
                           (size_t)p->caps.rows * (size_t)merge->h * head);
    MC_PASS_ADD(p, attn_merge, merge);
    if (mc_pass_shards(p) > 1)
        MC_PASS_ADD(p, shard_merge, &all);
}

/* A row's head multiplies 2c + r values with each token it sees when absorbed, nope + r + v
 * when expanded, which costs (nope + v) c once a token: even at so many rows. For Kimi that
 * is 171; measured were 160 to 190 (bench_experts --only long), so that no chunk of less
 * than 192 rows is expanded for any model: the prompts of short requests keep the bits that
 * they have in any batch. */
static int32_t even_rows(const struct mc_config *c)
{
    int64_t made = (int64_t)(c->nope + c->v_dim) * c->kv_lora;
    int64_t saved = 2 * (int64_t)c->kv_lora - c->nope - c->v_dim;
    int64_t rows = saved > 0 ? (made + saved - 1) / saved : 0;

    rows = (rows + 63) / 64 * 64;
    return saved <= 0 || rows > INT32_MAX ? 0
           : rows > MC_EXPAND_LEAST       ? (int32_t)rows
                                          : MC_EXPAND_LEAST;
}

int32_t mc_expand_from(const struct mc_backend *be, const struct mc_config *c)
{
    const struct mc_op *op = be->op[MC_OP_attn_ragged];
    struct mc_attn_ragged_p p = {.h = 1, .nope = c->nope, .v = c->v_dim};
    struct mc_need need;

    if (!op || c->attn != MC_ATTN_MLA || c->index_topk > 0)
        return 0;
    p.kv = mc_kv_of(c, (struct mc_slice){0, 1}, MC_KV_BF16);
    p.kv_b = (struct mc_w){.layout = MC_W_F32, .n = c->nope + c->v_dim, .k = c->kv_lora};
    p.act = (struct mc_act){.layout = be->act_of(be, MC_W_F32), .k = c->v_dim};
    return op->need(&p, &need, NULL) == 0 ? even_rows(c) : 0;
}

/* Rows of a sequence in a step that make a chunk long: see mc_row_is_long. */
static int32_t long_rows(const struct mc_pass *p, int32_t layer)
{
    return layer < p->m->cfg.n_layer && mc_pass_shards(p) == 1 ? p->m->cfg.mla_expand : 0;
}

/* q: the queries of long chunks, which were only rotated. */
static void add_expanded(struct mc_pass *p, int32_t layer, const void *q,
                         struct mc_act act)
{
    const struct mc_config *c = &p->m->cfg;
    struct mc_attn_ragged_p ragged = {.rows = p->mem->rows,
                                      .kv = p->mem->kv,
                                      .slots = p->mem->slots,
                                      .layer = layer,
                                      .h = p->m->heads.n,
                                      .nope = c->nope,
                                      .v = c->v_dim,
                                      .long_rows = long_rows(p, layer),
                                      .scale = c->attn_scale,
                                      .q = q,
                                      .kv_b = p->m->layer[layer].w[MC_M_KV_B],
                                      .act = act};

    if (ragged.long_rows > 0)
        MC_PASS_ADD_SCRATCH(p, attn_ragged, &ragged);
}

static void add_attention(struct mc_pass *p, int32_t layer, const void *q,
                          const void *q_long, const int32_t *set)
{
    const struct mc_config *c = &p->m->cfg;
    const struct mc_layer *y = &p->m->layer[layer];
    const struct mc_w *o = &y->w[MC_M_O];
    const struct mc_step_mem *s = p->mem;
    int32_t h = p->m->heads.n, n_set = (c->index_topk + MC_SPLIT - 1) / MC_SPLIT;
    struct mc_mla_attn_p attn = {
        .rows = s->rows, .kv = s->kv, .slots = s->slots, .layer = layer,
        .h = h * mc_pass_shards(p), .n_part = set ? n_set : mc_pass_parts(p),
        .cap_decode = p->caps.seqs, .scale = c->attn_scale,
        .q = mc_pass_shards(p) > 1 ? add_gather(p, q) : q, .idx = set,
        .topk = c->index_topk, .first = mc_pass_first(p, layer),
        .long_rows = long_rows(p, layer), .fresh = mc_pass_fresh(p, layer)};
    size_t n = (size_t)mc_part_row(p->caps.rows, p->caps.seqs, attn.n_part) *
               (size_t)attn.h;
    struct mc_attn_merge_p merge = {
        .rows = s->rows, .h = attn.h, .d = c->kv_lora, .n_part = attn.n_part,
        .cap_decode = p->caps.seqs, .out = rows(p, MC_USE_O_LATENT, h * c->kv_lora)};
    struct mc_mla_out_p out = {.rows = s->rows,
                               .h = h,
                               .c = c->kv_lora,
                               .v = c->v_dim,
                               .long_rows = attn.long_rows,
                               .o_lat = merge.out,
                               .w_uv = y->w_uv,
                               .act = mc_pass_act(p, MC_ACT_ATTN,
                                                  p->m->be->act_of(p->m->be, o->layout),
                                                  p->caps.rows, o->k)};
    struct mc_input heads = {.have = mc_pass_form(p, o)};

    attn.o = mc_pass_buffer(p, MC_USE_PARTS, n * (size_t)c->kv_lora * sizeof(float));
    attn.ml = mc_pass_buffer(p, MC_USE_ML, n * 2 * sizeof(float));
    merge.o = attn.o;
    merge.ml = attn.ml;
    heads.act[out.act.layout] = out.act;
    MC_PASS_ADD(p, mla_attn, &attn);
    add_merge(p, &merge);
    MC_PASS_ADD(p, mla_out, &out);
    add_expanded(p, layer, q_long, out.act);
    mc_pass_linear(p, &heads, &(struct mc_fan){o, NULL, p->x}, 1);
}

static void add(struct mc_pass *p, int32_t layer, const struct mc_input *in)
{
    static const uint8_t first[] = {MC_M_Q, MC_M_Q_A, MC_M_KV_A, MC_M_INDEX_K,
                                    MC_M_INDEX_GATE};
    static const uint8_t second[] = {MC_M_Q_B, MC_M_INDEX_Q};
    const struct mc_config *c = &p->m->cfg;
    const struct mc_layer *y = &p->m->layer[layer];
    int32_t h = p->m->heads.n;
    void *q = rows(p, MC_USE_Q, h * (c->nope + c->rope_dim));
    void *q_a = c->q_lora > 0 ? rows(p, MC_USE_K, c->q_lora) : NULL;
    void *kv_a = rows(p, MC_USE_V, c->kv_lora + c->rope_dim);
    bool own = p->m->cfg.layer[layer] & MC_LAYER_INDEX;
    void *index_k = own ? rows(p, MC_USE_INDEX_K, c->index_dim) : NULL;
    void *gate = own ? rows(p, MC_USE_INDEX_GATE, c->index_heads) : NULL;
    void *index_q = own ? rows(p, MC_USE_INDEX_Q, c->index_heads * c->index_dim) : NULL;
    int32_t *set = NULL;
    struct mc_mla_q_p absorb = {
        .rows = p->mem->rows, .h = h, .nope = c->nope, .c = c->kv_lora, .q = q,
        .long_rows = long_rows(p, layer),
        .w_uk = y->w_uk, .rope = rope_of(p->m, c->nope, c->rope_neighbours),
        .out = rows(p, MC_USE_ABSORBED, h * (c->kv_lora + c->rope_dim))};
    struct mc_input latent;

    add_fan(p, y, in, first, (void *[]){q, q_a, kv_a, index_k, gate}, 5);
    latent = add_prep(p, layer, q_a, kv_a);
    add_fan(p, y, &latent, second, (void *[]){q, index_q}, 2);
    MC_PASS_ADD(p, mla_q, &absorb);
    if (c->index_topk > 0)
        set = mc_pass_buffer(p, MC_USE_INDEX_SET,
                             (size_t)p->caps.rows * (size_t)c->index_topk * sizeof *set);
    if (own)
        add_index(p, layer, index_q, index_k, gate, set);
    add_attention(p, layer, absorb.out, q, set);
}

const struct mc_block mc_attn_mla = {wants, add};
