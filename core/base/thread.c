/* thread.c - see thread.h. OWNS what a new thread is told until it has begun. */
#include "core/base/thread.h"

#include <errno.h>
#include <stdlib.h>

#include "core/base/crash.h"

struct begin {
    void *(*fn)(void *);
    void *arg;
};

static void *begin(void *arg)
{
    struct begin b = *(struct begin *)arg;

    free(arg);
    mc_crash_stack();
    return b.fn(b.arg);
}

void mc_thread_mask(sigset_t *old)
{
    static const int own[] = {SIGBUS, SIGSEGV, SIGILL, SIGFPE, SIGABRT};
    sigset_t all;

    sigfillset(&all);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&all, own[i]);
    pthread_sigmask(SIG_SETMASK, &all, old);
}

int mc_thread_run(pthread_t *t, void *(*fn)(void *), void *arg)
{
    struct begin *b = malloc(sizeof *b);
    sigset_t old;
    int rc;

    if (!b)
        return ENOMEM;
    *b = (struct begin){fn, arg};
    mc_thread_mask(&old);
    rc = pthread_create(t, NULL, begin, b);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        free(b);
    return rc;
}
