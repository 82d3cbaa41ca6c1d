/* kv.c - KV pages on the host: reference counts, prefix sharing, quarantine.
 *
 * Owns one record a page. Lists are index-linked through the records: free (a stack),
 * cached (oldest first), pending (a FIFO by ticket, which only grows). The prefix table
 * is open addressing over page indices, rebuilt in place by deletion with back-shift.
 * THREAD: the engine's. Rules: kv.h. */
#include "core/engine/kv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

enum { NONE = -1 };

enum page_state { FREE, HELD, CACHED, PENDING, RETIRED };

struct page {
    enum page_state state;
    int32_t prev, next;
    uint32_t tag;
    bool found; /* in the prefix table */
    uint64_t ticket;
    struct mc_hash hash;
    int32_t ids[MC_PAGE];
};

struct list {
    int32_t first, last, n;
};

struct mc_pages {
    int32_t n, n_held, n_shared;
    struct page *page;
    int32_t *refs; /* [n]: who asks asks for many */
    struct list free[MC_MAX_RANKS], cached[MC_MAX_RANKS], retired[MC_MAX_RANKS]; /* a shard */
    struct list pending;
    int32_t n_shard;
    int32_t *table; /* page index or NONE */
    uint32_t mask;
    uint32_t next_tag;
};

static void append(struct mc_pages *kv, struct list *l, int32_t i)
{
    struct page *p = &kv->page[i];

    p->prev = l->last;
    p->next = NONE;
    if (l->last != NONE)
        kv->page[l->last].next = i;
    else
        l->first = i;
    l->last = i;
    l->n++;
}

static void unlink_page(struct mc_pages *kv, struct list *l, int32_t i)
{
    struct page *p = &kv->page[i];

    if (p->prev != NONE)
        kv->page[p->prev].next = p->next;
    else
        l->first = p->next;
    if (p->next != NONE)
        kv->page[p->next].prev = p->prev;
    else
        l->last = p->prev;
    l->n--;
}

/* Places in the prefix table: a power of two, at most half of them used. */
static uint32_t table_cap(int32_t n_page)
{
    uint32_t cap = 16;

    while (cap < 2 * (uint32_t)n_page)
        cap *= 2;
    return cap;
}

uint64_t mc_kv_record_bytes(int32_t n_page)
{
    return (uint64_t)n_page * (sizeof(struct page) + sizeof(int32_t)) +
           table_cap(n_page) * sizeof(int32_t);
}

int32_t mc_kv_shard(const struct mc_pages *kv, int32_t page)
{
    return page % kv->n_shard;
}

int32_t mc_kv_next_shard(const struct mc_pages *kv, const int32_t *page, int32_t n)
{
    return n > 0 ? (mc_kv_shard(kv, page[0]) + n) % kv->n_shard : -1;
}

struct mc_pages *mc_kv_new(int32_t n_page, int32_t n_shard)
{
    struct mc_pages *kv = calloc(1, sizeof *kv);
    uint32_t cap = table_cap(n_page);

    if (!kv)
        return NULL;
    kv->n = n_page;
    kv->mask = cap - 1;
    kv->page = calloc((size_t)n_page, sizeof *kv->page);
    kv->refs = calloc((size_t)n_page, sizeof *kv->refs);
    kv->table = malloc(cap * sizeof *kv->table);
    if (!kv->page || !kv->refs || !kv->table) {
        mc_kv_free(kv);
        return NULL;
    }
    memset(kv->table, 0xFF, cap * sizeof *kv->table);
    kv->n_shard = n_shard > 1 ? n_shard : 1;
    kv->pending = (struct list){NONE, NONE, 0};
    for (int32_t i = 0; i < kv->n_shard; i++)
        kv->free[i] = kv->cached[i] = kv->retired[i] = kv->pending;
    for (int32_t i = 0; i < n_page; i++)
        append(kv, &kv->free[mc_kv_shard(kv, i)], i);
    return kv;
}

void mc_kv_free(struct mc_pages *kv)
{
    if (!kv)
        return;
    free(kv->page);
    free(kv->refs);
    free(kv->table);
    free(kv);
}

static int32_t sum(const struct mc_pages *kv, const struct list *l)
{
    int32_t n = 0;

    for (int32_t i = 0; i < kv->n_shard; i++)
        n += l[i].n;
    return n;
}

int32_t mc_kv_total(const struct mc_pages *kv)
{
    return kv->n - sum(kv, kv->retired);
}

int32_t mc_kv_n_free(const struct mc_pages *kv)
{
    return sum(kv, kv->free);
}

int32_t mc_kv_n_cached(const struct mc_pages *kv)
{
    return sum(kv, kv->cached);
}

int32_t mc_kv_n_ready(const struct mc_pages *kv, int32_t shard)
{
    return kv->free[shard].n + kv->cached[shard].n;
}

void mc_kv_ready(const struct mc_pages *kv, int32_t at_least, int32_t *n_free,
                 int32_t *n_cached)
{
    int32_t all = mc_kv_n_ready(kv, 0);

    *n_free = mc_kv_n_free(kv);
    for (int32_t i = 1; i < kv->n_shard; i++)
        all = mc_kv_n_ready(kv, i) < all ? mc_kv_n_ready(kv, i) : all;
    all = all * kv->n_shard > at_least ? all * kv->n_shard : at_least;
    *n_free = *n_free < all ? *n_free : all;
    *n_cached = all - *n_free;
}

int32_t mc_kv_n_pending(const struct mc_pages *kv)
{
    return kv->pending.n;
}

int32_t mc_kv_n_held(const struct mc_pages *kv)
{
    return kv->n_held;
}

/* ---- prefix table ------------------------------------------------------------------ */

static uint32_t home(const struct mc_pages *kv, struct mc_hash h)
{
    return (uint32_t)h.lo & kv->mask;
}

static void table_remove(struct mc_pages *kv, int32_t page)
{
    uint32_t i = home(kv, kv->page[page].hash), j;

    while (kv->table[i] != page)
        i = (i + 1) & kv->mask;
    kv->page[page].found = false;
    kv->table[i] = NONE;
    for (j = (i + 1) & kv->mask; kv->table[j] != NONE; j = (j + 1) & kv->mask) {
        uint32_t want = home(kv, kv->page[kv->table[j]].hash);

        /* an entry may move back to the hole if its home is not between hole and it */
        if (((j - want) & kv->mask) >= ((j - i) & kv->mask)) {
            kv->table[i] = kv->table[j];
            kv->table[j] = NONE;
            i = j;
        }
    }
}

static int32_t table_find(const struct mc_pages *kv, struct mc_hash h, const int32_t *ids)
{
    for (uint32_t i = home(kv, h); kv->table[i] != NONE; i = (i + 1) & kv->mask) {
        const struct page *p = &kv->page[kv->table[i]];

        if (p->hash.lo == h.lo && p->hash.hi == h.hi)
            return memcmp(p->ids, ids, sizeof p->ids) == 0 ? kv->table[i] : NONE;
    }
    return NONE;
}

struct mc_hash mc_kv_root(const void *salt, size_t n)
{
    static const char domain[] = "mascon kv prefix 1";
    XXH128_hash_t h = XXH3_128bits_withSeed(salt, n,
                                            XXH3_64bits(domain, sizeof domain) ^ n);

    return (struct mc_hash){h.low64, h.high64};
}

struct mc_hash mc_kv_chain(struct mc_hash parent, const int32_t *ids)
{
    struct {
        struct mc_hash parent;
        int32_t ids[MC_PAGE];
    } link = {.parent = parent};
    XXH128_hash_t h;

    memcpy(link.ids, ids, sizeof link.ids);
    h = XXH3_128bits(&link, sizeof link);
    return (struct mc_hash){h.low64, h.high64};
}

bool mc_kv_publish(struct mc_pages *kv, int32_t page, struct mc_hash h,
                   const int32_t *ids)
{
    struct page *p = &kv->page[page];
    uint32_t i;

    assert(p->state == HELD);
    if (p->found)
        return true;
    for (i = home(kv, h); kv->table[i] != NONE; i = (i + 1) & kv->mask)
        if (kv->page[kv->table[i]].hash.lo == h.lo &&
            kv->page[kv->table[i]].hash.hi == h.hi)
            return false;
    kv->table[i] = page;
    p->found = true;
    p->hash = h;
    memcpy(p->ids, ids, sizeof p->ids);
    return true;
}

int32_t mc_kv_find(struct mc_pages *kv, struct mc_hash h, const int32_t *ids, bool take)
{
    int32_t i = table_find(kv, h, ids);
    struct page *p;

    if (i == NONE || !take)
        return i;
    p = &kv->page[i];
    if (p->state != HELD) {
        unlink_page(kv,
                    p->state == CACHED ? &kv->cached[mc_kv_shard(kv, i)] : &kv->pending,
                    i);
        p->state = HELD;
        kv->n_held++;
        kv->refs[i] = 1;
    } else {
        mc_kv_ref(kv, i);
    }
    return i;
}

int32_t mc_kv_find_all(struct mc_pages *kv, struct mc_hash root, const int32_t *ids,
                       int32_t n, int32_t *page)
{
    int32_t i = 0;

    for (; (i + 1) * MC_PAGE <= n; i++) {
        int32_t at;

        root = mc_kv_chain(root, ids + i * MC_PAGE);
        at = mc_kv_find(kv, root, ids + i * MC_PAGE, page != NULL);
        if (at < 0)
            break;
        if (page)
            page[i] = at;
    }
    return i;
}

/* ---- taking and giving ------------------------------------------------------------- */

/* The shard with most pages that can be had. */
static int32_t roomiest(const struct mc_pages *kv)
{
    int32_t best = 0;

    for (int32_t i = 1; i < kv->n_shard; i++)
        if (mc_kv_n_ready(kv, i) > mc_kv_n_ready(kv, best))
            best = i;
    return best;
}

int32_t mc_kv_take(struct mc_pages *kv, int32_t shard, uint32_t *tag)
{
    int32_t at = shard < 0 ? roomiest(kv) : shard;
    struct list *from = kv->free[at].n ? &kv->free[at] : &kv->cached[at];
    int32_t i = from->first;
    struct page *p;

    if (i == NONE)
        return -1;
    p = &kv->page[i];
    unlink_page(kv, from, i);
    if (p->found)
        table_remove(kv, i);
    p->state = HELD;
    kv->refs[i] = 1;
    kv->n_held++;
    kv->next_tag += kv->next_tag == UINT32_MAX ? 2 : 1; /* 0 is a page never taken */
    p->tag = *tag = kv->next_tag;
    return i;
}

/* The shard with the fewest retired pages, or with the most: their pools stay equal. */
static int32_t retired_shard(const struct mc_pages *kv, bool most)
{
    int32_t best = 0;

    for (int32_t i = 1; i < kv->n_shard; i++)
        if (most ? kv->retired[i].n > kv->retired[best].n
                 : kv->retired[i].n < kv->retired[best].n)
            best = i;
    return best;
}

int32_t mc_kv_retire(struct mc_pages *kv)
{
    int32_t at = retired_shard(kv, false);
    struct list *from = kv->free[at].n ? &kv->free[at] : &kv->cached[at];
    int32_t i = from == &kv->free[at] ? from->last : from->first;

    if (i == NONE)
        return -1;
    unlink_page(kv, from, i);
    if (kv->page[i].found)
        table_remove(kv, i);
    kv->page[i].state = RETIRED;
    append(kv, &kv->retired[at], i);
    return i;
}

void mc_kv_restore(struct mc_pages *kv, int32_t n)
{
    for (; n > 0; n--) {
        int32_t at = retired_shard(kv, true), i = kv->retired[at].last;

        if (i == NONE)
            return;
        unlink_page(kv, &kv->retired[at], i);
        kv->page[i].state = FREE;
        append(kv, &kv->free[at], i);
    }
}

uint32_t mc_kv_tag(const struct mc_pages *kv, int32_t page)
{
    return kv->page[page].tag;
}

void mc_kv_ref(struct mc_pages *kv, int32_t page)
{
    assert(kv->page[page].state == HELD);
    kv->n_shared += ++kv->refs[page] == 2;
}

int32_t mc_kv_refs(const struct mc_pages *kv, int32_t page)
{
    return kv->refs[page];
}

int32_t mc_kv_n_shared(const struct mc_pages *kv)
{
    return kv->n_shared;
}

const char *mc_kv_state(const struct mc_pages *kv, int32_t page)
{
    static const char *const name[] = {
        [FREE] = "free", [HELD] = "held", [CACHED] = "cached", [PENDING] = "pending",
        [RETIRED] = "retired"};

    return name[kv->page[page].state];
}

void mc_kv_give(struct mc_pages *kv, int32_t page, uint64_t ticket)
{
    struct page *p = &kv->page[page];

    assert(p->state == HELD && kv->refs[page] > 0);
    kv->n_shared -= kv->refs[page] == 2;
    if (--kv->refs[page] > 0)
        return;
    kv->n_held--;
    p->state = PENDING;
    p->ticket = ticket;
    append(kv, &kv->pending, page);
}

void mc_kv_settle(struct mc_pages *kv, uint64_t done)
{
    while (kv->pending.first != NONE && kv->page[kv->pending.first].ticket <= done) {
        int32_t i = kv->pending.first;
        struct page *p = &kv->page[i];

        unlink_page(kv, &kv->pending, i);
        p->state = p->found ? CACHED : FREE;
        append(kv,
               p->found ? &kv->cached[mc_kv_shard(kv, i)] : &kv->free[mc_kv_shard(kv, i)],
               i);
    }
}
