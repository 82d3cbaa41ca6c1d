/* config_hf.c - config.json and generation_config.json of the dense Llama-like families.
 *
 * Owns nothing. THREAD: any.
 * The reader is sticky: the first field that is wrong sets err and rc, later reads give
 * defaults, and the caller looks once. A field that transformers honours and this program
 * does not is refused unless it has the value that changes nothing. Defaults are those of
 * transformers' classes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/model/config_int.h"

struct reader {
    const json_t *o;
    const char *where; /* "config.json" */
    struct mc_err *err;
    int rc;
};

struct family {
    const char *model_type, *architecture;
    bool qkv_bias, qk_norm;
    int32_t head_dim; /* when absent; 0: hidden / heads */
    int32_t window;   /* when sliding_window is absent */
};

static const struct family families[] = {
    {"llama", "LlamaForCausalLM", false, false, 0, 0},
    {"mistral", "MistralForCausalLM", false, false, 0, 4096},
    {"qwen2", "Qwen2ForCausalLM", true, false, 0, 4096},
    {"qwen3", "Qwen3ForCausalLM", false, true, 128, 4096},
};

static void bad(struct reader *r, int code, const char *key, const char *what)
{
    if (r->rc == 0)
        r->rc = mc_fail_param(r->err, code, key, "%s: %s %s", r->where, key, what);
}

/* NULL when absent or null. */
static const json_t *field(const struct reader *r, const char *key)
{
    const json_t *v = json_object_get(r->o, key);

    return json_is_null(v) ? NULL : v;
}

/* A number in [lo, hi]. A file with an integer beyond 64 bits has integers as reals. */
static double number(struct reader *r, const char *key, double absent, double lo, double hi)
{
    const json_t *v = field(r, key);
    double x = json_number_value(v);

    if (!v)
        return absent;
    if (json_is_number(v) && x >= lo && x <= hi)
        return x;
    if (r->rc == 0)
        r->rc = json_is_number(v)
                    ? mc_fail_param(r->err, MC_EFORMAT, key, "%s: %s %g is not within %g..%g",
                                    r->where, key, x, lo, hi)
                    : mc_fail_param(r->err, MC_EFORMAT, key, "%s: %s is not a number",
                                    r->where, key);
    return absent;
}

static int32_t integer(struct reader *r, const char *key, int32_t absent, int32_t lo,
                       int32_t hi)
{
    double x = number(r, key, absent, lo, hi);

    if (x != floor(x)) {
        bad(r, MC_EFORMAT, key, "is not an integer");
        return absent;
    }
    return (int32_t)x;
}

static int32_t required(struct reader *r, const char *key, int32_t lo, int32_t hi)
{
    if (!field(r, key))
        bad(r, MC_EFORMAT, key, "is missing");
    return integer(r, key, lo, lo, hi);
}

static bool boolean(struct reader *r, const char *key, bool absent)
{
    const json_t *v = field(r, key);

    if (v && !json_is_boolean(v))
        bad(r, MC_EFORMAT, key, "is not a boolean");
    return v ? json_is_true(v) : absent;
}

static void must_be_string(struct reader *r, const char *key, const char *want)
{
    const json_t *v = field(r, key);
    const char *s = json_string_value(v);

    if (v && (!s || strcmp(s, want) != 0) && r->rc == 0)
        r->rc = mc_fail_param(r->err, MC_EUNSUP, key, "%s: %s must be %s, not %s", r->where,
                              key, want, s ? s : "no string");
}

static void must_be_false(struct reader *r, const char *key)
{
    if (boolean(r, key, false))
        bad(r, MC_EUNSUP, key, "true is not supported");
}

/* ---- parts --------------------------------------------------------------------------- */

static const struct family *find_family(struct reader *r)
{
    const char *type = json_string_value(field(r, "model_type"));
    const json_t *list = field(r, "architectures"), *v;
    const struct family *f = NULL;
    size_t i;

    if (!type) {
        bad(r, MC_EFORMAT, "model_type", "is missing");
        return NULL;
    }
    for (i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].model_type, type) == 0)
            f = &families[i];
    if (!f) {
        r->rc = mc_fail_param(r->err, MC_EUNSUP, "model_type", "%s: model_type %s is not one of "
                              "llama, mistral, qwen2, qwen3", r->where, type);
        return NULL;
    }
    json_array_foreach (list, i, v)
        if (json_is_string(v) && strcmp(json_string_value(v), f->architecture) == 0)
            return f;
    if (list)
        r->rc = mc_fail_param(r->err, MC_EUNSUP, "architectures", "%s: architectures lacks %s",
                              r->where, f->architecture);
    return f;
}

static void read_sizes(struct reader *r, const struct family *f, struct mc_config *out)
{
    bool has_kv = json_object_get(r->o, "num_key_value_heads") != NULL;

    out->vocab = required(r, "vocab_size", 1, MC_LIMIT_VOCAB);
    out->hidden = required(r, "hidden_size", 1, MC_LIMIT_WIDTH);
    out->inter = required(r, "intermediate_size", 1, MC_LIMIT_WIDTH);
    out->n_layer = required(r, "num_hidden_layers", 1, MC_LIMIT_LAYERS);
    out->n_head = required(r, "num_attention_heads", 1, MC_LIMIT_HEADS);
    out->max_context = required(r, "max_position_embeddings", 1, MC_LIMIT_CONTEXT);
    /* Absent means n_head to llama only; the others' classes have defaults of some model. */
    if (!has_kv && f != &families[0])
        bad(r, MC_EFORMAT, "num_key_value_heads", "is missing");
    out->n_kv_head = integer(r, "num_key_value_heads", out->n_head, 1, MC_LIMIT_HEADS);
    out->head_dim = integer(r, "head_dim", f->head_dim, 1, MC_LIMIT_HEAD_DIM);
    if (out->head_dim == 0 && r->rc == 0) {
        if (out->hidden % out->n_head != 0 || out->hidden / out->n_head > MC_LIMIT_HEAD_DIM)
            bad(r, MC_EFORMAT, "hidden_size", "is no multiple of num_attention_heads, and "
                                              "head_dim is missing");
        out->head_dim = out->hidden / out->n_head;
    }
    if (!field(r, "rms_norm_eps"))
        bad(r, MC_EFORMAT, "rms_norm_eps", "is missing");
    out->norm_eps = (float)number(r, "rms_norm_eps", 1e-6, 1e-12, 0.1);
}

/* All layers or none: layer_types says it, or qwen's max_window_layers. */
static void read_window(struct reader *r, const struct family *f, struct mc_config *out)
{
    bool qwen = strncmp(f->model_type, "qwen", 4) == 0;
    const json_t *types = field(r, "layer_types"), *v;
    int32_t sliding = 0, from, window;
    size_t i;

    if (f->window == 0) /* llama has none, whatever the file says */
        return;
    window = integer(r, "sliding_window",
                     json_object_get(r->o, "sliding_window") ? 0 : f->window, 1,
                     MC_LIMIT_CONTEXT);
    if (qwen && !boolean(r, "use_sliding_window", false))
        window = 0;
    if (qwen && types) {
        json_array_foreach (types, i, v) {
            const char *s = json_string_value(v);

            if (!s || (strcmp(s, "full_attention") != 0 && strcmp(s, "sliding_attention") != 0))
                bad(r, MC_EUNSUP, "layer_types", "has an unknown type");
            else
                sliding += s[0] == 's';
        }
        if (json_array_size(types) != (size_t)out->n_layer)
            bad(r, MC_EFORMAT, "layer_types", "has not one entry a layer");
    } else if (qwen) {
        from = integer(r, "max_window_layers", 28, 0, INT32_MAX);
        sliding = window && from < out->n_layer ? out->n_layer - from : 0;
    } else {
        sliding = out->n_layer;
    }
    if (sliding != 0 && sliding != out->n_layer)
        bad(r, MC_EUNSUP, types ? "layer_types" : "max_window_layers",
            "gives only some layers a sliding window");
    if (sliding != 0 && window == 0 && qwen)
        bad(r, MC_EFORMAT, "layer_types", "has sliding layers, but there is no window");
    out->window = sliding ? window : 0;
}

/* rope_parameters (newer) or rope_theta and rope_scaling; the type is rope_type or type. */
static void read_rope(struct reader *r, struct mc_config *out)
{
    const json_t *p = field(r, "rope_parameters"), *s = field(r, "rope_scaling"), *v;
    struct reader in = {.o = p ? p : s, .where = r->where, .err = r->err};
    const char *type = "default", *key;
    double theta = number(r, "rope_theta", 0, 1, 1e15);

    if (in.o && !json_is_object(in.o))
        bad(r, MC_EFORMAT, p ? "rope_parameters" : "rope_scaling", "is not an object");
    if (r->rc < 0)
        return;
    json_object_foreach ((json_t *)in.o, key, v)
        if (json_is_object(v))
            bad(&in, MC_EUNSUP, key, "(rope parameters of one layer type) is not supported");
    out->rope_theta = number(&in, "rope_theta", theta > 0 ? theta : 10000, 1, 1e15);
    if (theta > 0 && out->rope_theta != theta)
        bad(&in, MC_EFORMAT, "rope_theta", "has two values");
    v = field(&in, "rope_type") ? field(&in, "rope_type") : field(&in, "type");
    if (v)
        type = json_string_value(v) ? json_string_value(v) : "(no string)";
    if (number(&in, "partial_rotary_factor", number(r, "partial_rotary_factor", 1, 0, 1), 0,
               1) != 1)
        bad(&in, MC_EUNSUP, "partial_rotary_factor", "other than 1 is not supported");
    if (strcmp(type, "linear") == 0 || strcmp(type, "llama3") == 0) {
        out->rope = type[1] == 'i' ? MC_ROPE_LINEAR : MC_ROPE_LLAMA3;
        if (!field(&in, "factor"))
            bad(&in, MC_EFORMAT, "factor", "(of rope) is missing");
        out->rope_factor = number(&in, "factor", 1, 1, 65536);
    } else if (strcmp(type, "default") != 0 && in.rc == 0) {
        in.rc = mc_fail_param(r->err, MC_EUNSUP, "rope_type", "%s: rope_type %s is not one of "
                              "default, linear, llama3", r->where, type);
    }
    if (out->rope == MC_ROPE_LLAMA3) {
        if (!field(&in, "low_freq_factor") || !field(&in, "high_freq_factor"))
            bad(&in, MC_EFORMAT, "low_freq_factor", "or high_freq_factor is missing");
        out->rope_low = number(&in, "low_freq_factor", 1, 1e-6, 1e6);
        out->rope_high = number(&in, "high_freq_factor", 4, 1e-6, 1e6);
        out->rope_original = integer(&in, "original_max_position_embeddings",
                                     out->max_context, 1, MC_LIMIT_CONTEXT);
    }
    if (r->rc == 0)
        r->rc = in.rc;
}

/* What a matrix of the checkpoint may be stored as is for mc_ckpt_matrix to see; here are
 * the methods that would change what a linear computes. */
static void read_quantization(struct reader *r)
{
    static const char *const methods[] = {"compressed-tensors", "fp8", "fbgemm_fp8", "modelopt"};
    struct reader q = {.o = field(r, "quantization_config"), .where = r->where, .err = r->err};
    const json_t *sparsity;
    const char *method;
    bool known = false;

    if (!q.o || r->rc < 0)
        return;
    method = json_string_value(field(&q, "quant_method"));
    for (size_t i = 0; method && i < sizeof methods / sizeof *methods; i++)
        known = known || strcmp(method, methods[i]) == 0;
    if (!known)
        q.rc = mc_fail_param(r->err, MC_EUNSUP, "quant_method", "%s: quantization_config."
                             "quant_method %s is not supported", r->where,
                             method ? method : "(absent)");
    sparsity = field(&q, "sparsity_config");
    if (json_object_size(sparsity) > 0) {
        struct reader s = {.o = sparsity, .where = r->where, .err = r->err, .rc = q.rc};

        must_be_string(&s, "format", "dense");
        q.rc = s.rc;
    }
    if (json_object_size(field(&q, "transform_config")) > 0)
        bad(&q, MC_EUNSUP, "transform_config", "(rotated weights) is not supported");
    r->rc = q.rc;
}

/* An id or a list of ids. */
static void read_eos(struct reader *r, struct mc_config *out)
{
    const json_t *v = field(r, "eos_token_id"), *one;
    size_t i;

    if (!json_is_array(v)) {
        int32_t id = integer(r, "eos_token_id", -1, 0, MC_LIMIT_VOCAB);

        if (id >= 0 && r->rc == 0)
            r->rc = mc_config_add_eos(out, id, r->err);
        return;
    }
    json_array_foreach (v, i, one) {
        double id = json_number_value(one);

        if (!json_is_number(one) || id != floor(id) || id < 0 || id > MC_LIMIT_VOCAB)
            bad(r, MC_EFORMAT, "eos_token_id", "has an entry that is no id");
        else if (r->rc == 0)
            r->rc = mc_config_add_eos(out, (int32_t)id, r->err);
    }
}

static void read_ids(struct reader *r, struct mc_config *out)
{
    if (out->bos < 0)
        out->bos = integer(r, "bos_token_id", -1, 0, MC_LIMIT_VOCAB);
    read_eos(r, out);
}

static void read_sampling(struct reader *r, struct mc_config *out)
{
    static const char *const keys[] = {"temperature", "top_p", "top_k", "min_p",
                                       "repetition_penalty"};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        out->has_sampling = out->has_sampling || field(r, keys[i]);
    out->temperature = (float)number(r, "temperature", 1, 0, 100);
    out->top_p = (float)number(r, "top_p", 1, 0, 1);
    out->min_p = (float)number(r, "min_p", 0, 0, 1);
    out->repetition_penalty = (float)number(r, "repetition_penalty", 1, 0.01, 100);
    out->top_k = integer(r, "top_k", 0, -1, INT32_MAX);
    out->max_new_tokens = integer(r, "max_new_tokens", 0, 1, INT32_MAX);
}

int mc_config_from_hf(const struct mc_ckpt *c, struct mc_config *out, struct mc_err *err)
{
    struct reader r = {.o = mc_ckpt_config(c), .where = "config.json", .err = err};
    struct reader g = {.o = mc_ckpt_generation_config(c), .where = "generation_config.json",
                       .err = err};
    const struct family *f = find_family(&r);

    if (r.rc < 0)
        return r.rc;
    snprintf(out->family, sizeof out->family, "%s", f->model_type);
    out->qkv_bias = f->qkv_bias;
    out->qk_norm = f->qk_norm;
    read_sizes(&r, f, out);
    must_be_string(&r, "hidden_act", "silu");
    if (!f->qkv_bias)
        must_be_false(&r, "attention_bias"); /* it would be on o_proj too */
    must_be_false(&r, "mlp_bias");
    out->tied = boolean(&r, "tie_word_embeddings", false);
    read_window(&r, f, out);
    read_rope(&r, out);
    read_quantization(&r);
    read_ids(&r, out);
    g.rc = r.rc;
    read_ids(&g, out);
    read_sampling(&g, out);
    return g.rc;
}
