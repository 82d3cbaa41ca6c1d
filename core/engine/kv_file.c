/* kv_file.c - checking a saved context. OWNS nothing. THREAD: any. */
#include "core/engine/kv_file.h"

#include <string.h>

#include <xxhash.h>

static const char MAGIC[8] = {'m', 'a', 's', 'c', 'K', 'V', '1', '\n'};

void mc_kv_file_begin(struct mc_kv_file *h)
{
    memset(h, 0, sizeof *h);
    memcpy(h->magic, MAGIC, sizeof MAGIC);
}

void mc_kv_file_sum(const uint8_t *data, size_t n, uint8_t out[MC_KV_FILE_SUM])
{
    XXH128_hash_t h = XXH3_128bits(data, n);

    memcpy(out, &h.low64, 8);
    memcpy(out + 8, &h.high64, 8);
}

static int check_header(const struct mc_kv_file *h, const struct mc_kv_file *mine,
                        struct mc_err *err)
{
    if (memcmp(h->magic, MAGIC, sizeof MAGIC) != 0)
        return mc_fail(err, MC_EFORMAT, "it is no saved context");
    if (h->model_lo != mine->model_lo || h->model_hi != mine->model_hi)
        return mc_fail(err, MC_EFORMAT, "it was saved from another model");
    if (h->layout != mine->layout || h->page_tokens != mine->page_tokens ||
        h->n_rank != mine->n_rank || h->page_bytes != mine->page_bytes)
        return mc_fail(err, MC_EFORMAT,
                       "it was saved with other keys and values (--kv, --ranks)");
    if (h->n_page < 1 || h->n_page > mine->n_page)
        return mc_fail(err, MC_ELIMIT, "it has %u pages, 1 to %u are taken", h->n_page,
                       mine->n_page);
    return 0;
}

int mc_kv_file_check(const uint8_t *data, size_t n, const struct mc_kv_file *mine,
                     int32_t n_real, struct mc_kv_pages *out, struct mc_err *err)
{
    struct mc_kv_file h;
    uint8_t sum[MC_KV_FILE_SUM];
    uint64_t want;
    size_t n_ids;
    int rc;

    if (n < sizeof h + MC_KV_FILE_SUM)
        return mc_fail(err, MC_EFORMAT, "it is no saved context");
    memcpy(&h, data, sizeof h);
    rc = check_header(&h, mine, err);
    if (rc < 0)
        return rc;
    /* n_page and page_bytes are at most this engine's: no overflow */
    n_ids = (size_t)h.n_page * h.page_tokens;
    want = sizeof h + n_ids * sizeof(int32_t) + h.n_page * h.page_bytes + MC_KV_FILE_SUM;
    if (want != n)
        return mc_fail(err, MC_EFORMAT, "it has %zu bytes, its pages need %llu", n,
                       (unsigned long long)want);
    mc_kv_file_sum(data, n - MC_KV_FILE_SUM, sum);
    if (memcmp(sum, data + n - MC_KV_FILE_SUM, sizeof sum) != 0)
        return mc_fail(err, MC_EFORMAT, "its sum is wrong: it is damaged");
    *out = (struct mc_kv_pages){.n_page = (int32_t)h.n_page,
                                .ids = (const int32_t *)(data + sizeof h),
                                .pages = data + sizeof h + n_ids * sizeof(int32_t)};
    for (size_t i = 0; i < n_ids; i++)
        if (out->ids[i] < 0 || out->ids[i] >= n_real)
            return mc_fail(err, MC_EFORMAT, "token %zu is outside 0..%d", i, n_real - 1);
    return 0;
}
