/* gguf_name.c - GGUF tensor names in Hugging Face spelling.
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
    {"attn_q_a", "self_attn.q_a_proj"},
    {"attn_q_a_norm", "self_attn.q_a_layernorm"},
    {"attn_q_b", "self_attn.q_b_proj"},
    {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
    {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
    {"attn_kv_b", "self_attn.kv_b_proj"},
    {"indexer.attn_q_b", "self_attn.indexer.wq_b"},
    {"indexer.attn_k", "self_attn.indexer.wk"},
    {"indexer.k_norm", "self_attn.indexer.k_norm"},
    {"indexer.proj", "self_attn.indexer.weights_proj"},
    {"nextn.eh_proj", "eh_proj"},
    {"nextn.enorm", "enorm"},
    {"nextn.hnorm", "hnorm"},
    {"nextn.shared_head_norm", "shared_head.norm"},
    {"nextn.shared_head_head", "shared_head.head"},
    {"nextn.embed_tokens", "embed_tokens"},
};

/* Those of the shared expert, one of Qwen's, several of DeepSeek's in one. */
static const struct pair shared_qwen[] = {
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
};

static const struct pair shared_deepseek[] = {
    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
    {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
};

/* Whole names in a block: what has no module's suffix in one spelling or the other. The two
 * parts of kv_b, which llama.cpp stores apart, are put together again by matrix.c. */
static const struct pair odd[] = {
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
    {"attn_k_b.weight", "self_attn.kv_b_proj.k_b"},
    {"attn_v_b.weight", "self_attn.kv_b_proj.v_b"},
};

/* The pair whose GGUF name is the n bytes at s. */
static const char *hf_of(const struct pair *list, size_t n_list, const char *s, size_t n)
{
    for (size_t i = 0; i < n_list; i++)
        if (strlen(list[i].gguf) == n && memcmp(list[i].gguf, s, n) == 0)
            return list[i].hf;
    return NULL;
}

#define HF_OF(list, s, n) hf_of(list, sizeof list / sizeof *list, s, n)

/* The rest of a name, behind "blk.N.", whose suffix is at dot. */
static const char *hf_in_block(const char *rest, const char *dot, bool deepseek,
                               const char **suffix)
{
    size_t n = (size_t)(dot - rest);
    const char *hf = HF_OF(odd, rest, strlen(rest));

    *suffix = hf ? "" : dot;
    if (!hf)
        hf = HF_OF(in_block, rest, n);
    if (!hf)
        hf = deepseek ? HF_OF(shared_deepseek, rest, n) : HF_OF(shared_qwen, rest, n);
    return hf;
}

bool mc_gguf_hf_name(const char *name, bool deepseek, char *out, size_t cap)
{
    const char *dot = strrchr(name, '.'), *hf, *rest, *suffix;
    size_t digits;
    int n;

    if (!dot || (strcmp(dot, ".weight") != 0 && strcmp(dot, ".bias") != 0))
        return false;
    if (strncmp(name, "blk.", 4) != 0) {
        hf = HF_OF(whole, name, (size_t)(dot - name));
        n = snprintf(out, cap, "%s%s", hf ? hf : "", dot);
        return hf && n > 0 && (size_t)n < cap;
    }
    digits = strspn(name + 4, "0123456789");
    rest = name + 4 + digits + 1; /* past the dot, if there is one */
    if (digits == 0 || digits > 5 || (digits > 1 && name[4] == '0') || rest[-1] != '.' ||
        rest > dot)
        return false;
    hf = hf_in_block(rest, dot, deepseek, &suffix);
    n = snprintf(out, cap, "model.layers.%.*s.%s%s", (int)digits, name + 4, hf ? hf : "",
                 suffix);
    return hf && n > 0 && (size_t)n < cap;
}
