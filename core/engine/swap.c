/* swap.c - pages that move with a step: to host memory and back, and copied for a fork.
 *
 * Owns the host pools (a page in each place of a rank's) and each step's list of moves.
 * THREAD: the engine's.
 * Always true: a sequence in host memory holds no page of the pool. Moves run in stream
 * order before their step's forward pass: what comes back, then what goes out, then
 * copies. So a place in the host pool that one step empties may be filled by the same
 * one, and a page that is given away is read before its next owner's step clears it.
 * Ranks that share tokens are in no such order with each other: place p, as page p, is
 * the p mod n-th rank's alone. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/engine/engine_int.h"

enum { TRY_PAGES = 8 };
static const int64_t DEFAULT_BYTES = 4ll << 30;

/* Of all ranks that have a page each: of those that share tokens one does. */
static int64_t page_bytes(const struct mc_engine *e)
{
    int64_t n = 0;

    for (int32_t i = 0; i < e->crew.n; i += mc_ranks_shards(&e->ranks))
        n += e->crew.run[i].dev.kv.page_stride;
    return n;
}

/* ---- enqueueing -------------------------------------------------------------------- */

/* Pages to or from places of the host pool, a copy for each run of neighbours there.
 * Ranks that share tokens copy their own of them, one by one. */
static int move(struct mc_run *run, uint8_t *pool, const int32_t *page,
                const int32_t *place, int32_t n, bool out)
{
    const struct mc_kv *kv = &run->dev.kv;
    int rc = 0;

    for (int32_t i = 0, k; i < n && rc == 0; i += k) {
        struct mc_page_copy_p p = {.kv = *kv, .pages = page + i, .to_buf = out};

        for (k = 1; kv->n_shard == 1 && i + k < n && place[i + k] == place[i] + k; k++)
            ;
        p.n = k;
        p.buf = pool + place[i] / kv->n_shard * kv->page_stride;
        rc = mc_k_page_copy(run->be, run->stream, &p);
    }
    return rc;
}

static int copy(struct mc_run *run, const int32_t *from, const int32_t *to, int32_t n)
{
    int rc = 0;

    for (int32_t i = 0; i < n && rc == 0; i++) {
        const struct mc_kv *kv = &run->dev.kv; /* both pages are one rank's */
        struct mc_page_copy_p p = {.kv = *kv,
                                   .pages = from + i,
                                   .n = 1,
                                   .to_buf = true,
                                   .buf = kv->base +
                                          to[i] / kv->n_shard * kv->page_stride};

        rc = mc_k_page_copy(run->be, run->stream, &p);
    }
    return rc;
}

int mc_moves_put(struct mc_engine *e, int32_t rank, const struct mc_moves *m)
{
    struct mc_run *run = &e->crew.run[rank];
    int rc = 0;

    if (*m->n_in > 0) {
        const struct mc_page_init_p init = {.kv = run->dev.kv, .list = &m->init[0][0],
                                            .n_list = m->n_in, .cap = *m->n_in};

        rc = mc_k_page_init(run->be, run->stream, &init);
    }
    if (rc == 0)
        rc = move(run, e->swap.pool[rank], m->in_page, m->in_place, *m->n_in, false);
    if (rc == 0)
        rc = move(run, e->swap.pool[rank], m->out_page, m->out_place, m->n_out, true);
    return rc < 0 ? rc : copy(run, m->from, m->to, m->n_copy);
}

bool mc_moves_any(const struct mc_moves *m)
{
    return *m->n_in + m->n_out + m->n_copy > 0;
}

double mc_moves_bytes(const struct mc_engine *e, const struct mc_moves *m)
{
    return (double)(*m->n_in + m->n_out) * (double)e->swap.page_bytes;
}

void mc_moves_reset(struct mc_moves *m)
{
    *m->n_in = m->n_out = m->n_copy = 0;
}

/* ---- places ------------------------------------------------------------------------ */

/* The k-th of the empty places of a shard. */
static int32_t *free_slot(struct mc_engine *e, int32_t shard, int32_t k)
{
    return &e->swap.free[k * mc_ranks_shards(&e->ranks) + shard];
}

static void give_place(struct mc_engine *e, int32_t place)
{
    int32_t shard = place % mc_ranks_shards(&e->ranks);

    *free_slot(e, shard, e->swap.n_free[shard]++) = place;
}

static int32_t take_place(struct mc_engine *e, int32_t shard)
{
    return *free_slot(e, shard, --e->swap.n_free[shard]);
}

/* Is there a place for each of the pages? */
static bool places_for(const struct mc_engine *e, const int32_t *page, int32_t n)
{
    int32_t left[MC_MAX_RANKS];

    memcpy(left, e->swap.n_free, sizeof left);
    for (int32_t i = 0; i < n; i++)
        if (left[mc_kv_shard(e->kv, page[i])]-- == 0)
            return false;
    return true;
}

int32_t mc_swap_n_free(const struct mc_engine *e)
{
    int32_t n = 0;

    for (int32_t i = 0; i < mc_ranks_shards(&e->ranks); i++)
        n += e->swap.n_free[i];
    return n;
}

int32_t mc_swap_ready(const struct mc_engine *e)
{
    int32_t shards = mc_ranks_shards(&e->ranks), least = e->swap.n_free[0];

    for (int32_t i = 1; i < shards; i++)
        least = e->swap.n_free[i] < least ? e->swap.n_free[i] : least;
    return least * shards;
}

/* ---- opening ----------------------------------------------------------------------- */

/* As many pages as were asked for, of ranks that share tokens whole rounds; unasked, as
 * many as the pool has, up to 4 GiB and an eighth of memory. */
int32_t mc_swap_places(const struct mc_engine *e, int64_t page)
{
    int64_t most = sysconf(_SC_PHYS_PAGES) / 8 * sysconf(_SC_PAGESIZE);
    int64_t n = e->o.swap_bytes / page;
    int32_t shards = mc_ranks_shards(&e->ranks);

    if (!e->model->be->op[MC_OP_page_copy] || n < 0)
        return 0;
    most = (most < DEFAULT_BYTES ? most : DEFAULT_BYTES) / (e->ranks.n / shards) / page;
    if (e->o.swap_bytes == 0)
        n = most < (int64_t)e->pool.n_page * shards ? most
                                                    : (int64_t)e->pool.n_page * shards;
    n = n > INT32_MAX / 2 ? INT32_MAX / 2 : n;
    return (int32_t)(n - n % shards);
}

static int open_moves(struct mc_engine *e, struct mc_moves *m)
{
    size_t n = (size_t)(e->swap.n ? e->swap.n : 1), slots = (size_t)e->n_slot;
    struct mc_mem *mem = &e->mem;

    m->n_in = mc_mem_take_host(mem, sizeof *m->n_in);
    m->init = mc_mem_take_host(mem, n * sizeof *m->init);
    m->in_page = mc_mem_take_host(mem, n * sizeof *m->in_page);
    m->in_place = mc_mem_take_host(mem, n * sizeof *m->in_place);
    m->out_page = mc_mem_take_host(mem, n * sizeof *m->out_page);
    m->out_place = mc_mem_take_host(mem, n * sizeof *m->out_place);
    m->from = mc_mem_take_host(mem, slots * sizeof *m->from);
    m->to = mc_mem_take_host(mem, slots * sizeof *m->to);
    return m->n_in && m->init && m->in_page && m->in_place && m->out_page &&
                   m->out_place && m->from && m->to
               ? 0
               : MC_ENOMEM;
}

static int there_and_back(struct mc_engine *e, struct mc_moves *m, int32_t n)
{
    int rc = 0;

    for (int half = 0; half < 2 && rc == 0; half++) {
        m->n_out = half ? 0 : n;
        *m->n_in = half ? n : 0;
        for (int32_t i = 0; i < e->crew.n && rc == 0; i++)
            rc = mc_moves_put(e, i, m);
    }
    return rc < 0 ? rc : mc_crew_wait(&e->crew, mc_crew_mark(&e->crew));
}

/* Bytes a microsecond, by moving pages that nobody has yet: once to touch the memory,
 * once by the clock. */
static int measure(struct mc_engine *e)
{
    struct mc_swap *w = &e->swap;
    struct mc_moves *m = &e->step[0].moves;
    int32_t n = w->n < TRY_PAGES ? w->n : TRY_PAGES;
    double t0;
    int rc;

    n = n < e->pool.n_page ? n : e->pool.n_page;
    for (int32_t i = 0; i < n; i++) {
        m->in_page[i] = m->out_page[i] = m->in_place[i] = m->out_place[i] = i;
        m->init[i][0] = (uint32_t)i; /* tag 0: a page never taken */
    }
    rc = there_and_back(e, m, n);
    t0 = mc_now();
    if (rc == 0)
        rc = there_and_back(e, m, n);
    w->bytes_us = (float)(2 * n * (double)w->page_bytes / ((mc_now() - t0) * 1e6 + 1));
    mc_moves_reset(m);
    return rc;
}

int mc_swap_open(struct mc_engine *e, struct mc_err *err)
{
    struct mc_swap *w = &e->swap;
    int32_t shards = mc_ranks_shards(&e->ranks);
    int rc = 0;

    w->page_bytes = page_bytes(e);
    w->n = mc_swap_places(e, e->crew.run[0].dev.kv.page_stride);
    w->free = calloc((size_t)w->n + 1, sizeof *w->free);
    for (int32_t i = 0; i < e->crew.n && w->n > 0; i++) {
        struct mc_run *run = &e->crew.run[i];
        size_t bytes = (size_t)(w->n / shards) * (size_t)run->dev.kv.page_stride;

        w->pool[i] = mc_mem_take_host(&run->mem, bytes);
        rc = w->pool[i] ? rc : MC_ENOMEM;
    }
    for (int k = 0; k < MC_DEPTH && rc == 0; k++)
        rc = open_moves(e, &e->step[k].moves);
    if (rc < 0 || !w->free)
        return mc_fail(err, MC_ENOMEM, "no memory for %d preempted pages: lower "
                       "--swap-memory", w->n);
    for (int32_t i = w->n - 1; i >= 0 && w->free; i--)
        give_place(e, i);
    rc = w->n > 0 ? measure(e) : 0;
    return rc < 0 ? mc_fail(err, rc, "a page can't be moved: %s", mc_code_text(rc)) : 0;
}

void mc_swap_close(struct mc_engine *e)
{
    free(e->swap.free);
}

/* ---- sequences --------------------------------------------------------------------- */

bool mc_moves_copy(struct mc_engine *e, struct mc_step *s, struct mc_seq *q, int32_t page)
{
    struct mc_moves *m = &s->moves;
    int32_t was = q->n_page;

    if (was == 0)
        q->shard = mc_kv_shard(e->kv, page);
    if (m->n_copy == e->n_slot ||
        mc_step_grow(e, s, q, (was + 1) * MC_PAGE) < (was + 1) * MC_PAGE)
        return false;
    m->from[m->n_copy] = page;
    m->to[m->n_copy++] = q->page[was];
    return true;
}

bool mc_swap_out(struct mc_engine *e, struct mc_step *s, struct mc_seq *q)
{
    struct mc_moves *m = &s->moves;
    int32_t n = (q->n_ctx + MC_PAGE - 1) / MC_PAGE, n_ctx = q->n_ctx;
    int32_t shard = n > 0 ? mc_kv_shard(e->kv, q->page[0]) : -1;

    if (!places_for(e, q->page, n) || m->n_out + n > e->swap.n)
        return false;
    for (int32_t i = 0; i < n; i++) {
        q->place[i] = take_place(e, mc_kv_shard(e->kv, q->page[i]));
        m->out_page[m->n_out] = q->page[i];
        m->out_place[m->n_out++] = q->place[i];
    }
    q->n_place = n;
    mc_seq_drop_pages(e, q);
    q->n_ctx = n_ctx;
    q->shard = shard;
    return true;
}

void mc_swap_forget(struct mc_engine *e, struct mc_seq *q)
{
    while (q->n_place > 0)
        give_place(e, q->place[--q->n_place]);
}

/* One page comes back into a fresh one. */
static void bring(struct mc_engine *e, struct mc_moves *m, struct mc_seq *q, int32_t i)
{
    uint32_t tag;
    int32_t shard = i > 0 ? mc_kv_next_shard(e->kv, q->page, i) : q->shard;
    int32_t page = mc_keep_take(e, shard, q, &tag), at = (*m->n_in)++;

    m->init[at][0] = (uint32_t)page;
    m->init[at][1] = tag;
    m->in_page[at] = page;
    m->in_place[at] = q->place[i];
    q->page[q->n_page++] = page;
}

/* Is each page that nobody holds to be had, with the rank where it must lie? What is
 * cached of them comes without a copy, but is not there for others. */
static bool pages_for(const struct mc_engine *e, const struct mc_seq *q,
                      const struct mc_found *f)
{
    int32_t left[MC_MAX_RANKS], shards = mc_ranks_shards(&e->ranks);

    for (int32_t i = 0; i < shards; i++)
        left[i] = mc_kv_n_ready(e->kv, i) + f->held_on[i];
    for (int32_t i = 0; i < q->n_place; i++)
        if (left[(q->shard + i) % shards]-- == 0)
            return false;
    return true;
}

bool mc_swap_in(struct mc_engine *e, struct mc_step *s, struct mc_seq *q)
{
    struct mc_moves *m = &s->moves;
    int32_t n_ctx = q->n_ctx, n = q->n_place;
    struct mc_found f = mc_prefix_look(e, q);

    if (f.n < n_ctx && (!pages_for(e, q, &f) || *m->n_in + n > e->swap.n))
        return false;
    mc_prefix_take(e, f.n < n_ctx ? NULL : s, q);
    if (f.n < n_ctx) {
        for (int32_t i = q->n_page; i < n; i++)
            bring(e, m, q, i);
        q->n_ctx = q->n_pub = n_ctx < q->n_ids ? n_ctx : q->n_ids - 1;
    }
    mc_swap_forget(e, q);
    return true;
}
