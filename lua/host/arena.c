/* arena.c - a boundary-tag allocator over one mapping, with bins of like sizes.
 *
 * Owns the mapping that an arena lies in; pages are touched only when handed out.
 * THREAD: one at a time. Nothing here locks, so that a thread may be torn out of it by
 * the runaway timer (limit.c): the arena is then released, never used again.
 *
 * A chunk is a word of size and flags followed by its payload; sizes are multiples of 16
 * and a header lies 8 before a multiple of 16. A free chunk holds its list links in the
 * payload and its size again in its last word, so that its right neighbour finds its start.
 * What was never handed out is `top` .. `end`, in no bin.
 *
 * Always true between calls: no two free chunks touch; none touches top; PREV_USED of a
 * chunk tells whether the chunk to its left is in use (only then is there no size word);
 * bit b of `map` is set when bin b is not empty. */
#include "lua/host/arena.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum {
    USED = 1,
    PREV_USED = 2,
    FLAGS = 15,
    HEAD = 8,
    CHUNK_MIN = 32, /* header, two links, size word */
    LINEAR = 512,   /* one bin per 16 bytes below, 8 bins a power of two from there on */
    N_LINEAR = LINEAR / 16,
    SUB_LOG = 3,
    N_BIN = 320,
    N_MAP = N_BIN / 64,
};

struct chunk {
    size_t head;
    struct chunk *next, *prev; /* free chunks only */
};

struct mc_arena {
    size_t cap, used;
    char *top, *end;
    uint64_t map[N_MAP];
    struct chunk *bin[N_BIN];
};

static size_t size_of(const struct chunk *c)
{
    return c->head & ~(size_t)FLAGS;
}

static struct chunk *right_of(const struct chunk *c)
{
    return (struct chunk *)((char *)c + size_of(c));
}

static void *payload(struct chunk *c)
{
    return (char *)c + HEAD;
}

static struct chunk *chunk_of(void *p)
{
    return (struct chunk *)((char *)p - HEAD);
}

/* The bin whose chunks are all at least lo(bin) and less than lo(bin + 1). */
static unsigned bin_of(size_t size)
{
    unsigned log = 63 - (unsigned)__builtin_clzll(size);

    if (size < LINEAR)
        return (unsigned)(size / 16);
    return N_LINEAR + ((log - 9) << SUB_LOG) +
           (unsigned)((size >> (log - SUB_LOG)) & ((1u << SUB_LOG) - 1));
}

static void bin_add(struct mc_arena *a, struct chunk *c)
{
    unsigned b = bin_of(size_of(c));

    c->prev = NULL;
    c->next = a->bin[b];
    if (c->next)
        c->next->prev = c;
    a->bin[b] = c;
    a->map[b / 64] |= 1ull << (b % 64);
}

static void bin_remove(struct mc_arena *a, struct chunk *c)
{
    unsigned b = bin_of(size_of(c));

    if (c->next)
        c->next->prev = c->prev;
    if (c->prev)
        c->prev->next = c->next;
    else
        a->bin[b] = c->next;
    if (!a->bin[b])
        a->map[b / 64] &= ~(1ull << (b % 64));
}

/* Takes a free chunk of at least size out of its bin, or NULL. */
static struct chunk *bin_take(struct mc_arena *a, size_t size)
{
    unsigned b = bin_of(size);
    int tries = 16;

    /* Its own bin may hold smaller ones; without a bound this is a linear search. */
    for (struct chunk *c = a->bin[b]; c && tries > 0; c = c->next, tries--) {
        if (size_of(c) >= size) {
            bin_remove(a, c);
            return c;
        }
    }
    for (unsigned w = ++b / 64; w < N_MAP; w++) {
        uint64_t m = a->map[w];

        if (w == b / 64)
            m &= ~0ull << (b % 64);
        if (m) {
            struct chunk *c = a->bin[w * 64 + (unsigned)__builtin_ctzll(m)];

            bin_remove(a, c);
            return c;
        }
    }
    return NULL;
}

/* Makes [c, c + size) free, merging it with what is free on both sides. Its own flags and
 * head need not be valid but for PREV_USED. */
static void release(struct mc_arena *a, struct chunk *c, size_t size)
{
    struct chunk *r = (struct chunk *)((char *)c + size);

    if (!(c->head & PREV_USED)) {
        size_t left = *(size_t *)((char *)c - sizeof(size_t));

        c = (struct chunk *)((char *)c - left);
        bin_remove(a, c);
        size += left;
    }
    if ((char *)r == a->top) {
        a->top = (char *)c;
        return;
    }
    if (!(r->head & USED)) {
        bin_remove(a, r);
        size += size_of(r);
        r = (struct chunk *)((char *)c + size);
    }
    c->head = size | PREV_USED;
    *(size_t *)((char *)r - sizeof(size_t)) = size;
    r->head &= ~(size_t)PREV_USED;
    bin_add(a, c);
}

/* Cuts a used chunk down to size; the rest becomes free when it can be a chunk. */
static void cut(struct mc_arena *a, struct chunk *c, size_t size)
{
    size_t rest = size_of(c) - size;
    struct chunk *tail = (struct chunk *)((char *)c + size);

    if (rest < CHUNK_MIN)
        return;
    c->head = size | (c->head & FLAGS);
    tail->head = PREV_USED;
    a->used -= rest;
    release(a, tail, rest);
}

static void *take(struct mc_arena *a, size_t size)
{
    struct chunk *c = bin_take(a, size);

    if (c) {
        c->head |= USED;
        right_of(c)->head |= PREV_USED; /* a binned chunk never touches top */
        a->used += size_of(c);
        cut(a, c, size);
        return payload(c);
    }
    if ((size_t)(a->end - a->top) < size)
        return NULL;
    c = (struct chunk *)a->top;
    a->top += size;
    c->head = size | USED | PREV_USED; /* what touches top is in use */
    a->used += size;
    return payload(c);
}

static void give(struct mc_arena *a, struct chunk *c)
{
    a->used -= size_of(c);
    release(a, c, size_of(c));
}

/* Tries to make a used chunk at least size by taking from its right. */
static int grow(struct mc_arena *a, struct chunk *c, size_t size)
{
    struct chunk *r = right_of(c);
    size_t need = size - size_of(c);

    if ((char *)r == a->top) {
        if ((size_t)(a->end - a->top) < need)
            return 0;
        a->top += need;
        c->head += need;
        a->used += need;
        return 1;
    }
    if ((r->head & USED) || size_of(r) < need)
        return 0;
    bin_remove(a, r);
    c->head += size_of(r);
    a->used += size_of(r);
    right_of(c)->head |= PREV_USED;
    cut(a, c, size);
    return 1;
}

void *mc_arena_realloc(struct mc_arena *a, void *p, size_t n)
{
    struct chunk *c = p ? chunk_of(p) : NULL;
    size_t size;
    void *q;

    if (n == 0) {
        if (c)
            give(a, c);
        return NULL;
    }
    if (n > a->cap)
        return NULL;
    size = (n + HEAD + 15) & ~(size_t)15;
    if (size < CHUNK_MIN)
        size = CHUNK_MIN;
    if (!c)
        return take(a, size);
    if (size <= size_of(c)) {
        cut(a, c, size);
        return p;
    }
    if (grow(a, c, size))
        return p;
    q = take(a, size);
    if (q) {
        memcpy(q, p, size_of(c) - HEAD);
        give(a, c);
    }
    return q;
}

struct mc_arena *mc_arena_new(size_t cap)
{
    struct mc_arena *a;
    size_t first = (sizeof *a + 15) / 16 * 16 + HEAD;

    assert(cap >= 65536);
    a = mmap(NULL, cap, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a == MAP_FAILED)
        return NULL;
    a->cap = cap;
    a->top = (char *)a + first;
    a->end = (char *)a + cap - HEAD;
    return a;
}

size_t mc_arena_used(const struct mc_arena *a)
{
    return a->used;
}

size_t mc_arena_cap(const struct mc_arena *a)
{
    return a->cap;
}

void mc_arena_release(struct mc_arena *a)
{
    size_t cap;

    if (!a)
        return;
    cap = a->cap;
#ifdef MC_SANITIZE
    mmap(a, cap, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
         0);
#else
    munmap(a, cap);
#endif
}
