/* test_invent.c - checkpoints of random weights: every form, loaded and run. */
#include "tests/c/engine_help.h"

#include <unistd.h>

#include "core/cli/invent.h"
#include "core/cli/scratch.h"
#include "tests/c/tmpdir.h"

static void invent(const char *config, uint64_t seed, const char *dir)
{
    json_t *json = json_load_file(config, 0, NULL);
    struct mc_err err = {0};

    assert_non_null(json);
    assert_ok(mc_invent(&(struct mc_invent){.config = json, .seed = seed}, dir, &err),
              err);
    json_decref(json);
}

/* bf16, fp8 blocks and int4 groups; dense, experts, latents, an indexer, a draft layer.
 */
static void invent_makes_what_loads_and_runs(void **state)
{
    static const char *const models[] = {"tiny-llama", "tiny-qwen3-moe", "tiny-kimi",
                                         "tiny-glm"};

    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char *dir = tmp_new(), config[128];
        struct mc_engine *e;
        int32_t ids[70];
        struct got *g;

        snprintf(config, sizeof config, "tests/models/%s/config.json", models[i]);
        invent(config, 7, dir);
        e = engine_open(&(struct mc_engine_opts){.model = dir, .kv = "auto"}, NULL);
        some_ids(ids, 70, 1);
        g = run_one(e, ids, 70, 8);
        assert_int_equal(g->end.finish, MC_FINISH_LENGTH);
        assert_int_equal(g->n, 8);
        got_free(g);
        mc_engine_close(e);
        tmp_free(dir);
    }
}

static void same_file(const char *a, const char *b, const char *name, bool same)
{
    char x[4096], y[4096];
    FILE *f = fopen(tmp_path(a, name), "rb"), *g = fopen(tmp_path(b, name), "rb");
    bool equal = true;
    size_t n, m;

    assert_non_null(f);
    assert_non_null(g);
    do {
        n = fread(x, 1, sizeof x, f);
        m = fread(y, 1, sizeof y, g);
        equal = equal && n == m && memcmp(x, y, n) == 0;
    } while (n > 0);
    fclose(f), fclose(g);
    assert_int_equal(equal, same);
}

static void invent_repeats_with_its_seed(void **state)
{
    char *dir[3];

    (void)state;
    for (int i = 0; i < 3; i++) {
        dir[i] = tmp_new();
        invent("tests/models/tiny-kimi/config.json", i == 2 ? 8 : 7, dir[i]);
    }
    same_file(dir[0], dir[1], "model.safetensors", true);
    same_file(dir[0], dir[2], "model.safetensors", false);
    for (int i = 0; i < 3; i++)
        tmp_free(dir[i]);
}

static void invent_copies_a_tokenizer_and_scratch_ends(void **state)
{
    const char *from = "tests/models/tiny-llama";
    json_t *json = json_load_file("tests/models/tiny-llama/config.json", 0, NULL);
    char dir[MC_SCRATCH_PATH];
    struct mc_err err = {0};

    (void)state;
    assert_ok(mc_scratch_new(dir, &err), err);
    assert_ok(mc_invent(&(struct mc_invent){.config = json, .tokenizer = from}, dir,
                        &err),
              err);
    same_file(from, dir, "tokenizer.json", true);
    mc_scratch_remove(dir);
    assert_int_not_equal(access(dir, F_OK), 0);
    json_decref(json);
}

static void invent_refuses_a_form_it_does_not_write(void **state)
{
    json_t *json = json_load_file("tests/models/tiny-llama-nvfp4/config.json", 0, NULL);
    char *dir = tmp_new();
    struct mc_err err = {0};

    (void)state;
    assert_int_equal(mc_invent(&(struct mc_invent){.config = json}, dir, &err),
                     MC_EUNSUP);
    assert_non_null(strstr(err.text, "nvfp4"));
    json_decref(json);
    tmp_free(dir);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(invent_makes_what_loads_and_runs),
    cmocka_unit_test(invent_repeats_with_its_seed),
    cmocka_unit_test(invent_copies_a_tokenizer_and_scratch_ends),
    cmocka_unit_test(invent_refuses_a_form_it_does_not_write),
};

MC_TEST_MAIN(tests)
