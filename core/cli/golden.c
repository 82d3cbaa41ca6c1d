/* golden.c - golden files held against a model: logits, layers, greedy, tokenizer, chat.
 *
 * Golden files are what Hugging Face transformers computes in fp32 from the same weights:
 *   logits.safetensors  p{i}.ids I32 [T], p{i}.pos I32 [n], p{i}.logits F32 [n,V],
 *                       p{i}.spread F32 [n]: how far they move when rounded otherwise
 *   layers.safetensors  p{i}.ids, p{i}.embed, p{i}.layer.{L}, p{i}.norm F32 [T,H]
 *   greedy.json         [{prompt_ids, ids, gap}]: gap = best minus second logit of a step
 *   tokenizer.jsonl     {text, special, ids}; lines end at \n only
 *   chat.jsonl          {messages, tools, kwargs, rendered} (golden_chat.c)
 *   eval.json           bf16_compute_logit_difference {max, mean}
 *
 * Tolerances. Exact (ref, f32 keys and values): |logit difference| <= 2e-3 + 2 spread,
 * residual 2e-3, final norm 1e-3. Else, where the reference recorded what computing in
 * bf16 costs: mean <= 3x and max <= 2x that. Else, and with fp8 keys and values: KL <=
 * 3e-3 and top-1 agreement >= 0.96. Greedy steps are teacher-forced: another token is a
 * tie where the gap is below twice the tolerance in use; by KL, 0.96 of the steps have to
 * agree. THREAD: main. */
#include "core/cli/golden.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "core/model/solo.h"
#include "core/weights/weights.h"

enum { ROWS = 256, OUTS = 64 };

struct tolerance {
    bool by_kl; /* else by difference */
    double max, mean;
};

struct run {
    struct mc_golden *g;
    struct mc_solo *solo;
    struct tolerance tol;
    int over, files;
};

/* What was found in one file. */
struct found {
    double max_abs, sum_abs, n_abs;
    double kl, n_kl, top1;
    double worst; /* difference beyond what is allowed, at most 0 when all is well */
};

/* ---- files ------------------------------------------------------------------------- */

static int path_of(const struct mc_golden *g, const char *name, char *out, size_t cap)
{
    FILE *f;
    int n = snprintf(out, cap, "%s/%s", g->dir, name);

    if (n < 0 || (size_t)n >= cap)
        return 0;
    f = fopen(out, "rb");
    if (f)
        fclose(f);
    return f != NULL;
}

/* A tensor of this dtype, or NULL; *n is its element count, *last its last dimension. */
static const void *tensor(const struct mc_ckpt *c, const char *dtype, int64_t *n,
                          int64_t *last, const char *fmt, int i, int j)
{
    char name[64];
    const struct mc_stored *t;

    snprintf(name, sizeof name, fmt, i, j);
    t = mc_ckpt_find(c, name);
    if (!t || strcmp(t->dtype, dtype) != 0)
        return NULL;
    *n = 1;
    for (int32_t d = 0; d < t->n_dim; d++)
        *n *= t->dim[d];
    *last = t->n_dim ? t->dim[t->n_dim - 1] : 1;
    return t->data;
}

static void say(struct run *r, const char *file, bool ok, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static void say(struct run *r, const char *file, bool ok, const char *fmt, ...)
{
    char text[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    r->files++;
    r->over += !ok;
    if (r->g->json) {
        json_t *o = json_pack("{s:s, s:b, s:s}", "file", file, "ok", ok, "text", text);

        json_dumpf(o, stdout, JSON_COMPACT);
        printf("\n");
        json_decref(o);
    } else {
        printf("%-20s %-4s %s\n", file, ok ? "ok" : "FAIL", text);
    }
    fflush(stdout);
}

/* ---- comparing --------------------------------------------------------------------- */

static int32_t argmax(const float *x, int64_t n)
{
    int32_t best = 0;

    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = (int32_t)i;
    return best;
}

static double lse(const float *x, int64_t n)
{
    double max = x[argmax(x, n)], sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += exp(x[i] - max);
    return max + log(sum);
}

/* One row of logits against its golden; a NaN is an infinite difference. */
static void compare_row(struct found *f, const float *got, const float *want, int64_t v,
                        double allowed)
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
    f->top1 += argmax(got, v) == argmax(want, v);
}

static bool within(const struct run *r, const struct found *f)
{
    if (r->tol.by_kl)
        return f->kl / f->n_kl <= 3e-3 && f->top1 / f->n_kl >= 0.96;
    return f->worst <= 0 && f->sum_abs / f->n_abs <= r->tol.mean;
}

/* Runs a prompt in chunks and hands over the logits of the rows at pos[0..n_pos), which
 * rise. */
static int run_prompt(struct run *r, const int32_t *ids, int64_t n, const int32_t *pos,
                      int64_t n_pos,
                      void (*row)(void *ctx, int64_t j, const float *logits), void *ctx,
                      struct mc_err *err)
{
    int64_t at = 0, j = 0, v = r->g->model->cfg.vocab;

    mc_solo_reset(r->solo);
    while (at < n) {
        int32_t take = n - at < ROWS ? (int32_t)(n - at) : ROWS, out[OUTS], n_out = 0;
        const float *logits;
        int rc;

        for (int64_t k = j; k < n_pos && pos[k] < at + take; k++) {
            if (n_out == OUTS) { /* no more rows of logits at once: a shorter run */
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
    struct run *r;
    struct found *f;
    const float *want, *spread;
};

static void on_logits(void *p, int64_t j, const float *got)
{
    struct logits_ctx *c = p;
    int64_t v = c->r->g->model->cfg.vocab;

    compare_row(c->f, got, c->want + j * v, v,
                c->r->tol.max + (c->r->g->exact ? 2 * (double)c->spread[j] : 0));
}

static int check_logits(struct run *r, const char *file, struct mc_err *err)
{
    struct found f = {.worst = -INFINITY};
    struct mc_ckpt *c = NULL;
    int rc = mc_ckpt_open_tensors(file, &c, err), i = 0;

    for (; rc == 0; i++) {
        int64_t n, n_pos, n_want, n_spread, last;
        const int32_t *ids = tensor(c, "I32", &n, &last, "p%d.ids", i, 0);
        const int32_t *pos = tensor(c, "I32", &n_pos, &last, "p%d.pos", i, 0);
        const float *want = tensor(c, "F32", &n_want, &last, "p%d.logits", i, 0);
        const float *spread;

        if (!ids || !pos || !want || last != r->g->model->cfg.vocab ||
            n_want != n_pos * r->g->model->cfg.vocab)
            break;
        spread = tensor(c, "F32", &n_spread, &last, "p%d.spread", i, 0);
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
    say(r, "logits.safetensors", within(r, &f),
        "%d prompts, %.0f rows: max %.2e, mean %.2e, KL %.2e, top-1 %.4f", i, f.n_kl,
        f.max_abs, f.sum_abs / f.n_abs, f.kl / f.n_kl, f.top1 / f.n_kl);
    return 0;
}

/* ---- layers.safetensors ------------------------------------------------------------ */

struct layers_ctx {
    struct run *r;
    const struct mc_ckpt *c;
    int i;
    int64_t n;
    int seen;
    double residual, norm;
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

static void on_layer(void *p, int32_t layer)
{
    struct layers_ctx *c = p;
    const struct mc_config *cfg = &c->r->g->model->cfg;
    bool norm = layer == cfg->n_layer;
    int64_t n, last;
    const float *want = tensor(c->c, "F32", &n, &last,
                               layer < 0 ? "p%d.embed"
                               : norm    ? "p%d.norm"
                                         : "p%d.layer.%d",
                               c->i, layer);
    const float *got = norm ? mc_pass_norm(mc_solo_pass(c->r->solo))
                            : mc_pass_residual(mc_solo_pass(c->r->solo));
    double d;

    if (!want || n != c->n * cfg->hidden || mc_solo_wait(c->r->solo) < 0)
        return;
    c->seen++;
    d = max_diff(got, want, n);
    if (norm)
        c->norm = d > c->norm ? d : c->norm;
    else
        c->residual = d > c->residual ? d : c->residual;
}

static int check_layers(struct run *r, const char *file, struct mc_err *err)
{
    struct layers_ctx x = {.r = r};
    struct mc_ckpt *c = NULL;
    int rc = mc_ckpt_open_tensors(file, &c, err);
    bool exact = r->g->exact && r->g->kv == MC_KV_F32;

    for (x.c = c; rc == 0; x.i++) {
        int64_t last;
        const int32_t *ids = tensor(c, "I32", &x.n, &last, "p%d.ids", x.i, 0);
        const struct mc_pass_watch watch = {on_layer, &x};
        const float *logits;

        if (!ids || x.n > ROWS)
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
    say(r, "layers.safetensors", !exact || (x.residual <= 2e-3 && x.norm <= 1e-3),
        "%d tensors: residual max %.2e, final norm max %.2e%s", x.seen, x.residual,
        x.norm, exact ? "" : " (no tolerance but for ref with f32)");
    return 0;
}

/* ---- greedy.json ------------------------------------------------------------------- */

struct greedy_ctx {
    struct run *r;
    const json_t *ids, *gap;
    int64_t same, ties, wrong, first_wrong;
};

static void on_greedy(void *p, int64_t j, const float *got)
{
    struct greedy_ctx *c = p;
    int32_t want = (int32_t)json_integer_value(json_array_get(c->ids, (size_t)j));
    double gap = json_number_value(json_array_get(c->gap, (size_t)j));

    if (argmax(got, c->r->g->model->cfg.vocab) == want)
        c->same++;
    else if (gap < 2 * c->r->tol.max)
        c->ties++;
    else if (c->wrong++ == 0)
        c->first_wrong = j;
}

/* Teacher-forced: row n_prompt - 1 + j predicts ids[j]. */
static int greedy_prompt(struct run *r, const json_t *item, struct greedy_ctx *x,
                         struct mc_err *err)
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

static int check_greedy(struct run *r, const char *file, struct mc_err *err)
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
    say(r, "greedy.json", ok, "%zu prompts: %lld of %lld steps equal, %lld ties", i,
        (long long)x.same, (long long)total, (long long)x.ties);
    return 0;
}

/* ---- tokenizer.jsonl --------------------------------------------------------------- */

static bool same_ids(const struct mc_ids *got, const json_t *want)
{
    if (got->n != json_array_size(want))
        return false;
    for (size_t i = 0; i < got->n; i++)
        if (got->v[i] != json_integer_value(json_array_get(want, i)))
            return false;
    return true;
}

static int check_tokenizer(struct run *r, const char *file, struct mc_err *err)
{
    FILE *f = fopen(file, "rb");
    char *line = NULL, first[80] = "";
    size_t cap = 0, n = 0, wrong = 0;
    int rc = 0;

    if (!f)
        return mc_fail(err, MC_EIO, "tokenizer.jsonl can't be opened");
    while (rc == 0 && getline(&line, &cap, f) > 0) {
        json_t *o = json_loads(line, JSON_ALLOW_NUL, NULL);
        const json_t *text = json_object_get(o, "text");
        struct mc_ids got = {0};
        unsigned flags = json_is_true(json_object_get(o, "special")) ? MC_TOK_SPECIAL : 0;

        if (!json_is_string(text))
            rc = mc_fail(err, MC_EFORMAT, "tokenizer.jsonl: line %zu has no text", n + 1);
        else
            rc = mc_tok_encode(r->g->tok, json_string_value(text),
                               json_string_length(text), flags, &got, err);
        if (rc == 0 && !same_ids(&got, json_object_get(o, "ids")) && wrong++ == 0)
            snprintf(first, sizeof first, ", first at line %zu", n + 1);
        n++;
        mc_ids_free(&got);
        json_decref(o);
    }
    free(line);
    fclose(f);
    if (rc == 0 && n == 0)
        rc = mc_fail(err, MC_EFORMAT, "tokenizer.jsonl: no texts in it");
    if (rc == 0)
        say(r, "tokenizer.jsonl", wrong == 0, "%zu texts, %zu differ%s", n, wrong, first);
    return rc;
}

static int check_chat(struct run *r, const char *file, struct mc_err *err)
{
    size_t n = 0, wrong = 0, first = 0;
    int rc = mc_golden_chat(r->g, file, &n, &wrong, &first, err);

    if (rc == 0 && wrong == 0)
        say(r, "chat.jsonl", true, "%zu conversations", n);
    else if (rc == 0)
        say(r, "chat.jsonl", false, "%zu of %zu conversations differ, first at line %zu",
            wrong, n, first);
    return rc;
}

/* ---- all --------------------------------------------------------------------------- */

static int pick_tolerance(struct run *r, struct mc_err *err)
{
    char path[4096];
    const json_t *bf16;
    json_t *o;

    r->tol = (struct tolerance){.by_kl = false, .max = 2e-3, .mean = INFINITY};
    if (r->g->exact && r->g->kv == MC_KV_F32)
        return 0;
    r->tol = (struct tolerance){.by_kl = true, .max = 0.1};
    if (!path_of(r->g, "eval.json", path, sizeof path))
        return 0;
    o = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    if (!o)
        return mc_fail(err, MC_EFORMAT, "eval.json is not JSON");
    bf16 = json_object_get(o, "bf16_compute_logit_difference");
    if (bf16 && r->g->kv != MC_KV_FP8)
        r->tol = (struct tolerance){
            .max = 2 * json_number_value(json_object_get(bf16, "max")),
            .mean = 3 * json_number_value(json_object_get(bf16, "mean"))};
    json_decref(o);
    return 0;
}

int mc_golden_run(struct mc_golden *g, struct mc_err *err)
{
    static const struct {
        const char *name;
        int (*check)(struct run *r, const char *file, struct mc_err *err);
    } kinds[] = {
        {"tokenizer.jsonl", check_tokenizer},
        {"chat.jsonl", check_chat},
        {"layers.safetensors", check_layers},
        {"logits.safetensors", check_logits},
        {"greedy.json", check_greedy},
    };
    struct mc_solo_opts o = {.context = 4096, .rows = ROWS, .outs = OUTS, .kv = g->kv};
    struct run r = {.g = g};
    char path[4096];
    int rc = pick_tolerance(&r, err);

    if (rc == 0)
        rc = mc_solo_open(g->model, &o, &r.solo, err);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0] && rc == 0; i++)
        if (path_of(g, kinds[i].name, path, sizeof path))
            rc = kinds[i].check(&r, path, err);
    mc_solo_close(r.solo);
    if (rc < 0)
        return rc;
    if (r.files == 0)
        return mc_fail_param(err, MC_ENOENT, "golden", "--golden: no golden files in it");
    return r.over > 0;
}
