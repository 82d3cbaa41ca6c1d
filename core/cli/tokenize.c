/* tokenize.c - mascon tokenize MODEL: standard input's text as ids on one line.
 *
 * Owns nothing. THREAD: main. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cli/cli.h"
#include "core/model/tokenizer.h"
#include "core/weights/weights.h"

enum { TEXT_MAX = 512 << 20 };

static int read_stdin(char **text, size_t *n, struct mc_err *err)
{
    size_t cap = 0, got = 1;
    char *bigger;

    *text = NULL;
    for (*n = 0; got > 0; *n += got) {
        if (*n == cap) {
            cap = cap ? cap * 2 : 1 << 16;
            bigger = cap <= TEXT_MAX ? realloc(*text, cap) : NULL;
            if (!bigger)
                return mc_fail(err, MC_EBIG, "standard input exceeds %d bytes or memory",
                               TEXT_MAX);
            *text = bigger;
        }
        got = fread(*text + *n, 1, cap - *n, stdin);
    }
    return ferror(stdin) ? mc_fail(err, MC_EIO, "standard input: %s", strerror(errno))
                         : 0;
}

static int print_ids(const struct mc_ids *ids, struct mc_err *err)
{
    size_t i;

    for (i = 0; i < ids->n; i++)
        printf("%s%d", i ? " " : "", ids->v[i]);
    printf("\n");
    if (fflush(stdout) != 0)
        return mc_fail(err, MC_EIO, "standard output: %s", strerror(errno));
    return 0;
}

static int tokenize(const char *model, unsigned flags, struct mc_err *err)
{
    struct mc_ckpt *c = NULL;
    struct mc_tok *t = NULL;
    struct mc_ids ids = {0};
    char *text = NULL;
    size_t n;
    int rc = mc_ckpt_open(model, &c, err);

    if (rc == 0)
        rc = mc_tok_open(c, &t, err);
    if (rc == 0)
        rc = read_stdin(&text, &n, err);
    if (rc == 0)
        rc = mc_tok_encode(t, text, n, flags, &ids, err);
    if (rc == 0)
        rc = print_ids(&ids, err);
    free(text);
    mc_ids_free(&ids);
    mc_tok_close(t);
    mc_ckpt_close(c);
    return rc;
}

int mc_cmd_tokenize(int argc, char **argv, const struct mc_lua_half *lua)
{
    bool add = false, parse = false;
    const struct mc_flag flags[] = {
        {"add-special", NULL, &add, "add what the model wants around a text, its BOS"},
        {"parse-special", NULL, &parse, "special tokens in the text become their ids"},
        {0},
    };
    struct mc_args a = {
        .word = "tokenize", .usage = "MODEL [--add-special] [--parse-special]",
        .flags = flags, .min = 1, .max = 1,
    };
    struct mc_err err = {0};
    int status = mc_args_parse(&a, argc, argv, lua);

    if (status >= 0)
        return status;
    if (tokenize(a.pos[0], (add ? MC_TOK_BOS : 0) | (parse ? MC_TOK_SPECIAL : 0), &err) <
        0)
        return mc_cli_fail(&err);
    return 0;
}
