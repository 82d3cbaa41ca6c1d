/* test_engine.c - the engine on tiny-llama: goldens, batching, chunks, look-ahead, prefix
 * reuse, preemption, cancel, limits, and policies that misbehave. */
#include "tests/c/engine_help.h"

#include <math.h>

#include "core/engine/engine_int.h"
#include "core/model/solo.h"

static struct got *run_one(struct mc_engine *e, const int32_t *ids, int32_t n,
                           int32_t limit)
{
    struct got *g = got_new();
    struct mc_request r = ask_for(ids, n, limit, g);
    struct mc_handle h;
    struct mc_err err = {0};

    assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    got_wait(g, -1);
    return g;
}

static void same_tokens(const struct got *a, const struct got *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->id, b->id, (size_t)a->n * sizeof *a->id);
}

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

enum { STREAMS = 8, LONG = 300, GEN = 40 };

/* STREAMS prompts of different lengths at once, or one after another. */
static void run_all(struct mc_engine *e, bool together, struct got *g[STREAMS])
{
    static int32_t ids[STREAMS][LONG];

    for (int i = 0; i < STREAMS; i++) {
        struct mc_request r;
        struct mc_handle h;
        struct mc_err err = {0};
        int32_t n = 5 + i * 41;

        some_ids(ids[i], n, (uint32_t)i + 1);
        g[i] = got_new();
        r = ask_for(ids[i], n, GEN + i, g[i]);
        assert_ok(mc_engine_submit(e, &r, &h, &err), err);
        if (!together)
            got_wait(g[i], -1);
    }
    for (int i = 0; i < STREAMS; i++)
        got_wait(g[i], -1);
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

/* ---- graphs ------------------------------------------------------------------------- */

/* A sequence's greedy continuation by direct calls of the pass: no engine, no graph. */
static void solo_greedy(const struct mc_model *m, const int32_t *ids, int32_t n, int32_t gen,
                        int32_t *out)
{
    const struct mc_solo_opts o = {.context = 512, .rows = 256, .outs = 1, .kv = MC_KV_F32};
    struct mc_solo *s = NULL;
    struct mc_err err = {0};

    assert_ok(mc_solo_open(m, &o, &s, &err), err);
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
        solo_greedy(&e->model, ids[i], len[i], gen[i], want);
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
static void solo_logprobs(const struct mc_model *m, const int32_t *ids, int32_t n, float *out)
{
    const struct mc_solo_opts o = {.context = 512, .rows = 256, .outs = 256, .kv = MC_KV_F32};
    int32_t row[256], v = m->cfg.vocab;
    struct mc_solo *s = NULL;
    struct mc_err err = {0};
    const float *x;

    for (int32_t i = 0; i < n; i++)
        row[i] = i;
    assert_ok(mc_solo_open(m, &o, &s, &err), err);
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
    solo_logprobs(&e->model, ids, 200, want);
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

/* Six that start within the pool and outgrow it together. */
static void grow_six(struct mc_engine *e, struct got *g[6])
{
    int32_t ids[60];

    for (int i = 0; i < 6; i++) {
        struct mc_request r;
        struct mc_handle h;
        struct mc_err err = {0};

        some_ids(ids, 60, 50 + (uint32_t)i);
        g[i] = got_new();
        r = ask_for(ids, 60, 100, g[i]);
        assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    }
    for (int i = 0; i < 6; i++)
        got_wait(g[i], -1);
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

/* ---- policies that misbehave ------------------------------------------------------- */

static int plan_nothing(void *self, struct mc_step_view *v, struct mc_plan *p,
                        struct mc_err *err)
{
    (void)self, (void)v, (void)p, (void)err;
    return 0;
}

static int plan_error(void *self, struct mc_step_view *v, struct mc_plan *p,
                      struct mc_err *err)
{
    (void)self, (void)v;
    p->n = 500; /* half written */
    return mc_fail(err, MC_EPOLICY, "on purpose");
}

/* Stale handles, wrong states, huge counts, every row twice, then what is right. */
static int plan_garbage(void *self, struct mc_step_view *v, struct mc_plan *p,
                        struct mc_err *err)
{
    int32_t n;

    for (uint32_t i = 0; i < 40; i++)
        p->item[p->n++] = (struct mc_item){.seq = i * 1000003u,
                                           .gen = i,
                                           .what = (uint16_t)i,
                                           .n = (int32_t)(i * 0x7FFFFFF)};
    mc_policy_builtin.ops->plan(self, v, p, err);
    n = p->n;
    for (int32_t i = 40; i < n && p->n < p->cap; i++)
        p->item[p->n++] = p->item[i];
    for (int32_t i = 40; i < n; i++)
        if (p->item[i].what == MC_RUN)
            p->item[i].n = INT32_MAX;
    return 0;
}

static void policy_that_plans_nothing_starves_but_harms_nothing(void **state)
{
    const struct mc_policy_ops ops = {.plan = plan_nothing};
    const struct mc_policy p = {&ops, NULL};
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){0}, &p);
    int32_t ids[4] = {1, 2, 3, 4};
    struct got *g = got_new();
    struct mc_request r = ask_for(ids, 4, 5, g);
    struct mc_handle h;
    struct mc_err err = {0};

    (void)state;
    assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    nanosleep(&(struct timespec){0, 200000000}, NULL);
    assert_int_equal(g->n, 0);
    assert_false(g->ended);
    assert_true(mc_engine_counter(e, MC_C_idle_by_policy_total) > 0);
    assert_true(mc_engine_counter(e, MC_C_plan_fallback_total) == 0);
    mc_engine_cancel(e, h, "enough");
    got_wait(g, -1);
    assert_idle(e);
    got_free(g);
    mc_engine_close(e);
}

static void runs_as_if_nothing_were_wrong(const struct mc_policy_ops *ops,
                                          enum mc_counter counted)
{
    const struct mc_policy p = {ops, NULL};
    struct got *x[STREAMS], *y[STREAMS];
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){0}, NULL);

    run_all(e, true, x);
    mc_engine_close(e);
    e = engine_open(&(struct mc_engine_opts){0}, &p);
    run_all(e, true, y);
    assert_true(mc_engine_counter(e, counted) > 0);
    assert_idle(e);
    mc_engine_close(e);
    for (int i = 0; i < STREAMS; i++) {
        same_tokens(x[i], y[i]);
        got_free(x[i]), got_free(y[i]);
    }
}

static void policy_that_fails_is_served_by_the_builtin(void **state)
{
    const struct mc_policy_ops ops = {.plan = plan_error};

    (void)state;
    runs_as_if_nothing_were_wrong(&ops, MC_C_plan_fallback_total);
}

static void policy_that_writes_garbage_is_trimmed(void **state)
{
    const struct mc_policy_ops ops = {.plan = plan_garbage};

    (void)state;
    runs_as_if_nothing_were_wrong(&ops, MC_C_plan_trimmed_total);
}

static int chain_pick(void *self, struct mc_pick_seq *s, const struct mc_params *want,
                      struct mc_params *out, struct mc_err *err)
{
    (void)self, (void)s, (void)err;
    *out = *want;
    out->flags |= MC_PARAM_PICK;
    return 0;
}

static int pick_second(void *self, const struct mc_cands *c, struct mc_pick_seq *s,
                       int32_t *id, struct mc_err *err)
{
    (void)self, (void)s, (void)err;
    *id = s->done == 3 ? c->id[1] : -1;
    return 0;
}

static void policy_pick_of_candidate_two_gives_the_second_best(void **state)
{
    const struct mc_policy_ops ops = {.plan = NULL,
                                      .chain = chain_pick,
                                      .pick = pick_second};
    struct mc_policy_ops use = ops;
    const struct mc_policy p = {&use, NULL};
    struct mc_engine *e;
    struct golden w = golden_at(0);
    struct got *g, *after;
    int32_t ids[64];

    (void)state;
    use.plan = mc_policy_builtin.ops->plan;
    e = engine_open(&(struct mc_engine_opts){0}, &p);
    g = run_one(e, w.prompt, w.n_prompt, 10);
    assert_memory_equal(g->id, w.ids, 3 * sizeof *w.ids);
    assert_int_not_equal(g->id[3], w.ids[3]);
    mc_engine_close(e);
    /* what follows is what the model says after the picked token */
    e = engine_open(&(struct mc_engine_opts){0}, NULL);
    memcpy(ids, w.prompt, (size_t)w.n_prompt * sizeof *ids);
    memcpy(ids + w.n_prompt, g->id, 4 * sizeof *ids);
    after = run_one(e, ids, w.n_prompt + 4, 6);
    assert_memory_equal(after->id, g->id + 4, 6 * sizeof *ids);
    mc_engine_close(e);
    got_free(g), got_free(after);
    golden_free(&w);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(engine_greedy_equals_the_golden),
    cmocka_unit_test(engine_batch_gives_each_stream_its_solo_tokens),
    cmocka_unit_test(engine_pipelined_equals_synchronous),
    cmocka_unit_test(engine_small_chunks_change_nothing),
    cmocka_unit_test(engine_reads_the_weights_once_a_step_whatever_the_batch),
    cmocka_unit_test(graph_replays_as_sequences_join_and_leave),
    cmocka_unit_test(engine_repeated_prompt_reuses_whole_pages_only),
    cmocka_unit_test(engine_other_salt_or_tenant_does_not_share),
    cmocka_unit_test(engine_prompt_logprobs_cover_the_whole_prompt_each_time),
    cmocka_unit_test(engine_preempts_and_recomputes_the_same_tokens),
    cmocka_unit_test(engine_one_that_fills_the_pool_ends_alone),
    cmocka_unit_test(engine_cancel_gives_everything_back_in_every_state),
    cmocka_unit_test(engine_stop_ends_what_runs_and_waits),
    cmocka_unit_test(engine_stops_at_ids_and_limits),
    cmocka_unit_test(engine_deadline_ends_a_request),
    cmocka_unit_test(engine_refuses_bad_requests_by_field),
    cmocka_unit_test(engine_queue_full_is_a_limit),
    cmocka_unit_test(engine_seed_repeats_and_other_seeds_differ),
    cmocka_unit_test(engine_banned_id_never_comes),
    cmocka_unit_test(engine_penalties_count_what_was_generated_only),
    cmocka_unit_test(policy_that_plans_nothing_starves_but_harms_nothing),
    cmocka_unit_test(policy_that_fails_is_served_by_the_builtin),
    cmocka_unit_test(policy_that_writes_garbage_is_trimmed),
    cmocka_unit_test(policy_pick_of_candidate_two_gives_the_second_best),
};

MC_TEST_MAIN(tests)
