/* eval.c - `mascon eval MODEL`: is the model what the reference says it is?
 *
 * --golden DIR holds it against golden files: one line a file, exit 1 when any is over its
 * tolerance; a file kind that is absent is no error, DIR without any is (golden.c).
 * --text FILE gives its perplexity over a text, and --against MODEL2 how far it is from
 * another's predictions (perplexity.c); --task FILE how many questions it answers rightly
 * (task.c). OWNS nothing after it returns. THREAD: main. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/cli/cli.h"
#include "core/cli/golden.h"
#include "core/cli/perplexity.h"
#include "core/cli/task.h"
#include "core/model/load.h"

struct opened {
    struct mc_tok *tok;
    struct mc_ranks ranks;
};

static int open_all(const char *path, const struct mc_settings *s, struct opened *o,
                    struct mc_err *err)
{
    const struct mc_backend_opts bo = {.threads = (int)s->threads, .ref_act = -1,
                                       .cpu = *s->cpu ? s->cpu : NULL};
    int rc = mc_ranks_open(&o->ranks, s->backend, &bo, (int32_t)s->ranks, err);

    o->ranks.mla_expand = (int32_t)s->mla_expand;
    o->ranks.prefill_bf16 = *s->prefill_kv != 0;
    if (rc == 0)
        rc = mc_ranks_load(&o->ranks, path, &o->tok, err);
    return rc < 0 ? rc : mc_ranks_shard(&o->ranks, (int32_t)s->shard_tokens, err);
}

static void close_all(struct opened *o)
{
    mc_ranks_close(&o->ranks);
    mc_tok_close(o->tok);
}

/* The oracle's own default is exact: f32 keys and values. */
static int kv_of(const struct mc_settings *s, const struct mc_config *c,
                 enum mc_kv_layout *out, struct mc_err *err)
{
    bool exact = strcmp(s->backend, "ref") == 0 && strcmp(s->kv, "auto") == 0;

    return mc_kv_layout_of(c, exact ? "f32" : s->kv, out, err);
}

struct wish {
    const char *golden, *text, *task, *against, *against_kv;
    bool json;
};

static void show_text(const struct mc_perplexity *p, const struct wish *w)
{
    printf(w->json ? "{\"perplexity\":%.6f,\"nll\":%.8f,\"tokens\":%d,\"scored\":%d"
                   : "perplexity %.4f (nll %.6f) over %d tokens, %d of them scored\n",
           exp(p->nll), p->nll, p->n_token, p->n_scored);
    if (w->against)
        printf(w->json
                   ? ",\"against\":%.6f,\"kl\":%.8f,\"kl_max\":%.6f,\"top1\":%.6f,"
                     "\"top1_clear\":%.6f,\"clear\":%d"
                   : "against perplexity %.4f: KL %.6f (largest %.4f), top-1 agreement "
                     "%.4f; %.4f where it leads by 0.25 (%d)\n",
               exp(p->ref_nll), p->kl, p->kl_max, p->top1, p->top1_clear, p->n_clear);
    if (w->json)
        printf("}\n");
}

static int run_text(struct opened *o, const struct wish *w, enum mc_kv_layout kv,
                    const struct mc_settings *set, struct mc_err *err)
{
    const struct mc_predictor of = {&o->ranks, kv};
    struct mc_predictor ref = {.kv = kv};
    struct opened other = {0};
    struct mc_perplexity p;
    int rc = w->against ? open_all(w->against, set, &other, err) : 0;

    ref.ranks = &other.ranks;
    if (rc == 0 && w->against)
        rc = mc_kv_layout_of(&other.ranks.rank[0].model.cfg, w->against_kv, &ref.kv, err);
    if (rc == 0)
        rc = mc_perplexity(&of, w->against ? &ref : NULL, o->tok, w->text, &p, err);
    if (rc == 0)
        show_text(&p, w);
    close_all(&other);
    return rc;
}

static double share(int32_t n, int32_t of)
{
    return of > 0 ? 100.0 * n / of : 0;
}

static int run_task(struct opened *o, const struct wish *w, enum mc_kv_layout kv,
                    struct mc_err *err)
{
    const struct mc_predictor of = {&o->ranks, kv};
    struct mc_task t;
    int rc = mc_task_run(&of, o->tok, w->task, &t, err);

    if (rc < 0)
        return rc;
    if (w->json)
        printf("{\"choice\":%d,\"choice_right\":%d,\"choice_right_per_byte\":%d,"
               "\"cloze\":%d,\"cloze_right\":%d}\n",
               t.n_choice, t.right_choice, t.right_per_byte, t.n_cloze, t.right_cloze);
    if (!w->json && t.n_choice > 0)
        printf("choice %d of %d, %.2f %% (by bytes %d, %.2f %%)\n", t.right_choice,
               t.n_choice, share(t.right_choice, t.n_choice), t.right_per_byte,
               share(t.right_per_byte, t.n_choice));
    if (!w->json && t.n_cloze > 0)
        printf("cloze %d of %d, %.2f %%\n", t.right_cloze, t.n_cloze,
               share(t.right_cloze, t.n_cloze));
    return 0;
}

static int run_golden(struct opened *o, const struct wish *w, enum mc_kv_layout kv,
                      const struct mc_settings *set, const struct mc_lua_half *lua,
                      struct mc_err *err)
{
    struct mc_golden g = {.dir = w->golden, .ranks = &o->ranks,
                          .model = &o->ranks.rank[0].model, .tok = o->tok, .lua = lua,
                          .kv = kv, .exact = strcmp(set->backend, "ref") == 0,
                          .json = w->json};

    return mc_golden_run(&g, err);
}

/* -1, or 2 after a message. */
static int check_wish(const struct wish *w)
{
    if (!!w->golden + !!w->text + !!w->task != 1)
        fprintf(stderr,
                "mascon: eval: one of --golden DIR, --text FILE and --task FILE is "
                "needed\n");
    else if (w->against && !w->text)
        fprintf(stderr, "mascon: eval: --against goes with --text FILE\n");
    else
        return -1;
    return 2;
}

int mc_cmd_eval(int argc, char **argv, const struct mc_lua_half *lua)
{
    struct wish w = {.against_kv = "auto"};
    const struct mc_flag flags[] = {
        {"golden", "DIR", &w.golden, "directory of golden files to be held against"},
        {"text", "FILE", &w.text, "a text whose perplexity is wanted"},
        {"task", "FILE.jsonl", &w.task, "questions: choices by likelihood, cloze by greedy match"},
        {"against", "MODEL2", &w.against, "with --text: KL and top-1 agreement with this one"},
        {"against-kv", "LAYOUT", &w.against_kv, "--kv of MODEL2 [auto]"},
        {"json", NULL, &w.json, "one JSON object a line"},
        {0},
    };
    struct mc_settings set;
    struct mc_args a = {.word = "eval",
                        .usage = "MODEL (--golden DIR | --text FILE | --task FILE) [flags]",
                        .who = MC_FOR_EVAL,
                        .flags = flags,
                        .min = 1,
                        .max = 1,
                        .set = &set};
    enum mc_kv_layout kv = MC_KV_F32;
    struct opened o = {0};
    struct mc_err err = {0};
    int rc = mc_args_parse(&a, argc, argv, lua);

    if (rc < 0)
        rc = check_wish(&w);
    if (rc >= 0) {
        mc_settings_free(&set);
        return rc;
    }
    rc = open_all(a.pos[0], &set, &o, &err);
    if (rc == 0)
        rc = kv_of(&set, &o.ranks.rank[0].model.cfg, &kv, &err);
    if (rc == 0)
        rc = w.text   ? run_text(&o, &w, kv, &set, &err)
             : w.task ? run_task(&o, &w, kv, &err)
                      : run_golden(&o, &w, kv, &set, lua, &err);
    if (rc < 0)
        rc = mc_cli_fail(&err);
    close_all(&o);
    mc_settings_free(&set);
    return rc;
}
