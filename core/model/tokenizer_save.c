/* tokenizer_save.c - a byte-level BPE tokenizer as the text of a tokenizer.json.
 *
 * For checkpoints that come with their tokenizer in another form: reading the result
 * gives the same tables. Owns nothing afterwards. THREAD: any, on a tokenizer that is
 * open. */
#include <stdlib.h>
#include <string.h>

#include "core/model/tokenizer_int.h"

enum { SPELLED = 2 }; /* bytes at most that a byte is spelled with */

static json_t *spelled(const char *s, size_t n)
{
    char *text = malloc(SPELLED * n + 1);
    json_t *v = text ? json_stringn(text, mc_bpe_spell(s, n, text)) : NULL;

    free(text);
    return v;
}

/* A token by name, or null. */
static json_t *name_of(const struct mc_tok *t, int32_t id)
{
    return id < 0 ? json_null()
                  : json_stringn(t->text + t->token[id].off, t->token[id].len);
}

/* A token's key in the vocabulary. */
static json_t *key_of(const struct mc_tok *t, int32_t id)
{
    const struct mc_token *k = &t->token[id];

    return k->kind == MC_TOKEN_TEXT ? spelled(t->text + k->off, k->len)
                                    : json_stringn(t->text + k->off, k->len);
}

static json_t *vocab(const struct mc_tok *t)
{
    json_t *all = json_object();

    for (int32_t id = 0; id < t->n; id++) {
        json_t *key = t->token[id].kind == MC_TOKEN_NONE ? NULL : key_of(t, id);

        if (key)
            json_object_set_new(all, json_string_value(key), json_integer(id));
        json_decref(key);
    }
    return all;
}

static int by_rank(const void *a, const void *b)
{
    uint32_t x = ((const struct mc_merge_row *)a)->pair.rank;
    uint32_t y = ((const struct mc_merge_row *)b)->pair.rank;

    return x < y ? -1 : x > y;
}

/* ["left", "right"]: a token may hold what would part "left right". */
static json_t *merges(const struct mc_tok *t)
{
    struct mc_merge_row *row = malloc((t->n_merge + 1) * sizeof *row);
    json_t *all = json_array();
    uint32_t n = 0;

    for (uint32_t i = 0; row && i < t->n_merge; i++)
        if (t->merge[i].key != UINT64_MAX)
            row[n++] = t->merge[i];
    if (n > 0)
        qsort(row, n, sizeof *row, by_rank);
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(all,
                              json_pack("[o,o]", key_of(t, (int32_t)(row[i].key >> 32)),
                                        key_of(t, (int32_t)(uint32_t)row[i].key)));
    free(row);
    return all;
}

static void add_added(const struct mc_tok *t, const struct mc_added_set *set,
                      bool normalized, json_t *list)
{
    for (uint32_t i = 0; i < set->n; i++) {
        const struct mc_added *a = &set->v[i];
        const struct mc_token *k = &t->token[a->id];

        json_array_append_new(list,
                              json_pack("{s:i, s:s%, s:b, s:b, s:b, s:b, s:b}", "id",
                                        a->id, "content", t->text + k->off,
                                        (size_t)k->len, "single_word", a->single_word,
                                        "lstrip", a->lstrip, "rstrip", a->rstrip,
                                        "normalized", normalized, "special",
                                        k->kind == MC_TOKEN_CONTROL));
    }
}

static json_t *split(const char *pattern)
{
    return json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex",
                     pattern, "behavior", "Isolated", "invert", 0);
}

static json_t *byte_level(bool regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 1, "use_regex", regex);
}

/* NULL when a rule has no spelling there. */
static json_t *pre_tokenizer(const struct mc_pretok *p)
{
    json_t *list = json_array();

    for (int i = 0; i < p->n; i++) {
        const char *pattern;

        if (!mc_pretok_spell(p, i, &pattern)) {
            json_decref(list);
            return NULL;
        }
        json_array_append_new(list, pattern ? split(pattern)
                                            : json_pack("{s:s, s:b}", "type", "Digits",
                                                        "individual_digits", 1));
    }
    json_array_append_new(list, byte_level(false));
    return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", list);
}

static void add_specials(const struct mc_tok *t, const struct mc_ids *ids, json_t *single,
                         json_t *specials)
{
    for (size_t i = 0; i < ids->n; i++) {
        const struct mc_token *k = &t->token[ids->v[i]];
        json_t *name = json_stringn(t->text + k->off, k->len);
        const char *s = json_string_value(name);

        json_array_append_new(single, json_pack("{s:{s:O, s:i}}", "SpecialToken", "id",
                                                name, "type_id", 0));
        json_object_set_new(specials, s, json_pack("{s:O, s:[i], s:[O]}", "id", name,
                                                   "ids", ids->v[i], "tokens", name));
        json_decref(name);
    }
}

static json_t *post_processor(const struct mc_tok *t)
{
    json_t *single = json_array(), *specials = json_object(), *pair;

    if (t->head.n + t->tail.n == 0) {
        json_decref(single);
        json_decref(specials);
        return byte_level(true);
    }
    add_specials(t, &t->head, single, specials);
    json_array_append_new(single, json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A",
                                            "type_id", 0));
    pair = json_deep_copy(single);
    json_array_append_new(pair, json_pack("{s:{s:s, s:i}}", "Sequence", "id", "B",
                                          "type_id", 1));
    add_specials(t, &t->tail, single, specials);
    return json_pack("{s:s, s:o, s:o, s:o}", "type", "TemplateProcessing", "single",
                     single, "pair", pair, "special_tokens", specials);
}

static json_t *model(const struct mc_tok *t)
{
    return json_pack("{s:s, s:n, s:o, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE",
                     "dropout", "unk_token", name_of(t, t->unk),
                     "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                     t->fuse_unk, "byte_fallback", 0, "ignore_merges", t->ignore_merges,
                     "vocab", vocab(t), "merges", merges(t));
}

json_t *mc_tok_to_json(const struct mc_tok *t, struct mc_err *err)
{
    json_t *pre = t->score_rank || t->chunked ? NULL : pre_tokenizer(&t->pretok), *added,
           *normalizer, *out;

    if (!pre) {
        mc_fail(err, MC_EUNSUP,
                "this tokenizer (%s) can't be written as a tokenizer.json",
                t->score_rank ? "SentencePiece's"
                : t->chunked  ? "tiktoken's"
                              : "cut by llama.cpp's own rules");
        return NULL;
    }
    added = json_array();
    add_added(t, &t->raw, false, added);
    add_added(t, &t->normal, true, added);
    normalizer = t->nfc ? json_pack("{s:s}", "type", "NFC") : json_null();
    out = json_pack("{s:s, s:n, s:n, s:o, s:o, s:o, s:o, s:o, s:o}", "version", "1.0",
                    "truncation", "padding", "added_tokens", added, "normalizer",
                    normalizer, "pre_tokenizer", pre, "post_processor", post_processor(t),
                    "decoder", byte_level(true), "model", model(t));
    if (!out)
        mc_fail(err, MC_ENOMEM, "no memory for a tokenizer.json");
    return out;
}

json_t *mc_tok_config_json(const struct mc_tok *t, int32_t max_context)
{
    json_t *o = json_pack("{s:s, s:i, s:o, s:o}", "tokenizer_class",
                          "PreTrainedTokenizerFast", "model_max_length", max_context,
                          "bos_token", name_of(t, t->bos), "eos_token",
                          name_of(t, t->eos));

    if (o && t->chat)
        json_object_set_new(o, "chat_template", json_stringn(t->chat, t->n_chat));
    return o;
}
