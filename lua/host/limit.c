/* limit.c - the timers and the signal behind limit.h.
 *
 * Owns one struct mc_limit a thread that ever armed one (freed by a pthread key) and, for
 * the process, the signal MC_LIMIT_SIGNAL and the list of loaded objects' text as it was at
 * the first use: our Lua code calls nothing in an object loaded later.
 * THREAD: any, each on its own; the handler runs on the armed thread.
 *
 * Always true: `armed` is this thread's limit between arm and disarm, else NULL; the
 * handler only reads what was written before arming. */
#define _GNU_SOURCE
#include "lua/host/limit.h"

#include <assert.h>
#include <errno.h>
#include <lua.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef MC_LIMIT_BY_HOOK
#include <link.h>
#include <sys/ucontext.h>
#endif

enum { RETRY_NS = 100000 };

struct mc_limit {
    sigjmp_buf env;
#ifndef MC_LIMIT_BY_HOOK
    timer_t cpu, retry; /* thread CPU time; monotonic */
    bool retrying;
    int64_t deadline; /* ns of thread CPU time */
#else
    pthread_mutex_t lock; /* deadline, L, hooked; taken alone */
    int64_t deadline;     /* ns of monotonic time, 0 = not armed */
    lua_State *L;
    bool hooked;
    struct mc_limit *next; /* under list_lock */
#endif
};

static __thread struct mc_limit *mine;
static __thread struct mc_limit *volatile armed;
static __thread volatile sig_atomic_t held;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static struct mc_err once_err;

static int64_t now_ns(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

#ifndef MC_LIMIT_BY_HOOK

enum { N_RANGE = 512 };
#define MC_LIMIT_SIGNAL (SIGRTMIN + 3)

struct range {
    uintptr_t lo, hi;
    bool lua;
};
static struct range ranges[N_RANGE]; /* executable segments of the loaded objects */
static int n_range;

static int add_object(struct dl_phdr_info *o, size_t size, void *arg)
{
    uintptr_t lua = (uintptr_t)lua_pcall;
    int first = n_range;
    bool has_lua = false;

    (void)size, (void)arg;
    for (int i = 0; i < o->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &o->dlpi_phdr[i];
        uintptr_t lo = o->dlpi_addr + p->p_vaddr;

        if (p->p_type != PT_LOAD || !(p->p_flags & PF_X))
            continue;
        if (n_range == N_RANGE)
            return 1;
        ranges[n_range++] = (struct range){lo, lo + p->p_memsz, false};
        has_lua |= lua >= lo && lua < lo + p->p_memsz;
    }
    for (int i = first; i < n_range; i++)
        ranges[i].lua = has_lua;
    return 0;
}

static bool may_leave(uintptr_t pc)
{
    for (int i = 0; i < n_range; i++)
        if (pc >= ranges[i].lo && pc < ranges[i].hi)
            return ranges[i].lua;
    return true;
}

static uintptr_t pc_of(const void *context)
{
    const ucontext_t *u = context;

#if defined(__x86_64__)
    return (uintptr_t)u->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (uintptr_t)u->uc_mcontext.pc;
#else
#error "limit.c: where does this machine keep the program counter?"
#endif
}

static void set_timer(timer_t t, int64_t ns)
{
    struct itimerspec it = {.it_value = {ns / 1000000000, ns % 1000000000}};

    timer_settime(t, 0, &it, NULL);
}

static void on_signal(int sig, siginfo_t *info, void *context)
{
    struct mc_limit *l = armed;
    int saved = errno;
    int64_t left;

    (void)sig, (void)info;
    if (!l)
        return;
    left = l->deadline - now_ns(CLOCK_THREAD_CPUTIME_ID);
    if (left <= 0 && !held && may_leave(pc_of(context))) {
        armed = NULL;
        siglongjmp(l->env, MC_LIMIT_TIME);
    }
    l->retrying = true;
    set_timer(l->retry, left > RETRY_NS ? left : RETRY_NS);
    errno = saved;
}

static void free_limit(void *arg)
{
    struct mc_limit *l = arg;

    timer_delete(l->cpu);
    timer_delete(l->retry);
    mine = NULL;
    free(l);
}

static void init_once(void)
{
    /* SA_NODEFER: the jump leaves the signal mask as it was, with no call to restore it. */
    struct sigaction sa = {.sa_sigaction = on_signal,
                           .sa_flags = SA_SIGINFO | SA_RESTART | SA_NODEFER};
    uintptr_t self = (uintptr_t)mc_limit_get;
    int n_lua = 0;

    dl_iterate_phdr(add_object, NULL);
    for (int i = 0; i < n_range; i++) {
        n_lua += ranges[i].lua;
        if (ranges[i].lua && self >= ranges[i].lo && self < ranges[i].hi)
            n_lua = -N_RANGE;
    }
    if (n_range == N_RANGE)
        mc_fail(&once_err, MC_ELIMIT, "more than %d loaded objects", N_RANGE);
    else if (n_lua < 1)
        mc_fail(&once_err, MC_EUNSUP, "libluajit must be a shared library of its own");
    else if (sigaction(MC_LIMIT_SIGNAL, &sa, NULL) ||
             pthread_key_create(&key, free_limit))
        mc_fail(&once_err, MC_EINTERNAL, "no signal or thread key for the script timer");
}

static int open_limit(struct mc_limit *l, struct mc_err *err)
{
    struct sigevent ev = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = MC_LIMIT_SIGNAL};
    sigset_t own;

    /* The program's threads start with every signal blocked. */
    sigemptyset(&own);
    sigaddset(&own, MC_LIMIT_SIGNAL);
    pthread_sigmask(SIG_UNBLOCK, &own, NULL);
    ev._sigev_un._tid = gettid();
    if (timer_create(CLOCK_THREAD_CPUTIME_ID, &ev, &l->cpu))
        return mc_fail(err, MC_EINTERNAL, "timer_create: %s", strerror(errno));
    if (timer_create(CLOCK_MONOTONIC, &ev, &l->retry)) {
        timer_delete(l->cpu);
        return mc_fail(err, MC_EINTERNAL, "timer_create: %s", strerror(errno));
    }
    return 0;
}

void mc_limit_arm(struct mc_limit *l, lua_State *L, int64_t us)
{
    (void)L;
    assert(!armed && us > 0);
    l->deadline = now_ns(CLOCK_THREAD_CPUTIME_ID) + us * 1000;
    l->retrying = false;
    held = 0;
    atomic_signal_fence(memory_order_seq_cst);
    armed = l;
    atomic_signal_fence(memory_order_seq_cst);
    set_timer(l->cpu, us * 1000);
}

void mc_limit_disarm(struct mc_limit *l)
{
    atomic_signal_fence(memory_order_seq_cst);
    armed = NULL;
    atomic_signal_fence(memory_order_seq_cst);
    set_timer(l->cpu, 0);
    if (l->retrying)
        set_timer(l->retry, 0);
}

#else /* MC_LIMIT_BY_HOOK */

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER; /* then a limit's lock */
static struct mc_limit *list;

static void on_hook(lua_State *L, lua_Debug *ar)
{
    (void)L, (void)ar;
    mc_limit_leave(MC_LIMIT_TIME);
}

static void *watch(void *arg)
{
    (void)arg;
    for (;;) {
        struct timespec nap = {.tv_nsec = 2000000};

        nanosleep(&nap, NULL);
        pthread_mutex_lock(&list_lock);
        for (struct mc_limit *l = list; l; l = l->next) {
            pthread_mutex_lock(&l->lock);
            if (l->deadline && !l->hooked && now_ns(CLOCK_MONOTONIC) > l->deadline) {
                l->hooked = true;
                lua_sethook(l->L, on_hook, LUA_MASKCOUNT | LUA_MASKCALL | LUA_MASKLINE,
                            1);
            }
            pthread_mutex_unlock(&l->lock);
        }
        pthread_mutex_unlock(&list_lock);
    }
    return NULL;
}

static void free_limit(void *arg)
{
    struct mc_limit *l = arg, **p = &list;

    pthread_mutex_lock(&list_lock);
    while (*p != l)
        p = &(*p)->next;
    *p = l->next;
    pthread_mutex_unlock(&list_lock);
    pthread_mutex_destroy(&l->lock);
    mine = NULL;
    free(l);
}

static void init_once(void)
{
    pthread_t t;

    if (pthread_key_create(&key, free_limit) || pthread_create(&t, NULL, watch, NULL))
        mc_fail(&once_err, MC_EINTERNAL, "no thread for the script timer");
    else
        pthread_detach(t);
}

static int open_limit(struct mc_limit *l, struct mc_err *err)
{
    (void)err;
    pthread_mutex_init(&l->lock, NULL);
    pthread_mutex_lock(&list_lock);
    l->next = list;
    list = l;
    pthread_mutex_unlock(&list_lock);
    return 0;
}

void mc_limit_arm(struct mc_limit *l, lua_State *L, int64_t us)
{
    assert(!armed && us > 0);
    held = 0;
    armed = l;
    pthread_mutex_lock(&l->lock);
    l->L = L;
    l->hooked = false;
    l->deadline = now_ns(CLOCK_MONOTONIC) + us * 1000;
    pthread_mutex_unlock(&l->lock);
}

/* After a jump L is not touched any more: its VM is broken. */
void mc_limit_disarm(struct mc_limit *l)
{
    bool whole = armed != NULL;

    armed = NULL;
    pthread_mutex_lock(&l->lock);
    l->deadline = 0;
    if (l->hooked && whole)
        lua_sethook(l->L, NULL, 0, 0);
    pthread_mutex_unlock(&l->lock);
}

#endif

struct mc_limit *mc_limit_get(struct mc_err *err)
{
    struct mc_limit *l = mine;

    if (l)
        return l;
    pthread_once(&once, init_once);
    if (once_err.code) {
        if (err)
            *err = once_err;
        return NULL;
    }
    l = calloc(1, sizeof *l);
    if (!l) {
        mc_fail(err, MC_ENOMEM, "no memory for a script timer");
        return NULL;
    }
    if (open_limit(l, err) < 0) {
        free(l);
        return NULL;
    }
    pthread_setspecific(key, l);
    mine = l;
    return l;
}

sigjmp_buf *mc_limit_env(struct mc_limit *l)
{
    return &l->env;
}

void mc_limit_leave(int why)
{
    struct mc_limit *l = armed;

    if (!l || held)
        return;
    armed = NULL;
    siglongjmp(l->env, why);
}

void mc_limit_hold(void)
{
    held = 1;
    atomic_signal_fence(memory_order_seq_cst);
}

void mc_limit_release(void)
{
    atomic_signal_fence(memory_order_seq_cst);
    held = 0;
}
