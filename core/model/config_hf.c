/* config_hf.c - config.json and generation_config.json of all families: what they share.
 *
 * Owns nothing. THREAD: any.
 * A model of text and images has the text's config inside text_config. A field that
 * transformers honours and this program does not is refused unless it has the value that
 * changes nothing. Defaults are those of transformers' classes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/model/config_json.h"

enum {
    F_BIAS = 1,       /* on q, k and v */
    F_QK_NORM = 2,
    F_KV_ABSENT = 4,  /* num_key_value_heads may be missing: as many as heads */
    F_WINDOW = 8,     /* sliding_window counts ... */
    F_WINDOW_ASK = 16, /* ... if use_sliding_window says so ... */
    F_WINDOW_TYPES = 32, /* ... and layer_types or max_window_layers say where */
    F_EXPERTS = 64,   /* as Qwen spells them */
    F_SHARED = 128,
    F_LATENT = 256,   /* MLA, and experts as DeepSeek spells them */
    F_INDEX = 512,
};

static const struct family {
    const char *model_type, *architecture;
    unsigned has;
    int32_t head_dim; /* when absent; 0: hidden / heads */
    int32_t window;   /* when sliding_window is absent */
} families[] = {
    {"llama", "LlamaForCausalLM", F_KV_ABSENT, 0, 0},
    {"mistral", "MistralForCausalLM", F_WINDOW, 0, 4096},
    {"qwen2", "Qwen2ForCausalLM", F_BIAS | F_WINDOW | F_WINDOW_ASK | F_WINDOW_TYPES, 0,
     4096},
    {"qwen3", "Qwen3ForCausalLM", F_QK_NORM | F_WINDOW | F_WINDOW_ASK | F_WINDOW_TYPES,
     128, 4096},
    {"qwen2_moe", "Qwen2MoeForCausalLM", F_BIAS | F_EXPERTS | F_SHARED, 0, 0},
    {"qwen3_moe", "Qwen3MoeForCausalLM", F_QK_NORM | F_WINDOW | F_WINDOW_ASK | F_EXPERTS,
     0, 4096},
    {"deepseek_v3", "DeepseekV3ForCausalLM", F_KV_ABSENT | F_LATENT, 0, 0},
    {"kimi_k2", "DeepseekV3ForCausalLM", F_KV_ABSENT | F_LATENT, 0, 0},
    {"glm_moe_dsa", "GlmMoeDsaForCausalLM", F_KV_ABSENT | F_LATENT | F_INDEX, 0, 0},
};

#define WRAPPER "kimi_k25" /* text_config is one of the families; images are not served */

/* ---- parts ------------------------------------------------------------------------- */

static const struct family *find_family(struct mc_cfg_reader *r)
{
    const char *type = json_string_value(mc_cfg_field(r, "model_type"));
    const json_t *list = mc_cfg_field(r, "architectures"), *v;
    const struct family *f = NULL;
    size_t i;

    if (!type) {
        mc_cfg_bad(r, MC_EFORMAT, "model_type", "is missing");
        return NULL;
    }
    for (i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].model_type, type) == 0)
            f = &families[i];
    if (!f) {
        r->rc = mc_fail_param(r->err, MC_EUNSUP, "model_type",
                              "%s: model_type %s is not one of "
                              "llama, mistral, qwen2, qwen3, qwen2_moe, qwen3_moe, "
                              "deepseek_v3, kimi_k2, kimi_k25, glm_moe_dsa",
                              r->where, type);
        return NULL;
    }
    json_array_foreach (list, i, v)
        if (json_is_string(v) && strcmp(json_string_value(v), f->architecture) == 0)
            return f;
    if (list)
        r->rc = mc_fail_param(r->err, MC_EUNSUP, "architectures",
                              "%s: architectures lacks %s", r->where, f->architecture);
    return f;
}

static void read_head_dim(struct mc_cfg_reader *r, const struct family *f,
                          struct mc_config *out)
{
    out->head_dim = mc_cfg_integer(r, "head_dim", f->head_dim, 1, MC_LIMIT_HEAD_DIM);
    if (out->head_dim != 0 || r->rc < 0)
        return;
    if (out->hidden % out->n_head != 0 || out->hidden / out->n_head > MC_LIMIT_HEAD_DIM)
        mc_cfg_bad(r, MC_EFORMAT, "hidden_size",
                   "is no multiple of num_attention_heads, and head_dim is missing");
    out->head_dim = out->hidden / out->n_head;
}

static void read_sizes(struct mc_cfg_reader *r, const struct family *f,
                       struct mc_config *out)
{
    bool has_kv = json_object_get(r->o, "num_key_value_heads") != NULL;

    out->vocab = mc_cfg_required(r, "vocab_size", 1, MC_LIMIT_VOCAB);
    out->hidden = mc_cfg_required(r, "hidden_size", 1, MC_LIMIT_WIDTH);
    out->inter = mc_cfg_required(r, "intermediate_size", 1, MC_LIMIT_WIDTH);
    out->n_layer = mc_cfg_required(r, "num_hidden_layers", 1, MC_LIMIT_LAYERS);
    out->n_head = mc_cfg_required(r, "num_attention_heads", 1, MC_LIMIT_HEADS);
    out->max_context = mc_cfg_required(r, "max_position_embeddings", 1, MC_LIMIT_CONTEXT);
    /* Absent means n_head to some only; the others' classes have defaults of some model.
     */
    if (!has_kv && !(f->has & F_KV_ABSENT))
        mc_cfg_bad(r, MC_EFORMAT, "num_key_value_heads", "is missing");
    out->n_kv_head = mc_cfg_integer(r, "num_key_value_heads", out->n_head, 1,
                                    MC_LIMIT_HEADS);
    if (f->has & F_LATENT) {
        if (out->n_kv_head != out->n_head)
            mc_cfg_bad(r, MC_EFORMAT, "num_key_value_heads",
                       "is not num_attention_heads, though "
                       "all heads share a latent");
    } else {
        read_head_dim(r, f, out);
    }
    if (!mc_cfg_field(r, "rms_norm_eps"))
        mc_cfg_bad(r, MC_EFORMAT, "rms_norm_eps", "is missing");
    out->norm_eps = (float)mc_cfg_number(r, "rms_norm_eps", 1e-6, 1e-12, 0.1);
}

/* All layers or none: layer_types says it, or qwen's max_window_layers. */
static void read_window(struct mc_cfg_reader *r, const struct family *f,
                        struct mc_config *out)
{
    bool ask = f->has & F_WINDOW_ASK, typed = f->has & F_WINDOW_TYPES;
    const json_t *types = mc_cfg_field(r, "layer_types"), *v;
    int32_t sliding = 0, from, window;
    size_t i;

    if (!(f->has & F_WINDOW)) { /* llama has none, whatever the file says */
        if (f->has & F_EXPERTS)
            mc_cfg_must_be_false(r, "use_sliding_window"); /* on every other layer */
        return;
    }
    window = mc_cfg_integer(r, "sliding_window",
                     json_object_get(r->o, "sliding_window") ? 0 : f->window, 1,
                     MC_LIMIT_CONTEXT);
    if (ask && !mc_cfg_boolean(r, "use_sliding_window", false))
        window = 0;
    if (typed && types) {
        json_array_foreach (types, i, v) {
            const char *s = json_string_value(v);

            if (!s ||
                (strcmp(s, "full_attention") != 0 && strcmp(s, "sliding_attention") != 0))
                mc_cfg_bad(r, MC_EUNSUP, "layer_types", "has an unknown type");
            else
                sliding += s[0] == 's';
        }
        if (json_array_size(types) != (size_t)out->n_layer)
            mc_cfg_bad(r, MC_EFORMAT, "layer_types", "has not one entry a layer");
    } else if (typed) {
        from = mc_cfg_integer(r, "max_window_layers", 28, 0, INT32_MAX);
        sliding = window && from < out->n_layer ? out->n_layer - from : 0;
    } else {
        sliding = out->n_layer;
    }
    if (sliding != 0 && sliding != out->n_layer)
        mc_cfg_bad(r, MC_EUNSUP, types ? "layer_types" : "max_window_layers",
            "gives only some layers a sliding window");
    if (sliding != 0 && window == 0 && typed)
        mc_cfg_bad(r, MC_EFORMAT, "layer_types",
                   "has sliding layers, but there is no window");
    out->window = sliding ? window : 0;
}

/* How the cache is to be stored: 8-bit floats, or nothing is said. */
static void read_cache_scheme(struct mc_cfg_reader *q, struct mc_config *out)
{
    const json_t *scheme = mc_cfg_field(q, "kv_cache_scheme");
    struct mc_cfg_reader s = {.o = scheme,
                              .where = "kv_cache_scheme",
                              .err = q->err,
                              .rc = q->rc};

    if (!scheme)
        return;
    if (mc_cfg_integer(&s, "num_bits", 0, 1, 64) != 8)
        mc_cfg_bad(&s, MC_EUNSUP, "num_bits", "must be 8");
    mc_cfg_must_be(&s, "type", "float");
    out->kv_fp8 = true;
    q->rc = s.rc;
}

/* Which matrices are quantised is for mc_ckpt_matrix to see; here are the methods that
 * would change what a linear computes. */
static void read_quantization(struct mc_cfg_reader *r, const json_t *config,
                              struct mc_config *out)
{
    static const char *const methods[] = {"compressed-tensors", "fp8", "fbgemm_fp8",
                                          "modelopt", "awq", "gptq"};
    struct mc_cfg_reader q = {.o = config, .where = "quantization_config", .err = r->err};
    const json_t *sparsity;
    const char *method;
    bool known = false;

    if (!q.o || r->rc < 0)
        return;
    method = json_string_value(mc_cfg_field(&q, "quant_method"));
    for (size_t i = 0; method && i < sizeof methods / sizeof *methods; i++)
        known = known || strcmp(method, methods[i]) == 0;
    if (!known)
        q.rc = mc_fail_param(r->err, MC_EUNSUP, "quant_method", "%s: quantization_config."
                             "quant_method %s is not supported", r->where,
                             method ? method : "(absent)");
    sparsity = mc_cfg_field(&q, "sparsity_config");
    if (json_object_size(sparsity) > 0) {
        struct mc_cfg_reader s = {.o = sparsity,
                                  .where = "sparsity_config",
                                  .err = r->err,
                                  .rc = q.rc};

        mc_cfg_must_be(&s, "format", "dense");
        q.rc = s.rc;
    }
    if (json_object_size(mc_cfg_field(&q, "transform_config")) > 0)
        mc_cfg_bad(&q, MC_EUNSUP, "transform_config",
                   "(rotated weights) is not supported");
    read_cache_scheme(&q, out);
    r->rc = q.rc;
}

/* An id or a list of ids. */
static void read_eos(struct mc_cfg_reader *r, struct mc_config *out)
{
    const json_t *v = mc_cfg_field(r, "eos_token_id"), *one;
    size_t i;

    if (!json_is_array(v)) {
        int32_t id = mc_cfg_integer(r, "eos_token_id", -1, 0, MC_LIMIT_VOCAB);

        if (id >= 0 && r->rc == 0)
            r->rc = mc_config_add_eos(out, id, r->err);
        return;
    }
    json_array_foreach (v, i, one) {
        double id = json_number_value(one);

        if (!json_is_number(one) || id != floor(id) || id < 0 || id > MC_LIMIT_VOCAB)
            mc_cfg_bad(r, MC_EFORMAT, "eos_token_id", "has an entry that is no id");
        else if (r->rc == 0)
            r->rc = mc_config_add_eos(out, (int32_t)id, r->err);
    }
}

static void read_ids(struct mc_cfg_reader *r, struct mc_config *out)
{
    if (out->bos < 0)
        out->bos = mc_cfg_integer(r, "bos_token_id", -1, 0, MC_LIMIT_VOCAB);
    read_eos(r, out);
}

static void read_sampling(struct mc_cfg_reader *r, struct mc_config *out)
{
    static const char *const keys[] = {"temperature", "top_p", "top_k", "min_p",
                                       "repetition_penalty"};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        out->has_sampling = out->has_sampling || mc_cfg_field(r, keys[i]);
    out->temperature = (float)mc_cfg_number(r, "temperature", 1, 0, 100);
    out->top_p = (float)mc_cfg_number(r, "top_p", 1, 0, 1);
    out->min_p = (float)mc_cfg_number(r, "min_p", 0, 0, 1);
    out->repetition_penalty = (float)mc_cfg_number(r, "repetition_penalty", 1, 0.01, 100);
    out->top_k = mc_cfg_integer(r, "top_k", 0, -1, INT32_MAX);
    out->max_new_tokens = mc_cfg_integer(r, "max_new_tokens", 0, 1, INT32_MAX);
}

/* What blocks a family's layers have. */
static void read_blocks(struct mc_cfg_reader *r, const struct family *f,
                        const struct mc_ckpt *c, struct mc_config *out)
{
    out->qkv_bias = (f->has & F_BIAS) && mc_cfg_boolean(r, "qkv_bias", true);
    out->qk_norm = f->has & F_QK_NORM;
    if (f->has & F_LATENT)
        mc_cfg_read_latents(r, out);
    if (f->has & F_INDEX)
        mc_cfg_read_indexers(r, out);
    if (f->has & F_EXPERTS)
        mc_cfg_read_experts_qwen(r, f->has & F_SHARED, out);
    else if (f->has & F_LATENT)
        mc_cfg_read_experts_deepseek(r, out);
    if (f->has & F_LATENT)
        mc_cfg_read_drafts(r, c, out);
}

/* The text's part of a model that also sees. What both parts say must be one thing. */
static void unwrap(struct mc_cfg_reader *r, struct mc_config *out)
{
    static const char *const both[] = {"tie_word_embeddings", "quantization_config"};
    const char *type = json_string_value(mc_cfg_field(r, "model_type"));
    const json_t *text = mc_cfg_field(r, "text_config");

    if (!type || strcmp(type, WRAPPER) != 0)
        return;
    if (!json_is_object(text)) {
        mc_cfg_bad(r, MC_EFORMAT, "text_config", "is missing");
        return;
    }
    for (size_t i = 0; i < sizeof both / sizeof *both; i++) {
        const json_t *a = mc_cfg_field(r, both[i]), *b = json_object_get(text, both[i]);

        if (a && b && !json_equal(a, b))
            mc_cfg_bad(r, MC_EFORMAT, both[i], "is not the same in text_config");
    }
    snprintf(out->prefix, sizeof out->prefix, "language_model.");
    r->o = text;
    r->where = "config.json: text_config";
}

int mc_config_from_hf(const struct mc_ckpt *c, struct mc_config *out, struct mc_err *err)
{
    struct mc_cfg_reader whole = {.o = mc_ckpt_config(c),
                                  .where = "config.json",
                                  .err = err};
    struct mc_cfg_reader r = whole;
    struct mc_cfg_reader g = {.o = mc_ckpt_generation_config(c),
                              .where = "generation_config.json", .err = err};
    const struct family *f;
    const json_t *quant;

    unwrap(&r, out);
    f = r.rc < 0 ? NULL : find_family(&r);
    if (r.rc < 0)
        return r.rc;
    snprintf(out->family, sizeof out->family, "%s", f->model_type);
    read_sizes(&r, f, out);
    mc_cfg_must_be(&r, "hidden_act", "silu");
    if (!(f->has & F_BIAS))
        mc_cfg_must_be_false(&r, "attention_bias"); /* it would be on o_proj too */
    mc_cfg_must_be_false(&r, "mlp_bias");
    out->tied = mc_cfg_boolean(&r, "tie_word_embeddings", false);
    if (r.rc == 0)
        read_blocks(&r, f, c, out);
    if (r.rc == 0)
        read_window(&r, f, out);
    mc_cfg_read_rope(&r, out);
    quant = mc_cfg_field(&r, "quantization_config");
    read_quantization(&r, quant ? quant : mc_cfg_field(&whole, "quantization_config"),
                      out);
    read_ids(&r, out);
    whole.rc = r.rc;
    read_ids(&whole, out);
    g.rc = whole.rc;
    read_ids(&g, out);
    read_sampling(&g, out);
    return g.rc;
}
