/* bench_weights.c - `mascon bench weights [MODEL]`: what compressed weights are worth
 * here.
 *
 * A mixture of experts of GLM-5's proportions with random weights, as large as --size
 * says, is written to a scratch directory and compressed by several recipes; each result
 * is loaded, its operations are clocked one by one against the memory roof of the same
 * run, and then all are served side by side: prefill and decode at 1, 16 and 64 sequences
 * with distinct prompts, in turns, the median of the rounds. What the bytes alone predict
 * is printed beside. MODEL gets the same treatment by the recipes for a dense model. OWNS
 * the scratch directories until it returns. THREAD: main. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/cli/invent.h"
#include "core/cli/lua_half.h"
#include "core/cli/plan.h"
#include "core/cli/roof.h"
#include "core/cli/weight_forms.h"
#include "core/compress/recipe.h"
#include "core/weights/weights.h"

enum { WIDEST = 4, NARROWEST = 32 }; /* what GLM-5's widths are divided by */
#define LAYER_BYTES 2.0e10 /* of one of its layers in bf16 */

/* ---- the models -------------------------------------------------------------------- */

/* GLM-5's config with widths divided by cut; the latent and a head's parts stay. */
static json_t *glm(int cut, int n_layer, bool whole)
{
    json_t *o = json_pack("{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i}",
                          "architectures", "GlmMoeDsaForCausalLM", "model_type",
                          "glm_moe_dsa", "hidden_size", 6144 / cut, "intermediate_size",
                          12288 / cut, "moe_intermediate_size", 2048 / cut,
                          "num_hidden_layers", n_layer, "num_attention_heads", 64 / cut,
                          "num_key_value_heads", 64 / cut, "q_lora_rank", 2048 / cut);
    json_t *more = json_pack(
        "{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:s, s:s, s:b, s:i}",
        "kv_lora_rank", 512, "qk_nope_head_dim", 192, "qk_rope_head_dim", 64,
        "v_head_dim", 256, "n_routed_experts", 256, "n_shared_experts", 1,
        "num_experts_per_tok", 8, "n_group", 1, "topk_group", 1, "routed_scaling_factor",
        2.5, "scoring_func", "sigmoid", "topk_method", "noaux_tc", "norm_topk_prob", 1,
        "first_k_dense_replace", whole ? 3 : 0);
    json_t *rest = json_pack(
        "{s:i, s:i, s:f, s:f, s:b, s:i, s:i, s:i, s:i, s:i, s:b, s:s, s:i}", "vocab_size",
        whole ? 154880 : 2048, "max_position_embeddings", whole ? 1048576 : 8192,
        "rms_norm_eps", 1e-5, "rope_theta", 8e6, "rope_interleave", 1, "index_n_heads",
        cut < 32 ? 32 / cut : 1, "index_head_dim", 128, "index_topk", 2048,
        "index_topk_freq", 4, "index_skip_topk_offset", 3, "tie_word_embeddings", 0,
        "hidden_act", "silu", "eos_token_id", 0);

    json_object_update(o, more);
    json_object_update(o, rest);
    json_decref(more);
    json_decref(rest);
    return o;
}

/* As many layers as the size holds, and at least two of them if narrower ones will do. */
static int invent(const struct mc_forms *b, double size, char *dir, struct mc_err *err)
{
    struct mc_invent v = {.seed = 7};
    int cut = WIDEST, n_layer, rc;
    json_t *config;

    while (cut < NARROWEST && size < 1.9 * LAYER_BYTES / (cut * cut))
        cut *= 2;
    n_layer = (int)(size * cut * cut / LAYER_BYTES + 0.5);
    config = glm(cut, n_layer > 0 ? n_layer : 1, false);
    v.config = config;
    snprintf(dir, MC_FORM_PATH, "%s/source", b->scratch);
    rc = mkdir(dir, 0700) == 0 ? mc_invent(&v, dir, err)
                               : mc_fail(err, MC_EIO, "%s: %s", dir, strerror(errno));
    json_decref(config);
    return rc;
}

static int bench_moe(struct mc_forms *b, double size, struct mc_err *err)
{
    static const char *const at_fp8[MC_LOADS] = {">= 1.25", NULL, NULL};
    static const char *const at_bf16[MC_LOADS] = {">= 1.55", NULL, ">= 1.27"};
    static const char *const none[MC_LOADS];
    char dir[MC_FORM_PATH];
    int rc;

    b->prefix = "moe";
    rc = invent(b, size, dir, err);
    if (rc == 0)
        rc = mc_forms_add(b, dir, NULL, "bf16", err);
    if (rc == 0)
        rc = mc_forms_add(b, dir, "fp8-block", NULL, err);
    if (rc == 0)
        rc = mc_forms_add(b, dir, "int4-g128-experts", NULL, err);
    if (rc == 0)
        rc = mc_forms_add(b, dir, "int4-g32-experts", NULL, err);
    if (rc == 0)
        rc = mc_forms_add(b, dir, "int4-all", NULL, err);
    mc_scratch_remove(dir);
    if (rc == 0)
        rc = mc_forms_serve(b, err);
    if (rc == 0) {
        mc_forms_compare(b, 2, 1, at_fp8);
        mc_forms_compare(b, 2, 0, at_bf16);
        mc_forms_compare(b, 3, 1, none);
        mc_forms_compare(b, 4, 1, none);
    }
    mc_forms_clear(b);
    return rc;
}

static int bench_model(struct mc_forms *b, const char *path, struct mc_err *err)
{
    static const char *const none[MC_LOADS];
    int rc;

    b->prefix = "model";
    rc = mc_forms_add(b, path, NULL, "as_it_is", err);
    if (rc == 0)
        rc = mc_forms_add(b, path, "bf16", NULL, err);
    if (rc == 0)
        rc = mc_forms_add(b, path, "fp8-block", NULL, err);
    if (rc == 0)
        rc = mc_forms_add(b, path, "int4-all", NULL, err);
    if (rc == 0)
        rc = mc_forms_serve(b, err);
    if (rc == 0) {
        mc_forms_compare(b, 3, 2, none);
        mc_forms_compare(b, 3, 1, none);
    }
    mc_forms_clear(b);
    return rc;
}

/* ---- eight cards ------------------------------------------------------------------- */

static struct mc_form by_recipe(void *ctx, const struct mc_tensor_spec *t,
                                const char *name)
{
    struct mc_target to = {.keep = true};

    if (!t->vector)
        to = mc_recipe_decide(ctx, name, t->k);
    return to.keep ? mc_form_plain(MC_D_BF16) : mc_target_form(&to);
}

/* What a step of GLM-5 takes on eight H200 by its bytes, in each of the forms. */
static int predict(struct mc_forms *b, const char *recipe, const struct mc_config *cfg,
                   double us[MC_LOADS], struct mc_err *err)
{
    struct mc_weight_form f;
    struct mc_weights_budget w;
    struct mc_recipe *rules = NULL;
    json_t *table = NULL;
    char what[64];
    int rc = b->lua->recipe(recipe, &table, err);

    if (rc == 0)
        rc = mc_recipe_read(table, &rules, err);
    if (rc == 0)
        rc = mc_budget_weights(cfg, 8, by_recipe, rules, &w, err);
    mc_forms_name(&f, recipe, recipe);
    for (int j = 0; j < MC_LOADS && rc == 0; j++) {
        double fp8 = us[j];

        us[j] = mc_plan_step_us(mc_plan_gpu("h200"), 8, cfg->n_layer,
                                mc_budget_step_bytes(cfg, &w.read_rank, mc_load_seqs[j]));
        snprintf(what, sizeof what, "step_us_%d", mc_load_seqs[j]);
        mc_forms_row(b, &f, what, us[j], "us", NULL);
        snprintf(what, sizeof what, "over_fp8_%d", mc_load_seqs[j]);
        if (fp8 > 0)
            mc_forms_row(b, &f, what, fp8 / us[j], "x", NULL);
        us[j] = fp8 > 0 ? fp8 : us[j];
    }
    json_decref(table);
    mc_recipe_free(rules);
    return rc;
}

static int eight_cards(struct mc_forms *b, struct mc_err *err)
{
    static const char *const recipes[] = {"fp8-block", "int4-g128-experts",
                                          "int4-g32-experts", "int4-all"};
    json_t *config = glm(1, 78, true);
    double us[MC_LOADS] = {0};
    struct mc_ckpt *c = NULL;
    struct mc_config cfg = {0};
    char path[MC_FORM_PATH];
    int rc = 0;

    b->prefix = "h200x8";
    snprintf(path, sizeof path, "%s/config.json", b->scratch);
    if (!config || json_dump_file(config, path, 0) != 0)
        rc = mc_fail(err, MC_EIO, "%s can't be written", path);
    json_decref(config);
    if (rc == 0)
        rc = mc_ckpt_open_config(path, &c, err);
    if (rc == 0)
        rc = mc_config_load(c, &cfg, err);
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes && rc == 0; i++)
        rc = predict(b, recipes[i], &cfg, us, err);
    mc_ckpt_close(c);
    return rc;
}

/* ---- the command ------------------------------------------------------------------- */

static int number(const char *text, double lo, double hi, const char *flag, double *out,
                  struct mc_err *err)
{
    char *end;

    *out = strtod(text, &end);
    return end != text && !*end && *out >= lo && *out <= hi
               ? 0
               : mc_fail_param(err, MC_EARG, flag,
                               "--%s %.40s is not a number from %g to %g", flag, text, lo,
                               hi);
}

static void show_invalid(const struct mc_forms *b)
{
    size_t i;
    json_t *v;

    json_object_set(b->report.flat, "invalid", b->invalid);
    if (!b->report.json)
        json_array_foreach(b->invalid, i, v)
            printf("  no baseline: %s, read below 0.8 of the roof\n",
                   json_string_value(v));
}

static int run_all(struct mc_forms *b, const char *model, double size, struct mc_err *err)
{
    int rc = mc_scratch_new(b->scratch, err);

    if (rc < 0)
        return rc;
    b->roof = mc_roof((int)b->set->threads);
    mc_report_add(&b->report, "roof_bytes_s", b->roof, "bytes/s", NULL);
    if (size > 0)
        rc = bench_moe(b, size, err);
    if (rc == 0 && model)
        rc = bench_model(b, model, err);
    if (rc == 0)
        rc = eight_cards(b, err);
    show_invalid(b);
    mc_scratch_remove(b->scratch);
    return rc;
}

int mc_bench_weights(int argc, char **argv, const struct mc_lua_half *lua)
{
    const char *size = "2.5", *rounds = "3";
    struct mc_forms *b = calloc(1, sizeof *b);
    bool json = false;
    const struct mc_flag flags[] = {
        {"size", "GB", &size, "of the generated model in bf16; 0: none [2.5]"},
        {"rounds", "N", &rounds, "turns of serving; an odd number has a middle [3]"},
        {"json", NULL, &json, "one JSON object"},
        {0},
    };
    struct mc_settings set;
    struct mc_args a = {.word = "bench weights", .usage = "[MODEL] [flags]",
                        .who = MC_FOR_BENCH, .flags = flags, .min = 0, .max = 1,
                        .set = &set};
    double bytes = 0, n = 0;
    struct mc_err err = {0};
    int rc = mc_args_parse(&a, argc, argv, lua);

    if (rc >= 0 || !b) {
        mc_settings_free(&set);
        free(b);
        return rc >= 0 ? rc : 1;
    }
    rc = number(size, 0, 1000, "size", &bytes, &err);
    if (rc == 0)
        rc = number(rounds, 1, MC_ROUNDS, "rounds", &n, &err);
    b->lua = lua;
    b->set = &set;
    b->rounds = (int)n;
    b->invalid = json_array();
    if (set.max_context == 0)
        set.max_context = 1024;
    mc_report_begin(&b->report, "mascon bench weights", json);
    if (rc == 0)
        rc = run_all(b, a.n_pos ? a.pos[0] : NULL, bytes * 1e9, &err);
    mc_report_end(&b->report);
    json_decref(b->invalid);
    mc_settings_free(&set);
    free(b);
    return rc < 0 ? mc_cli_fail(&err) : 0;
}
