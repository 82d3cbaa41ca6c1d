/* tokenizer_config.c - what tokenizer_config.json says, and the form of added tokens.
 *
 * Owns nothing. THREAD: the one that opens the tokenizer. */
#include "core/model/tokenizer_int.h"

#include <stdlib.h>
#include <string.h>

int mc_added_read(const json_t *a, struct mc_added_json *out, struct mc_err *err)
{
    const json_t *content = json_object_get(a, "content");
    bool special = false;
    int rc;

    if (!json_is_string(content))
        return mc_fail(err, MC_EFORMAT, "content is %s, not a string",
                       mc_json_kind(content));
    *out = (struct mc_added_json){.content = json_string_value(content),
                                  .n = json_string_length(content)};
    rc = mc_json_bool(a, "special", &special, err);
    out->kind = special ? MC_TOKEN_CONTROL : MC_TOKEN_ADDED;
    out->flags.normalized = !special;
    if (rc == 0)
        rc = mc_json_bool(a, "normalized", &out->flags.normalized, err);
    if (rc == 0)
        rc = mc_json_bool(a, "single_word", &out->flags.single_word, err);
    if (rc == 0)
        rc = mc_json_bool(a, "lstrip", &out->flags.lstrip, err);
    if (rc == 0)
        rc = mc_json_bool(a, "rstrip", &out->flags.rstrip, err);
    return rc;
}

int mc_tok_named(const struct mc_tok *t, const char *key, const json_t *name, int32_t *id,
                 struct mc_err *err)
{
    char quoted[MC_QUOTE];

    if (json_is_object(name))
        name = json_object_get(name, "content");
    if (!name || json_is_null(name))
        return 0;
    if (!json_is_string(name))
        return mc_fail(err, MC_EFORMAT, "%s is %s, not a string", key,
                       mc_json_kind(name));
    *id = mc_tok_find(t, json_string_value(name), json_string_length(name));
    if (*id >= 0)
        return 0;
    return mc_fail(err, MC_EFORMAT, "%s \"%s\" is not in the vocabulary", key,
                   mc_quote(quoted, json_string_value(name), json_string_length(name)));
}

/* "chat_template" is a string, or a list of {name, template}: "default", else the first. */
static int read_chat(struct mc_tok *t, const json_t *chat, struct mc_err *err)
{
    const json_t *entry, *name, *text = json_is_array(chat)
        ? json_object_get(json_array_get(chat, 0), "template") : chat;
    size_t i;

    if (!chat || json_is_null(chat))
        return 0;
    json_array_foreach(chat, i, entry) {
        name = json_object_get(entry, "name");
        if (json_is_string(name) && strcmp(json_string_value(name), "default") == 0)
            text = json_object_get(entry, "template");
    }
    if (!json_is_string(text))
        return mc_fail(err, MC_EFORMAT, "chat_template is %s, not a string or a list of "
                       "{name, template}", mc_json_kind(text));
    t->n_chat = json_string_length(text);
    t->chat = strdup(json_string_value(text));
    return t->chat ? 0 : mc_fail(err, MC_ENOMEM, "no memory for the chat template");
}

int mc_tok_configure(struct mc_tok *t, const json_t *config, struct mc_err *err)
{
    int rc = mc_tok_named(t, "bos_token", json_object_get(config, "bos_token"), &t->bos,
                          err);

    if (rc == 0)
        rc = mc_tok_named(t, "eos_token", json_object_get(config, "eos_token"), &t->eos,
                          err);
    if (rc == 0)
        rc = read_chat(t, json_object_get(config, "chat_template"), err);
    return rc < 0 ? mc_err_while(err, "reading tokenizer_config.json") : 0;
}
