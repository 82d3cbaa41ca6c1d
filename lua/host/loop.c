/* loop.c - the queue of bells, the heap of timers, the thread.
 *
 * OWNS both. THREAD: the queue is shared under `lock` (a leaf: nothing is called with it
 * held); the heap is the thread's alone.
 * Always true: a bell is in the queue exactly when queued; heap[i]->place == i + 1. */
#define _GNU_SOURCE /* pthread_setname_np */
#include "lua/host/loop.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/clock.h"
#include "core/base/thread.h"

struct mc_loop {
    pthread_mutex_t lock;
    pthread_cond_t rung;
    struct mc_bell *first, *last;
    bool stop, busy; /* under lock */
    pthread_t thread;
    struct mc_timer **heap;
    size_t n_heap, cap_heap;
    int (*before)(void *ctx, struct mc_err *err);
    void (*after)(void *ctx);
    void *ctx;
    int state; /* under lock: 0 starting, 1 running, negative: before() failed */
    struct mc_err err;
};

/* ---- bells ------------------------------------------------------------------------- */

void mc_bell_init(struct mc_bell *b, struct mc_loop *l, void (*fire)(struct mc_bell *b))
{
    *b = (struct mc_bell){.loop = l, .fire = fire};
}

void mc_bell_ring(struct mc_bell *b)
{
    struct mc_loop *l = b->loop;

    pthread_mutex_lock(&l->lock);
    if (!b->queued && !l->stop) {
        b->queued = true;
        b->next = NULL;
        if (l->last)
            l->last->next = b;
        else
            l->first = b;
        l->last = b;
        pthread_cond_signal(&l->rung);
    }
    pthread_mutex_unlock(&l->lock);
}

void mc_bell_still(struct mc_bell *b)
{
    struct mc_loop *l = b->loop;
    struct mc_bell *p, *prev = NULL;

    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    for (p = b->queued ? l->first : NULL; p; prev = p, p = p->next) {
        if (p != b)
            continue;
        if (prev)
            prev->next = b->next;
        else
            l->first = b->next;
        if (l->last == b)
            l->last = prev;
        b->queued = false;
        break;
    }
    pthread_mutex_unlock(&l->lock);
}

bool mc_loop_busy(struct mc_loop *l)
{
    bool busy;

    pthread_mutex_lock(&l->lock);
    busy = l->busy || l->first;
    pthread_mutex_unlock(&l->lock);
    return busy;
}

/* ---- timers ------------------------------------------------------------------------ */

static void place(struct mc_loop *l, size_t i, struct mc_timer *t)
{
    l->heap[i] = t;
    t->place = i + 1;
}

static void sift_up(struct mc_loop *l, size_t i, struct mc_timer *t)
{
    for (; i > 0 && l->heap[(i - 1) / 2]->at > t->at; i = (i - 1) / 2)
        place(l, i, l->heap[(i - 1) / 2]);
    place(l, i, t);
}

static void sift_down(struct mc_loop *l, size_t i, struct mc_timer *t)
{
    size_t child;

    for (child = 2 * i + 1; child < l->n_heap; child = 2 * i + 1) {
        if (child + 1 < l->n_heap && l->heap[child + 1]->at < l->heap[child]->at)
            child++;
        if (l->heap[child]->at >= t->at)
            break;
        place(l, i, l->heap[child]);
        i = child;
    }
    place(l, i, t);
}

void mc_timer_unset(struct mc_loop *l, struct mc_timer *t)
{
    struct mc_timer *moved;
    size_t i = t->place - 1;

    if (!t->place)
        return;
    t->place = 0;
    moved = l->heap[--l->n_heap];
    if (moved == t)
        return;
    if (i > 0 && l->heap[(i - 1) / 2]->at > moved->at)
        sift_up(l, i, moved);
    else
        sift_down(l, i, moved);
}

void mc_timer_set(struct mc_loop *l, struct mc_timer *t, double at)
{
    mc_timer_unset(l, t);
    if (l->n_heap == l->cap_heap) {
        l->cap_heap = l->cap_heap ? 2 * l->cap_heap : 16;
        l->heap = realloc(l->heap, l->cap_heap * sizeof *l->heap);
        if (!l->heap)
            abort();
    }
    t->at = at;
    sift_up(l, l->n_heap++, t);
}

/* ---- the thread -------------------------------------------------------------------- */

/* The next bell, waiting for one, for the first timer or for the end. */
static struct mc_bell *next_bell(struct mc_loop *l, bool *end)
{
    struct mc_bell *b;
    double at = l->n_heap ? l->heap[0]->at : 0;
    struct timespec t = {(time_t)at, (long)((at - (double)(time_t)at) * 1e9)};
    int rc = 0;

    pthread_mutex_lock(&l->lock);
    l->busy = false;
    while (!l->first && !l->stop && rc == 0)
        rc = l->n_heap ? pthread_cond_timedwait(&l->rung, &l->lock, &t)
                       : pthread_cond_wait(&l->rung, &l->lock);
    l->busy = true;
    b = l->first;
    if (b) {
        l->first = b->next;
        if (!l->first)
            l->last = NULL;
        b->queued = false;
    }
    *end = l->stop && !b;
    pthread_mutex_unlock(&l->lock);
    return b;
}

static void *main_of(void *arg)
{
    struct mc_loop *l = arg;
    struct mc_bell *b;
    bool end = false;
    int rc = l->before ? l->before(l->ctx, &l->err) : 0;

    pthread_mutex_lock(&l->lock);
    l->state = rc < 0 ? rc : 1;
    pthread_cond_broadcast(&l->rung);
    pthread_mutex_unlock(&l->lock);
    while (rc >= 0 && !end) {
        b = next_bell(l, &end);
        if (b)
            b->fire(b);
        while (l->n_heap && l->heap[0]->at <= mc_now()) {
            struct mc_timer *t = l->heap[0];

            mc_timer_unset(l, t);
            t->fire(t);
        }
    }
    if (rc >= 0 && l->after)
        l->after(l->ctx);
    return NULL;
}

int mc_loop_open(const char *name, int (*before)(void *ctx, struct mc_err *err),
                 void (*after)(void *ctx), void *ctx, struct mc_loop **out,
                 struct mc_err *err)
{
    struct mc_loop *l = calloc(1, sizeof *l);
    pthread_condattr_t attr;
    int rc;

    if (!l)
        return mc_fail(err, MC_ENOMEM, "no memory for a loop");
    l->before = before;
    l->after = after;
    l->ctx = ctx;
    pthread_mutex_init(&l->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&l->rung, &attr);
    pthread_condattr_destroy(&attr);
    *out = l; /* before() may already need it */
    if (mc_thread_run(&l->thread, main_of, l)) {
        pthread_cond_destroy(&l->rung);
        pthread_mutex_destroy(&l->lock);
        free(l);
        *out = NULL;
        return mc_fail(err, MC_ENOMEM, "no thread for %s", name);
    }
    pthread_setname_np(l->thread, name);
    pthread_mutex_lock(&l->lock);
    while (l->state == 0)
        pthread_cond_wait(&l->rung, &l->lock);
    rc = l->state;
    pthread_mutex_unlock(&l->lock);
    if (rc > 0)
        return 0;
    if (err)
        *err = l->err;
    mc_loop_close(l);
    *out = NULL;
    return rc;
}

void mc_loop_stop(struct mc_loop *l)
{
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->rung);
    pthread_mutex_unlock(&l->lock);
}

void mc_loop_close(struct mc_loop *l)
{
    if (!l)
        return;
    mc_loop_stop(l);
    pthread_join(l->thread, NULL);
    free(l->heap);
    pthread_cond_destroy(&l->rung);
    pthread_mutex_destroy(&l->lock);
    free(l);
}
