/* thread.h - threads and timed waits as all of the program wants them.
 *
 * Signals are the main thread's: no other takes any but those that are the fault of the
 * thread that gets them (core/weights/guard.h, core/base/crash.h). Waits are on the clock of
 * mc_now(), so that setting the time of day wakes nobody early or late. OWNS nothing.
 * THREAD: any. */
#ifndef MC_BASE_THREAD_H
#define MC_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

#include "core/base/clock.h"

/* Blocks all but those in this thread. */
void mc_thread_mask(sigset_t *old);
/* A thread so masked, with a stack for the crash handler (mc_crash_stack). 0 or an errno. */
int mc_thread_run(pthread_t *t, void *(*fn)(void *), void *arg);

static inline void mc_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

/* Waits until signalled or until mc_now() is at least `until`: then ETIMEDOUT. c is from
 * mc_cond_init. */
static inline int mc_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock,
                                     double until)
{
    struct timespec ts = {.tv_sec = (time_t)until};

    ts.tv_nsec = (long)((until - (double)ts.tv_sec) * 1e9);
    return pthread_cond_timedwait(c, lock, &ts);
}

#endif
