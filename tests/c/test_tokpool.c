/* test_tokpool.c - text of mixed origin as ids, and the pool that makes them. */
#include "tests/c/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/serve/tokpool.h"
#include "core/weights/weights.h"

static struct mc_ckpt *ckpt;
static struct mc_tok *tok;

static void open_tok(void)
{
    struct mc_err err = {0};

    if (tok)
        return;
    assert_ok(mc_ckpt_open("tests/models/tiny-llama", &ckpt, &err), err);
    assert_ok(mc_tok_open(ckpt, &tok, &err), err);
}

/* Ids of parts "text|text|...", the special ones marked by a leading '*'. */
static struct mc_ids parts_of(const char *spec)
{
    struct mc_tok_part parts[16];
    char text[1024], copy[1024], *save = NULL, *p;
    struct mc_ids ids = {0};
    struct mc_err err = {0};
    size_t n = 0;
    int k = 0;

    snprintf(copy, sizeof copy, "%s", spec);
    for (p = strtok_r(copy, "~", &save); p; p = strtok_r(NULL, "~", &save)) {
        bool special = *p == '*';

        p += special;
        memcpy(text + n, p, strlen(p));
        n += strlen(p);
        parts[k++] = (struct mc_tok_part){n, special};
    }
    assert_ok(mc_tok_encode_parts(tok, text, n, parts, k, &ids, &err), err);
    return ids;
}

static struct mc_ids whole(const char *text, unsigned flags)
{
    struct mc_ids ids = {0};
    struct mc_err err = {0};

    assert_ok(mc_tok_encode(tok, text, strlen(text), flags, &ids, &err), err);
    return ids;
}

static void same(struct mc_ids a, struct mc_ids b)
{
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.v, b.v, a.n * sizeof *a.v);
    mc_ids_free(&a);
    mc_ids_free(&b);
}

static void parts_cut_words_as_if_they_were_one_text(void **state)
{
    (void)state;
    open_tok();
    same(parts_of("*Hel~lo wor~*ld, h~ow"), whole("Hello world, how", 0));
    same(parts_of("*<|start_header_id|>user<|end_header_id|>\n\n~Hello~*<|eot_id|>"),
         whole("<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>",
               MC_TOK_SPECIAL));
}

static void parts_find_control_tokens_only_where_they_may_be(void **state)
{
    struct mc_ids ids;
    int32_t eot;
    size_t i, n = 0;

    (void)state;
    open_tok();
    eot = mc_tok_find(tok, "<|eot_id|>", 10);
    assert_true(eot >= 0);
    same(parts_of("a<|eot_id|>b"), whole("a<|eot_id|>b", 0));
    ids = parts_of("*x<|eot_id|>~y<|eot_id|>z~*<|eot_id|>");
    for (i = 0; i < ids.n; i++)
        n += ids.v[i] == eot;
    assert_int_equal(n, 2);
    mc_ids_free(&ids);
    /* one that two origins make together is nobody's */
    same(parts_of("*a<|eot~_id|>b"), whole("a<|eot_id|>b", 0));
    same(parts_of("a<|eot~*_id|>b"), whole("a<|eot_id|>b", 0));
    /* one in two parts that both may have it is one */
    same(parts_of("*a<|eot~*_id|>b"), whole("a<|eot_id|>b", MC_TOK_SPECIAL));
    /* after a refused one the search goes on */
    same(parts_of("<|eot_id|>~*<|eot_id|>"), parts_of("<|eot_id|>~*<|eot_id|>"));
    ids = parts_of("<|eot_id|>~*<|eot_id|>");
    assert_int_equal(ids.v[ids.n - 1], eot);
    mc_ids_free(&ids);
}

/* ---- the pool ---------------------------------------------------------------------- */

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int n;
};

static void on_done(void *ctx)
{
    struct waiter *w = ctx;

    pthread_mutex_lock(&w->lock);
    w->n++;
    pthread_cond_signal(&w->cond);
    pthread_mutex_unlock(&w->lock);
}

static void pool_gives_each_job_its_ids(void **state)
{
    struct waiter w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    struct mc_tokjob *jobs[50];
    struct mc_tokpool *pool = NULL;
    struct mc_err err = {0};
    char text[32];
    int i;

    (void)state;
    open_tok();
    assert_ok(mc_tokpool_open(tok, 3, &pool, &err), err);
    for (i = 0; i < 50; i++) {
        struct mc_tokpart p = {text, 0, false};

        p.n = (size_t)snprintf(text, sizeof text, "number %d", i);
        assert_ok(mc_tokpool_encode(pool, &p, 1, MC_TOK_BOS, on_done, &w, &jobs[i], &err),
                  err);
    }
    pthread_mutex_lock(&w.lock);
    while (w.n < 50)
        pthread_cond_wait(&w.cond, &w.lock);
    pthread_mutex_unlock(&w.lock);
    for (i = 0; i < 50; i++) {
        const struct mc_ids *ids = NULL;
        struct mc_ids want;

        assert_int_equal(mc_tokjob_take(jobs[i], &ids, &err), 1);
        snprintf(text, sizeof text, "number %d", i);
        want = whole(text, MC_TOK_BOS);
        assert_int_equal(ids->n, want.n);
        assert_memory_equal(ids->v, want.v, want.n * sizeof *want.v);
        mc_ids_free(&want);
        mc_tokjob_drop(jobs[i]);
    }
    mc_tokpool_close(pool);
}

static void pool_dropped_jobs_never_call_back(void **state)
{
    struct mc_tokpool *pool = NULL;
    struct mc_err err = {0};
    char *text = malloc(1 << 20);
    int round, i;

    (void)state;
    open_tok();
    memset(text, 'a', 1 << 20);
    for (round = 0; round < 5; round++) {
        struct waiter w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
        struct mc_tokjob *jobs[8];
        struct mc_tokpart p = {text, 1u << (12 + round), false};
        int before;

        assert_ok(mc_tokpool_open(tok, 2, &pool, &err), err);
        for (i = 0; i < 8; i++)
            assert_ok(mc_tokpool_encode(pool, &p, 1, 0, on_done, &w, &jobs[i], &err),
                      err);
        usleep((useconds_t)(round * 500));
        for (i = 0; i < 8; i++)
            mc_tokjob_drop(jobs[i]);
        before = w.n;
        usleep(2000);
        assert_int_equal(w.n, before);
        mc_tokpool_close(pool);
    }
    free(text);
}

static void pool_refuses_bad_text_and_ends_jobs_when_it_closes(void **state)
{
    struct waiter w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    struct mc_tokpart p = {"\xff\xfe", 2, false};
    const struct mc_ids *ids = NULL;
    struct mc_tokpool *pool = NULL;
    struct mc_tokjob *job = NULL;
    struct mc_err err = {0};
    int rc = 0;

    (void)state;
    open_tok();
    assert_ok(mc_tokpool_open(tok, 1, &pool, &err), err);
    assert_ok(mc_tokpool_encode(pool, &p, 1, 0, on_done, &w, &job, &err), err);
    while (rc == 0)
        rc = mc_tokjob_take(job, &ids, &err);
    assert_int_equal(rc, MC_EFORMAT);
    mc_tokjob_drop(job);
    mc_tokjob_drop(NULL);
    mc_tokpool_close(pool);
    mc_tokpool_close(NULL);
}

static void pool_refuses_unread_what_can_not_fit(void **state)
{
    struct waiter w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    char *text = calloc(1, 1 << 20); /* NUL bytes: text as well */
    struct mc_tokpart p[2] = {{text, 1 << 19, false}, {text, 1 << 19, true}};
    struct mc_tokpool *pool = NULL;
    struct mc_tokjob *job = NULL;
    struct mc_err err = {0};

    (void)state;
    open_tok();
    assert_ok(mc_tokpool_open(tok, 1, &pool, &err), err);
    mc_tokpool_limit(pool, 16);
    assert_int_equal(mc_tokpool_encode(pool, p, 2, 0, on_done, &w, &job, &err), MC_ECTX);
    assert_string_equal(err.param, "prompt");
    assert_null(job);
    p[0].n = p[1].n = 8; /* 16 tokens of one byte */
    assert_ok(mc_tokpool_encode(pool, p, 2, 0, on_done, &w, &job, &err), err);
    mc_tokjob_drop(job);
    mc_tokpool_close(pool);
    free(text);
}

static int close_tok(void **state)
{
    (void)state;
    mc_tok_close(tok);
    mc_ckpt_close(ckpt);
    return 0;
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(parts_cut_words_as_if_they_were_one_text),
    cmocka_unit_test(parts_find_control_tokens_only_where_they_may_be),
    cmocka_unit_test(pool_gives_each_job_its_ids),
    cmocka_unit_test(pool_dropped_jobs_never_call_back),
    cmocka_unit_test(pool_refuses_unread_what_can_not_fit),
    cmocka_unit_test_teardown(pool_refuses_bad_text_and_ends_jobs_when_it_closes,
                              close_tok),
};

MC_TEST_MAIN(tests)
