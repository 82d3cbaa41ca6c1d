/* kv_file.h - the form of a saved context: whole pages of KV with their token ids.
 *
 *   struct mc_kv_file, then ids i32 [n_page * page_tokens], then the pages, each of all
 *   ranks in turn, then XXH3-128 of everything before (low, high 64 bits, as in memory)
 *
 * Little-endian, of this program's own page layout: for the same model, layout and number
 * of ranks. A file is hostile until mc_kv_file_check has passed. OWNS nothing. THREAD: any. */
#ifndef MC_ENGINE_KV_FILE_H
#define MC_ENGINE_KV_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/err.h"

enum { MC_KV_FILE_SUM = 16 };

struct mc_kv_file {
    char magic[8]; /* "mascKV1\n" */
    uint32_t layout, page_tokens, n_rank, n_page;
    uint64_t page_bytes;       /* of all ranks together */
    uint64_t model_lo, model_hi; /* of the config and a piece of the weights */
};

/* What a file of n bytes holds; pointers into it. */
struct mc_kv_pages {
    int32_t n_page;
    const int32_t *ids;
    const uint8_t *pages;
};

void mc_kv_file_begin(struct mc_kv_file *h); /* magic, the rest zero */
/* mine: what a file that this engine wrote would say, n_page the most that it would take.
 * Sizes, model, ids below n_real and the sum are checked. */
int mc_kv_file_check(const uint8_t *data, size_t n, const struct mc_kv_file *mine,
                     int32_t n_real, struct mc_kv_pages *out, struct mc_err *err);
void mc_kv_file_sum(const uint8_t *data, size_t n, uint8_t out[MC_KV_FILE_SUM]);

#endif
