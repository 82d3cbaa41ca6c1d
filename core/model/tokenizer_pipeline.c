/* tokenizer_pipeline.c - what tokenizer.json says to do before and after merging.
 *
 * Owns nothing. THREAD: the one that opens the tokenizer.
 * Each stage is {type, ...} or a Sequence of stages. Only what is listed here is carried
 * out; anything else is refused by name, a Split pattern by quoting it: a checkpoint's own
 * regular expression is never compiled. */
#include "core/model/tokenizer_int.h"

#include <string.h>

struct stage {
    struct mc_tok *t;
    const json_t *root;
    bool byte_level; /* ByteLevel was met: nothing may follow it */
    struct mc_err *err;
};
typedef int (*stage_fn)(struct stage *g, const json_t *o, const char *type);

/* Calls fn for the stage root[key], or for each of its Sequence's list. */
static int each_stage(struct stage *g, const char *key, const char *list, stage_fn fn)
{
    const json_t *o = json_object_get(g->root, key), *all, *type;
    size_t i, n = 1;
    bool sequence;
    int rc = 0;

    if (!o || json_is_null(o))
        return 0;
    type = json_object_get(o, "type");
    sequence = json_is_string(type) && strcmp(json_string_value(type), "Sequence") == 0;
    all = json_object_get(o, list);
    if (sequence && !json_is_array(all))
        return mc_fail(g->err, MC_EFORMAT, "%s.%s is %s, not a list", key, list,
                       mc_json_kind(all));
    if (sequence)
        n = json_array_size(all);
    for (i = 0; i < n && rc == 0; i++) {
        if (sequence)
            o = json_array_get(all, i);
        type = json_object_get(o, "type");
        if (!json_is_string(type))
            return mc_fail(g->err, MC_EFORMAT, "%s: type is %s, not a string", key,
                           mc_json_kind(type));
        rc = fn(g, o, json_string_value(type));
    }
    return rc;
}

static int unsupported(struct stage *g, const char *what, const char *type)
{
    char quoted[MC_QUOTE];

    return mc_fail(g->err, MC_EUNSUP, "%s \"%s\" is not supported", what,
                   mc_quote(quoted, type, strlen(type)));
}

static int normalizer(struct stage *g, const json_t *o, const char *type)
{
    (void)o;
    if (strcmp(type, "NFC") != 0)
        return unsupported(g, "normalizer", type);
    g->t->nfc = true;
    return 0;
}

static int split_stage(struct stage *g, const json_t *o)
{
    const json_t *regex = json_object_get(json_object_get(o, "pattern"), "Regex");
    const json_t *behavior = json_object_get(o, "behavior");
    char quoted[MC_QUOTE];
    bool invert = false;
    int rc = mc_json_bool(o, "invert", &invert, g->err);

    if (rc < 0)
        return rc;
    if (!json_is_string(regex))
        return mc_fail(g->err, MC_EUNSUP,
                       "pre_tokenizer Split: pattern.Regex is %s, not a "
                       "string",
                       mc_json_kind(regex));
    if (invert || !json_is_string(behavior) ||
        strcmp(json_string_value(behavior), "Isolated") != 0)
        return mc_fail(g->err, MC_EUNSUP,
                       "pre_tokenizer Split: only behavior \"Isolated\" "
                       "without invert is supported");
    if (!mc_pretok_add(&g->t->pretok, json_string_value(regex),
                       json_string_length(regex)))
        return mc_fail(g->err, MC_EUNSUP, "pre_tokenizer Split: pattern not known: %s",
                       mc_quote(quoted, json_string_value(regex),
                                json_string_length(regex)));
    return 0;
}

static int byte_level_stage(struct stage *g, const json_t *o)
{
    bool prefix = true, regex = true; /* the defaults of tokenizers */
    int rc = mc_json_bool(o, "add_prefix_space", &prefix, g->err);

    if (rc == 0)
        rc = mc_json_bool(o, "use_regex", &regex, g->err);
    if (rc < 0)
        return rc;
    if (prefix)
        return mc_fail(g->err, MC_EUNSUP,
                       "pre_tokenizer ByteLevel: add_prefix_space is not "
                       "supported");
    g->byte_level = true;
    if (regex && !mc_pretok_add_gpt2(&g->t->pretok))
        return mc_fail(g->err, MC_EUNSUP, "pre_tokenizer has too many stages");
    return 0;
}

static int pre_tokenizer(struct stage *g, const json_t *o, const char *type)
{
    bool each = false;
    int rc;

    if (g->byte_level)
        return mc_fail(g->err, MC_EUNSUP,
                       "pre_tokenizer: ByteLevel must be the last stage");
    if (strcmp(type, "Split") == 0)
        return split_stage(g, o);
    if (strcmp(type, "ByteLevel") == 0)
        return byte_level_stage(g, o);
    if (strcmp(type, "Digits") != 0)
        return unsupported(g, "pre_tokenizer", type);
    rc = mc_json_bool(o, "individual_digits", &each, g->err);
    if (rc == 0 && !mc_pretok_add_digits(&g->t->pretok, each))
        rc = mc_fail(g->err, MC_EUNSUP, "pre_tokenizer has too many stages");
    return rc;
}

static int decoder(struct stage *g, const json_t *o, const char *type)
{
    (void)o;
    return strcmp(type, "ByteLevel") == 0 ? 0 : unsupported(g, "decoder", type);
}

int mc_pipeline_text(struct mc_tok *t, const json_t *root, struct mc_err *err)
{
    struct stage g = {.t = t, .root = root, .err = err};
    int rc = each_stage(&g, "normalizer", "normalizers", normalizer);

    if (rc == 0)
        rc = each_stage(&g, "pre_tokenizer", "pretokenizers", pre_tokenizer);
    if (rc == 0 && !g.byte_level)
        rc = mc_fail(err, MC_EUNSUP,
                     "pre_tokenizer has no ByteLevel: only byte-level BPE is "
                     "supported");
    return rc < 0 ? rc : each_stage(&g, "decoder", "decoders", decoder);
}

/* Appends special_tokens[id].ids of a template's SpecialToken. */
static int template_special(struct stage *g, const json_t *o, const json_t *item,
                            struct mc_ids *out)
{
    const json_t *name = json_object_get(item, "id"), *ids, *v;
    char quoted[MC_QUOTE];
    json_int_t id;
    size_t i;

    if (!json_is_string(name))
        return mc_fail(g->err, MC_EFORMAT,
                       "TemplateProcessing: SpecialToken.id is %s, not a "
                       "string",
                       mc_json_kind(name));
    ids = json_object_get(json_object_get(json_object_get(o, "special_tokens"),
                                          json_string_value(name)), "ids");
    if (!json_is_array(ids))
        return mc_fail(g->err, MC_EFORMAT, "TemplateProcessing: no ids for \"%s\"",
                       mc_quote(quoted, json_string_value(name),
                                json_string_length(name)));
    json_array_foreach(ids, i, v) {
        id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= g->t->n)
            return mc_fail(g->err, MC_EFORMAT,
                           "TemplateProcessing: an id of \"%s\" is not a "
                           "token",
                           mc_quote(quoted, json_string_value(name),
                                    json_string_length(name)));
        if (mc_ids_push(out, (int32_t)id) < 0)
            return mc_fail(g->err, MC_ENOMEM, "no memory for a template");
    }
    return 0;
}

static int template_stage(struct stage *g, const json_t *o)
{
    const json_t *single = json_object_get(o, "single"), *item, *special;
    int n_text = 0, rc = 0;
    size_t i;

    json_array_foreach(single, i, item) {
        special = json_object_get(item, "SpecialToken");
        if (special)
            rc = template_special(g, o, special, n_text ? &g->t->tail : &g->t->head);
        else
            n_text += json_is_object(json_object_get(item, "Sequence")) ? 1 : 2;
        if (rc < 0)
            return rc;
    }
    if (n_text != 1)
        return mc_fail(g->err, MC_EFORMAT,
                       "TemplateProcessing: single is not special tokens "
                       "around one Sequence");
    return 0;
}

static int post_processor(struct stage *g, const json_t *o, const char *type)
{
    if (strcmp(type, "ByteLevel") == 0)
        return 0; /* it only trims offsets */
    if (strcmp(type, "TemplateProcessing") == 0)
        return template_stage(g, o);
    return unsupported(g, "post_processor", type);
}

int mc_pipeline_post(struct mc_tok *t, const json_t *root, struct mc_err *err)
{
    struct stage g = {.t = t, .root = root, .err = err};

    return each_stage(&g, "post_processor", "processors", post_processor);
}
