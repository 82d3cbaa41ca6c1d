/* guard.c - the SIGBUS handler behind guard.h.
 *
 * Owns the process's SIGBUS action from the first guard on; a fault outside every guarded
 * range is handed to the action before it. THREAD: any; the handler runs on whichever
 * thread faults.
 *
 * INVARIANTS: nodes are pushed on `all` and never freed, only used again, so that the
 * handler may walk the list at any moment. A node guards while `base` is not 0; its
 * other fields change only while it is 0. */
#define _GNU_SOURCE
#include "core/weights/guard.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct mc_guard {
    _Atomic uintptr_t base;
    size_t n;
    atomic_bool taken, broken;
    struct mc_guard *next;
};

static struct mc_guard *_Atomic all;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct sigaction before;
static uintptr_t page;

/* mmap is no more than its system call, and as safe here. */
static void on_bus(int sig, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr & ~(page - 1);

    (void)context;
    for (struct mc_guard *g = atomic_load(&all); g; g = g->next) {
        uintptr_t base = atomic_load(&g->base);
        size_t left;

        if (!base || at < base || at - base >= g->n)
            continue;
        left = g->n - (at - base);
        atomic_store(&g->broken, true);
        if (mmap((void *)at, left, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                 0) != MAP_FAILED)
            return;
    }
    sigaction(sig, &before, NULL); /* the fault comes again, to whom it belongs */
}

static void install(void)
{
    struct sigaction sa = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_RESTART};

    page = (uintptr_t)sysconf(_SC_PAGESIZE);
    sigemptyset(&sa.sa_mask);
    sigaction(SIGBUS, &sa, &before);
}

struct mc_guard *mc_guard_new(const void *p, size_t n)
{
    struct mc_guard *g;

    pthread_once(&once, install);
    for (g = atomic_load(&all); g; g = g->next)
        if (!atomic_exchange(&g->taken, true))
            break;
    if (!g) {
        g = calloc(1, sizeof *g);
        if (!g)
            return NULL;
        atomic_init(&g->taken, true);
        g->next = atomic_load(&all);
        while (!atomic_compare_exchange_weak(&all, &g->next, g))
            ;
    }
    g->n = n;
    atomic_store(&g->broken, false);
    atomic_store(&g->base, (uintptr_t)p);
    return g;
}

void mc_guard_drop(struct mc_guard *g)
{
    if (!g)
        return;
    atomic_store(&g->base, 0);
    atomic_store(&g->taken, false);
}

bool mc_guard_broken(const struct mc_guard *g)
{
    return atomic_load(&g->broken);
}
