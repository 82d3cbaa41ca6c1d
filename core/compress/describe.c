/* describe.c - the quantization_config of the result.
 *
 * Owns nothing. THREAD: any. Matrices in fp8 blocks alone are described as DeepSeek does
 * (quant_method fp8, weight_block_size); anything else as compressed-tensors does: a
 * group a format, whose targets are patterns over module names, numbers of layers and
 * experts being \d+. Where one pattern would cover two formats the modules are listed by
 * name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/compress/compress_int.h"

enum { PATTERN_CAP = 640 };

/* "model.layers.3.mlp.gate" -> "re:.*model\.layers\.\d+\.mlp\.gate$"; prefixes differ
 * between the classes that load a checkpoint, so what stands before is free. */
static void pattern_of(const char *module, char *out)
{
    char *o = out + sprintf(out, "re:.*");

    for (const char *s = module; *s && o < out + PATTERN_CAP - 8;) {
        if (*s >= '0' && *s <= '9' && s > module && s[-1] == '.') {
            const char *end = s + strspn(s, "0123456789");

            if (*end == '.' || *end == 0) {
                o += sprintf(o, "\\d+");
                s = end;
                continue;
            }
        }
        if (*s == '.')
            *o++ = '\\';
        *o++ = *s++;
    }
    strcpy(o, "$");
}

/* What a matrix is stored as in the result: an index of its group, or "not quantised". */
struct form {
    uint16_t fmt;
    int32_t group;
    bool row, whole, zero; /* e4m3: a scale a row, one in all; int4: with zero points */
};

static struct form form_of(const struct mc_item *it)
{
    const struct mc_disk *d = &it->disk;

    if (!it->to.keep)
        return (struct form){.fmt = it->to.fmt, .group = it->to.group};
    return (struct form){.fmt = d->fmt,
                         .group = d->group,
                         .row = d->fmt == MC_D_E4M3 && d->block_n == 1,
                         .whole = d->fmt == MC_D_E4M3 && d->block_n >= d->n &&
                                  d->block_k >= d->k && d->block_n != 128,
                         .zero = d->zero != NULL};
}

static bool same(struct form a, struct form b)
{
    return a.fmt == b.fmt && a.group == b.group && a.row == b.row && a.whole == b.whole &&
           a.zero == b.zero;
}

static bool quantised(struct form f)
{
    return f.fmt == MC_D_E4M3 || f.fmt == MC_D_INT4 || f.fmt == MC_D_NVFP4;
}

/* The patterns of all modules: a pattern -> the first module's form, or null when another
 * module of it has another. */
struct patterns {
    json_t *by; /* pattern -> index of the first item, or -1 */
};

static void note(const struct mc_plan_of *pl, struct patterns *p, int32_t i)
{
    char text[PATTERN_CAP];
    json_t *first;

    pattern_of(pl->item[i].module, text);
    first = json_object_get(p->by, text);
    if (!first)
        json_object_set_new(p->by, text, json_integer(i));
    else if (json_integer_value(first) >= 0 &&
             !same(form_of(&pl->item[json_integer_value(first)]), form_of(&pl->item[i])))
        json_object_set_new(p->by, text, json_integer(-1));
}

/* Adds to list what names item i: its pattern when it speaks for all, once; else itself.
 */
static void add_target(const struct mc_plan_of *pl, const struct patterns *p, int32_t i,
                       json_t *list)
{
    char text[PATTERN_CAP];
    json_int_t first;

    pattern_of(pl->item[i].module, text);
    first = json_integer_value(json_object_get(p->by, text));
    if (first < 0)
        json_array_append_new(list, json_string(pl->item[i].module));
    else if (first == i)
        json_array_append_new(list, json_string(text));
}

static json_t *targets(const struct mc_plan_of *pl, const struct patterns *p,
                       struct form f)
{
    json_t *list = json_array();

    for (int32_t i = 0; i < pl->n_item; i++)
        if (same(form_of(&pl->item[i]), f))
            add_target(pl, p, i, list);
    return list;
}

/* One of config_groups: how its weights are, and its inputs where a format implies it. */
static json_t *group(const struct mc_plan_of *pl, const struct patterns *p, struct form f)
{
    json_t *weights, *inputs = json_null();
    const char *format = "float-quantized";

    if (f.fmt == MC_D_INT4) {
        format = "pack-quantized";
        weights = json_pack("{s:i, s:s, s:b, s:s, s:i}", "num_bits", 4, "type", "int",
                            "symmetric", !f.zero, "strategy", "group", "group_size",
                            f.group);
    } else if (f.fmt == MC_D_NVFP4) {
        format = "nvfp4-pack-quantized";
        weights = json_pack("{s:i, s:s, s:b, s:s, s:i}", "num_bits", 4, "type", "float",
                            "symmetric", 1, "strategy", "tensor_group", "group_size", 16);
    } else {
        weights = json_pack("{s:i, s:s, s:b, s:s}", "num_bits", 8, "type", "float",
                            "symmetric", 1, "strategy",
                            f.row ? "channel" : f.whole ? "tensor" : "block");
        if (!f.row && !f.whole) {
            json_object_set_new(weights, "block_structure", json_pack("[i,i]", 128, 128));
            inputs = json_pack("{s:i, s:s, s:b, s:s, s:i, s:b}", "num_bits", 8, "type",
                               "float", "symmetric", 1, "strategy", "group", "group_size",
                               128, "dynamic", 1);
        }
    }
    json_object_set_new(weights, "dynamic", json_false());
    return json_pack("{s:o, s:o, s:o, s:n, s:s}", "targets", targets(pl, p, f), "weights",
                     weights, "input_activations", inputs, "output_activations", "format",
                     format);
}

static json_t *not_quantised(const struct mc_plan_of *pl, const struct patterns *p)
{
    json_t *list = json_array();

    for (int32_t i = 0; i < pl->n_item; i++)
        if (!quantised(form_of(&pl->item[i])))
            add_target(pl, p, i, list);
    return list;
}

static json_t *compressed_tensors(const struct mc_plan_of *pl, const struct patterns *p)
{
    json_t *groups = json_object();
    const char *format = "mixed-precision";
    struct form seen[16];
    int n = 0;
    char name[32];

    for (int32_t i = 0; i < pl->n_item; i++) {
        struct form f = form_of(&pl->item[i]);
        int j = 0;

        while (j < n && !same(seen[j], f))
            j++;
        if (j < n || n == 16 || !quantised(f))
            continue;
        seen[n++] = f;
        snprintf(name, sizeof name, "group_%d", n - 1);
        json_object_set_new(groups, name, group(pl, p, f));
    }
    if (n == 1)
        format = json_string_value(
            json_object_get(json_object_get(groups, "group_0"), "format"));
    return json_pack("{s:s, s:s, s:s, s:o, s:o}", "quant_method", "compressed-tensors",
                     "format", format, "quantization_status", "compressed",
                     "config_groups", groups, "ignore", not_quantised(pl, p));
}

/* DeepSeek's own: modules_to_not_convert is a list of names. */
static json_t *fp8(const struct mc_plan_of *pl)
{
    json_t *keep = json_array();

    for (int32_t i = 0; i < pl->n_item; i++)
        if (!quantised(form_of(&pl->item[i])))
            json_array_append_new(keep, json_string(pl->item[i].module));
    return json_pack("{s:s, s:s, s:s, s:[i,i], s:o}", "quant_method", "fp8", "fmt",
                     "e4m3", "activation_scheme", "dynamic", "weight_block_size", 128,
                     128, "modules_to_not_convert", keep);
}

json_t *mc_describe(const struct mc_plan_of *pl, struct mc_err *err)
{
    json_t *config = mc_ckpt_kind(pl->p->src) == MC_CKPT_GGUF
                         ? mc_from_gguf_config(&pl->cfg)
                         : json_deep_copy(mc_ckpt_config(pl->p->src));
    json_t *text, *old, *kv, *q = NULL;
    struct patterns p = {json_object()};
    bool any = false;

    if (!config || !p.by) {
        json_decref(config);
        json_decref(p.by);
        mc_fail(err, MC_EFORMAT, "the source has no config.json");
        return NULL;
    }
    for (int32_t i = 0; i < pl->n_item; i++) {
        note(pl, &p, i);
        any |= quantised(form_of(&pl->item[i]));
    }
    text = json_object_get(config, "text_config");
    old = json_object_get(config, "quantization_config");
    old = old ? old : json_object_get(text, "quantization_config");
    kv = json_incref(json_object_get(old, "kv_cache_scheme"));
    if (any)
        q = pl->ct ? compressed_tensors(pl, &p) : fp8(pl);
    if (q && kv)
        json_object_set(q, "kv_cache_scheme", kv);
    json_decref(kv);
    json_object_del(text, "quantization_config");
    json_object_del(config, "quantization_config");
    if (q)
        json_object_set_new(config, "quantization_config", q);
    json_decref(p.by);
    return config;
}
