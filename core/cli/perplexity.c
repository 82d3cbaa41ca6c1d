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

/* log of the sum of exponentials over the vocabulary. */
static double lse_of(const float *logits, int32_t n)
{
    double max = logits[0], sum = 0;

    for (int32_t i = 1; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int32_t i = 0; i < n; i++)
        sum += exp(logits[i] - max);
    return max + log(sum);
}

static int32_t best_of(const float *logits, int32_t n, double *lead)
{
    int32_t best = 0;
    double second = -INFINITY;

    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) {
            second = logits[best];
            best = i;
        } else if (logits[i] > second) {
            second = logits[i];
        }
    *lead = logits[best] - second;
    return best;
}

/* One position of both: sums go to p. */
static void compare(const float *got, const float *ref, int32_t n, int32_t id,
                    struct mc_perplexity *p)
{
    double lse = lse_of(got, n), ref_lse = lse_of(ref, n), kl = 0, lead, unused;
    bool same = best_of(ref, n, &lead) == best_of(got, n, &unused);

    for (int32_t i = 0; i < n; i++) {
        double log_p = ref[i] - ref_lse;

        kl += exp(log_p) * (log_p - (got[i] - lse));
    }
    p->ref_nll += ref_lse - ref[id];
    p->kl += kl;
    p->kl_max = kl > p->kl_max ? kl : p->kl_max;
    p->top1 += same;
    if (lead > 0.25) {
        p->n_clear++;
        p->top1_clear += same;
    }
}

struct run {
    const struct mc_model *m;
    struct mc_solo *solo, *ref; /* ref: or NULL */
};

static int score_window(const struct run *r, const int32_t *ids, struct mc_perplexity *p,
                        struct mc_err *err)
{
    int64_t pitch = r->m->cfg.vocab;
    int32_t row[HALF - 1];
    const float *logits, *ref = NULL;
    int rc;

    for (int32_t i = 0; i < HALF - 1; i++)
        row[i] = HALF + i;
    mc_solo_reset(r->solo);
    rc = mc_solo_run(r->solo, ids, WINDOW, row, HALF - 1, NULL, &logits, err);
    if (rc == 0 && r->ref) {
        mc_solo_reset(r->ref);
        rc = mc_solo_run(r->ref, ids, WINDOW, row, HALF - 1, NULL, &ref, err);
    }
    if (rc < 0)
        return rc;
    for (int32_t i = 0; i < HALF - 1; i++) {
        const float *got = logits + i * pitch;
        int32_t id = ids[row[i] + 1];

        p->nll += lse_of(got, r->m->n_real) - got[id];
        if (ref)
            compare(got, ref + i * pitch, r->m->n_real, id, p);
    }
    p->n_scored += HALF - 1;
    p->n_window++;
    return 0;
}

static int open_runs(const struct mc_predictor *of, const struct mc_predictor *ref,
                     struct run *r, struct mc_err *err)
{
    struct mc_solo_opts o = {.context = WINDOW, .rows = WINDOW, .outs = HALF, .kv = of->kv};
    const struct mc_model *other = ref ? &ref->ranks->rank[0].model : NULL;
    int rc;

    r->m = &of->ranks->rank[0].model;
    if (ref && (other->cfg.vocab != r->m->cfg.vocab || other->n_real != r->m->n_real))
        return mc_fail_param(err, MC_EARG, "against",
                             "--against: its vocabulary has %d tokens, the model's %d",
                             other->n_real, r->m->n_real);
    rc = mc_solo_open(of->ranks, &o, &r->solo, err);
    if (rc < 0 || !ref)
        return rc;
    o.kv = ref->kv;
    return mc_solo_open(ref->ranks, &o, &r->ref, err);
}

static void mean(struct mc_perplexity *p)
{
    double n = p->n_scored > 0 ? p->n_scored : 1;

    p->nll /= n;
    p->ref_nll /= n;
    p->kl /= n;
    p->top1 /= n;
    p->top1_clear /= p->n_clear > 0 ? p->n_clear : 1;
}

int mc_perplexity(const struct mc_predictor *of, const struct mc_predictor *ref,
                  const struct mc_tok *tok, const char *path, struct mc_perplexity *out,
                  struct mc_err *err)
{
    struct run r = {0};
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
        rc = open_runs(of, ref, &r, err);
    for (size_t at = 0; rc == 0 && at + WINDOW <= ids.n; at += WINDOW)
        rc = score_window(&r, ids.v + at, out, err);
    out->n_token = (int32_t)ids.n;
    mean(out);
    mc_solo_close(r.solo);
    mc_solo_close(r.ref);
    mc_ids_free(&ids);
    free(text);
    return rc;
}
