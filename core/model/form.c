/* form.c - how a checkpoint stores each tensor, told from its config.json alone.
 *
 * Owns a scheme's patterns. THREAD: see form.h.
 * quantization_config says which linears have which format, by class ("Linear"), by name or
 * by a Python pattern ("re:..."), and which are left alone. What no published checkpoint
 * quantises is left alone whatever it says: embedding, head, router, the mixers of MTP and
 * indexer. Patterns are run by the C library as extended regular expressions, which agree
 * with Python's on what such files use; repeat counts, whose cost has no bound, and back
 * references are refused. */
#include "core/model/form.h"

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/weights/weights.h"

enum { PATTERN_MAX = 1024, LEFT_ALONE = -1, MAX_GROUPS = 16 };

struct pattern {
    bool compiled;
    regex_t re;
    const char *text; /* borrowed: a module's name, "Linear" or a part of a name */
    int group;        /* or LEFT_ALONE */
};

struct mc_scheme {
    struct mc_form base, group[MAX_GROUPS];
    int n_group;
    bool by_part; /* a name that is part of a module's, at whole components, names it */
    struct pattern *pattern;
    size_t n;
};

struct mc_form mc_form_plain(uint16_t fmt)
{
    return (struct mc_form){.fmt = fmt, .n_tensor = 1};
}

struct mc_form mc_form_fp8(void)
{
    return (struct mc_form){.fmt = MC_D_E4M3, .n_tensor = 2, .scale_bytes = 4,
                            .block_n = 128, .block_k = 128};
}

struct mc_form mc_form_int4(int32_t group)
{
    return (struct mc_form){.fmt = MC_D_INT4,
                            .n_tensor = 3,
                            .scale_bytes = 2,
                            .block_n = 1,
                            .block_k = group,
                            .extra = 16}; /* the shape, two I64 */
}

struct mc_form mc_form_nvfp4(void)
{
    return (struct mc_form){.fmt = MC_D_NVFP4,
                            .n_tensor = 3,
                            .scale_bytes = 1,
                            .block_n = 1,
                            .block_k = 16,
                            .extra = 4};
}

static int64_t parts(int64_t n, int32_t block)
{
    return block > 0 ? (n + block - 1) / block : 1;
}

struct mc_form mc_form_of(const struct mc_disk *d)
{
    switch (d->fmt) {
    case MC_D_E4M3:
        return (struct mc_form){.fmt = d->fmt, .n_tensor = 2,
                                .scale_bytes = d->scale_dt == MC_F32 ? 4 : 2,
                                .block_n = d->block_n < d->n ? d->block_n : 0,
                                .block_k = d->block_k < d->k ? d->block_k : 0};
    case MC_D_INT4:
        return mc_form_int4(d->group);
    case MC_D_NVFP4:
        return mc_form_nvfp4();
    default:
        return mc_form_plain(d->fmt);
    }
}

uint64_t mc_form_bytes(const struct mc_form *f, int64_t n, int64_t k)
{
    uint64_t bytes = mc_disk_bytes(f->fmt, n, k);

    if (bytes == 0) /* whole blocks of columns; 256 is the longest of any format */
        bytes = mc_disk_bytes(f->fmt, n, (k + 255) / 256 * 256);
    if (f->scale_bytes)
        bytes += (uint64_t)(parts(n, f->block_n) * parts(k, f->block_k)) * f->scale_bytes;
    return bytes + (uint64_t)f->extra;
}

const char *mc_form_name(const struct mc_form *f, char buf[MC_FORM_NAME])
{
    const char *name = mc_disk_name(f->fmt);

    if (f->fmt == MC_D_E4M3)
        name = f->block_n > 1 ? "fp8-block" : f->block_n == 1 ? "fp8-row" : "fp8-tensor";
    if (f->fmt == MC_D_INT4)
        snprintf(buf, MC_FORM_NAME, "int4-g%d", f->block_k);
    else
        snprintf(buf, MC_FORM_NAME, "%s", name);
    return buf;
}

/* ---- patterns ---------------------------------------------------------------------- */

/* re.match: anchored at the start. \d becomes [0-9]; ERE knows no other class by letter. */
static int compile(const char *text, regex_t *re, struct mc_err *err)
{
    char ere[PATTERN_MAX + 16];
    size_t at = 0;

    ere[at++] = '^';
    for (; *text; text++) {
        if (at > PATTERN_MAX || *text == '{' || strncmp(text, "(?", 2) == 0)
            return mc_fail(err, MC_EUNSUP, "pattern not understood");
        if (*text == '\\' && text[1] == 'd') {
            memcpy(ere + at, "[0-9]", 5);
            at += 5;
            text++;
        } else if (*text == '\\' && text[1] && strchr("bBwWsSD123456789", text[1])) {
            return mc_fail(err, MC_EUNSUP, "pattern not understood");
        } else {
            ere[at++] = *text;
            if (*text == '\\' && text[1])
                ere[at++] = *++text;
        }
    }
    ere[at] = 0;
    if (regcomp(re, ere, REG_EXTENDED | REG_NOSUB) != 0)
        return mc_fail(err, MC_EUNSUP, "pattern not understood");
    return 0;
}

static int add(struct mc_scheme *s, const char *text, int group, struct mc_err *err)
{
    struct pattern *more = realloc(s->pattern, (s->n + 1) * sizeof *more);
    int rc = 0;

    if (!more)
        return mc_fail(err, MC_ENOMEM, "no memory for quantization_config");
    s->pattern = more;
    more[s->n] = (struct pattern){.text = text, .group = group};
    if (strncmp(text, "re:", 3) == 0) {
        rc = compile(text + 3, &more[s->n].re, err);
        more[s->n].compiled = rc == 0;
    }
    s->n++;
    return rc < 0 ? mc_err_while(err, "quantization_config: \"%.80s\"", text) : 0;
}

static int add_list(struct mc_scheme *s, const json_t *list, int group, const char *field,
                    struct mc_err *err)
{
    const json_t *v;
    size_t i;
    int rc = 0;

    if (!list || json_is_null(list))
        return 0;
    if (!json_is_array(list))
        return mc_fail(err, MC_EFORMAT, "quantization_config.%s is not a list", field);
    json_array_foreach(list, i, v) {
        if (!json_is_string(v))
            return mc_fail(err, MC_EFORMAT, "quantization_config.%s[%zu] is not a string",
                           field, i);
        rc = add(s, json_string_value(v), group, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Whether part is in name, from a component's start to a component's end. */
static bool has_part(const char *name, const char *part)
{
    size_t n = strlen(part);

    for (const char *at = name; n > 0 && (at = strstr(at, part)) != NULL; at++)
        if ((at == name || at[-1] == '.') && (at[n] == 0 || at[n] == '.'))
            return true;
    return false;
}

static bool fits(const struct mc_scheme *s, const struct pattern *p, const char *module)
{
    if (p->compiled)
        return regexec(&p->re, module, 0, NULL, 0) == 0;
    if (p->group != LEFT_ALONE && strcmp(p->text, "Linear") == 0)
        return true;
    return s->by_part ? has_part(module, p->text) : strcmp(p->text, module) == 0;
}

/* ---- quantization_config ----------------------------------------------------------- */

static int bad(const char *field, struct mc_err *err)
{
    return mc_fail_param(err, MC_EUNSUP, field,
                         "quantization_config: this %s is not supported "
                         "by plan",
                         field);
}

static bool is(const json_t *o, const char *key, const char *want)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s && strcmp(s, want) == 0;
}

static int64_t number(const json_t *o, const char *key)
{
    return (int64_t)json_number_value(json_object_get(o, key));
}

/* weight_block_size or block_structure: [128, 128]. */
static bool block_of(const json_t *v, struct mc_form *f)
{
    double n = json_number_value(json_array_get(v, 0));
    double k = json_number_value(json_array_get(v, 1));

    if (!(n >= 1 && n <= 1 << 20 && k >= 1 && k <= 1 << 20))
        return false;
    f->block_n = (int32_t)n;
    f->block_k = (int32_t)k;
    return true;
}

static int group_form(const json_t *w, struct mc_form *f, struct mc_err *err)
{
    int64_t bits = number(w, "num_bits"), size = number(w, "group_size");
    bool floats = is(w, "type", "float");

    if (bits == 4 && floats) {
        *f = mc_form_nvfp4();
        return size == 16 ? 0 : bad("group_size", err);
    }
    if (bits == 4 && is(w, "strategy", "group") && size >= 8 && size <= 1 << 20) {
        *f = mc_form_int4((int32_t)size);
        if (json_is_false(json_object_get(w, "symmetric")))
            return bad("symmetric", err);
        return 0;
    }
    if (bits != 8 || !floats)
        return bad("num_bits", err);
    *f = (struct mc_form){.fmt = MC_D_E4M3, .n_tensor = 2, .scale_bytes = 2};
    if (is(w, "strategy", "channel"))
        f->block_n = 1;
    else if (is(w, "strategy", "block") &&
             !block_of(json_object_get(w, "block_structure"), f))
        return bad("block_structure", err);
    return 0;
}

static int read_groups(struct mc_scheme *s, const json_t *q, struct mc_err *err)
{
    const json_t *groups = json_object_get(q, "config_groups"), *g;
    const char *key;
    int rc = add_list(s, json_object_get(q, "ignore"), LEFT_ALONE, "ignore", err);

    json_object_foreach((json_t *)groups, key, g) {
        if (rc < 0)
            return rc;
        if (s->n_group == MAX_GROUPS)
            return bad("config_groups", err);
        rc = group_form(json_object_get(g, "weights"), &s->group[s->n_group], err);
        if (rc == 0)
            rc = add_list(s, json_object_get(g, "targets"), s->n_group, "targets", err);
        s->n_group++;
    }
    return rc;
}

static int read_fp8(struct mc_scheme *s, const json_t *q, bool rows, struct mc_err *err)
{
    const json_t *size = json_object_get(q, "weight_block_size");
    struct mc_form *f = &s->group[0];
    int rc = add_list(s, json_object_get(q, "modules_to_not_convert"), LEFT_ALONE,
                      "modules_to_not_convert", err);

    *f = (struct mc_form){.fmt = MC_D_E4M3, .n_tensor = 2, .scale_bytes = 4, .block_n = rows};
    s->n_group = 1;
    s->by_part = true;
    if (rc == 0)
        rc = add(s, "Linear", 0, err);
    if (rc == 0 && size && !json_is_null(size) && !block_of(size, f))
        rc = bad("weight_block_size", err);
    return rc;
}

static const json_t *inner(const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);

    return v ? v : json_object_get(json_object_get(config, "text_config"), key);
}

int mc_scheme_open(const json_t *config, struct mc_scheme **out, struct mc_err *err)
{
    const json_t *q = inner(config, "quantization_config");
    const char *dtype = json_string_value(inner(config, "dtype"));
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    struct mc_scheme *s = calloc(1, sizeof *s);
    int rc = 0;

    *out = NULL;
    if (!s)
        return mc_fail(err, MC_ENOMEM, "no memory for quantization_config");
    if (!dtype)
        dtype = json_string_value(inner(config, "torch_dtype"));
    s->base = mc_form_plain(dtype && strcmp(dtype, "float32") == 0   ? MC_D_F32
                            : dtype && strcmp(dtype, "float16") == 0 ? MC_D_F16
                                                                     : MC_D_BF16);
    if (method && strcmp(method, "compressed-tensors") == 0)
        rc = read_groups(s, q, err);
    else if (method && strcmp(method, "fp8") == 0)
        rc = read_fp8(s, q, false, err);
    else if (method && strcmp(method, "fbgemm_fp8") == 0)
        rc = read_fp8(s, q, true, err);
    else if (q && !json_is_null(q))
        rc = bad("quant_method", err);
    if (rc < 0) {
        mc_scheme_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void mc_scheme_close(struct mc_scheme *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++)
        if (s->pattern[i].compiled)
            regfree(&s->pattern[i].re);
    free(s->pattern);
    free(s);
}

struct mc_form mc_scheme_of(const struct mc_scheme *s, const struct mc_tensor_spec *t,
                            const char *name)
{
    static const bool never[MC_N_MATRIX] = {
        [MC_M_EMBED] = true, [MC_M_HEAD] = true, [MC_M_ROUTER] = true,
        [MC_M_SHARED_MIX] = true, [MC_M_INDEX_GATE] = true, [MC_M_EH] = true,
    };
    int group = LEFT_ALONE;

    if (t->vector)
        return t->at == MC_V_ROUTER_BIAS ? mc_form_plain(MC_D_F32) : s->base;
    for (size_t i = 0; i < s->n && !never[t->at]; i++) {
        if (!fits(s, &s->pattern[i], name))
            continue;
        group = s->pattern[i].group;
        if (group == LEFT_ALONE)
            break;
    }
    return group == LEFT_ALONE ? s->base : s->group[group];
}
