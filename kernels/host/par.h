/* par.h - the inside of a stream's thread team; stream.c owns one. See par.c. */
#ifndef MC_HOST_PAR_H
#define MC_HOST_PAR_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/host/host.h"

enum { MC_MAX_THREADS = 256 };

struct mc_par {
    int n;              /* threads, the leader included */
    int n_made;         /* helpers that run */
    pthread_t *helper;  /* [n - 1] */
    atomic_bool quit;

    /* The job: written by the leader while it is closed and nobody is inside. */
    mc_par_fn fn;
    void *ctx;
    int64_t n_items, grain;

    _Alignas(64) atomic_llong next;     /* first item that nobody has taken */
    _Alignas(64) atomic_uint gen;       /* futex; odd: a job is open */
    atomic_uint sleepers;               /* helpers that block on gen */
    _Alignas(64) atomic_uint active;    /* futex; helpers inside the job */
    atomic_uint leader_blocks;          /* the leader blocks on active */
};

int mc_par_start(struct mc_par *par, int threads);
void mc_par_stop(struct mc_par *par);

/* A thread with a stack of 8 MiB, whatever ulimit -s says, and all signals blocked but SIGBUS:
 * a file that it reads through a map may be cut short. */
int mc_thread_start(pthread_t *t, void *(*fn)(void *), void *arg, const char *name);

/* Blocks while *word == seen; true when woken, false when it did not sleep or a signal came.
 * wake: how many were. */
bool mc_futex_wait(atomic_uint *word, unsigned seen);
/* The same for ms milliseconds at most: false when they passed. */
bool mc_futex_wait_ms(atomic_uint *word, unsigned seen, uint32_t ms);
unsigned mc_futex_wake(atomic_uint *word, int n);

/* A short bounded spin: while (mc_spin(&s)) test; it gives up after ~20 us. Longer than
 * the gap between two operations, shorter than a scheduler's tick: a thread that was
 * descheduled must not keep the others burning. */
struct mc_spin {
    unsigned n;
    uint64_t end_ns;
};
bool mc_spin(struct mc_spin *s);

#endif
