/* bare.c - running the CUDA tests on a bare machine: memory, the runner, and what stands
 * in for parts that are not linked (the CPU backend, tokenizers).
 *
 * Memory: one block of pinned memory, cut into sizes that are powers of two; freed ones
 * wait in a list of their size. Device code may follow any address that a test hands out,
 * since its heap and its stack lie there. With the emulator linked in, kernels that touch
 * other memory fail: what passes here reaches only what a card reaches. OWNS: that block.
 * THREAD: bare_run's and the test's; memory: any. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/model/tokenizer.h"
#include "kernels/kernels.h"
#include "tests/gpu/bare/cmocka.h"

#undef malloc
#undef calloc
#undef realloc
#undef aligned_alloc
#undef free

enum { HEAD = 64, CLASSES = 31, STACK = 16 << 20, PAGE = 4096 };
static const size_t ARENA = (size_t)512 << 20;

/* ---- memory ------------------------------------------------------------------------ */

struct block {
    struct block *next; /* of the free ones */
    int size;           /* log2, head included */
};

static struct {
    pthread_mutex_t lock;
    char *base;
    size_t used;
    struct block *spare[CLASSES];
} arena = {.lock = PTHREAD_MUTEX_INITIALIZER};

void *bare_malloc(size_t n)
{
    struct block *b;
    int size = 7;

    while (((size_t)1 << size) < n + HEAD)
        size++;
    pthread_mutex_lock(&arena.lock);
    b = size < CLASSES ? arena.spare[size] : NULL;
    if (b) {
        arena.spare[size] = b->next;
    } else if (size < CLASSES && ((size_t)1 << size) <= ARENA - arena.used) {
        b = (struct block *)(void *)(arena.base + arena.used);
        b->size = size;
        arena.used += (size_t)1 << size;
    }
    pthread_mutex_unlock(&arena.lock);
    if (!b) {
        fprintf(stderr, "no pinned memory for %zu bytes\n", n);
        exit(1);
    }
    return (char *)b + HEAD;
}

void bare_free(void *p)
{
    struct block *b = (struct block *)(void *)((char *)p - HEAD);

    if (!p)
        return;
    pthread_mutex_lock(&arena.lock);
    b->next = arena.spare[b->size];
    arena.spare[b->size] = b;
    pthread_mutex_unlock(&arena.lock);
}

void *bare_calloc(size_t n, size_t each)
{
    return memset(bare_malloc(n * each), 0, n * each);
}

void *bare_realloc(void *p, size_t n)
{
    void *q = bare_malloc(n);
    size_t had = p ? ((size_t)1 << ((struct block *)(void *)((char *)p - HEAD))->size) -
                         HEAD
                   : 0;

    if (p)
        memcpy(q, p, had < n ? had : n);
    bare_free(p);
    return q;
}

void *bare_aligned_alloc(size_t align, size_t n)
{
    (void)align; /* up to 64, as every block is */
    return bare_malloc(n);
}

/* ---- runner ------------------------------------------------------------------------ */

static const char *only = "";
static jmp_buf failed;

void bare_filter(const char *pattern)
{
    only = pattern;
}

void bare_fail(const char *file, int line, const char *fmt, ...)
{
    va_list ap;

    printf("  %s:%d: ", file, line);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    longjmp(failed, 1);
}

struct group {
    const struct CMUnitTest *test;
    int n, passed, failed;
};

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *run_all(void *arg)
{
    struct group *volatile g = arg;
    volatile int i;

    for (i = 0; i < g->n; i++) {
        const struct CMUnitTest *t = &g->test[i];
        volatile double t0 = seconds();
        void *state = NULL;

        if (strncmp(t->name, only, strcspn(only, "*")) != 0)
            continue;
        if (setjmp(failed) == 0) {
            t->run(&state);
            g->passed++;
            printf("ok      %-56s %6.2f s\n", t->name, seconds() - t0);
        } else {
            g->failed++;
            printf("FAILED  %s\n", t->name);
        }
        fflush(stdout);
    }
    return NULL;
}

/* In the program with the emulator only. */
__attribute__((weak)) bool emu_reaches(const void *p, uint32_t bytes);
__attribute__((weak)) void emu_strict(bool (*reaches)(const void *p, uint32_t bytes));

int bare_run(const char *name, const struct CMUnitTest *tests, int n)
{
    struct mc_backend_opts o = {.ref_act = -1};
    struct group g = {.test = tests, .n = n};
    const char *why = "";
    struct mc_backend *b = mc_cuda_open(&o, &why);
    pthread_attr_t attr;
    pthread_t thread;
    char *stack;

    if (!b) {
        printf("%s: %s\n", name, why);
        return 1;
    }
    printf("%s on %s\n", name, b->what);
    if (emu_strict)
        emu_strict(emu_reaches);
    arena.base = b->host_alloc(b, ARENA);
    stack = b->host_alloc(b, STACK + PAGE);
    if (!arena.base || !stack) {
        printf("%s: no pinned memory\n", name);
        return 1;
    }
    stack += PAGE - (uintptr_t)stack % PAGE;
    pthread_attr_init(&attr);
    if (pthread_attr_setstack(&attr, stack, STACK) != 0 ||
        pthread_create(&thread, &attr, run_all, &g) != 0) {
        printf("%s: no thread with a pinned stack\n", name);
        return 1;
    }
    pthread_join(thread, NULL);
    printf("%d passed, %d failed, 0 skipped\n", g.passed, g.failed);
    return g.failed != 0; /* what is pinned lives as long as the process */
}

/* ---- what is not linked ------------------------------------------------------------ */

struct mc_backend *mc_cpu_open(const struct mc_backend_opts *o, const char **why)
{
    (void)o;
    *why = "not in this program";
    return NULL;
}

/* Golden files are ids: no text is read. */
int mc_tok_open(const struct mc_ckpt *c, struct mc_tok **out, struct mc_err *err)
{
    (void)c;
    (void)err;
    *out = NULL;
    return 0;
}

void mc_tok_close(struct mc_tok *t)
{
    (void)t;
}

int32_t mc_tok_n(const struct mc_tok *t)
{
    (void)t;
    return INT32_MAX;
}

const char *mc_tok_piece(const struct mc_tok *t, int32_t id, size_t *n, bool *special)
{
    (void)t;
    (void)id;
    (void)n;
    (void)special;
    return NULL;
}
