/* test_config.c - configurations of each family, and each field that must be refused. */
#include "tests/c/test.h"

#include <math.h>

#include "core/model/config.h"
#include "core/model/rope.h"
#include "core/weights/weights.h"
#include "tests/c/gguf_write.h"
#include "tests/c/tmpdir.h"

/* ---- Hugging Face ------------------------------------------------------------------ */

#define SIZES \
    "\"vocab_size\":1000,\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2," \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"hidden_act\":\"silu\"," \
    "\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5"
#define LLAMA "{\"model_type\":\"llama\"," SIZES "}"
#define MISTRAL "{\"model_type\":\"mistral\"," SIZES ",\"sliding_window\":null}"
#define QWEN2 "{\"model_type\":\"qwen2\"," SIZES ",\"use_sliding_window\":false," \
              "\"sliding_window\":128,\"max_window_layers\":2}"
#define QWEN3 "{\"model_type\":\"qwen3\"," SIZES ",\"head_dim\":32}"

/* Loads base with the members of patch put over it (null: removed) and a generation_config. */
static int load(const char *base, const char *patch, const char *generation,
                struct mc_config *out, struct mc_err *err)
{
    static const uint64_t empty_header[2] = {8, 0x2020202020207D7B}; /* "{}      " */
    json_t *o = json_loads(base, 0, NULL), *p = json_loads(patch, 0, NULL), *v;
    char *dir = tmp_new(), *text;
    struct mc_ckpt *c = NULL;
    const char *key;
    int rc;

    assert_non_null(o);
    assert_non_null(p);
    json_object_foreach (p, key, v) {
        if (json_is_string(v) && strcmp(json_string_value(v), "(absent)") == 0)
            json_object_del(o, key);
        else
            json_object_set(o, key, v);
    }
    text = json_dumps(o, 0);
    tmp_text(dir, "config.json", text);
    tmp_write(dir, "model.safetensors", empty_header, 16);
    if (generation)
        tmp_text(dir, "generation_config.json", generation);
    assert_ok(mc_ckpt_open(dir, &c, err), *err);
    rc = mc_config_load(c, out, err);
    assert_int_equal(mc_config_load(c, out, NULL), rc);
    mc_ckpt_close(c);
    free(text);
    json_decref(o);
    json_decref(p);
    tmp_free(dir);
    return rc;
}

static struct mc_config good(const char *base, const char *patch)
{
    struct mc_config m;
    struct mc_err err = {0};

    assert_ok(load(base, patch, NULL, &m, &err), err);
    return m;
}

static void refused(const char *base, const char *patch, const char *says)
{
    struct mc_config m;
    struct mc_err err = {0};
    int rc = load(base, patch, NULL, &m, &err);

    if (rc == 0 || !strstr(err.text, says))
        fail_msg("%s: want '%s' in: %d %s", patch, says, rc, err.text);
}

static void config_of_each_family_has_its_fields(void **state)
{
    struct mc_config m = good(LLAMA, "{}");

    (void)state;
    assert_string_equal(m.family, "llama");
    assert_int_equal(m.vocab, 1000);
    assert_int_equal(m.hidden, 64);
    assert_int_equal(m.inter, 96);
    assert_int_equal(m.n_layer, 2);
    assert_int_equal(m.n_head, 4);
    assert_int_equal(m.n_kv_head, 2);
    assert_int_equal(m.head_dim, 16);
    assert_int_equal(m.max_context, 512);
    assert_true(m.norm_eps == 1e-5f);
    assert_false(m.tied || m.qkv_bias || m.qk_norm || m.rope_neighbours ||
                 m.has_sampling);
    assert_int_equal(m.window, 0);
    assert_int_equal(m.rope, MC_ROPE_PLAIN);
    assert_true(m.rope_theta == 10000);
    assert_int_equal(m.bos, -1);
    assert_int_equal(m.n_eos, 0);
    assert_true(m.temperature == 1 && m.top_p == 1 && m.min_p == 0 && m.top_k == 0 &&
                m.repetition_penalty == 1);
    m = good(MISTRAL, "{}");
    assert_string_equal(m.family, "mistral");
    assert_false(m.qkv_bias || m.qk_norm);
    m = good(QWEN2, "{\"tie_word_embeddings\":true}");
    assert_true(m.qkv_bias && m.tied && !m.qk_norm && m.window == 0);
    m = good(QWEN3, "{}");
    assert_true(!m.qkv_bias && m.qk_norm && m.head_dim == 32);
    assert_int_equal(good(QWEN3, "{\"head_dim\":\"(absent)\"}").head_dim, 128);
    assert_int_equal(good(LLAMA, "{\"head_dim\":null}").head_dim, 16);
    assert_int_equal(good(LLAMA, "{\"num_key_value_heads\":null}").n_kv_head, 4);
    assert_int_equal(good(LLAMA, "{\"num_key_value_heads\":\"(absent)\"}").n_kv_head, 4);
    refused(MISTRAL, "{\"num_key_value_heads\":\"(absent)\"}",
            "num_key_value_heads is missing");
}

static void config_dtype_has_two_spellings_and_neither_matters(void **state)
{
    (void)state;
    good(LLAMA, "{\"torch_dtype\":\"bfloat16\"}");
    good(LLAMA, "{\"dtype\":\"float16\"}");
    good(LLAMA, "{\"dtype\":null,\"torch_dtype\":\"float32\"}");
}

static void config_rope_has_two_spellings(void **state)
{
    struct mc_config a, b;

    (void)state;
    a = good(LLAMA, "{\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\","
                    "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                    "\"original_max_position_embeddings\":256}}");
    assert_int_equal(a.rope, MC_ROPE_LLAMA3);
    assert_true(a.rope_theta == 500000 && a.rope_factor == 8 && a.rope_low == 1 &&
                a.rope_high == 4 && a.rope_original == 256);
    b = good(LLAMA,
             "{\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"llama3\","
             "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
             "\"original_max_position_embeddings\":256}}");
    assert_memory_equal(&a, &b, sizeof a);
    a = good(LLAMA, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}");
    assert_true(a.rope == MC_ROPE_LINEAR && a.rope_factor == 4 && a.rope_theta == 10000);
    a = good(QWEN2, "{\"rope_theta\":1000000,\"rope_scaling\":null}");
    assert_true(a.rope == MC_ROPE_PLAIN && a.rope_theta == 1e6);
    a = good(QWEN3,
             "{\"rope_parameters\":{\"rope_theta\":1000000,\"rope_type\":\"default\"}}");
    assert_true(a.rope == MC_ROPE_PLAIN && a.rope_theta == 1e6);
    a = good(LLAMA, "{\"rope_theta\":5000,\"rope_parameters\":{\"rope_theta\":5000}}");
    assert_true(a.rope_theta == 5000);
}

static void config_rope_that_is_not_understood_is_refused(void **state)
{
    (void)state;
    refused(LLAMA, "{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}",
            "rope_type dynamic");
    refused(LLAMA, "{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2}}",
            "original_max_position_embeddings is missing");
    refused(LLAMA, "{\"rope_scaling\":{\"rope_type\":\"longrope\"}}",
            "rope_type longrope");
    refused(LLAMA, "{\"rope_scaling\":{\"rope_type\":7}}", "rope_type");
    refused(LLAMA, "{\"rope_scaling\":\"linear\"}", "rope_scaling is not an object");
    refused(LLAMA, "{\"rope_parameters\":[]}", "rope_parameters is not an object");
    refused(LLAMA, "{\"rope_scaling\":{\"type\":\"linear\"}}", "factor");
    refused(LLAMA, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", "factor 0");
    refused(LLAMA, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":\"4\"}}", "factor");
    refused(LLAMA, "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8}}",
            "low_freq_factor");
    refused(LLAMA,
            "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
            "\"high_freq_factor\":4}}",
            "low_freq_factor 4 is not below");
    refused(LLAMA, "{\"rope_theta\":1,\"rope_parameters\":{\"rope_theta\":2}}",
            "two values");
    refused(LLAMA, "{\"rope_theta\":0}", "rope_theta 0");
    refused(LLAMA, "{\"partial_rotary_factor\":0.5}", "partial_rotary_factor");
    refused(LLAMA, "{\"rope_parameters\":{\"partial_rotary_factor\":0.5}}",
            "partial_rotary_factor");
    refused(LLAMA, "{\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1}}}",
            "full_attention");
}

static void config_window_is_for_all_layers_or_none(void **state)
{
    (void)state;
    assert_int_equal(good(MISTRAL, "{\"sliding_window\":128}").window, 128);
    assert_int_equal(good(MISTRAL, "{\"sliding_window\":\"(absent)\"}").window, 4096);
    assert_int_equal(good(LLAMA, "{\"sliding_window\":128}").window, 0);
    assert_int_equal(good(QWEN2, "{\"use_sliding_window\":true}").window, 0);
    assert_int_equal(
        good(QWEN2, "{\"use_sliding_window\":true,\"max_window_layers\":0}").window, 128);
    refused(QWEN2, "{\"use_sliding_window\":true,\"max_window_layers\":1}",
            "max_window_layers");
    assert_int_equal(
        good(QWEN3, "{\"layer_types\":[\"full_attention\",\"full_attention\"]}").window,
        0);
    assert_int_equal(good(QWEN3, "{\"use_sliding_window\":true,\"sliding_window\":64,"
                                 "\"layer_types\":[\"sliding_attention\",\"sliding_attention\"]}")
                         .window, 64);
    refused(QWEN3, "{\"use_sliding_window\":true,\"sliding_window\":64,"
                   "\"layer_types\":[\"sliding_attention\",\"full_attention\"]}", "layer_types");
    refused(QWEN3, "{\"layer_types\":[\"sliding_attention\",\"sliding_attention\"]}",
            "no window");
    refused(QWEN3, "{\"layer_types\":[\"full_attention\"]}", "layer_types");
    refused(QWEN3, "{\"layer_types\":[\"full_attention\",\"linear_attention\"]}",
            "layer_types");
    refused(MISTRAL, "{\"sliding_window\":-1}", "sliding_window -1");
}

static void config_fields_that_change_the_result_are_refused_by_name(void **state)
{
    (void)state;
    refused(LLAMA, "{\"model_type\":\"gemma2\"}", "model_type gemma2");
    refused(LLAMA, "{\"model_type\":\"(absent)\"}", "model_type");
    refused(LLAMA, "{\"model_type\":7}", "model_type");
    refused(LLAMA, "{\"architectures\":[\"LlamaForSequenceClassification\"]}",
            "architectures");
    refused(LLAMA, "{\"architectures\":\"LlamaForCausalLM\"}", "architectures");
    good(LLAMA, "{\"architectures\":[\"LlamaForCausalLM\"]}");
    refused(LLAMA, "{\"hidden_act\":\"gelu\"}", "hidden_act must be silu, not gelu");
    refused(LLAMA, "{\"hidden_act\":1}", "hidden_act");
    refused(LLAMA, "{\"attention_bias\":true}", "attention_bias");
    refused(LLAMA, "{\"attention_bias\":1}", "attention_bias is not a boolean");
    refused(QWEN3, "{\"attention_bias\":true}", "attention_bias");
    refused(LLAMA, "{\"mlp_bias\":true}", "mlp_bias");
    refused(LLAMA, "{\"tie_word_embeddings\":\"yes\"}", "tie_word_embeddings");
    refused(LLAMA, "{\"quantization_config\":{\"quant_method\":\"hqq\"}}",
            "quant_method hqq");
    refused(LLAMA, "{\"quantization_config\":{}}", "quant_method");
    refused(LLAMA, "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\","
                   "\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"}}}", "sparse-24-bitmask");
    refused(LLAMA, "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\","
                   "\"transform_config\":{\"config_groups\":{}}}}", "transform_config");
    good(LLAMA, "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\","
                "\"sparsity_config\":{},\"transform_config\":{}}}");
}

static void config_numbers_have_limits(void **state)
{
    static const char *const sizes[] = {
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "max_position_embeddings"};
    static const char *const values[] = {"0", "-1", "1.5", "1e300", "4294967297", "\"64\"",
                                         "[]", "true"};
    char patch[128];

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            snprintf(patch, sizeof patch, "{\"%s\":%s}", sizes[i], values[v]);
            refused(LLAMA, patch, sizes[i]);
        }
        snprintf(patch, sizeof patch, "{\"%s\":\"(absent)\"}", sizes[i]);
        refused(LLAMA, patch, "is missing");
        snprintf(patch, sizeof patch, "{\"%s\":null}", sizes[i]);
        refused(LLAMA, patch, "is missing");
    }
    refused(LLAMA, "{\"num_key_value_heads\":3}",
            "4 attention heads are no multiple of 3");
    refused(LLAMA, "{\"num_key_value_heads\":0}", "num_key_value_heads 0");
    refused(LLAMA, "{\"head_dim\":15}", "head_dim 15 is odd");
    refused(LLAMA, "{\"head_dim\":2000}", "head_dim 2000");
    refused(LLAMA, "{\"num_attention_heads\":6}", "hidden_size is no multiple");
    refused(LLAMA, "{\"rms_norm_eps\":0}", "rms_norm_eps 0");
    refused(LLAMA, "{\"rms_norm_eps\":\"(absent)\"}", "rms_norm_eps is missing");
}

static void config_stop_ids_are_the_union_of_both_files(void **state)
{
    struct mc_config m;
    struct mc_err err = {0};

    (void)state;
    assert_ok(load(LLAMA, "{\"bos_token_id\":1,\"eos_token_id\":2}",
                   "{\"bos_token_id\":7,\"eos_token_id\":[5,2,9]}", &m, &err), err);
    assert_int_equal(m.bos, 1);
    assert_int_equal(m.n_eos, 3);
    assert_true(m.eos[0] == 2 && m.eos[1] == 5 && m.eos[2] == 9);
    assert_ok(load(LLAMA, "{\"eos_token_id\":null}",
                   "{\"bos_token_id\":7,\"eos_token_id\":3}", &m, &err),
              err);
    assert_true(m.bos == 7 && m.n_eos == 1 && m.eos[0] == 3);
    refused(LLAMA, "{\"eos_token_id\":1000}", "eos_token_id 1000 is no id");
    refused(LLAMA, "{\"bos_token_id\":1000}", "bos_token_id 1000 is no id");
    refused(LLAMA, "{\"eos_token_id\":-1}", "eos_token_id -1");
    refused(LLAMA, "{\"eos_token_id\":[1,\"2\"]}", "eos_token_id");
    refused(LLAMA, "{\"eos_token_id\":[1.5]}", "eos_token_id");
    refused(LLAMA, "{\"eos_token_id\":[1,2,3,4,5,6,7,8,9]}", "more than 8 stop ids");
}

static void config_sampling_defaults_come_from_generation_config(void **state)
{
    struct mc_config m;
    struct mc_err err = {0};

    (void)state;
    assert_ok(load(LLAMA, "{}", "{\"do_sample\":true}", &m, &err), err);
    assert_false(m.has_sampling);
    assert_ok(load(LLAMA, "{\"temperature\":9}",
                   "{\"temperature\":0.6,\"top_p\":0.9,\"top_k\":20,"
                   "\"min_p\":0.05,\"repetition_penalty\":1.05}",
                   &m, &err),
              err);
    assert_true(m.has_sampling && m.temperature == 0.6f && m.top_p == 0.9f &&
                m.top_k == 20 && m.min_p == 0.05f && m.repetition_penalty == 1.05f);
    assert_ok(load(LLAMA, "{}", "{\"temperature\":null}", &m, &err), err);
    assert_false(m.has_sampling);
    assert_int_equal(load(LLAMA, "{}", "{\"top_p\":1.5}", &m, &err), MC_EFORMAT);
    assert_string_equal(err.param, "top_p");
    assert_non_null(strstr(err.text, "generation_config.json: top_p 1.5"));
    assert_int_equal(load(LLAMA, "{}", "{\"temperature\":-1}", &m, &err), MC_EFORMAT);
    assert_int_equal(load(LLAMA, "{}", "{\"top_k\":0.5}", &m, &err), MC_EFORMAT);
}

static struct mc_config of(const char *path, struct mc_ckpt **c)
{
    struct mc_config m;
    struct mc_err err = {0};

    assert_ok(mc_ckpt_open(path, c, &err), err);
    assert_ok(mc_config_load(*c, &m, &err), err);
    return m;
}

static void config_of_a_real_checkpoint_and_its_gguf_agree(void **state)
{
    struct mc_ckpt *a, *b;
    struct mc_config h = of("tests/models/tiny-llama", &a);
    struct mc_config g = of("tests/models/tiny-llama-gguf", &b);
    struct mc_err err = {0};
    float fh[16], fg[16];

    (void)state;
    assert_string_equal(h.family, g.family);
    assert_true(h.vocab == g.vocab && h.vocab == 2048);
    assert_true(h.hidden == g.hidden && h.inter == g.inter && h.n_layer == g.n_layer);
    assert_true(h.n_head == g.n_head && h.n_kv_head == g.n_kv_head &&
                h.head_dim == g.head_dim);
    assert_true(h.max_context == g.max_context && h.norm_eps == g.norm_eps);
    assert_true(h.tied && g.tied && !h.rope_neighbours && g.rope_neighbours);
    assert_true(h.bos == 1792 && g.bos == 1792);
    assert_true(h.n_eos == 3 && h.eos[0] == 1793 && h.eos[1] == 1800 && h.eos[2] == 1801);
    assert_true(g.n_eos == 1 && g.eos[0] == 1801);
    assert_true(h.has_sampling && h.temperature == 0.6f && h.top_p == 0.9f &&
                !g.has_sampling);
    /* llama3 scaling from the config, and as a tensor of f32 divisors: 2 roundings apart. */
    assert_ok(mc_rope_freqs(&h, a, fh, &err), err);
    assert_ok(mc_rope_freqs(&g, b, fg, &err), err);
    for (int i = 0; i < 16; i++)
        assert_true(fabsf(fh[i] - fg[i]) <= 4 * 0x1p-23f * fh[i]);
    assert_true(fh[0] == 1 && fh[15] < 0x1p-20f);
    mc_ckpt_close(a);
    mc_ckpt_close(b);
    of("tests/models/tiny-llama-w4a16", &a);
    mc_ckpt_close(a);
    of("tests/models/tiny-llama-fp8", &a);
    mc_ckpt_close(a);
    of("tests/models/tiny-llama-nvfp4", &a);
    mc_ckpt_close(a);
}

/* ---- GGUF -------------------------------------------------------------------------- */

enum { ABSENT = 99 };

struct kv {
    const char *key; /* after "arch.", or "tokenizer.ggml:bos_token_id" whole */
    uint32_t type;   /* 4: u32, 6: f32, 8: string; ABSENT: leave the usual one out */
    double number;
    const char *string;
};

/* A GGUF of arch with these metadata over the usual ones and the named tensors [16][64]. */
static int load_gguf(const char *arch, const struct kv *extra, int n_extra,
                     const char *const *tensors, int n_tensor, struct mc_config *out,
                     struct mc_err *err)
{
    static const struct kv usual[] = {
        {"block_count", 4, 2, NULL}, {"context_length", 4, 512, NULL},
        {"embedding_length", 4, 64, NULL}, {"feed_forward_length", 4, 96, NULL},
        {"attention.head_count", 4, 4, NULL}, {"attention.head_count_kv", 4, 2, NULL},
        {"attention.layer_norm_rms_epsilon", 6, 1e-5, NULL}};
    struct buf *b = calloc(1, sizeof *b);
    char *dir = tmp_new(), name[128];
    struct mc_ckpt *c = NULL;
    const int n_usual = sizeof usual / sizeof *usual;
    uint64_t n = 1;
    int rc;

    head(b, (uint64_t)n_tensor, 0);
    key(b, "general.architecture", 8), str(b, arch);
    for (int i = 0; i < n_usual + n_extra; i++) {
        const struct kv *k = i < n_usual ? &usual[i] : &extra[i - n_usual];
        bool leave = k->type == ABSENT;
        float f = (float)k->number;
        char *colon;

        for (int e = 0; e < n_extra && i < n_usual; e++)
            leave = leave || strcmp(extra[e].key, k->key) == 0;
        if (leave)
            continue;
        snprintf(name, sizeof name, "%s.%s", arch, k->key);
        if (strchr(k->key, ':'))
            snprintf(name, sizeof name, "%s", k->key);
        colon = strchr(name, ':');
        if (colon)
            *colon = '.';
        key(b, name, k->type);
        if (k->type == 8)
            str(b, k->string);
        else if (k->type == 6)
            raw(b, &f, 4);
        else
            u32(b, (uint32_t)(int64_t)k->number);
        n++;
    }
    memcpy(b->p + 16, &n, 8);
    for (int i = 0; i < n_tensor; i++)
        info(b, tensors[i], 64, 16, 0, 4096 * (uint64_t)i);
    pad(b, 32);
    b->n += 4096 * (size_t)n_tensor;
    tmp_write(dir, "x.gguf", b->p, b->n);
    assert_ok(mc_ckpt_open(dir, &c, err), *err);
    rc = mc_config_load(c, out, err);
    mc_ckpt_close(c);
    tmp_free(dir);
    free(b);
    return rc;
}

static const char *const embed[] = {"token_embd.weight", "output.weight",
                                    "blk.0.attn_q.bias", "blk.0.attn_output.bias"};

static void gguf_refused(const struct kv *extra, int n_tensor, const char *says)
{
    struct mc_config m;
    struct mc_err err = {0};
    int rc = load_gguf("llama", extra, 1, embed, n_tensor, &m, &err);

    if (rc == 0 || !strstr(err.text, says))
        fail_msg("%s: want '%s' in: %d %s", extra->key, says, rc, err.text);
}

static void config_gguf_is_read(void **state)
{
    static const struct kv extra[] = {
        {"rope.freq_base", 6, 500000, NULL}, {"rope.scaling.type", 8, 0, "linear"},
        {"rope.scaling.factor", 6, 4, NULL}, {"attention.key_length", 4, 32, NULL},
        {"attention.value_length", 4, 32, NULL}, {"attention.sliding_window", 4, 128, NULL},
        {"tokenizer.ggml:bos_token_id", 4, 1, NULL}, {"tokenizer.ggml:eos_token_id", 4, 2, NULL},
        {"tokenizer.ggml:eot_token_id", 4, 3, NULL}, {"general.sampling:temp", 6, 0.5, NULL}};
    struct mc_config m;
    struct mc_err err = {0};

    (void)state;
    assert_ok(load_gguf("llama", extra, 10, embed, 1, &m, &err), err);
    assert_true(m.vocab == 16 && m.hidden == 64 && m.inter == 96 && m.n_layer == 2);
    assert_true(m.n_head == 4 && m.n_kv_head == 2 && m.head_dim == 32 &&
                m.max_context == 512);
    assert_true(m.norm_eps == 1e-5f && m.tied && m.rope_neighbours && !m.qkv_bias);
    assert_true(m.rope == MC_ROPE_LINEAR && m.rope_factor == 4 && m.rope_theta == 500000);
    assert_true(m.window == 128 && m.bos == 1 && m.n_eos == 2 && m.eos[0] == 2 &&
                m.eos[1] == 3);
    assert_true(m.has_sampling && m.temperature == 0.5f && m.top_p == 1);
    assert_ok(load_gguf("qwen2", NULL, 0, embed, 3, &m, &err), err);
    assert_true(m.qkv_bias && !m.tied && !m.rope_neighbours && !m.qk_norm &&
                m.head_dim == 16);
    assert_ok(load_gguf("qwen3", NULL, 0, embed, 2, &m, &err), err);
    assert_true(m.qk_norm && !m.qkv_bias);
}

static void config_gguf_that_is_not_understood_is_refused(void **state)
{
    static const struct kv none = {"x", ABSENT, 0, NULL};
    static const struct {
        struct kv kv;
        const char *says;
    } bad[] = {
        {{"block_count", ABSENT, 0, NULL}, "llama.block_count is missing"},
        {{"block_count", 4, 0, NULL}, "llama.block_count is not an integer within"},
        {{"block_count", 4, 4e9, NULL}, "llama.block_count"},
        {{"block_count", 6, 2, NULL}, "llama.block_count"},
        {{"attention.head_count", 4, 0, NULL}, "llama.attention.head_count"},
        {{"attention.head_count", 4, 6, NULL}, "attention.key_length"},
        {{"attention.head_count_kv", 4, 3, NULL}, "no multiple of 3"},
        {{"attention.head_count_kv", 8, 0, "2"}, "llama.attention.head_count_kv"},
        {{"attention.layer_norm_rms_epsilon", ABSENT, 0, NULL},
         "layer_norm_rms_epsilon is missing"},
        {{"attention.layer_norm_rms_epsilon", 6, NAN, NULL}, "layer_norm_rms_epsilon"},
        {{"attention.value_length", 4, 8, NULL}, "value_length"},
        {{"rope.dimension_count", 4, 8, NULL}, "rope.dimension_count"},
        {{"rope.scaling.type", 8, 0, "longrope"}, "llama.rope.scaling.type"},
        {{"rope.scaling.type", 8, 0, "yarn"}, "original_context_length is missing"},
        {{"rope.scaling.attn_factor", 6, 2, NULL}, "llama.rope.scaling.attn_factor"},
        {{"nextn_predict_layers", 4, 1, NULL}, "llama.nextn_predict_layers"},
        {{"rope.scaling.type", 4, 1, NULL}, "llama.rope.scaling.type"},
        {{"rope.freq_base", 6, -1, NULL}, "llama.rope.freq_base"},
        {{"expert_count", 4, 8, NULL}, "llama.expert_count is not supported"},
        {{"tokenizer.ggml:eos_token_id", 4, 16, NULL}, "eos_token_id 16 is no id"},
        {{"tokenizer.ggml:eos_token_id", 4, 4e9, NULL}, "eos_token_id"},
    };
    struct mc_config m;
    struct mc_err err = {0};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        gguf_refused(&bad[i].kv, 1, bad[i].says);
    gguf_refused(&none, 0, "no token_embd.weight");
    gguf_refused(&none, 4, "attn_output.bias");
    assert_int_equal(load_gguf("mamba", NULL, 0, embed, 1, &m, &err), MC_EUNSUP);
    assert_string_equal(err.param, "general.architecture");
    assert_non_null(strstr(err.text, "mamba"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(config_of_each_family_has_its_fields),
    cmocka_unit_test(config_dtype_has_two_spellings_and_neither_matters),
    cmocka_unit_test(config_rope_has_two_spellings),
    cmocka_unit_test(config_rope_that_is_not_understood_is_refused),
    cmocka_unit_test(config_window_is_for_all_layers_or_none),
    cmocka_unit_test(config_fields_that_change_the_result_are_refused_by_name),
    cmocka_unit_test(config_numbers_have_limits),
    cmocka_unit_test(config_stop_ids_are_the_union_of_both_files),
    cmocka_unit_test(config_sampling_defaults_come_from_generation_config),
    cmocka_unit_test(config_of_a_real_checkpoint_and_its_gguf_agree),
    cmocka_unit_test(config_gguf_is_read),
    cmocka_unit_test(config_gguf_that_is_not_understood_is_refused),
};

MC_TEST_MAIN(tests)
