/* test_recipe.c - recipes: which rule decides, what a format takes, what is refused. */
#include "tests/c/test.h"

#include <string.h>

#include "core/compress/recipe.h"
#include "kernels/kernels.h"

static struct mc_recipe *recipe_of(const char *json)
{
    json_t *table = json_loads(json, 0, NULL);
    struct mc_recipe *r = NULL;
    struct mc_err err = {0};

    assert_non_null(table);
    assert_ok(mc_recipe_read(table, &r, &err), err);
    json_decref(table);
    return r;
}

static void refused(const char *json, const char *words)
{
    json_t *table = json_loads(json, JSON_DECODE_ANY, NULL);
    struct mc_recipe *r = NULL;
    struct mc_err err = {0};

    assert_non_null(table);
    assert_true(mc_recipe_read(table, &r, &err) < 0);
    assert_null(r);
    if (!strstr(err.text, words))
        fail_msg("'%s' does not say '%s'", err.text, words);
    json_decref(table);
}

static void recipe_tells_roles_by_name(void **state)
{
    static const struct {
        const char *module;
        enum mc_role role;
    } of[] = {
        {"model.embed_tokens", MC_ROLE_EMBED},
        {"language_model.lm_head", MC_ROLE_HEAD},
        {"model.layers.3.self_attn.q_proj", MC_ROLE_ATTENTION},
        {"language_model.model.layers.3.self_attn.kv_a_proj_with_mqa", MC_ROLE_ATTENTION},
        {"model.layers.3.self_attn.indexer.wq_b", MC_ROLE_INDEXER},
        {"model.layers.3.self_attn.indexer.weights_proj", MC_ROLE_GATES},
        {"model.layers.0.mlp.gate_proj", MC_ROLE_MLP},
        {"model.layers.5.mlp.experts.17.gate_proj", MC_ROLE_EXPERT},
        {"model.layers.5.mlp.shared_experts.up_proj", MC_ROLE_SHARED},
        {"model.layers.5.mlp.shared_expert.up_proj", MC_ROLE_SHARED},
        {"model.layers.5.mlp.shared_expert_gate", MC_ROLE_ROUTER},
        {"model.layers.5.mlp.gate", MC_ROLE_ROUTER},
        {"model.layers.78.eh_proj", MC_ROLE_OTHER},
        {"vision_tower.blocks.0.attn.qkv", MC_ROLE_OTHER},
        {"mm_projector.linear_1", MC_ROLE_OTHER},
    };

    (void)state;
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)
        if (mc_role_of(of[i].module) != of[i].role)
            fail_msg("%s is taken for %s", of[i].module,
                     mc_role_name(mc_role_of(of[i].module)));
}

static void recipe_takes_the_first_rule_that_fits(void **state)
{
    struct mc_recipe *r = recipe_of(
        "{\"about\":\"x\",\"rules\":[{\"name\":\"*.layers.0.*\",\"to\":\"keep\"},"
        "{\"role\":\"expert\",\"to\":\"int4\",\"group\":[128,64]},"
        "{\"role\":[\"expert\",\"mlp\"],\"to\":\"fp8\"}]}");
    struct mc_target t;
    char name[16];

    (void)state;
    assert_string_equal(mc_recipe_about(r), "x");
    t = mc_recipe_decide(r, "model.layers.0.mlp.experts.1.up_proj", 256);
    assert_true(t.keep && t.rule == 1);
    t = mc_recipe_decide(r, "model.layers.1.mlp.experts.1.up_proj", 256);
    assert_string_equal(mc_target_name(&t, name, sizeof name), "int4-g128");
    t = mc_recipe_decide(r, "model.layers.1.mlp.experts.1.up_proj", 192);
    assert_string_equal(mc_target_name(&t, name, sizeof name), "int4-g64");
    t = mc_recipe_decide(r, "model.layers.1.mlp.experts.1.up_proj",
                         96); /* no group divides */
    assert_string_equal(mc_target_name(&t, name, sizeof name), "fp8");
    t = mc_recipe_decide(r, "model.layers.1.self_attn.o_proj", 256);
    assert_true(t.keep && t.rule == 0);
    t = mc_recipe_decide(r, "vision_tower.x.mlp.up_proj", 256); /* nobody's */
    assert_true(t.keep && t.rule == 0);
    mc_recipe_free(r);
}

static void recipe_counts_bytes_with_scales(void **state)
{
    struct mc_target t = {.fmt = MC_D_INT4, .group = 128};

    (void)state;
    assert_int_equal(mc_target_bytes(&t, 2048, 7168),
                     2048 * 7168 / 2 + 2 * 2048 * 56 + 16);
    t = (struct mc_target){.fmt = MC_D_E4M3};
    assert_int_equal(mc_target_bytes(&t, 576, 6144), 576 * 6144 + 4 * 5 * 48);
    t = (struct mc_target){.fmt = MC_D_NVFP4, .group = 16};
    assert_int_equal(mc_target_bytes(&t, 64, 32), 64 * 16 + 64 * 2 + 4);
    t = (struct mc_target){.fmt = MC_D_BF16};
    assert_int_equal(mc_target_bytes(&t, 3, 5), 30);
}

static void recipe_errors_name_the_rule(void **state)
{
    (void)state;
    refused("{}", "rules must be a list");
    refused("{\"rules\":[]}", "rules must be a list");
    refused("{\"rules\":[7]}", "rule 1 is not a table");
    refused("{\"rules\":[{\"to\":\"int3\"}]}", "rule 1: to = 'int3'");
    refused("{\"rules\":[{\"to\":\"fp8\"},{\"to\":\"int4\",\"group\":48}]}",
            "rule 2: group is 32, 64 or 128");
    refused("{\"rules\":[{\"to\":\"int4\"}]}", "rule 1: group");
    refused("{\"rules\":[{\"to\":\"fp8\",\"group\":128}]}", "only int4 has a group");
    refused("{\"rules\":[{\"role\":\"experts\",\"to\":\"fp8\"}]}", "role 'experts'");
    refused("{\"rules\":[{\"roll\":\"expert\",\"to\":\"fp8\"}]}", "'roll' is none of");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(recipe_tells_roles_by_name),
    cmocka_unit_test(recipe_takes_the_first_rule_that_fits),
    cmocka_unit_test(recipe_counts_bytes_with_scales),
    cmocka_unit_test(recipe_errors_name_the_rule),
};

MC_TEST_MAIN(tests)
