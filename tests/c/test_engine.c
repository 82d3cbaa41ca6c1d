/* test_engine.c - the engine on tiny-llama: goldens, batching, chunks, look-ahead, replayed
 * graphs, prefix reuse, prompt logprobs, preemption. */
#include "tests/c/engine_help.h"

#include <math.h>

#include "core/engine/engine_int.h"
#include "core/model/solo.h"

static void engine_greedy_equals_the_golden(void **state)
{
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){0}, NULL);

    (void)state;
    for (size_t i = 0; i < 6; i++) {
        struct golden want = golden_at(i);
        struct got *g = run_one(e, want.prompt, want.n_prompt, want.n_ids);
        int32_t k = 0;

        while (k < want.n_ids && g->id[k] == want.ids[k])
            k++;
        if (k < want.n_ids && want.gap[k] > 4e-3) /* below it: a tie */
            fail_msg("prompt %zu differs at %d: %d, not %d", i, k, g->id[k], want.ids[k]);
        assert_int_equal(g->n, want.n_ids);
        assert_int_equal(g->end.finish, MC_FINISH_LENGTH);
        got_free(g);
        golden_free(&want);
    }
    assert_idle(e);
    mc_engine_close(e);
}

static void same_runs(const struct mc_engine_opts *a, bool a_together,
                      const struct mc_engine_opts *b, bool b_together)
{
    struct got *x[STREAMS], *y[STREAMS];
    struct mc_engine *e = engine_open(a, NULL);

    run_all(e, a_together, x);
    assert_idle(e);
    mc_engine_close(e);
    e = engine_open(b, NULL);
    run_all(e, b_together, y);
    assert_idle(e);
    mc_engine_close(e);
    for (int i = 0; i < STREAMS; i++) {
        assert_int_equal(x[i]->n, GEN + i);
        same_tokens(x[i], y[i]);
        got_free(x[i]), got_free(y[i]);
    }
}

static void engine_batch_gives_each_stream_its_solo_tokens(void **state)
{
    const struct mc_engine_opts o = {.kv = "bf16"};

    (void)state;
    same_runs(&o, false, &o, true);
}

static void engine_pipelined_equals_synchronous(void **state)
{
    (void)state;
    same_runs(&(struct mc_engine_opts){.sync = true}, true, &(struct mc_engine_opts){0},
              true);
}

static void engine_small_chunks_change_nothing(void **state)
{
    (void)state;
    same_runs(&(struct mc_engine_opts){.chunk = 512, .max_seqs = 8}, true,
              &(struct mc_engine_opts){.chunk = 16, .max_seqs = 8}, true);
}

static void engine_reads_the_weights_once_a_step_whatever_the_batch(void **state)
{
    double per_step[3];
    const int batch[3] = {1, 4, 8};

    (void)state;
    for (int k = 0; k < 3; k++) {
        struct mc_engine *e = engine_open(&(struct mc_engine_opts){0}, NULL);
        struct got *g[8];
        int32_t ids[8];

        for (int i = 0; i < batch[k]; i++) {
            struct mc_request r;
            struct mc_handle h;
            struct mc_err err = {0};

            some_ids(ids, 8, (uint32_t)i);
            g[i] = got_new();
            r = ask_for(ids, 8, 20, g[i]);
            assert_ok(mc_engine_submit(e, &r, &h, &err), err);
        }
        for (int i = 0; i < batch[k]; i++) {
            got_wait(g[i], -1);
            got_free(g[i]);
        }
        per_step[k] = mc_engine_counter(e, MC_C_weight_bytes_read_total) /
                      mc_engine_counter(e, MC_C_steps_total);
        mc_engine_close(e);
    }
    assert_true(per_step[0] > 1e6);
    assert_true(per_step[0] == per_step[1] && per_step[1] == per_step[2]);
}

/* ---- graphs ------------------------------------------------------------------------ */

/* A sequence's greedy continuation by direct calls of the pass: no engine, no graph. */
static void solo_greedy(struct mc_ranks *r, const int32_t *ids, int32_t n, int32_t gen,
                        int32_t *out)
{
    const struct mc_model *m = &r->rank[0].model;
    const struct mc_solo_opts o = {.context = 512, .rows = 256, .outs = 1, .kv = MC_KV_F32};
    struct mc_solo *s = NULL;
    struct mc_err err = {0};

    assert_ok(mc_solo_open(r, &o, &s, &err), err);
    for (int32_t i = 0; i < gen; i++) {
        const int32_t *row = i ? &out[i - 1] : ids;
        int32_t rows = i ? 1 : n, last = rows - 1, best = 0;
        const float *x;

        assert_ok(mc_solo_run(s, row, rows, &last, 1, NULL, &x, &err), err);
        for (int32_t v = 1; v < m->n_real; v++)
            if (x[v] > x[best])
                best = v;
        out[i] = best;
    }
    mc_solo_close(s);
}

static void solo_refuses_ids_and_rows_that_are_not_there(void **state)
{
    const struct mc_solo_opts o = {.context = 64, .rows = 8, .outs = 2, .kv = MC_KV_F32};
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){0}, NULL);
    const int32_t v = e->model->cfg.vocab;
    const struct {
        int32_t id, row;
    } bad[] = {{-1, 0}, {v, 0}, {1, -1}, {1, 3}};
    struct mc_solo *s = NULL;
    struct mc_err err = {0};
    const float *x;

    (void)state;
    assert_ok(mc_solo_open(&e->ranks, &o, &s, &err), err);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const int32_t ids[3] = {1, 2, bad[i].id};

        assert_int_equal(mc_solo_run(s, ids, 3, &bad[i].row, 1, NULL, &x, &err), MC_EARG);
    }
    assert_ok(mc_solo_run(s, (int32_t[]){1, 2, v - 1}, 3, (int32_t[]){2}, 1, NULL, &x,
                          &err),
              err);
    mc_solo_close(s);
    mc_engine_close(e);
}

/* The engine runs every step by replaying graphs recorded at boot. Sequences join and
 * leave, and lengths go over page and split borders, without another forward call. */
static void graph_replays_as_sequences_join_and_leave(void **state)
{
    enum { N = 6 };
    const int32_t len[N] = {63, 1, 64, 200, 30, 120}, gen[N] = {67, 50, 10, 60, 33, 10};
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){.max_seqs = 4}, NULL);
    struct got *g[N];
    int32_t ids[N][256], want[128];

    (void)state;
    for (int i = 0; i < N; i++) { /* four slots: the last two join as others leave */
        struct mc_request r;
        struct mc_handle h;
        struct mc_err err = {0};

        some_ids(ids[i], len[i], 70 + (uint32_t)i);
        g[i] = got_new();
        r = ask_for(ids[i], len[i], gen[i], g[i]);
        assert_ok(mc_engine_submit(e, &r, &h, &err), err);
        if (i < 3)
            got_wait(g[i], 2);
    }
    for (int i = 0; i < N; i++)
        got_wait(g[i], -1);
    for (int i = 0; i < N; i++) {
        solo_greedy(&e->ranks, ids[i], len[i], gen[i], want);
        assert_int_equal(g[i]->n, gen[i]);
        assert_memory_equal(g[i]->id, want, (size_t)gen[i] * sizeof *want);
        got_free(g[i]);
    }
    assert_idle(e);
    mc_engine_close(e);
}

/* ---- prefix ------------------------------------------------------------------------ */

static void engine_repeated_prompt_reuses_whole_pages_only(void **state)
{
    const int32_t lengths[] = {63, 64, 65, 128, 129, 192};
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){0}, NULL);

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        int32_t ids[200], n = lengths[i];
        struct got *first, *again;

        some_ids(ids, n, 100 + (uint32_t)i);
        first = run_one(e, ids, n, 12);
        assert_int_equal(first->end.usage.n_cached, 0);
        for (int k = 0; k < 2; k++) {
            again = run_one(e, ids, n, 12);
            same_tokens(first, again);
            assert_int_equal(again->end.usage.n_cached, (n - 1) / MC_PAGE * MC_PAGE);
            assert_int_equal(again->end.usage.n_prompt, n);
            got_free(again);
        }
        got_free(first);
    }
    assert_idle(e);
    mc_engine_close(e);
}

static void engine_other_salt_or_tenant_does_not_share(void **state)
{
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){0}, NULL);
    int32_t ids[130];

    (void)state;
    some_ids(ids, 130, 5);
    for (int k = 0; k < 4; k++) {
        struct got *g = got_new();
        struct mc_request r = ask_for(ids, 130, 2, g);
        struct mc_handle h;
        struct mc_err err = {0};

        strcpy(r.salt, k == 1 || k == 3 ? "x" : "");
        r.tenant = k == 2;
        assert_ok(mc_engine_submit(e, &r, &h, &err), err);
        got_wait(g, -1);
        assert_int_equal(g->end.usage.n_cached, k == 3 ? 128 : 0);
        got_free(g);
    }
    mc_engine_close(e);
}

struct told {
    struct got *g;
    int32_t id[256], n;
    float logprob[256];
};

static void told_prompt(void *ctx, const struct mc_token *t)
{
    struct told *x = ctx;

    x->id[x->n] = t->id;
    x->logprob[x->n++] = t->logprob;
    assert_int_equal(t->n_top, 2);
}

static void told_token(void *ctx, const struct mc_token *t)
{
    got_token(((struct told *)ctx)->g, t);
}

static void told_end(void *ctx, const struct mc_end *e)
{
    got_end(((struct told *)ctx)->g, e);
}

/* log softmax of the target at each position but the last, by direct calls. */
static void solo_logprobs(struct mc_ranks *r, const int32_t *ids, int32_t n, float *out)
{
    const struct mc_model *m = &r->rank[0].model;
    const struct mc_solo_opts o = {.context = 512, .rows = 256, .outs = 256, .kv = MC_KV_F32};
    int32_t row[256], v = m->cfg.vocab;
    struct mc_solo *s = NULL;
    struct mc_err err = {0};
    const float *x;

    for (int32_t i = 0; i < n; i++)
        row[i] = i;
    assert_ok(mc_solo_open(r, &o, &s, &err), err);
    assert_ok(mc_solo_run(s, ids, n, row, n, NULL, &x, &err), err);
    for (int32_t i = 0; i + 1 < n; i++) {
        double sum = 0;

        for (int32_t k = 0; k < m->n_real; k++)
            sum += exp(x[(int64_t)i * v + k]);
        out[i] = (float)(x[(int64_t)i * v + ids[i + 1]] - log(sum));
    }
    mc_solo_close(s);
}

static void engine_prompt_logprobs_cover_the_whole_prompt_each_time(void **state)
{
    struct mc_engine *e =
        engine_open(&(struct mc_engine_opts){.max_seqs = 8, .chunk = 48}, NULL);
    int32_t ids[200];
    float want[200];

    (void)state;
    some_ids(ids, 200, 31);
    solo_logprobs(&e->ranks, ids, 200, want);
    for (int k = 0; k < 2; k++) { /* the second time a prefix would be found */
        struct told x = {.g = got_new()};
        struct mc_request r = ask_for(ids, 200, 3, x.g);
        struct mc_handle h;
        struct mc_err err = {0};

        r.sink = (struct mc_sink){told_token, told_end, &x, told_prompt};
        r.prompt_logprobs = true;
        r.n_top = 2;
        assert_ok(mc_engine_submit(e, &r, &h, &err), err);
        got_wait(x.g, -1);
        assert_int_equal(x.n, 199);
        assert_int_equal(x.g->n, 3);
        assert_int_equal(x.g->end.usage.n_cached, 0);
        for (int32_t i = 0; i < 199; i++) {
            assert_int_equal(x.id[i], ids[i + 1]);
            assert_true(fabsf(x.logprob[i] - want[i]) < 1e-3f);
        }
        got_free(x.g);
    }
    assert_idle(e);
    mc_engine_close(e);
}

/* ---- pages run out ----------------------------------------------------------------- */

/* A pool of n pages of tiny-llama in f32: 4 layers, 2 heads of 32, K and V. */
static uint64_t pool(int n)
{
    return (uint64_t)n * 4 * 2 * 2 * MC_PAGE * 32 * 4;
}

static void engine_preempts_and_recomputes_the_same_tokens(void **state)
{
    struct got *x[6], *y[6];
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){0}, NULL);

    (void)state;
    grow_six(e, x);
    mc_engine_close(e);
    e = engine_open(&(struct mc_engine_opts){.kv_bytes = pool(8)}, NULL);
    grow_six(e, y);
    assert_true(mc_engine_counter(e, MC_C_num_preemptions_total) > 0);
    assert_idle(e);
    mc_engine_close(e);
    for (int i = 0; i < 6; i++) {
        same_tokens(x[i], y[i]);
        got_free(x[i]), got_free(y[i]);
    }
}

static void engine_one_that_fills_the_pool_ends_alone(void **state)
{
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){.kv_bytes = pool(4)},
                                      NULL);
    int32_t ids[10];
    struct got *g;

    (void)state;
    some_ids(ids, 10, 1);
    g = run_one(e, ids, 10, 100000);
    assert_int_equal(g->end.finish, MC_FINISH_LENGTH);
    assert_int_equal(g->n, 4 * MC_PAGE - 10);
    assert_idle(e);
    got_free(g);
    g = run_one(e, ids, 10, 4);
    assert_int_equal(g->n, 4);
    got_free(g);
    mc_engine_close(e);
}

static void engine_refuses_a_pool_that_memory_can_not_hold(void **state)
{
    static const uint64_t bytes[] = {1ull << 40, 1ull << 50};

    (void)state;
    for (int i = 0; i < 2; i++) {
        const struct mc_engine_opts o = {.model = "tests/models/tiny-llama",
                                         .threads = 1, .kv_bytes = bytes[i]};
        struct mc_engine *e = NULL;
        struct mc_err err = {0};

        assert_int_equal(mc_engine_open(&o, &e, &err), MC_EARG);
        assert_string_equal(err.param, "kv-memory");
        assert_non_null(strstr(err.text, "of records"));
        assert_non_null(strstr(err.text, "this machine's"));
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(engine_greedy_equals_the_golden),
    cmocka_unit_test(engine_batch_gives_each_stream_its_solo_tokens),
    cmocka_unit_test(engine_pipelined_equals_synchronous),
    cmocka_unit_test(engine_small_chunks_change_nothing),
    cmocka_unit_test(engine_reads_the_weights_once_a_step_whatever_the_batch),
    cmocka_unit_test(graph_replays_as_sequences_join_and_leave),
    cmocka_unit_test(solo_refuses_ids_and_rows_that_are_not_there),
    cmocka_unit_test(engine_repeated_prompt_reuses_whole_pages_only),
    cmocka_unit_test(engine_other_salt_or_tenant_does_not_share),
    cmocka_unit_test(engine_prompt_logprobs_cover_the_whole_prompt_each_time),
    cmocka_unit_test(engine_preempts_and_recomputes_the_same_tokens),
    cmocka_unit_test(engine_one_that_fills_the_pool_ends_alone),
    cmocka_unit_test(engine_refuses_a_pool_that_memory_can_not_hold),
};

MC_TEST_MAIN(tests)
