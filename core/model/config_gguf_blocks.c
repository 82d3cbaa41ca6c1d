/* config_gguf_blocks.c - what GGUF metadata says of latents, indexers, experts and
 * drafts.
 *
 * Owns nothing. THREAD: any.
 * llama.cpp describes an MLA model as what it becomes once absorbed, one kv head of the
 * latent's width; the heads' own widths are in keys that end in _mla, or in older files,
 * which have no such keys, in the usual ones. */
#include <string.h>

#include "core/model/config_gguf.h"

enum { LIMIT_EXPERTS = 4096, LIMIT_TOPK = 1 << 20, SIGMOID = 2 };

/* GLM-5.2's, for its files from before the key: GLM-5's all own an indexer. */
enum { SHARED_FROM_CONTEXT = 1 << 20, SHARED_FREQ = 4, SHARED_SKIP = 3 };

void mc_gguf_read_latents(struct mc_gguf_reader *r, struct mc_config *out)
{
    bool own = mc_gguf_says(r, "attention.key_length_mla");
    int32_t kv = mc_gguf_required(r, "attention.kv_lora_rank", MC_LIMIT_WIDTH);
    int32_t rope = mc_gguf_required(r, "rope.dimension_count", MC_LIMIT_HEAD_DIM);
    int32_t q = mc_gguf_required(r, own ? "attention.key_length_mla"
                                        : "attention.key_length", 2 * MC_LIMIT_HEAD_DIM);

    out->attn = MC_ATTN_MLA;
    out->q_lora = mc_gguf_integer(r, "attention.q_lora_rank", 0, 1, MC_LIMIT_WIDTH);
    out->v_dim = mc_gguf_required(r, own ? "attention.value_length_mla"
                                         : "attention.value_length", MC_LIMIT_HEAD_DIM);
    out->kv_lora = kv;
    out->rope_dim = rope;
    out->nope = q - rope;
    out->n_kv_head = out->n_head;
    out->rope_neighbours = out->index_neighbours = true;
    if (r->rc == 0 && (out->nope < 1 || rope < 2))
        mc_gguf_bad(r, MC_EFORMAT, "rope.dimension_count", "leaves nothing of a head");
    if (own && mc_gguf_integer(r, "attention.key_length", kv + rope, 1, INT32_MAX) !=
                   kv + rope)
        mc_gguf_bad(r, MC_EFORMAT, "attention.key_length",
                    "is not kv_lora_rank + rope.dimension_count");
}

/* A list of which the first entries are the layers'. */
static bool read_types(struct mc_gguf_reader *r, const char *key, struct mc_config *out)
{
    char name[MC_GGUF_KEY];
    uint64_t n = 0;

    if (!mc_gguf_says(r, key))
        return false;
    mc_gguf_key(r, key, name);
    if (!mc_gguf_arr_n(r->g, name, &n) || n < (uint64_t)out->n_layer) {
        mc_gguf_bad(r, MC_EFORMAT, key, "is no list with an entry a layer");
        return true;
    }
    for (int32_t i = 0; i < out->n_layer; i++) {
        int32_t full = 0;

        if (!mc_gguf_arr_i32(r->g, name, (uint64_t)i, &full))
            mc_gguf_bad(r, MC_EFORMAT, key, "has an entry that is no number");
        out->layer[i] |= full ? MC_LAYER_INDEX : 0;
    }
    return true;
}

void mc_gguf_read_indexers(struct mc_gguf_reader *r, struct mc_config *out)
{
    bool shared = out->max_context >= SHARED_FROM_CONTEXT;

    out->index_heads = mc_gguf_required(r, "attention.indexer.head_count",
                                        MC_LIMIT_HEADS);
    out->index_dim =
        mc_gguf_required(r, "attention.indexer.key_length", MC_LIMIT_HEAD_DIM);
    out->index_topk = mc_gguf_required(r, "attention.indexer.top_k", LIMIT_TOPK);
    if (r->rc == 0 && out->index_dim < out->rope_dim)
        mc_gguf_bad(r, MC_EFORMAT, "attention.indexer.key_length",
                    "is less than rope.dimension_count");
    if (r->rc == 0 && out->q_lora == 0)
        mc_gguf_bad(r, MC_EUNSUP, "attention.q_lora_rank",
                    "must be there beside an indexer");
    if (!read_types(r, "attention.indexer.types", out))
        for (int32_t i = 0; i < out->n_layer; i++)
            if (!shared || i < SHARED_SKIP || (i - SHARED_SKIP + 1) % SHARED_FREQ == 0)
                out->layer[i] |= MC_LAYER_INDEX;
    if (r->rc == 0 && !(out->layer[0] & MC_LAYER_INDEX))
        mc_gguf_bad(r, MC_EFORMAT, "attention.indexer.types",
                    "begins with a layer that owns no indexer");
}

/* ---- experts ----------------------------------------------------------------------- */

static void read_common(struct mc_gguf_reader *r, struct mc_config *out)
{
    out->n_expert = mc_gguf_required(r, "expert_count", LIMIT_EXPERTS);
    out->top_k_expert = mc_gguf_required(r, "expert_used_count", LIMIT_EXPERTS);
    out->moe_inter = mc_gguf_required(r, "expert_feed_forward_length", MC_LIMIT_WIDTH);
    out->n_group = out->topk_group = 1;
    out->router_factor = 1;
    if (r->rc == 0 && out->top_k_expert > out->n_expert)
        mc_gguf_bad(r, MC_EFORMAT, "expert_used_count", "is more than there are experts");
}

/* Every layer has them. llama.cpp makes the weights' sum 1 for qwen3moe only. */
void mc_gguf_read_experts_qwen(struct mc_gguf_reader *r, bool shared,
                               struct mc_config *out)
{
    read_common(r, out);
    out->router_softmax = true;
    out->router_norm = !shared;
    out->shared_gate = shared;
    if (shared)
        out->shared_inter =
            mc_gguf_required(r, "expert_shared_feed_forward_length", MC_LIMIT_WIDTH);
    mc_gguf_must_lack(r, "expert_weights_scale");
    mc_gguf_must_lack(r, "expert_gating_func");
    mc_gguf_must_lack(r, "leading_dense_block_count");
    for (int32_t i = 0; i < out->n_layer; i++)
        out->layer[i] |= MC_LAYER_MOE;
}

static void read_shared(struct mc_gguf_reader *r, struct mc_config *out)
{
    int64_t n = mc_gguf_integer(r, "expert_shared_count", 0, 0, LIMIT_EXPERTS);

    if (n * out->moe_inter > MC_LIMIT_WIDTH)
        mc_gguf_bad(r, MC_EFORMAT, "expert_shared_count", "is too many");
    else
        out->shared_inter = (int32_t)(n * out->moe_inter);
}

/* Softmax is DeepSeek-V2's, and what older files of it mean by saying nothing. */
void mc_gguf_read_experts_deepseek(struct mc_gguf_reader *r, struct mc_config *out)
{
    int32_t absent = strcmp(r->arch, "deepseek2") == 0 ? 1 : SIGMOID, dense;
    char name[MC_GGUF_KEY];

    read_common(r, out);
    read_shared(r, out);
    if (mc_gguf_integer(r, "expert_gating_func", absent, 0, INT32_MAX) != SIGMOID)
        mc_gguf_bad(r, MC_EUNSUP, "expert_gating_func",
                    "is not 2 (sigmoid): DeepSeek-V2 is not supported");
    mc_gguf_bool(r->g, mc_gguf_key(r, "expert_weights_norm", name), &out->router_norm);
    out->router_factor = (float)mc_gguf_number(r, "expert_weights_scale", 1, 1e-6, 1e6);
    out->n_group = mc_gguf_integer(r, "expert_group_count", 1, 1, LIMIT_EXPERTS);
    out->topk_group =
        mc_gguf_integer(r, "expert_group_used_count", out->n_group, 1, LIMIT_EXPERTS);
    dense = mc_gguf_integer(r, "leading_dense_block_count", 0, 0, INT32_MAX);
    for (int32_t i = dense; i < out->n_layer; i++)
        out->layer[i] |= MC_LAYER_MOE;
}

/* Draft layers are counted as blocks, but converters may leave their tensors out. */
void mc_gguf_read_drafts(struct mc_gguf_reader *r, struct mc_config *out)
{
    int32_t n = mc_gguf_integer(r, "nextn_predict_layers", 0, 0, out->n_layer - 1);
    char name[96];

    if (r->rc < 0 || n == 0)
        return;
    if (n > MC_MAX_MTP) {
        mc_gguf_bad(r, MC_EUNSUP, "nextn_predict_layers", "above 1 is not supported");
        return;
    }
    out->n_layer -= n;
    snprintf(name, sizeof name, "model.layers.%d.eh_proj.weight", out->n_layer);
    out->n_mtp = mc_ckpt_find(r->c, name) ? n : 0;
}
