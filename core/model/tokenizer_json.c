/* tokenizer_json.c - a tokenizer from tokenizer.json.
 *
 * Owns what it builds until it hands it out. THREAD: any.
 * Files are hostile: every field's type is checked, what is not understood and would
 * change ids is refused by name, and tables are bounded by the file's own size. */
#include "core/model/tokenizer_int.h"

#include <stdlib.h>
#include <string.h>

struct build {
    struct mc_tok *t;
    const json_t *vocab, *merges, *added; /* added may be NULL */
    struct mc_err *err;
};

const char *mc_json_kind(const json_t *v)
{
    static const char *const name[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "a list", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a number", [JSON_TRUE] = "true",
        [JSON_FALSE] = "false", [JSON_NULL] = "null",
    };

    return v ? name[json_typeof(v)] : "missing";
}

int mc_json_bool(const json_t *o, const char *key, bool *out, struct mc_err *err)
{
    const json_t *v = json_object_get(o, key);

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_boolean(v))
        return mc_fail(err, MC_EFORMAT, "%s is %s, not true or false", key,
                       mc_json_kind(v));
    *out = json_is_true(v);
    return 0;
}

/* A model option that must not do anything: absent, null, false, 0 or "". */
static int must_be_off(const json_t *model, const char *key, struct mc_err *err)
{
    const json_t *v = json_object_get(model, key);

    if (!v || json_is_null(v) || json_is_false(v) ||
        (json_is_number(v) && json_number_value(v) == 0) ||
        (json_is_string(v) && json_string_length(v) == 0))
        return 0;
    return mc_fail(err, MC_EUNSUP, "model.%s is set, which is not supported", key);
}

static int check_model(const json_t *root, const json_t **out, struct mc_err *err)
{
    static const char *const off[] = {"dropout", "continuing_subword_prefix",
                                      "end_of_word_suffix", "byte_fallback"};
    const json_t *model = json_object_get(root, "model"), *type;
    char quoted[MC_QUOTE];
    size_t i;
    int rc = 0;

    if (!json_is_object(model))
        return mc_fail(err, MC_EFORMAT, "model is %s, not an object",
                       mc_json_kind(model));
    type = json_object_get(model, "type"); /* files of 2020 have none */
    if (type && !json_is_string(type))
        return mc_fail(err, MC_EFORMAT, "model.type is %s, not a string",
                       mc_json_kind(type));
    if (type && strcmp(json_string_value(type), "BPE") != 0)
        return mc_fail(err, MC_EUNSUP, "model.type \"%s\" is not supported: only BPE is",
                       mc_quote(quoted, json_string_value(type),
                                json_string_length(type)));
    for (i = 0; i < sizeof off / sizeof *off && rc == 0; i++)
        rc = must_be_off(model, off[i], err);
    *out = model;
    return rc;
}

static int find_lists(struct build *b, const json_t *root, const json_t *model)
{
    b->vocab = json_object_get(model, "vocab");
    b->merges = json_object_get(model, "merges");
    b->added = json_object_get(root, "added_tokens");
    if (!json_is_object(b->vocab))
        return mc_fail(b->err, MC_EFORMAT, "model.vocab is %s, not an object",
                       mc_json_kind(b->vocab));
    if (!json_is_array(b->merges))
        return mc_fail(b->err, MC_EFORMAT, "model.merges is %s, not a list",
                       mc_json_kind(b->merges));
    if (json_is_null(b->added))
        b->added = NULL;
    if (b->added && !json_is_array(b->added))
        return mc_fail(b->err, MC_EFORMAT, "added_tokens is %s, not a list",
                       mc_json_kind(b->added));
    return mc_tok_new(json_object_size(b->vocab) + json_array_size(b->added), &b->t,
                      b->err);
}

static int read_vocab(struct build *b)
{
    size_t n, n_bytes, cap = 0;
    char quoted[MC_QUOTE], *bytes = NULL;
    const char *name;
    json_t *id;
    bool spelled;
    int rc = 0;

    json_object_foreach((json_t *)b->vocab, name, id) {
        n = strlen(name);
        if (n > cap) {
            free(bytes);
            cap = 2 * n;
            bytes = malloc(cap);
            if (!bytes)
                return mc_fail(b->err, MC_ENOMEM, "no memory for the vocabulary");
        }
        spelled = n > 0 && mc_bpe_unspell(name, n, bytes, &n_bytes);
        if (!json_is_integer(id))
            rc = mc_fail(b->err, MC_EFORMAT, "model.vocab: the id of \"%s\" is %s",
                         mc_quote(quoted, name, n), mc_json_kind(id));
        else
            rc = mc_tok_put(b->t, json_integer_value(id), spelled ? bytes : name,
                            spelled ? n_bytes : n,
                            spelled ? MC_TOKEN_TEXT : MC_TOKEN_INERT, b->err);
        if (rc < 0)
            break;
    }
    free(bytes);
    return rc;
}

/* An added token may be in the vocabulary too, then with the same id. */
static int place_added(struct build *b, json_int_t id, const struct mc_added_json *a)
{
    const json_t *known = json_object_get(b->vocab, a->content);
    char quoted[MC_QUOTE];

    if (!known)
        return mc_tok_put(b->t, id, a->content, a->n, a->kind, b->err);
    if (json_integer_value(known) != id)
        return mc_fail(b->err, MC_EFORMAT,
                       "added token \"%s\" has id %lld here and %lld in "
                       "model.vocab",
                       mc_quote(quoted, a->content, a->n), (long long)id,
                       (long long)json_integer_value(known));
    return mc_tok_rename(b->t, (int32_t)id, a->content, a->n, a->kind, b->err);
}

static int read_added(struct build *b, const json_t *a)
{
    const json_t *id = json_object_get(a, "id");
    struct mc_added_json added;
    int rc;

    if (!json_is_integer(id))
        return mc_fail(b->err, MC_EFORMAT, "id is %s, not an integer", mc_json_kind(id));
    rc = mc_added_read(a, &added, b->err);
    if (rc == 0)
        rc = place_added(b, json_integer_value(id), &added);
    if (rc == 0)
        rc = mc_added_put(b->t, (int32_t)json_integer_value(id), added.flags, b->err);
    return rc;
}

static int read_all_added(struct build *b)
{
    const json_t *a;
    size_t i;

    json_array_foreach(b->added, i, a) {
        if (read_added(b, a) < 0)
            return mc_err_while(b->err, "reading added_tokens[%zu]", i);
    }
    return mc_added_seal(b->t, b->err);
}

/* "left right" or ["left", "right"]. */
static int read_merge(struct build *b, size_t i, const json_t *m)
{
    const json_t *left = json_array_get(m, 0), *right = json_array_get(m, 1);
    const char *s, *space;
    size_t n;

    if (json_is_string(m)) {
        s = json_string_value(m);
        n = json_string_length(m);
        space = strchr(s, ' ');
        if (space && space > s && space[1] && !strchr(space + 1, ' '))
            return mc_bpe_merge(b->t, (uint32_t)i, s, (size_t)(space - s), space + 1,
                                n - (size_t)(space - s) - 1, b->err);
    }
    if (json_array_size(m) == 2 && json_is_string(left) && json_is_string(right))
        return mc_bpe_merge(b->t, (uint32_t)i, json_string_value(left),
                            json_string_length(left), json_string_value(right),
                            json_string_length(right), b->err);
    return mc_fail(b->err, MC_EFORMAT, "model.merges[%zu] is not a pair of tokens", i);
}

static int read_merges(struct build *b)
{
    const json_t *m;
    size_t i;
    int rc = mc_bpe_reserve(b->t, json_array_size(b->merges), b->err);

    json_array_foreach(b->merges, i, m) {
        if (rc < 0)
            break;
        rc = read_merge(b, i, m);
    }
    return rc;
}

static int read_root(struct build *b, const json_t *root)
{
    const json_t *model = NULL;
    int rc;

    if (!json_is_object(root))
        return mc_fail(b->err, MC_EFORMAT, "not an object");
    rc = check_model(root, &model, b->err);
    if (rc == 0)
        rc = find_lists(b, root, model);
    if (rc == 0)
        rc = mc_json_bool(model, "ignore_merges", &b->t->ignore_merges, b->err);
    if (rc == 0)
        rc = mc_json_bool(model, "fuse_unk", &b->t->fuse_unk, b->err);
    if (rc == 0)
        rc = mc_pipeline_text(b->t, root, b->err);
    if (rc == 0)
        rc = read_vocab(b);
    if (rc == 0)
        rc = read_all_added(b);
    if (rc == 0)
        rc = mc_tok_seal(b->t, b->err);
    if (rc == 0)
        rc = read_merges(b);
    if (rc == 0)
        rc = mc_tok_named(b->t, "model.unk_token", json_object_get(model, "unk_token"),
                          &b->t->unk, b->err);
    return rc < 0 ? rc : mc_pipeline_post(b->t, root, b->err);
}

int mc_tok_from_json(const char *text, size_t n, const json_t *config,
                     struct mc_tok **out, struct mc_err *err)
{
    struct build b = {.err = err};
    json_error_t bad;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &bad);
    int rc;

    *out = NULL;
    if (!root)
        return mc_fail(err, MC_EFORMAT, "tokenizer.json, line %d, column %d: %s",
                       bad.line, bad.column, bad.text);
    rc = read_root(&b, root);
    json_decref(root);
    if (rc < 0) {
        mc_err_while(err, "reading tokenizer.json");
        goto fail;
    }
    rc = mc_tok_configure(b.t, config, err);
    if (rc < 0)
        goto fail;
    *out = b.t;
    return 0;
fail:
    mc_tok_close(b.t);
    return rc;
}
