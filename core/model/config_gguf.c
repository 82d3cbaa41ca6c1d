/* config_gguf.c - a model's configuration from GGUF metadata (llama, qwen2, qwen3 and
 * their experts).
 *
 * Owns nothing. THREAD: any.
 * Sizes that metadata does not state are those of the tensors. The reader is sticky, as in
 * config_hf.c. llama.cpp stores q and k of arch llama with the rows of a head reordered, so
 * that rotary pairs are neighbours; those of qwen are as in the Hugging Face file. */
#include <stdio.h>
#include <string.h>

#include "core/model/config_int.h"

struct reader {
    const struct mc_gguf *g;
    const char *arch;
    struct mc_err *err;
    int rc;
};

/* "llama" + "block_count" -> "llama.block_count" */
static const char *full(const struct reader *r, const char *key, char *out, size_t cap)
{
    snprintf(out, cap, "%s.%s", r->arch, key);
    return out;
}

static double number(struct reader *r, const char *key, double absent, double lo, double hi)
{
    char name[128];
    double x;

    full(r, key, name, sizeof name);
    if (!mc_gguf_has(r->g, name))
        return absent;
    if (mc_gguf_f64(r->g, name, &x) && x >= lo && x <= hi)
        return x;
    if (r->rc == 0)
        r->rc = mc_fail_param(r->err, MC_EFORMAT, name, "%s is not a number within %g..%g", name,
                              lo, hi);
    return absent;
}

static int32_t integer(struct reader *r, const char *key, int32_t absent, int32_t lo,
                       int32_t hi)
{
    char name[128];
    uint64_t x;

    full(r, key, name, sizeof name);
    if (!mc_gguf_has(r->g, name))
        return absent;
    if (mc_gguf_u64(r->g, name, &x) && x >= (uint64_t)lo && x <= (uint64_t)hi)
        return (int32_t)x;
    if (r->rc == 0)
        r->rc = mc_fail_param(r->err, MC_EFORMAT, name, "%s is not an integer within %d..%d",
                              name, lo, hi);
    return absent;
}

static int32_t required(struct reader *r, const char *key, int32_t hi)
{
    char name[128];

    full(r, key, name, sizeof name);
    if (!mc_gguf_has(r->g, name) && r->rc == 0)
        r->rc = mc_fail_param(r->err, MC_EFORMAT, name, "%s is missing", name);
    return integer(r, key, 1, 1, hi);
}

/* A key that must be absent, since it changes what a layer computes. */
static void must_lack(struct reader *r, const char *key)
{
    char name[128];

    full(r, key, name, sizeof name);
    if (mc_gguf_has(r->g, name) && r->rc == 0)
        r->rc = mc_fail_param(r->err, MC_EUNSUP, name, "%s is not supported", name);
}

static void read_sizes(struct reader *r, const struct mc_ckpt *c, struct mc_config *out)
{
    const struct mc_stored *embed = mc_ckpt_find(c, "model.embed_tokens.weight");

    out->hidden = required(r, "embedding_length", MC_LIMIT_WIDTH);
    out->inter = required(r, "feed_forward_length", MC_LIMIT_WIDTH);
    out->n_layer = required(r, "block_count", MC_LIMIT_LAYERS);
    out->n_head = required(r, "attention.head_count", MC_LIMIT_HEADS);
    out->max_context = required(r, "context_length", MC_LIMIT_CONTEXT);
    out->n_kv_head = integer(r, "attention.head_count_kv", out->n_head, 1, MC_LIMIT_HEADS);
    out->head_dim = integer(r, "attention.key_length",
                            out->hidden % out->n_head ? 0 : out->hidden / out->n_head, 1,
                            MC_LIMIT_HEAD_DIM);
    out->norm_eps = (float)number(r, "attention.layer_norm_rms_epsilon", 0, 1e-12, 0.1);
    out->window = integer(r, "attention.sliding_window", 0, 1, MC_LIMIT_CONTEXT);
    if (r->rc < 0)
        return;
    if (out->head_dim < 1 || out->head_dim > MC_LIMIT_HEAD_DIM)
        r->rc = mc_fail(r->err, MC_EFORMAT, "%s.embedding_length %d over %d heads, and no "
                        "attention.key_length", r->arch, out->hidden, out->n_head);
    else if (integer(r, "attention.value_length", out->head_dim, 1, INT32_MAX) != out->head_dim)
        r->rc = mc_fail(r->err, MC_EUNSUP, "%s.attention.value_length is not key_length",
                        r->arch);
    else if (integer(r, "rope.dimension_count", out->head_dim, 1, INT32_MAX) != out->head_dim)
        r->rc = mc_fail(r->err, MC_EUNSUP, "%s.rope.dimension_count is not the head's %d",
                        r->arch, out->head_dim);
    else if (out->norm_eps == 0)
        r->rc = mc_fail(r->err, MC_EFORMAT, "%s.attention.layer_norm_rms_epsilon is missing",
                        r->arch);
    else if (!embed || embed->n_dim != 2 || embed->dim[0] > MC_LIMIT_VOCAB)
        r->rc = mc_fail(r->err, MC_EFORMAT, embed ? "token_embd.weight is no matrix of a sane "
                        "size" : "no token_embd.weight: the file holds no model");
    else
        out->vocab = (int32_t)embed->dim[0];
}

static void read_rope(struct reader *r, struct mc_config *out)
{
    char name[128];
    const char *s;
    size_t n;

    out->rope_theta = number(r, "rope.freq_base", 10000, 1, 1e15);
    out->rope_factor = number(r, "rope.scaling.factor", 1, 1, 65536);
    must_lack(r, "rope.scale_linear"); /* of files before 2024 */
    full(r, "rope.scaling.type", name, sizeof name);
    if (mc_gguf_str(r->g, name, &s, &n) && n == 6 && memcmp(s, "linear", 6) == 0)
        out->rope = MC_ROPE_LINEAR;
    else if (mc_gguf_has(r->g, name) && !(mc_gguf_str(r->g, name, &s, &n) && n == 4 &&
                                          memcmp(s, "none", 4) == 0) && r->rc == 0)
        r->rc = mc_fail_param(r->err, MC_EUNSUP, name, "%s is not one of none, linear", name);
}

/* End of text, of turn, of message: each stops. */
static void read_ids(struct reader *r, struct mc_config *out)
{
    static const char *const stops[] = {"eos_token_id", "eot_token_id", "eom_token_id"};
    struct reader t = {.g = r->g, .arch = "tokenizer.ggml", .err = r->err, .rc = r->rc};

    out->bos = integer(&t, "bos_token_id", -1, 0, MC_LIMIT_VOCAB);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        int32_t id = integer(&t, stops[i], -1, 0, MC_LIMIT_VOCAB);

        if (id >= 0 && t.rc == 0)
            t.rc = mc_config_add_eos(out, id, r->err);
    }
    r->rc = t.rc;
}

static void read_sampling(struct reader *r, struct mc_config *out)
{
    static const char *const keys[] = {"general.sampling.temp", "general.sampling.top_p",
                                       "general.sampling.top_k", "general.sampling.min_p",
                                       "general.sampling.penalty_repeat"};
    struct reader s = {.g = r->g, .arch = "general.sampling", .err = r->err, .rc = r->rc};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        out->has_sampling = out->has_sampling || mc_gguf_has(r->g, keys[i]);
    out->temperature = (float)number(&s, "temp", 1, 0, 100);
    out->top_p = (float)number(&s, "top_p", 1, 0, 1);
    out->min_p = (float)number(&s, "min_p", 0, 0, 1);
    out->repetition_penalty = (float)number(&s, "penalty_repeat", 1, 0.01, 100);
    out->top_k = integer(&s, "top_k", 0, 0, INT32_MAX);
    r->rc = s.rc;
}

/* Sets r->arch, which is family, from general.architecture. */
static int read_architecture(struct reader *r, struct mc_config *out)
{
    static const char *const known[] = {"llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe"};
    const char *s;
    size_t n;

    if (!mc_gguf_str(r->g, "general.architecture", &s, &n))
        return mc_fail(r->err, MC_EFORMAT, "general.architecture is missing");
    for (size_t i = 0; i < n; i++)
        if (s[i] < ' ' || s[i] > '~')
            n = 0;
    snprintf(out->family, sizeof out->family, "%.*s", n < 31 ? (int)n : 31, s);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(out->family, known[i]) == 0) {
            r->arch = out->family;
            return 0;
        }
    return mc_fail_param(r->err, MC_EUNSUP, "general.architecture",
                         "general.architecture %s is not one of llama, qwen2, qwen3, "
                         "qwen2moe, qwen3moe", out->family);
}

/* Every layer has them. llama.cpp makes the weights' sum 1 for qwen3moe only. */
static void read_experts(struct reader *r, struct mc_config *out)
{
    bool shared = strcmp(out->family, "qwen2moe") == 0;

    if (!shared && strcmp(out->family, "qwen3moe") != 0) {
        must_lack(r, "expert_count");
        return;
    }
    out->n_expert = required(r, "expert_count", 4096);
    out->top_k_expert = required(r, "expert_used_count", 4096);
    out->moe_inter = required(r, "expert_feed_forward_length", MC_LIMIT_WIDTH);
    out->n_group = out->topk_group = 1;
    out->router_softmax = true;
    out->router_norm = !shared;
    out->router_factor = 1;
    out->shared_gate = shared;
    if (shared)
        out->shared_inter = required(r, "expert_shared_feed_forward_length", MC_LIMIT_WIDTH);
    must_lack(r, "expert_weights_scale");
    must_lack(r, "expert_gating_func");
    must_lack(r, "leading_dense_block_count");
    if (r->rc == 0 && out->top_k_expert > out->n_expert)
        r->rc = mc_fail(r->err, MC_EFORMAT, "%s.expert_used_count %d of %d experts", r->arch,
                        out->top_k_expert, out->n_expert);
    for (int32_t i = 0; i < out->n_layer; i++)
        out->layer[i] |= MC_LAYER_MOE;
}

int mc_config_from_gguf(const struct mc_ckpt *c, struct mc_config *out, struct mc_err *err)
{
    struct reader r = {.g = mc_ckpt_gguf(c), .err = err};
    int rc;

    rc = read_architecture(&r, out);
    if (rc < 0)
        return rc;
    out->rope_neighbours = strcmp(out->family, "llama") == 0;
    out->qk_norm = strncmp(out->family, "qwen3", 5) == 0;
    out->qkv_bias = mc_ckpt_find(c, "model.layers.0.self_attn.q_proj.bias") != NULL;
    out->tied = !mc_ckpt_find(c, "lm_head.weight");
    read_sizes(&r, c, out);
    read_experts(&r, out);
    must_lack(&r, "attention.scale");
    must_lack(&r, "logit_scale");
    must_lack(&r, "attention.clamp_kqv");
    read_rope(&r, out);
    read_ids(&r, out);
    read_sampling(&r, out);
    if (r.rc == 0 && mc_ckpt_find(c, "model.layers.0.self_attn.o_proj.bias"))
        r.rc = mc_fail(err, MC_EUNSUP, "blk.0.attn_output.bias is not supported");
    return r.rc;
}
