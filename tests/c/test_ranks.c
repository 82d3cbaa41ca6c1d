/* test_ranks.c - an engine that shares a model over ranks: the tokens of one rank, parts of
 * the weights, numbers that can't be, and what a rank that disagrees or fails does. */
#include "tests/c/engine_help.h"

#include "core/engine/engine_int.h"

static void ranks_give_the_tokens_of_one(void **state)
{
    static const int32_t counts[] = {1, 2, 4, 8};
    struct got *want[STREAMS], *g[STREAMS];

    (void)state;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        struct mc_engine *e = engine_open(&(struct mc_engine_opts){.ranks = counts[c],
                                                                   .max_seqs = 5,
                                                                   .chunk = 64},
                                          NULL);

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

/* Which of the ranks draws a token does not show: the seed and the position decide. */
static void ranks_sample_as_one_does(void **state)
{
    struct got *g[2];
    int32_t ids[20];

    (void)state;
    some_ids(ids, 20, 3);
    for (int k = 0; k < 2; k++) {
        struct mc_engine *e = engine_open(&(struct mc_engine_opts){.ranks = k ? 4 : 1,
                                                                   .backend = "ref"},
                                          NULL);
        struct mc_request r;
        struct mc_handle h;
        struct mc_err err = {0};

        g[k] = got_new();
        r = ask_for(ids, 20, 30, g[k]);
        r.want.temperature = 0.8;
        r.want.top_p = 0.9;
        r.want.presence_penalty = 0.5; /* counts are kept on every rank */
        r.seeded = true;
        r.seed = 11;
        r.n_top = 3;
        assert_ok(mc_engine_submit(e, &r, &h, &err), err);
        got_wait(g[k], -1);
        mc_engine_close(e);
    }
    same_tokens(g[0], g[1]);
    for (int32_t i = 0; i < g[0]->n; i++)
        assert_float_equal(g[0]->logprob[i], g[1]->logprob[i], 1e-3);
    got_free(g[0]), got_free(g[1]);
}

/* tiny-llama replicates its norms only, which are no matrices. */
static void ranks_hold_their_part_of_the_weights(void **state)
{
    struct mc_engine_status one, four;
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){0}, NULL);

    (void)state;
    mc_engine_status(e, &one);
    mc_engine_close(e);
    e = engine_open(&(struct mc_engine_opts){.ranks = 4}, NULL);
    mc_engine_status(e, &four);
    mc_engine_close(e);
    assert_int_equal(one.n_rank, 1);
    assert_int_equal(four.n_rank, 4);
    for (int i = 0; i < 4; i++) /* 2 kv heads: each is on two ranks; 64 bytes a matrix */
        assert_in_range(four.rank_weight_bytes[i], one.weight_bytes / 4,
                        one.weight_bytes / 4 * 11 / 10);
}

static void ranks_that_do_not_divide_are_refused_with_those_that_do(void **state)
{
    static const struct {
        const char *model;
        int32_t n;
        const char *says;
    } bad[] = {{"tests/models/tiny-llama", 3, "1, 2, 4, 8 can"},
               {"tests/models/tiny-qwen3-moe", 4, "--ranks 4: 6 heads over 2 kv heads"},
               {"tests/models/tiny-llama", 9, "1 to 8 are possible"}};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mc_engine_opts o = {.model = bad[i].model, .ranks = bad[i].n};
        struct mc_engine *e = NULL;
        struct mc_err err = {0};

        assert_true(mc_engine_open(&o, &e, &err) < 0);
        if (!strstr(err.text, bad[i].says))
            fail_msg("'%s' is not '%s'", err.text, bad[i].says);
    }
}

/* ---- disagreement and failure ------------------------------------------------------ */

struct spoil {
    struct got *g;
    struct mc_engine *e;
};

/* On the engine thread, with nothing in flight: rank 1 takes another page for its own. */
static void spoil_token(void *ctx, const struct mc_token *t)
{
    struct spoil *s = ctx;

    got_token(s->g, t);
    if (s->g->n == 3)
        s->e->crew.run[1].dev.kv.table[0] ^= 1;
}

static void spoil_end(void *ctx, const struct mc_end *e)
{
    got_end(((struct spoil *)ctx)->g, e);
}

static void assert_failed(struct mc_engine *e, const struct got *g, const char *why)
{
    struct mc_engine_status st;

    assert_int_equal(g->end.finish, MC_FINISH_ERROR);
    assert_int_equal(g->end.err.code, MC_ERANK);
    if (!strstr(g->end.err.text, why))
        fail_msg("'%s' is not '%s'", g->end.err.text, why);
    mc_engine_status(e, &st);
    assert_true(st.failed);
}

static void ranks_that_disagree_on_a_step_stop_the_engine(void **state)
{
    struct mc_engine *e = engine_open(
        &(struct mc_engine_opts){.ranks = 2, .sync = true, .no_page_tags = true}, NULL);
    struct spoil s = {got_new(), e};
    int32_t ids[8];
    struct mc_request r;
    struct mc_handle h;
    struct mc_err err = {0};

    (void)state;
    some_ids(ids, 8, 1);
    r = ask_for(ids, 8, 50, s.g);
    r.sink = (struct mc_sink){.token = spoil_token, .end = spoil_end, .ctx = &s};
    assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    got_wait(s.g, -1);
    assert_int_equal(s.g->n, 3); /* nothing of the step is published */
    assert_failed(e, s.g, "step digest mismatch: ranks 0 and 1");
    mc_engine_close(e);
    got_free(s.g);
}

static void ranks_fail_with_the_one_that_does(void **state)
{
    static const char *const faults[] = {"rank:1:error@prefill", "rank:0:error@decode"};
    int32_t ids[8];

    (void)state;
    some_ids(ids, 8, 1);
    for (size_t i = 0; i < 2; i++) {
        struct mc_engine *e;
        struct got *g;

        setenv("MC_FAIL", faults[i], 1);
        e = engine_open(&(struct mc_engine_opts){.ranks = 2}, NULL);
        unsetenv("MC_FAIL");
        g = run_one(e, ids, 8, 20);
        assert_failed(e, g, i ? "rank 0 failed" : "rank 1 failed");
        mc_engine_close(e);
        got_free(g);
    }
}

static void ranks_end_together_when_one_can_not_load(void **state)
{
    struct mc_engine_opts o = {.model = "tests/models/tiny-llama", .ranks = 4};
    static const char *const bad[] = {"rank:4:error", "rank:0:fall", "rank:1:error@noon"};
    struct mc_engine *e = NULL;
    struct mc_err err = {0};

    (void)state;
    setenv("MC_FAIL", "rank:2:error@load", 1);
    assert_int_equal(mc_engine_open(&o, &e, &err), MC_ERANK);
    assert_non_null(strstr(err.text, "rank 2 failed"));
    for (size_t i = 0; i < 3; i++) {
        setenv("MC_FAIL", bad[i], 1);
        assert_int_equal(mc_engine_open(&o, &e, &err), MC_EARG);
    }
    unsetenv("MC_FAIL");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(ranks_give_the_tokens_of_one),
    cmocka_unit_test(ranks_sample_as_one_does),
    cmocka_unit_test(ranks_hold_their_part_of_the_weights),
    cmocka_unit_test(ranks_that_do_not_divide_are_refused_with_those_that_do),
    cmocka_unit_test(ranks_that_disagree_on_a_step_stop_the_engine),
    cmocka_unit_test(ranks_fail_with_the_one_that_does),
    cmocka_unit_test(ranks_end_together_when_one_can_not_load),
};

MC_TEST_MAIN(tests)
