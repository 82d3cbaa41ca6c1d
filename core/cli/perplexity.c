/* perplexity.c - how well a model predicts a text.
 *
 * The text is cut in windows of WINDOW tokens that know nothing of each other; a token of
 * a window's second half is scored by what the model gave it after all before it in the
 * window. That is what llama.cpp's tool of the name does, so that the two compare; it has
 * WINDOW / 2 - 1 scores a window. OWNS nothing after it returns. THREAD: main. */
#include "core/cli/perplexity.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/model/solo.h"

enum { WINDOW = 512, HALF = WINDOW / 2, MAX_BYTES = 256 << 20 };

static int read_text(const char *path, char **out, size_t *n, struct mc_err *err)
{
    FILE *f = fopen(path, "rb");
    long size = -1;
    char *text = NULL;

    if (f && fseek(f, 0, SEEK_END) == 0)
        size = ftell(f);
    if (size >= 0 && size <= MAX_BYTES)
        text = malloc((size_t)size + 1);
    if (text) {
        rewind(f);
        *n = fread(text, 1, (size_t)size, f);
    }
    if (f)
        fclose(f);
    *out = text;
    return text ? 0
                : mc_fail_param(err, MC_EIO, "text",
                                "--text: %s is no file of up to %d MiB", path,
                                MAX_BYTES >> 20);
}

static double nll_of(const float *logits, int32_t n, int32_t id)
{
    double max = logits[0], sum = 0;

    for (int32_t i = 1; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int32_t i = 0; i < n; i++)
        sum += exp(logits[i] - max);
    return max + log(sum) - logits[id];
}

static int score_window(struct mc_solo *s, const struct mc_model *m, const int32_t *ids,
                        struct mc_perplexity *p, struct mc_err *err)
{
    int32_t row[HALF - 1];
    const float *logits;
    int rc;

    for (int32_t i = 0; i < HALF - 1; i++)
        row[i] = HALF + i;
    mc_solo_reset(s);
    rc = mc_solo_run(s, ids, WINDOW, row, HALF - 1, NULL, &logits, err);
    if (rc < 0)
        return rc;
    for (int32_t i = 0; i < HALF - 1; i++)
        p->nll += nll_of(logits + (int64_t)i * m->cfg.vocab, m->n_real, ids[row[i] + 1]);
    p->n_scored += HALF - 1;
    p->n_window++;
    return 0;
}

int mc_perplexity(const struct mc_model *m, const struct mc_tok *tok,
                  enum mc_kv_layout kv, const char *path, struct mc_perplexity *out,
                  struct mc_err *err)
{
    const struct mc_solo_opts o = {.context = WINDOW,
                                   .rows = WINDOW,
                                   .outs = HALF,
                                   .kv = kv};
    struct mc_solo *s = NULL;
    struct mc_ids ids = {0};
    char *text = NULL;
    size_t n = 0;
    int rc = read_text(path, &text, &n, err);

    *out = (struct mc_perplexity){0};
    if (rc == 0)
        rc = mc_tok_encode(tok, text, n, 0, &ids, err);
    if (rc == 0 && ids.n < WINDOW)
        rc = mc_fail_param(err, MC_EARG, "text", "--text: %zu tokens, %d are needed",
                           ids.n, WINDOW);
    if (rc == 0)
        rc = mc_solo_open(m, &o, &s, err);
    for (size_t at = 0; rc == 0 && at + WINDOW <= ids.n; at += WINDOW)
        rc = score_window(s, m, ids.v + at, out, err);
    out->n_token = (int32_t)ids.n;
    if (out->n_scored > 0)
        out->nll /= out->n_scored;
    mc_solo_close(s);
    mc_ids_free(&ids);
    free(text);
    return rc;
}
