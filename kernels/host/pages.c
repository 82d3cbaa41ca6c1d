/* pages.c - page_init, page_copy, page_check: whole pages of the pool and their tags.
 * Owns nothing; bodies run on a stream's threads. */
#include <string.h>

#include "kernels/comm/comm.h"
#include "kernels/host/host.h"
#include "kernels/host/kv.h"

/* The number that a page has with this rank; -1: it is another rank's. */
static int32_t own_page(const struct mc_kv *kv, int32_t page)
{
    if (kv->n_shard <= 1)
        return page;
    return page % kv->n_shard == kv->rank ? page / kv->n_shard : -1;
}

static int pool_need(const struct mc_kv *kv, const char **why)
{
    const char *no = mc_pool_refuse(kv);

    return no ? mc_refuse(why, no) : 0;
}

/* ---- page_init --------------------------------------------------------------------- */

static int page_init_need(const struct mc_page_init_p *p, struct mc_need *need,
                          const char **why)
{
    (void)need;
    return pool_need(&p->kv, why);
}

static void init_pages(void *ctx, int64_t i0, int64_t i1, int lane)
{
    const struct mc_page_init_p *p = ctx;
    int64_t i;

    (void)lane;
    for (i = i0; i < i1; i++) {
        int32_t page = own_page(&p->kv, (int32_t)p->list[2 * i]);

        if (page < 0)
            continue;
        memset(p->kv.base + (int64_t)page * p->kv.page_stride, 0,
               (size_t)p->kv.page_stride);
        p->kv.tag[page] = p->list[2 * i + 1];
    }
}

static int page_init(struct mc_par *par, const struct mc_page_init_p *p)
{
    int32_t n = *p->n_list, i;

    if (n > p->cap)
        return MC_K_EINTERNAL;
    for (i = 0; i < n; i++)
        if (p->list[2 * i] >= (uint32_t)mc_kv_pages(&p->kv))
            return MC_K_EINTERNAL;
    mc_par_for(par, n, 1, init_pages, (void *)p);
    return 0;
}

MC_HOST_OP(mc_host_page_init, page_init, page_init_need, page_init);

/* ---- page_copy --------------------------------------------------------------------- */

static int page_copy_need(const struct mc_page_copy_p *p, struct mc_need *need,
                          const char **why)
{
    (void)need;
    return pool_need(&p->kv, why);
}

static void copy_pages(void *ctx, int64_t i0, int64_t i1, int lane)
{
    const struct mc_page_copy_p *p = ctx;
    int64_t i, n = p->kv.page_stride;

    (void)lane;
    for (i = i0; i < i1; i++) {
        int32_t own = own_page(&p->kv, p->pages[i]);
        uint8_t *page = p->kv.base + own * n;

        if (own < 0)
            continue;
        if (p->to_buf)
            memcpy(p->buf + i * n, page, (size_t)n);
        else
            memcpy(page, p->buf + i * n, (size_t)n);
    }
}

static int page_copy(struct mc_par *par, const struct mc_page_copy_p *p)
{
    int32_t i;

    for (i = 0; i < p->n; i++)
        if (p->pages[i] < 0 || p->pages[i] >= mc_kv_pages(&p->kv))
            return MC_K_EINTERNAL;
    mc_par_for(par, p->n, 1, copy_pages, (void *)p);
    return 0;
}

MC_HOST_OP(mc_host_page_copy, page_copy, page_copy_need, page_copy);

/* ---- page_check -------------------------------------------------------------------- */

static int page_check_need(const struct mc_page_check_p *p, struct mc_need *need,
                           const char **why)
{
    (void)need;
    if (p->kv.n_shard > 1 && (!p->found || p->peer.n % p->kv.n_shard != 0))
        return mc_refuse(why,
                         "page_check: sharded tokens need found, and ranks in groups");
    return pool_need(&p->kv, why);
}

/* Is there a page that is not the slot's own in its first n tokens? */
static bool strange(const struct mc_kv *kv, int32_t slot, int32_t n)
{
    int64_t at = (int64_t)slot * kv->pitch, end = at + (n + MC_PAGE - 1) / MC_PAGE;

    for (; at < end; at++) {
        int32_t page = kv->table[at], own;

        if (page < 0 || page >= mc_kv_pages(kv))
            return true;
        own = own_page(kv, page);
        if (own >= 0 && kv->tag[own] != kv->want_tag[at])
            return true;
    }
    return false;
}

static void check_seqs(void *ctx, int64_t s0, int64_t s1, int lane)
{
    const struct mc_page_check_p *p = ctx;
    int64_t s;

    (void)lane;
    for (s = s0; s < s1; s++) {
        int32_t slot = p->rows.slot[s];
        uint32_t bad = strange(&p->kv, slot, p->rows.kv_len[s]) ? MC_BAD_PAGE : 0;

        p->slots[slot].bad |= bad;
        if (p->kv.n_shard > 1)
            p->found[s] = bad;
    }
}

/* What one rank of a group found holds for all. */
static int share_found(const struct mc_page_check_p *p)
{
    int32_t n = p->rows.live[MC_LIVE_SEQS], s, r, group = p->peer.rank - p->kv.rank;
    const void *const *all;
    int rc = mc_comm_meet(&p->peer, MC_OP_page_check, (uint64_t)n, p->found, &all);

    for (r = group; r < group + p->kv.n_shard && rc == 0; r++)
        for (s = 0; s < n; s++)
            p->slots[p->rows.slot[s]].bad |= ((const uint32_t *)all[r])[s];
    return rc;
}

static int page_check(struct mc_par *par, const struct mc_page_check_p *p)
{
    mc_par_for(par, p->rows.live[MC_LIVE_SEQS], 8, check_seqs, (void *)p);
    return p->kv.n_shard > 1 ? share_found(p) : 0;
}

MC_HOST_OP(mc_host_page_check, page_check, page_check_need, page_check);
