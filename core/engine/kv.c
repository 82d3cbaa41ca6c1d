/* kv.c - KV pages on the host: reference counts, prefix sharing, quarantine.
 *
 * Owns one record a page. Lists are index-linked through the records: free (a stack),
 * cached (oldest first), pending (a FIFO by ticket, which only grows). The prefix table
 * is open addressing over page indices, rebuilt in place by deletion with back-shift.
 * Scored pages of a shard are a binary heap beside the list of cached ones, which they
 * begin: who is scored is older than who is not.
 * THREAD: the engine's. Rules: kv.h. */
#include "core/engine/kv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "core/base/clock.h"

enum { NONE = -1 };

enum page_state { FREE, HELD, CACHED, PENDING, RETIRED };

struct page {
    enum page_state state;
    int32_t refs, who; /* who: rule 6 */
    int32_t prev, next;
    uint32_t tag;
    bool found; /* in the prefix table */
    int32_t heap_at; /* cached: its place in the heap, or NONE: no score */
    struct mc_block block;
    uint64_t ticket;
    struct mc_hash hash;
    int32_t ids[MC_PAGE];
};

struct list {
    int32_t first, last, n;
};

struct mc_pages {
    int32_t n, n_held;
    struct page *page;
    int32_t *own; /* [n_who + 1] */
    struct list free[MC_MAX_RANKS], cached[MC_MAX_RANKS], retired[MC_MAX_RANKS]; /* a shard */
    struct list pending;
    int32_t n_shard;
    int32_t *heap; /* place k of shard s is heap[k * n_shard + s]; lowest first */
    int32_t n_heap[MC_MAX_RANKS], fresh[MC_MAX_RANKS]; /* fresh: first without score */
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

struct mc_pages *mc_kv_new(int32_t n_page, int32_t n_shard, int32_t n_who)
{
    struct mc_pages *kv = calloc(1, sizeof *kv);
    uint32_t cap = table_cap(n_page);

    if (!kv)
        return NULL;
    kv->n = n_page;
    kv->mask = cap - 1;
    kv->page = calloc((size_t)n_page, sizeof *kv->page);
    kv->own = calloc((size_t)n_who + 1, sizeof *kv->own);
    kv->heap = calloc((size_t)n_page, sizeof *kv->heap);
    kv->table = malloc(cap * sizeof *kv->table);
    if (!kv->page || !kv->own || !kv->heap || !kv->table) {
        mc_kv_free(kv);
        return NULL;
    }
    memset(kv->table, 0xFF, cap * sizeof *kv->table);
    kv->n_shard = n_shard > 1 ? n_shard : 1;
    kv->pending = (struct list){NONE, NONE, 0};
    for (int32_t i = 0; i < kv->n_shard; i++) {
        kv->free[i] = kv->cached[i] = kv->retired[i] = kv->pending;
        kv->fresh[i] = NONE;
    }
    for (int32_t i = 0; i < n_page; i++)
        append(kv, &kv->free[mc_kv_shard(kv, i)], i);
    return kv;
}

void mc_kv_free(struct mc_pages *kv)
{
    if (!kv)
        return;
    free(kv->page);
    free(kv->own);
    free(kv->heap);
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

/* ---- scores ------------------------------------------------------------------------ */

static int32_t *heap_slot(struct mc_pages *kv, int32_t shard, int32_t k)
{
    return &kv->heap[k * kv->n_shard + shard];
}

/* Does a go before b? Of equal ones the older. */
static bool before(const struct mc_pages *kv, int32_t a, int32_t b)
{
    const struct mc_block *x = &kv->page[a].block, *y = &kv->page[b].block;

    return x->score != y->score ? x->score < y->score : x->t_used < y->t_used;
}

static void heap_put(struct mc_pages *kv, int32_t shard, int32_t k, int32_t page)
{
    *heap_slot(kv, shard, k) = page;
    kv->page[page].heap_at = k;
}

/* Puts the page at the hole k, or where it belongs above or below. */
static void heap_sift(struct mc_pages *kv, int32_t shard, int32_t k, int32_t page)
{
    int32_t n = kv->n_heap[shard];

    while (k > 0 && before(kv, page, *heap_slot(kv, shard, (k - 1) / 2))) {
        heap_put(kv, shard, k, *heap_slot(kv, shard, (k - 1) / 2));
        k = (k - 1) / 2;
    }
    for (int32_t c = 2 * k + 1; c < n; c = 2 * k + 1) {
        if (c + 1 < n &&
            before(kv, *heap_slot(kv, shard, c + 1), *heap_slot(kv, shard, c)))
            c++;
        if (!before(kv, *heap_slot(kv, shard, c), page))
            break;
        heap_put(kv, shard, k, *heap_slot(kv, shard, c));
        k = c;
    }
    heap_put(kv, shard, k, page);
}

static void heap_remove(struct mc_pages *kv, int32_t shard, int32_t page)
{
    int32_t last = *heap_slot(kv, shard, --kv->n_heap[shard]);

    if (last != page)
        heap_sift(kv, shard, kv->page[page].heap_at, last);
    kv->page[page].heap_at = NONE;
}

/* Takes a page out of the cached ones. */
static void uncache(struct mc_pages *kv, int32_t page)
{
    int32_t shard = mc_kv_shard(kv, page);

    assert(kv->page[page].state == CACHED);
    if (kv->page[page].heap_at != NONE)
        heap_remove(kv, shard, page);
    if (kv->fresh[shard] == page)
        kv->fresh[shard] = kv->page[page].next;
    unlink_page(kv, &kv->cached[shard], page);
}

/* The cached page of a shard that goes first, or NONE. */
static int32_t goes_first(struct mc_pages *kv, int32_t shard)
{
    return kv->n_heap[shard] ? *heap_slot(kv, shard, 0) : kv->cached[shard].first;
}

void mc_kv_note(struct mc_pages *kv, int32_t page, uint32_t tenant, int32_t depth)
{
    kv->page[page].block.tenant = tenant;
    kv->page[page].block.depth = depth;
}

int32_t mc_kv_unscored(const struct mc_pages *kv, int32_t *page, struct mc_block *block,
                       int32_t cap)
{
    int32_t n = 0;

    for (int32_t s = 0; s < kv->n_shard; s++)
        for (int32_t i = kv->fresh[s]; i != NONE && n < cap; i = kv->page[i].next) {
            page[n] = i;
            block[n] = kv->page[i].block;
            block[n++].score = kv->page[i].block.t_used;
        }
    return n;
}

void mc_kv_score(struct mc_pages *kv, const int32_t *page, const struct mc_block *block,
                 int32_t n)
{
    for (int32_t k = 0; k < n; k++) {
        int32_t i = page[k], shard = mc_kv_shard(kv, i);

        assert(kv->fresh[shard] == i && block[k].score == block[k].score);
        kv->fresh[shard] = kv->page[i].next;
        kv->page[i].block.score = block[k].score;
        heap_sift(kv, shard, kv->n_heap[shard]++, i);
    }
}

void mc_kv_unscore(struct mc_pages *kv)
{
    for (int32_t s = 0; s < kv->n_shard; s++) {
        while (kv->n_heap[s] > 0)
            kv->page[*heap_slot(kv, s, --kv->n_heap[s])].heap_at = NONE;
        kv->fresh[s] = kv->cached[s].first;
    }
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

int32_t mc_kv_find(const struct mc_pages *kv, struct mc_hash h, const int32_t *ids)
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
    p->block = (struct mc_block){0};
    p->hash = h;
    memcpy(p->ids, ids, sizeof p->ids);
    return true;
}

/* One holder more, or one less. */
static void hold(struct mc_pages *kv, int32_t page, int32_t who, int32_t by)
{
    struct page *p = &kv->page[page];

    if (p->refs == 1)
        kv->own[p->who]--;
    p->refs += by;
    p->who ^= who; /* of several holders it may be no holder's number */
    if (p->refs == 1)
        kv->own[p->who]++;
    assert(p->refs > 0 || p->who == 0);
}

int32_t mc_kv_find_take(struct mc_pages *kv, struct mc_hash h, const int32_t *ids,
                        int32_t who)
{
    int32_t i = mc_kv_find(kv, h, ids);
    struct page *p;

    if (i == NONE)
        return i;
    p = &kv->page[i];
    p->block.hits++;
    if (p->state != HELD) {
        if (p->state == CACHED)
            uncache(kv, i);
        else
            unlink_page(kv, &kv->pending, i);
        p->state = HELD;
        kv->n_held++;
    }
    hold(kv, i, who, 1);
    return i;
}

int32_t mc_kv_find_all(struct mc_pages *kv, struct mc_hash root, const int32_t *ids,
                       int32_t n, int32_t *page)
{
    int32_t i = 0;

    for (; (i + 1) * MC_PAGE <= n; i++) {
        int32_t at;

        root = mc_kv_chain(root, ids + i * MC_PAGE);
        at = page ? mc_kv_find_take(kv, root, ids + i * MC_PAGE, 0)
                  : mc_kv_find(kv, root, ids + i * MC_PAGE);
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

bool mc_kv_must_evict(const struct mc_pages *kv, int32_t shard)
{
    int32_t at = shard < 0 ? roomiest(kv) : shard;

    return kv->free[at].n == 0 && kv->cached[at].n > 0;
}

/* Takes a free or cached page out of its list and the table. */
static void unlink_ready(struct mc_pages *kv, int32_t page)
{
    if (kv->page[page].state == CACHED)
        uncache(kv, page);
    else
        unlink_page(kv, &kv->free[mc_kv_shard(kv, page)], page);
    if (kv->page[page].found)
        table_remove(kv, page);
}

int32_t mc_kv_take(struct mc_pages *kv, int32_t shard, int32_t who, uint32_t *tag)
{
    int32_t at = shard < 0 ? roomiest(kv) : shard;
    int32_t i = kv->free[at].n ? kv->free[at].first : goes_first(kv, at);
    struct page *p;

    if (i == NONE)
        return -1;
    p = &kv->page[i];
    unlink_ready(kv, i);
    p->state = HELD;
    hold(kv, i, who, 1);
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
    int32_t i = kv->free[at].n ? kv->free[at].last : goes_first(kv, at);

    if (i == NONE)
        return -1;
    unlink_ready(kv, i);
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

void mc_kv_ref(struct mc_pages *kv, int32_t page, int32_t who)
{
    assert(kv->page[page].state == HELD);
    hold(kv, page, who, 1);
}

int32_t mc_kv_refs(const struct mc_pages *kv, int32_t page)
{
    return kv->page[page].refs;
}

int32_t mc_kv_own(const struct mc_pages *kv, int32_t who)
{
    return kv->own[who];
}

const char *mc_kv_state(const struct mc_pages *kv, int32_t page)
{
    static const char *const name[] = {
        [FREE] = "free", [HELD] = "held", [CACHED] = "cached", [PENDING] = "pending",
        [RETIRED] = "retired"};

    return name[kv->page[page].state];
}

void mc_kv_give(struct mc_pages *kv, int32_t page, int32_t who, uint64_t ticket)
{
    struct page *p = &kv->page[page];

    assert(p->state == HELD && p->refs > 0);
    hold(kv, page, who, -1);
    if (p->refs > 0)
        return;
    kv->n_held--;
    p->state = PENDING;
    p->ticket = ticket;
    append(kv, &kv->pending, page);
}

void mc_kv_settle(struct mc_pages *kv, uint64_t done)
{
    double now = 0;

    while (kv->pending.first != NONE && kv->page[kv->pending.first].ticket <= done) {
        int32_t i = kv->pending.first, shard = mc_kv_shard(kv, i);
        struct page *p = &kv->page[i];

        unlink_page(kv, &kv->pending, i);
        p->state = p->found ? CACHED : FREE;
        append(kv, p->found ? &kv->cached[shard] : &kv->free[shard], i);
        if (!p->found)
            continue;
        now = now > 0 ? now : mc_now();
        p->block.t_used = now;
        p->heap_at = NONE;
        if (kv->fresh[shard] == NONE)
            kv->fresh[shard] = i;
    }
}
