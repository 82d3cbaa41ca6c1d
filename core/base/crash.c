/* crash.c - see crash.h.
 *
 * OWNS the report's buffer, static: a handler has no memory to ask for; and a stack a thread
 * for the handler, which goes with its thread.
 * THREAD: one thread at a time is in the handler; others that die meanwhile wait for its
 * end. Always true: a fault inside the handler ends the process at once, by that fault.
 */
#define _GNU_SOURCE
#include "core/base/crash.h"

#include <elf.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/ucontext.h>
#include <unistd.h>

enum { N_PART = 8, N_FRAME = 48, REPORT = 16 << 10, ID_MAX = 20,
       STACK = 128 << 10, /* a frame of the kernel's (12 kB with AMX), and backtrace's */
       NEAR = 64 << 10 }; /* of the stack pointer: a fault there is the stack's end */

static const int fatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

static struct {
    void (*tell)(void *ctx);
    void *ctx;
} part[N_PART];
static char report[REPORT];
static size_t n_report;
static char path[512];
static char build[2 * ID_MAX + 1];
static const char *program;
static atomic_int busy;
static _Thread_local bool mine;

/* ---- words ------------------------------------------------------------------------- */

void mc_crash_put(const char *text)
{
    while (*text && n_report < REPORT)
        report[n_report++] = *text++;
}

static void digits(uint64_t n, unsigned base)
{
    char s[24], *p = s + sizeof s - 1;

    *p = 0;
    do {
        *--p = "0123456789abcdef"[n % base];
        n /= base;
    } while (n);
    mc_crash_put(p);
}

void mc_crash_number(const char *text, uint64_t n)
{
    mc_crash_put(text);
    digits(n, 10);
}

/* ---- who we are -------------------------------------------------------------------- */

static int find_note(struct dl_phdr_info *info, size_t size, void *ctx)
{
    (void)size, (void)ctx;
    for (int i = 0; i < info->dlpi_phnum && !*build; i++) {
        const ElfW(Phdr) *ph = &info->dlpi_phdr[i];
        const char *at = (const char *)(info->dlpi_addr + ph->p_vaddr), *end;

        if (ph->p_type != PT_NOTE)
            continue;
        end = at + ph->p_memsz;
        while (at + sizeof(ElfW(Nhdr)) < end && !*build) {
            const ElfW(Nhdr) *n = (const void *)at;
            const char *name = at + sizeof *n, *desc = name + ((n->n_namesz + 3) & ~3u);

            if (n->n_type == NT_GNU_BUILD_ID && n->n_namesz == 4 &&
                memcmp(name, "GNU", 4) == 0)
                for (uint32_t k = 0; k < n->n_descsz && k < ID_MAX; k++)
                    snprintf(build + 2 * k, 3, "%02x", (unsigned char)desc[k]);
            at = desc + ((n->n_descsz + 3) & ~3u);
        }
    }
    return 1; /* the program itself comes first */
}

const char *mc_build_id(void)
{
    if (!*build)
        dl_iterate_phdr(find_note, NULL);
    return *build ? build : "unknown";
}

static void choose_path(void)
{
    const char *service = getenv("STATE_DIRECTORY"), *state = getenv("XDG_STATE_HOME");
    const char *home = getenv("HOME");
    char dir[480];

    if (service && *service)
        snprintf(dir, sizeof dir, "%s", service);
    else if (state && *state)
        snprintf(dir, sizeof dir, "%s/mascon", state);
    else if (home && *home)
        snprintf(dir, sizeof dir, "%s/.local/state/mascon", home);
    else
        return;
    snprintf(path, sizeof path, "%s/crash-%d", dir, (int)getpid());
}

/* ---- the handler ------------------------------------------------------------------- */

static const char *name_of(int sig)
{
    return sig == SIGSEGV  ? "SIGSEGV"
           : sig == SIGBUS ? "SIGBUS"
           : sig == SIGILL ? "SIGILL"
           : sig == SIGFPE ? "SIGFPE"
                           : "SIGABRT";
}

/* A fault beside the stack pointer: memory there is missing for one reason only. */
static bool stack_is_full(int sig, const siginfo_t *info, const ucontext_t *u)
{
    uintptr_t at = (uintptr_t)info->si_addr, sp;

#if defined(__x86_64__)
    sp = (uintptr_t)u->uc_mcontext.gregs[REG_RSP];
#elif defined(__aarch64__)
    sp = (uintptr_t)u->uc_mcontext.sp;
#else
#error "crash.c: where does this machine keep the stack pointer?"
#endif
    return (sig == SIGSEGV || sig == SIGBUS) && info->si_code > 0 && at + NEAR > sp &&
           at < sp + NEAR;
}

static void compose(int sig, const siginfo_t *info, const void *context)
{
    char thread[20] = "";

    prctl(PR_GET_NAME, thread, 0, 0, 0);
    mc_crash_put("mascon ");
    mc_crash_put(program);
    mc_crash_put(" crashed\nbuild       ");
    mc_crash_put(build);
    mc_crash_put("\nsignal      ");
    mc_crash_put(name_of(sig));
    if (info->si_code <= 0) {
        mc_crash_number(" sent by pid ", (uint64_t)info->si_pid);
    } else {
        mc_crash_put(" at 0x");
        digits((uint64_t)(uintptr_t)info->si_addr, 16);
        if (stack_is_full(sig, info, context))
            mc_crash_put(": the stack is full");
    }
    mc_crash_number("\nprocess     ", (uint64_t)getpid());
    mc_crash_put("\nthread      ");
    mc_crash_put(thread);
    mc_crash_put("\n");
    for (int i = 0; i < N_PART; i++)
        if (part[i].tell)
            part[i].tell(part[i].ctx);
    mc_crash_put("frames\n");
}

static void write_all(int fd, void *const *frame, int n)
{
    size_t at = 0;
    ssize_t put = 1;

    for (; at < n_report && put > 0; at += put > 0 ? (size_t)put : 0)
        put = write(fd, report + at, n_report - at);
    backtrace_symbols_fd(frame, n, fd);
}

static void make_dirs(void)
{
    for (char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = 0;
        mkdir(path, 0700);
        *p = '/';
    }
}

static void on_fatal(int sig, siginfo_t *info, void *context)
{
    void *frame[N_FRAME];
    int n, fd;

    if (mine) { /* the report itself failed */
        signal(sig, SIG_DFL);
        raise(sig);
        return;
    }
    if (atomic_exchange(&busy, 1))
        for (;;)
            pause(); /* another thread's report ends the process */
    mine = true;
    compose(sig, info, context);
    n = backtrace(frame, N_FRAME);
    write_all(STDERR_FILENO, frame, n);
    make_dirs();
    fd = *path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600)
               : -1;
    if (fd >= 0)
        write_all(fd, frame, n);
    signal(sig, SIG_DFL);
    raise(sig);
}

/* ---- stacks ------------------------------------------------------------------------ */

#ifndef MC_SANITIZE

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;

static void free_stack(void *at)
{
    const stack_t none = {.ss_flags = SS_DISABLE};

    sigaltstack(&none, NULL);
    munmap(at, STACK);
}

static void make_key(void)
{
    pthread_key_create(&key, free_stack);
}

void mc_crash_stack(void)
{
    static _Thread_local bool has;
    stack_t stack = {.ss_size = STACK};

    if (has)
        return;
    has = true;
    pthread_once(&once, make_key);
    stack.ss_sp = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                       -1, 0);
    if (stack.ss_sp == MAP_FAILED)
        return;
    if (sigaltstack(&stack, NULL) < 0 || pthread_setspecific(key, stack.ss_sp) != 0)
        free_stack(stack.ss_sp);
}

#else

void mc_crash_stack(void)
{
}

#endif

/* ---- start-up ---------------------------------------------------------------------- */

void mc_crash_install(const char *version)
{
    struct sigaction sa = {.sa_sigaction = on_fatal,
                           .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    void *frame[1];

    program = version;
    mc_build_id();
    choose_path();
#ifndef MC_SANITIZE
    backtrace(frame, 1); /* loads what it needs, now */
    mc_crash_stack();
    sigemptyset(&sa.sa_mask);
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        sigaction(fatal[i], &sa, NULL);
#else
    (void)sa, (void)frame, (void)fatal, (void)on_fatal;
#endif
}

void mc_crash_part(void (*tell)(void *ctx), void *ctx)
{
    for (int i = 0; i < N_PART; i++)
        if (!part[i].tell) {
            part[i].ctx = ctx;
            part[i].tell = tell;
            return;
        }
}

void mc_crash_drop(void *ctx)
{
    for (int i = 0; i < N_PART; i++)
        if (part[i].ctx == ctx)
            part[i].tell = NULL;
}
