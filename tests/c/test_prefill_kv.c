/* test_prefill_kv.c - --prefill-kv bf16: a prompt's rows see their own chunk in bf16,
 * over older pages in fp8. */
#include "tests/c/engine_help.h"

#include <math.h>

#include "core/engine/engine_int.h"
#include "core/model/solo.h"

enum { TOKENS = 300, OUTS = 8 };

static const struct {
    const char *model, *kv;
} cases[] = {{"tests/models/tiny-llama", "fp8"},
             {"tests/models/tiny-kimi", "fp8-656"},
             {"tests/models/tiny-kimi", "fp8-plain"}};
enum { N_CASE = sizeof cases / sizeof *cases };

/* Logits of the last OUTS rows of a prompt that is read in chunks of n. */
static void read_prompt(const char *backend, const char *model, const char *kv, bool bf16,
                        int32_t n, float *out, int32_t *vocab)
{
    const struct mc_backend_opts bo = {.ref_act = -1};
    struct mc_ranks r = {.prefill_bf16 = bf16};
    struct mc_solo_opts o = {.context = TOKENS, .rows = TOKENS, .outs = OUTS};
    int32_t ids[TOKENS], row[OUTS];
    const float *logits = NULL;
    struct mc_tok *tok = NULL;
    struct mc_solo *s = NULL;
    struct mc_err err = {0};

    some_ids(ids, TOKENS, 5);
    assert_ok(mc_ranks_open(&r, backend, &bo, 1, &err), err);
    r.prefill_bf16 = bf16;
    assert_ok(mc_ranks_load(&r, model, &tok, &err), err);
    assert_ok(mc_kv_layout_of(&r.rank[0].model.cfg, kv, &o.kv, &err), err);
    assert_ok(mc_solo_open(&r, &o, &s, &err), err);
    *vocab = r.rank[0].model.cfg.vocab;
    for (int32_t at = 0, m; at < TOKENS; at += m) {
        m = TOKENS - at < n ? TOKENS - at : n;
        for (int32_t i = 0; i < OUTS; i++)
            row[i] = m - OUTS + i;
        assert_ok(mc_solo_run(s, ids + at, m, row, OUTS, NULL, &logits, &err), err);
    }
    memcpy(out, logits, (size_t)OUTS * (size_t)*vocab * sizeof *out);
    mc_solo_close(s);
    mc_ranks_close(&r);
    mc_tok_close(tok);
}

static double apart(const float *a, const float *b, int32_t n)
{
    double sum = 0;

    for (int32_t i = 0; i < n; i++)
        sum += fabs((double)a[i] - b[i]);
    return sum / n;
}

static float in_bf16[OUTS * 4096], in_fp8[OUTS * 4096], mixed[OUTS * 4096];

static void prefill_of_one_chunk_gives_the_bits_of_bf16(void **state)
{
    static const char *const backends[] = {"cpu", "ref"};
    int32_t vocab;

    (void)state;
    for (int c = 0; c < N_CASE; c++)
        for (int b = 0; b < 2; b++) {
            read_prompt(backends[b], cases[c].model, "bf16", false, TOKENS, in_bf16,
                        &vocab);
            read_prompt(backends[b], cases[c].model, cases[c].kv, true, TOKENS, mixed,
                        &vocab);
            assert_memory_equal(in_bf16, mixed,
                                (size_t)OUTS * (size_t)vocab * sizeof *mixed);
        }
}

/* Chunks that end inside of a page: older tokens of a row's page are as it keeps them. */
static void prefill_of_chunks_lies_between_bf16_and_fp8(void **state)
{
    int32_t vocab, n;

    (void)state;
    for (int c = 0; c < N_CASE; c++) {
        read_prompt("cpu", cases[c].model, "bf16", false, 100, in_bf16, &vocab);
        read_prompt("cpu", cases[c].model, cases[c].kv, false, 100, in_fp8, &vocab);
        read_prompt("cpu", cases[c].model, cases[c].kv, true, 100, mixed, &vocab);
        n = OUTS * vocab;
        assert_true(apart(mixed, in_bf16, n) > 0); /* fp8 was read, too */
        assert_true(apart(mixed, in_bf16, n) < apart(in_fp8, in_bf16, n));
        read_prompt("ref", cases[c].model, cases[c].kv, true, 100, in_fp8, &vocab);
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
