/* fuzz_kv_file.c - a saved context: checked before it is believed. What passes is within the
 * file. The sum is put right for a second try, so that what lies behind it is reached.
 *
 * OWNS what it allocates. THREAD: one. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine/kv_file.h"

int mc_fuzz(const uint8_t *data, size_t n);

enum { N_REAL = 1000 };

static void try(const uint8_t *data, size_t n)
{
    struct mc_kv_file mine;
    struct mc_kv_pages p;
    struct mc_err err;
    int64_t sum = 0;

    mc_kv_file_begin(&mine);
    mine.layout = 1;
    mine.page_tokens = 4;
    mine.n_rank = 1;
    mine.n_page = 8;
    mine.page_bytes = 8;
    mine.model_lo = 1;
    mine.model_hi = 2;
    if (mc_kv_file_check(data, n, &mine, N_REAL, &p, &err) < 0)
        return;
    assert(p.n_page >= 1 && p.n_page <= 8);
    for (int32_t i = 0; i < p.n_page * 4; i++) {
        assert(p.ids[i] >= 0 && p.ids[i] < N_REAL);
        sum += p.ids[i];
    }
    for (int32_t i = 0; i < p.n_page * 8; i++)
        sum += p.pages[i];
    assert(p.pages + p.n_page * 8 + MC_KV_FILE_SUM == data + n && sum >= 0);
}

int mc_fuzz(const uint8_t *data, size_t n)
{
    uint8_t *copy = malloc(n + 1); /* aligned, as a file that was read is */

    if (!copy)
        return 0;
    memcpy(copy, data, n);
    try(copy, n);
    if (n >= MC_KV_FILE_SUM) {
        mc_kv_file_sum(copy, n - MC_KV_FILE_SUM, copy + n - MC_KV_FILE_SUM);
        try(copy, n);
    }
    free(copy);
    return 0;
}
