/* eval.c - `mascon eval MODEL --golden DIR`: is the model what the reference says it is?
 *
 * Opens a model on a backend and holds it against golden files: one line a file, exit 1
 * when any is over its tolerance. A file kind that is absent is no error; DIR without any
 * is. The comparisons are in golden.c. OWNS nothing after it returns. THREAD: main. */
#include <stdio.h>
#include <string.h>

#include "core/cli/cli.h"
#include "core/cli/golden.h"
#include "core/model/model.h"
#include "core/model/tokenizer.h"
#include "core/weights/weights.h"

struct opened {
    struct mc_ckpt *ckpt;
    struct mc_tok *tok;
    struct mc_backend *be;
    struct mc_model model;
};

static int open_backend(const struct mc_settings *s, struct mc_backend **out,
                        struct mc_err *err)
{
    struct mc_backend_opts o = {.threads = (int)s->threads, .ref_act = -1,
                                .cpu = *s->cpu ? s->cpu : NULL};
    const char *why = NULL;

    *out = strcmp(s->backend, "ref") == 0 ? mc_ref_open(&o, &why) : mc_cpu_open(&o, &why);
    if (!*out)
        return mc_fail_param(err, MC_EUNSUP, "backend", "--backend %s: %s", s->backend,
                             why ? why : "can't be opened");
    return 0;
}

static int open_all(const char *path, const struct mc_settings *s, struct opened *o,
                    struct mc_err *err)
{
    struct mc_config cfg;
    int rc = mc_ckpt_open(path, &o->ckpt, err);

    if (rc == 0)
        rc = mc_config_load(o->ckpt, &cfg, err);
    if (rc == 0)
        rc = mc_tok_open(o->ckpt, &o->tok, err);
    if (rc == 0)
        rc = open_backend(s, &o->be, err);
    if (rc == 0)
        rc = mc_model_open(o->be, o->ckpt, &cfg, mc_tok_n(o->tok), &o->model, err);
    return rc;
}

static void close_all(struct opened *o)
{
    if (o->model.be)
        mc_model_close(&o->model);
    if (o->be)
        o->be->close(o->be);
    mc_tok_close(o->tok);
    mc_ckpt_close(o->ckpt);
}

/* The oracle's own default is exact: f32 keys and values. */
static enum mc_kv_layout kv_of(const struct mc_settings *s)
{
    if (strcmp(s->kv, "auto") == 0)
        return strcmp(s->backend, "ref") == 0 ? MC_KV_F32 : MC_KV_BF16;
    return strcmp(s->kv, "f32") == 0 ? MC_KV_F32
                                     : strcmp(s->kv, "fp8") == 0 ? MC_KV_FP8 : MC_KV_BF16;
}

int mc_cmd_eval(int argc, char **argv, const struct mc_lua_half *lua)
{
    const char *golden = NULL;
    bool json = false;
    const struct mc_flag flags[] = {
        {"golden", "DIR", &golden, "directory of golden files to be held against"},
        {"json", NULL, &json, "one JSON object a line"},
        {0},
    };
    struct mc_settings set;
    struct mc_args a = {.word = "eval",
                        .usage = "MODEL --golden DIR [flags]",
                        .who = MC_FOR_EVAL,
                        .flags = flags,
                        .min = 1,
                        .max = 1,
                        .set = &set};
    struct opened o = {0};
    struct mc_err err = {0};
    int rc = mc_args_parse(&a, argc, argv, lua);

    if (rc < 0 && !golden) {
        fprintf(stderr, "mascon: eval: --golden DIR says what to compare with\n");
        rc = 2;
    }
    if (rc >= 0) {
        mc_settings_free(&set);
        return rc;
    }
    rc = open_all(a.pos[0], &set, &o, &err);
    if (rc == 0) {
        struct mc_golden g = {.dir = golden, .model = &o.model, .tok = o.tok, .lua = lua,
                              .kv = kv_of(&set), .exact = strcmp(set.backend, "ref") == 0,
                              .json = json};

        rc = mc_golden_run(&g, &err);
    }
    if (rc < 0)
        rc = mc_cli_fail(&err);
    close_all(&o);
    mc_settings_free(&set);
    return rc;
}
