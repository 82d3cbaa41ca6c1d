/* from_gguf.c - what a Hugging Face directory says beside its weights, told by a GGUF.
 *
 * Owns nothing. THREAD: any. What config.json has no field for is refused by name: a
 * result that computes something else would be worse than none. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/compress/compress_int.h"

static const struct family {
    const char *arch, *type, *class_name;
} families[] = {
    {"llama", "llama", "LlamaForCausalLM"},
    {"qwen2", "qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "qwen3", "Qwen3ForCausalLM"},
    {"qwen2moe", "qwen2_moe", "Qwen2MoeForCausalLM"},
    {"qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM"},
};

static const struct family *family_of(const struct mc_config *cfg)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].arch, cfg->family) == 0)
            return &families[i];
    return NULL;
}

/* ---- divisors of frequencies ------------------------------------------------------- */

/* Llama 3's scaling, in the reciprocal x of a wavelength: below the one end frequencies
 * are divided by the factor, above the other they stay, and between them the share s that
 * stays is a straight line, s = slope x - off. */
struct line {
    double factor, slope, off;
};

static double turns(const struct mc_config *cfg, int32_t i)
{
    return pow(cfg->rope_theta, -2.0 * i / cfg->head_dim) / (2 * M_PI);
}

static double kept(const struct line *l, double divisor)
{
    return (1 / divisor - 1 / l->factor) / (1 - 1 / l->factor);
}

static double divisor_at(const struct line *l, double x)
{
    double s = l->slope * x - l->off;

    s = s < 0 ? 0 : s > 1 ? 1 : s;
    return 1 / ((1 - s) / l->factor + s);
}

/* The line through the first and the last of the pairs between the ends. */
static bool find_line(const struct mc_config *cfg, const float *div, int32_t n,
                      struct line *l)
{
    int32_t first = -1, last = -1;

    *l = (struct line){.factor = div[n - 1]};
    for (int32_t i = 0; i < n; i++)
        if (div[i] > 1.001f && div[i] < 0.999f * (float)l->factor) {
            first = first < 0 ? i : first;
            last = i;
        }
    if (first == last || l->factor <= 1)
        return false;
    l->slope = (kept(l, div[first]) - kept(l, div[last])) /
               (turns(cfg, first) - turns(cfg, last));
    l->off = l->slope * turns(cfg, first) - kept(l, div[first]);
    for (int32_t i = 0; i < n; i++)
        if (fabs(divisor_at(l, turns(cfg, i)) / div[i] - 1) > 1e-4)
            return false;
    return l->off > 0;
}

static double whole_if_near(double x)
{
    return fabs(x - round(x)) < 1e-3 * x ? round(x) : x;
}

/* The ends are known but for a common factor: low_freq_factor is taken as 1. */
static int read_divisors(const struct mc_ckpt *c, struct mc_config *cfg,
                         struct mc_err *err)
{
    int32_t n = cfg->head_dim / 2;
    float *div;
    struct line l = {0};
    int rc;

    if (!mc_ckpt_find(c, "rope_freqs.weight"))
        return 0;
    div = malloc((size_t)n * sizeof *div);
    if (!div)
        return mc_fail(err, MC_ENOMEM, "no memory for rope_freqs.weight");
    rc = mc_ckpt_vector(c, "rope_freqs.weight", n, div, err);
    if (rc == 0 && (cfg->rope != MC_ROPE_PLAIN || !find_line(cfg, div, n, &l)))
        rc = mc_fail(err, MC_EUNSUP,
                     "rope_freqs.weight is not Llama 3's scaling: config.json "
                     "has no place for other divisors");
    if (rc == 0) {
        cfg->rope = MC_ROPE_LLAMA3;
        cfg->rope_factor = l.factor;
        cfg->rope_low = 1;
        cfg->rope_high = whole_if_near(1 + 1 / l.off);
        cfg->rope_original = round(l.slope / l.off);
    }
    free(div);
    return rc;
}

int mc_from_gguf_read(const struct mc_ckpt *c, struct mc_config *cfg, struct mc_err *err)
{
    int rc = mc_config_load(c, cfg, err);

    if (rc < 0)
        return rc;
    if (!family_of(cfg))
        return mc_fail(err, MC_EUNSUP,
                       "general.architecture %s: a GGUF of this family can't "
                       "be made a directory; compress the one that it was made of",
                       cfg->family);
    if (cfg->window)
        return mc_fail(err, MC_EUNSUP, "%s.attention.sliding_window: config.json has no "
                       "place for it in this family", cfg->family);
    if (cfg->rope_neighbours && cfg->qkv_bias)
        return mc_fail(err, MC_EUNSUP,
                       "blk.0.attn_q.bias: biases of reordered rows are not "
                       "supported");
    return read_divisors(c, cfg, err);
}

/* ---- the files --------------------------------------------------------------------- */

static void set_int(json_t *o, const char *key, int64_t v)
{
    json_object_set_new(o, key, json_integer(v));
}

static void add_experts(const struct mc_config *cfg, json_t *o)
{
    if (cfg->n_expert == 0)
        return;
    set_int(o, "num_experts", cfg->n_expert);
    set_int(o, "num_experts_per_tok", cfg->top_k_expert);
    set_int(o, "moe_intermediate_size", cfg->moe_inter);
    set_int(o, "decoder_sparse_step", 1);
    json_object_set_new(o, "mlp_only_layers", json_array());
    json_object_set_new(o, "norm_topk_prob", json_boolean(cfg->router_norm));
    if (cfg->shared_inter)
        set_int(o, "shared_expert_intermediate_size", cfg->shared_inter);
}

static void add_ids(const struct mc_config *cfg, json_t *o)
{
    json_t *eos = json_array();

    if (cfg->bos >= 0)
        set_int(o, "bos_token_id", cfg->bos);
    for (int32_t i = 0; i < cfg->n_eos; i++)
        json_array_append_new(eos, json_integer(cfg->eos[i]));
    if (cfg->n_eos > 0)
        json_object_set(o, "eos_token_id", eos);
    json_decref(eos);
}

json_t *mc_from_gguf_config(const struct mc_config *cfg)
{
    const struct family *f = family_of(cfg);
    json_t *o = json_pack("{s:[s], s:s}", "architectures", f->class_name, "model_type",
                          f->type);

    set_int(o, "vocab_size", cfg->vocab);
    set_int(o, "hidden_size", cfg->hidden);
    set_int(o, "intermediate_size", cfg->inter);
    set_int(o, "num_hidden_layers", cfg->n_layer);
    set_int(o, "num_attention_heads", cfg->n_head);
    set_int(o, "num_key_value_heads", cfg->n_kv_head);
    set_int(o, "head_dim", cfg->head_dim);
    set_int(o, "max_position_embeddings", cfg->max_context);
    json_object_set_new(o, "rms_norm_eps", json_real(cfg->norm_eps));
    json_object_set_new(o, "rope_theta", json_real(cfg->rope_theta));
    if (cfg->rope == MC_ROPE_LINEAR)
        json_object_set_new(o, "rope_scaling",
                            json_pack("{s:s, s:s, s:f}", "rope_type", "linear", "type",
                                      "linear", "factor", cfg->rope_factor));
    if (cfg->rope == MC_ROPE_LLAMA3)
        json_object_set_new(
            o, "rope_scaling",
            json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor",
                      cfg->rope_factor, "low_freq_factor", cfg->rope_low,
                      "high_freq_factor", cfg->rope_high,
                      "original_max_position_embeddings",
                      (json_int_t)cfg->rope_original));
    json_object_set_new(o, "hidden_act", json_string("silu"));
    json_object_set_new(o, "attention_bias", json_false());
    json_object_set_new(o, "tie_word_embeddings", json_boolean(cfg->tied));
    json_object_set_new(o, "torch_dtype", json_string("bfloat16"));
    add_experts(cfg, o);
    add_ids(cfg, o);
    return o;
}

json_t *mc_from_gguf_sampling(const struct mc_config *cfg)
{
    json_t *o = cfg->has_sampling ? json_object() : NULL;

    if (!o)
        return NULL;
    json_object_set_new(o, "do_sample", json_boolean(cfg->temperature > 0));
    json_object_set_new(o, "temperature", json_real(cfg->temperature));
    json_object_set_new(o, "top_p", json_real(cfg->top_p));
    json_object_set_new(o, "min_p", json_real(cfg->min_p));
    json_object_set_new(o, "repetition_penalty", json_real(cfg->repetition_penalty));
    set_int(o, "top_k", cfg->top_k);
    return o;
}
