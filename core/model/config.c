/* config.c - loads a model's configuration and checks what no single field shows.
 *
 * Owns nothing. THREAD: any.
 * Always true of a loaded mc_config: every size is within the limits of config_int.h;
 * query heads are a multiple of kv heads; head_dim is even; every token id is below
 * vocab. */
#include <math.h>
#include <string.h>

#include "core/model/config_int.h"

int mc_config_add_eos(struct mc_config *out, int32_t id, struct mc_err *err)
{
    for (int32_t i = 0; i < out->n_eos; i++)
        if (out->eos[i] == id)
            return 0;
    if (out->n_eos == MC_MAX_EOS)
        return mc_fail(err, MC_ELIMIT, "more than %d stop ids (eos_token_id)",
                       MC_MAX_EOS);
    out->eos[out->n_eos++] = id;
    return 0;
}

/* Groups are of equal size, of two experts at least, and hold enough of them. */
static int check_groups(const struct mc_config *m, struct mc_err *err)
{
    if (m->n_expert % m->n_group != 0 || m->topk_group > m->n_group ||
        (m->n_group > 1 && m->n_expert / m->n_group < 2))
        return mc_fail_param(err, MC_EFORMAT, "n_group",
                             "%d experts can't be chosen from %d of %d groups (n_group, "
                             "topk_group)", m->n_expert, m->topk_group, m->n_group);
    if (m->top_k_expert > m->n_expert / m->n_group * m->topk_group)
        return mc_fail_param(err, MC_EFORMAT, "num_experts_per_tok",
                             "%d experts a token (num_experts_per_tok) are more than %d "
                             "groups hold", m->top_k_expert, m->topk_group);
    return 0;
}

/* What the readers can't see field by field. */
static int check(const struct mc_config *m, struct mc_err *err)
{
    if (m->n_head % m->n_kv_head != 0)
        return mc_fail(err, MC_EFORMAT,
                       "%d attention heads are no multiple of %d kv heads", m->n_head,
                       m->n_kv_head);
    if (mc_rope_dim(m) % 2 != 0)
        return mc_fail(err, MC_EFORMAT, "%s %d is odd",
                       m->attn == MC_ATTN_MLA ? "qk_rope_head_dim" : "head_dim",
                       mc_rope_dim(m));
    if (m->rope == MC_ROPE_LLAMA3 && m->rope_low >= m->rope_high)
        return mc_fail(err, MC_EFORMAT,
                       "low_freq_factor %g is not below high_freq_factor %g", m->rope_low,
                       m->rope_high);
    for (int32_t i = 0; i < m->n_eos; i++)
        if (m->eos[i] < 0 || m->eos[i] >= m->vocab)
            return mc_fail(err, MC_EFORMAT,
                           "eos_token_id %d is no id of a vocabulary of %d", m->eos[i],
                           m->vocab);
    if (m->bos < -1 || m->bos >= m->vocab)
        return mc_fail(err, MC_EFORMAT, "bos_token_id %d is no id of a vocabulary of %d",
                       m->bos, m->vocab);
    return m->n_expert > 0 ? check_groups(m, err) : 0;
}

int mc_config_load(const struct mc_ckpt *c, struct mc_config *out, struct mc_err *err)
{
    int rc;

    memset(out, 0, sizeof *out);
    out->bos = -1;
    out->rope_theta = 10000;
    out->rope_factor = 1;
    out->rope_mul = 1;
    out->lora_norm_eps = 1e-6f;
    out->temperature = 1;
    out->top_p = 1;
    out->repetition_penalty = 1;
    rc = mc_ckpt_kind(c) == MC_CKPT_GGUF ? mc_config_from_gguf(c, out, err)
                                         : mc_config_from_hf(c, out, err);
    if (rc == 0)
        rc = check(out, err);
    if (rc == 0 && out->attn_scale == 0)
        out->attn_scale = 1 / sqrtf((float)mc_q_dim(out));
    return rc;
}
