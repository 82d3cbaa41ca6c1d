/* hold.c - contexts that are kept: whole pages held by no sequence, saved and read back.
 *
 * Owns a reference to each page of a context that is held. THREAD: any; whoever touches
 * the pages' counts or enqueues holds `look`, as dump.c does. Always true: a page that is
 * held this way is full and findable: nobody writes into it. At most a quarter of the
 * pool is held so, for the scripts of all sessions together. */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "core/engine/engine_int.h"
#include "core/engine/kv_file.h"

enum { AT_ONCE = 8 }; /* pages copied between two steps */

struct mc_held {
    uint32_t tenant;
    int32_t n_page;
    int32_t *page, *ids; /* [n_page], [n_page * MC_PAGE] */
};

static int32_t most_held(const struct mc_engine *e)
{
    return mc_kv_total(e->kv) / 4;
}

/* With look held. */
static int32_t room(const struct mc_engine *e)
{
    int32_t left = most_held(e) - e->n_kept; /* below 0 in a pool that was made smaller */

    return left > 0 ? left : 0;
}

static int no_room(const struct mc_engine *e, struct mc_err *err)
{
    return mc_fail(err, MC_ELIMIT,
                   "contexts that are kept hold %d pages and may hold %d, a quarter of the pool",
                   e->n_kept, most_held(e));
}

static struct mc_held *held_new(int32_t n_page, const int32_t *ids)
{
    struct mc_held *h = calloc(1, sizeof *h);
    size_t n = (size_t)(n_page > 0 ? n_page : 1);

    if (!h)
        return NULL;
    h->page = malloc(n * sizeof *h->page);
    h->ids = malloc(n * MC_PAGE * sizeof *h->ids);
    if (!h->page || !h->ids) {
        free(h->page), free(h->ids), free(h);
        return NULL;
    }
    memcpy(h->ids, ids, (size_t)n_page * MC_PAGE * sizeof *ids);
    return h;
}

/* With look held. */
static void give_all(struct mc_engine *e, struct mc_held *h)
{
    uint64_t ticket = mc_crew_mark(&e->crew);

    e->n_kept -= h->n_page;
    while (h->n_page > 0)
        mc_kv_give(e->kv, h->page[--h->n_page], 0, ticket);
    if (e->n_published == e->n_step)
        mc_kv_settle(e->kv, UINT64_MAX);
}

void mc_engine_release(struct mc_engine *e, struct mc_held *h)
{
    if (!h)
        return;
    pthread_mutex_lock(&e->look);
    give_all(e, h);
    pthread_mutex_unlock(&e->look);
    free(h->page), free(h->ids), free(h);
}

int mc_engine_hold(struct mc_engine *e, const int32_t *ids, int32_t n,
                   const struct mc_who *who, struct mc_held **out, struct mc_err *err)
{
    struct mc_hash root = mc_seq_root(who->tenant, who->salt);
    struct mc_held *h = held_new(n / MC_PAGE, ids);
    int rc = 0;

    if (!h)
        return mc_fail(err, MC_ENOMEM, "no memory for a context of %d tokens", n);
    pthread_mutex_lock(&e->look);
    if (mc_kv_find_all(e->kv, root, ids, n, NULL) > room(e))
        rc = no_room(e, err);
    else
        h->n_page = mc_kv_find_all(e->kv, root, ids, n, h->page);
    e->n_kept += h->n_page;
    pthread_mutex_unlock(&e->look);
    if (rc < 0) {
        mc_engine_release(e, h);
        return rc;
    }
    *out = h;
    return 0;
}

const int32_t *mc_held_ids(const struct mc_held *h, int32_t *n)
{
    *n = h->n_page * MC_PAGE;
    return h->ids;
}

/* ---- copies between steps ---------------------------------------------------------- */

static uint64_t page_bytes(const struct mc_engine *e)
{
    return (uint64_t)e->swap.page_bytes;
}

/* A sum of `of` and of n bytes. */
static XXH128_hash_t add(XXH128_hash_t of, const void *data, size_t n)
{
    return XXH3_128bits_withSeed(data, n, of.low64 ^ of.high64);
}

/* Which model it is: its shape, some of its first weights, its last norm. */
static XXH128_hash_t model_sum(const struct mc_model *m)
{
    const int32_t shape[] = {m->cfg.vocab, m->cfg.hidden, m->cfg.n_layer, m->cfg.n_head,
                             m->cfg.n_kv_head};
    const struct mc_w *w = &m->end.w[MC_M_EMBED];
    XXH128_hash_t sum = XXH3_128bits(m->cfg.family, strlen(m->cfg.family));

    sum = add(sum, shape, sizeof shape);
    sum = add(sum, w->q, w->bytes < 65536 ? w->bytes / 2 : 32768);
    return add(sum, m->end.v[MC_V_NORM], (size_t)m->cfg.hidden * sizeof(float));
}

/* What a file that this engine writes says of it. */
static int describe(struct mc_engine *e, struct mc_kv_file *h, struct mc_err *err)
{
    const struct mc_model *m = e->model;
    XXH128_hash_t sum;

    if (atomic_load(&e->failed))
        return mc_fail(err, MC_EINTERNAL, "the engine has failed");
    if (mc_ranks_shards(&e->ranks) > 1 || !mc_mem_is_host(m->be))
        return mc_fail(err, MC_EUNSUP,
                       "contexts can't be saved where tokens are spread over "
                       "ranks, nor from backend %s",
                       m->be->name);
    sum = model_sum(m);
    mc_kv_file_begin(h);
    h->layout = e->pool.layout;
    h->page_tokens = MC_PAGE;
    h->n_rank = (uint32_t)e->crew.n;
    h->page_bytes = page_bytes(e);
    h->model_lo = sum.low64;
    h->model_hi = sum.high64;
    return 0;
}

/* Staging for AT_ONCE pages of every rank. */
struct staging {
    struct mc_mem mem;
    int32_t *page, *n_init;
    uint32_t (*init)[2];
    uint8_t *buf[MC_MAX_RANKS];
};

static int open_staging(struct mc_engine *e, struct staging *s, struct mc_err *err)
{
    int32_t i = 0;

    mc_mem_init(&s->mem, e->crew.run[0].be);
    s->page = mc_mem_take_host(&s->mem, AT_ONCE * sizeof *s->page);
    s->n_init = mc_mem_take_host(&s->mem, sizeof *s->n_init);
    s->init = mc_mem_take_host(&s->mem, AT_ONCE * sizeof *s->init);
    while (i < e->crew.n) {
        s->buf[i] = mc_mem_take_host(&s->mem,
                                     AT_ONCE * (size_t)e->crew.run[i].dev.kv.page_stride);
        if (!s->buf[i])
            break;
        i++;
    }
    if (i == e->crew.n && s->page && s->n_init && s->init)
        return 0;
    mc_mem_fini(&s->mem);
    return mc_fail(err, MC_ENOMEM, "no memory for %d pages", AT_ONCE);
}

/* n pages between the pool and the staging, on every rank, as any step is enqueued; those
 * that come in are stamped first. */
static int copy(struct mc_engine *e, struct staging *s, int32_t n, bool out)
{
    uint64_t ticket;
    int rc = 0, end;

    pthread_mutex_lock(&e->look);
    *s->n_init = n;
    for (int32_t i = 0; i < e->crew.n && rc == 0; i++) {
        struct mc_run *run = &e->crew.run[i];
        const struct mc_page_init_p init = {.kv = run->dev.kv, .list = &s->init[0][0],
                                            .n_list = s->n_init, .cap = n};
        const struct mc_page_copy_p p = {.kv = run->dev.kv, .pages = s->page, .n = n,
                                         .buf = s->buf[i], .to_buf = out};

        if (!out)
            rc = mc_k_page_init(run->be, run->stream, &init);
        if (rc == 0)
            rc = mc_k_page_copy(run->be, run->stream, &p);
    }
    ticket = mc_crew_mark(&e->crew);
    pthread_mutex_unlock(&e->look);
    end = mc_crew_wait(&e->crew, ticket);
    if (end < 0) /* a rank that never comes back may still use it: nothing is freed */
        mc_mem_init(&s->mem, e->crew.run[0].be);
    return rc < 0 ? rc : end;
}

/* Page k of the staging, of every rank, from or to one run of bytes. */
static void splice(const struct mc_engine *e, const struct staging *s, int32_t k,
                   uint8_t *bytes, bool out)
{
    for (int32_t i = 0; i < e->crew.n; i++) {
        size_t n = (size_t)e->crew.run[i].dev.kv.page_stride;
        uint8_t *at = s->buf[i] + (size_t)k * n;

        memcpy(out ? bytes : at, out ? at : bytes, n);
        bytes += n;
    }
}

uint64_t mc_held_bytes(const struct mc_engine *e, const struct mc_held *h)
{
    return (uint64_t)h->n_page * page_bytes(e);
}

uint64_t mc_engine_pack_most(struct mc_engine *e)
{
    uint64_t n;

    pthread_mutex_lock(&e->look);
    n = (uint64_t)most_held(e) * (page_bytes(e) + MC_PAGE * sizeof(int32_t));
    pthread_mutex_unlock(&e->look);
    return n + sizeof(struct mc_kv_file) + MC_KV_FILE_SUM;
}

/* ---- saving ------------------------------------------------------------------------ */

static int pages_out(struct mc_engine *e, const struct mc_held *h, uint8_t *to,
                     struct mc_err *err)
{
    struct staging s = {0};
    int rc = open_staging(e, &s, err);

    for (int32_t i = 0; i < h->n_page && rc == 0; i += AT_ONCE) {
        int32_t n = h->n_page - i < AT_ONCE ? h->n_page - i : AT_ONCE;

        memcpy(s.page, h->page + i, (size_t)n * sizeof *s.page);
        rc = copy(e, &s, n, true);
        if (rc < 0)
            mc_fail(err, rc, "pages can't be read: %s", mc_code_text(rc));
        for (int32_t k = 0; k < n && rc == 0; k++)
            splice(e, &s, k, to + (uint64_t)(i + k) * page_bytes(e), true);
    }
    mc_mem_fini(&s.mem);
    return rc;
}

int mc_engine_pack(struct mc_engine *e, const struct mc_held *h, uint8_t **data,
                   size_t *n, struct mc_err *err)
{
    struct mc_kv_file head;
    size_t ids = (size_t)h->n_page * MC_PAGE * sizeof *h->ids;
    int rc = describe(e, &head, err);

    if (rc == 0 && h->n_page < 1)
        rc = mc_fail(err, MC_EARG,
                     "a context without a whole page (%d tokens) can't be saved",
                     MC_PAGE);
    if (rc < 0)
        return rc;
    head.n_page = (uint32_t)h->n_page;
    *n = sizeof head + ids + (size_t)h->n_page * head.page_bytes + MC_KV_FILE_SUM;
    *data = malloc(*n);
    if (!*data)
        return mc_fail(err, MC_ENOMEM, "no memory for %zu bytes", *n);
    memcpy(*data, &head, sizeof head);
    memcpy(*data + sizeof head, h->ids, ids);
    rc = pages_out(e, h, *data + sizeof head + ids, err);
    if (rc < 0) {
        free(*data);
        return rc;
    }
    mc_kv_file_sum(*data, *n - MC_KV_FILE_SUM, *data + *n - MC_KV_FILE_SUM);
    return 0;
}

/* ---- reading back ------------------------------------------------------------------ */

/* Takes page i of a context: one that is there already, else a fresh one that is to be
 * filled. */
static int take_page(struct mc_engine *e, struct mc_held *h, struct mc_hash hash,
                     struct staging *s, int32_t *n_fresh, struct mc_err *err)
{
    const int32_t *ids = h->ids + h->n_page * MC_PAGE;
    int32_t page;
    uint32_t tag;

    if (room(e) == 0)
        return no_room(e, err);
    page = mc_kv_find_take(e->kv, hash, ids, 0);
    if (page < 0) {
        page = mc_kv_take(e->kv, -1, 0, &tag);
        if (page < 0)
            return mc_fail(err, MC_EPAGES, "no free KV pages");
        s->page[*n_fresh] = page;
        s->init[*n_fresh][0] = (uint32_t)page;
        s->init[*n_fresh][1] = tag;
        ++*n_fresh;
    }
    h->page[h->n_page++] = page;
    e->n_kept++;
    return 0;
}

/* Pages [from, from+n) of the file; the fresh ones are findable only when they are
 * filled. */
static int pages_in(struct mc_engine *e, struct mc_held *h, struct staging *s,
                    const struct mc_kv_pages *f, const struct mc_hash *hash, int32_t from,
                    int32_t n, struct mc_err *err)
{
    int32_t n_fresh = 0, fresh[AT_ONCE];
    int rc = 0;

    pthread_mutex_lock(&e->look);
    for (int32_t i = from; i < from + n && rc == 0; i++) {
        int32_t before = n_fresh;

        rc = take_page(e, h, hash[i], s, &n_fresh, err);
        if (n_fresh > before)
            fresh[before] = i;
    }
    pthread_mutex_unlock(&e->look);
    if (rc < 0 || n_fresh == 0)
        return rc;
    for (int32_t k = 0; k < n_fresh; k++)
        splice(e, s, k,
               (uint8_t *)(uintptr_t)f->pages + (uint64_t)fresh[k] * page_bytes(e),
               false);
    rc = copy(e, s, n_fresh, false);
    if (rc < 0)
        return mc_fail(err, rc, "pages can't be written: %s", mc_code_text(rc));
    pthread_mutex_lock(&e->look);
    for (int32_t k = 0; k < n_fresh; k++) {
        mc_kv_publish(e->kv, s->page[k], hash[fresh[k]], f->ids + fresh[k] * MC_PAGE);
        mc_kv_note(e->kv, s->page[k], h->tenant, fresh[k]);
    }
    pthread_mutex_unlock(&e->look);
    return 0;
}

static int take_in(struct mc_engine *e, const struct mc_kv_pages *f,
                   const struct mc_who *who, struct mc_held *h, struct mc_err *err)
{
    struct mc_hash *hash = malloc((size_t)f->n_page * sizeof *hash),
                   last = mc_seq_root(who->tenant, who->salt);
    struct staging s = {0};
    int rc = hash ? open_staging(e, &s, err) : mc_fail(err, MC_ENOMEM, "no memory");

    if (rc < 0) {
        free(hash);
        return rc;
    }
    h->tenant = who->tenant;
    for (int32_t i = 0; i < f->n_page; i++)
        hash[i] = last = mc_kv_chain(last, f->ids + i * MC_PAGE);
    for (int32_t i = 0; i < f->n_page && rc == 0; i += AT_ONCE)
        rc = pages_in(e, h, &s, f, hash, i,
                      f->n_page - i < AT_ONCE ? f->n_page - i : AT_ONCE, err);
    free(hash);
    mc_mem_fini(&s.mem);
    return rc;
}

int mc_engine_unpack(struct mc_engine *e, const uint8_t *data, size_t n,
                     const struct mc_who *who, struct mc_held **out, struct mc_err *err)
{
    struct mc_kv_file mine;
    struct mc_kv_pages f;
    struct mc_held *h;
    int rc = describe(e, &mine, err);

    if (rc < 0)
        return rc;
    pthread_mutex_lock(&e->look);
    mine.n_page = (uint32_t)room(e);
    pthread_mutex_unlock(&e->look);
    rc = mc_kv_file_check(data, n, &mine, e->model->n_real, &f, err);
    if (rc < 0)
        return rc;
    h = held_new(f.n_page, f.ids);
    if (!h)
        return mc_fail(err, MC_ENOMEM, "no memory for %d pages", f.n_page);
    rc = take_in(e, &f, who, h, err);
    if (rc < 0) {
        mc_engine_release(e, h);
        return rc;
    }
    *out = h;
    return 0;
}
