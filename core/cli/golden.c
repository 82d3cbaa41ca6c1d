/* golden.c - golden files held against a model: logits, layers, greedy, tokenizer, chat.
 *
 * Golden files are what Hugging Face transformers computes in fp32 from the same weights:
 *   logits.safetensors  p{i}.ids I32 [T], p{i}.pos I32 [n], p{i}.logits F32 [n,V],
 *                       p{i}.spread F32 [n]: how far they move when rounded otherwise
 *   layers.safetensors  p{i}.ids, p{i}.embed, p{i}.layer.{L}, p{i}.norm F32 [T,H];
 *                       p{i}.router.{L}.experts I32, .weights F32 [T,k], .margin F32 [T];
 *                       p{i}.index.pos I32 [n], p{i}.index.{L}.set I32 [n,topk], .margin
 *   mtp.safetensors     what a draft layer makes of p{i}.ids, and a chain of drafts
 *   greedy.json         [{prompt_ids, ids, gap}]: gap = best minus second logit of a step
 *   tokenizer.jsonl     {text, special, ids}; lines end at \n only
 *   chat.jsonl          {messages, tools, kwargs, rendered} (golden_chat.c)
 *   eval.json           bf16_compute_logit_difference {max, mean}
 *
 * Tolerances. Exact (ref, f32 keys and values): |logit difference| <= 2e-3 + 2 spread,
 * residual 2e-3, final norm 1e-3, experts' weights 1e-4, choices equal where the margin
 * is above 1e-5. Else, where the reference recorded what computing in
 * bf16 costs: mean <= 3x and max <= 2x that. Else, and with fp8 keys and values: KL <=
 * 3e-3 and top-1 agreement >= 0.96. Greedy steps are teacher-forced: another token is a
 * tie where the gap is below twice the tolerance in use; by KL, 0.96 of the steps have to
 * agree. An indexer's keys are fp8 in every cache but one of f32. THREAD: main. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "core/cli/golden_int.h"

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

const void *mc_golden_tensor(const struct mc_ckpt *c, const char *dtype, int64_t *n,
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

void mc_golden_say(struct mc_golden_job *r, const char *file, bool ok, const char *fmt,
                   ...)
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

/* ---- all --------------------------------------------------------------------------- */

static int pick_tolerance(struct mc_golden_job *r, struct mc_err *err)
{
    char path[4096];
    bool indexed = r->g->model->cfg.index_topk > 0;
    const json_t *bf16;
    json_t *o;

    r->tol = (struct mc_golden_tol){.by_kl = false, .max = 2e-3, .mean = INFINITY};
    if (r->g->exact && r->g->kv == MC_KV_F32)
        return 0;
    r->tol = (struct mc_golden_tol){.by_kl = true, .max = 0.1};
    if (!path_of(r->g, "eval.json", path, sizeof path))
        return 0;
    o = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    if (!o)
        return mc_fail(err, MC_EFORMAT, "eval.json is not JSON");
    bf16 = json_object_get(o, "bf16_compute_logit_difference");
    if (bf16 && r->g->kv < MC_KV_FP8 && (!indexed || r->g->kv == MC_KV_F32))
        r->tol = (struct mc_golden_tol){
            .max = 2 * json_number_value(json_object_get(bf16, "max")),
            .mean = 3 * json_number_value(json_object_get(bf16, "mean"))};
    json_decref(o);
    return 0;
}

int mc_golden_run(struct mc_golden *g, struct mc_err *err)
{
    static const struct {
        const char *name;
        int (*check)(struct mc_golden_job *r, const char *file, struct mc_err *err);
    } kinds[] = {
        {"tokenizer.jsonl", mc_golden_tokenizer},
        {"chat.jsonl", mc_golden_chats},
        {"layers.safetensors", mc_golden_layers},
        {"logits.safetensors", mc_golden_logits},
        {"greedy.json", mc_golden_greedy},
        {"mtp.safetensors", mc_golden_drafts},
    };
    struct mc_solo_opts o = {.context = 4096,
                             .rows = MC_GOLDEN_ROWS,
                             .outs = MC_GOLDEN_OUTS,
                             .kv = g->kv};
    struct mc_golden_job r = {.g = g};
    char path[4096];
    int rc = pick_tolerance(&r, err);

    if (rc == 0)
        rc = mc_solo_open(g->ranks, &o, &r.solo, err);
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
