/* test_pair.c - prompts read by one engine, answered by another: the tokens are those of the
 * two put together by hand; cancels, ends and what does not fit together. */
#include "tests/c/engine_help.h"

#include <math.h>

#include "core/engine/engine_int.h"
#include "core/model/solo.h"

#define FP8 "tests/models/tiny-llama-fp8"
#define INT4 "tests/models/tiny-llama-w4a16"

enum { LIMIT = 24, LONGEST = 300 };

static struct mc_engine *open_only(const char *model, struct mc_engine_opts o)
{
    struct mc_engine *e = NULL;
    struct mc_err err = {0};

    mc_log_set("engine", MC_LOG_OFF);
    o.model = model;
    o.kv = o.kv ? o.kv : "bf16";
    o.kv_bytes = o.kv_bytes ? o.kv_bytes : 4 << 20;
    assert_ok(mc_engine_open(&o, &e, &err), err);
    return e;
}

static struct mc_engine *open_pair(const char *model, const char *reader,
                                   struct mc_engine_opts o)
{
    struct mc_engine *e = open_only(model, o);
    struct mc_err err = {0};

    assert_ok(mc_engine_pair(e, open_only(reader, o), &err), err);
    assert_ok(mc_engine_start(e, &err), err);
    return e;
}

/* ---- by hand ----------------------------------------------------------------------- */

struct hand {
    struct mc_ranks ranks;
    struct mc_tok *tok;
    struct mc_solo *solo;
};

static void hand_open(struct hand *h, const char *model)
{
    const struct mc_backend_opts bo = {.ref_act = -1};
    const struct mc_solo_opts so = {.context = 512, .rows = 512, .outs = 1,
                                    .kv = MC_KV_BF16};
    struct mc_err err = {0};

    *h = (struct hand){0};
    assert_ok(mc_ranks_open(&h->ranks, "cpu", &bo, 1, &err), err);
    assert_ok(mc_ranks_load(&h->ranks, model, &h->tok, &err), err);
    assert_ok(mc_solo_open(&h->ranks, &so, &h->solo, &err), err);
}

static void hand_close(struct hand *h)
{
    mc_solo_close(h->solo);
    mc_ranks_close(&h->ranks);
    mc_tok_close(h->tok);
}

static const float *feed(struct hand *h, const int32_t *ids, int32_t n)
{
    const int32_t last = n - 1;
    const float *logits;
    struct mc_err err = {0};

    assert_ok(mc_solo_run(h->solo, ids, n, &last, 1, NULL, &logits, &err), err);
    return logits;
}

static int32_t best_of(const float *x, int32_t n, float *logprob)
{
    int32_t best = 0;
    double sum = 0;

    for (int32_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - (double)x[best]);
    *logprob = (float)-log(sum);
    return best;
}

/* What the pair has to say, with logprobs; reader NULL: what the other says alone. */
static void compose(struct hand *h, struct hand *reader, const int32_t *ids, int32_t n,
                    struct got *out)
{
    int32_t v = h->ranks.rank[0].model.n_real, id;
    const float *x;

    mc_solo_reset(h->solo);
    if (reader && n > 1) {
        mc_solo_reset(reader->solo);
        feed(reader, ids, n - 1);
        feed(h, ids, 1); /* its tables stand */
        mc_solo_take(h->solo, reader->solo);
        x = feed(h, ids + n - 1, 1);
    } else {
        x = feed(h, ids, n);
    }
    for (out->n = 0; out->n < LIMIT; x = feed(h, &id, 1)) {
        id = best_of(x, v, &out->logprob[out->n]);
        out->id[out->n++] = id;
    }
}

/* ---- tests ------------------------------------------------------------------------- */

static const int32_t lengths[] = {2, 9, 64, 65, 66, 129, LONGEST, 200};
enum { N = sizeof lengths / sizeof *lengths };

static void submit(struct mc_engine *e, int i, struct got **g, struct mc_handle *h)
{
    int32_t ids[LONGEST];
    struct mc_request r;
    struct mc_err err = {0};

    some_ids(ids, lengths[i], (uint32_t)i + 5);
    *g = got_new();
    r = ask_for(ids, lengths[i], LIMIT, *g);
    r.n_top = 0;
    assert_ok(mc_engine_submit(e, &r, h, &err), err);
}

static double apart(const struct got *a, const struct got *b)
{
    double most = 0;

    for (int32_t i = 0; i < LIMIT; i++) {
        double d = a->id[i] == b->id[i]
                       ? fabs((double)a->logprob[i] - (double)b->logprob[i])
                       : 1;

        most = d > most ? d : most;
    }
    return most;
}

static void pair_says_what_its_two_put_together_say(void **state)
{
    struct mc_engine *e = open_pair(INT4, FP8, (struct mc_engine_opts){.chunk = 64});
    struct got *g[N], *want = got_new(), *alone = got_new();
    struct hand four, eight;
    struct mc_handle h;
    double by_reader = 0;

    (void)state;
    hand_open(&four, INT4);
    hand_open(&eight, FP8);
    for (int i = 0; i < N; i++)
        submit(e, i, &g[i], &h);
    for (int i = 0; i < N; i++) {
        int32_t ids[LONGEST];
        double d;

        some_ids(ids, lengths[i], (uint32_t)i + 5);
        compose(&four, &eight, ids, lengths[i], want);
        compose(&four, NULL, ids, lengths[i], alone);
        got_wait(g[i], -1);
        assert_int_equal(g[i]->end.finish, MC_FINISH_LENGTH);
        assert_int_equal(g[i]->end.usage.n_prompt, lengths[i]);
        assert_int_equal(g[i]->n, LIMIT);
        d = apart(g[i], want);
        if (d > 2e-3)
            fail_msg("prompt of %d: %g from what the two say by hand", lengths[i], d);
        by_reader = fmax(by_reader, apart(want, alone));
        got_free(g[i]);
    }
    assert_true(by_reader > 0.02); /* or who read the prompt would not show */
    assert_idle(e);
    mc_engine_close(e);
    hand_close(&four), hand_close(&eight);
    got_free(want), got_free(alone);
}

static void pair_of_one_model_is_that_model(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        struct mc_engine_opts o = {.ranks = ranks, .max_seqs = 3};
        struct mc_engine *two = open_pair(FP8, FP8, o), *one = open_only(FP8, o);
        struct got *a[N], *b[N];
        struct mc_handle h;
        struct mc_err err = {0};

        assert_ok(mc_engine_start(one, &err), err);
        for (int i = 0; i < N; i++)
            submit(two, i, &a[i], &h), submit(one, i, &b[i], &h);
        for (int i = 0; i < N; i++) {
            got_wait(a[i], -1), got_wait(b[i], -1);
            same_tokens(a[i], b[i]);
            got_free(a[i]), got_free(b[i]);
        }
        assert_idle(two);
        mc_engine_close(two), mc_engine_close(one);
    }
}

static void pair_reads_a_prompt_again_only_where_it_must(void **state)
{
    struct mc_engine *e = open_pair(INT4, FP8, (struct mc_engine_opts){0});
    int32_t ids[130];
    struct got *g;

    (void)state;
    some_ids(ids, 130, 3);
    got_free(run_one(e, ids, 130, 4));
    assert_int_equal((int)mc_engine_counter(e, MC_C_prompt_tokens_total), 1);
    g = run_one(e, ids, 130, 4); /* the reader finds its own pages */
    assert_int_equal(g->end.usage.n_cached, 128);
    assert_int_equal((int)mc_engine_counter(e, MC_C_prompt_tokens_total), 2);
    got_free(g);
    got_free(run_one(e, ids, 1, 4)); /* nothing to send */
    assert_int_equal((int)mc_engine_counter(e, MC_C_prompt_tokens_total), 3);
    assert_idle(e);
    mc_engine_close(e);
}

static void pair_ends_what_is_cancelled_wherever_it_is(void **state)
{
    struct mc_engine *e = open_pair(INT4, FP8, (struct mc_engine_opts){.chunk = 16});
    struct got *g[3 * N];
    struct mc_handle h[3 * N];

    (void)state;
    for (int i = 0; i < 3 * N; i++) {
        submit(e, i % N, &g[i], &h[i]);
        if (i % 3 == 0)
            mc_engine_cancel(e, h[i], "not wanted");
    }
    for (int i = 1; i < 3 * N; i += 3)
        mc_engine_cancel(e, h[i], i % 2 ? NULL : "late");
    for (int i = 0; i < 3 * N; i++) {
        got_wait(g[i], -1);
        if (i % 3 == 2)
            assert_int_equal(g[i]->end.finish, MC_FINISH_LENGTH);
        if (g[i]->end.finish == MC_FINISH_CANCEL)
            assert_int_equal(g[i]->end.err.code, MC_ECANCEL);
        got_free(g[i]);
    }
    assert_idle(e);
    mc_engine_close(e);
}

static void pair_stops_with_requests_under_way(void **state)
{
    (void)state;
    for (int wait = 0; wait < 3; wait++) {
        struct mc_engine *e = open_pair(INT4, FP8, (struct mc_engine_opts){.chunk = 16});
        struct got *g[N];
        struct mc_handle h;

        for (int i = 0; i < N; i++)
            submit(e, i, &g[i], &h);
        nanosleep(&(struct timespec){0, wait * 8000000}, NULL);
        mc_engine_close(e);
        for (int i = 0; i < N; i++) {
            assert_true(g[i]->ended);
            got_free(g[i]);
        }
    }
}

static void pair_refuses_what_does_not_fit_together(void **state)
{
    struct mc_engine *e = open_only(INT4, (struct mc_engine_opts){.max_context = 256});
    static const struct {
        const char *model;
        struct mc_engine_opts o;
        const char *says;
    } bad[] = {
        {"tests/models/tiny-qwen3-moe", {.max_context = 256}, "not of one shape"},
        {FP8, {.max_context = 128}, "--max-context"},
        {FP8, {.max_context = 256, .kv = "fp8"}, "caches differ"},
        {FP8, {.max_context = 256, .ranks = 2}, "ranks"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mc_engine *other = open_only(bad[i].model, bad[i].o);
        struct mc_err err = {0};

        assert_int_equal(mc_engine_pair(e, other, &err), MC_EARG);
        assert_non_null(strstr(err.text, bad[i].says));
        mc_engine_close(other);
    }
    mc_engine_close(e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(pair_says_what_its_two_put_together_say),
    cmocka_unit_test(pair_of_one_model_is_that_model),
    cmocka_unit_test(pair_reads_a_prompt_again_only_where_it_must),
    cmocka_unit_test(pair_ends_what_is_cancelled_wherever_it_is),
    cmocka_unit_test(pair_stops_with_requests_under_way),
    cmocka_unit_test(pair_refuses_what_does_not_fit_together),
};

MC_TEST_MAIN(tests)
