/* stream.c - an ordered asynchronous queue of bodies, and graphs of them.
 *
 * A ring of {body, params by value}. One thread pushes; the stream's leader takes records
 * in order and runs them with its team (par.c). `pushed` and `finished` count records since
 * the stream was made: a ticket is a value of pushed, done when finished has reached it.
 *
 * OWNS: the ring, the leader and its team. A recorded graph belongs to the caller and must
 * outlive its runs; a run of it is one record.
 * INVARIANTS: finished <= pushed <= finished + RING. Only the pusher raises pushed, only
 * the leader raises finished. No allocation after mc_stream_new, save while recording.
 * THREAD: push, mark, graphs: one at a time; wait, done: any. */
#include "kernels/host/par.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#ifdef MC_RING_RECORDS /* a stress build: the pusher blocks all the time */
enum { RING = MC_RING_RECORDS };
#else
enum { RING = MC_RING };
#endif

struct rec {
    mc_body body;
    _Alignas(16) unsigned char p[MC_REC_BYTES];
};

struct mc_graph {
    int n, cap;
    struct rec *rec;
};

struct mc_stream {
    struct mc_par par;
    struct mc_peer peer; /* whom a failure here would keep waiting */
    struct rec *ring; /* [RING] */
    pthread_t leader;
    bool leader_made;
    struct mc_graph *recording; /* the pusher's */
    atomic_int error;           /* the code that stopped the stream */
    atomic_bool quit;

    _Alignas(64) atomic_ullong pushed;
    atomic_uint work;          /* futex of the sleeping leader; changes with pushed */
    atomic_uint leader_sleeps;
    _Alignas(64) atomic_ullong finished;
    atomic_ullong wake_at;     /* the least ticket that somebody blocks for */
    atomic_uint woken;         /* futex of those who block */
};

/* Runs the leader until a record is there; false to quit. */
static bool leader_next(struct mc_stream *s, uint64_t at)
{
    struct mc_spin spin = {0};

    for (;;) {
        unsigned seen = atomic_load(&s->work);

        if (atomic_load(&s->pushed) > at)
            return true;
        if (atomic_load(&s->quit))
            return false;
        if (mc_spin(&spin))
            continue;
        atomic_store(&s->leader_sleeps, 1);
        if (atomic_load(&s->pushed) == at && !atomic_load(&s->quit))
            mc_futex_wait(&s->work, seen);
        atomic_store(&s->leader_sleeps, 0);
        spin.n = 0;
    }
}

static void kick_leader(struct mc_stream *s)
{
    atomic_fetch_add(&s->work, 1);
    if (atomic_load(&s->leader_sleeps))
        mc_futex_wake(&s->work, 1);
}

/* The others are told first: who sees the error asks them why. */
static void fail(struct mc_stream *s, int rc)
{
    if (s->peer.n > 1)
        mc_comm_break(s->peer.comm, "rank %d failed: an operation gave %d", s->peer.rank,
                      rc);
    atomic_store(&s->error, rc);
}

static void *leader_main(void *vs)
{
    struct mc_stream *s = vs;
    uint64_t at = 0;

    while (leader_next(s, at)) {
        struct rec *r = &s->ring[at % RING];

        if (atomic_load_explicit(&s->error, memory_order_relaxed) == 0) {
            int rc = r->body(&s->par, r->p);

            if (rc < 0)
                fail(s, rc);
        }
        at++;
        atomic_store(&s->finished, at);
        if (at >= atomic_load(&s->wake_at)) {
            atomic_store(&s->wake_at, ULLONG_MAX);
            atomic_fetch_add(&s->woken, 1);
            mc_futex_wake(&s->woken, INT_MAX);
        }
    }
    return NULL;
}

enum { FOREVER = UINT32_MAX };

/* Blocks until finished >= ticket; false when ms passed first. A waiter lowers wake_at to
 * its ticket and looks again; the leader raises finished and then looks at wake_at, so that
 * one of them sees the other. Everybody is woken and those who came for more register
 * again. */
static bool wait_finished(struct mc_stream *s, uint64_t ticket, uint32_t ms)
{
    struct mc_spin spin = {0};
    bool woken = true;

    while (woken && atomic_load(&s->finished) < ticket) {
        unsigned seen;
        unsigned long long at;

        if (mc_spin(&spin))
            continue;
        seen = atomic_load(&s->woken);
        at = atomic_load(&s->wake_at);
        while (ticket < at && !atomic_compare_exchange_weak(&s->wake_at, &at, ticket))
            ;
        if (atomic_load(&s->finished) >= ticket)
            break;
        if (ms == FOREVER)
            mc_futex_wait(&s->woken, seen);
        else
            woken = mc_futex_wait_ms(&s->woken, seen, ms);
    }
    return woken;
}

static int record(struct mc_graph *g, mc_body body, const void *p, size_t bytes)
{
    if (g->n == g->cap) {
        int cap = g->cap ? 2 * g->cap : 64;
        struct rec *rec = realloc(g->rec, (size_t)cap * sizeof *rec);

        if (!rec)
            return MC_K_ENOMEM;
        g->rec = rec;
        g->cap = cap;
    }
    g->rec[g->n].body = body;
    memcpy(g->rec[g->n].p, p, bytes);
    g->n++;
    return 0;
}

int mc_stream_push(struct mc_stream *s, mc_body body, const void *p, size_t bytes)
{
    uint64_t at = atomic_load_explicit(&s->pushed, memory_order_relaxed);
    struct rec *r = &s->ring[at % RING];

    assert(bytes <= MC_REC_BYTES);
    if (s->recording)
        return record(s->recording, body, p, bytes);
    if (at >= RING)
        wait_finished(s, at - RING + 1, FOREVER);
    r->body = body;
    memcpy(r->p, p, bytes);
    atomic_store(&s->pushed, at + 1);
    kick_leader(s);
    return 0;
}

uint64_t mc_stream_mark(struct mc_stream *s)
{
    return atomic_load(&s->pushed);
}

int mc_stream_wait(struct mc_stream *s, uint64_t ticket)
{
    assert(ticket <= atomic_load(&s->pushed));
    wait_finished(s, ticket, FOREVER);
    return atomic_load(&s->error);
}

int mc_stream_wait_ms(struct mc_stream *s, uint64_t ticket, uint32_t ms)
{
    assert(ticket <= atomic_load(&s->pushed) && ms < FOREVER);
    return wait_finished(s, ticket, ms) ? atomic_load(&s->error) : 1;
}

bool mc_stream_done(struct mc_stream *s, uint64_t ticket)
{
    return atomic_load(&s->finished) >= ticket;
}

int mc_graph_begin(struct mc_stream *s)
{
    assert(!s->recording);
    s->recording = calloc(1, sizeof *s->recording);
    return s->recording ? 0 : MC_K_ENOMEM;
}

int mc_graph_end(struct mc_stream *s, struct mc_graph **out)
{
    assert(s->recording);
    *out = s->recording;
    s->recording = NULL;
    return 0;
}

static int graph_body(struct mc_par *par, const void *p)
{
    const struct mc_graph *g = *(const struct mc_graph *const *)p;
    int i, rc = 0;

    for (i = 0; i < g->n && rc == 0; i++)
        rc = g->rec[i].body(par, g->rec[i].p);
    return rc;
}

int mc_graph_run(struct mc_stream *s, const struct mc_graph *g)
{
    return mc_stream_push(s, graph_body, &g, sizeof g);
}

void mc_graph_free(struct mc_graph *g)
{
    if (!g)
        return;
    free(g->rec);
    free(g);
}

int mc_stream_new(int threads, const struct mc_peer *peer, struct mc_stream **out)
{
    struct mc_stream *s = aligned_alloc(64, sizeof *s);
    int rc = MC_K_ENOMEM;

    *out = NULL;
    if (!s)
        return rc;
    memset(s, 0, sizeof *s);
    s->peer = *peer;
    atomic_store(&s->wake_at, ULLONG_MAX);
    s->ring = aligned_alloc(64, RING * sizeof s->ring[0]);
    if (!s->ring)
        goto fail;
    rc = mc_par_start(&s->par, threads);
    if (rc < 0)
        goto fail;
    rc = mc_thread_start(&s->leader, leader_main, s, "mc-stream");
    if (rc < 0)
        goto fail;
    s->leader_made = true;
    *out = s;
    return 0;
fail:
    mc_stream_free(s);
    return rc;
}

void mc_stream_free(struct mc_stream *s)
{
    if (!s)
        return;
    atomic_store(&s->quit, true);
    if (s->leader_made) {
        kick_leader(s);
        pthread_join(s->leader, NULL);
    }
    mc_par_stop(&s->par);
    mc_graph_free(s->recording);
    free(s->ring);
    free(s);
}
