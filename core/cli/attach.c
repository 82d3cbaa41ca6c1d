/* attach.c - `mascon attach`: a REPL in a running server.
 *
 * The server holds the session: its VM, its variables, its parser. This side edits lines,
 * sends chunks, shows what comes. Ctrl-C stops the chunk that runs there, or drops the
 * line that is being typed; the end of input ends the session with status 0. With -e or a
 * FILE one chunk runs; a stdin that is no terminal is run line by line as it comes, up to the
 * first error. An error is status 1.
 *
 * OWNS the connection and the line editor. THREAD: main. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/cli/cli.h"
#include "core/cli/client.h"
#include "core/cli/edit.h"
#include "core/cli/term.h"

enum { CHUNK_MAX = 900 << 10 }; /* fits a message of the socket */

static volatile sig_atomic_t interrupted;
static bool mid_line; /* what was printed last had no newline */
static bool json; /* --json: values as JSON, a line each */

static void on_sigint(int sig)
{
    (void)sig;
    interrupted = 1;
}

/* ---- what comes back --------------------------------------------------------------- */

static void on_out(void *ctx, const char *s, size_t n)
{
    mc_term_put(s, n, *(bool *)ctx);
    mid_line = n ? s[n - 1] != '\n' : mid_line;
    fflush(stdout);
}

/* 0: shown; 1: an error was shown; 2: the chunk goes on. */
static int show(const json_t *result, bool raw, bool terminal)
{
    const json_t *text = json_object_get(result, "text");
    const char *s = json_string_value(text);
    size_t n = json_string_length(text);

    if (json_is_true(json_object_get(result, "incomplete")))
        return 2;
    if (json_is_true(json_object_get(result, "failed"))) {
        fflush(stdout);
        fprintf(stderr, raw ? "mascon: %s\n" : "%s\n", s ? s : "error");
        return 1;
    }
    if (mid_line && !raw)
        putchar('\n');
    if (s && json_integer_value(json_object_get(result, "values")) > 0) {
        mc_term_put(s, n, terminal);
        if (!n || s[n - 1] != '\n')
            putchar('\n');
    }
    fflush(stdout);
    return 0;
}

/* Runs a chunk, of an input from this line on or 0; as show, or 3 when the connection is
 * lost. */
static int eval(struct mc_client *c, const char *text, size_t n, bool raw, bool terminal,
                int line)
{
    json_t *how = json ? json_string("json") : json_boolean(raw);
    json_t *result = NULL;
    struct mc_err err;
    int rc;

    if (n > CHUNK_MAX) {
        json_decref(how);
        fprintf(stderr, "mascon: a chunk of %zu bytes is over %d\n", n, CHUNK_MAX);
        return 1;
    }
    interrupted = 0;
    rc = mc_client_call(c, "repl.eval", json_pack("[s%, o, i]", text, n, how, line),
                        &result, &err);
    if (rc == 0)
        rc = show(result, raw, terminal);
    else
        fprintf(stderr, "%s%s\n", raw ? "mascon: " : "", err.text);
    json_decref(result);
    return rc == MC_EIO ? 3 : rc < 0 ? 1 : rc;
}

/* ---- one chunk --------------------------------------------------------------------- */

static char *read_all(const char *path, size_t *n, struct mc_err *err)
{
    FILE *f = fopen(path, "r");
    char *text = f ? malloc(CHUNK_MAX + 2) : NULL;

    if (text)
        *n = fread(text, 1, CHUNK_MAX + 1, f);
    if (!text || ferror(f)) {
        mc_fail(err, MC_EIO, "%s: %s", path, strerror(errno));
        free(text);
        text = NULL;
    }
    if (f)
        fclose(f);
    return text;
}

static int run_once(struct mc_client *c, const char *expr, const char *path)
{
    struct mc_err err;
    size_t n = expr ? strlen(expr) : 0;
    char *text = expr ? strdup(expr) : read_all(path, &n, &err);
    int rc;

    if (!text)
        return mc_cli_fail(&err);
    rc = eval(c, text, n, true, false, 0);
    free(text);
    return rc != 0;
}

/* ---- lines ------------------------------------------------------------------------ */

/* Adds a line to the chunk; false when it grows too large. */
static bool add_line(char **chunk, size_t *n, const char *line, size_t len)
{
    char *more;

    if (*n + len > CHUNK_MAX)
        return false;
    more = realloc(*chunk, *n + len + 1);
    if (!more)
        return false;
    memcpy(more + *n, line, len);
    *chunk = more;
    *n += len;
    more[*n] = 0;
    return true;
}

static bool blank(const char *chunk, size_t n)
{
    return strspn(chunk, " \t\r\n") >= n;
}

/* What comes by a pipe, as a session: each chunk runs once its lines are whole. */
static int run_lines(struct mc_client *c)
{
    char *line = NULL, *chunk = NULL;
    size_t cap = 0, n = 0;
    int at = 0, first = 1, rc = 0;
    ssize_t len;

    while ((rc == 0 || rc == 2) && (len = getline(&line, &cap, stdin)) > 0) {
        at++;
        first = n ? first : at;
        if (!add_line(&chunk, &n, line, (size_t)len)) {
            fprintf(stderr, "mascon: stdin:%d: what begins here is over %d bytes\n",
                    first, CHUNK_MAX);
            rc = 1;
            break;
        }
        if (!blank(chunk, n))
            rc = eval(c, chunk, chunk[n - 1] == '\n' ? n - 1 : n, true, false, first);
        if (rc != 2)
            n = 0;
    }
    if (rc == 2)
        fprintf(stderr, "mascon: stdin:%d: what begins here has no end\n", first);
    free(line);
    free(chunk);
    return rc != 0 || interrupted;
}

/* ---- a session --------------------------------------------------------------------- */

static char **complete(void *ctx, const char *text)
{
    json_t *names = NULL;
    char **list;
    size_t i, n;

    if (mc_client_call(ctx, "repl.complete", json_pack("[s]", text), &names, NULL) < 0)
        return NULL;
    n = json_array_size(names);
    list = calloc(n + 1, sizeof *list);
    for (i = 0; list && i < n; i++)
        list[i] = strdup(json_string_value(json_array_get(names, i)));
    json_decref(names);
    return list;
}

static int greet(struct mc_client *c, struct mc_err *err)
{
    json_t *st = NULL;
    int rc = mc_client_call(c, "status", json_array(), &st, err);
    const char *wrong = json_string_value(json_object_get(st, "policy_error"));

    if (rc == 0)
        printf("mascon %s  %s (%s)  policies: generation %d      help() for help\n",
               MC_VERSION, json_string_value(json_object_get(st, "model")),
               json_string_value(json_object_get(st, "backend")),
               (int)json_integer_value(json_object_get(st, "generation")));
    if (wrong)
        printf("policies: %s\n", wrong);
    json_decref(st);
    return rc;
}

static int session(struct mc_client *c, bool terminal)
{
    struct mc_edit *e = mc_edit_open(&interrupted, complete, c);
    char *chunk = NULL;
    size_t n = 0;
    int rc = 0;

    while (e && rc != 3) {
        size_t len;
        const char *line;
        enum mc_edit_end end = mc_edit_line(e, n ? ">> " : "> ", &line, &len);

        if (end == MC_EDIT_EOF)
            break;
        if (end == MC_EDIT_INTERRUPT) {
            n = 0;
            continue;
        }
        if (!add_line(&chunk, &n, line, len)) {
            fprintf(stderr, "that chunk is over %d bytes\n", CHUNK_MAX);
            n = 0;
            continue;
        }
        if (blank(chunk, n)) {
            n = 0;
            continue;
        }
        /* without the last newline: an open string asks for more, as an open block does
         */
        mid_line = false;
        rc = eval(c, chunk, chunk[n - 1] == '\n' ? n - 1 : n, false, terminal,
                  0);
        if (rc != 2) {
            mc_edit_remember(e, chunk, n);
            n = 0;
        }
    }
    free(chunk);
    mc_edit_close(e);
    return rc == 3;
}

int mc_cmd_attach(int argc, char **argv, const struct mc_lua_half *lua)
{
    struct sigaction sa = {.sa_handler = on_sigint};
    struct mc_settings set;
    const char *expr = NULL;
    const struct mc_flag flags[] = {
        {"e", "EXPR", &expr, "run this and print what it gives, strings as they are"},
        {"json", NULL, &json, "print values as JSON, a line each"}, {0}};
    struct mc_args a = {.word = "attach", .usage = "[--socket PATH] [-e EXPR] [FILE]",
                        .who = MC_FOR_SOCK, .flags = flags, .max = 1, .set = &set};
    bool terminal = isatty(STDOUT_FILENO), typed = isatty(STDIN_FILENO);
    struct mc_client *c = NULL;
    struct mc_err err;
    int rc = mc_args_parse(&a, argc, argv, lua);

    if (rc < 0) {
        sigaction(SIGINT, &sa, NULL);
        rc = mc_client_open(set.socket, &c, &err);
        if (rc < 0) {
            rc = mc_cli_fail(&err);
        } else {
            mc_client_watch(c, on_out, &terminal, &interrupted);
            if (expr || a.n_pos)
                rc = run_once(c, expr, a.n_pos ? a.pos[0] : NULL);
            else if (!typed)
                rc = run_lines(c);
            else
                rc = greet(c, &err) < 0 ? mc_cli_fail(&err) : session(c, terminal);
        }
        mc_client_close(c);
    }
    mc_settings_free(&set);
    return rc;
}
