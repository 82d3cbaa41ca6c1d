/* test_config_big.c - configurations with experts, latents and indexers: the published ones
 * of tests/configs, and what the cache of such a model may be. What must be refused is in
 * tests/http/test_families.py. */
#include "tests/c/test.h"

#include <math.h>

#include "core/model/load.h"
#include "core/weights/weights.h"
#include "tests/c/tmpdir.h"

#define DEEPSEEK "tests/configs/deepseek-v3.json"
#define KIMI "tests/configs/kimi-k2.6.json"
#define GLM "tests/configs/glm-5.2-fp8.json"
#define TINY "tests/models/tiny-llama/config.json"
#define ABSENT "\"(absent)\""

/* The config of the file with the members of patch put over it (ABSENT: removed), beside a
 * checkpoint without tensors: the config alone decides. */
static int load(const char *path, const char *patch, struct mc_config *out,
                struct mc_err *err)
{
    static const uint64_t no_tensors[2] = {8, 0x2020202020207D7B}; /* "{}      " */
    json_t *o = json_load_file(path, 0, NULL), *p = json_loads(patch, 0, NULL), *v;
    char *dir = tmp_new(), *text;
    struct mc_ckpt *c = NULL;
    const char *key;
    int rc;

    assert_non_null(o);
    assert_non_null(p);
    json_object_foreach (p, key, v) {
        if (json_is_string(v) && strcmp(json_string_value(v), "(absent)") == 0)
            json_object_del(o, key);
        else
            json_object_set(o, key, v);
    }
    text = json_dumps(o, 0);
    tmp_text(dir, "config.json", text);
    tmp_write(dir, "model.safetensors", no_tensors, 16);
    assert_ok(mc_ckpt_open(dir, &c, err), *err);
    rc = mc_config_load(c, out, err);
    mc_ckpt_close(c);
    free(text);
    json_decref(o);
    json_decref(p);
    tmp_free(dir);
    return rc;
}

static struct mc_config good(const char *path, const char *patch)
{
    struct mc_config m;
    struct mc_err err = {0};

    assert_ok(load(path, patch, &m, &err), err);
    return m;
}

static int count(const struct mc_config *m, int flag)
{
    int n = 0;

    for (int32_t i = 0; i < m->n_layer + m->n_mtp; i++)
        n += m->layer[i] & flag ? 1 : 0;
    return n;
}

static void config_of_deepseek_has_groups_and_a_draft_layer(void **state)
{
    struct mc_config m = good(DEEPSEEK, "{}");

    (void)state;
    assert_true(m.attn == MC_ATTN_MLA && m.q_lora == 1536 && m.kv_lora == 512);
    assert_true(m.nope == 128 && m.rope_dim == 64 && m.v_dim == 128 && m.rope_neighbours);
    assert_true(m.n_expert == 256 && m.top_k_expert == 8);
    assert_true(m.n_group == 8 && m.topk_group == 4 && m.router_factor == 2.5f);
    assert_true(m.shared_inter == 2048 && !m.shared_gate);
    assert_true(!m.router_softmax && m.router_norm);
    assert_true(m.n_mtp == 1 && count(&m, MC_LAYER_MOE) == 59);
    assert_int_equal(count(&m, MC_LAYER_INDEX), 0);
    assert_true(m.lora_norm_eps == 1e-6f && m.rope_mul == 1);
    assert_true(fabsf(m.attn_scale - 0.1352337f) < 1e-6f); /* 192^-.5 (.1 ln 40 + 1)^2 */
    m = good(DEEPSEEK, "{\"q_lora_rank\":null,\"moe_layer_freq\":2}");
    assert_int_equal(m.q_lora, 0);
    assert_int_equal(count(&m, MC_LAYER_MOE), 30); /* 4, 6 .. 60, and the draft layer */
}

static void config_of_kimi_is_inside_text_config(void **state)
{
    struct mc_config m = good(KIMI, "{}");

    (void)state;
    assert_string_equal(m.family, "kimi_k2");
    assert_string_equal(m.prefix, "language_model.");
    assert_true(m.n_layer == 61 && m.n_mtp == 0 && count(&m, MC_LAYER_MOE) == 60);
    assert_true(m.n_expert == 384 && m.n_group == 1 && m.rope == MC_ROPE_YARN);
    assert_true(fabsf(m.attn_scale - 0.1446796f) < 1e-6f && m.rope_mul == 1);
    assert_true(m.bos == 163584 && m.n_eos == 1 && !m.kv_fp8);
}

static void config_of_glm_says_which_layers_own_an_indexer(void **state)
{
    struct mc_config m = good(GLM, "{}");

    (void)state;
    assert_true(m.attn_scale == 0.0625f && m.rope == MC_ROPE_PLAIN &&
                m.rope_theta == 8e6);
    assert_int_equal(mc_rope_dim(&m), 64); /* whatever head_dim says */
    assert_true(m.index_heads == 32 && m.index_dim == 128 && m.index_topk == 2048);
    assert_true(m.index_neighbours && m.n_mtp == 1);
    assert_int_equal(count(&m, MC_LAYER_INDEX), 22);
    for (int32_t i = 0; i < 78; i++)
        assert_int_equal(!!(m.layer[i] & MC_LAYER_INDEX), i < 3 || i % 4 == 2);
    assert_int_equal(m.layer[78], MC_LAYER_MOE | MC_LAYER_INDEX);
    m = good(GLM, "{\"indexer_types\":" ABSENT "}");
    assert_int_equal(count(&m, MC_LAYER_INDEX), 22); /* by freq 4, offset 3 */
    m = good(GLM, "{\"indexer_types\":" ABSENT ",\"index_topk_freq\":" ABSENT "}");
    assert_int_equal(count(&m, MC_LAYER_INDEX), 79);
}

static void config_cache_takes_the_layouts_of_its_model(void **state)
{
    struct mc_config gqa = good(TINY, "{}"), mla = good(GLM, "{}");
    struct mc_config said =
        good(TINY, "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\","
                   "\"kv_cache_scheme\":{\"num_bits\":8,\"type\":\"float\"}}}");
    enum mc_kv_layout kv = MC_KV_F32;
    struct mc_err err = {0};
    struct mc_kv pages;

    (void)state;
    assert_true(mc_kv_layout_of(&gqa, "auto", &kv, NULL) == 0 && kv == MC_KV_BF16);
    assert_true(mc_kv_layout_of(&gqa, "fp8", &kv, NULL) == 0 && kv == MC_KV_FP8);
    assert_true(mc_kv_layout_of(&said, "auto", &kv, NULL) == 0 && kv == MC_KV_FP8);
    assert_int_equal(mc_kv_layout_of(&gqa, "fp8-656", &kv, &err), MC_EUNSUP);
    assert_non_null(strstr(err.text, "takes auto, f32, bf16, fp8"));
    assert_int_equal(mc_kv_layout_of(&gqa, "fp8-plain", &kv, NULL), MC_EUNSUP);
    assert_int_equal(mc_kv_layout_of(&mla, "fp9", &kv, NULL), MC_EUNSUP);
    assert_true(mc_kv_layout_of(&mla, "fp8-plain", &kv, NULL) == 0);
    assert_int_equal(kv, MC_KV_FP8_PLAIN);
    assert_true(mc_kv_layout_of(&mla, "fp8", &kv, NULL) == 0 && kv == MC_KV_FP8_656);
    pages = mc_kv_of(&mla, (struct mc_slice){0, 1}, kv);
    assert_int_equal(pages.page_stride, MC_PAGE * (79 * 656 + 22 * 132));
    assert_int_equal(load(TINY, "{\"quantization_config\":{\"quant_method\":\"fp8\","
                                "\"kv_cache_scheme\":{\"num_bits\":4,\"type\":\"int\"}}}",
                          &gqa, &err), MC_EUNSUP);
    assert_non_null(strstr(err.text, "num_bits must be 8"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(config_of_deepseek_has_groups_and_a_draft_layer),
    cmocka_unit_test(config_of_kimi_is_inside_text_config),
    cmocka_unit_test(config_of_glm_says_which_layers_own_an_indexer),
    cmocka_unit_test(config_cache_takes_the_layouts_of_its_model),
};

MC_TEST_MAIN(tests)
