/* golden_chat.c - conversations held against the chat template: chat.jsonl.
 *
 * A line is {messages, tools, kwargs, rendered}; lines end at \n only. Owns the template
 * while it runs. THREAD: main. */
#define _GNU_SOURCE
#include "core/cli/golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "core/cli/chat.h"

/* Whether the texts of pieces, joined, are want. */
static bool joins_to(const json_t *pieces, const json_t *want)
{
    const char *s = json_string_value(want);
    size_t n = json_string_length(want), i, len;
    const json_t *p, *text;

    json_array_foreach(pieces, i, p) {
        text = json_object_get(p, "text");
        len = json_string_length(text);
        if (len > n || memcmp(s, json_string_value(text), len) != 0)
            return false;
        s += len;
        n -= len;
    }
    return n == 0;
}

static int check_row(const struct mc_golden *g, struct mc_render *r, const json_t *row,
                     bool *same, struct mc_err *err)
{
    json_t *input = json_copy(json_object_get(row, "kwargs")), *pieces = NULL;
    const json_t *want = json_object_get(row, "rendered");
    int rc;

    if (!json_is_object(input) || !json_is_string(want)) {
        json_decref(input);
        return mc_fail(err, MC_EFORMAT, "messages, kwargs and rendered are needed");
    }
    json_object_set(input, "messages", json_object_get(row, "messages"));
    json_object_set(input, "tools", json_object_get(row, "tools"));
    rc = g->lua->render_run(r, input, false, &pieces, err);
    *same = rc == 0 && joins_to(pieces, want);
    json_decref(pieces);
    json_decref(input);
    return rc;
}

int mc_golden_chat(const struct mc_golden *g, const char *file, size_t *n, size_t *wrong,
                   size_t *first, struct mc_err *err)
{
    FILE *f = fopen(file, "rb");
    struct mc_render *r = NULL;
    char *line = NULL;
    size_t cap = 0;
    bool same = false;
    int rc;

    *n = *wrong = *first = 0;
    if (!f)
        return mc_fail(err, MC_EIO, "chat.jsonl can't be opened");
    rc = mc_chat_template(g->lua, g->tok, -1, &r, err);
    while (rc == 0 && getline(&line, &cap, f) > 0) {
        json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL);

        ++*n;
        rc = check_row(g, r, row, &same, err);
        json_decref(row);
        if (rc < 0)
            rc = mc_err_while(err, "chat.jsonl: line %zu", *n);
        else if (!same && ++*wrong == 1)
            *first = *n;
    }
    if (rc == 0 && *n == 0)
        rc = mc_fail(err, MC_EFORMAT, "chat.jsonl: no conversations in it");
    if (r)
        g->lua->render_close(r);
    free(line);
    fclose(f);
    return rc;
}
