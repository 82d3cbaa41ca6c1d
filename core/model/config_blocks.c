/* config_blocks.c - what config.json says of latents, indexers, experts and draft layers.
 *
 * Owns nothing. THREAD: any.
 * A field that the file leaves out is an error where transformers' class would put the
 * number of some other model in its place. What says one thing twice must agree. */
#include <stdio.h>
#include <string.h>

#include "core/model/config_json.h"

enum { LIMIT_EXPERTS = 4096, LIMIT_TOPK = 1 << 20 };

/* ---- attention --------------------------------------------------------------------- */

void mc_cfg_read_latents(struct mc_cfg_reader *r, struct mc_config *out)
{
    int32_t both;

    out->attn = MC_ATTN_MLA;
    if (!json_object_get(r->o, "q_lora_rank"))
        mc_cfg_bad(r, MC_EFORMAT, "q_lora_rank", "is missing"); /* null: none */
    out->q_lora = mc_cfg_integer(r, "q_lora_rank", 0, 1, MC_LIMIT_WIDTH);
    out->kv_lora = mc_cfg_required(r, "kv_lora_rank", 1, MC_LIMIT_WIDTH);
    out->nope = mc_cfg_required(r, "qk_nope_head_dim", 1, MC_LIMIT_HEAD_DIM);
    out->rope_dim = mc_cfg_required(r, "qk_rope_head_dim", 2, MC_LIMIT_HEAD_DIM);
    out->v_dim = mc_cfg_required(r, "v_head_dim", 1, MC_LIMIT_HEAD_DIM);
    both = out->nope + out->rope_dim;
    if (mc_cfg_integer(r, "qk_head_dim", both, 1, INT32_MAX) != both)
        mc_cfg_bad(r, MC_EFORMAT, "qk_head_dim",
                   "is not qk_nope_head_dim + qk_rope_head_dim");
    out->rope_neighbours = mc_cfg_boolean(r, "rope_interleave", true);
}

/* A list with one word of two a layer, as flags; absent: false. */
static bool read_types(struct mc_cfg_reader *r, const char *key, const char *off,
                       const char *on, uint8_t flag, struct mc_config *out)
{
    const json_t *list = mc_cfg_field(r, key), *v;
    size_t i;

    if (!list)
        return false;
    if (json_array_size(list) != (size_t)out->n_layer) {
        mc_cfg_bad(r, MC_EFORMAT, key, "has not one entry a layer");
        return true;
    }
    json_array_foreach (list, i, v) {
        const char *s = json_string_value(v);

        if (s && strcmp(s, on) == 0)
            out->layer[i] |= flag;
        else if (!s || strcmp(s, off) != 0)
            mc_cfg_bad(r, MC_EUNSUP, key, "has an unknown type");
    }
    return true;
}

/* One letter a layer: F or S. */
static void read_pattern(struct mc_cfg_reader *r, const char *s, struct mc_config *out)
{
    if (strlen(s) != (size_t)out->n_layer || strspn(s, "FS") != strlen(s)) {
        mc_cfg_bad(r, MC_EFORMAT, "index_topk_pattern", "is not one F or S a layer");
        return;
    }
    for (int32_t i = 0; i < out->n_layer; i++)
        out->layer[i] |= s[i] == 'F' ? MC_LAYER_INDEX : 0;
}

void mc_cfg_read_indexers(struct mc_cfg_reader *r, struct mc_config *out)
{
    const char *pattern = json_string_value(mc_cfg_field(r, "index_topk_pattern"));
    int32_t freq = mc_cfg_integer(r, "index_topk_freq", 1, 1, MC_LIMIT_LAYERS);
    int32_t skip = mc_cfg_integer(r, "index_skip_topk_offset", 2, 0, MC_LIMIT_LAYERS);

    out->index_heads = mc_cfg_required(r, "index_n_heads", 1, MC_LIMIT_HEADS);
    out->index_dim = mc_cfg_required(r, "index_head_dim", 2, MC_LIMIT_HEAD_DIM);
    out->index_topk = mc_cfg_required(r, "index_topk", 1, LIMIT_TOPK);
    out->index_neighbours = mc_cfg_boolean(r, "indexer_rope_interleave", true);
    if (out->index_dim < out->rope_dim)
        mc_cfg_bad(r, MC_EFORMAT, "index_head_dim", "is less than qk_rope_head_dim");
    if (out->q_lora == 0)
        mc_cfg_bad(r, MC_EUNSUP, "q_lora_rank", "null is not supported with an indexer");
    if (!out->rope_neighbours)
        mc_cfg_bad(r, MC_EUNSUP, "rope_interleave",
                   "false is not supported with an indexer");
    if (read_types(r, "indexer_types", "shared", "full", MC_LAYER_INDEX, out))
        ;
    else if (pattern)
        read_pattern(r, pattern, out);
    else
        for (int32_t i = 0; i < out->n_layer; i++)
            if (i + 1 <= skip || (i - skip + 1) % freq == 0)
                out->layer[i] |= MC_LAYER_INDEX;
    if (r->rc == 0 && !(out->layer[0] & MC_LAYER_INDEX))
        mc_cfg_bad(r, MC_EFORMAT, "indexer_types",
                   "begins with a layer that owns no indexer");
}

/* ---- experts ----------------------------------------------------------------------- */

/* transformers 5 writes the number as num_local_experts, whatever a family called it. */
static void read_common(struct mc_cfg_reader *r, const char *count, struct mc_config *out)
{
    int32_t local = mc_cfg_integer(r, "num_local_experts", 0, 1, LIMIT_EXPERTS);

    out->n_expert = local > 0 ? mc_cfg_integer(r, count, local, 1, LIMIT_EXPERTS)
                              : mc_cfg_required(r, count, 1, LIMIT_EXPERTS);
    if (local > 0 && local != out->n_expert)
        mc_cfg_bad(r, MC_EFORMAT, "num_local_experts",
                   "is not the other number of experts");
    out->top_k_expert = mc_cfg_required(r, "num_experts_per_tok", 1, LIMIT_EXPERTS);
    out->moe_inter = mc_cfg_required(r, "moe_intermediate_size", 1, MC_LIMIT_WIDTH);
    out->n_group = out->topk_group = 1;
    out->router_factor = 1;
    if (out->top_k_expert > out->n_expert)
        mc_cfg_bad(r, MC_EFORMAT, "num_experts_per_tok",
                   "is more than there are experts");
}

void mc_cfg_read_experts_qwen(struct mc_cfg_reader *r, bool shared, struct mc_config *out)
{
    int32_t step = mc_cfg_integer(r, "decoder_sparse_step", 1, 1, INT32_MAX);
    const json_t *dense = mc_cfg_field(r, "mlp_only_layers"), *v;
    size_t i;

    read_common(r, "num_experts", out);
    out->router_softmax = true;
    out->router_norm = mc_cfg_boolean(r, "norm_topk_prob", false);
    out->shared_gate = shared;
    if (shared)
        out->shared_inter =
            mc_cfg_required(r, "shared_expert_intermediate_size", 1, MC_LIMIT_WIDTH);
    for (int32_t l = 0; l < out->n_layer; l++)
        out->layer[l] |= (l + 1) % step == 0 ? MC_LAYER_MOE : 0;
    if (dense && !json_is_array(dense))
        mc_cfg_bad(r, MC_EFORMAT, "mlp_only_layers", "is no list");
    json_array_foreach (dense, i, v) {
        json_int_t l = json_is_integer(v) ? json_integer_value(v) : -1;

        if (l < 0)
            mc_cfg_bad(r, MC_EFORMAT, "mlp_only_layers", "has an entry that is no layer");
        else if (l < out->n_layer)
            out->layer[l] &= (uint8_t)~MC_LAYER_MOE;
    }
}

/* Which layers have experts: all from first_k_dense_replace on, in steps; mlp_layer_types
 * says the same once more. */
static void read_sparse_layers(struct mc_cfg_reader *r, struct mc_config *out)
{
    int32_t first = mc_cfg_required(r, "first_k_dense_replace", 0, INT32_MAX);
    int32_t freq = mc_cfg_integer(r, "moe_layer_freq", 1, 1, INT32_MAX);
    bool listed = read_types(r, "mlp_layer_types", "dense", "sparse", MC_LAYER_MOE, out);

    for (int32_t i = 0; i < out->n_layer && r->rc == 0; i++) {
        bool moe = i >= first && i % freq == 0;

        if (listed && moe != (bool)(out->layer[i] & MC_LAYER_MOE))
            r->rc =
                mc_fail_param(r->err, MC_EFORMAT, "mlp_layer_types",
                              "%s: mlp_layer_types "
                              "has layer %d %s, first_k_dense_replace %d says otherwise",
                              r->where, i, moe ? "dense" : "sparse", first);
        out->layer[i] |= moe ? MC_LAYER_MOE : 0;
    }
}

void mc_cfg_read_experts_deepseek(struct mc_cfg_reader *r, struct mc_config *out)
{
    int64_t shared;

    read_common(r, "n_routed_experts", out);
    shared = (int64_t)mc_cfg_integer(r, "n_shared_experts", 0, 0, LIMIT_EXPERTS) *
             out->moe_inter;
    if (shared > MC_LIMIT_WIDTH)
        mc_cfg_bad(r, MC_EFORMAT, "n_shared_experts", "are too many");
    else
        out->shared_inter = (int32_t)shared;
    mc_cfg_must_be(r, "scoring_func", "sigmoid");
    mc_cfg_must_be(r, "topk_method", "noaux_tc");
    mc_cfg_must_be(r, "moe_router_dtype", "float32");
    out->router_norm = mc_cfg_boolean(r, "norm_topk_prob", true);
    if (!mc_cfg_field(r, "routed_scaling_factor"))
        mc_cfg_bad(r, MC_EFORMAT, "routed_scaling_factor", "is missing");
    out->router_factor = (float)mc_cfg_number(r, "routed_scaling_factor", 1, 1e-6, 1e6);
    out->n_group = mc_cfg_required(r, "n_group", 1, LIMIT_EXPERTS);
    out->topk_group = mc_cfg_required(r, "topk_group", 1, LIMIT_EXPERTS);
    read_sparse_layers(r, out);
}

/* ---- drafts ------------------------------------------------------------------------ */

/* A checkpoint may leave out the draft layers that its config counts: quantised ones
 * often do. Without tensors (a config alone) the config decides. */
void mc_cfg_read_drafts(struct mc_cfg_reader *r, const struct mc_ckpt *c,
                        struct mc_config *out)
{
    int32_t n = mc_cfg_integer(r, "num_nextn_predict_layers", 0, 0, MC_LIMIT_LAYERS);
    struct mc_disk mix;
    char name[96];

    if (r->rc < 0 || n == 0)
        return;
    if (n > MC_MAX_MTP) {
        mc_cfg_bad(r, MC_EUNSUP, "num_nextn_predict_layers", "above 1 is not supported");
        return;
    }
    snprintf(name, sizeof name, "%smodel.layers.%d.eh_proj", out->prefix, out->n_layer);
    if (mc_ckpt_n(c) > 0 && mc_ckpt_matrix(c, name, &mix, NULL) == MC_ENOENT)
        return;
    out->n_mtp = n;
    out->layer[out->n_layer] = (uint8_t)((out->n_expert > 0 ? MC_LAYER_MOE : 0) |
                                         (out->index_topk > 0 ? MC_LAYER_INDEX : 0));
}
