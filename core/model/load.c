/* load.c - what an operator names: a backend, a layout of pages, a checkpoint.
 *
 * Owns nothing. THREAD: any. */
#include "core/model/load.h"

#include <string.h>

static const char *const layout_names[MC_N_KV] = {
    [MC_KV_F32] = "f32",
    [MC_KV_BF16] = "bf16",
    [MC_KV_FP8] = "fp8",
    [MC_KV_FP8_PLAIN] = "fp8-plain",
    [MC_KV_FP8_656] = "fp8-656",
};

int mc_backend_open(const char *name, const struct mc_backend_opts *o,
                    struct mc_backend **out, struct mc_err *err)
{
    const char *why = NULL;

    if (strcmp(name, "cpu") == 0)
        *out = mc_cpu_open(o, &why);
    else if (strcmp(name, "ref") == 0)
        *out = mc_ref_open(o, &why);
    else if (strcmp(name, "cuda") == 0)
        *out = mc_cuda_open(o, &why);
    else
        return mc_fail_param(err, MC_EUNSUP, "backend",
                             "--backend %s: there are cpu, ref and cuda", name);
    if (!*out)
        return mc_fail_param(err, MC_EUNSUP, "backend", "--backend %s: %s", name,
                             why ? why : "can't be opened");
    return 0;
}

int mc_kv_layout_of(const struct mc_config *c, const char *name, enum mc_kv_layout *out,
                    struct mc_err *err)
{
    bool mla = c->attn == MC_ATTN_MLA;
    int found = -1;

    if (strcmp(name, "auto") == 0)
        name = c->kv_fp8 ? "fp8" : "bf16";
    for (int i = 0; i < MC_N_KV; i++)
        if (strcmp(layout_names[i], name) == 0)
            found = i;
    if (mla && found == MC_KV_FP8)
        found = MC_KV_FP8_656;
    if (found < 0 || (!mla && found >= MC_N_GQA_KV))
        return mc_fail_param(err, MC_EUNSUP, "kv",
                             "--kv %s: this model (%s) takes auto, f32, "
                             "bf16, fp8%s",
                             name, c->family, mla ? ", fp8-plain, fp8-656" : "");
    *out = (enum mc_kv_layout)found;
    return 0;
}

const char *mc_kv_layout_name(enum mc_kv_layout layout)
{
    return layout_names[layout];
}
