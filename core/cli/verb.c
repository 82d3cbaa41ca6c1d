/* verb.c - the verbs as words of the command line: `mascon seqs`, `mascon drain 30`.
 *
 * Sends one request to the server's socket and shows the answer: fields a line, rows as
 * columns, or --json. OWNS nothing after it returns. THREAD: main. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cli/cli.h"
#include "core/cli/client.h"
#include "core/serve/admin.h"

enum { CELL = 128, COLUMNS = 16 };

/* A counter, which is a double of no fraction, keeps all its digits. */
static bool whole(double x)
{
    return fabs(x) < 1e15 && x == trunc(x);
}

/* A value on one line, without control bytes. */
static void cell(const json_t *v, char *out, size_t cap)
{
    bool scalar = json_is_string(v) || json_is_real(v);
    char *text = v && !scalar ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    char *p;

    if (json_is_string(v))
        snprintf(out, cap, "%s", json_string_value(v));
    else if (json_is_real(v))
        snprintf(out, cap, whole(json_real_value(v)) ? "%.0f" : "%.6g",
                 json_real_value(v));
    else
        snprintf(out, cap, "%s", text ? text : "");
    free(text);
    for (p = out; *p; p++)
        if ((unsigned char)*p < 32 || *p == 127)
            *p = '?';
}

/* Rows of like objects, as columns of the first one's keys. */
static void show_rows(const json_t *rows, const char *indent)
{
    const char *keys[COLUMNS], *key;
    int width[COLUMNS], n = 0, i;
    char text[CELL];
    json_t *row, *v;
    size_t r;

    json_object_foreach(json_array_get(rows, 0), key, v) {
        if (n == COLUMNS)
            break;
        width[n] = (int)strlen(key);
        keys[n++] = key;
    }
    json_array_foreach(rows, r, row) {
        for (i = 0; i < n; i++) {
            cell(json_object_get(row, keys[i]), text, sizeof text);
            if ((int)strlen(text) > width[i])
                width[i] = (int)strlen(text);
        }
    }
    width[n - 1] = 0; /* no blanks behind the last */
    for (i = 0; i < n; i++)
        printf("%s%-*s", i ? "  " : indent, width[i], keys[i]);
    printf("\n");
    json_array_foreach(rows, r, row) {
        for (i = 0; i < n; i++) {
            cell(json_object_get(row, keys[i]), text, sizeof text);
            printf("%s%-*s", i ? "  " : indent, width[i], text);
        }
        printf("\n");
    }
}

static void show_object(const json_t *o)
{
    char text[1024];
    const char *key;
    json_t *v;
    int width = 14;

    json_object_foreach((json_t *)o, key, v)
        if ((int)strlen(key) > width)
            width = (int)strlen(key);
    json_object_foreach((json_t *)o, key, v) {
        if (json_is_array(v) && json_is_object(json_array_get(v, 0))) {
            printf("%s\n", key);
            show_rows(v, "  ");
            continue;
        }
        cell(v, text, sizeof text);
        printf("%-*s %s\n", width, key, text);
    }
}

void mc_cli_show(const json_t *v, bool json)
{
    char text[1024];

    if (json) {
        json_dumpf(v, stdout, JSON_ENCODE_ANY | JSON_INDENT(2));
        printf("\n");
    } else if (json_is_object(v)) {
        show_object(v);
    } else if (json_is_array(v) && json_is_object(json_array_get(v, 0))) {
        show_rows(v, "");
    } else if (!json_is_array(v)) {
        cell(v, text, sizeof text);
        printf("%s\n", text);
    }
}

int mc_cli_call(const char *socket, const char *verb, json_t *params, bool json)
{
    struct mc_client *c = NULL;
    json_t *result = NULL;
    struct mc_err err;
    int rc = mc_client_open(socket, &c, &err);

    if (rc < 0)
        json_decref(params);
    else
        rc = mc_client_call(c, verb, params, &result, &err);
    if (rc == 0)
        mc_cli_show(result, json);
    else
        rc = mc_cli_fail(&err);
    json_decref(result);
    mc_client_close(c);
    return rc;
}

const struct mc_verb *mc_cli_verb(const char *word)
{
    const struct mc_verb *v = mc_verbs;

    while (v->name && (!(v->flags & MC_VERB_WORD) || strcmp(v->name, word) != 0))
        v++;
    return v->name ? v : NULL;
}

int mc_cmd_verb(int argc, char **argv, const struct mc_lua_half *lua)
{
    struct mc_settings set;
    bool json = false;
    const struct mc_flag flags[] = {{"json", NULL, &json, "the answer as JSON"}, {0}};
    const char *usage = mc_cli_verb(argv[0])->args;
    struct mc_args a = {.word = argv[0], .usage = usage, .who = MC_FOR_SOCK, .flags = flags,
                        .max = *usage ? 4 : 0, .set = &set};
    json_t *params;
    int rc = mc_args_parse(&a, argc, argv, lua);

    if (rc < 0) {
        params = json_array();
        rc = 0;
        for (int i = 0; i < a.n_pos; i++)
            rc |= json_array_append_new(params, json_string(a.pos[i]));
        if (rc == 0) {
            rc = mc_cli_call(set.socket, argv[0], params, json);
        } else {
            fprintf(stderr, "mascon: %s: an argument is not valid UTF-8\n", a.word);
            json_decref(params);
            rc = 2;
        }
    }
    mc_settings_free(&set);
    return rc;
}
