/* par.c - a stream's thread team: one leader, helpers, one job at a time.
 *
 * The leader opens a job (gen becomes odd), works on it like the helpers, closes it (even)
 * when no items are left and waits until nobody is inside. A helper enters by raising
 * `active` and looking at gen again, so a helper that the kernel has put aside delays
 * nobody unless it was put aside inside a chunk.
 *
 * INVARIANTS: fn, ctx, n_items, grain change only while gen is even and active is 0, save
 * for helpers that entered too late and leave without a look at them. Both sides of this
 * (leader: close, then read active; helper: raise active, then read gen) and of each sleep
 * (flag, then look again; change, then read flag) need the total order of seq_cst.
 * THREAD: mc_par_for on the leader. */
#define _GNU_SOURCE /* pthread_setname_np */
#include "kernels/host/par.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SPIN_NS = 20000,
    STACK_BYTES = 8 << 20, /* bodies keep 256 KiB of tiles there, a sanitizer's build more */
};

bool mc_futex_wait(atomic_uint *word, unsigned seen)
{
    return syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0) == 0;
}

bool mc_futex_wait_ms(atomic_uint *word, unsigned seen, uint32_t ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};

    return syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &t, NULL, 0) == 0 ||
           errno != ETIMEDOUT;
}

unsigned mc_futex_wake(atomic_uint *word, int n)
{
    long rc = syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);

    return rc > 0 ? (unsigned)rc : 0;
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

bool mc_spin(struct mc_spin *s)
{
    if (s->n++ % 16 == 0) { /* the clock costs as much as some pauses */
        uint64_t now = now_ns();

        if (s->n == 1)
            s->end_ns = now + SPIN_NS;
        else if (now >= s->end_ns)
            return false;
    }
    relax();
    return true;
}

int mc_thread_start(pthread_t *t, void *(*fn)(void *), void *arg, const char *name)
{
    static const int own[] = {SIGBUS, SIGSEGV, SIGILL, SIGFPE, SIGABRT}; /* its own faults */
    pthread_attr_t attr;
    sigset_t all, old;
    int rc = pthread_attr_init(&attr);

    if (rc != 0)
        return MC_K_ENOMEM;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&all, own[i]);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(t, &attr, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    if (rc != 0)
        return MC_K_ENOMEM;
    pthread_setname_np(*t, name);
    return 0;
}

/* Wakes up to n helpers. The waker takes them off the count, not they themselves: until
 * they run, which may be long, further jobs need no system call. */
static void wake_helpers(struct mc_par *par, int n)
{
    if (atomic_load(&par->sleepers) != 0)
        atomic_fetch_sub(&par->sleepers, mc_futex_wake(&par->gen, n));
}

static void take_chunks(struct mc_par *par, int lane)
{
    for (;;) {
        int64_t i0 = atomic_fetch_add_explicit(&par->next, par->grain,
                                               memory_order_relaxed);
        int64_t i1 = i0 + par->grain;

        if (i0 >= par->n_items)
            return;
        par->fn(par->ctx, i0, i1 < par->n_items ? i1 : par->n_items, lane);
    }
}

/* Returns the generation of an open job other than `last`, or 0 to quit. */
static unsigned wait_job(struct mc_par *par, unsigned last)
{
    struct mc_spin spin = {0};

    for (;;) {
        unsigned g = atomic_load(&par->gen);

        if (atomic_load_explicit(&par->quit, memory_order_relaxed))
            return 0;
        if (g % 2 == 1 && g != last)
            return g;
        if (mc_spin(&spin))
            continue;
        atomic_fetch_add(&par->sleepers, 1);
        if (!mc_futex_wait(&par->gen, g))
            atomic_fetch_sub(&par->sleepers, 1); /* else whoever woke us did */
        spin.n = 0;
    }
}

struct helper_arg {
    struct mc_par *par;
    int lane;
};

static void *helper_main(void *varg)
{
    struct helper_arg arg = *(struct helper_arg *)varg;
    struct mc_par *par = arg.par;
    unsigned last = 0, g;

    free(varg);
    while (wait_job(par, last) != 0) {
        atomic_fetch_add(&par->active, 1);
        g = atomic_load(&par->gen);
        if (g % 2 == 1) {
            take_chunks(par, arg.lane);
            last = g;
        }
        if (atomic_fetch_sub(&par->active, 1) == 1 && atomic_load(&par->leader_blocks))
            mc_futex_wake(&par->active, 1);
    }
    return NULL;
}

static void wait_left(struct mc_par *par)
{
    struct mc_spin spin = {0};
    unsigned n;

    while (atomic_load(&par->active) != 0 && mc_spin(&spin))
        ;
    if (atomic_load(&par->active) == 0)
        return;
    atomic_store(&par->leader_blocks, 1);
    for (;;) {
        n = atomic_load(&par->active);
        if (n == 0)
            break;
        mc_futex_wait(&par->active, n);
    }
    atomic_store(&par->leader_blocks, 0);
}

void mc_par_for(struct mc_par *par, int64_t n, int64_t grain, mc_par_fn fn, void *ctx)
{
    int64_t n_chunk;

    if (n <= 0)
        return;
    if (grain < 1)
        grain = 1;
    n_chunk = (n + grain - 1) / grain;
    if (par->n == 1 || n_chunk == 1) {
        fn(ctx, 0, n, 0);
        return;
    }
    par->fn = fn;
    par->ctx = ctx;
    par->n_items = n;
    par->grain = grain;
    atomic_store_explicit(&par->next, 0, memory_order_relaxed);
    atomic_fetch_add(&par->gen, 1);
    wake_helpers(par, n_chunk < par->n ? (int)n_chunk - 1 : par->n - 1);
    take_chunks(par, 0);
    atomic_fetch_add(&par->gen, 1);
    wait_left(par);
}

int mc_par_threads(const struct mc_par *par)
{
    return par->n;
}

int mc_par_start(struct mc_par *par, int threads)
{
    int i, rc;

    par->n = threads;
    par->helper = calloc((size_t)threads, sizeof par->helper[0]);
    if (!par->helper)
        return MC_K_ENOMEM;
    for (i = 1; i < threads; i++) {
        struct helper_arg *arg = malloc(sizeof *arg);

        if (!arg)
            return MC_K_ENOMEM;
        *arg = (struct helper_arg){par, i};
        rc = mc_thread_start(&par->helper[i - 1], helper_main, arg, "mc-helper");
        if (rc < 0) {
            free(arg);
            return rc;
        }
        par->n_made++;
    }
    return 0;
}

void mc_par_stop(struct mc_par *par)
{
    int i;

    atomic_store(&par->quit, true);
    atomic_fetch_add(&par->gen, 2); /* whoever is about to sleep sees a change */
    mc_futex_wake(&par->gen, MC_MAX_THREADS);
    for (i = 0; i < par->n_made; i++)
        pthread_join(par->helper[i], NULL);
    free(par->helper);
    par->helper = NULL;
}
