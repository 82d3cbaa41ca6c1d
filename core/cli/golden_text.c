/* golden_text.c - the tokenizer and the chat template held against their files.
 *
 * Owns nothing after it returns. THREAD: main. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "core/cli/golden_int.h"

/* ---- tokenizer.jsonl --------------------------------------------------------------- */

static bool same_ids(const struct mc_ids *got, const json_t *want)
{
    if (got->n != json_array_size(want))
        return false;
    for (size_t i = 0; i < got->n; i++)
        if (got->v[i] != json_integer_value(json_array_get(want, i)))
            return false;
    return true;
}

int mc_golden_tokenizer(struct mc_golden_job *r, const char *file, struct mc_err *err)
{
    FILE *f = fopen(file, "rb");
    char *line = NULL, first[80] = "";
    size_t cap = 0, n = 0, wrong = 0;
    int rc = 0;

    if (!f)
        return mc_fail(err, MC_EIO, "tokenizer.jsonl can't be opened");
    while (rc == 0 && getline(&line, &cap, f) > 0) {
        json_t *o = json_loads(line, JSON_ALLOW_NUL, NULL);
        const json_t *text = json_object_get(o, "text");
        struct mc_ids got = {0};
        unsigned flags = json_is_true(json_object_get(o, "special")) ? MC_TOK_SPECIAL : 0;

        if (!json_is_string(text))
            rc = mc_fail(err, MC_EFORMAT, "tokenizer.jsonl: line %zu has no text", n + 1);
        else
            rc = mc_tok_encode(r->g->tok, json_string_value(text),
                               json_string_length(text), flags, &got, err);
        if (rc == 0 && !same_ids(&got, json_object_get(o, "ids")) && wrong++ == 0)
            snprintf(first, sizeof first, ", first at line %zu", n + 1);
        n++;
        mc_ids_free(&got);
        json_decref(o);
    }
    free(line);
    fclose(f);
    if (rc == 0 && n == 0)
        rc = mc_fail(err, MC_EFORMAT, "tokenizer.jsonl: no texts in it");
    if (rc == 0)
        mc_golden_say(r, "tokenizer.jsonl", wrong == 0, "%zu texts, %zu differ%s", n,
                      wrong, first);
    return rc;
}

int mc_golden_chats(struct mc_golden_job *r, const char *file, struct mc_err *err)
{
    size_t n = 0, wrong = 0, first = 0;
    int rc = mc_golden_chat(r->g, file, &n, &wrong, &first, err);

    if (rc == 0 && wrong == 0)
        mc_golden_say(r, "chat.jsonl", true, "%zu conversations", n);
    else if (rc == 0)
        mc_golden_say(r, "chat.jsonl", false,
                      "%zu of %zu conversations differ, first at line %zu", wrong, n,
                      first);
    return rc;
}
