/* config.h - what a checkpoint says of its model, checked and in one shape.
 *
 * Filled from config.json (+ generation_config.json) or GGUF metadata. A field that is not
 * understood and would change the result is refused by name. Plain data: OWNS nothing.
 * THREAD: any. */
#ifndef MC_MODEL_CONFIG_H
#define MC_MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/err.h"

struct mc_ckpt;

/* How frequencies are scaled. A GGUF may also have a tensor rope_freqs.weight of divisors,
 * which is how llama3's scaling is stored there (kind PLAIN): see rope.h. */
enum mc_rope_kind { MC_ROPE_PLAIN, MC_ROPE_LINEAR, MC_ROPE_LLAMA3, MC_ROPE_YARN };

enum { MC_MAX_EOS = 8 };

struct mc_config {
    char family[32];          /* "llama", "qwen2", "qwen3", "mistral", ... */
    int32_t vocab;            /* rows of the embedding matrix */
    int32_t hidden, inter, n_layer;
    int32_t n_head, n_kv_head, head_dim;
    int32_t max_context;      /* positions the model was made for */
    float norm_eps;
    bool tied;                /* lm_head is the embedding matrix */
    bool qkv_bias, qk_norm;
    int32_t window;           /* sliding window, 0: none; j is seen from i: i - j < window */
    double rope_theta;
    enum mc_rope_kind rope;
    double rope_factor, rope_low, rope_high, rope_original;
    bool rope_neighbours;     /* pairs are neighbours (GGUF llama), else halves */
    int32_t bos;              /* -1: none */
    int32_t eos[MC_MAX_EOS], n_eos; /* union of config's and generation_config's, or of a
                                 GGUF's eos, eot, eom; an eos named as text: mc_tok_eos */
    bool has_sampling;        /* generation_config gives defaults */
    float temperature, top_p, min_p, repetition_penalty;
    int32_t top_k;
    int32_t max_new_tokens;   /* generation_config's, 0: none */
};

int mc_config_load(const struct mc_ckpt *c, struct mc_config *out, struct mc_err *err);

#endif
