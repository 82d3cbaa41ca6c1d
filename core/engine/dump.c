/* dump.c - a page of the KV pool as it lies in memory.
 *
 * Owns nothing. THREAD: any. Whoever enqueues holds `look`, so a copy is put between
 * steps with it held, on all ranks alike, and waited for without. */
#include <stdlib.h>
#include <string.h>

#include "core/engine/engine_int.h"
#include "core/model/load.h"

static int check_piece(const struct mc_engine *e, const struct mc_page_piece *p,
                       struct mc_err *err)
{
    const struct mc_kv *kv = &e->crew.run[0].dev.kv;
    int32_t most = p->index ? kv->n_index : kv->n_layer;

    if (atomic_load(&e->failed))
        return mc_fail(err, MC_EINTERNAL, "the engine has failed");
    if (p->page < 0 || p->page >= mc_kv_total(e->kv))
        return mc_fail_param(err, MC_EARG, "page", "page %d is outside 0..%d", p->page,
                             mc_kv_total(e->kv) - 1);
    if (p->rank < 0 || p->rank >= e->crew.n)
        return mc_fail_param(err, MC_EARG, "rank", "rank %d is outside 0..%d", p->rank,
                             e->crew.n - 1);
    if (p->layer < 0 || p->layer >= most)
        return mc_fail_param(err, MC_EARG, p->index ? "index" : "layer",
                             "%s %d: there are %d", p->index ? "index" : "layer",
                             p->layer, most);
    return 0;
}

/* The rank whose memory holds the page. */
static int32_t rank_of(const struct mc_kv *kv, const struct mc_page_piece *p)
{
    return kv->n_shard > 1 ? p->rank / kv->n_shard * kv->n_shard + p->page % kv->n_shard
                           : p->rank;
}

/* The whole page of each rank, enqueued as any step is. */
static int copy_all(struct mc_engine *e, const int32_t *page, uint8_t *buf[MC_MAX_RANKS])
{
    int rc = 0;

    for (int32_t i = 0; i < e->crew.n && rc == 0; i++) {
        struct mc_run *run = &e->crew.run[i];
        const struct mc_page_copy_p p = {.kv = run->dev.kv, .pages = page, .n = 1,
                                         .buf = buf[i], .to_buf = true};

        rc = mc_k_page_copy(run->be, run->stream, &p);
    }
    return rc;
}

static int take(struct mc_engine *e, struct mc_mem *mem, int32_t **page,
                uint8_t *buf[MC_MAX_RANKS], struct mc_err *err)
{
    int32_t i = 0;

    mc_mem_init(mem, e->crew.run[0].be);
    *page = mc_mem_take_host(mem, sizeof **page);
    while (*page && i < e->crew.n) {
        buf[i] = mc_mem_take_host(mem, (size_t)e->crew.run[i].dev.kv.page_stride);
        if (!buf[i])
            break;
        i++;
    }
    return i == e->crew.n ? 0 : mc_fail(err, MC_ENOMEM, "no memory for a page");
}

static int cut_out(const struct mc_kv *kv, const struct mc_page_piece *p,
                   const uint8_t *from, struct mc_page_dump *out, struct mc_err *err)
{
    int64_t at = p->index ? kv->index_off + p->layer * kv->index_stride
                          : p->layer * kv->layer_stride;

    out->n = (size_t)(p->index ? kv->index_stride : kv->layer_stride);
    out->bytes = malloc(out->n);
    if (!out->bytes)
        return mc_fail(err, MC_ENOMEM, "no memory for %zu bytes", out->n);
    memcpy(out->bytes, from + at, out->n);
    return 0;
}

int mc_engine_dump(struct mc_engine *e, const struct mc_page_piece *p,
                   struct mc_page_dump *out, struct mc_err *err)
{
    uint8_t *buf[MC_MAX_RANKS];
    struct mc_mem mem = {0};
    uint64_t ticket = 0;
    int32_t *page = NULL;
    int rc, end;

    pthread_mutex_lock(&e->look);
    rc = check_piece(e, p, err);
    if (rc == 0)
        rc = take(e, &mem, &page, buf, err);
    if (rc == 0) {
        const struct mc_kv *kv = &e->crew.run[0].dev.kv;

        *page = p->page;
        *out = (struct mc_page_dump){.state = mc_kv_state(e->kv, p->page),
                                     .layout = mc_kv_layout_name(e->pool.layout),
                                     .tag = mc_kv_tag(e->kv, p->page),
                                     .rank = rank_of(kv, p),
                                     .n_layer = kv->n_layer,
                                     .n_index = kv->n_index};
        rc = copy_all(e, page, buf);
        ticket = mc_crew_mark(&e->crew);
        if (rc < 0)
            mc_fail(err, rc, "a page can't be copied: %s", mc_code_text(rc));
    }
    pthread_mutex_unlock(&e->look);
    end = ticket ? mc_crew_wait(&e->crew, ticket) : 0;
    if (end < 0) /* a rank that never comes back may still write: nothing is freed */
        return mc_fail(err, end, "a page can't be read: %s", mc_code_text(end));
    if (rc == 0)
        rc = cut_out(&e->crew.run[out->rank].dev.kv, p, buf[out->rank], out, err);
    mc_mem_fini(&mem);
    return rc;
}
