/* test_resize.c - the size of the KV pool: what is planned is what is allocated, and a live
 * pool made smaller and larger again. */
#include "core/engine/engine_int.h"
#include "core/weights/weights.h"
#include "tests/c/engine_help.h"

#include <unistd.h>

/* ---- planned and allocated --------------------------------------------------------- */

/* A page as `mascon plan` counts it: from the config alone. */
static int64_t planned_page(const char *model, const char *name)
{
    struct mc_ckpt *ckpt = NULL;
    struct mc_config cfg;
    enum mc_kv_layout layout;
    struct mc_err err = {0};
    char path[256];

    snprintf(path, sizeof path, "%s/config.json", model);
    assert_ok(mc_ckpt_open_config(path, &ckpt, &err), err);
    assert_ok(mc_config_load(ckpt, &cfg, &err), err);
    assert_ok(mc_kv_layout_of(&cfg, name, &layout, &err), err);
    mc_ckpt_close(ckpt);
    return mc_kv_of(&cfg, (struct mc_slice){0, 1}, layout).page_stride;
}

/* Device bytes of an engine whose pool is given so many bytes. */
static size_t allocated(const char *model, const char *kv, uint64_t bytes, int32_t *pages)
{
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){.model = model,
                                                               .kv = kv,
                                                               .kv_bytes = bytes,
                                                               .max_seqs = 2,
                                                               .max_context = 256,
                                                               .swap_bytes = 1},
                                      NULL);
    size_t n = e->crew.run[0].mem.bytes;

    *pages = mc_kv_total(e->kv);
    mc_engine_close(e);
    return n;
}

static void resize_planned_bytes_are_allocated_bytes(void **state)
{
    static const char *const kind[][2] = {
        {"tests/models/tiny-llama", "bf16"}, {"tests/models/tiny-llama", "fp8"},
        {"tests/models/tiny-kimi", "bf16"},  {"tests/models/tiny-kimi", "fp8-plain"},
        {"tests/models/tiny-kimi", "fp8-656"}, {"tests/models/tiny-glm", "fp8-656"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof kind / sizeof *kind; i++) {
        int64_t page = planned_page(kind[i][0], kind[i][1]);
        int32_t few, many;
        size_t a = allocated(kind[i][0], kind[i][1], (uint64_t)(10 * page), &few);
        size_t b = allocated(kind[i][0], kind[i][1], (uint64_t)(75 * page + page - 1),
                             &many);

        assert_int_equal(few, 10);
        assert_int_equal(many, 75);
        assert_int_equal(b - a, 65 * (page + (int64_t)sizeof(uint32_t))); /* and its tag */
    }
}

/* ---- a live pool ------------------------------------------------------------------- */

enum { N = 6, PROMPT = 100, LIMIT = 120 };

static uint64_t bytes_of(const struct mc_engine *e, int32_t pages)
{
    return (uint64_t)e->crew.run[0].dev.kv.page_stride * (uint64_t)pages;
}

static void submit_six(struct mc_engine *e, struct got *g[N])
{
    for (int i = 0; i < N; i++) {
        int32_t ids[PROMPT];
        struct mc_request r;
        struct mc_handle h;
        struct mc_err err = {0};

        some_ids(ids, PROMPT, 40 + (uint32_t)i);
        g[i] = got_new();
        r = ask_for(ids, PROMPT, LIMIT, g[i]);
        assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    }
}

static void resize_under_load_preempts_and_finishes_what_runs(void **state)
{
    struct mc_engine *e = engine_open(
        &(struct mc_engine_opts){.kv = "f32", .max_seqs = 8}, NULL);
    struct got *x[N], *y[N];
    struct mc_engine_status s;
    struct mc_err err = {0};
    int32_t all;

    (void)state;
    submit_six(e, x);
    for (int i = 0; i < N; i++)
        got_wait(x[i], -1);
    mc_engine_status(e, &s);
    all = s.p_total;
    submit_six(e, y);
    for (int i = 0; i < N; i++)
        got_wait(y[i], 20);
    assert_ok(mc_engine_set_kv(e, bytes_of(e, 9), &err), err);
    assert_true(mc_engine_resized(e, 5));
    mc_engine_status(e, &s);
    assert_int_equal(s.p_total, 9);
    assert_true(s.p_held <= 9);
    assert_int_equal(s.max_context, 9 * MC_PAGE);
    for (int i = 0; i < N; i++) {
        got_wait(y[i], -1);
        same_tokens(x[i], y[i]);
        got_free(x[i]), got_free(y[i]);
    }
    assert_true(mc_engine_counter(e, MC_C_num_preemptions_total) > 0);
    assert_idle(e);
    assert_ok(mc_engine_set_kv(e, bytes_of(e, all), &err), err);
    assert_true(mc_engine_resized(e, 5));
    mc_engine_status(e, &s);
    assert_int_equal(s.p_total, all);
    assert_idle(e);
    mc_engine_close(e);
}

static void resize_refuses_what_is_too_small_or_too_large(void **state)
{
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){.kv = "f32"}, NULL);
    struct mc_request r;
    struct mc_handle h;
    struct mc_err err = {0};
    struct got *g = got_new();
    int32_t ids[300];
    char least[32];

    (void)state;
    some_ids(ids, 300, 1);
    r = ask_for(ids, 300, 400, g);
    assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    assert_int_equal(mc_engine_set_kv(e, bytes_of(e, 4), &err), MC_EARG);
    assert_string_equal(err.param, "kv_memory");
    mc_engine_cancel(e, h, "enough");
    got_wait(g, -1);
    assert_int_equal(mc_engine_set_kv(e, bytes_of(e, 1), &err), MC_EARG);
    snprintf(least, sizeof least, "needs 2, %llu bytes",
             (unsigned long long)bytes_of(e, 2));
    assert_non_null(strstr(err.text, least));
    assert_int_equal(mc_engine_set_kv(e, 1ull << 50, &err), MC_EARG);
    got_free(g);
    mc_engine_close(e);
}

static long resident_bytes(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    if (!f || fscanf(f, "%*d %ld", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

/* Prompts of many pages, each another, until the pool has been used up. */
static void resize_gives_memory_back(void **state)
{
    struct mc_engine *e = engine_open(
        &(struct mc_engine_opts){.kv = "f32", .max_seqs = 2, .swap_bytes = 1,
                                 .kv_bytes = 64 << 20}, NULL);
    struct mc_err err = {0};
    int32_t ids[900];
    long before;

    (void)state;
    for (uint32_t i = 0; i < 40; i++) {
        some_ids(ids, 900, i);
        got_free(run_one(e, ids, 900, 2));
    }
    before = resident_bytes();
    assert_ok(mc_engine_set_kv(e, 8 << 20, &err), err);
    assert_true(mc_engine_resized(e, 5));
#ifndef MC_SANITIZE
    assert_true(resident_bytes() < before - (40l << 20));
#endif
    got_free(run_one(e, ids, 400, 2));
    assert_idle(e);
    mc_engine_close(e);
    (void)before;
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(resize_planned_bytes_are_allocated_bytes),
    cmocka_unit_test(resize_under_load_preempts_and_finishes_what_runs),
    cmocka_unit_test(resize_refuses_what_is_too_small_or_too_large),
    cmocka_unit_test(resize_gives_memory_back),
};

MC_TEST_MAIN(tests)
