/* attn_gqa.c - the block of grouped-query attention: q, k, v, rope, pages, output.
 *
 * Owns nothing. THREAD: opening.
 * Buffers: q, k and v live from the linear to attention; parts and ml to the merge. */
#include "core/model/pass_int.h"

static unsigned wants(const struct mc_pass *p, const struct mc_layer *y)
{
    return mc_pass_form(p, &y->w[MC_M_Q]) | mc_pass_form(p, &y->w[MC_M_K]) |
           mc_pass_form(p, &y->w[MC_M_V]);
}

static void add_projections(struct mc_pass *p, const struct mc_layer *y,
                            const struct mc_input *in, void *q, void *k, void *v)
{
    const struct mc_fan fan[3] = {{&y->w[MC_M_Q], y->v[MC_V_Q_BIAS], q},
                                  {&y->w[MC_M_K], y->v[MC_V_K_BIAS], k},
                                  {&y->w[MC_M_V], y->v[MC_V_V_BIAS], v}};

    mc_pass_linear(p, in, fan, 3);
}

static void add_attention(struct mc_pass *p, int32_t layer, const struct mc_w *o, void *q)
{
    const struct mc_config *c = &p->m->cfg;
    const struct mc_step_mem *s = p->mem;
    int32_t h = p->m->heads.n, n_part = mc_pass_parts(p);
    size_t n = (size_t)mc_part_row(p->caps.rows, p->caps.seqs, n_part) * (size_t)h;
    float *parts = mc_pass_buffer(p, MC_USE_PARTS,
                                  n * (size_t)c->head_dim * sizeof *parts);
    float *ml = mc_pass_buffer(p, MC_USE_ML, n * 2 * sizeof *ml);
    struct mc_gqa_attn_p attn = {
        .rows = s->rows, .kv = s->kv, .slots = s->slots, .layer = layer, .h = h,
        .n_part = n_part, .window = c->window, .cap_decode = p->caps.seqs,
        .scale = c->attn_scale, .q = q, .o = parts, .ml = ml,
        .fresh = mc_pass_fresh(p, layer)};
    struct mc_attn_merge_p merge = {
        .rows = s->rows, .h = h, .d = c->head_dim, .n_part = n_part,
        .cap_decode = p->caps.seqs, .o = parts, .ml = ml,
        .act = mc_pass_act(p, MC_ACT_ATTN, p->m->be->act_of(p->m->be, o->layout),
                           p->caps.rows, o->k)};
    struct mc_input out = {.have = mc_pass_form(p, o)};

    out.act[merge.act.layout] = merge.act;
    MC_PASS_ADD(p, gqa_attn, &attn);
    MC_PASS_ADD(p, attn_merge, &merge);
    mc_pass_linear(p, &out, &(struct mc_fan){o, NULL, p->x}, 1);
}

static void add(struct mc_pass *p, int32_t layer, const struct mc_input *in)
{
    const struct mc_model *m = p->m;
    const struct mc_config *c = &m->cfg;
    const struct mc_layer *y = &m->layer[layer];
    const struct mc_step_mem *s = p->mem;
    size_t row = (size_t)p->caps.rows * mc_pass_row_bytes(p);
    size_t kv = row * (size_t)m->kv_heads.n * (size_t)c->head_dim;
    struct mc_gqa_prep_p prep = {
        .rows = s->rows, .kv = s->kv, .slots = s->slots, .layer = layer, .h = m->heads.n,
        .q = mc_pass_buffer(p, MC_USE_Q, row * (size_t)m->heads.n * (size_t)c->head_dim),
        .k = mc_pass_buffer(p, MC_USE_K, kv),
        .v = mc_pass_buffer(p, MC_USE_V, kv),
        .q_norm = y->v[MC_V_Q_NORM], .k_norm = y->v[MC_V_K_NORM], .eps = c->norm_eps,
        .rope = {.inv_freq = m->inv_freq, .mul = m->rope_mul, .dim = (int16_t)c->head_dim,
                 .pair = c->rope_neighbours ? MC_ROPE_NEIGHBOURS : MC_ROPE_HALVES},
        .fresh = mc_pass_fresh(p, layer)};

    add_projections(p, y, in, prep.q, prep.k, prep.v);
    MC_PASS_ADD(p, gqa_prep, &prep);
    add_attention(p, layer, &y->w[MC_M_O], prep.q);
}

const struct mc_block mc_attn_gqa = {wants, add};
