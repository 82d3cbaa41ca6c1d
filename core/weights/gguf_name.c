/* gguf_name.c - GGUF tensor names in Hugging Face spelling, for llama-like models.
 *
 * Owns nothing. THREAD: any.
 * Always true: no two GGUF names give the same HF name (block numbers have no leading zero). */
#include <stdio.h>
#include <string.h>

#include "core/weights/ckpt_int.h"

struct pair {
    const char *gguf, *hf;
};

static const struct pair whole[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};

static const struct pair in_block[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.gate_proj"}, /* all in one, [E,N,K]: see matrix.c */
    {"ffn_up_exps", "mlp.experts.up_proj"},
    {"ffn_down_exps", "mlp.experts.down_proj"},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
};

/* The pair whose GGUF name is the n bytes at s. */
static const char *hf_of(const struct pair *list, size_t n_list, const char *s, size_t n)
{
    for (size_t i = 0; i < n_list; i++)
        if (strlen(list[i].gguf) == n && memcmp(list[i].gguf, s, n) == 0)
            return list[i].hf;
    return NULL;
}

bool mc_gguf_hf_name(const char *name, char *out, size_t cap)
{
    const char *dot = strrchr(name, '.'), *hf, *rest;
    size_t digits;
    int n;

    if (!dot || (strcmp(dot, ".weight") != 0 && strcmp(dot, ".bias") != 0))
        return false;
    if (strncmp(name, "blk.", 4) != 0) {
        hf = hf_of(whole, sizeof whole / sizeof *whole, name, (size_t)(dot - name));
        n = snprintf(out, cap, "%s%s", hf ? hf : "", dot);
        return hf && n > 0 && (size_t)n < cap;
    }
    digits = strspn(name + 4, "0123456789");
    rest = name + 4 + digits + 1; /* past the dot, if there is one */
    if (digits == 0 || digits > 5 || (digits > 1 && name[4] == '0') || rest[-1] != '.' ||
        rest > dot)
        return false;
    hf = hf_of(in_block, sizeof in_block / sizeof *in_block, rest, (size_t)(dot - rest));
    n = snprintf(out, cap, "model.layers.%.*s.%s%s", (int)digits, name + 4, hf ? hf : "", dot);
    return hf && n > 0 && (size_t)n < cap;
}
