/* config.h - what a checkpoint says of its model, checked and in one shape.
 *
 * Filled from config.json (+ generation_config.json) or GGUF metadata. A field that is
 * not understood and would change the result is refused by name. Plain data: OWNS
 * nothing. THREAD: any. */
#ifndef MC_MODEL_CONFIG_H
#define MC_MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/err.h"

struct mc_ckpt;

/* How frequencies are scaled. A GGUF may also have a tensor rope_freqs.weight of
 * divisors, which is how llama3's scaling is stored there (kind PLAIN): see rope.h. */
enum mc_rope_kind { MC_ROPE_PLAIN, MC_ROPE_LINEAR, MC_ROPE_LLAMA3, MC_ROPE_YARN };

enum mc_attn_kind { MC_ATTN_GQA, MC_ATTN_MLA };

enum { MC_MAX_EOS = 8, MC_MAX_LAYERS = 1024, MC_MAX_MTP = 1 };

/* What a layer is, besides its attention, which is one kind in a model. */
enum {
    MC_LAYER_MOE = 1, /* experts; else one feed-forward block */
    MC_LAYER_INDEX =
        2, /* owns a DSA indexer; else it takes the choice of the one before */
};

struct mc_config {
    char family[32];          /* "llama", "qwen2", "deepseek_v3", ... */
    char prefix[32];          /* before every tensor's name: "" or "language_model." */
    int32_t vocab;            /* rows of the embedding matrix */
    int32_t hidden, inter, n_layer;
    int32_t n_mtp;            /* draft layers, stored behind the n_layer others */
    uint8_t layer[MC_MAX_LAYERS + MC_MAX_MTP]; /* MC_LAYER_... */
    enum mc_attn_kind attn;
    int32_t n_head, n_kv_head, head_dim; /* GQA */
    int32_t q_lora;           /* MLA: rank of the query's latent, 0: none */
    int32_t kv_lora, nope, rope_dim, v_dim;
    int32_t index_heads, index_dim, index_topk; /* DSA; 0: none */
    bool prefill_bf16;  /* the operator's: prompt rows attend to what their own step reads in
                           bf16, whatever pages keep of it (--prefill-kv) */
    int32_t mla_expand; /* the operator's: chunks of so many rows attend to keys and values
                           made anew from the latents; 0: none. Not with an indexer */
    float attn_scale;         /* on q.k */
    int32_t n_expert, top_k_expert, moe_inter;
    int32_t shared_inter;     /* width of the shared expert, 0: none */
    bool shared_gate;         /* its output is weighed by a sigmoid (Qwen2-MoE) */
    bool router_softmax, router_norm; /* scores; their sum made 1 */
    int32_t n_group, topk_group;
    float router_factor;
    int32_t max_context;      /* positions the model was made for */
    float norm_eps, lora_norm_eps; /* the latter of MLA's latents */
    bool tied;                /* lm_head is the embedding matrix */
    bool qkv_bias, qk_norm;
    int32_t window; /* sliding window, 0: none; j is seen from i: i - j < window */
    double rope_theta;
    enum mc_rope_kind rope;
    double rope_factor, rope_low, rope_high, rope_original;
    double beta_fast, beta_slow; /* yarn: turns at which its ramp begins and ends */
    float rope_mul;           /* on cos and sin */
    bool rope_neighbours;     /* pairs are neighbours (MLA, GGUF llama), else halves */
    bool index_neighbours;    /* those of the indexer */
    int32_t bos;              /* -1: none */
    int32_t eos[MC_MAX_EOS], n_eos; /* union of config's and generation_config's, or of a
                                 GGUF's eos, eot, eom; an eos named as text: mc_tok_eos */
    bool kv_fp8;              /* the checkpoint declares an fp8 cache */
    bool has_sampling;        /* generation_config gives defaults */
    float temperature, top_p, min_p, repetition_penalty;
    int32_t top_k;
    int32_t max_new_tokens;   /* generation_config's, 0: none */
};

/* Width of a query head, and of what it leaves for the output projection. */
static inline int32_t mc_q_dim(const struct mc_config *c)
{
    return c->attn == MC_ATTN_MLA ? c->nope + c->rope_dim : c->head_dim;
}

static inline int32_t mc_o_dim(const struct mc_config *c)
{
    return c->attn == MC_ATTN_MLA ? c->v_dim : c->head_dim;
}

/* Dims that are rotated. */
static inline int32_t mc_rope_dim(const struct mc_config *c)
{
    return c->attn == MC_ATTN_MLA ? c->rope_dim : c->head_dim;
}

int mc_config_load(const struct mc_ckpt *c, struct mc_config *out, struct mc_err *err);

#endif
