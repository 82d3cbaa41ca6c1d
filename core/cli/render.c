/* render.c - `mascon render`: the prompt that a conversation becomes, exactly.
 *
 * MODEL's own chat template or a FILE.jinja; the conversation is JSON ({"messages": ...} and
 * whatever else the template reads), from --input or stdin. For a MODEL messages are brought
 * to one spelling first, as serving does; a lone template gets them as they are. --tokens
 * prints ids instead.
 * MASCON_NOW (Unix seconds) pins the template's clock. OWNS nothing afterwards.
 * THREAD: main. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "core/cli/chat.h"
#include "core/cli/cli.h"
#include "core/weights/weights.h"

enum { TEXT_MAX = 16 << 20 };

struct job {
    const struct mc_lua_half *lua;
    struct mc_ckpt *ckpt;
    struct mc_tok *tok; /* NULL for a lone template */
    struct mc_render *render;
    json_t *input, *pieces;
};

static int read_file(const char *path, char **text, size_t *n, struct mc_err *err)
{
    FILE *f = path ? fopen(path, "rb") : stdin;

    *text = malloc(TEXT_MAX + 1);
    if (!f || !*text)
        return mc_fail(err, MC_EIO, "%s: %s", path ? path : "stdin", strerror(errno));
    *n = fread(*text, 1, TEXT_MAX + 1, f);
    if (path)
        fclose(f);
    return *n <= TEXT_MAX ? 0 : mc_fail(err, MC_EBIG, "%s is over %d bytes",
                                        path ? path : "stdin", TEXT_MAX);
}

static int open_template(struct job *j, const char *from, struct mc_err *err)
{
    const char *pin = getenv("MASCON_NOW"), *dot = strrchr(from, '.');
    double now = pin ? strtod(pin, NULL) : -1;
    char *text = NULL;
    size_t n;
    int rc;

    if (dot && strcmp(dot, ".jinja") == 0) {
        rc = read_file(from, &text, &n, err);
        if (rc == 0)
            rc = j->lua->render_open(text, n, "", "", now, &j->render, err);
        free(text);
        return rc;
    }
    rc = mc_ckpt_open(from, &j->ckpt, err);
    if (rc == 0)
        rc = mc_tok_open(j->ckpt, &j->tok, err);
    return rc < 0 ? rc : mc_chat_template(j->lua, j->tok, now, &j->render, err);
}

static int read_input(struct job *j, const char *path, struct mc_err *err)
{
    char *text = NULL;
    size_t n;
    int rc = read_file(path, &text, &n, err);

    if (rc == 0) {
        j->input = mc_json_read(text, n, err);
        rc = j->input ? 0 : err->code;
    }
    if (rc == 0 && !json_is_object(j->input))
        rc = mc_fail(err, MC_EFORMAT, "the input must be an object with messages");
    free(text);
    return rc;
}

static int show_ids(struct job *j, struct mc_err *err)
{
    struct mc_ids ids = {0};
    size_t i;
    int rc;

    if (!j->tok)
        return mc_fail(err, MC_EARG, "--tokens needs a MODEL, not a template alone");
    rc = mc_chat_encode(j->tok, j->pieces, &ids, err);
    for (i = 0; i < ids.n && rc == 0; i++)
        printf("%s%d", i ? " " : "", ids.v[i]);
    if (rc == 0)
        printf("\n");
    mc_ids_free(&ids);
    return rc;
}

static void show_text(const json_t *pieces)
{
    json_t *p;
    size_t i;

    json_array_foreach(pieces, i, p) {
        const json_t *t = json_object_get(p, "text");

        fwrite(json_string_value(t), 1, json_string_length(t), stdout);
    }
}

int mc_cmd_render(int argc, char **argv, const struct mc_lua_half *lua)
{
    const char *input = NULL;
    bool tokens = false;
    const struct mc_flag flags[] = {
        {"input", "FILE.json", &input, "the conversation [stdin]"},
        {"tokens", NULL, &tokens, "print token ids"},
        {0},
    };
    struct mc_args a = {.word = "render", .usage = "MODEL|FILE.jinja [flags]",
                        .flags = flags, .min = 1, .max = 1};
    struct job j = {.lua = lua};
    struct mc_err err = {0};
    int rc = mc_args_parse(&a, argc, argv, lua);

    if (rc >= 0)
        return rc;
    rc = open_template(&j, a.pos[0], &err);
    if (rc == 0)
        rc = read_input(&j, input, &err);
    if (rc == 0)
        rc = lua->render_run(j.render, j.input, !j.tok, &j.pieces, &err);
    if (rc == 0 && tokens)
        rc = show_ids(&j, &err);
    else if (rc == 0)
        show_text(j.pieces);
    json_decref(j.pieces);
    json_decref(j.input);
    if (j.render)
        lua->render_close(j.render);
    mc_tok_close(j.tok);
    mc_ckpt_close(j.ckpt);
    return rc < 0 ? mc_cli_fail(&err) : 0;
}
