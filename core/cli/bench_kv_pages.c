/* bench_kv_pages.c - what a layout of pages holds, reads, costs and loses.
 *
 * Tokens at equal memory are counted in whole pages, and the memory by what the process
 * gains when all of them were written once. A decode step's bytes are those of the pool
 * that it touched. Quality is a text's perplexity and how near its predictions are to
 * those over bf16. OWNS nothing after it returns. THREAD: main. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/sample.h"
#include "core/cli/bench_kv.h"
#include "core/cli/bench_rig.h"
#include "core/cli/perplexity.h"
#include "core/model/load.h"

enum {
    POOL = 256 << 20, /* bytes that each layout is given */
    STEPS = 9,
    CHECKS = 2000,
};

int mc_kv_rivals(const struct mc_config *c, enum mc_kv_layout out[MC_KV_RIVALS])
{
    if (c->attn == MC_ATTN_GQA) {
        out[0] = MC_KV_FP8;
        return 1;
    }
    out[0] = MC_KV_FP8_PLAIN;
    out[1] = MC_KV_FP8_656;
    return 2;
}

void mc_kv_bench_add(struct mc_kv_bench *b, const struct mc_kv_subject *s,
                     const char *what, enum mc_kv_layout layout, double value,
                     const char *unit, const char *mark)
{
    char name[96];

    snprintf(name, sizeof name, "%s%s%s", what,
             layout == MC_KV_FP8_PLAIN ? "_plain" : layout == MC_KV_FP8_656 ? "_656" : "",
             s->tag);
    mc_report_add(&b->report, name, value, unit, mark);
}

/* ---- capacity ---------------------------------------------------------------------- */

/* Writes each page of a pool once; what the process grew by. */
static int fill(const struct mc_model *m, struct mc_kv *kv, double *grown,
                struct mc_err *err)
{
    struct mc_backend *be = m->be;
    struct mc_mem mem;
    struct mc_stream *s = NULL;
    uint32_t *list;
    int32_t n = kv->n_page;
    struct mc_page_init_p p;
    double before;
    int rc;

    mc_mem_init(&mem, be);
    list = mc_mem_take(&mem, (size_t)n * 2 * sizeof *list);
    kv->tag = mc_mem_take(&mem, (size_t)n * sizeof *kv->tag);
    for (int32_t i = 0; list && i < n; i++)
        list[2 * i] = (uint32_t)i;
    before = mc_resident_bytes();
    kv->base = mc_mem_take(&mem, (size_t)n * (size_t)kv->page_stride);
    rc = list && kv->tag && kv->base
             ? be->stream_new(be, &s)
             : mc_fail(err, MC_ENOMEM, "no memory for %d pages", n);
    p = (struct mc_page_init_p){.kv = *kv, .list = list, .n_list = &n, .cap = n};
    if (rc == 0)
        rc = mc_k_page_init(be, s, &p);
    if (rc == 0)
        rc = be->wait(s, be->mark(s));
    *grown = mc_resident_bytes() - before;
    be->stream_free(s);
    mc_mem_fini(&mem);
    return rc;
}

static int capacity(struct mc_kv_bench *b, const struct mc_kv_subject *s,
                    const struct mc_model *m, struct mc_err *err)
{
    enum mc_kv_layout rival[MC_KV_RIVALS];
    int n = mc_kv_rivals(&m->cfg, rival);
    int64_t plain = mc_model_kv(m, MC_KV_BF16).page_stride;

    for (int i = -1; i < n; i++) {
        enum mc_kv_layout layout = i < 0 ? MC_KV_BF16 : rival[i];
        struct mc_kv kv = mc_model_kv(m, layout);
        double grown, ratio = (double)plain / (double)kv.page_stride;
        char mark[48];
        int rc;

        kv.n_page = (int32_t)(POOL / kv.page_stride);
        rc = fill(m, &kv, &grown, err);
        if (rc < 0)
            return rc;
        snprintf(mark, sizeof mark, "in %d MiB", POOL >> 20);
        mc_kv_bench_add(b, s, i < 0 ? "kv_tokens_bf16" : "kv_tokens", layout,
                        (double)kv.n_page * MC_PAGE, "tokens", mark);
        snprintf(mark, sizeof mark, "%lld by layout",
                 (long long)(kv.page_stride / MC_PAGE));
        mc_kv_bench_add(b, s, i < 0 ? "kv_rss_token_bf16" : "kv_rss_token", layout,
                        grown / ((double)kv.n_page * MC_PAGE), "bytes", mark);
        if (i >= 0)
            mc_kv_bench_add(b, s, "kv_ratio", layout, ratio, "x", NULL);
    }
    return 0;
}

/* ---- a decode step ----------------------------------------------------------------- */

static int decode_step(struct mc_kv_bench *b, const struct mc_kv_subject *s,
                       struct mc_ranks *r, enum mc_kv_layout layout, struct mc_err *err)
{
    int32_t seqs = b->room < 1 ? 1 : b->room;
    int32_t context = (b->prompt + b->tokens) / MC_PAGE * MC_PAGE;
    struct mc_rig *g = NULL;
    double took = 0, check = 0, touched = -1, want;
    int rc;

    context = context < MC_PAGE ? MC_PAGE : context;
    rc = mc_rig_open(r, layout, seqs, context, &g, err);
    if (rc == 0)
        rc = mc_rig_touched(g, &touched, err);
    if (rc == 0)
        rc = mc_rig_step(g, STEPS, &took, err);
    if (rc == 0)
        rc = mc_rig_check(g, CHECKS, &check, err);
    if (rc == 0) {
        const char *name = layout == MC_KV_BF16 ? "decode_step_bf16" : "decode_step";

        want = (double)seqs * context * (double)mc_rig_kv(g)->page_stride / MC_PAGE;
        mc_kv_bench_add(b, s, name, layout, took * 1e3, "ms", NULL);
        name = layout == MC_KV_BF16 ? "kv_bytes_step_bf16" : "kv_bytes_step";
        if (touched >= 0)
            mc_kv_bench_add(b, s, name, layout, touched / want, "x", "1.00 +- 0.02");
        name = layout == MC_KV_BF16 ? "tag_cost_bf16" : "tag_cost";
        mc_kv_bench_add(b, s, name, layout, 100 * check / took, "%", "under 0.5");
    }
    mc_rig_close(g);
    return rc;
}

/* ---- quality ----------------------------------------------------------------------- */

static int quality(struct mc_kv_bench *b, const struct mc_kv_subject *s,
                   struct mc_ranks *r, const struct mc_tok *tok, enum mc_kv_layout layout,
                   struct mc_err *err)
{
    const struct mc_predictor of = {r, layout}, ref = {r, MC_KV_BF16};
    struct mc_perplexity p;
    int rc = mc_perplexity(&of, &ref, tok, b->text, &p, err);

    if (rc < 0)
        return rc;
    mc_kv_bench_add(b, s, "perplexity", layout, 100 * (exp(p.nll - p.ref_nll) - 1), "%",
                    "+0.5 at most");
    mc_kv_bench_add(b, s, "kl", layout, p.kl, "nats", "above 0, at most 0.003");
    mc_kv_bench_add(b, s, "top1", layout, 100 * p.top1, "%", "98 (small models 96)");
    mc_kv_bench_add(b, s, "top1_clear", layout, 100 * p.top1_clear, "%", "99.5");
    return 0;
}

static int with_ranks(struct mc_kv_bench *b, const struct mc_kv_subject *s,
                      struct mc_ranks *r, const struct mc_tok *tok, struct mc_err *err)
{
    const struct mc_model *m = &r->rank[0].model;
    enum mc_kv_layout rival[MC_KV_RIVALS];
    int n = mc_kv_rivals(&m->cfg, rival), rc = s->only ? 0 : capacity(b, s, m, err);

    if (rc == 0 && !s->only)
        rc = decode_step(b, s, r, MC_KV_BF16, err);
    for (int i = 0; i < n && rc == 0 && !s->only; i++)
        rc = decode_step(b, s, r, rival[i], err);
    for (int i = 0; i < n && rc == 0 && s->given && b->text; i++)
        rc = quality(b, s, r, tok, rival[i], err);
    return rc;
}

int mc_kv_bench_pages(struct mc_kv_bench *b, const struct mc_kv_subject *s,
                      struct mc_err *err)
{
    const struct mc_backend_opts o = {.threads = (int)b->set->threads, .ref_act = -1,
                                      .cpu = *b->set->cpu ? b->set->cpu : NULL};
    struct mc_ranks r = {0};
    struct mc_tok *tok = NULL;
    int rc = mc_ranks_open(&r, b->set->backend, &o, (int32_t)b->set->ranks, err);

    if (rc == 0)
        rc = mc_ranks_load(&r, s->path, &tok, err);
    if (rc == 0)
        rc = with_ranks(b, s, &r, tok, err);
    mc_ranks_close(&r);
    mc_tok_close(tok);
    return rc;
}
