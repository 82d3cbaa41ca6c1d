/* test_engine_ends.c - how sequences end: cancelled in every state, at stops, limits and
 * deadlines, with the engine; and what is refused before it begins. */
#include "tests/c/engine_help.h"

/* ---- cancel ------------------------------------------------------------------------ */

static void engine_cancel_gives_everything_back_in_every_state(void **state)
{
    struct mc_engine *e =
        engine_open(&(struct mc_engine_opts){.chunk = 16, .max_seqs = 2}, NULL);
    int32_t ids[LONG];

    (void)state;
    some_ids(ids, LONG, 9);
    for (int k = 0; k < 30; k++) {
        struct got *g[4];
        struct mc_handle h[4];
        struct mc_err err = {0};

        for (int i = 0; i < 4; i++) { /* two run, two wait */
            struct mc_request r;

            g[i] = got_new();
            r = ask_for(ids, LONG - 10 * i, 1000, g[i]);
            assert_ok(mc_engine_submit(e, &r, &h[i], &err), err);
        }
        if (k % 3 == 1)
            nanosleep(&(struct timespec){0, (k + 1) * 1000000L}, NULL); /* in prefill */
        if (k % 3 == 2)
            got_wait(g[0], 3); /* in decode */
        for (int i = 3; i >= 0; i--)
            mc_engine_cancel(e, h[i], "the test says so");
        for (int i = 0; i < 4; i++) {
            got_wait(g[i], -1);
            assert_int_equal(g[i]->end.finish, MC_FINISH_CANCEL);
            assert_string_equal(g[i]->end.err.text, "the test says so");
            got_free(g[i]);
        }
        mc_engine_cancel(e, h[0], "stale: nothing happens");
        assert_idle(e);
    }
    mc_engine_close(e);
}

static void engine_stop_ends_what_runs_and_waits(void **state)
{
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){.max_seqs = 2}, NULL);
    struct got *g[5];
    int32_t ids[20];
    struct mc_err err = {0};
    struct mc_handle h;
    struct mc_request r;

    (void)state;
    some_ids(ids, 20, 3);
    for (int i = 0; i < 5; i++) {
        g[i] = got_new();
        r = ask_for(ids, 20, 1500, g[i]);
        assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    }
    got_wait(g[0], 2);
    mc_engine_stop(e);
    for (int i = 0; i < 5; i++) {
        assert_true(g[i]->ended);
        assert_int_equal(g[i]->end.err.code, MC_EDRAIN);
        got_free(g[i]);
    }
    g[0] = got_new();
    r = ask_for(ids, 20, 1, g[0]);
    assert_int_equal(mc_engine_submit(e, &r, &h, &err), MC_EDRAIN);
    got_free(g[0]);
    mc_engine_close(e);
}

/* ---- ends -------------------------------------------------------------------------- */

static void engine_closed_before_it_started_ends_what_waits(void **state)
{
    const struct mc_engine_opts o = {.model = "tests/models/tiny-llama", .kv = "f32"};
    struct mc_engine *e = NULL;
    int32_t ids[4] = {1, 2, 3, 4};
    struct got *g = got_new();
    struct mc_request r = ask_for(ids, 4, 5, g);
    struct mc_handle h;
    struct mc_err err = {0};

    (void)state;
    assert_ok(mc_engine_open(&o, &e, &err), err);
    assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    mc_engine_cancel(e, (struct mc_handle){h.seq + 1, h.gen}, "nobody");
    mc_engine_close(e);
    assert_true(g->ended);
    assert_int_equal(g->end.err.code, MC_EDRAIN);
    got_free(g);
}

static void engine_stops_at_ids_and_limits(void **state)
{
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){0}, NULL);
    struct golden w = golden_at(0);
    struct got *g = got_new();
    struct mc_request r = ask_for(w.prompt, w.n_prompt, 40, g);
    struct mc_handle h;
    struct mc_err err = {0};

    (void)state;
    r.stop_ids = &w.ids[5];
    r.n_stop = 1;
    assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    got_wait(g, -1);
    assert_int_equal(g->end.finish, MC_FINISH_STOP);
    assert_int_equal(g->end.stop_id, w.ids[5]);
    assert_int_equal(g->n, 5);
    got_free(g);

    g = run_one(e, w.prompt, w.n_prompt, 0);
    assert_int_equal(g->n, 0);
    assert_int_equal(g->end.finish, MC_FINISH_LENGTH);
    got_free(g);
    assert_idle(e);
    golden_free(&w);
    mc_engine_close(e);
}

static void engine_deadline_ends_a_request(void **state)
{
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){0}, NULL);
    int32_t ids[4] = {1, 2, 3, 4};
    struct got *g = got_new();
    struct mc_request r = ask_for(ids, 4, 1900, g);
    struct mc_handle h;
    struct mc_err err = {0};
    struct timespec now;

    (void)state;
    clock_gettime(CLOCK_MONOTONIC, &now);
    r.deadline = (double)now.tv_sec + (double)now.tv_nsec * 1e-9 + 0.05;
    assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    got_wait(g, -1);
    assert_int_equal(g->end.err.code, MC_EDEADLINE);
    assert_idle(e);
    got_free(g);
    mc_engine_close(e);
}

static void engine_refuses_bad_requests_by_field(void **state)
{
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){.max_context = 100}, NULL);
    int32_t ids[128] = {1, 2, 3};
    struct got *g = got_new();
    const struct mc_bias bias = {2048, 1}, wild = {5, 101};
    struct mc_handle h;

    (void)state;
    for (int k = 0; k < 12; k++) {
        struct mc_request r = ask_for(ids, 3, 4, g);
        const char *field = "prompt";
        struct mc_err err = {0};
        int want = MC_EARG, rc;

        ids[1] = 2;
        switch (k) {
        case 0: r.n_ids = 0; break;
        case 1: ids[1] = -1; break;
        case 2: ids[1] = 2048; break;
        case 3: r.n_ids = 100; want = MC_ECTX; break;
        case 4: r.want.temperature = -1; field = "temperature"; break;
        case 5: r.want.temperature = 0.0 / 0.0; field = "temperature"; break;
        case 6: r.want.top_p = 1.01; field = "top_p"; break;
        case 7: r.bias = &bias, r.n_bias = 1; field = "logit_bias"; break;
        case 8: r.bias = &wild, r.n_bias = 1; field = "logit_bias"; break;
        case 9: r.limit = -2; field = "max_tokens"; break;
        case 10: r.lane = 8; field = "lane"; break;
        default: r.n_top = 21; field = "logprobs"; break;
        }
        rc = mc_engine_submit(e, &r, &h, &err);
        assert_int_equal(rc, want);
        assert_string_equal(err.param, field);
    }
    assert_false(g->ended);
    got_free(g);
    mc_engine_close(e);
}

static void engine_queue_full_is_a_limit(void **state)
{
    struct mc_engine *e =
        engine_open(&(struct mc_engine_opts){.max_seqs = 1, .max_waiting = 2}, NULL);
    int32_t ids[4] = {1, 2, 3, 4};
    struct got *g[8];
    int refused = 0;

    (void)state;
    for (int i = 0; i < 8; i++) {
        struct mc_request r;
        struct mc_handle h;
        struct mc_err err = {0};

        g[i] = got_new();
        r = ask_for(ids, 4, 300, g[i]);
        if (mc_engine_submit(e, &r, &h, &err) < 0) {
            assert_int_equal(err.code, MC_ELIMIT);
            g[i]->ended = true;
            refused++;
        }
    }
    assert_true(refused >= 4);
    for (int i = 0; i < 8; i++) {
        got_wait(g[i], -1);
        got_free(g[i]);
    }
    assert_idle(e);
    mc_engine_close(e);
}

/* ---- sampling ---------------------------------------------------------------------- */

static struct got *sample(struct mc_engine *e, uint64_t seed, double temperature,
                          const struct mc_bias *bias, int32_t n_bias)
{
    int32_t ids[6] = {468, 312, 11, 504, 335, 283};
    struct got *g = got_new();
    struct mc_request r = ask_for(ids, 6, 30, g);
    struct mc_handle h;
    struct mc_err err = {0};

    r.want.temperature = temperature;
    r.seeded = true;
    r.seed = seed;
    r.bias = bias;
    r.n_bias = n_bias;
    assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    got_wait(g, -1);
    return g;
}

static void engine_seed_repeats_and_other_seeds_differ(void **state)
{
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){0}, NULL);
    struct got *a = sample(e, 7, 1, NULL, 0), *b = sample(e, 7, 1, NULL, 0);
    struct got *c = sample(e, 8, 1, NULL, 0);

    (void)state;
    same_tokens(a, b);
    assert_true(memcmp(a->id, c->id, 30 * sizeof *a->id) != 0);
    got_free(a), got_free(b), got_free(c);
    mc_engine_close(e);
}

static void engine_banned_id_never_comes(void **state)
{
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){0}, NULL);
    struct got *plain = sample(e, 1, 0, NULL, 0), *g;
    const struct mc_bias bias = {plain->id[0], -100};

    (void)state;
    g = sample(e, 1, 0, &bias, 1);
    for (int32_t i = 0; i < g->n; i++)
        assert_int_not_equal(g->id[i], plain->id[0]);
    got_free(plain), got_free(g);
    mc_engine_close(e);
}

static void engine_penalties_count_what_was_generated_only(void **state)
{
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){0}, NULL);
    struct golden w = golden_at(0);
    int32_t ids[64];
    struct mc_handle h;
    struct mc_err err = {0};

    (void)state;
    memcpy(ids, w.prompt, (size_t)w.n_prompt * sizeof *ids);
    memcpy(ids + w.n_prompt, w.ids, 5 * sizeof *ids);
    assert_int_equal(w.ids[5], w.prompt[2]); /* the next token is in the prompt already */
    for (int32_t limit = 1; limit <= 40; limit += 39) {
        struct got *g = got_new();
        struct mc_request r = ask_for(ids, w.n_prompt + 5, limit, g);

        r.want.presence_penalty = 100;
        assert_ok(mc_engine_submit(e, &r, &h, &err), err);
        got_wait(g, -1);
        assert_int_equal(g->id[0], w.ids[5]);
        for (int32_t i = 0; i < g->n; i++)
            for (int32_t k = 0; k < i; k++)
                assert_int_not_equal(g->id[i], g->id[k]);
        got_free(g);
    }
    golden_free(&w);
    mc_engine_close(e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(engine_cancel_gives_everything_back_in_every_state),
    cmocka_unit_test(engine_stop_ends_what_runs_and_waits),
    cmocka_unit_test(engine_closed_before_it_started_ends_what_waits),
    cmocka_unit_test(engine_stops_at_ids_and_limits),
    cmocka_unit_test(engine_deadline_ends_a_request),
    cmocka_unit_test(engine_refuses_bad_requests_by_field),
    cmocka_unit_test(engine_queue_full_is_a_limit),
    cmocka_unit_test(engine_seed_repeats_and_other_seeds_differ),
    cmocka_unit_test(engine_banned_id_never_comes),
    cmocka_unit_test(engine_penalties_count_what_was_generated_only),
};

MC_TEST_MAIN(tests)
