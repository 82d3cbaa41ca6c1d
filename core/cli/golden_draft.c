/* golden_draft.c - the draft layer held against mtp.safetensors.
 *
 * p{i}: the model's own hidden states k with tokens k+1; p{i}.logits and .hidden of rows
 * p{i}.pos. chain: the last hidden state with the token that the model chose, then each
 * draft's hidden state with its own token. Owns nothing after it returns. THREAD: main.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/cli/golden_int.h"

struct draft_ctx {
    struct mc_golden_job *r;
    const struct mc_ckpt *c;
    int i;
    struct mc_golden_found f;
    double hidden;
    struct mc_golden_sets experts, index;
};

static void on_layer(void *p, int32_t layer)
{
    struct draft_ctx *x = p;

    mc_golden_choices(x->r, x->c, x->i, layer, &x->experts, &x->index);
}

/* Runs the model over ids and the draft layer behind it; its rows' logits of out. */
static int run_both(struct draft_ctx *x, const int32_t *ids, int64_t n,
                    const int32_t *out, int64_t n_out, const float **logits,
                    struct mc_err *err)
{
    const struct mc_pass_watch watch = {.on_layer = on_layer, .ctx = x};
    int rc;

    mc_solo_reset(x->r->solo);
    rc = mc_solo_run(x->r->solo, ids, (int32_t)n, NULL, 0, NULL, logits, err);
    return rc < 0 ? rc
                  : mc_solo_draft(x->r->solo, ids + 1, (int32_t)n - 1, 1, NULL, out,
                                  (int32_t)n_out, &watch, logits, err);
}

static void compare_hidden(struct draft_ctx *x, const int32_t *pos, int64_t n_pos,
                           const float *want)
{
    int64_t h = x->r->g->model->cfg.hidden;
    const float *got = mc_pass_peek(mc_solo_pass(x->r->solo), MC_PEEK_NORM);

    for (int64_t j = 0; j < n_pos; j++)
        for (int64_t k = 0; k < h; k++) {
            double d = fabs((double)got[pos[j] * h + k] - want[j * h + k]);

            x->hidden = d > x->hidden || !(d <= INFINITY) ? d : x->hidden;
        }
}

static int check_prompt(struct draft_ctx *x, bool *more, struct mc_err *err)
{
    int64_t n, n_pos, n_want, n_hidden, last, v = x->r->g->model->cfg.vocab;
    const int32_t *ids = mc_golden_tensor(x->c, "I32", &n, &last, "p%d.ids", x->i, 0);
    const int32_t *pos = mc_golden_tensor(x->c, "I32", &n_pos, &last, "p%d.pos", x->i, 0);
    const float *want = mc_golden_tensor(x->c, "F32", &n_want, &last, "p%d.logits", x->i,
                                         0);
    const float *hidden =
        mc_golden_tensor(x->c, "F32", &n_hidden, &last, "p%d.hidden", x->i, 0);
    const float *logits;
    int rc;

    *more = ids && pos && want && hidden && n > 1 && n <= MC_GOLDEN_ROWS &&
            n_pos <= MC_GOLDEN_OUTS && n_want == n_pos * v &&
            n_hidden == n_pos * x->r->g->model->cfg.hidden;
    if (!*more)
        return 0;
    rc = run_both(x, ids, n, pos, n_pos, &logits, err);
    if (rc < 0)
        return rc;
    for (int64_t j = 0; j < n_pos; j++)
        mc_golden_compare(&x->f, logits + j * v, want + j * v, v, x->r->tol.max);
    compare_hidden(x, pos, n_pos, hidden);
    return 0;
}

/* Entries of the prompt lie at 1..n-1, that of the model's first token at n, and so on.
 */
static int check_chain(struct draft_ctx *x, struct mc_err *err)
{
    int64_t n, n_tok, n_want, last, v = x->r->g->model->cfg.vocab;
    size_t h = (size_t)x->r->g->model->cfg.hidden;
    const int32_t *ids = mc_golden_tensor(x->c, "I32", &n, &last, "chain.ids", 0, 0);
    const int32_t *tok = mc_golden_tensor(x->c, "I32", &n_tok, &last, "chain.tokens", 0,
                                          0);
    const float *want = mc_golden_tensor(x->c, "F32", &n_want, &last, "chain.logits", 0,
                                         0);
    const float *logits;
    float *hidden;
    int rc;

    if (!ids || !tok || !want || n_tok < 2 || n > MC_GOLDEN_ROWS ||
        n_want != (n_tok - 1) * v)
        return 0;
    hidden = malloc(h * sizeof *hidden);
    if (!hidden)
        return mc_fail(err, MC_ENOMEM, "no memory for a hidden state");
    mc_solo_reset(x->r->solo);
    rc = mc_solo_run(x->r->solo, ids, (int32_t)n, NULL, 0, NULL, &logits, err);
    if (rc == 0)
        memcpy(hidden,
               (const float *)mc_pass_peek(mc_solo_pass(x->r->solo), MC_PEEK_NORM) +
                   (size_t)(n - 1) * h,
               h * sizeof *hidden);
    if (rc == 0)
        rc = mc_solo_draft(x->r->solo, ids + 1, (int32_t)n - 1, 1, NULL, NULL, 0, NULL,
                           &logits, err);
    for (int64_t j = 0; j < n_tok - 1 && rc == 0; j++) {
        rc = mc_solo_draft(x->r->solo, tok + j, 1, (int32_t)(n + j), hidden,
                           (int32_t[]){0}, 1, NULL, &logits, err);
        if (rc < 0)
            break;
        mc_golden_compare(&x->f, logits, want + j * v, v, x->r->tol.max);
        memcpy(hidden, mc_pass_peek(mc_solo_pass(x->r->solo), MC_PEEK_NORM),
               h * sizeof *hidden);
    }
    free(hidden);
    return rc;
}

int mc_golden_drafts(struct mc_golden_job *r, const char *file, struct mc_err *err)
{
    struct draft_ctx x = {.r = r, .f = {.worst = -INFINITY}};
    bool exact = r->g->exact && r->g->kv == MC_KV_F32, more = true, ok;
    struct mc_ckpt *c = NULL;
    int rc;

    if (r->g->model->cfg.n_mtp == 0) {
        mc_golden_say(r, "mtp.safetensors", false, "the checkpoint has no draft layer");
        return 0;
    }
    rc = mc_ckpt_open_tensors(file, &c, err);
    for (x.c = c; rc == 0 && more; x.i += more)
        rc = check_prompt(&x, &more, err);
    if (rc == 0)
        rc = check_chain(&x, err);
    mc_ckpt_close(c);
    if (rc < 0)
        return rc;
    if (x.f.n_kl == 0)
        return mc_fail(err, MC_EFORMAT,
                       "mtp.safetensors: no p0.ids, .pos, .logits, .hidden of "
                       "this model");
    ok = mc_golden_within(r, &x.f) &&
         (!exact || (x.hidden <= 1e-3 && x.index.wrong == 0 && x.experts.wrong == 0));
    mc_golden_say(
        r, "mtp.safetensors", ok,
        "%d prompts and a chain, %.0f rows: max %.2e, KL %.2e, top-1 %.4f; hidden max "
        "%.2e; %lld of %lld index sets differ",
        x.i, x.f.n_kl, x.f.max_abs, x.f.kl / x.f.n_kl, x.f.top1 / x.f.n_kl, x.hidden,
        (long long)x.index.wrong, (long long)x.index.rows);
    return 0;
}
