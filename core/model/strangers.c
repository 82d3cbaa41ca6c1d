/* strangers.c - the tensors of a checkpoint that a model does not load: why, or an error.
 *
 * Owns nothing. THREAD: any.
 * Names are held against tensors.h's list, layer by layer. Some are skipped by name. What
 * would change a result if it were heeded, and what the config denies, is refused. */
#include "core/model/strangers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "core/model/tensors.h"
#include "core/weights/weights.h"

struct layer_specs {
    int32_t layer; /* whose list it is; INT32_MIN: none yet */
    int n;
    struct mc_tensor_spec spec[MC_MAX_SPECS];
};

static bool starts(const char *s, const char *with)
{
    return strncmp(s, with, strlen(with)) == 0;
}

/* What follows the spec's name in s, any expert's; NULL when it is another name. */
static const char *after(const struct mc_tensor_spec *t, const char *s)
{
    const char *mark = strchr(t->name, '#');
    size_t head = mark ? (size_t)(mark - t->name) : strlen(t->name), digits;

    if (strncmp(s, t->name, head) != 0)
        return NULL;
    s += head;
    if (!mark)
        return s;
    if (starts(s, mark + 2)) /* a GGUF's, all in one */
        return s + strlen(mark + 2);
    digits = strspn(s, "0123456789");
    if (digits == 0 || digits > 5 || atoi(s) >= t->count || !starts(s + digits, mark + 1))
        return NULL;
    return s + digits + strlen(mark + 1);
}

/* A part of a matrix: its one suffix. Biases are vectors of their own. */
static bool is_part(const char *rest)
{
    return rest[0] == '.' && rest[1] && !strchr(rest + 1, '.') &&
           strcmp(rest, ".bias") != 0;
}

static bool known(const struct layer_specs *l, const char *name)
{
    for (int i = 0; i < l->n; i++) {
        const char *rest = after(&l->spec[i], name);

        if (rest && (l->spec[i].vector ? *rest == 0 : is_part(rest)))
            return true;
    }
    return false;
}

/* A bias of a matrix that has none in this model. */
static bool is_bias(const struct layer_specs *l, const char *name)
{
    for (int i = 0; i < l->n; i++) {
        const char *rest = l->spec[i].vector ? NULL : after(&l->spec[i], name);

        if (rest && strcmp(rest, ".bias") == 0)
            return true;
    }
    return false;
}

/* "model.layers.N.": N and what follows; -1 for what is in no layer. */
static int32_t layer_of(const char *name, const char **rest)
{
    size_t digits;

    *rest = name;
    if (!starts(name, "model.layers."))
        return -1;
    digits = strspn(name + 13, "0123456789");
    if (digits == 0 || digits > 6 || name[13 + digits] != '.')
        return -1;
    *rest = name + 13 + digits + 1;
    return atoi(name + 13);
}

static bool is_image(const char *name)
{
    static const char *const towers[] = {"vision_tower.", "mm_projector.",
                                         "multi_modal_projector.", "visual."};

    for (size_t i = 0; i < sizeof towers / sizeof *towers; i++)
        if (starts(name, towers[i]))
            return true;
    return false;
}

/* Tables that are made from the config, scales that scales.c reads. */
static bool is_known_elsewhere(const char *rest)
{
    static const char *const scales[] = {
        "self_attn.k_scale", "self_attn.v_scale", "self_attn.q_scale",
        "self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"};

    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        if (strcmp(rest, scales[i]) == 0)
            return true;
    return strstr(rest, "rotary_emb.") || strcmp(rest, "rope_freqs.weight") == 0;
}

/* A layer behind those that the config counts: of drafts, which may be left out, or of
 * the model. */
static int judge_beyond(const struct mc_ckpt *c, const struct mc_config *cfg,
                        int32_t layer, const char *name, struct mc_strangers *out,
                        struct mc_err *err)
{
    struct mc_disk disk;
    char mix[96];

    snprintf(mix, sizeof mix, "%smodel.layers.%d.eh_proj", cfg->prefix, layer);
    if (mc_ckpt_matrix(c, mix, &disk, NULL) == MC_ENOENT)
        return mc_fail(err, MC_EFORMAT,
                       "%.110s is there, but the config gives this %s %d layers "
                       "(num_hidden_layers), and it is none of drafts",
                       name, cfg->family, cfg->n_layer);
    out->drafts++;
    return 0;
}

static int judge(const struct mc_ckpt *c, const struct mc_config *cfg,
                 struct layer_specs *l, const char *name, struct mc_strangers *out,
                 struct mc_err *err)
{
    const char *rest;
    int32_t layer;

    if (is_image(name) || !starts(name, cfg->prefix)) {
        out->images++;
        return 0;
    }
    layer = layer_of(name + strlen(cfg->prefix), &rest);
    if (layer >= cfg->n_layer + cfg->n_mtp)
        return judge_beyond(c, cfg, layer, name, out, err);
    if (layer != l->layer) {
        l->layer = layer;
        l->n = mc_tensors_of(cfg, layer, l->spec);
    }
    if (known(l, name + strlen(cfg->prefix)) || is_known_elsewhere(rest))
        return 0;
    if (is_bias(l, name + strlen(cfg->prefix)))
        return mc_fail(err, MC_EFORMAT,
                       "%.110s is there, but config.json gives this matrix of "
                       "a %s no bias",
                       name, cfg->family);
    if (layer >= 0 && starts(rest, "self_attn.indexer."))
        return mc_fail(err, MC_EFORMAT,
                       "%.110s is there, but indexer_types says that layer %d "
                       "owns no indexer",
                       name, layer);
    if (starts(rest, "lm_head.") ||
        (layer >= cfg->n_layer &&
         (starts(rest, "embed_tokens.") || starts(rest, "shared_head.head.")))) {
        out->copies++;
        return 0;
    }
    if (out->unknown++ == 0)
        snprintf(out->first, sizeof out->first, "%s", name);
    return 0;
}

/* A method is declared: some matrix has to be stored by it. */
static int check_declared(const struct mc_ckpt *c, const struct mc_config *cfg,
                          struct mc_err *err)
{
    const json_t *o = mc_ckpt_config(c), *q = json_object_get(o, "quantization_config");
    const char *method;
    int32_t stored = 0;

    if (!q)
        q = json_object_get(json_object_get(o, "text_config"), "quantization_config");
    method = json_string_value(json_object_get(q, "quant_method"));
    for (int32_t i = 0; i < mc_ckpt_n(c); i++) {
        const char *t = mc_ckpt_at(c, i)->dtype;

        stored += strcmp(t, "F8_E4M3") == 0 || strcmp(t, "U8") == 0 ||
                  strcmp(t, "I32") == 0;
    }
    if (method && stored == 0)
        return mc_fail(err, MC_EFORMAT,
                       "quantization_config says %s, but no tensor of this %s "
                       "is stored so: all are plain floats",
                       method, cfg->family);
    return 0;
}

int mc_strangers_find(const struct mc_ckpt *c, const struct mc_config *cfg,
                      struct mc_strangers *out, struct mc_err *err)
{
    struct layer_specs l = {.layer = INT32_MIN};
    int rc = check_declared(c, cfg, err);

    *out = (struct mc_strangers){0};
    for (int32_t i = 0; i < mc_ckpt_n(c) && rc == 0; i++)
        rc = judge(c, cfg, &l, mc_ckpt_hf_name(c, i), out, err);
    return rc;
}

int mc_strangers_check(const struct mc_ckpt *c, const struct mc_config *cfg,
                       struct mc_err *err)
{
    struct mc_strangers s;
    int rc = mc_strangers_find(c, cfg, &s, err);

    if (rc < 0)
        return rc;
    if (s.images > 0)
        mc_info("model", "%d tensors of images are not loaded: text alone is served",
                s.images);
    if (s.drafts > 0)
        mc_info("model", "%d tensors of draft layers are not loaded", s.drafts);
    if (s.copies > 0)
        mc_info("model", "%d copies of the embedding or the head are not loaded",
                s.copies);
    if (s.unknown > 0)
        mc_warn("model",
                "%d tensors have no part in a %s and are not loaded, the first is %s",
                s.unknown, cfg->family, s.first);
    return 0;
}
