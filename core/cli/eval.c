/* eval.c - `mascon eval MODEL`: is the model what the reference says it is?
 *
 * --golden DIR holds it against golden files: one line a file, exit 1 when any is over its
 * tolerance; a file kind that is absent is no error, DIR without any is (golden.c).
 * --text FILE gives its perplexity over a text (perplexity.c). OWNS nothing after it
 * returns. THREAD: main. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/cli/cli.h"
#include "core/cli/golden.h"
#include "core/cli/perplexity.h"
#include "core/model/load.h"

struct opened {
    struct mc_tok *tok;
    struct mc_backend *be;
    struct mc_model model;
};

static int open_all(const char *path, const struct mc_settings *s, struct opened *o,
                    struct mc_err *err)
{
    const struct mc_backend_opts bo = {.threads = (int)s->threads, .ref_act = -1,
                                       .cpu = *s->cpu ? s->cpu : NULL};
    int rc = mc_backend_open(s->backend, &bo, &o->be, err);

    return rc < 0 ? rc : mc_model_load(o->be, path, &o->model, &o->tok, err);
}

static void close_all(struct opened *o)
{
    if (o->model.be)
        mc_model_close(&o->model);
    if (o->be)
        o->be->close(o->be);
    mc_tok_close(o->tok);
}

/* The oracle's own default is exact: f32 keys and values. */
static int kv_of(const struct mc_settings *s, const struct mc_config *c,
                 enum mc_kv_layout *out, struct mc_err *err)
{
    bool exact = strcmp(s->backend, "ref") == 0 && strcmp(s->kv, "auto") == 0;

    return mc_kv_layout_of(c, exact ? "f32" : s->kv, out, err);
}

static int run_text(const struct opened *o, const char *path, enum mc_kv_layout kv,
                    bool json, struct mc_err *err)
{
    struct mc_perplexity p;
    int rc = mc_perplexity(&o->model, o->tok, kv, path, &p, err);

    if (rc == 0)
        printf(json ? "{\"perplexity\":%.6f,\"nll\":%.8f,\"tokens\":%d,\"scored\":%d}\n"
                    : "perplexity %.4f (nll %.6f) over %d tokens, %d of them scored\n",
               exp(p.nll), p.nll, p.n_token, p.n_scored);
    return rc;
}

int mc_cmd_eval(int argc, char **argv, const struct mc_lua_half *lua)
{
    const char *golden = NULL, *text = NULL;
    bool json = false;
    const struct mc_flag flags[] = {
        {"golden", "DIR", &golden, "directory of golden files to be held against"},
        {"text", "FILE", &text, "a text whose perplexity is wanted"},
        {"json", NULL, &json, "one JSON object a line"},
        {0},
    };
    struct mc_settings set;
    struct mc_args a = {.word = "eval",
                        .usage = "MODEL (--golden DIR | --text FILE) [flags]",
                        .who = MC_FOR_EVAL,
                        .flags = flags,
                        .min = 1,
                        .max = 1,
                        .set = &set};
    enum mc_kv_layout kv = MC_KV_F32;
    struct opened o = {0};
    struct mc_err err = {0};
    int rc = mc_args_parse(&a, argc, argv, lua);

    if (rc < 0 && !golden == !text) {
        fprintf(stderr, "mascon: eval: one of --golden DIR and --text FILE is needed\n");
        rc = 2;
    }
    if (rc >= 0) {
        mc_settings_free(&set);
        return rc;
    }
    rc = open_all(a.pos[0], &set, &o, &err);
    if (rc == 0)
        rc = kv_of(&set, &o.model.cfg, &kv, &err);
    if (rc == 0 && text) {
        rc = run_text(&o, text, kv, json, &err);
    } else if (rc == 0) {
        struct mc_golden g = {.dir = golden, .model = &o.model, .tok = o.tok, .lua = lua,
                              .kv = kv, .exact = strcmp(set.backend, "ref") == 0,
                              .json = json};

        rc = mc_golden_run(&g, &err);
    }
    if (rc < 0)
        rc = mc_cli_fail(&err);
    close_all(&o);
    mc_settings_free(&set);
    return rc;
}
