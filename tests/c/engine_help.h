/* engine_help.h - what the engine's tests share: an engine on tiny-llama, a sink that
 * collects, prompts and their golden continuations. THREAD: the test's; sinks have a
 * lock. */
#ifndef MC_ENGINE_HELP_H
#define MC_ENGINE_HELP_H

#include "tests/c/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include "core/base/log.h"
#include "core/mc.h"

enum { GOT_MAX = 4096 };

struct got {
    pthread_mutex_t lock;
    pthread_cond_t bell;
    int32_t id[GOT_MAX], n;
    float logprob[GOT_MAX];
    bool ended;
    struct mc_end end;
};

static inline void got_token(void *ctx, const struct mc_token *t)
{
    struct got *g = ctx;

    pthread_mutex_lock(&g->lock);
    if (g->n < GOT_MAX) {
        g->logprob[g->n] = t->logprob;
        g->id[g->n++] = t->id;
    }
    pthread_cond_signal(&g->bell);
    pthread_mutex_unlock(&g->lock);
}

static inline void got_end(void *ctx, const struct mc_end *e)
{
    struct got *g = ctx;

    pthread_mutex_lock(&g->lock);
    assert_false(g->ended); /* exactly once */
    g->end = *e;
    g->ended = true;
    pthread_cond_signal(&g->bell);
    pthread_mutex_unlock(&g->lock);
}

static inline struct got *got_new(void)
{
    struct got *g = calloc(1, sizeof *g);

    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->bell, NULL);
    return g;
}

/* Waits until n tokens came or the end; fails after 4 minutes (emulated kernels, a busy
 * machine). */
static inline void got_wait(struct got *g, int32_t n)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 240;
    pthread_mutex_lock(&g->lock);
    while (!g->ended && (n < 0 || g->n < n))
        if (pthread_cond_timedwait(&g->bell, &g->lock, &until) != 0)
            break;
    if (!g->ended && (n < 0 || g->n < n))
        fail_msg("no end after 240 s, %d tokens", g->n);
    pthread_mutex_unlock(&g->lock);
}

static inline void got_free(struct got *g)
{
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->bell);
    free(g);
}

static inline struct mc_request ask_for(const int32_t *ids, int32_t n, int32_t limit,
                                        struct got *g)
{
    struct mc_request r = {.ids = ids, .n_ids = n, .limit = limit, .n_top = -1,
                           .ignore_eos = true, .name = "test",
                           .want = {.top_p = 1, .repetition_penalty = 1, .ban = {-1, -1}},
                           .sink = {got_token, got_end, g}};

    return r;
}

static inline struct mc_engine *engine_open(const struct mc_engine_opts *o,
                                            const struct mc_policy *p)
{
    struct mc_engine_opts use = *o;
    struct mc_engine *e = NULL;
    struct mc_err err = {0};

    mc_log_set("engine", MC_LOG_OFF);
    use.model = use.model ? use.model : "tests/models/tiny-llama";
    use.backend = use.backend ? use.backend : "cpu";
    use.kv = use.kv ? use.kv : "f32";
    assert_ok(mc_engine_open(&use, &e, &err), err);
    if (p)
        mc_engine_set_policy(e, p);
    assert_ok(mc_engine_start(e, &err), err);
    return e;
}

/* Nothing runs and every page is back: free + cached == total. */
static inline void assert_idle(struct mc_engine *e)
{
    struct mc_engine_status s;

    for (int i = 0; i < 200; i++) {
        mc_engine_status(e, &s);
        if (s.p_pending == 0 && s.n_running + s.n_waiting + s.n_paused == 0)
            break;
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    assert_int_equal(s.n_running + s.n_waiting + s.n_paused, 0);
    assert_int_equal(s.p_held, 0);
    assert_int_equal(s.p_free + s.p_cached, s.p_total);
}

/* Prompt i of a greedy golden file, at most 64 tokens long. */
struct golden {
    int32_t *prompt, n_prompt, *ids, n_ids;
    double gap[64];
};

static inline struct golden golden_of(const char *path, size_t i)
{
    json_t *list = json_load_file(path, 0, NULL);
    json_t *item = json_array_get(list, i), *p = json_object_get(item, "prompt_ids");
    json_t *ids = json_object_get(item, "ids"), *gap = json_object_get(item, "gap");
    struct golden g = {.n_prompt = (int32_t)json_array_size(p),
                       .n_ids = (int32_t)json_array_size(ids)};

    assert_non_null(item);
    g.prompt = calloc((size_t)g.n_prompt, sizeof *g.prompt);
    g.ids = calloc((size_t)g.n_ids, sizeof *g.ids);
    for (int32_t k = 0; k < g.n_prompt; k++)
        g.prompt[k] = (int32_t)json_integer_value(json_array_get(p, (size_t)k));
    for (int32_t k = 0; k < g.n_ids; k++) {
        g.ids[k] = (int32_t)json_integer_value(json_array_get(ids, (size_t)k));
        g.gap[k] = json_number_value(json_array_get(gap, (size_t)k));
    }
    json_decref(list);
    return g;
}

static inline struct golden golden_at(size_t i)
{
    return golden_of("tests/models/tiny-llama/golden/greedy.json", i);
}

static inline void golden_free(struct golden *g)
{
    free(g->prompt), free(g->ids);
}

/* A prompt of n ids that depends on seed; ids 0..1499 are ordinary tokens. */
static inline void some_ids(int32_t *ids, int32_t n, uint32_t seed)
{
    for (int32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = (int32_t)((seed >> 8) % 1500);
    }
}

static inline struct got *run_one(struct mc_engine *e, const int32_t *ids, int32_t n,
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

static inline void same_tokens(const struct got *a, const struct got *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->id, b->id, (size_t)a->n * sizeof *a->id);
}

enum { STREAMS = 8, LONG = 300, GEN = 40 };

/* STREAMS prompts of different lengths at once, or one after another. */
static inline void run_all(struct mc_engine *e, bool together, struct got *g[STREAMS])
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

/* Six that start within the pool and outgrow it together. */
static inline void grow_six(struct mc_engine *e, struct got *g[6])
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

#endif
