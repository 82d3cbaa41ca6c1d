/* golden_logits.c - logits held against theirs, and greedy decoding, teacher-forced.
 *
 * Owns nothing after it returns. THREAD: main. */
#include <math.h>
#include <stdlib.h>

#include <jansson.h>

#include "core/cli/golden_int.h"

/* ---- comparing --------------------------------------------------------------------- */

int32_t mc_golden_argmax(const float *x, int64_t n)
{
    int32_t best = 0;

    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = (int32_t)i;
    return best;
}

static double lse(const float *x, int64_t n)
{
    double max = x[mc_golden_argmax(x, n)], sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += exp(x[i] - max);
    return max + log(sum);
}

void mc_golden_compare(struct mc_golden_found *f, const float *got, const float *want,
                       int64_t v, double allowed)
{
    double lg = lse(got, v), lw = lse(want, v), kl = 0;

    for (int64_t i = 0; i < v; i++) {
        double d = fabs((double)got[i] - want[i]);

        if (!(d <= INFINITY))
            d = INFINITY;
        f->max_abs = d > f->max_abs ? d : f->max_abs;
        f->worst = d - allowed > f->worst ? d - allowed : f->worst;
        f->sum_abs += d;
        kl += exp(want[i] - lw) * ((want[i] - lw) - (got[i] - lg));
    }
    f->n_abs += (double)v;
    f->kl += kl;
    f->n_kl++;
    f->top1 += mc_golden_argmax(got, v) == mc_golden_argmax(want, v);
}

bool mc_golden_within(const struct mc_golden_job *r, const struct mc_golden_found *f)
{
    if (r->tol.by_kl)
        return f->kl / f->n_kl <= 3e-3 && f->top1 / f->n_kl >= 0.96;
    return f->worst <= 0 && f->sum_abs / f->n_abs <= r->tol.mean;
}

/* Runs a prompt in chunks and hands over the logits of the rows at pos[0..n_pos), which
 * rise. */
static int run_prompt(struct mc_golden_job *r, const int32_t *ids, int64_t n,
                      const int32_t *pos, int64_t n_pos,
                      void (*row)(void *ctx, int64_t j, const float *logits), void *ctx,
                      struct mc_err *err)
{
    int64_t at = 0, j = 0, v = r->g->model->cfg.vocab;

    mc_solo_reset(r->solo);
    while (at < n) {
        int32_t take = n - at < MC_GOLDEN_ROWS ? (int32_t)(n - at) : MC_GOLDEN_ROWS,
                out[MC_GOLDEN_OUTS], n_out = 0;
        const float *logits;
        int rc;

        for (int64_t k = j; k < n_pos && pos[k] < at + take; k++) {
            if (n_out ==
                MC_GOLDEN_OUTS) { /* no more rows of logits at once: a shorter run */
                take = (int32_t)(pos[k] - at);
                break;
            }
            out[n_out++] = (int32_t)(pos[k] - at);
        }
        rc = mc_solo_run(r->solo, ids + at, take, out, n_out, NULL, &logits, err);
        if (rc < 0)
            return rc;
        for (int32_t k = 0; k < n_out; k++)
            row(ctx, j++, logits + (int64_t)k * v);
        at += take;
    }
    return 0;
}

/* ---- logits.safetensors ------------------------------------------------------------ */

struct logits_ctx {
    struct mc_golden_job *r;
    struct mc_golden_found *f;
    const float *want, *spread;
};

static void on_logits(void *p, int64_t j, const float *got)
{
    struct logits_ctx *c = p;
    int64_t v = c->r->g->model->cfg.vocab;

    mc_golden_compare(c->f, got, c->want + j * v, v,
                c->r->tol.max + (c->r->g->exact ? 2 * (double)c->spread[j] : 0));
}

int mc_golden_logits(struct mc_golden_job *r, const char *file, struct mc_err *err)
{
    struct mc_golden_found f = {.worst = -INFINITY};
    struct mc_ckpt *c = NULL;
    int rc = mc_ckpt_open_tensors(file, &c, err), i = 0;

    for (; rc == 0; i++) {
        int64_t n, n_pos, n_want, n_spread, last;
        const int32_t *ids = mc_golden_tensor(c, "I32", &n, &last, "p%d.ids", i, 0);
        const int32_t *pos = mc_golden_tensor(c, "I32", &n_pos, &last, "p%d.pos", i, 0);
        const float *want = mc_golden_tensor(c, "F32", &n_want, &last, "p%d.logits", i,
                                             0);
        const float *spread;

        if (!ids || !pos || !want || last != r->g->model->cfg.vocab ||
            n_want != n_pos * r->g->model->cfg.vocab)
            break;
        spread = mc_golden_tensor(c, "F32", &n_spread, &last, "p%d.spread", i, 0);
        if (!spread || n_spread != n_pos)
            break;
        rc = run_prompt(r, ids, n, pos, n_pos, on_logits,
                        &(struct logits_ctx){r, &f, want, spread}, err);
    }
    mc_ckpt_close(c);
    if (rc < 0)
        return rc;
    if (i == 0)
        return mc_fail(err, MC_EFORMAT,
                       "logits.safetensors: p0.ids, .pos, .logits [n, %d] and "
                       ".spread are needed",
                       r->g->model->cfg.vocab);
    mc_golden_say(r, "logits.safetensors", mc_golden_within(r, &f),
        "%d prompts, %.0f rows: max %.2e, mean %.2e, KL %.2e, top-1 %.4f", i, f.n_kl,
        f.max_abs, f.sum_abs / f.n_abs, f.kl / f.n_kl, f.top1 / f.n_kl);
    return 0;
}

/* ---- greedy.json ------------------------------------------------------------------- */

struct greedy_ctx {
    struct mc_golden_job *r;
    const json_t *ids, *gap;
    int64_t same, ties, wrong, first_wrong;
};

static void on_greedy(void *p, int64_t j, const float *got)
{
    struct greedy_ctx *c = p;
    int32_t want = (int32_t)json_integer_value(json_array_get(c->ids, (size_t)j));
    double gap = json_number_value(json_array_get(c->gap, (size_t)j));

    if (mc_golden_argmax(got, c->r->g->model->cfg.vocab) == want)
        c->same++;
    else if (gap < 2 * c->r->tol.max)
        c->ties++;
    else if (c->wrong++ == 0)
        c->first_wrong = j;
}

/* Teacher-forced: row n_prompt - 1 + j predicts ids[j]. */
static int greedy_prompt(struct mc_golden_job *r, const json_t *item,
                         struct greedy_ctx *x, struct mc_err *err)
{
    const json_t *prompt = json_object_get(item, "prompt_ids");
    size_t n = json_array_size(prompt), m;
    int32_t *ids, *pos;
    int rc;

    x->ids = json_object_get(item, "ids");
    x->gap = json_object_get(item, "gap");
    m = json_array_size(x->ids);
    if (n < 1 || m < 1 || json_array_size(x->gap) != m || n + m > 4096)
        return mc_fail(err, MC_EFORMAT,
                       "greedy.json: prompt_ids, ids and gap are needed");
    ids = malloc((n + m) * sizeof *ids);
    pos = malloc(m * sizeof *pos);
    if (!ids || !pos) {
        free(ids), free(pos);
        return mc_fail(err, MC_ENOMEM, "no memory for greedy.json");
    }
    for (size_t i = 0; i < n + m; i++)
        ids[i] = (int32_t)json_integer_value(i < n ? json_array_get(prompt, i)
                                                   : json_array_get(x->ids, i - n));
    for (size_t i = 0; i < m; i++)
        pos[i] = (int32_t)(n - 1 + i);
    rc = run_prompt(r, ids, (int64_t)(n + m - 1), pos, (int64_t)m, on_greedy, x, err);
    free(ids), free(pos);
    return rc;
}

int mc_golden_greedy(struct mc_golden_job *r, const char *file, struct mc_err *err)
{
    struct greedy_ctx x = {.r = r, .first_wrong = -1};
    json_error_t je;
    json_t *list = json_load_file(file, JSON_REJECT_DUPLICATES, &je);
    int64_t total;
    size_t i;
    json_t *item;
    int rc = 0;
    bool ok;

    if (!json_is_array(list)) {
        json_decref(list);
        return mc_fail(err, MC_EFORMAT, "greedy.json: %s", je.text);
    }
    json_array_foreach(list, i, item) {
        rc = greedy_prompt(r, item, &x, err);
        if (rc < 0)
            break;
    }
    i = json_array_size(list);
    json_decref(list);
    if (rc < 0)
        return rc;
    total = x.same + x.ties + x.wrong;
    if (total == 0)
        return mc_fail(err, MC_EFORMAT, "greedy.json: no prompts in it");
    ok = r->tol.by_kl ? (double)(x.same + x.ties) >= 0.96 * (double)total : x.wrong == 0;
    mc_golden_say(r, "greedy.json", ok,
                  "%zu prompts: %lld of %lld steps equal, %lld ties", i,
                  (long long)x.same, (long long)total, (long long)x.ties);
    return 0;
}
