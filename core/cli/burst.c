/* burst.c - n requests at once against an engine, for benchmarks.
 *
 * Owns nothing after a call. THREAD: see burst.h. */
#include "core/cli/burst.h"

#include <pthread.h>
#include <stdlib.h>

#include "core/base/clock.h"

/* Counts sequences that have ended. */
struct finish_line {
    pthread_mutex_t lock;
    pthread_cond_t bell;
    int n_ended, n_failed;
    double t_first, t_end; /* earliest first token; latest end */
    struct mc_err err;     /* of one that failed */
};

static void on_token(void *ctx, const struct mc_token *t)
{
    (void)ctx, (void)t;
}

static void on_end(void *ctx, const struct mc_end *e)
{
    struct finish_line *f = ctx;

    pthread_mutex_lock(&f->lock);
    f->n_ended++;
    if (e->finish != MC_FINISH_LENGTH) {
        f->n_failed++;
        f->err = e->err;
    }
    if (f->t_first == 0 || (e->usage.t_first > 0 && e->usage.t_first < f->t_first))
        f->t_first = e->usage.t_first;
    f->t_end = e->usage.t_end > f->t_end ? e->usage.t_end : f->t_end;
    pthread_cond_signal(&f->bell);
    pthread_mutex_unlock(&f->lock);
}

static void fill_ids(int32_t *ids, int32_t n, int32_t vocab, uint32_t *seed)
{
    for (int32_t i = 0; i < n; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        ids[i] = (int32_t)((*seed >> 8) % (uint32_t)vocab);
    }
}

static int submit_all(struct mc_engine *e, const struct mc_burst *b,
                      struct finish_line *f, int32_t *submitted, struct mc_err *err)
{
    int32_t *ids = malloc((size_t)b->n_prompt * sizeof *ids);
    uint32_t seed = b->seed;
    int rc = ids ? 0 : mc_fail(err, MC_ENOMEM, "no memory for a prompt");

    for (int32_t i = 0; i < b->n && rc == 0; i++) {
        struct mc_request r = {.ids = ids,
                               .n_ids = b->n_prompt,
                               .limit = b->n_gen,
                               .n_top = -1,
                               .ignore_eos = true,
                               .want = {.top_p = 1,
                                        .repetition_penalty = 1,
                                        .ban = {-1, -1}},
                               .name = "bench",
                               .sink = {on_token, on_end, f}};
        struct mc_handle h;

        fill_ids(ids, b->n_prompt, mc_tok_n(mc_engine_tok(e)), &seed);
        rc = mc_engine_submit(e, &r, &h, err);
        *submitted += rc == 0;
    }
    free(ids);
    return rc;
}

int mc_burst_run(struct mc_engine *e, const struct mc_burst *b, struct mc_burst_took *out,
                 struct mc_err *err)
{
    struct finish_line f = {.lock = PTHREAD_MUTEX_INITIALIZER,
                            .bell = PTHREAD_COND_INITIALIZER};
    double t0 = mc_now();
    int32_t submitted = 0;
    int rc = submit_all(e, b, &f, &submitted, err);

    pthread_mutex_lock(&f.lock);
    while (f.n_ended < submitted)
        pthread_cond_wait(&f.bell, &f.lock);
    pthread_mutex_unlock(&f.lock);
    if (rc == 0 && f.n_failed > 0)
        rc = mc_fail(err, MC_EINTERNAL, "%d of %d sequences failed: %s", f.n_failed, b->n,
                     f.err.text);
    *out = (struct mc_burst_took){.seconds = f.t_end - t0, .decode = f.t_end - f.t_first,
                                  .first = f.t_first - t0};
    return rc;
}
