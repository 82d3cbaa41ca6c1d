/* pages.c - page_init, page_copy, page_check: whole pages of the pool and their tags.
 * Owns nothing; bodies run on a stream's threads. */
#include <string.h>

#include "kernels/host/kv.h"
#include "kernels/host/host.h"

static int pool_need(const struct mc_kv *kv, const char **why)
{
    const char *no = mc_pool_refuse(kv);

    return no ? mc_refuse(why, no) : 0;
}

/* ---- page_init ----------------------------------------------------------------------- */

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
        uint32_t page = p->list[2 * i];

        memset(p->kv.base + (int64_t)page * p->kv.page_stride, 0, (size_t)p->kv.page_stride);
        p->kv.tag[page] = p->list[2 * i + 1];
    }
}

static int page_init(struct mc_par *par, const struct mc_page_init_p *p)
{
    int32_t n = *p->n_list, i;

    if (n > p->cap)
        return MC_K_EINTERNAL;
    for (i = 0; i < n; i++)
        if (p->list[2 * i] >= (uint32_t)p->kv.n_page)
            return MC_K_EINTERNAL;
    mc_par_for(par, n, 1, init_pages, (void *)p);
    return 0;
}

MC_HOST_OP(mc_host_page_init, page_init, page_init_need, page_init);

/* ---- page_copy ----------------------------------------------------------------------- */

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
        uint8_t *page = p->kv.base + p->pages[i] * n;

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
        if (p->pages[i] < 0 || p->pages[i] >= p->kv.n_page)
            return MC_K_EINTERNAL;
    mc_par_for(par, p->n, 1, copy_pages, (void *)p);
    return 0;
}

MC_HOST_OP(mc_host_page_copy, page_copy, page_copy_need, page_copy);

/* ---- page_check ---------------------------------------------------------------------- */

static int page_check_need(const struct mc_page_check_p *p, struct mc_need *need,
                           const char **why)
{
    (void)need;
    return pool_need(&p->kv, why);
}

static void check_seqs(void *ctx, int64_t s0, int64_t s1, int lane)
{
    const struct mc_page_check_p *p = ctx;
    const struct mc_kv *kv = &p->kv;
    int64_t s, at, end;

    (void)lane;
    for (s = s0; s < s1; s++) {
        int32_t slot = p->rows.slot[s];

        at = (int64_t)slot * kv->pitch;
        end = at + (p->rows.kv_len[s] + MC_PAGE - 1) / MC_PAGE;
        for (; at < end; at++) {
            int32_t page = kv->table[at];

            if (page < 0 || page >= kv->n_page || kv->tag[page] != kv->want_tag[at]) {
                p->slots[slot].bad |= MC_BAD_PAGE;
                break;
            }
        }
    }
}

static int page_check(struct mc_par *par, const struct mc_page_check_p *p)
{
    mc_par_for(par, p->rows.live[MC_LIVE_SEQS], 8, check_seqs, (void *)p);
    return 0;
}

MC_HOST_OP(mc_host_page_check, page_check, page_check_need, page_check);
