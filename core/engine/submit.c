/* submit.c - requests and cancels on their way into an engine.
 *
 * Owns the inbox and the cancels in it. THREAD: any; the engine's takes them (engine.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine/engine_int.h"

/* With inbox held: is the engine taking requests at all? */
static int check_open(struct mc_engine *e, struct mc_err *err)
{
    if (atomic_load(&e->failed))
        return mc_fail(err, MC_EINTERNAL, "the engine has failed");
    if (e->stopping)
        return mc_fail(err, MC_EDRAIN, "the server is shutting down");
    return 0;
}

/* Takes a record for a request, or says why there is none. */
static int reserve(struct mc_engine *e, struct mc_seq **out, struct mc_err *err)
{
    int rc;

    pthread_mutex_lock(&e->inbox);
    rc = check_open(e, err);
    if (rc == 0 && (e->n_queued >= e->o.max_waiting || !e->seq_free))
        rc = mc_fail(err, MC_ELIMIT, "%d requests are waiting already", e->n_queued);
    if (rc == 0) {
        *out = e->seq_free;
        e->seq_free = (*out)->next;
        e->n_queued++;
    }
    pthread_mutex_unlock(&e->inbox);
    return rc;
}

static int32_t same_front(const struct mc_seq *a, const struct mc_seq *b)
{
    int32_t n = 0;

    while (n < a->n_ids && n < b->n_ids && a->ids[n] == b->ids[n])
        n++;
    return n;
}

/* The sequence that h names, admitted or not; look and inbox are held. */
static const struct mc_seq *find(struct mc_engine *e, struct mc_handle h)
{
    const struct mc_seq *q = e->inbox_first;

    while (q && (q->id != h.seq || q->gen != h.gen))
        q = q->next;
    return q ? q : mc_seq_get(e, h);
}

/* Notes what a fork has in common with whom it comes from. */
static void follow(struct mc_engine *e, struct mc_seq *q, struct mc_handle from)
{
    const struct mc_seq *p;

    if (from.seq == 0)
        return;
    pthread_mutex_lock(&e->look);
    pthread_mutex_lock(&e->inbox);
    p = find(e, from);
    if (p && !mc_tap_alone(p) && p->root.lo == q->root.lo && p->root.hi == q->root.hi) {
        q->from = from;
        q->n_from = same_front(p, q);
        q->pick = p->pick;
    }
    pthread_mutex_unlock(&e->inbox);
    pthread_mutex_unlock(&e->look);
}

void mc_inbox_add(struct mc_engine *e, struct mc_seq *q)
{
    q->next = NULL;
    if (e->inbox_last)
        e->inbox_last->next = q;
    else
        e->inbox_first = q;
    e->inbox_last = q;
    pthread_cond_signal(&e->bell);
}

int mc_engine_submit(struct mc_engine *e, const struct mc_request *r,
                     struct mc_handle *out, struct mc_err *err)
{
    struct mc_seq *q = NULL;
    struct mc_handle h;
    bool away = mc_pair_takes(e, r);
    int rc;

    rc = reserve(e, &q, err);
    if (rc < 0)
        return rc;
    h = (struct mc_handle){q->id, q->gen};
    rc = mc_seq_fill(e, q, r, err);
    if (rc == 0)
        follow(e, q, r->from);
    if (rc == 0 && away) {
        rc = mc_pair_send(e, q, r, err);
        if (rc < 0)
            mc_seq_unfill(q);
    }
    pthread_mutex_lock(&e->inbox);
    if (rc == 0 && !away) {
        rc = check_open(e, err); /* it may have ended meanwhile */
        if (rc < 0)
            mc_seq_unfill(q);
    }
    if (rc < 0) {
        e->n_queued--;
        q->next = e->seq_free;
        e->seq_free = q;
    } else {
        *out = h;
        if (!away)
            mc_inbox_add(e, q);
    }
    pthread_mutex_unlock(&e->inbox);
    return rc;
}

void mc_engine_cancel(struct mc_engine *e, struct mc_handle h, const char *why)
{
    struct mc_cancel *c = calloc(1, sizeof *c);

    if (!c)
        return; /* it will end by itself */
    c->h = h;
    if (why)
        snprintf(c->why, sizeof c->why, "%s", *why ? why : "cancelled");
    pthread_mutex_lock(&e->inbox);
    c->next = e->cancels;
    e->cancels = c;
    pthread_cond_signal(&e->bell);
    pthread_mutex_unlock(&e->inbox);
}

void mc_engine_wake(struct mc_engine *e)
{
    pthread_mutex_lock(&e->inbox);
    e->woken = true;
    pthread_cond_signal(&e->bell);
    pthread_mutex_unlock(&e->inbox);
}
