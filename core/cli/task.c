/* task.c - runs the questions of a task.
 *
 * The context is encoded with what the tokenizer puts before a text; a continuation's
 * tokens are those of context and continuation together behind the context's own, so that
 * a word is cut as it would be in a text. OWNS its sequence for the length of the call.
 * THREAD: main. */
#define _GNU_SOURCE /* getline */
#include "core/cli/task.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "core/model/solo.h"

enum { CONTEXT = 2048, OUTS = 256, CHOICES_MAX = 26 };

struct run {
    const struct mc_model *m;
    const struct mc_tok *tok;
    struct mc_solo *solo;
    const char *path;
    int line;
};

static int bad(const struct run *r, const char *field, const char *what,
               struct mc_err *err)
{
    return mc_fail_param(err, MC_EFORMAT, field, "%.80s, line %d: %s %s", r->path,
                         r->line, field, what);
}

/* What the model makes of a continuation: log-probability, and whether each of its tokens
 * is the most likely one. */
struct score {
    double logprob;
    bool greedy;
};

static void add_token(const float *logits, int32_t n, int32_t id, struct score *s)
{
    double max = logits[0], sum = 0;

    for (int32_t i = 1; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int32_t i = 0; i < n; i++)
        sum += exp(logits[i] - max);
    s->logprob += logits[id] - max - log(sum);
    s->greedy &= logits[id] == max;
}

/* The tokens of context and of both, as far as the window reaches. */
static int encode(const struct run *r, const char *context, const char *more,
                  struct mc_ids *ids, size_t *n_context, struct mc_err *err)
{
    size_t nc = strlen(context), nm = strlen(more);
    char *both = malloc(nc + nm + 1);
    int rc = both ? 0 : mc_fail(err, MC_ENOMEM, "no memory for a question");

    if (rc == 0) {
        memcpy(both, context, nc);
        memcpy(both + nc, more, nm + 1);
        rc = mc_tok_encode(r->tok, context, nc, MC_TOK_BOS, ids, err);
        *n_context = ids->n;
        ids->n = 0;
    }
    if (rc == 0)
        rc = mc_tok_encode(r->tok, both, nc + nm, MC_TOK_BOS, ids, err);
    free(both);
    if (rc < 0)
        return rc;
    if (ids->n <= *n_context || *n_context == 0)
        return bad(r, "answer", "adds no token to the context", err);
    if (ids->n > CONTEXT || ids->n - *n_context > OUTS)
        return bad(r, "context", "is too long", err);
    return 0;
}

static int score(const struct run *r, const char *context, const char *more,
                 struct score *out, struct mc_err *err)
{
    struct mc_ids ids = {0};
    int32_t row[OUTS], n;
    size_t n_context = 0;
    const float *logits;
    int rc = encode(r, context, more, &ids, &n_context, err);

    *out = (struct score){.greedy = true};
    if (rc == 0) {
        n = (int32_t)(ids.n - n_context);
        for (int32_t i = 0; i < n; i++)
            row[i] = (int32_t)n_context - 1 + i;
        mc_solo_reset(r->solo);
        rc = mc_solo_run(r->solo, ids.v, (int32_t)ids.n - 1, row, n, NULL, &logits, err);
        for (int32_t i = 0; i < n && rc == 0; i++)
            add_token(logits + (int64_t)i * r->m->cfg.vocab, r->m->n_real,
                      ids.v[n_context + (size_t)i], out);
    }
    mc_ids_free(&ids);
    return rc;
}

static int choose(const struct run *r, const char *context, const json_t *choices,
                  json_int_t answer, struct mc_task *t, struct mc_err *err)
{
    size_t n = json_array_size(choices), best = 0, best_byte = 0;
    double top = -INFINITY, top_byte = -INFINITY;

    if (n < 2 || n > CHOICES_MAX)
        return bad(r, "choices", "must be 2 to 26 texts", err);
    if (answer < 0 || (size_t)answer >= n)
        return bad(r, "answer", "is no index of choices", err);
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(json_array_get(choices, i));
        struct score s;
        int rc;

        if (!text || !*text)
            return bad(r, "choices", "must be 2 to 26 texts", err);
        rc = score(r, context, text, &s, err);
        if (rc < 0)
            return rc;
        if (s.logprob > top)
            top = s.logprob, best = i;
        if (s.logprob / (double)strlen(text) > top_byte)
            top_byte = s.logprob / (double)strlen(text), best_byte = i;
    }
    t->n_choice++;
    t->right_choice += best == (size_t)answer;
    t->right_per_byte += best_byte == (size_t)answer;
    return 0;
}

static int ask(const struct run *r, const json_t *q, struct mc_task *t,
               struct mc_err *err)
{
    const char *context = json_string_value(json_object_get(q, "context"));
    const json_t *choices = json_object_get(q, "choices");
    const json_t *answer = json_object_get(q, "answer");
    struct score s;
    int rc;

    if (!context || !*context)
        return bad(r, "context", "must be a text", err);
    if (choices)
        return json_is_array(choices) && json_is_integer(answer)
                   ? choose(r, context, choices, json_integer_value(answer), t, err)
                   : bad(r, "answer", "must be an index of the array choices", err);
    if (!json_is_string(answer) || json_string_length(answer) == 0)
        return bad(r, "answer", "must be a text", err);
    rc = score(r, context, json_string_value(answer), &s, err);
    if (rc < 0)
        return rc;
    t->n_cloze++;
    t->right_cloze += s.greedy;
    return 0;
}

static int ask_all(struct run *r, FILE *f, struct mc_task *t, struct mc_err *err)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int rc = 0;

    while (rc == 0 && (n = getline(&line, &cap, f)) > 0) {
        json_t *q;

        r->line++;
        if (line[strspn(line, " \t\r\n")] == 0)
            continue;
        q = mc_json_read(line, (size_t)n, err);
        rc = q ? ask(r, q, t, err)
               : mc_err_while(err, "%.80s, line %d", r->path, r->line);
        json_decref(q);
    }
    free(line);
    if (rc == 0 && t->n_choice + t->n_cloze == 0)
        rc = mc_fail_param(err, MC_EARG, "task", "--task: %.120s asks nothing", r->path);
    return rc;
}

int mc_task_run(const struct mc_predictor *of, const struct mc_tok *tok, const char *path,
                struct mc_task *out, struct mc_err *err)
{
    const struct mc_solo_opts o = {.context = CONTEXT, .rows = CONTEXT, .outs = OUTS,
                                   .kv = of->kv};
    struct run r = {.m = &of->ranks->rank[0].model, .tok = tok, .path = path};
    FILE *f = fopen(path, "r");
    int rc;

    *out = (struct mc_task){0};
    if (!f)
        return mc_fail_param(err, MC_EIO, "task", "--task: %.120s: %s", path,
                             strerror(errno));
    rc = mc_solo_open(of->ranks, &o, &r.solo, err);
    if (rc == 0)
        rc = ask_all(&r, f, out, err);
    mc_solo_close(r.solo);
    fclose(f);
    return rc;
}
