/* sched.c - blocks, their fibers, and where they meet; see emu.h.
 *
 * A ring holds the threads that can run. A thread that has to wait switches straight to
 * the next one; when the ring is empty the launch's own stack continues, and finds that
 * all are done or that some wait for what will never come. Compiled without TSan: fibers
 * share all of this, and the only order that TSan shall know of is made here by hand.
 * OWNS: an OS thread's fibers and shared memory. THREAD: each its own. */
#define _GNU_SOURCE
#include "kernels/emu/emu.h"

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(p, n) __asan_poison_memory_region(p, n)
#define UNPOISON(p, n) __asan_unpoison_memory_region(p, n)
#else
#define POISON(p, n) ((void)0)
#define UNPOISON(p, n) ((void)0)
#endif
#if defined(EMU_TSAN)
void __tsan_acquire(void *p);
void __tsan_release(void *p);
#else
#define __tsan_acquire(p) ((void)0)
#define __tsan_release(p) ((void)0)
#endif

enum { MAX_RUN = EMU_THREADS * EMU_CLUSTER, MAX_YIELDS = 1 << 24 };

struct emu {
    struct fiber home;
    struct emu_thread *thread[MAX_RUN]; /* made as needed, kept */
    uint32_t n_made;
    struct emu_block block[EMU_CLUSTER];
    struct emu_thread *list[MAX_RUN]; /* the cluster's, block by block */
    unsigned char *mem[EMU_CLUSTER];  /* red zone, shared memory, red zone */
    void *cell[EMU_CLUSTER];
    size_t cell_bytes[EMU_CLUSTER];
    uint32_t n_block, n_live;
    struct emu_thread *ring[MAX_RUN];
    uint32_t head, n_ring, rng;
    uint32_t n_cluster_wait;
    struct emu_place cluster_at;
    uint64_t yields, awaits;
    const struct emu_launch *launch;
    bool failed;
    char why[1000];
};

__thread struct emu_thread *emu_me;
static __thread struct emu *emu;
static pthread_key_t at_end;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- orders ------------------------------------------------------------------------ */

static uint32_t rnd(struct emu *e)
{
    e->rng ^= e->rng << 13;
    e->rng ^= e->rng >> 17;
    e->rng ^= e->rng << 5;
    return e->rng;
}

static void ready(struct emu *e, struct emu_thread *t)
{
    t->at.op = NULL;
    e->ring[(e->head + e->n_ring++) % MAX_RUN] = t;
}

/* All of the list, from a random one on, forwards or backwards. */
static void ready_all(struct emu *e, struct emu_thread **t, uint32_t n,
                      const struct emu_thread *but)
{
    uint32_t first = rnd(e) % n, step = rnd(e) & 1 ? 1 : n - 1, i;

    for (i = 0; i < n; i++, first = (first + step) % n)
        if (t[first] != but)
            ready(e, t[first]);
}

static void leave(struct emu *e, struct emu_thread *me)
{
    struct emu_thread *next = NULL;

    if (e->n_ring > 0) {
        next = e->ring[e->head];
        e->head = (e->head + 1) % MAX_RUN;
        e->n_ring--;
    }
    emu_me = next;
    __tsan_release(&e->home); /* the launch's own thread sees what all did */
    fiber_switch(&me->fiber, next ? &next->fiber : &e->home);
    emu_me = me;
}

void emu_yield(void)
{
    struct emu *e = emu;

    if (++e->yields > MAX_YIELDS)
        emu_fault("a spin that does not end in %s", e->launch->name);
    if (e->n_ring == 0) {
        sched_yield();
        return;
    }
    ready(e, emu_me);
    leave(e, emu_me);
}

/* Once all of a block's threads have asked in vain for a while the processor is the other
 * rank's. */
void emu_await(void)
{
    struct emu *e = emu;

    if (++e->awaits % (64ull * e->n_live) == 0)
        usleep(20);
    else if (e->awaits % e->n_live == 0)
        sched_yield();
    if (e->n_ring == 0)
        return;
    ready(e, emu_me);
    leave(e, emu_me);
}

uint32_t emu_rnd(void)
{
    return rnd(emu);
}

/* ---- faults ------------------------------------------------------------------------ */

void emu_fault(const char *fmt, ...)
{
    struct emu *e = emu;
    struct emu_thread *me = emu_me;
    va_list ap;
    int n = 0;

    if (me)
        n = snprintf(e->why, sizeof e->why,
                     "%s: block %u,%u,%u thread %u: ", e->launch->name, me->block->idx.x,
                     me->block->idx.y, me->block->idx.z, me->id);
    va_start(ap, fmt);
    vsnprintf(e->why + n, sizeof e->why - (size_t)n, fmt, ap);
    va_end(ap);
    e->failed = true;
    emu_me = NULL;
    __tsan_release(&e->home);
    fiber_switch(&me->fiber, &e->home);
    abort();
}

/* Appends who waits where: runs of threads at one place are one piece. */
static void say_waiting(struct emu *e, const struct emu_block *b)
{
    size_t n = strlen(e->why);
    uint32_t i, j;

    for (i = 0; i < b->n_threads && n < sizeof e->why - 120; i = j) {
        const struct emu_thread *t = b->thread[i];

        for (j = i + 1; j < b->n_threads; j++) {
            const struct emu_thread *u = b->thread[j];

            if (u->done != t->done || u->at.op != t->at.op || u->at.line != t->at.line)
                break;
        }
        n += (size_t)snprintf(e->why + n, sizeof e->why - n, "; threads %u-%u ", i,
                              j - 1);
        if (t->done)
            n += (size_t)snprintf(e->why + n, sizeof e->why - n, "ended");
        else
            n += (size_t)snprintf(e->why + n, sizeof e->why - n, "at %s (%s:%d)",
                                  t->at.op, t->at.file, t->at.line);
    }
}

static void deadlock(struct emu *e)
{
    uint32_t i;

    e->failed = true;
    snprintf(e->why, sizeof e->why, "%s: threads wait for others that never come",
             e->launch->name);
    for (i = 0; i < e->n_block; i++)
        if (e->block[i].n_done < e->block[i].n_threads) {
            say_waiting(e, &e->block[i]);
            break;
        }
}

static bool same(const struct emu_place *a, const struct emu_place *b)
{
    return strcmp(a->op, b->op) == 0 && a->line == b->line &&
           strcmp(a->file, b->file) == 0;
}

/* ---- meeting ----------------------------------------------------------------------- */

void emu_barrier(const char *file, int line)
{
    struct emu *e = emu;
    struct emu_thread *me = emu_me;
    struct emu_block *b = me->block;

    me->at = (struct emu_place){"__syncthreads", file, line};
    if (b->n_wait == 0)
        b->at = me->at;
    else if (!same(&b->at, &me->at))
        emu_fault("a divergent barrier: at __syncthreads (%s:%d), others at (%s:%d)",
                  file, line, b->at.file, b->at.line);
    __tsan_release(b);
    if (++b->n_wait < b->n_threads) {
        leave(e, me);
    } else {
        b->n_wait = 0;
        b->epoch++;
        me->at.op = NULL;
        ready_all(e, b->thread, b->n_threads, me);
    }
    __tsan_acquire(b);
}

void emu_cluster_barrier(const char *file, int line)
{
    struct emu *e = emu;
    struct emu_thread *me = emu_me;
    uint32_t i, n = e->n_block * me->block->n_threads;

    me->at = (struct emu_place){"cluster_sync", file, line};
    if (e->n_cluster_wait == 0)
        e->cluster_at = me->at;
    else if (!same(&e->cluster_at, &me->at))
        emu_fault("a divergent cluster barrier: at (%s:%d), others at (%s:%d)", file,
                  line, e->cluster_at.file, e->cluster_at.line);
    __tsan_release(e);
    if (++e->n_cluster_wait < n) {
        leave(e, me);
    } else {
        e->n_cluster_wait = 0;
        for (i = 0; i < e->n_block; i++)
            e->block[i].epoch++;
        me->at.op = NULL;
        ready_all(e, e->list, n, me);
    }
    __tsan_acquire(e);
}

struct emu_block *emu_cluster_block(uint32_t rank)
{
    if (rank >= emu->n_block)
        emu_fault("block %u of a cluster of %u", rank, emu->n_block);
    return &emu->block[rank];
}

uint32_t emu_cluster_size(void)
{
    return emu->n_block;
}

void emu_meet(uint32_t mask, const char *op, const char *file, int line, void *arg,
              void (*fn)(void **arg, uint32_t mask), bool sync)
{
    struct emu *e = emu;
    struct emu_thread *me = emu_me, *all[32];
    struct emu_warp *w = &me->block->warp[me->warp];
    uint32_t i, n = 0, first = me->id - me->lane;

    me->at = (struct emu_place){op, file, line};
    if (!(mask >> me->lane & 1))
        emu_fault("%s (%s:%d) by lane %u, which its mask %08x has not", op, file, line,
                  me->lane, mask);
    if (w->arrived == 0) {
        w->mask = mask;
        w->at = me->at;
    } else if (w->mask != mask || !same(&w->at, &me->at)) {
        emu_fault(
            "a warp diverges: lane %u at %s (%s:%d) mask %08x, others at %s (%s:%d) "
            "mask %08x",
            me->lane, op, file, line, mask, w->at.op, w->at.file, w->at.line, w->mask);
    }
    w->arg[me->lane] = arg;
    w->arrived |= 1u << me->lane;
    __tsan_release(w);
    if (w->arrived != mask) {
        leave(e, me);
        __tsan_acquire(w);
        return;
    }
    __tsan_acquire(w);
    if (fn)
        fn(w->arg, mask);
    __tsan_release(w);
    w->arrived = 0;
    w->epoch += sync;
    me->at.op = NULL;
    for (i = 0; i < 32; i++)
        if (mask >> i & 1)
            all[n++] = me->block->thread[first + i];
    ready_all(e, all, n, me);
}

/* ---- asynchronous copies ----------------------------------------------------------- */

void emu_copy_async(void *to, const void *from, uint32_t n)
{
    struct emu_thread *me = emu_me;
    struct emu_block *b = me->block;
    size_t off = (size_t)((unsigned char *)to - b->smem);

    if (((uintptr_t)to | (uintptr_t)from) % 16 != 0)
        emu_fault("a misaligned cp.async: to %p from %p", to, from);
    if (n > 16 || off + 16 > b->smem_bytes)
        emu_fault("cp.async of %u bytes to offset %zd of %u bytes of shared memory", n,
                  (ssize_t)off, b->smem_bytes);
    if (me->n_copy == EMU_COPIES)
        emu_fault("more than %d cp.async in flight", EMU_COPIES);
    me->copy[me->n_copy++] = (struct emu_copy){to, from, n, me->group};
    if (n > 0)
        emu_touch(from, 16, false);
    emu_watch_pending(b, to, 16);
    memset(to, 0xff, 16);
    POISON(to, 16);
}

void emu_copy_commit(void)
{
    emu_me->group++;
}

void emu_copy_wait(uint32_t left)
{
    struct emu_thread *me = emu_me;
    uint32_t i, kept = 0;

    for (i = 0; i < me->n_copy; i++) {
        struct emu_copy *c = &me->copy[i];

        if (c->group + left >= me->group) {
            me->copy[kept++] = *c;
            continue;
        }
        UNPOISON(c->to, 16);
        memset(c->to, 0, 16);
        memcpy(c->to, c->from, c->n);
        emu_watch_landed(me->block, c->to, 16);
    }
    me->n_copy = kept;
}

/* ---- blocks ------------------------------------------------------------------------ */

static void thread_main(void *arg)
{
    struct emu_thread *me = arg;

    for (;;) {
        struct emu *e = emu;

        __tsan_acquire(e);
        e->launch->run(e->launch->p);
        if (me->n_copy > 0)
            emu_fault("ends with %u cp.async in flight", me->n_copy);
        me->done = true;
        me->block->n_done++;
        e->n_live--;
        leave(e, me);
    }
}

static bool make_threads(struct emu *e, uint32_t n)
{
    for (; e->n_made < n; e->n_made++) {
        struct emu_thread *t = calloc(1, sizeof *t);

        if (!t || !fiber_new(&t->fiber, thread_main, t))
            return free(t), false;
        e->thread[e->n_made] = t;
    }
    return true;
}

/* Fresh shared memory: bytes of NaNs between red zones. */
static bool make_smem(struct emu *e, struct emu_block *b, uint32_t bytes)
{
    size_t cells = emu_watch_bytes(bytes);

    if (!e->mem[b->rank])
        e->mem[b->rank] = aligned_alloc(128, EMU_SMEM + 2 * EMU_RED + 128);
    if (e->cell_bytes[b->rank] < cells) {
        free(e->cell[b->rank]);
        e->cell[b->rank] = malloc(cells);
        e->cell_bytes[b->rank] = cells;
    }
    if (!e->mem[b->rank] || (cells && !e->cell[b->rank]))
        return false;
    b->smem = e->mem[b->rank] + EMU_RED;
    b->smem_bytes = bytes;
    b->cell = e->cell[b->rank];
    UNPOISON(e->mem[b->rank], EMU_SMEM + 2 * EMU_RED + 128);
    memset(b->smem - EMU_RED, 0xff, bytes + 2 * EMU_RED);
    POISON(b->smem - EMU_RED, EMU_RED);
    POISON(b->smem + bytes, EMU_SMEM + EMU_RED + 128 - bytes);
    return true;
}

static void check_red(struct emu *e, const struct emu_block *b)
{
    uint32_t i;

    UNPOISON(e->mem[b->rank], EMU_SMEM + 2 * EMU_RED + 128);
    for (i = 0; i < EMU_RED && !e->failed; i++)
        if (b->smem[-1 - (int)i] != 0xff || b->smem[b->smem_bytes + i] != 0xff) {
            e->failed = true;
            snprintf(e->why, sizeof e->why,
                     "%s: block %u,%u,%u wrote outside of its %u bytes "
                     "of shared memory",
                     e->launch->name, b->idx.x, b->idx.y, b->idx.z, b->smem_bytes);
        }
}

static void block_begin(struct emu *e, uint32_t rank, struct emu_dim idx)
{
    const struct emu_launch *l = e->launch;
    struct emu_block *b = &e->block[rank];
    uint32_t i;

    memset(b, 0, sizeof *b);
    b->idx = idx;
    b->grid = l->grid;
    b->n_threads = l->threads;
    b->rank = rank;
    b->launch = l;
    b->thread = e->list + rank * l->threads;
    for (i = 0; i < l->threads; i++) {
        struct emu_thread *t = e->thread[rank * l->threads + i];

        t->thread_idx = (struct emu_dim){i, 0, 0};
        t->block = b;
        t->id = i;
        t->lane = i % 32;
        t->warp = i / 32;
        t->done = false;
        t->at.op = NULL;
        t->n_copy = t->group = 0;
        e->list[rank * l->threads + i] = t;
    }
}

static void cluster_run(struct emu *e, struct emu_dim at, uint32_t n)
{
    const struct emu_launch *l = e->launch;
    uint32_t i;

    e->n_block = n;
    e->n_live = n * l->threads;
    e->head = e->n_ring = e->n_cluster_wait = 0;
    e->yields = 0;
    for (i = 0; i < n; i++) {
        block_begin(e, i, (struct emu_dim){at.x + i, at.y, at.z});
        if (!make_smem(e, &e->block[i], l->smem)) {
            e->failed = true;
            snprintf(e->why, sizeof e->why, "no memory");
            return;
        }
        emu_watch_block(&e->block[i]);
    }
    ready_all(e, e->list, e->n_live, NULL);
    emu_me = e->ring[0];
    e->head = 1;
    e->n_ring--;
    __tsan_release(e);
    fiber_switch(&e->home, &emu_me->fiber);
    __tsan_acquire(&e->home);
    emu_me = NULL;
    if (!e->failed && e->n_live > 0)
        deadlock(e);
    for (i = 0; i < n; i++) {
        emu_watch_end(&e->block[i]);
        check_red(e, &e->block[i]);
    }
    if (e->failed) /* whoever did not end begins anew next time */
        for (i = 0; i < n * l->threads; i++)
            if (!e->list[i]->done)
                fiber_reset(&e->list[i]->fiber);
}

/* ---- launches ---------------------------------------------------------------------- */

static void emu_free(void *p)
{
    struct emu *e = p;
    uint32_t i;

    for (i = 0; i < e->n_made; i++) {
        fiber_free(&e->thread[i]->fiber);
        free(e->thread[i]);
    }
    for (i = 0; i < EMU_CLUSTER; i++) {
        if (e->mem[i])
            UNPOISON(e->mem[i], EMU_SMEM + 2 * EMU_RED + 128);
        free(e->mem[i]);
        free(e->cell[i]);
    }
    free(e);
    emu = NULL;
}

static void free_main(void)
{
    if (emu)
        emu_free(emu);
}

static void make_key(void)
{
    pthread_key_create(&at_end, emu_free);
    atexit(free_main); /* the main thread runs no destructors of keys */
}

static struct emu *mine(void)
{
    if (!emu) {
        pthread_once(&once, make_key);
        emu = calloc(1, sizeof *emu);
        if (!emu)
            abort();
        emu->rng = 2463534242u;
        pthread_setspecific(at_end, emu);
    }
    fiber_home(&emu->home);
    return emu;
}

void emu_seed(uint32_t seed)
{
    mine()->rng = seed * 2654435761u | 1;
}

static const char *refuse(const struct emu_launch *l)
{
    uint32_t cluster = l->cluster ? l->cluster : 1;

    if (l->threads < 1 || l->threads > EMU_THREADS)
        return "threads outside 1..1024";
    if (l->smem > EMU_SMEM)
        return "more than 227 KB of shared memory";
    if (l->grid.x < 1 || l->grid.y < 1 || l->grid.z < 1 || l->grid.y > 65535 ||
        l->grid.z > 65535)
        return "an empty grid, or one above 65535 in y or z";
    if (cluster > EMU_CLUSTER || l->grid.x % cluster != 0)
        return "a grid that is no multiple of its cluster";
    return NULL;
}

int emu_launch(const struct emu_launch *l, const char **why)
{
    struct emu *e = mine();
    uint32_t cluster = l->cluster ? l->cluster : 1, nx = l->grid.x / cluster;
    uint64_t n = (uint64_t)nx * l->grid.y * l->grid.z, i, at;
    const char *no = refuse(l);

    *why = e->why;
    e->launch = l;
    e->failed = no != NULL;
    if (no) {
        snprintf(e->why, sizeof e->why, "%s: %s", l->name, no);
        return -1;
    }
    if (!make_threads(e, cluster * l->threads)) {
        snprintf(e->why, sizeof e->why, "no memory for %u threads", l->threads);
        return -1;
    }
    at = rnd(e) % n;
    for (i = 0; i < n && !e->failed; i++, at = (at + 1) % n)
        cluster_run(e, (struct emu_dim){(uint32_t)(at % nx) * cluster,
                                        (uint32_t)(at / nx % l->grid.y),
                                        (uint32_t)(at / nx / l->grid.y)}, cluster);
    return e->failed ? -1 : 0;
}
