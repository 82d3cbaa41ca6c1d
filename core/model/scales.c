/* scales.c - the static scales that a checkpoint gives for fp8 keys and values.
 *
 * Owns nothing. THREAD: loading.
 * One number a layer, under either of two names (compressed-tensors', ModelOpt's); all
 * layers have them or none. With latents only the key's counts: values are the latent. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/model/model_int.h"

/* 1: found. 0: neither name is there. */
static int find_scale(struct mc_loader *l, int32_t i, char which, float *out)
{
    const char in_proj[] = {which, '_', 'p', 'r', 'o', 'j', '.', 0};
    const char *const inside[] = {"", in_proj};
    int found = 0;

    for (size_t j = 0; j < sizeof inside / sizeof *inside; j++) {
        char name[128];
        float x = 0;
        int rc;

        snprintf(name, sizeof name, "%smodel.layers.%d.self_attn.%s%c_scale",
                 l->m->cfg.prefix, i, inside[j], which);
        if (!mc_ckpt_find(l->c, name))
            continue;
        rc = mc_ckpt_vector(l->c, name, 1, &x, l->err);
        if (rc < 0)
            return rc;
        if (!(x > 0) || !isfinite(x))
            return mc_fail(l->err, MC_EFORMAT, "%s is %g", name, (double)x);
        if (found && x != *out)
            return mc_fail(l->err, MC_EFORMAT, "%s is %g, but the other name has %g",
                           name, (double)x, (double)*out);
        *out = x;
        found = 1;
    }
    return found;
}

static int load_scales(struct mc_loader *l, char which, float **out)
{
    struct mc_model *m = l->m;
    int32_t n = m->cfg.n_layer, all = n + m->cfg.n_mtp, have = 0;
    float *host = calloc((size_t)all, sizeof *host);
    int rc = 0;

    if (!host)
        return mc_fail(l->err, MC_ENOMEM, "no memory for scales");
    for (int32_t i = 0; i < all && rc >= 0; i++) {
        host[i] = 1; /* a draft layer may lack it */
        rc = find_scale(l, i, which, &host[i]);
        have += rc > 0 && i < n;
    }
    if (rc >= 0 && have != 0 && have != n)
        rc = mc_fail(l->err, MC_EFORMAT, "%c_scale is there for %d of %d layers", which,
                     have, n);
    if (rc >= 0 && have == n) {
        *out = mc_mem_put(&m->mem, host, (size_t)all * sizeof *host);
        rc = *out ? 0 : mc_fail(l->err, MC_ENOMEM, "no device memory for scales");
    }
    free(host);
    return rc < 0 ? rc : 0;
}

int mc_load_scales(struct mc_loader *l)
{
    int rc = load_scales(l, 'k', &l->m->k_scale);

    if (rc == 0 && l->m->cfg.attn == MC_ATTN_GQA)
        rc = load_scales(l, 'v', &l->m->v_scale);
    if (rc == 0 && l->m->cfg.attn == MC_ATTN_GQA && !l->m->k_scale != !l->m->v_scale)
        rc = mc_fail(l->err, MC_EFORMAT,
                     "k_scale without v_scale, or the other way round");
    return rc;
}
