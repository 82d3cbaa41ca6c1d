/* queue.c - tensors' work: a queue, and the thread that hands it to a stream of its own.
 *
 * Owns the pool. THREAD: queueing and fences any; the stream is the thread's alone.
 * Always true: done <= queued <= done + MC_QUEUE; a job's stores are held until it is
 * done; fences fire with the lock held, so that after disarming one it never fires. */
#include "core/tensor/tensor_int.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "core/base/thread.h"

enum { MC_QUEUE = 256, FULL = 192, BATCH = 32 };

/* ---- the thread -------------------------------------------------------------------- */

static void fire(struct mc_tensors *ts)
{
    struct mc_fence **at = &ts->fences;

    while (*at) {
        struct mc_fence *f = *at;

        if (f->ticket > ts->done) {
            at = &f->next;
            continue;
        }
        *at = f->next;
        f->armed = false;
        f->fn(f->ctx);
    }
}

/* Jobs [from, to): enqueued, awaited, let go of. s NULL: it did not open, none computes. */
static int run(struct mc_tensors *ts, struct mc_stream *s, uint64_t from, uint64_t to)
{
    int rc = s ? 0 : MC_EINTERNAL, end;

    for (uint64_t i = from; i < to; i++) {
        const struct mc_job *j = &ts->ring[i % MC_QUEUE];

        if (j->call)
            j->call(j->ctx);
        else if (rc == 0)
            rc = mc_k_tensor(ts->be, s, &j->p);
    }
    end = s ? ts->be->wait(s, ts->be->mark(s)) : rc;
    for (uint64_t i = from; i < to; i++)
        for (int k = 0; k < MC_N_NAMED; k++)
            mc_store_drop(ts->ring[i % MC_QUEUE].named[k]);
    return rc < 0 ? rc : end;
}

static void *work(void *arg)
{
    struct mc_tensors *ts = arg;
    struct mc_stream *s = NULL;
    int rc = ts->be->stream_low(ts->be, &s);

    pthread_mutex_lock(&ts->lock);
    ts->failed = rc;
    for (;;) {
        uint64_t from = ts->done, to;

        while (ts->queued == from && !ts->quit)
            pthread_cond_wait(&ts->work, &ts->lock);
        if (ts->queued == from)
            break;
        to = ts->queued - from > BATCH ? from + BATCH : ts->queued;
        pthread_mutex_unlock(&ts->lock);
        rc = run(ts, s, from, to);
        pthread_mutex_lock(&ts->lock);
        ts->done = to;
        if (rc < 0 && !ts->failed) {
            mc_error("tensor", "work failed: %s", mc_code_text(rc));
            ts->failed = rc;
        }
        fire(ts);
    }
    pthread_mutex_unlock(&ts->lock);
    if (s)
        ts->be->stream_free(s);
    return NULL;
}

/* ---- queueing ---------------------------------------------------------------------- */

bool mc_tensors_full(struct mc_tensors *ts)
{
    bool full;

    pthread_mutex_lock(&ts->lock);
    full = ts->queued - ts->done >= FULL;
    pthread_mutex_unlock(&ts->lock);
    return full;
}

bool mc_tensors_reach(const struct mc_tensors *ts, const struct mc_backend *be)
{
    return ts->be == be || (ts->be->alloc == be->alloc && be->alloc == be->host_alloc);
}

bool mc_tensors_busy(struct mc_tensors *ts)
{
    bool busy;

    pthread_mutex_lock(&ts->lock);
    busy = ts->queued > ts->done;
    pthread_mutex_unlock(&ts->lock);
    return busy;
}

const char *mc_tensors_refuse(const struct mc_tensors *ts, const struct mc_tensor_p *p)
{
    struct mc_need need;
    const char *why = NULL;

    return ts->be->op[MC_OP_tensor]->need(p, &need, &why) < 0 ? why : NULL;
}

/* With the lock held. */
static int can_queue(struct mc_tensors *ts, struct mc_err *err)
{
    if (!ts->started && mc_thread_run(&ts->thread, work, ts) != 0)
        return mc_fail(err, MC_ENOMEM, "no thread for tensors");
    ts->started = true;
    if (ts->failed)
        return mc_fail(err, MC_EINTERNAL, "tensors' work failed before: %s",
                       mc_code_text(ts->failed));
    if (ts->queued - ts->done >= MC_QUEUE)
        return mc_fail(err, MC_EAGAIN, "%d tensor operations are queued", MC_QUEUE);
    return 0;
}

/* With the lock held: the place of the next job. */
static struct mc_job *next_job(struct mc_tensors *ts)
{
    pthread_cond_signal(&ts->work);
    return &ts->ring[ts->queued++ % MC_QUEUE];
}

int mc_tensors_call(struct mc_tensors *ts, void (*fn)(void *ctx), void *ctx,
                    struct mc_err *err)
{
    int rc;

    pthread_mutex_lock(&ts->lock);
    rc = can_queue(ts, err);
    if (rc == 0)
        *next_job(ts) = (struct mc_job){.call = fn, .ctx = ctx};
    pthread_mutex_unlock(&ts->lock);
    return rc;
}

int mc_tensors_queue(struct mc_tensors *ts, const struct mc_tensor_p *p,
                     struct mc_store *const named[MC_N_NAMED], struct mc_err *err)
{
    int rc;

    pthread_mutex_lock(&ts->lock);
    rc = can_queue(ts, err);
    if (rc == 0) {
        struct mc_job *j = next_job(ts);

        *j = (struct mc_job){.p = *p};
        for (int i = 0; i < MC_N_NAMED; i++) {
            j->named[i] = named[i];
            mc_store_ref(named[i]);
        }
    }
    pthread_mutex_unlock(&ts->lock);
    return rc;
}

/* ---- fences ------------------------------------------------------------------------ */

void mc_fence_arm(struct mc_tensors *ts, struct mc_fence *f, void (*fn)(void *),
                  void *ctx)
{
    pthread_mutex_lock(&ts->lock);
    *f = (struct mc_fence){.next = ts->fences, .ticket = ts->queued, .fn = fn, .ctx = ctx,
                           .armed = ts->queued > ts->done};
    if (f->armed)
        ts->fences = f;
    pthread_mutex_unlock(&ts->lock);
}

void mc_fence_disarm(struct mc_tensors *ts, struct mc_fence *f)
{
    struct mc_fence **at;

    pthread_mutex_lock(&ts->lock);
    for (at = &ts->fences; f->armed && *at; at = &(*at)->next)
        if (*at == f) {
            *at = f->next;
            f->armed = false;
            break;
        }
    pthread_mutex_unlock(&ts->lock);
}

bool mc_fence_passed(struct mc_tensors *ts, struct mc_fence *f)
{
    bool passed;

    pthread_mutex_lock(&ts->lock);
    passed = !f->armed;
    pthread_mutex_unlock(&ts->lock);
    return passed;
}

int mc_tensors_failed(struct mc_tensors *ts)
{
    int rc;

    pthread_mutex_lock(&ts->lock);
    rc = ts->failed;
    pthread_mutex_unlock(&ts->lock);
    return rc;
}

/* ---- the pool ---------------------------------------------------------------------- */

int mc_tensors_open(struct mc_backend *be, uint64_t bytes, struct mc_tensors **out,
                    struct mc_err *err)
{
    struct mc_tensors *ts;

    if (!be->op[MC_OP_tensor] || !be->stream_low)
        return mc_fail(err, MC_EUNSUP, "backend %s has no tensors for scripts", be->name);
    ts = calloc(1, sizeof *ts);
    if (!ts)
        return mc_fail(err, MC_ENOMEM, "no memory for tensors");
    ts->ring = calloc(MC_QUEUE, sizeof *ts->ring);
    if (!ts->ring) {
        free(ts);
        return mc_fail(err, MC_ENOMEM, "no memory for tensors");
    }
    ts->be = be;
    ts->total = bytes;
    pthread_mutex_init(&ts->lock, NULL);
    pthread_cond_init(&ts->work, NULL);
    *out = ts;
    return 0;
}

void mc_tensors_close(struct mc_tensors *ts)
{
    if (!ts)
        return;
    pthread_mutex_lock(&ts->lock);
    ts->quit = true;
    pthread_cond_signal(&ts->work);
    pthread_mutex_unlock(&ts->lock);
    if (ts->started)
        pthread_join(ts->thread, NULL);
    pthread_cond_destroy(&ts->work);
    pthread_mutex_destroy(&ts->lock);
    free(ts->ring);
    free(ts);
}
