/* test_expand.c - latents that long chunks expand: from how many rows, who can, and what
 * short chunks keep. */
#include "tests/c/solo_help.h"

#include <math.h>

#include "core/weights/weights.h"

#define KIMI "tests/models/tiny-kimi"

enum { TOKENS = 2 * MC_EXPAND_LEAST };

static struct mc_backend *backend(const char *name)
{
    const struct mc_backend_opts o = {.ref_act = -1, .threads = 1};
    struct mc_backend *be = NULL;
    struct mc_err err = {0};

    assert_ok(mc_backend_open(name, &o, &be, &err), err);
    return be;
}

static int32_t from(const char *name, const struct mc_config *c)
{
    struct mc_backend *be = backend(name);
    int32_t n = mc_expand_from(be, c);

    be->close(be);
    return n;
}

static struct mc_config config_of(const char *path)
{
    struct mc_config c;
    struct mc_ckpt *ckpt = NULL;
    struct mc_err err = {0};

    assert_ok(mc_ckpt_open_config(path, &ckpt, &err), err);
    assert_ok(mc_config_load(ckpt, &c, &err), err);
    mc_ckpt_close(ckpt);
    return c;
}

static void expand_begins_where_the_sizes_say_that_it_pays(void **state)
{
    struct mc_config c = config_of("tests/configs/kimi-k2.6.json");

    (void)state;
    assert_int_equal(from("cpu", &c), 192); /* 256 * 512 / (1024 - 256) = 171 */
    c.nope = 160; /* 288 * 512 / (1024 - 288) = 201 */
    assert_int_equal(from("ref", &c), 256);
    c.kv_lora = 144; /* a row multiplies 2 * 144 absorbed, 288 expanded */
    assert_int_equal(from("ref", &c), 0);
    c = config_of("tests/configs/deepseek-v3.json");
    assert_int_equal(from("cpu", &c), 192);
}

static void expand_is_not_for_indexers_or_what_a_backend_refuses(void **state)
{
    struct mc_config c = config_of("tests/configs/glm-5.2-fp8.json");

    (void)state;
    assert_int_equal(from("cpu", &c), 0);
    c = config_of("tests/models/tiny-llama/config.json");
    assert_int_equal(from("cpu", &c), 0);
    c = config_of(KIMI "/config.json");
    assert_int_equal(from("cpu", &c), 192);
    c.nope = 10;
    assert_int_equal(from("cpu", &c), 0);
    assert_int_equal(from("ref", &c), 192);
}

/* With pages of f32. */
static int32_t read_kimi(int32_t expand, int32_t chunk, float *out)
{
    const struct reader w = {"cpu", KIMI, "f32", .mla_expand = expand};

    return read_prompt(&w, TOKENS, chunk, out);
}

static float never[SOLO_OUTS * 4096], here[SOLO_OUTS * 4096];

static float most_apart(const float *a, const float *b, int32_t n)
{
    float most = 0;

    for (int32_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(a[i] - b[i]));
    return most;
}

/* The tolerance of core/cli/golden.c. The bits of a chunk say which form it took. */
static void expand_by_default_takes_long_chunks_and_agrees(void **state)
{
    int32_t n;

    (void)state;
    n = SOLO_OUTS * read_kimi(0, TOKENS, never);
    read_kimi(-1, MC_EXPAND_LEAST, here);
    assert_true(most_apart(never, here, n) > 0);
    assert_true(most_apart(never, here, n) < 2e-3f);
}

/* Absorbed, rows have the same bits in any chunks: what expansion is an exception to. */
static void expand_leaves_short_chunks_alone(void **state)
{
    static const int32_t chunk[] = {TOKENS / 4, 100, MC_EXPAND_LEAST - 8};
    int32_t vocab;

    (void)state;
    vocab = read_kimi(0, TOKENS, never);
    for (size_t i = 0; i < sizeof chunk / sizeof *chunk; i++) {
        read_kimi(-1, chunk[i], here);
        assert_memory_equal(never, here, (size_t)SOLO_OUTS * (size_t)vocab * sizeof *here);
    }
}

static bool loads_kv_b(struct mc_engine_opts o)
{
    struct mc_engine *e = NULL;
    struct mc_err err = {0};
    bool yes;

    o.model = KIMI;
    o.backend = "cpu";
    assert_ok(mc_engine_open(&o, &e, &err), err);
    yes = mc_engine_config(e)->mla_expand > 0;
    mc_engine_close(e);
    return yes;
}

/* Nothing is kept for what can't happen. */
static void expand_is_off_where_no_chunk_can_be_long(void **state)
{
    (void)state;
    assert_true(loads_kv_b((struct mc_engine_opts){.mla_expand = -1}));
    assert_false(loads_kv_b((struct mc_engine_opts){.mla_expand = 0}));
    assert_false(loads_kv_b((struct mc_engine_opts){.mla_expand = -1, .chunk = 128}));
    assert_false(
        loads_kv_b((struct mc_engine_opts){.mla_expand = -1, .prefill_bf16 = true}));
    assert_false(loads_kv_b(
        (struct mc_engine_opts){.mla_expand = -1, .ranks = 2, .shard_tokens = 2}));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(expand_begins_where_the_sizes_say_that_it_pays),
    cmocka_unit_test(expand_is_not_for_indexers_or_what_a_backend_refuses),
    cmocka_unit_test(expand_by_default_takes_long_chunks_and_agrees),
    cmocka_unit_test(expand_leaves_short_chunks_alone),
    cmocka_unit_test(expand_is_off_where_no_chunk_can_be_long),
};

MC_TEST_MAIN(tests)
