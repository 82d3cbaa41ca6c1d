/* golden_layers.c - what every layer leaves, held against layers.safetensors.
 *
 * The residual stream after each layer, the experts that a row went to and the positions
 * that an indexer chose. A choice whose margin (the score of the last one in, less that
 * of the first one out) is within CLOSE may go either way, and what follows from it too.
 * Owns nothing after it returns. THREAD: main. */
#include <math.h>
#include <stdlib.h>

#include "core/cli/golden_int.h"

#define CLOSE 1e-5

struct layers_ctx {
    struct mc_golden_job *r;
    const struct mc_ckpt *c;
    int i;
    int64_t n;
    int seen;
    double residual, norm;
    struct mc_golden_sets experts, index;
};

static double max_diff(const float *a, const float *b, int64_t n)
{
    double max = 0;

    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);

        max = d > max || !(d <= INFINITY) ? d : max;
    }
    return max;
}

/* ---- choices ----------------------------------------------------------------------- */

/* Row t's experts: theirs rise by id, ours fall by score. */
static bool same_experts(const int32_t *got, const float *weight, const int32_t *want,
                         const float *want_weight, int32_t k, double *worst)
{
    for (int32_t i = 0; i < k; i++) {
        int32_t at = 0;

        while (at < k && got[at] != want[i])
            at++;
        if (at == k)
            return false;
        if (!(fabs((double)weight[at] - want_weight[i]) <= *worst))
            *worst = fabs((double)weight[at] - want_weight[i]);
    }
    return true;
}

static void compare_experts(const struct mc_golden_job *r, const struct mc_ckpt *c, int i,
                            int32_t layer, struct mc_golden_sets *s)
{
    const struct mc_pass *p = mc_solo_pass(r->solo);
    const int32_t *got = mc_pass_peek(p, MC_PEEK_EXPERTS);
    const float *weight = mc_pass_peek(p, MC_PEEK_EXPERT_WEIGHTS);
    int64_t n, n_margin, last, k;
    const int32_t *want =
        mc_golden_tensor(c, "I32", &n, &k, "p%d.router.%d.experts", i, layer);
    const float *w = mc_golden_tensor(c, "F32", &last, &last, "p%d.router.%d.weights", i,
                                      layer);
    const float *margin =
        mc_golden_tensor(c, "F32", &n_margin, &last, "p%d.router.%d.margin", i, layer);

    if (!want || !w || !margin || !got || k != r->g->model->cfg.top_k_expert)
        return;
    for (int64_t t = 0; t < n_margin && (t + 1) * k <= n; t++) {
        bool same = same_experts(got + t * k, weight + t * k, want + t * k, w + t * k,
                                 (int32_t)k, &s->weights);

        s->rows++;
        s->close += !same && margin[t] <= CLOSE;
        s->wrong += !same && margin[t] > CLOSE;
    }
}

/* Both rise, -1 behind the last; ours are `shift` higher. */
static bool same_set(const int32_t *got, const int32_t *want, int64_t k, int32_t shift)
{
    for (int64_t i = 0; i < k; i++)
        if (got[i] != (want[i] < 0 ? want[i] : want[i] + shift))
            return false;
    return true;
}

static void compare_sets(const struct mc_golden_job *r, const struct mc_ckpt *c, int i,
                         int32_t layer, struct mc_golden_sets *s)
{
    const struct mc_config *cfg = &r->g->model->cfg;
    const int32_t *got = mc_pass_peek(mc_solo_pass(r->solo), MC_PEEK_INDEX_SET);
    int64_t n, n_pos, n_margin, last, k;
    const int32_t *pos = mc_golden_tensor(c, "I32", &n_pos, &last, "p%d.index.pos", i, 0);
    const int32_t *want = mc_golden_tensor(c, "I32", &n, &k, "p%d.index.%d.set", i,
                                           layer);
    const float *margin =
        mc_golden_tensor(c, "F32", &n_margin, &last, "p%d.index.%d.margin", i, layer);

    if (!got || !pos || !want || !margin || k != cfg->index_topk || n != n_pos * k ||
        n_margin != n_pos)
        return;
    for (int64_t j = 0; j < n_pos; j++) {
        bool same = pos[j] >= 0 && pos[j] < MC_GOLDEN_ROWS &&
                    same_set(got + pos[j] * k, want + j * k, k, layer >= cfg->n_layer);

        s->rows++;
        s->close += !same && margin[j] <= CLOSE;
        s->wrong += !same && margin[j] > CLOSE;
    }
}

void mc_golden_choices(struct mc_golden_job *r, const struct mc_ckpt *c, int i,
                       int32_t layer, struct mc_golden_sets *experts,
                       struct mc_golden_sets *index)
{
    if (layer < 0 || mc_solo_wait(r->solo) < 0)
        return;
    compare_experts(r, c, i, layer, experts);
    compare_sets(r, c, i, layer, index);
}

/* ---- layers ------------------------------------------------------------------------ */

static void on_layer(void *p, int32_t layer)
{
    struct layers_ctx *c = p;
    const struct mc_config *cfg = &c->r->g->model->cfg;
    bool norm = layer == cfg->n_layer;
    int64_t n, last;
    const float *want = mc_golden_tensor(c->c, "F32", &n, &last,
                                         layer < 0 ? "p%d.embed"
                                         : norm    ? "p%d.norm"
                                                   : "p%d.layer.%d",
                                         c->i, layer);
    const float *got = mc_pass_peek(mc_solo_pass(c->r->solo),
                                    norm ? MC_PEEK_NORM : MC_PEEK_RESIDUAL);
    double d;

    if (!norm)
        mc_golden_choices(c->r, c->c, c->i, layer, &c->experts, &c->index);
    if (!want || n != c->n * cfg->hidden || mc_solo_wait(c->r->solo) < 0)
        return;
    c->seen++;
    d = max_diff(got, want, n);
    if (norm)
        c->norm = d > c->norm ? d : c->norm;
    else
        c->residual = d > c->residual ? d : c->residual;
}

static void say(struct mc_golden_job *r, const struct layers_ctx *x)
{
    bool exact = r->g->exact && r->g->kv == MC_KV_F32;
    bool near = x->residual <= 2e-3 && x->norm <= 1e-3 && x->experts.weights <= 1e-4;
    const char *free = exact ? "" : " (no tolerance but for ref with f32)";

    mc_golden_say(r, "layers.safetensors", !exact || near,
                  "%d tensors: residual max %.2e, final norm max %.2e%s", x->seen,
                  x->residual, x->norm, free);
    if (x->experts.rows > 0)
        mc_golden_say(
            r, "  experts", !exact || x->experts.wrong == 0,
            "%lld rows: %lld other choices, %lld too close to call, weights max "
            "%.2e%s",
            (long long)x->experts.rows, (long long)x->experts.wrong,
            (long long)x->experts.close, x->experts.weights, free);
    if (x->index.rows > 0)
        mc_golden_say(r, "  index sets", !exact || x->index.wrong == 0,
                      "%lld sets: %lld other choices, %lld too close to call%s",
                      (long long)x->index.rows, (long long)x->index.wrong,
                      (long long)x->index.close, free);
}

int mc_golden_layers(struct mc_golden_job *r, const char *file, struct mc_err *err)
{
    struct layers_ctx x = {.r = r};
    struct mc_ckpt *c = NULL;
    int rc = mc_ckpt_open_tensors(file, &c, err);

    for (x.c = c; rc == 0; x.i++) {
        int64_t last;
        const int32_t *ids = mc_golden_tensor(c, "I32", &x.n, &last, "p%d.ids", x.i, 0);
        const struct mc_pass_watch watch = {.on_layer = on_layer, .ctx = &x};
        const float *logits;

        if (!ids || x.n > MC_GOLDEN_ROWS)
            break;
        mc_solo_reset(r->solo);
        rc = mc_solo_run(r->solo, ids, (int32_t)x.n, NULL, 0, &watch, &logits, err);
    }
    mc_ckpt_close(c);
    if (rc < 0)
        return rc;
    if (x.seen == 0)
        return mc_fail(err, MC_EFORMAT,
                       "layers.safetensors: no p0.layer.N of this model");
    say(r, &x);
    return 0;
}
