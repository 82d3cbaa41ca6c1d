/* test_shard.c - tokens spread over ranks: the logits and tokens of ranks that each keep
 * all. */
#include "tests/c/engine_help.h"

#include <math.h>

#include "core/model/solo.h"

enum { TOKENS = 450, ROWS = 100, OUTS = 6 };

static const char *const models[] = {"tests/models/tiny-kimi", "tests/models/tiny-glm"};

/* ---- one sequence by hand ---------------------------------------------------------- */

/* Logits of OUTS rows of the last chunk; the first chunks have `first` tokens. */
static void solo_logits(const char *model, const char *backend, int32_t ranks,
                        int32_t n_shard, int32_t first, float *out, int32_t *vocab)
{
    const struct mc_backend_opts bo = {.ref_act = -1};
    struct mc_ranks r = {0};
    struct mc_tok *tok = NULL;
    struct mc_solo *s = NULL;
    struct mc_err err = {0};
    int32_t ids[TOKENS], row[OUTS];
    const float *logits = NULL;

    some_ids(ids, TOKENS, 5);
    assert_ok(mc_ranks_open(&r, backend, &bo, ranks, &err), err);
    assert_ok(mc_ranks_load(&r, model, &tok, &err), err);
    *vocab = r.rank[0].model.cfg.vocab;
    assert_ok(mc_solo_open(&r, &(struct mc_solo_opts){.context = TOKENS, .rows = ROWS,
                                                      .outs = OUTS, .kv = MC_KV_F32,
                                                      .n_shard = n_shard},
                           &s, &err), err);
    for (int32_t at = 0, n = first; at < TOKENS; at += n, n = ROWS) {
        n = TOKENS - at < n ? TOKENS - at : n;
        for (int32_t i = 0; i < OUTS; i++)
            row[i] = n - OUTS + i;
        assert_ok(mc_solo_run(s, ids + at, n, row, OUTS, NULL, &logits, &err), err);
    }
    memcpy(out, logits, (size_t)OUTS * (size_t)*vocab * sizeof *out);
    mc_solo_close(s);
    mc_ranks_close(&r);
    mc_tok_close(tok);
}

static double worst(const float *a, const float *b, int32_t n)
{
    double most = 0;

    for (int32_t i = 0; i < n; i++)
        most = fabs((double)a[i] - b[i]) > most ? fabs((double)a[i] - b[i]) : most;
    return most;
}

/* Sums run in another order, so the last bits differ; logits are of the order of 10. */
static void shard_gives_the_logits_of_whole_ranks(void **state)
{
    static const struct {
        int32_t ranks, n_shard;
        const char *backend;
    } how[] = {{2, 2, "cpu"}, {4, 4, "cpu"}, {4, 2, "cpu"}, {2, 2, "ref"}};
    static float want[OUTS * 4096], got[OUTS * 4096];
    int32_t vocab;

    (void)state;
    for (size_t m = 0; m < 2; m++)
        for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
            solo_logits(models[m], how[i].backend, how[i].ranks, 1, ROWS, want, &vocab);
            solo_logits(models[m], how[i].backend, how[i].ranks, how[i].n_shard, ROWS,
                        got, &vocab);
            if (!(worst(want, got, OUTS * vocab) < 2e-4))
                fail_msg("%s, %d ranks, shards of %d: %g", models[m], how[i].ranks,
                         how[i].n_shard, worst(want, got, OUTS * vocab));
        }
}

/* A row's bits do not depend on how its context was chunked. */
static void shard_chunks_change_no_bit(void **state)
{
    static float want[OUTS * 4096], got[OUTS * 4096];
    int32_t vocab;

    (void)state;
    for (size_t m = 0; m < 2; m++) {
        solo_logits(models[m], "cpu", 2, 2, ROWS, want, &vocab);
        solo_logits(models[m], "cpu", 2, 2, 37, got, &vocab);
        assert_memory_equal(want, got, (size_t)OUTS * (size_t)vocab * sizeof *want);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(shard_gives_the_logits_of_whole_ranks),
    cmocka_unit_test(shard_chunks_change_no_bit),
};

MC_TEST_MAIN(tests)
