/* config_gguf.c - a model's configuration from GGUF metadata (llama, qwen2, qwen3 and
 * their experts, deepseek2, glm-dsa).
 *
 * Owns nothing. THREAD: any.
 * Sizes that metadata does not state are those of the tensors. The reader is sticky, as
 * in config_hf.c. llama.cpp stores q and k of arch llama with the rows of a head
 * reordered, so that rotary pairs are neighbours; those of qwen are as in the Hugging
 * Face file, and so are those of MLA, whose pairs are neighbours there. */
#include "core/model/config_gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- keys -------------------------------------------------------------------------- */

const char *mc_gguf_key(const struct mc_gguf_reader *r, const char *key,
                        char out[MC_GGUF_KEY])
{
    snprintf(out, MC_GGUF_KEY, "%s.%s", r->arch, key);
    return out;
}

bool mc_gguf_says(const struct mc_gguf_reader *r, const char *key)
{
    char name[MC_GGUF_KEY];

    return mc_gguf_has(r->g, mc_gguf_key(r, key, name));
}

void mc_gguf_bad(struct mc_gguf_reader *r, int code, const char *key, const char *what)
{
    char name[MC_GGUF_KEY];

    mc_gguf_key(r, key, name);
    if (r->rc == 0)
        r->rc = mc_fail_param(r->err, code, name, "%s %s", name, what);
}

double mc_gguf_number(struct mc_gguf_reader *r, const char *key, double absent, double lo,
                      double hi)
{
    char name[MC_GGUF_KEY];
    double x;

    mc_gguf_key(r, key, name);
    if (!mc_gguf_has(r->g, name))
        return absent;
    if (mc_gguf_f64(r->g, name, &x) && x >= lo && x <= hi)
        return x;
    if (r->rc == 0)
        r->rc = mc_fail_param(r->err, MC_EFORMAT, name,
                              "%s is not a number within %g..%g", name, lo, hi);
    return absent;
}

int32_t mc_gguf_integer(struct mc_gguf_reader *r, const char *key, int32_t absent,
                        int32_t lo, int32_t hi)
{
    char name[MC_GGUF_KEY];
    uint64_t x;

    mc_gguf_key(r, key, name);
    if (!mc_gguf_has(r->g, name))
        return absent;
    if (mc_gguf_u64(r->g, name, &x) && x >= (uint64_t)lo && x <= (uint64_t)hi)
        return (int32_t)x;
    if (r->rc == 0)
        r->rc = mc_fail_param(r->err, MC_EFORMAT, name,
                              "%s is not an integer within %d..%d", name, lo, hi);
    return absent;
}

int32_t mc_gguf_required(struct mc_gguf_reader *r, const char *key, int32_t hi)
{
    if (!mc_gguf_says(r, key))
        mc_gguf_bad(r, MC_EFORMAT, key, "is missing");
    return mc_gguf_integer(r, key, 1, 1, hi);
}

void mc_gguf_must_lack(struct mc_gguf_reader *r, const char *key)
{
    if (mc_gguf_says(r, key))
        mc_gguf_bad(r, MC_EUNSUP, key, "is not supported");
}

/* ---- architectures ----------------------------------------------------------------- */

enum {
    A_NEIGHBOURS = 1, /* q and k are reordered */
    A_QK_NORM = 2,
    A_EXPERTS = 4, /* as Qwen's are */
    A_SHARED = 8,
    A_LATENT = 16, /* MLA, and experts as DeepSeek's are */
    A_INDEX = 32,
};

static const struct arch {
    const char *name;
    unsigned has;
} archs[] = {
    {"llama", A_NEIGHBOURS},
    {"qwen2", 0},
    {"qwen3", A_QK_NORM},
    {"qwen2moe", A_EXPERTS | A_SHARED},
    {"qwen3moe", A_QK_NORM | A_EXPERTS},
    {"deepseek2", A_LATENT},
    {"glm-dsa", A_LATENT | A_INDEX},
};

/* Width of a head; those of latents are elsewhere. */
static void read_heads(struct mc_gguf_reader *r, struct mc_config *out)
{
    int32_t even = out->hidden % out->n_head ? 0 : out->hidden / out->n_head, d;

    out->n_kv_head = mc_gguf_integer(r, "attention.head_count_kv", out->n_head, 1,
                                     MC_LIMIT_HEADS);
    d = mc_gguf_integer(r, "attention.key_length", even, 1, MC_LIMIT_HEAD_DIM);
    out->head_dim = d;
    if (d < 1 || d > MC_LIMIT_HEAD_DIM)
        mc_gguf_bad(r, MC_EFORMAT, "attention.key_length",
                    "is missing, and embedding_length is no multiple of the heads");
    if (mc_gguf_integer(r, "attention.value_length", d, 1, INT32_MAX) != d)
        mc_gguf_bad(r, MC_EUNSUP, "attention.value_length", "is not key_length");
    if (mc_gguf_integer(r, "rope.dimension_count", d, 1, INT32_MAX) != d)
        mc_gguf_bad(r, MC_EUNSUP, "rope.dimension_count", "is not the head's width");
}

static void read_sizes(struct mc_gguf_reader *r, struct mc_config *out)
{
    const struct mc_stored *embed = mc_ckpt_find(r->c, "model.embed_tokens.weight");

    out->hidden = mc_gguf_required(r, "embedding_length", MC_LIMIT_WIDTH);
    out->inter = mc_gguf_required(r, "feed_forward_length", MC_LIMIT_WIDTH);
    out->n_layer = mc_gguf_required(r, "block_count", MC_LIMIT_LAYERS);
    out->n_head = mc_gguf_required(r, "attention.head_count", MC_LIMIT_HEADS);
    out->max_context = mc_gguf_required(r, "context_length", MC_LIMIT_CONTEXT);
    if (!mc_gguf_says(r, "attention.layer_norm_rms_epsilon"))
        mc_gguf_bad(r, MC_EFORMAT, "attention.layer_norm_rms_epsilon", "is missing");
    out->norm_eps = (float)mc_gguf_number(r, "attention.layer_norm_rms_epsilon", 1e-6,
                                          1e-12, 0.1);
    out->window = mc_gguf_integer(r, "attention.sliding_window", 0, 1, MC_LIMIT_CONTEXT);
    if (r->rc < 0)
        return;
    if (!embed || embed->n_dim != 2 || embed->dim[0] > MC_LIMIT_VOCAB)
        r->rc = mc_fail(r->err, MC_EFORMAT,
                        embed ? "token_embd.weight is no matrix of a sane size"
                              : "no token_embd.weight: the file holds no model");
    else
        out->vocab = (int32_t)embed->dim[0];
}

/* The blocks of an architecture: drafts first, since they are counted as layers. */
static void read_blocks(struct mc_gguf_reader *r, unsigned has, struct mc_config *out)
{
    if (has & A_LATENT) {
        mc_gguf_read_drafts(r, out);
        mc_gguf_read_latents(r, out);
    } else {
        mc_gguf_must_lack(r, "nextn_predict_layers");
        read_heads(r, out);
    }
    if (has & A_INDEX)
        mc_gguf_read_indexers(r, out);
    if (has & A_LATENT)
        mc_gguf_read_experts_deepseek(r, out);
    else if (has & A_EXPERTS)
        mc_gguf_read_experts_qwen(r, has & A_SHARED, out);
    else
        mc_gguf_must_lack(r, "expert_count");
    if (out->n_mtp > 0)
        out->layer[out->n_layer] = MC_LAYER_MOE | (has & A_INDEX ? MC_LAYER_INDEX : 0);
}

/* A file holds mscale_all_dim times 0.1, and never mscale: they are the same where both
 * are given, and leave cos and sin as they are. */
static void read_yarn(struct mc_gguf_reader *r, struct mc_config *out)
{
    double all = mc_gguf_number(r, "rope.scaling.yarn_log_multiplier", 0, 0, 100), m;

    out->rope = MC_ROPE_YARN;
    out->rope_original = mc_gguf_required(r, "rope.scaling.original_context_length",
                                          MC_LIMIT_CONTEXT);
    out->beta_fast = mc_gguf_number(r, "rope.scaling.yarn_beta_fast", 32, 1e-3, 1e6);
    out->beta_slow = mc_gguf_number(r, "rope.scaling.yarn_beta_slow", 1, 1e-3, 1e6);
    if (mc_gguf_number(r, "rope.scaling.yarn_ext_factor", 1, -1, 1e6) != 1)
        mc_gguf_bad(r, MC_EUNSUP, "rope.scaling.yarn_ext_factor", "is not 1");
    m = (all != 0 ? all : 0.1) * log(out->rope_factor) + 1;
    if (all == 0)
        out->rope_mul = (float)m;
    else if (out->attn == MC_ATTN_MLA)
        out->attn_scale = (float)(m * m / sqrt(out->nope + out->rope_dim));
}

static bool is_word(const char *s, size_t n, const char *word)
{
    return n == strlen(word) && memcmp(s, word, n) == 0;
}

static void read_rope(struct mc_gguf_reader *r, struct mc_config *out)
{
    char name[MC_GGUF_KEY];
    const char *s = "none";
    size_t n = strlen(s);

    out->rope_theta = mc_gguf_number(r, "rope.freq_base", 10000, 1, 1e15);
    out->rope_factor = mc_gguf_number(r, "rope.scaling.factor", 1, 1, 65536);
    mc_gguf_must_lack(r, "rope.scale_linear"); /* of files before 2024 */
    if (mc_gguf_number(r, "rope.scaling.attn_factor", 1, -1e6, 1e6) != 1)
        mc_gguf_bad(r, MC_EUNSUP, "rope.scaling.attn_factor", "is not 1");
    mc_gguf_key(r, "rope.scaling.type", name);
    if (mc_gguf_has(r->g, name) && !mc_gguf_str(r->g, name, &s, &n))
        s = "";
    if (is_word(s, n, "linear"))
        out->rope = MC_ROPE_LINEAR;
    else if (is_word(s, n, "yarn"))
        read_yarn(r, out);
    else if (!is_word(s, n, "none"))
        mc_gguf_bad(r, MC_EUNSUP, "rope.scaling.type",
                    "is not one of none, linear, yarn");
}

/* End of text, of turn, of message: each stops. */
static void read_ids(struct mc_gguf_reader *r, struct mc_config *out)
{
    static const char *const stops[] = {"eos_token_id", "eot_token_id", "eom_token_id"};
    struct mc_gguf_reader t = {.g = r->g,
                               .arch = "tokenizer.ggml",
                               .err = r->err,
                               .rc = r->rc};

    out->bos = mc_gguf_integer(&t, "bos_token_id", -1, 0, MC_LIMIT_VOCAB);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        int32_t id = mc_gguf_integer(&t, stops[i], -1, 0, MC_LIMIT_VOCAB);

        if (id >= 0 && t.rc == 0)
            t.rc = mc_config_add_eos(out, id, r->err);
    }
    r->rc = t.rc;
}

static void read_sampling(struct mc_gguf_reader *r, struct mc_config *out)
{
    static const char *const keys[] = {"general.sampling.temp", "general.sampling.top_p",
                                       "general.sampling.top_k", "general.sampling.min_p",
                                       "general.sampling.penalty_repeat"};
    struct mc_gguf_reader s = {.g = r->g,
                               .arch = "general.sampling",
                               .err = r->err,
                               .rc = r->rc};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        out->has_sampling = out->has_sampling || mc_gguf_has(r->g, keys[i]);
    out->temperature = (float)mc_gguf_number(&s, "temp", 1, 0, 100);
    out->top_p = (float)mc_gguf_number(&s, "top_p", 1, 0, 1);
    out->min_p = (float)mc_gguf_number(&s, "min_p", 0, 0, 1);
    out->repetition_penalty = (float)mc_gguf_number(&s, "penalty_repeat", 1, 0.01, 100);
    out->top_k = mc_gguf_integer(&s, "top_k", 0, 0, INT32_MAX);
    r->rc = s.rc;
}

/* Sets r->arch, which is family, from general.architecture. */
static const struct arch *find_arch(struct mc_gguf_reader *r, struct mc_config *out)
{
    const char *s;
    size_t n;

    if (!mc_gguf_str(r->g, "general.architecture", &s, &n)) {
        r->rc = mc_fail(r->err, MC_EFORMAT, "general.architecture is missing");
        return NULL;
    }
    for (size_t i = 0; i < n; i++)
        if (s[i] < ' ' || s[i] > '~')
            n = 0;
    snprintf(out->family, sizeof out->family, "%.*s", n < 31 ? (int)n : 31, s);
    r->arch = out->family;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strcmp(out->family, archs[i].name) == 0)
            return &archs[i];
    r->rc = mc_fail_param(r->err, MC_EUNSUP, "general.architecture",
                          "general.architecture %s is not one of llama, qwen2, qwen3, "
                          "qwen2moe, qwen3moe, deepseek2, glm-dsa", out->family);
    return NULL;
}

int mc_config_from_gguf(const struct mc_ckpt *c, struct mc_config *out,
                        struct mc_err *err)
{
    struct mc_gguf_reader r = {.g = mc_ckpt_gguf(c), .c = c, .err = err};
    const struct arch *a = find_arch(&r, out);

    if (!a)
        return r.rc;
    out->rope_neighbours = a->has & A_NEIGHBOURS;
    out->qk_norm = a->has & A_QK_NORM;
    out->qkv_bias = mc_ckpt_find(c, "model.layers.0.self_attn.q_proj.bias") != NULL;
    out->tied = !mc_ckpt_find(c, "lm_head.weight");
    read_sizes(&r, out);
    if (r.rc == 0)
        read_blocks(&r, a->has, out);
    mc_gguf_must_lack(&r, "attention.scale");
    mc_gguf_must_lack(&r, "logit_scale");
    mc_gguf_must_lack(&r, "attention.clamp_kqv");
    if (r.rc == 0)
        read_rope(&r, out);
    read_ids(&r, out);
    read_sampling(&r, out);
    if (r.rc == 0 && mc_ckpt_find(c, "model.layers.0.self_attn.o_proj.bias"))
        r.rc = mc_fail(err, MC_EUNSUP, "blk.0.attn_output.bias is not supported");
    return r.rc;
}
