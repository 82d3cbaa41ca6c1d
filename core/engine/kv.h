/* kv.h - KV pages on the host: reference counts, prefix sharing, quarantine.
 *
 * Rules
 *  1. A page is free, held (refs > 0), cached (refs 0, findable by prefix) or pending
 *     (given back, but an enqueued step may still name it). Always: free + held +
 *     cached + pending == total.
 *  2. A page given back with a ticket becomes cached or free only after mc_kv_settle has
 *     seen that ticket done.
 *  3. A full page is findable by the hash of all ids up to its end and of the salt; its
 *     own ids are compared on a hit, so that a collision is a miss. A page that is not
 *     full is never shared.
 *     Pages out of use (retired) are in neither count.
 *  4. Of cached pages the one with the lowest score goes first, of equal ones and of those
 *     without a score the least recently used; what has a score goes before what has none.
 *  5. Taking a page stamps a new tag: whoever held it before no longer matches.
 *  6. Holders have numbers; all but 0 hold a page once. A page keeps the exclusive or of
 *     its holders' numbers: the number of the last one is what is left of it, so that how
 *     many pages each holds alone is counted without a search.
 * OWNS the counts, not the memory of the pages. THREAD: the engine's. */
#ifndef MC_ENGINE_KV_H
#define MC_ENGINE_KV_H

#include <stdbool.h>
#include <stdint.h>

#include "core/mc_abi.h"
#include "kernels/kernels.h"

struct mc_pages;

struct mc_hash {
    uint64_t lo, hi;
};

/* NULL: no memory. n_page: of all ranks that tokens are spread over; page p is with the
 * p mod n_shard-th of them. Holders are numbered up to n_who. */
struct mc_pages *mc_kv_new(int32_t n_page, int32_t n_shard, int32_t n_who);
uint64_t mc_kv_record_bytes(int32_t n_page); /* what it takes on the host */
void mc_kv_free(struct mc_pages *kv);

int32_t mc_kv_total(const struct mc_pages *kv);
int32_t mc_kv_n_free(const struct mc_pages *kv);
int32_t mc_kv_n_cached(const struct mc_pages *kv);
int32_t mc_kv_n_pending(const struct mc_pages *kv);
int32_t mc_kv_n_held(const struct mc_pages *kv);

/* Pages of a shard that are free or cached. */
int32_t mc_kv_n_ready(const struct mc_pages *kv, int32_t shard);
/* A sequence's blocks go round the shards, so of many pages whole rounds can be had: what
 * is free and what is cached of those, or of at_least so many. */
void mc_kv_ready(const struct mc_pages *kv, int32_t at_least, int32_t *n_free,
                 int32_t *n_cached);
/* The shard of a page, and that of the block behind n pages; -1: it may be any (n is 0).
 */
int32_t mc_kv_shard(const struct mc_pages *kv, int32_t page);
int32_t mc_kv_next_shard(const struct mc_pages *kv, const int32_t *page, int32_t n);

/* A free page of the shard (-1: of that with most), else its cached one that goes
 * first (rule 4), else -1. refs 1, *tag new. */
int32_t mc_kv_take(struct mc_pages *kv, int32_t shard, int32_t who, uint32_t *tag);
uint32_t mc_kv_tag(const struct mc_pages *kv, int32_t page);
const char *mc_kv_state(const struct mc_pages *kv,
                        int32_t page); /* "free", "held", ... */
void mc_kv_give(struct mc_pages *kv, int32_t page, int32_t who, uint64_t ticket);
/* One more holder of a page that is held. */
void mc_kv_ref(struct mc_pages *kv, int32_t page, int32_t who);
int32_t mc_kv_refs(const struct mc_pages *kv, int32_t page); /* 0: nobody holds it */
/* Pages that nobody else holds. */
int32_t mc_kv_own(const struct mc_pages *kv, int32_t who);
/* Takes a page out of use: a free one, else the cached one that goes first. Which, or
 * -1: there is none. */
int32_t mc_kv_retire(struct mc_pages *kv);
void mc_kv_restore(struct mc_pages *kv, int32_t n); /* puts n of them back, at most all */
/* Tickets up to `done` have passed. */
void mc_kv_settle(struct mc_pages *kv, uint64_t done);

/* Hash chain: of nothing (with a salt), then of each full page of ids. */
struct mc_hash mc_kv_root(const void *salt, size_t n);
struct mc_hash mc_kv_chain(struct mc_hash parent, const int32_t *ids);
/* Makes a held full page findable; false when another page already stands for it. */
bool mc_kv_publish(struct mc_pages *kv, int32_t page, struct mc_hash h,
                   const int32_t *ids);
/* Whose page that is and how many pages of its prefix come before, for scores. */
void mc_kv_note(struct mc_pages *kv, int32_t page, uint32_t tenant, int32_t depth);

/* Whether the next page of the shard (-1: any) comes out of the cache. */
bool mc_kv_must_evict(const struct mc_pages *kv, int32_t shard);
/* Cached pages that have no score yet, oldest first, and what is known of them; how many.
 */
int32_t mc_kv_unscored(const struct mc_pages *kv, int32_t *page, struct mc_block *block,
                       int32_t cap);
/* Scores the first n of those, with their numbers in block; no score is NaN. */
void mc_kv_score(struct mc_pages *kv, const int32_t *page, const struct mc_block *block,
                 int32_t n);
void mc_kv_unscore(struct mc_pages *kv); /* forgets all scores */

/* The page found, or -1; the second one takes it. */
int32_t mc_kv_find(const struct mc_pages *kv, struct mc_hash h, const int32_t *ids);
int32_t mc_kv_find_take(struct mc_pages *kv, struct mc_hash h, const int32_t *ids,
                        int32_t who);
/* How many whole pages of n ids are found, from the first on; taken into page by holder
 * 0, unless it is NULL. */
int32_t mc_kv_find_all(struct mc_pages *kv, struct mc_hash root, const int32_t *ids,
                       int32_t n, int32_t *page);

#endif
