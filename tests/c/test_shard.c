/* test_shard.c - tokens spread over ranks: the logits and tokens of ranks that each keep
 * all. */
#include "tests/c/engine_help.h"

#include <math.h>

#include "core/engine/engine_int.h"
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
    assert_ok(mc_ranks_shard(&r, n_shard, &err), err);
    *vocab = r.rank[0].model.cfg.vocab;
    assert_ok(mc_solo_open(&r, &(struct mc_solo_opts){.context = TOKENS, .rows = ROWS,
                                                      .outs = OUTS, .kv = MC_KV_F32},
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

/* ---- an engine --------------------------------------------------------------------- */

static struct mc_engine *sharded(const char *model, int32_t ranks, int32_t n_shard,
                                 uint64_t kv_bytes, int64_t swap_bytes)
{
    return engine_open(&(struct mc_engine_opts){.model = model,
                                                .ranks = ranks,
                                                .shard_tokens = n_shard,
                                                .kv_bytes = kv_bytes,
                                                .swap_bytes = swap_bytes,
                                                .max_seqs = 5,
                                                .chunk = 64},
                       NULL);
}

static void shard_gives_the_tokens_of_whole_ranks(void **state)
{
    struct got *want[STREAMS], *g[STREAMS];

    (void)state;
    for (size_t m = 0; m < 2; m++) {
        static const int32_t shards[] = {1, 2, 4};

        for (size_t c = 0; c < 3; c++) {
            struct mc_engine *e = sharded(models[m], c == 1 ? 2 : 4, shards[c], 0, 0);

            run_all(e, true, c == 0 ? want : g);
            assert_idle(e);
            mc_engine_close(e);
            for (int i = 0; i < STREAMS && c > 0; i++) {
                same_tokens(g[i], want[i]);
                got_free(g[i]);
            }
        }
        for (int i = 0; i < STREAMS; i++)
            got_free(want[i]);
    }
}

/* Bytes of a page of tiny-kimi in f32: 5 layers, latents of 128 + 32. */
static const uint64_t KIMI_PAGE = 5ull * MC_PAGE * 160 * 4;

static void shard_ranks_hold_their_part_of_the_pool(void **state)
{
    struct mc_engine *e = sharded(models[0], 4, 4, 3 * KIMI_PAGE, 0);
    struct mc_engine_status st;
    struct got *g;
    int32_t ids[300];

    (void)state;
    mc_engine_status(e, &st);
    assert_int_equal(st.p_total, 12);
    assert_int_equal(st.kv_tokens, 12 * MC_PAGE);
    for (int32_t i = 0; i < 4; i++) {
        const struct mc_kv *kv = &e->crew.run[i].dev.kv;

        assert_int_equal(kv->n_page, 3);
        assert_int_equal(kv->rank, i);
        assert_int_equal(kv->page_stride, KIMI_PAGE);
    }
    some_ids(ids, 300, 9); /* a context that no rank could hold, up to the last token */
    g = run_one(e, ids, 300, 100000);
    assert_int_equal(g->end.finish, MC_FINISH_LENGTH);
    assert_int_equal(g->n, 12 * MC_PAGE - 300);
    assert_idle(e);
    got_free(g);
    mc_engine_close(e);
}

/* swap_bytes -1: there is no host memory, so they are recomputed. */
static void shard_preempted_ones_come_back_with_the_same_tokens(void **state)
{
    struct got *x[6], *y[6];
    struct mc_engine *e = sharded(models[0], 2, 2, 0, 0);

    (void)state;
    grow_six(e, x);
    mc_engine_close(e);
    for (int64_t swap = -1; swap <= 0; swap++) {
        e = sharded(models[0], 2, 2, 4 * KIMI_PAGE, swap);
        grow_six(e, y);
        assert_true(mc_engine_counter(e, MC_C_num_preemptions_total) > 0);
        assert_idle(e);
        mc_engine_close(e);
        for (int i = 0; i < 6; i++) {
            same_tokens(x[i], y[i]);
            got_free(y[i]);
        }
    }
    for (int i = 0; i < 6; i++)
        got_free(x[i]);
}

static void shard_repeated_prompt_finds_its_pages(void **state)
{
    struct mc_engine *e = sharded(models[1], 2, 2, 0, 0);
    struct got *first, *again;
    int32_t ids[300];

    (void)state;
    some_ids(ids, 300, 3);
    first = run_one(e, ids, 300, 20);
    again = run_one(e, ids, 300, 20);
    assert_int_equal(again->end.usage.n_cached, 4 * MC_PAGE);
    same_tokens(first, again);
    assert_idle(e);
    got_free(first), got_free(again);
    mc_engine_close(e);
}

/* ---- tags and refusals ------------------------------------------------------------- */

struct spoil {
    struct got *g;
    struct mc_engine *e;
};

/* On the engine thread, with nothing in flight: the page of the first block is stamped
 * anew where it lies, on one rank. */
static void spoil_token(void *ctx, const struct mc_token *t)
{
    struct spoil *s = ctx;

    got_token(s->g, t);
    if (s->g->n == 3) {
        int32_t page = s->e->crew.run[0].dev.kv.table[0];

        s->e->crew.run[page % 2].dev.kv.tag[page / 2] ^= 1;
    }
}

static void spoil_end(void *ctx, const struct mc_end *end)
{
    got_end(((struct spoil *)ctx)->g, end);
}

static void shard_stranger_on_one_rank_ends_the_request_alone(void **state)
{
    struct mc_engine *e = engine_open(
        &(struct mc_engine_opts){
            .model = models[0], .ranks = 2, .shard_tokens = 2, .sync = true},
        NULL);
    struct spoil s = {got_new(), e};
    struct mc_request r;
    struct mc_handle h;
    struct mc_err err = {0};
    struct got *after;
    int32_t ids[8];

    (void)state;
    some_ids(ids, 8, 1);
    r = ask_for(ids, 8, 50, s.g);
    r.sink = (struct mc_sink){.token = spoil_token, .end = spoil_end, .ctx = &s};
    assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    got_wait(s.g, -1);
    assert_int_equal(s.g->n, 3);
    assert_int_equal(s.g->end.finish, MC_FINISH_ERROR);
    assert_int_equal((int)mc_engine_counter(e, MC_C_page_tag_mismatch_total), 1);
    after = run_one(e, ids, 8, 50); /* the ranks still agree */
    assert_int_equal(after->n, 50);
    assert_idle(e);
    got_free(s.g), got_free(after);
    mc_engine_close(e);
}

static void shard_refuses_what_can_not_be_spread(void **state)
{
    static const struct {
        const char *model, *says;
        int32_t ranks, n_shard;
    } bad[] = {{"tests/models/tiny-llama", "only latents", 2, 2},
               {"tests/models/tiny-kimi", "does not divide --ranks 4", 4, 3}};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct mc_engine_opts o = {.model = bad[i].model, .ranks = bad[i].ranks,
                                   .shard_tokens = bad[i].n_shard};
        struct mc_engine *e = NULL;
        struct mc_err err = {0};

        assert_true(mc_engine_open(&o, &e, &err) < 0);
        assert_string_equal(err.param, "shard-tokens");
        if (!strstr(err.text, bad[i].says))
            fail_msg("'%s' is not '%s'", err.text, bad[i].says);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(shard_gives_the_logits_of_whole_ranks),
    cmocka_unit_test(shard_chunks_change_no_bit),
    cmocka_unit_test(shard_gives_the_tokens_of_whole_ranks),
    cmocka_unit_test(shard_ranks_hold_their_part_of_the_pool),
    cmocka_unit_test(shard_preempted_ones_come_back_with_the_same_tokens),
    cmocka_unit_test(shard_repeated_prompt_finds_its_pages),
    cmocka_unit_test(shard_stranger_on_one_rank_ends_the_request_alone),
    cmocka_unit_test(shard_refuses_what_can_not_be_spread),
};

MC_TEST_MAIN(tests)
