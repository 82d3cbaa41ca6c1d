/* chat.c - `mascon chat MODEL`: a conversation in this process, without a server.
 *
 * Keeps the history, renders it by the model's chat template, shows the answer as it
 * comes and its speed after it. Ctrl-C stops an answer; the end of input leaves. A stdin
 * that is no terminal is one message. A model that says nothing of sampling answers with its
 * likeliest tokens: small ones make little sense at a temperature of 1.
 *
 * OWNS the engine. THREAD: main; tokens come over mc_gen's queue. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/cli/chat.h"
#include "core/cli/cli.h"
#include "core/cli/edit.h"
#include "core/cli/lua_half.h"
#include "core/cli/term.h"
#include "core/mc.h"
#include "core/serve/gen.h"

enum { MESSAGE_MAX = 1 << 20 };

struct chat {
    const struct mc_lua_half *lua;
    struct mc_engine *engine;
    struct mc_render *render;
    json_t *messages;
    int32_t limit; /* tokens of an answer, -1: as room allows */
    double temperature; /* below 0: the model's own, else 0 */
    bool terminal;
};

static volatile sig_atomic_t interrupted;

static void on_sigint(int sig)
{
    (void)sig;
    interrupted = 1;
}

/* ---- the prompt -------------------------------------------------------------------- */

static char *token_text(const struct mc_tok *tok, int32_t id)
{
    size_t n;
    bool special;
    const char *s = mc_tok_piece(tok, id, &n, &special);

    return strndup(s, n);
}

int mc_chat_template(const struct mc_lua_half *lua, const struct mc_tok *tok, double now,
                     struct mc_render **out, struct mc_err *err)
{
    size_t n;
    const char *text = mc_tok_chat_template(tok, &n);
    char *bos = token_text(tok, mc_tok_bos(tok)), *eos = token_text(tok, mc_tok_eos(tok));
    int rc;

    if (!text)
        rc = mc_fail(err, MC_EUNSUP, "this model has no chat template");
    else if (!bos || !eos)
        rc = mc_fail(err, MC_ENOMEM, "no memory for a chat template");
    else
        rc = lua->render_open(text, n, bos, eos, now, out, err);
    free(bos);
    free(eos);
    return rc;
}

int mc_chat_encode(const struct mc_tok *tok, const json_t *pieces, struct mc_ids *ids,
                   struct mc_err *err)
{
    size_t n = json_array_size(pieces), i, at = 0, total = 0;
    struct mc_tok_part *parts = calloc(n + 1, sizeof *parts);
    json_t *p;
    char *text;
    int rc;

    json_array_foreach(pieces, i, p)
        total += json_string_length(json_object_get(p, "text"));
    text = malloc(total + 1);
    if (!parts || !text) {
        free(parts);
        free(text);
        return mc_fail(err, MC_ENOMEM, "no memory for a prompt of %zu bytes", total);
    }
    json_array_foreach(pieces, i, p) {
        const json_t *t = json_object_get(p, "text");

        memcpy(text + at, json_string_value(t), json_string_length(t));
        at += json_string_length(t);
        parts[i] = (struct mc_tok_part){at,
                                        !json_is_true(json_object_get(p, "from_user"))};
    }
    rc = n ? mc_tok_encode_parts(tok, text, total, parts, (int)n, ids, err) : 0;
    free(parts);
    free(text);
    return rc;
}

static int prompt_of(struct chat *c, struct mc_ids *ids, struct mc_err *err)
{
    json_t *input = json_pack("{s:O}", "messages", c->messages), *pieces = NULL;
    int rc = c->lua->render_run(c->render, input, false, &pieces, err);

    if (rc == 0)
        rc = mc_chat_encode(mc_engine_tok(c->engine), pieces, ids, err);
    json_decref(pieces);
    json_decref(input);
    return rc;
}

/* ---- the answer -------------------------------------------------------------------- */

static void show_speed(const struct chat *c, const struct mc_end *end)
{
    const struct mc_usage *u = &end->usage;
    bool cut = c->limit >= 0 && u->n_gen >= c->limit;

    printf("\n[%d tokens", u->n_gen);
    if (u->n_gen > 1 && u->t_end > u->t_first)
        printf(", %.1f tokens/s, the first after %.0f ms", (u->n_gen - 1) /
               (u->t_end - u->t_first), (u->t_first - u->t_arrive) * 1e3);
    printf("%s]\n", end->finish == MC_FINISH_CANCEL   ? ", stopped"
                    : end->finish != MC_FINISH_LENGTH ? ""
                    : cut ? ", cut short: --max-tokens-default"
                          : ", the context is full");
}

/* Shows pieces until the end; the text goes to *answer too. */
static int follow(struct chat *c, struct mc_gen *g, FILE *answer, struct mc_err *err)
{
    const struct mc_end *end = NULL;
    struct mc_piece p;
    int rc = 0;

    while (rc != 2) {
        if (interrupted) {
            interrupted = 0;
            mc_gen_cancel(g, "stopped");
        }
        rc = mc_gen_wait(g, 0.1, &p, &end);
        if (rc != 1)
            continue;
        mc_term_put(p.text, p.n, c->terminal);
        fflush(stdout);
        fwrite(p.text, 1, p.n, answer);
    }
    if (end->finish == MC_FINISH_ERROR) {
        *err = end->err;
        return err->code;
    }
    if (c->terminal)
        show_speed(c, end);
    else
        putchar('\n');
    return 0;
}

static void sampling(const struct chat *c, struct mc_params *p)
{
    const struct mc_config *config = mc_engine_config(c->engine);

    mc_params_default(config, p);
    if (c->temperature >= 0)
        p->temperature = c->temperature;
    else if (!config->has_sampling)
        p->temperature = 0;
}

static int answer(struct chat *c, const char *text, size_t n, struct mc_err *err)
{
    struct mc_gen_opts o = {.req = {.limit = c->limit, .n_top = -1}};
    struct mc_ids ids = {0};
    struct mc_gen *g = NULL;
    char *said = NULL;
    size_t n_said = 0;
    FILE *f = open_memstream(&said, &n_said);
    int rc;

    if (!f)
        return mc_fail(err, MC_ENOMEM, "no memory for an answer");
    json_array_append_new(c->messages, json_pack("{s:s, s:s%}", "role", "user", "content",
                                                 text, n));
    rc = prompt_of(c, &ids, err);
    sampling(c, &o.req.want);
    o.req.ids = ids.v;
    o.req.n_ids = (int32_t)ids.n;
    if (rc == 0)
        rc = mc_gen_open(c->engine, &o, NULL, NULL, &g, err);
    if (rc == 0)
        rc = follow(c, g, f, err);
    if (g)
        mc_gen_close(g);
    fclose(f);
    if (rc == 0)
        json_array_append_new(c->messages, json_pack("{s:s, s:s%}", "role", "assistant",
                                                     "content", said, n_said));
    else
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
    mc_ids_free(&ids);
    free(said);
    return rc;
}

/* ---- the conversation -------------------------------------------------------------- */

static int talk(struct chat *c)
{
    struct mc_edit *e = mc_edit_open(&interrupted, NULL, NULL);
    enum mc_edit_end end = MC_EDIT_LINE;
    struct mc_err err;
    const char *line;
    size_t n;

    printf("%s; Ctrl-D leaves, Ctrl-C stops an answer\n", "Say something");
    while (e && end != MC_EDIT_EOF) {
        end = mc_edit_line(e, "> ", &line, &n);
        while (end == MC_EDIT_LINE && n && (line[n - 1] == '\n' || line[n - 1] == ' '))
            n--;
        if (end != MC_EDIT_LINE || n == 0)
            continue;
        mc_edit_remember(e, line, n);
        interrupted = 0;
        if (answer(c, line, n, &err) < 0)
            mc_cli_fail(&err);
    }
    mc_edit_close(e);
    return 0;
}

static int talk_once(struct chat *c, struct mc_err *err)
{
    char *text = malloc(MESSAGE_MAX);
    size_t n = text ? fread(text, 1, MESSAGE_MAX, stdin) : 0;
    int rc = 0;

    while (n && text[n - 1] == '\n')
        n--;
    if (n)
        rc = answer(c, text, n, err);
    free(text);
    return rc;
}

static int start(struct chat *c, const char *model, const struct mc_settings *s,
                 struct mc_err *err)
{
    const struct mc_engine_opts o = {
        .model = model, .backend = s->backend, .cpu = *s->cpu ? s->cpu : NULL,
        .threads = (int)s->threads, .ranks = (int32_t)s->ranks,
        .kv = s->kv, .kv_bytes = (uint64_t)s->kv_memory,
        .max_context = (int32_t)s->max_context, .max_seqs = 1, .chunk = (int32_t)s->chunk,
        .mla_expand = (int32_t)s->mla_expand,
        .prefill_bf16 = *s->prefill_kv != 0,
    };
    int rc = mc_engine_open(&o, &c->engine, err);

    if (rc == 0)
        c->limit = mc_limit_default(c->engine, s->max_tokens_default);
    if (rc == 0)
        rc = mc_chat_template(c->lua, mc_engine_tok(c->engine), -1, &c->render, err);
    if (rc == 0)
        rc = mc_engine_start(c->engine, err);
    return rc;
}

/* From 0 to 2, as in a request; *out stays when it is not given. */
static int temperature_of(const char *text, double *out, struct mc_err *err)
{
    char *end = NULL;

    if (!text)
        return 0;
    *out = strtod(text, &end);
    if (end == text || *end || !(*out >= 0 && *out <= 2))
        return mc_fail_param(err, MC_EARG, "temperature",
                             "--temperature: '%.40s' is no number "
                             "from 0 to 2",
                             text);
    return 0;
}

int mc_cmd_chat(int argc, char **argv, const struct mc_lua_half *lua)
{
    struct sigaction sa = {.sa_handler = on_sigint};
    const char *temperature = NULL;
    const struct mc_flag flags[] = {
        {"temperature", "T", &temperature, "0 is the likeliest token [the model's own, else 0]"},
        {0}};
    struct mc_settings set;
    struct mc_args a = {.word = "chat", .usage = "MODEL [flags]", .who = MC_FOR_CHAT,
                        .flags = flags, .min = 1, .max = 1, .set = &set};
    struct chat c = {.lua = lua, .terminal = isatty(STDOUT_FILENO), .temperature = -1};
    struct mc_err err = {0};
    int rc = mc_args_parse(&a, argc, argv, lua);

    if (rc < 0) {
        c.messages = json_array();
        rc = temperature_of(temperature, &c.temperature, &err);
        if (rc == 0)
            rc = mc_cli_logs(&set, &err);
        if (rc == 0)
            rc = start(&c, a.pos[0], &set, &err);
        sigaction(SIGINT, &sa, NULL);
        if (rc == 0)
            rc = isatty(STDIN_FILENO) ? talk(&c) : talk_once(&c, &err);
        if (rc < 0)
            rc = mc_cli_fail(&err);
        if (c.render)
            lua->render_close(c.render);
        if (c.engine)
            mc_engine_stop(c.engine);
        mc_engine_close(c.engine);
        json_decref(c.messages);
    }
    mc_settings_free(&set);
    return rc;
}
