/* test_budget.c - what models need, from their config.json alone: counts and sizes of the
 * published checkpoints, ranks' shares, forms that a quantization_config declares.
 * Tensors and bytes are those of the repositories' indexes (GLM-5.2-FP8: 118,629 tensors and
 * 755.6 GB; Kimi-K2.6: 594 GB of text). */
#include "tests/c/test.h"

#include <string.h>

#include "core/model/budget.h"
#include "core/model/load.h"
#include "core/weights/weights.h"

struct opened {
    struct mc_ckpt *c;
    struct mc_config cfg;
    struct mc_scheme *s;
    struct mc_weights_budget w;
};

static struct mc_form form_of(void *ctx, const struct mc_tensor_spec *t, const char *name)
{
    return mc_scheme_of(((struct opened *)ctx)->s, t, name);
}

static void budget(struct opened *o, int32_t ranks)
{
    struct mc_err err;

    assert_ok(mc_budget_weights(&o->cfg, ranks, form_of, o, &o->w, &err), err);
}

static struct opened open_config(const char *path)
{
    struct opened o = {0};
    struct mc_err err;

    assert_ok(mc_ckpt_open_config(path, &o.c, &err), err);
    assert_int_equal(mc_ckpt_n(o.c), 0);
    assert_ok(mc_config_load(o.c, &o.cfg, &err), err);
    assert_ok(mc_scheme_open(mc_ckpt_config(o.c), &o.s, &err), err);
    budget(&o, 1);
    return o;
}

static void close_config(struct opened *o)
{
    mc_scheme_close(o->s);
    mc_ckpt_close(o->c);
}

static void near_to(double got, double want, double within)
{
    if (!(got > want - within && got < want + within))
        fail_msg("%.3f is not within %.3f of %.3f", got, within, want);
}

#define GIB ((double)(1 << 30))

static void budget_of_glm_is_its_published_checkpoint(void **state)
{
    struct opened o = open_config("tests/configs/glm-5.2-fp8.json");

    (void)state;
    assert_int_equal(o.w.all.n_tensor, 118629);
    near_to((double)o.w.all.bytes / 1e9, 755.6, 0.1);
    near_to((double)o.w.all.n_param / 1e9, 753.33, 0.01);
    near_to((double)o.w.decode_bytes / 1e9, 41.4, 0.1);
    assert_string_equal(o.w.cls[MC_B_ATTENTION].form, "fp8-block");
    assert_string_equal(o.w.cls[MC_B_ROUTER].form, "bf16");
    assert_int_equal(o.w.cls[MC_B_INDEXER].n_tensor, 21 * 5); /* wq_b and wk have scales */
    budget(&o, 8);
    near_to((double)o.w.all.bytes_rank / GIB, 89.5, 0.05);
    near_to((double)(o.w.all.bytes_rank - o.w.cls[MC_B_MTP].bytes_rank) / GIB, 88.2,
            0.05);
    close_config(&o);
}

static void budget_of_kimi_is_its_published_checkpoint(void **state)
{
    struct opened o = open_config("tests/configs/kimi-k2.6.json");

    (void)state;
    assert_int_equal(o.w.all.n_tensor, 208215);
    near_to((double)o.w.all.bytes / 1e9, 594.2, 0.05);
    near_to((double)o.w.all.n_param / 1e9, 1026.4, 0.05);
    near_to((double)o.w.decode_bytes / 1e9, 33.0, 0.05);
    assert_string_equal(o.w.cls[MC_B_EXPERTS].form, "int4-g32");
    assert_string_equal(o.w.cls[MC_B_DENSE].form, "bf16"); /* mlp.gate_proj is ignored ... */
    assert_int_equal(o.w.cls[MC_B_MTP].n_tensor, 0);
    budget(&o, 8);
    near_to((double)o.w.all.bytes_rank / GIB, 70.9, 0.06);
    close_config(&o);
}

static void budget_of_deepseek_counts_its_draft_layer(void **state)
{
    struct opened o = open_config("tests/configs/deepseek-v3.json");

    (void)state;
    /* the repository has two more, copies of embedding and head in layer 61 */
    assert_int_equal(o.w.all.n_tensor, 91991 - 2);
    assert_string_equal(o.w.cls[MC_B_MTP].form, "fp8-block");
    close_config(&o);
}

static void budget_parts_of_ranks_are_the_whole(void **state)
{
    static const char *const paths[] = {"tests/configs/glm-5.2-fp8.json",
                                        "tests/configs/kimi-k2.6.json"};
    struct opened o;
    uint64_t whole, each;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof paths / sizeof *paths; i++) {
        o = open_config(paths[i]);
        whole = o.w.all.bytes;
        assert_int_equal(o.w.all.bytes_rank, whole);
        budget(&o, 8);
        each = o.w.all.bytes_each;
        /* 8 parts and the replicated once; shapes and factors are in every part */
        near_to((double)(8 * (o.w.all.bytes_rank - each) + each) / (double)whole, 1,
                1e-3);
        assert_int_equal(o.w.all.bytes, whole);
        close_config(&o);
    }
}

static void budget_refuses_ranks_that_heads_do_not_share(void **state)
{
    struct opened o = open_config("tests/models/tiny-llama/config.json"); /* 8 over 2 */
    struct mc_err err;

    (void)state;
    assert_int_equal(mc_budget_weights(&o.cfg, 3, form_of, &o, &o.w, &err), MC_EUNSUP);
    assert_string_equal(err.param, "ranks");
    close_config(&o);
}

static void budget_of_a_config_is_that_of_its_tensors(void **state)
{
    static const char *const models[] = {"tiny-llama", "tiny-llama-fp8", "tiny-llama-w4a16",
                                         "tiny-llama-nvfp4", "tiny-qwen3-moe", "tiny-glm",
                                         "tiny-kimi"};
    char path[80];
    size_t i;

    (void)state;
    for (i = 0; i < sizeof models / sizeof *models; i++) {
        struct mc_ckpt *c;
        struct mc_err err;
        struct opened o;
        int64_t n = 0;
        uint64_t bytes = 0;

        snprintf(path, sizeof path, "tests/models/%s/config.json", models[i]);
        o = open_config(path);
        *strrchr(path, '/') = 0;
        assert_ok(mc_ckpt_open(path, &c, &err), err);
        for (int32_t t = 0; t < mc_ckpt_n(c); t++) {
            const struct mc_stored *s = mc_ckpt_at(c, t);

            if (strstr(s->name, "vision") || strstr(s->name, "mm_projector"))
                continue;
            n++;
            bytes += s->bytes;
        }
        if (o.w.all.n_tensor != n)
            fail_msg("%s: %lld tensors, planned %lld", models[i], (long long)n,
                     (long long)o.w.all.n_tensor);
        /* a shape is stored as two I32 or two I64 */
        near_to((double)o.w.all.bytes, (double)bytes, 8.0 * (double)n + 1);
        mc_ckpt_close(c);
        close_config(&o);
    }
}

/* ---- forms ------------------------------------------------------------------------- */

static int open_scheme(const char *quant, struct mc_scheme **s, json_t **config,
                       struct mc_err *err)
{
    char text[1024];

    snprintf(text, sizeof text, "{\"quantization_config\":%s}", quant);
    *config = json_loads(text, 0, NULL);
    assert_non_null(*config);
    return mc_scheme_open(*config, s, err);
}

static void scheme_says(const char *quant, int matrix, const char *module,
                        const char *want)
{
    const struct mc_tensor_spec t = {.at = (uint8_t)matrix, .count = 1};
    char name[MC_FORM_NAME];
    struct mc_scheme *s;
    struct mc_form f;
    struct mc_err err;
    json_t *config;

    assert_ok(open_scheme(quant, &s, &config, &err), err);
    f = mc_scheme_of(s, &t, module);
    if (strcmp(mc_form_name(&f, name), want) != 0)
        fail_msg("%s of %s is %s, not %s", module, quant, name, want);
    mc_scheme_close(s);
    json_decref(config);
}

#define INT4 "{\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":32}"
#define FP8                                                                                \
    "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"block\",\"block_structure\":[128,128]}"
#define CT(groups, ignore) \
    "{\"quant_method\":\"compressed-tensors\",\"config_groups\":{" groups "},\"ignore\":[" \
    ignore "]}"
#define GROUP(n, targets, w) \
    "\"group_" n "\":{\"targets\":[" targets "],\"weights\":" w "}"

static void form_of_a_module_follows_targets_and_ignore(void **state)
{
    static const char kimi[] = CT(GROUP("0", "\"Linear\"", INT4),
                                  "\"lm_head\",\"re:.*mlp\\\\.(gate|up|gate_up|down)_proj.*\"");
    static const char mixed[] =
        CT(GROUP("0", "\"re:.*\\\\.mlp\\\\.experts\\\\.\\\\d+\\\\.up_proj$\"", INT4) ","
           GROUP("1", "\"m.q_proj\"", FP8), "");
    static const char named[] =
        "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128],"
        "\"modules_to_not_convert\":[\"l.0.mlp.gate\",\"visual\"]}";

    (void)state;
    scheme_says(kimi, MC_M_GATE, "x.layers.0.mlp.gate_proj", "bf16");
    scheme_says(kimi, MC_M_EXPERT_GATE, "x.layers.1.mlp.experts.0.gate_proj", "int4-g32");
    scheme_says(kimi, MC_M_ROUTER, "x.layers.1.mlp.gate", "bf16");
    scheme_says(kimi, MC_M_HEAD, "lm_head", "bf16");
    scheme_says(mixed, MC_M_EXPERT_UP, "m.mlp.experts.17.up_proj", "int4-g32");
    scheme_says(mixed, MC_M_EXPERT_UP, "m.mlp.experts.x.up_proj", "bf16");
    scheme_says(mixed, MC_M_Q, "m.q_proj", "fp8-block");
    scheme_says(mixed, MC_M_K, "m.q_proj2", "bf16");
    scheme_says(named, MC_M_GATE, "l.0.mlp.gate_proj", "fp8-block"); /* whole components */
    scheme_says(named, MC_M_GATE, "l.0.mlp.gate.x", "bf16");
    scheme_says(named, MC_M_EH, "l.0.eh_proj", "bf16"); /* whatever is declared */
    scheme_says("{\"quant_method\":\"fbgemm_fp8\"}", MC_M_Q, "q", "fp8-row");
    scheme_says("{\"quant_method\":\"fp8\"}", MC_M_Q, "q", "fp8-tensor");
}

static void form_refuses_what_it_does_not_understand(void **state)
{
    static const struct {
        const char *quant, *says;
    } rows[] = {
        {"{\"quant_method\":\"gptq\"}", "quant_method"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[0,128]}", "weight_block_size"},
        {"{\"quant_method\":\"fp8\",\"modules_to_not_convert\":7}", "is not a list"},
        {"{\"quant_method\":\"fp8\",\"modules_to_not_convert\":[7]}", "is not a string"},
        {CT(GROUP("0", "\"Linear\"", "{\"num_bits\":3}"), ""), "num_bits"},
        {CT("", "\"re:(a{9}){9}\""), "pattern not understood"},
        {CT("", "\"re:(?=x)\""), "pattern not understood"},
        {CT("", "\"re:(a)\\\\1\""), "pattern not understood"},
        {CT("", "\"re:(\""), "pattern not understood"},
    };
    struct mc_scheme *s;
    struct mc_err err;
    json_t *config;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_true(open_scheme(rows[i].quant, &s, &config, &err) < 0);
        assert_null(s);
        if (!strstr(err.text, rows[i].says))
            fail_msg("%s: %s", rows[i].quant, err.text);
        json_decref(config);
    }
}

static void form_counts_partial_blocks(void **state)
{
    struct mc_form fp8 = mc_form_fp8(), int4 = mc_form_int4(32), nvfp4 = mc_form_nvfp4();
    struct mc_form bf16 = mc_form_plain(MC_D_BF16), q4 = mc_form_plain(MC_D_Q4_0);

    (void)state;
    assert_int_equal(mc_form_bytes(&fp8, 576, 6144), 576 * 6144 + 5 * 48 * 4);
    assert_int_equal(mc_form_bytes(&int4, 2048, 7168), 2048 * 3584 + 2048 * 224 * 2 + 16);
    assert_int_equal(mc_form_bytes(&nvfp4, 2, 64), 64 + 2 * 4 + 4);
    assert_int_equal(mc_form_bytes(&bf16, 3, 5), 30);
    assert_int_equal(mc_form_bytes(&q4, 2, 64), 2 * 2 * 18);
}

/* ---- pages and sharding ------------------------------------------------------------ */

static struct mc_kv pages(const struct opened *o, const char *name)
{
    enum mc_kv_layout layout;
    struct mc_err err;

    assert_ok(mc_kv_layout_of(&o->cfg, name, &layout, &err), err);
    return mc_kv_of(&o->cfg, (struct mc_slice){0, 8}, layout);
}

static void budget_pages_hold_the_known_bytes_of_a_token(void **state)
{
    struct opened kimi = open_config("tests/configs/kimi-k2.6.json");
    struct opened glm = open_config("tests/configs/glm-5.2-fp8.json");

    (void)state;
    assert_int_equal(pages(&kimi, "bf16").page_stride / MC_PAGE, 70272);
    assert_int_equal(pages(&kimi, "fp8-plain").page_stride / MC_PAGE, 35136);
    assert_int_equal(pages(&kimi, "fp8-656").page_stride / MC_PAGE, 40016);
    assert_int_equal(pages(&kimi, "fp8").page_stride / MC_PAGE, 40016);
    assert_int_equal(pages(&glm, "bf16").page_stride / MC_PAGE, 91008 + 2904);
    assert_int_equal(pages(&glm, "fp8-plain").page_stride / MC_PAGE, 45504 + 2904);
    assert_int_equal(pages(&glm, "fp8-656").page_stride / MC_PAGE, 54728);
    close_config(&kimi);
    close_config(&glm);
}

static void budget_crossover_comes_sooner_with_more_sequences_and_larger_tokens(
    void **state)
{
    const struct mc_speed speed = {.hbm = 4e12, .flops = 660e12, .link = 300e9, .exchange = 5e-6};
    struct opened o = open_config("tests/configs/kimi-k2.6.json");
    struct mc_kv bf16 = pages(&o, "bf16"), fp8 = pages(&o, "fp8-plain");
    double one = mc_budget_crossover(&o.cfg, &bf16, 8, 8, 1, &speed);

    (void)state;
    assert_true(one > 1000 && one < 1e6);
    assert_true(mc_budget_crossover(&o.cfg, &bf16, 8, 8, 64, &speed) < one / 8);
    assert_true(mc_budget_crossover(&o.cfg, &fp8, 8, 8, 1, &speed) > one);
    assert_true(mc_budget_crossover(&o.cfg, &bf16, 8, 1, 1, &speed) < 0);
    close_config(&o);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(budget_of_glm_is_its_published_checkpoint),
    cmocka_unit_test(budget_of_kimi_is_its_published_checkpoint),
    cmocka_unit_test(budget_of_deepseek_counts_its_draft_layer),
    cmocka_unit_test(budget_parts_of_ranks_are_the_whole),
    cmocka_unit_test(budget_refuses_ranks_that_heads_do_not_share),
    cmocka_unit_test(budget_of_a_config_is_that_of_its_tensors),
    cmocka_unit_test(form_of_a_module_follows_targets_and_ignore),
    cmocka_unit_test(form_refuses_what_it_does_not_understand),
    cmocka_unit_test(form_counts_partial_blocks),
    cmocka_unit_test(budget_pages_hold_the_known_bytes_of_a_token),
    cmocka_unit_test(budget_crossover_comes_sooner_with_more_sequences_and_larger_tokens),
};
MC_TEST_MAIN(tests)
