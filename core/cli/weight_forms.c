/* weight_forms.c - one model in several forms of its weights, served side by side.
 *
 * Owns nothing after a bench is cleared. THREAD: main. The forms take turns, round by
 * round, so that what else the machine does meets them alike; ratios are of speeds of one
 * round. */
#include "core/cli/weight_forms.h"

#include <stdio.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/sample.h"
#include "core/cli/burst.h"
#include "core/cli/lua_half.h"
#include "core/cli/weight_ops.h"
#include "core/compress/compress.h"
#include "core/model/load.h"
#include "core/weights/weights.h"

enum { PREFILL = 512, PROMPT = 8, TOKENS = 12, TOO_SMALL = 1 << 18 };
const int32_t mc_load_seqs[MC_LOADS] = {1, 16, 64};
static const int32_t gen[MC_LOADS] = {64, 48, 32};

void mc_forms_row(struct mc_forms *b, const struct mc_weight_form *f, const char *what,
                  double value, const char *unit, const char *mark)
{
    char name[160];

    snprintf(name, sizeof name, "%s_%s%s%s", b->prefix, f ? f->name : "", f ? "_" : "",
             what);
    mc_report_add(&b->report, name, value, unit, mark);
}

void mc_forms_name(struct mc_weight_form *f, const char *recipe, const char *name)
{
    *f = (struct mc_weight_form){.recipe = recipe};
    snprintf(f->name, sizeof f->name, "%s", name);
    for (char *s = f->name; *s; s++)
        *s = *s == '-' ? '_' : *s;
}

/* ---- making a form ----------------------------------------------------------------- */

static int press(struct mc_forms *b, const char *src, struct mc_weight_form *f,
                 struct mc_err *err)
{
    struct mc_press p = {.jobs = (int)b->set->threads, .recipe_name = f->recipe};
    struct mc_press_report report;
    struct mc_recipe *recipe = NULL;
    struct mc_ckpt *c = NULL;
    json_t *table = NULL;
    double t = mc_now();
    int rc = b->lua->recipe(f->recipe, &table, err);

    if (rc == 0)
        rc = mc_recipe_read(table, &recipe, err);
    if (rc == 0)
        rc = mc_ckpt_open(src, &c, err);
    p.src = c;
    p.recipe = recipe;
    if (rc == 0)
        rc = mc_press_run(&p, f->dir, &report, err);
    if (rc == 0)
        mc_forms_row(b, f, "compress_s", mc_now() - t, "s", NULL);
    json_decref(table);
    mc_recipe_free(recipe);
    mc_ckpt_close(c);
    return rc;
}

static int disk_bytes(const char *path, double *out, struct mc_err *err)
{
    struct mc_ckpt *c = NULL;
    int rc = mc_ckpt_open(path, &c, err);

    *out = 0;
    for (int32_t i = 0; rc == 0 && i < mc_ckpt_n(c); i++)
        *out += (double)mc_ckpt_at(c, i)->bytes;
    mc_ckpt_close(c);
    return rc;
}

/* Of a loaded model: what each step reads, and all experts. */
static struct mc_budget_read read_of(const struct mc_model *m)
{
    struct mc_budget_read r = {.fixed = m->body_bytes + m->head_bytes};

    for (int32_t i = 0; i < m->cfg.n_layer; i++) {
        const struct mc_layer *y = &m->layer[i];
        uint64_t one = y->e_gate.w.bytes + y->e_up.w.bytes + y->e_down.w.bytes;

        r.routed += one * (uint64_t)m->cfg.n_expert;
        r.fixed -= one * (uint64_t)m->cfg.top_k_expert;
    }
    return r;
}

static void show_ops(struct mc_forms *b, const struct mc_weight_form *f,
                     const struct mc_weight_op *op, int n)
{
    for (int i = 0; i < n; i++) {
        double share = op[i].bytes / op[i].seconds / b->roof;
        char what[64];

        if (op[i].bytes < TOO_SMALL)
            continue; /* starting threads is what is clocked */
        snprintf(what, sizeof what, "%s_%s_roof", op[i].op, op[i].form);
        mc_forms_row(b, f, what, share, "of roof", ">= 0.8");
        if (share < 0.8)
            json_array_append_new(b->invalid,
                                  json_sprintf("%s %s: %s of %s", b->prefix, f->name,
                                               op[i].op, op[i].form));
    }
}

/* Loads it as one rank, clocks its operations. */
static int clock_ops(struct mc_forms *b, struct mc_weight_form *f, struct mc_err *err)
{
    const struct mc_backend_opts bo = {.threads = (int)b->set->threads, .ref_act = -1,
                                       .cpu = *b->set->cpu ? b->set->cpu : NULL};
    struct mc_weight_op op[MC_WEIGHT_OPS];
    struct mc_ranks ranks = {0};
    struct mc_tok *tok = NULL;
    double before = mc_resident_bytes();
    int n = 0, rc = mc_ranks_open(&ranks, b->set->backend, &bo, 1, err);

    if (rc == 0)
        rc = mc_ranks_load(&ranks, f->dir, &tok, err);
    if (rc == 0) {
        mc_forms_row(b, f, "rss_bytes", mc_resident_bytes() - before, "bytes", NULL);
        f->read = read_of(&ranks.rank[0].model);
        f->cfg = ranks.rank[0].model.cfg;
        rc = mc_weight_ops(&ranks, TOKENS, op, &n, err);
    }
    if (rc == 0)
        show_ops(b, f, op, n);
    mc_ranks_close(&ranks);
    mc_tok_close(tok);
    return rc;
}

int mc_forms_add(struct mc_forms *b, const char *src, const char *recipe,
                 const char *name, struct mc_err *err)
{
    struct mc_weight_form *f = &b->form[b->n++];
    double bytes;
    int rc = 0;

    mc_forms_name(f, recipe, name ? name : recipe);
    snprintf(f->dir, sizeof f->dir, recipe ? "%s/%s" : "%s", recipe ? b->scratch : src,
             recipe);
    if (recipe)
        rc = press(b, src, f, err);
    if (rc == 0)
        rc = disk_bytes(f->dir, &bytes, err);
    if (rc == 0) {
        mc_forms_row(b, f, "disk_bytes", bytes, "bytes", NULL);
        rc = clock_ops(b, f, err);
    }
    if (rc == 0)
        rc = mc_cli_engine(b->set, f->dir, &f->e, err);
    if (rc == 0)
        rc = mc_engine_start(f->e, err);
    if (recipe)
        mc_scratch_remove(f->dir);
    return rc;
}

/* ---- serving ----------------------------------------------------------------------- */

static int one_round(struct mc_forms *b, int round, struct mc_err *err)
{
    int rc = 0;

    for (int i = 0; i < b->n && rc == 0; i++) {
        struct mc_burst burst = {.n = 1, .n_prompt = PREFILL, .n_gen = 1,
                                 .seed = (uint32_t)round + 1};
        struct mc_weight_form *f = &b->form[i];
        struct mc_burst_took took;

        rc = mc_burst_run(f->e, &burst, &took, err);
        f->prefill[round] = PREFILL / took.seconds;
        for (int j = 0; j < MC_LOADS && rc == 0; j++) {
            burst = (struct mc_burst){.n = mc_load_seqs[j],
                                      .n_prompt = PROMPT,
                                      .n_gen = gen[j],
                                      .seed = (uint32_t)(round * MC_LOADS + j + 100)};
            rc = mc_burst_run(f->e, &burst, &took, err);
            f->decode[j][round] = mc_load_seqs[j] * (gen[j] - 1) / took.decode;
        }
    }
    return rc;
}

static double median(const double *v, int n)
{
    double sorted[MC_ROUNDS];

    memcpy(sorted, v, (size_t)n * sizeof *v);
    return mc_median(sorted, n);
}

/* The median over the rounds of a's speed over b's in the same round. */
static double ratio(const double *a, const double *b, int n)
{
    double r[MC_ROUNDS];

    for (int i = 0; i < n; i++)
        r[i] = a[i] / b[i];
    return mc_median(r, n);
}

static void show_speeds(struct mc_forms *b)
{
    for (int i = 0; i < b->n; i++) {
        const struct mc_weight_form *f = &b->form[i];
        char what[32];

        mc_forms_row(b, f, "prefill_512", median(f->prefill, b->rounds), "tokens/s",
                     NULL);
        for (int j = 0; j < MC_LOADS; j++) {
            snprintf(what, sizeof what, "decode_%d", mc_load_seqs[j]);
            mc_forms_row(b, f, what, median(f->decode[j], b->rounds), "tokens/s", NULL);
        }
    }
}

static double step_bytes(const struct mc_weight_form *f, int j)
{
    return mc_budget_step_bytes(&f->cfg, &f->read, mc_load_seqs[j]);
}

void mc_forms_compare(struct mc_forms *b, int first, int second,
                      const char *const mark[MC_LOADS])
{
    const struct mc_weight_form *a = &b->form[first], *with = &b->form[second];
    char what[128];

    for (int j = 0; j < MC_LOADS; j++) {
        double got = ratio(a->decode[j], with->decode[j], b->rounds);
        double said = step_bytes(with, j) / step_bytes(a, j);

        snprintf(what, sizeof what, "%s_over_%s_%d", a->name, with->name,
                 mc_load_seqs[j]);
        mc_forms_row(b, NULL, what, got, "x", mark[j]);
        snprintf(what, sizeof what, "%s_over_%s_%d_by_bytes", a->name, with->name,
                 mc_load_seqs[j]);
        mc_forms_row(b, NULL, what, said, "x", NULL);
        snprintf(what, sizeof what, "%s_over_%s_%d_model_off", a->name, with->name,
                 mc_load_seqs[j]);
        mc_forms_row(b, NULL, what, said / got - 1, "", "within 0.15");
    }
    snprintf(what, sizeof what, "%s_over_%s_prefill", a->name, with->name);
    mc_forms_row(b, NULL, what, ratio(a->prefill, with->prefill, b->rounds), "x",
                 ">= 0.85");
}

void mc_forms_clear(struct mc_forms *b)
{
    for (int i = 0; i < b->n; i++)
        mc_engine_close(b->form[i].e);
    b->n = 0;
}

int mc_forms_serve(struct mc_forms *b, struct mc_err *err)
{
    int rc = 0;

    for (int i = 0; i < b->rounds && rc == 0; i++)
        rc = one_round(b, i, err);
    if (rc == 0)
        show_speeds(b);
    return rc;
}

