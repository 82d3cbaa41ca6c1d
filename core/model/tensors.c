/* tensors.c - the table of tensors by kind of layer, and how ranks share them.
 *
 * Owns nothing. THREAD: any. */
#include "core/model/tensors.h"

#include <stdio.h>
#include <string.h>

/* What must be true of a layer for it to have a row's tensor: all bits. */
enum {
    W_END = 1 << 0,
    W_UNTIED = 1 << 1,
    W_LAYER = 1 << 2,
    W_GQA = 1 << 3,
    W_BIAS = 1 << 4,
    W_QK_NORM = 1 << 5,
    W_MLA = 1 << 6,
    W_Q_LORA = 1 << 7,
    W_Q_WHOLE = 1 << 8, /* MLA without a query latent */
    W_INDEX = 1 << 9,
    W_DENSE = 1 << 10,
    W_MOE = 1 << 11,
    W_SIGMOID = 1 << 12,
    W_SHARED = 1 << 13,
    W_SHARED_MIX = 1 << 14, /* Qwen2-MoE's spelling, and a gate on the shared expert */
    W_MTP = 1 << 15,
};

enum dim {
    D_NONE,
    D_1,
    D_H,
    D_V,
    D_I,
    D_Q,
    D_KV,
    D_O,
    D_D,
    D_QL,
    D_C,
    D_CR,
    D_KVB,
    D_IQ,
    D_ID,
    D_IH,
    D_E,
    D_MI,
    D_SI,
    D_2H,
};

struct row {
    uint32_t when;
    uint8_t at, cut, n, k;
    const char *name;
};

static const struct row matrices[] = {
    {W_END, MC_M_EMBED, MC_CUT_ROWS, D_V, D_H, "model.embed_tokens"},
    {W_END | W_UNTIED, MC_M_HEAD, MC_CUT_ROWS, D_V, D_H, "lm_head"},
    {W_GQA, MC_M_Q, MC_CUT_HEADS, D_Q, D_H, "self_attn.q_proj"},
    {W_GQA, MC_M_K, MC_CUT_KV, D_KV, D_H, "self_attn.k_proj"},
    {W_GQA, MC_M_V, MC_CUT_KV, D_KV, D_H, "self_attn.v_proj"},
    {W_MLA | W_Q_WHOLE, MC_M_Q, MC_CUT_HEADS, D_Q, D_H, "self_attn.q_proj"},
    {W_MLA | W_Q_LORA, MC_M_Q_A, MC_CUT_NONE, D_QL, D_H, "self_attn.q_a_proj"},
    {W_MLA | W_Q_LORA, MC_M_Q_B, MC_CUT_HEADS, D_Q, D_QL, "self_attn.q_b_proj"},
    {W_MLA, MC_M_KV_A, MC_CUT_NONE, D_CR, D_H, "self_attn.kv_a_proj_with_mqa"},
    {W_MLA, MC_M_KV_B, MC_CUT_HEADS, D_KVB, D_C, "self_attn.kv_b_proj"},
    {W_INDEX, MC_M_INDEX_Q, MC_CUT_NONE, D_IQ, D_QL, "self_attn.indexer.wq_b"},
    {W_INDEX, MC_M_INDEX_K, MC_CUT_NONE, D_ID, D_H, "self_attn.indexer.wk"},
    {W_INDEX, MC_M_INDEX_GATE, MC_CUT_NONE, D_IH, D_H, "self_attn.indexer.weights_proj"},
    {W_LAYER, MC_M_O, MC_CUT_HEAD_COLS, D_H, D_O, "self_attn.o_proj"},
    {W_DENSE, MC_M_GATE, MC_CUT_ROWS, D_I, D_H, "mlp.gate_proj"},
    {W_DENSE, MC_M_UP, MC_CUT_ROWS, D_I, D_H, "mlp.up_proj"},
    {W_DENSE, MC_M_DOWN, MC_CUT_COLS, D_H, D_I, "mlp.down_proj"},
    {W_MOE, MC_M_ROUTER, MC_CUT_NONE, D_E, D_H, "mlp.gate"},
    {W_MOE, MC_M_EXPERT_GATE, MC_CUT_ROWS, D_MI, D_H, "mlp.experts.#.gate_proj"},
    {W_MOE, MC_M_EXPERT_UP, MC_CUT_ROWS, D_MI, D_H, "mlp.experts.#.up_proj"},
    {W_MOE, MC_M_EXPERT_DOWN, MC_CUT_COLS, D_H, D_MI, "mlp.experts.#.down_proj"},
    {W_SHARED, MC_M_SHARED_GATE, MC_CUT_ROWS, D_SI, D_H, "mlp.shared_experts.gate_proj"},
    {W_SHARED, MC_M_SHARED_UP, MC_CUT_ROWS, D_SI, D_H, "mlp.shared_experts.up_proj"},
    {W_SHARED, MC_M_SHARED_DOWN, MC_CUT_COLS, D_H, D_SI, "mlp.shared_experts.down_proj"},
    {W_SHARED_MIX, MC_M_SHARED_GATE, MC_CUT_ROWS, D_SI, D_H,
     "mlp.shared_expert.gate_proj"},
    {W_SHARED_MIX, MC_M_SHARED_UP, MC_CUT_ROWS, D_SI, D_H, "mlp.shared_expert.up_proj"},
    {W_SHARED_MIX, MC_M_SHARED_DOWN, MC_CUT_COLS, D_H, D_SI,
     "mlp.shared_expert.down_proj"},
    {W_SHARED_MIX, MC_M_SHARED_MIX, MC_CUT_NONE, D_1, D_H, "mlp.shared_expert_gate"},
    {W_MTP, MC_M_EH, MC_CUT_NONE, D_H, D_2H, "eh_proj"},
};

static const struct row vectors[] = {
    {W_END, MC_V_NORM, MC_CUT_NONE, D_H, D_NONE, "model.norm.weight"},
    {W_LAYER, MC_V_ATTN_NORM, MC_CUT_NONE, D_H, D_NONE, "input_layernorm.weight"},
    {W_LAYER, MC_V_MLP_NORM, MC_CUT_NONE, D_H, D_NONE, "post_attention_layernorm.weight"},
    {W_GQA | W_BIAS, MC_V_Q_BIAS, MC_CUT_HEADS, D_Q, D_NONE, "self_attn.q_proj.bias"},
    {W_GQA | W_BIAS, MC_V_K_BIAS, MC_CUT_KV, D_KV, D_NONE, "self_attn.k_proj.bias"},
    {W_GQA | W_BIAS, MC_V_V_BIAS, MC_CUT_KV, D_KV, D_NONE, "self_attn.v_proj.bias"},
    {W_GQA | W_QK_NORM, MC_V_Q_NORM, MC_CUT_NONE, D_D, D_NONE, "self_attn.q_norm.weight"},
    {W_GQA | W_QK_NORM, MC_V_K_NORM, MC_CUT_NONE, D_D, D_NONE, "self_attn.k_norm.weight"},
    {W_MLA | W_Q_LORA, MC_V_Q_NORM, MC_CUT_NONE, D_QL, D_NONE,
     "self_attn.q_a_layernorm.weight"},
    {W_MLA, MC_V_K_NORM, MC_CUT_NONE, D_C, D_NONE, "self_attn.kv_a_layernorm.weight"},
    {W_INDEX, MC_V_INDEX_NORM, MC_CUT_NONE, D_ID, D_NONE,
     "self_attn.indexer.k_norm.weight"},
    {W_INDEX, MC_V_INDEX_BIAS, MC_CUT_NONE, D_ID, D_NONE,
     "self_attn.indexer.k_norm.bias"},
    {W_MOE | W_SIGMOID, MC_V_ROUTER_BIAS, MC_CUT_NONE, D_E, D_NONE,
     "mlp.gate.e_score_correction_bias"},
    {W_MTP, MC_V_E_NORM, MC_CUT_NONE, D_H, D_NONE, "enorm.weight"},
    {W_MTP, MC_V_H_NORM, MC_CUT_NONE, D_H, D_NONE, "hnorm.weight"},
    {W_MTP, MC_V_NORM, MC_CUT_NONE, D_H, D_NONE, "shared_head.norm.weight"},
};

static uint32_t kinds(const struct mc_config *c, int32_t layer)
{
    bool moe, index;
    uint32_t w;

    if (layer < 0)
        return W_END | (c->tied ? 0 : W_UNTIED);
    moe = c->layer[layer] & MC_LAYER_MOE;
    index = c->layer[layer] & MC_LAYER_INDEX;
    w = W_LAYER | (moe ? W_MOE : W_DENSE) | (index ? W_INDEX : 0);
    if (c->attn == MC_ATTN_MLA)
        w |= W_MLA | (c->q_lora > 0 ? W_Q_LORA : W_Q_WHOLE);
    else
        w |= W_GQA | (c->qkv_bias ? W_BIAS : 0) | (c->qk_norm ? W_QK_NORM : 0);
    if (moe && !c->router_softmax)
        w |= W_SIGMOID;
    if (moe && c->shared_inter > 0)
        w |= c->shared_gate ? W_SHARED_MIX : W_SHARED;
    return layer < c->n_layer ? w : w | W_MTP;
}

static int32_t size(const struct mc_config *c, uint8_t dim)
{
    switch ((enum dim)dim) {
    case D_NONE:
        return 0;
    case D_1:
        return 1;
    case D_H:
        return c->hidden;
    case D_V:
        return c->vocab;
    case D_I:
        return c->inter;
    case D_Q:
        return c->n_head * mc_q_dim(c);
    case D_KV:
        return c->n_kv_head * c->head_dim;
    case D_O:
        return c->n_head * mc_o_dim(c);
    case D_D:
        return c->head_dim;
    case D_QL:
        return c->q_lora;
    case D_C:
        return c->kv_lora;
    case D_CR:
        return c->kv_lora + c->rope_dim;
    case D_KVB:
        return c->n_head * (c->nope + c->v_dim);
    case D_IQ:
        return c->index_heads * c->index_dim;
    case D_ID:
        return c->index_dim;
    case D_IH:
        return c->index_heads;
    case D_E:
        return c->n_expert;
    case D_MI:
        return c->moe_inter;
    case D_SI:
        return c->shared_inter;
    case D_2H:
        return 2 * c->hidden;
    }
    return 0;
}

static int add(const struct mc_config *c, int32_t layer, const struct row *list, size_t n,
               bool vector, struct mc_tensor_spec *out)
{
    uint32_t have = kinds(c, layer);
    int at = 0;

    for (size_t i = 0; i < n; i++) {
        struct mc_tensor_spec *t = &out[at];

        if ((list[i].when & have) != list[i].when)
            continue;
        *t = (struct mc_tensor_spec){.vector = vector,
                                     .at = list[i].at,
                                     .cut = list[i].cut,
                                     .n = size(c, list[i].n),
                                     .k = size(c, list[i].k)};
        t->count = strchr(list[i].name, '#') ? c->n_expert : 1;
        if (layer < 0)
            snprintf(t->name, sizeof t->name, "%s", list[i].name);
        else
            snprintf(t->name, sizeof t->name, "model.layers.%d.%s", layer, list[i].name);
        at++;
    }
    return at;
}

int mc_tensors_of(const struct mc_config *c, int32_t layer,
                  struct mc_tensor_spec out[MC_MAX_SPECS])
{
    int n = add(c, layer, matrices, sizeof matrices / sizeof *matrices, false, out);

    return n + add(c, layer, vectors, sizeof vectors / sizeof *vectors, true, out + n);
}

void mc_tensor_name(const struct mc_tensor_spec *t, const char *prefix, int32_t e,
                    char out[MC_TENSOR_NAME + 32])
{
    const char *mark = strchr(t->name, '#');
    int head = mark ? (int)(mark - t->name) : (int)strlen(t->name);

    if (mark)
        snprintf(out, MC_TENSOR_NAME + 32, "%s%.*s%d%s", prefix, head, t->name, e,
                 mark + 1);
    else
        snprintf(out, MC_TENSOR_NAME + 32, "%s%s", prefix, t->name);
}

struct mc_span mc_share(int32_t all, int32_t unit, struct mc_slice s)
{
    int64_t units = ((int64_t)all + unit - 1) / unit;
    int64_t from = units * s.rank / s.n * unit, to = units * (s.rank + 1) / s.n * unit;

    if (to > all)
        to = all;
    return (struct mc_span){(int32_t)from, from < to ? (int32_t)(to - from) : 0};
}

/* A rank has whole kv heads with their queries, or ranks share one kv head evenly. */
bool mc_share_heads(const struct mc_config *c, struct mc_slice s, struct mc_span *q,
                    struct mc_span *kv)
{
    int32_t per = c->n_head / c->n_kv_head;

    if (c->n_kv_head >= s.n) {
        *kv = mc_share(c->n_kv_head, 1, s);
        *q = (struct mc_span){kv->at * per, kv->n * per};
        return c->n_kv_head % s.n == 0; /* pages are of one size on all ranks */
    }
    *q = mc_share(c->n_head, 1, s);
    *kv = (struct mc_span){q->at / per, 1};
    return s.n % c->n_kv_head == 0 && per % (s.n / c->n_kv_head) == 0;
}

/* Feed-forward widths are cut where formats can be, as long as that is fair: a k-quant's
 * block has 256 columns, others and rounded activations 32. The rows of gate and up must
 * fall in step with the columns of down, so their unit is the same. */
int32_t mc_width_unit(int32_t n, int32_t ranks)
{
    if (n % (256 * ranks) == 0)
        return 256;
    return n % 32 == 0 && n / 32 >= ranks ? 32 : 1;
}

/* The part of n rows or columns that belong to n_head heads evenly. */
static struct mc_span of_heads(int32_t n, int32_t n_head, struct mc_span heads)
{
    return (struct mc_span){n / n_head * heads.at, n / n_head * heads.n};
}

void mc_tensor_cut(const struct mc_config *c, const struct mc_tensor_spec *t,
                   struct mc_slice s, struct mc_span *rows, struct mc_span *cols)
{
    struct mc_span q = {0}, kv = {0};

    mc_share_heads(c, s, &q, &kv);
    *rows = (struct mc_span){0, t->n};
    *cols = (struct mc_span){0, t->k};
    switch ((enum mc_cut)t->cut) {
    case MC_CUT_NONE:
        break;
    case MC_CUT_HEADS:
        *rows = of_heads(t->n, c->n_head, q);
        break;
    case MC_CUT_KV:
        *rows = of_heads(t->n, c->n_kv_head, kv);
        break;
    case MC_CUT_ROWS:
        *rows = mc_share(t->n, mc_width_unit(t->n, s.n), s);
        break;
    case MC_CUT_HEAD_COLS:
        *cols = of_heads(t->k, c->n_head, q);
        break;
    case MC_CUT_COLS:
        *cols = mc_share(t->k, mc_width_unit(t->k, s.n), s);
        break;
    }
}
