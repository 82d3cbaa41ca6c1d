/* test_prefill_kv.c - --prefill-kv bf16: a prompt's rows see their own chunk in bf16,
 * over older pages in fp8. */
#include "tests/c/solo_help.h"

#include <math.h>

#include "core/engine/engine_int.h"

enum { TOKENS = 300 };

static const struct {
    const char *model, *kv;
} cases[] = {{"tests/models/tiny-llama", "fp8"},
             {"tests/models/tiny-kimi", "fp8-656"},
             {"tests/models/tiny-kimi", "fp8-plain"}};
enum { N_CASE = sizeof cases / sizeof *cases };

/* Of model c, in pages of a layout. */
static int32_t reads(const char *backend, int c, const char *kv, bool bf16, int32_t chunk,
                     float *out)
{
    const struct reader w = {backend, cases[c].model, kv, .prefill_bf16 = bf16};

    return read_prompt(&w, TOKENS, chunk, out);
}

static double apart(const float *a, const float *b, int32_t n)
{
    double sum = 0;

    for (int32_t i = 0; i < n; i++)
        sum += fabs((double)a[i] - b[i]);
    return sum / n;
}

static float in_bf16[SOLO_OUTS * 4096], in_fp8[SOLO_OUTS * 4096], mixed[SOLO_OUTS * 4096];

static void prefill_of_one_chunk_gives_the_bits_of_bf16(void **state)
{
    static const char *const backends[] = {"cpu", "ref"};
    int32_t vocab;

    (void)state;
    for (int c = 0; c < N_CASE; c++)
        for (int b = 0; b < 2; b++) {
            vocab = reads(backends[b], c, "bf16", false, TOKENS, in_bf16);
            reads(backends[b], c, cases[c].kv, true, TOKENS, mixed);
            assert_memory_equal(in_bf16, mixed,
                                (size_t)SOLO_OUTS * (size_t)vocab * sizeof *mixed);
        }
}

/* Chunks that end inside of a page: older tokens of a row's page are as it keeps them. */
static void prefill_of_chunks_lies_between_bf16_and_fp8(void **state)
{
    int32_t n;

    (void)state;
    for (int c = 0; c < N_CASE; c++) {
        n = SOLO_OUTS * reads("cpu", c, "bf16", false, 100, in_bf16);
        reads("cpu", c, cases[c].kv, false, 100, in_fp8);
        reads("cpu", c, cases[c].kv, true, 100, mixed);
        assert_true(apart(mixed, in_bf16, n) > 0); /* fp8 was read, too */
        assert_true(apart(mixed, in_bf16, n) < apart(in_fp8, in_bf16, n));
        reads("ref", c, cases[c].kv, true, 100, in_fp8);
        assert_true(apart(mixed, in_fp8, n) < 2e-3); /* the oracle agrees */
    }
}

/* Pages keep fp8 as ever, so decoding and a later prompt read the same bytes. */
static void prefill_leaves_the_pages_alone(void **state)
{
    struct mc_page_dump d[2];
    int32_t ids[TOKENS];

    (void)state;
    some_ids(ids, TOKENS, 5);
    for (int k = 0; k < 2; k++) {
        struct mc_engine *e = engine_open(
            &(struct mc_engine_opts){.kv = "fp8", .prefill_bf16 = k}, NULL);
        struct got *g = run_one(e, ids, 64, 3);
        struct mc_err err = {0};

        assert_int_equal(g->n, 3);
        assert_ok(mc_engine_dump(e, &(struct mc_page_piece){0}, &d[k], &err), err);
        got_free(g);
        mc_engine_close(e);
    }
    assert_int_equal(d[0].n, d[1].n); /* the first layer's: its input is the same */
    assert_memory_equal(d[0].bytes, d[1].bytes, d[0].n);
    free(d[0].bytes), free(d[1].bytes);
}

/* Several prompts, whose rows lie beside decode rows: each as alone, in chunks alike. */
static void prefill_rows_do_not_mix(void **state)
{
    struct mc_engine_opts o = {.kv = "fp8", .prefill_bf16 = true, .chunk = 512};
    struct mc_engine *e = engine_open(&o, NULL);
    struct got *alone[STREAMS], *g[STREAMS];

    (void)state;
    run_all(e, false, alone);
    mc_engine_close(e);
    e = engine_open(&o, NULL);
    run_all(e, true, g);
    mc_engine_close(e);
    for (int i = 0; i < STREAMS; i++) {
        if (i < 5) /* their chunks are whole in both */
            same_tokens(alone[i], g[i]);
        got_free(alone[i]), got_free(g[i]);
    }
}

static void prefill_refuses_what_reads_pages_alone(void **state)
{
    static const struct mc_engine_opts bad[] = {
        {.model = "tests/models/tiny-glm"},
        {.model = "tests/models/tiny-kimi", .mla_expand = 64},
        {.model = "tests/models/tiny-kimi", .ranks = 2, .shard_tokens = 2},
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mc_engine_opts o = bad[i];
        struct mc_engine *e = NULL;
        struct mc_err err = {0};

        o.prefill_bf16 = true;
        assert_true(mc_engine_open(&o, &e, &err) < 0);
        assert_string_equal(err.param, "prefill-kv");
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(prefill_of_one_chunk_gives_the_bits_of_bf16),
    cmocka_unit_test(prefill_of_chunks_lies_between_bf16_and_fp8),
    cmocka_unit_test(prefill_leaves_the_pages_alone),
    cmocka_unit_test(prefill_rows_do_not_mix),
    cmocka_unit_test(prefill_refuses_what_reads_pages_alone),
};

MC_TEST_MAIN(tests)
