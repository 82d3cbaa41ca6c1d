/* local.c - where the rank threads of one process meet: an epoch, posts, a way to part.
 *
 * A rank posts the address of what it brings and comes; the last to come opens the next
 * epoch, and then all read what the others posted. There is one meeting a collective, none
 * to leave it: see rule 2.
 *
 * Rules
 *  1. No rank comes to epoch e+1 before all came to e. So nobody can be overrun: of two
 *     ranks one is at most one epoch ahead.
 *  2. A rank that came to e+1 has read all it wants of e: its body returned. What was
 *     brought to e is therefore free once e+1 is open. Posts, of which a rank writes one
 *     an epoch, alternate between two places; the memory that they name is the caller's
 *     and alternates too, which is checked.
 *  3. Every wait ends: when the epoch opens, when the ranks have parted (looked at in each
 *     round, a slice of SLICE_MS at most), or when it lasted for `patience`: then the rank
 *     that is missing is named and all part. Only slices that were waited out count, so
 *     that a process that was stopped as a whole does not find itself overdue. A missing
 *     rank whose thread uses the processor is slow, not lost: it has BUSY_FACTOR times as
 *     long.
 *  4. Parting is for good, and the first reason is the one that is kept.
 *
 *  5. Ranks on devices meet there, by kernels (kernels/cuda/peer.cuh): here they only find
 *     each other's seats, and part.
 *
 * Owns its words. THREAD: meet: each rank's leader; break, seats: any. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "kernels/comm/comm.h"

#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/host/par.h"

enum { SLICE_MS = 50, BUSY_FACTOR = 24 };

struct post {
    const void *p;
    uint64_t key;
    enum mc_op_id op;
};

struct place {
    _Alignas(64) atomic_uint came; /* epochs that it came to */
    clockid_t clock;               /* its thread's processor time; there once it came */
    struct post post[2];           /* by epoch, odd and even */
    const void *all[MC_MAX_RANKS]; /* what it found at the last meeting */
};

struct seat {
    void *shown;
    uint32_t *parted;
};

struct mc_comm {
    int32_t n;
    uint32_t patience_ms;
    bool crowded;                        /* more ranks than cores: spinning delays who is
                                            waited for */
    _Alignas(64) atomic_uint arrived;    /* ranks that came to the epoch under way */
    _Alignas(64) atomic_uint epoch;      /* futex; epochs that all came to */
    atomic_uint sleepers;
    atomic_int broken;                   /* 1: `why` is being written, 2: it stands */
    char why[160];
    struct place place[MC_MAX_RANKS];
    pthread_mutex_t lock; /* of the seats */
    struct seat seat[MC_MAX_RANKS];
};

/* ---- parting ----------------------------------------------------------------------- */

static void tell_seats(struct mc_comm *c)
{
    pthread_mutex_lock(&c->lock);
    for (int32_t r = 0; r < c->n; r++)
        if (c->seat[r].parted)
            __atomic_store_n(c->seat[r].parted, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&c->lock);
}

void mc_comm_break(struct mc_comm *c, const char *fmt, ...)
{
    int whole = 0;
    va_list ap;

    if (!atomic_compare_exchange_strong(&c->broken, &whole, 1))
        return;
    va_start(ap, fmt);
    vsnprintf(c->why, sizeof c->why, fmt, ap);
    va_end(ap);
    atomic_store(&c->broken, 2);
    mc_futex_wake(&c->epoch, INT_MAX);
    tell_seats(c);
}

void mc_comm_sit(struct mc_comm *c, int32_t rank, void *seat, uint32_t *parted)
{
    pthread_mutex_lock(&c->lock);
    c->seat[rank] = (struct seat){seat, parted};
    pthread_mutex_unlock(&c->lock);
    if (mc_comm_broken(c))
        tell_seats(c);
}

void *mc_comm_seat(struct mc_comm *c, int32_t rank)
{
    void *seat;

    pthread_mutex_lock(&c->lock);
    seat = c->seat[rank].shown;
    pthread_mutex_unlock(&c->lock);
    return seat;
}

uint32_t mc_comm_patience_ms(const struct mc_comm *c)
{
    return c->patience_ms;
}

const char *mc_comm_broken(const struct mc_comm *c)
{
    return c && atomic_load(&c->broken) == 2 ? c->why : NULL;
}

/* The first rank that did not come to epoch e yet. */
static int32_t late_rank(const struct mc_comm *c, unsigned e)
{
    int32_t r = 0;

    while (r < c->n - 1 && atomic_load(&c->place[r].came) == e)
        r++;
    return r;
}

/* Milliseconds of the processor that a rank has used; 0 when that is not known. */
static int64_t used_ms(const struct mc_comm *c, int32_t r)
{
    struct timespec t;

    if (atomic_load(&c->place[r].came) == 0 || clock_gettime(c->place[r].clock, &t) != 0)
        return 0;
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* What a slice that was waited out counts of the patience, in parts of BUSY_FACTOR. */
static uint32_t slice_of(const struct mc_comm *c, unsigned e, int64_t *used)
{
    int64_t before = *used;

    *used = used_ms(c, late_rank(c, e));
    return *used > before ? SLICE_MS : SLICE_MS * BUSY_FACTOR;
}

/* ---- meeting ----------------------------------------------------------------------- */

/* Waits until all came to epoch e. */
static int wait_open(struct mc_comm *c, unsigned e)
{
    struct mc_spin spin = {0};
    uint32_t waited = 0; /* in parts of BUSY_FACTOR of a millisecond */
    int64_t used = 0;

    while (atomic_load(&c->epoch) != e) {
        bool woken = true;

        if (atomic_load(&c->broken))
            return MC_K_ERANK;
        if (!c->crowded && mc_spin(&spin))
            continue;
        atomic_fetch_add(&c->sleepers, 1);
        if (atomic_load(&c->epoch) != e)
            woken = mc_futex_wait_ms(&c->epoch, e - 1, SLICE_MS);
        atomic_fetch_sub(&c->sleepers, 1);
        if (!woken)
            waited += slice_of(c, e, &used);
        if (waited >= c->patience_ms * BUSY_FACTOR)
            mc_comm_break(c, "rank %d did not come within %.1f s", late_rank(c, e),
                          c->patience_ms / 1e3);
    }
    return 0;
}

static void come(struct mc_comm *c, unsigned e)
{
    if (atomic_fetch_add(&c->arrived, 1) + 1 != (unsigned)c->n)
        return;
    atomic_store(&c->arrived, 0);
    atomic_store(&c->epoch, e);
    if (atomic_load(&c->sleepers))
        mc_futex_wake(&c->epoch, INT_MAX);
}

/* All met over the same thing? Every rank sees the same posts and judges alike. */
static int compare(struct mc_comm *c, unsigned e)
{
    const struct post *a = &c->place[0].post[e % 2];
    int32_t r;

    for (r = 1; r < c->n; r++) {
        const struct post *b = &c->place[r].post[e % 2];

        if (b->op == a->op && b->key == a->key)
            continue;
        if (b->op != a->op)
            mc_comm_break(c, "ranks 0 and %d met in different operations, %d and %d", r,
                          a->op, b->op);
        else if (a->op == MC_OP_agree)
            mc_comm_break(c, "step digest mismatch: ranks 0 and %d hold different rows, "
                          "page tables or slots", r);
        else
            mc_comm_break(c, "ranks 0 and %d met in operation %d with %llu and %llu rows",
                          r, a->op, (unsigned long long)a->key,
                          (unsigned long long)b->key);
        return MC_K_ERANK;
    }
    return 0;
}

int mc_comm_meet(const struct mc_peer *peer, enum mc_op_id op, uint64_t key,
                 const void *p, const void *const **all)
{
    struct mc_comm *c = peer->comm;
    struct place *me = &c->place[peer->rank];
    unsigned e = atomic_load_explicit(&me->came, memory_order_relaxed) + 1;
    int32_t r;
    int rc;

    if (atomic_load(&c->broken))
        return MC_K_ERANK;
    if (p && p == me->post[(e - 1) % 2].p) {
        mc_comm_break(c, "rank %d brings the same memory twice to operation %d",
                      peer->rank, op);
        return MC_K_ERANK;
    }
    if (e == 1)
        pthread_getcpuclockid(pthread_self(), &me->clock);
    me->post[e % 2] = (struct post){.p = p, .key = key, .op = op};
    atomic_store(&me->came, e);
    come(c, e);
    rc = wait_open(c, e);
    if (rc == 0)
        rc = compare(c, e);
    for (r = 0; r < c->n && rc == 0; r++)
        me->all[r] = c->place[r].post[e % 2].p;
    *all = me->all;
    return rc;
}

/* ---- opening ----------------------------------------------------------------------- */

static bool crowded(int32_t n)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) < n;
}

int mc_comm_open(int32_t n, uint32_t patience_ms, struct mc_comm **out)
{
    struct mc_comm *c;

    *out = NULL;
    if (n < 1 || n > MC_MAX_RANKS)
        return MC_K_EARG;
    c = aligned_alloc(64, sizeof *c);
    if (!c)
        return MC_K_ENOMEM;
    memset(c, 0, sizeof *c);
    c->n = n;
    c->patience_ms = patience_ms;
    c->crowded = crowded(n);
    pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return 0;
}

void mc_comm_close(struct mc_comm *c)
{
    free(c);
}
