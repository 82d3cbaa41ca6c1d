/* resize.c - a KV pool that is made smaller, or larger again, while the engine runs.
 *
 * The pool keeps its addresses: pages are taken out of use one by one, and what they held of
 * memory goes back to the system. Owns nothing. THREAD: mc_engine_set_kv any; the rest the
 * engine's.
 * Always true: only a page that nobody holds and no step names leaves; until enough of them
 * have, no page is free, so that growth preempts (plan.c) and nobody new starts. */
#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/engine/engine_int.h"

enum { A_TURN = 4096 }; /* pages: a turn stays short */

int32_t mc_resize_over(const struct mc_engine *e)
{
    int32_t over = mc_kv_total(e->kv) - atomic_load(&e->p_goal);

    return over > 0 ? over : 0;
}

static void discard(struct mc_engine *e, int32_t page)
{
    for (int32_t i = 0; i < e->crew.n; i++) {
        struct mc_run *run = &e->crew.run[i];
        const struct mc_kv *kv = &run->dev.kv;
        int64_t n = kv->page_stride;

        if (run->be->discard && page % kv->n_shard == kv->rank)
            run->be->discard(run->be, kv->base + page / kv->n_shard * n, (size_t)n);
    }
}

void mc_resize_turn(struct mc_engine *e)
{
    int32_t over = mc_kv_total(e->kv) - atomic_load(&e->p_goal);

    if (over < 0)
        mc_kv_restore(e->kv, -over);
    if (over > mc_kv_n_free(e->kv))
        mc_keep_scores(e);
    for (int32_t i = 0; i < over && i < A_TURN; i++) {
        int32_t page = mc_kv_retire(e->kv);

        if (page < 0 && e->n_live == 0)
            mc_pins_yield(e);
        if (page < 0)
            return;
        discard(e, page);
    }
}

/* Pages of a rank that the longest sequence needs to make another token; look and inbox are
 * held. */
static int32_t least_pages(const struct mc_engine *e)
{
    int32_t n = MC_PAGE, shards = mc_ranks_shards(&e->ranks);

    for (int32_t i = 0; i < e->n_live; i++) {
        const struct mc_seq *q = &e->seqs[e->live[i]];

        n = q->n_ids + q->n_fly > n ? q->n_ids + q->n_fly : n;
    }
    for (const struct mc_seq *q = e->inbox_first; q; q = q->next)
        n = q->n_ids > n ? q->n_ids : n;
    return (n / MC_PAGE + shards) / shards;
}

int mc_engine_set_kv(struct mc_engine *e, uint64_t bytes, struct mc_err *err)
{
    uint64_t page = (uint64_t)e->crew.run[0].dev.kv.page_stride, n = bytes / page;
    uint64_t most = (uint64_t)e->pool.n_page, least;
    int rc = 0;

    pthread_mutex_lock(&e->look);
    pthread_mutex_lock(&e->inbox);
    least = (uint64_t)least_pages(e);
    if (n < least)
        rc = mc_fail_param(err, MC_EARG, "kv_memory",
                           "kv_memory: %llu bytes hold %llu pages of "
                           "%llu; the longest sequence needs %llu, %llu bytes",
                           (unsigned long long)bytes, (unsigned long long)n,
                           (unsigned long long)page, (unsigned long long)least,
                           (unsigned long long)(least * page));
    else if (n > most)
        rc = mc_fail_param(err, MC_EARG, "kv_memory",
                           "kv_memory: the pool was made for %.1f "
                           "MiB; more takes a restart with a larger --kv-memory",
                           (double)(most * page) / (1 << 20));
    else
        atomic_store(&e->p_goal, (int)n * mc_ranks_shards(&e->ranks));
    e->woken = true;
    pthread_cond_signal(&e->bell);
    pthread_mutex_unlock(&e->inbox);
    pthread_mutex_unlock(&e->look);
    if (rc == 0)
        mc_info("engine", "KV pool: %llu of %llu pages", (unsigned long long)n,
                (unsigned long long)most);
    return rc;
}

bool mc_engine_resized(struct mc_engine *e, double seconds)
{
    double until = mc_now() + seconds;
    bool done;

    do {
        pthread_mutex_lock(&e->look);
        done = mc_kv_total(e->kv) == atomic_load(&e->p_goal);
        pthread_mutex_unlock(&e->look);
        if (!done)
            nanosleep(&(struct timespec){0, 10000000}, NULL);
    } while (!done && mc_now() < until);
    return done;
}
