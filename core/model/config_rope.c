/* config_rope.c - what config.json says of rotary positions.
 *
 * Owns nothing. THREAD: any.
 * rope_parameters (newer) or rope_theta and rope_scaling; the type is rope_type or type.
 */
#include <math.h>
#include <string.h>

#include "core/model/config_json.h"

static void read_factor(struct mc_cfg_reader *in, struct mc_config *out)
{
    if (!mc_cfg_field(in, "factor"))
        mc_cfg_bad(in, MC_EFORMAT, "factor", "(of rope) is missing");
    out->rope_factor = mc_cfg_number(in, "factor", 1, 1, 65536);
}

static void read_llama3(struct mc_cfg_reader *in, struct mc_config *out)
{
    out->rope = MC_ROPE_LLAMA3;
    read_factor(in, out);
    if (!mc_cfg_field(in, "low_freq_factor") || !mc_cfg_field(in, "high_freq_factor"))
        mc_cfg_bad(in, MC_EFORMAT, "low_freq_factor", "or high_freq_factor is missing");
    out->rope_low = mc_cfg_number(in, "low_freq_factor", 1, 1e-6, 1e6);
    out->rope_high = mc_cfg_number(in, "high_freq_factor", 4, 1e-6, 1e6);
    out->rope_original = mc_cfg_integer(in, "original_max_position_embeddings",
                                        out->max_context, 1, MC_LIMIT_CONTEXT);
}

static double mscale(double factor, double by)
{
    return factor <= 1 ? 1 : 0.1 * by * log(factor) + 1;
}

/* cos and sin are scaled by the ratio of mscale and mscale_all_dim when both are given,
 * by the published 0.1 ln f + 1 otherwise. */
static void read_yarn(struct mc_cfg_reader *in, struct mc_config *out)
{
    double by = mc_cfg_number(in, "mscale", 0, 0, 1000);
    double all = mc_cfg_number(in, "mscale_all_dim", 0, 0, 1000), mul;

    out->rope = MC_ROPE_YARN;
    read_factor(in, out);
    out->rope_original = mc_cfg_required(in, "original_max_position_embeddings", 1,
                                         MC_LIMIT_CONTEXT);
    out->beta_fast = mc_cfg_number(in, "beta_fast", 32, 1e-3, 1e6);
    out->beta_slow = mc_cfg_number(in, "beta_slow", 1, 1e-3, 1e6);
    if (!mc_cfg_boolean(in, "truncate", true))
        mc_cfg_bad(in, MC_EUNSUP, "truncate", "false (of rope) is not supported");
    mul = by != 0 && all != 0
              ? mscale(out->rope_factor, by) / mscale(out->rope_factor, all)
              : mscale(out->rope_factor, 1);
    out->rope_mul = (float)mc_cfg_number(in, "attention_factor", mul, 1e-6, 1e6);
}

/* On q.k, with latents: mscale_all_dim squared, whatever scales cos and sin. */
static void scale_scores(struct mc_cfg_reader *in, struct mc_config *out)
{
    double all = mc_cfg_number(in, "mscale_all_dim", 0, 0, 1000);
    double m = all != 0 && out->rope != MC_ROPE_PLAIN ? mscale(out->rope_factor, all) : 1;

    if (out->attn == MC_ATTN_MLA)
        out->attn_scale = (float)(m * m / sqrt(out->nope + out->rope_dim));
}

void mc_cfg_read_rope(struct mc_cfg_reader *r, struct mc_config *out)
{
    const json_t *p = mc_cfg_field(r, "rope_parameters"),
                 *s = mc_cfg_field(r, "rope_scaling"), *v;
    struct mc_cfg_reader in = {.o = p ? p : s, .where = r->where, .err = r->err};
    double theta = mc_cfg_number(r, "rope_theta", 0, 1, 1e15), partial;
    const char *type = "default", *key;

    if (in.o && !json_is_object(in.o))
        mc_cfg_bad(r, MC_EFORMAT, p ? "rope_parameters" : "rope_scaling",
                   "is not an object");
    if (r->rc < 0)
        return;
    json_object_foreach ((json_t *)in.o, key, v)
        if (json_is_object(v))
            mc_cfg_bad(&in, MC_EUNSUP, key,
                       "(rope parameters of one layer type) is not supported");
    out->rope_theta = mc_cfg_number(&in, "rope_theta", theta > 0 ? theta : 10000, 1,
                                    1e15);
    if (theta > 0 && out->rope_theta != theta)
        mc_cfg_bad(&in, MC_EFORMAT, "rope_theta", "has two values");
    v = mc_cfg_field(&in, "rope_type") ? mc_cfg_field(&in, "rope_type")
                                       : mc_cfg_field(&in, "type");
    if (v)
        type = json_string_value(v) ? json_string_value(v) : "(no string)";
    partial = mc_cfg_number(r, "partial_rotary_factor", 1, 0, 1);
    if (mc_cfg_number(&in, "partial_rotary_factor", partial, 0, 1) != 1)
        mc_cfg_bad(&in, MC_EUNSUP, "partial_rotary_factor",
                   "other than 1 is not supported");
    if (strcmp(type, "linear") == 0) {
        out->rope = MC_ROPE_LINEAR;
        read_factor(&in, out);
    } else if (strcmp(type, "llama3") == 0) {
        read_llama3(&in, out);
    } else if (strcmp(type, "yarn") == 0) {
        read_yarn(&in, out);
    } else if (strcmp(type, "default") != 0 && in.rc == 0) {
        in.rc = mc_fail_param(r->err, MC_EUNSUP, "rope_type",
                              "%s: rope_type %s is not one of "
                              "default, linear, llama3, yarn",
                              r->where, type);
    }
    scale_scores(&in, out);
    if (r->rc == 0)
        r->rc = in.rc;
}
