/* pair.c - two engines of one model: prompts are read by the one, answered by the other.
 *
 * A request goes to the engine that answers. Its prompt, but for the last token, is read by
 * the reader under the reader's own policy (the built-in one); the pages are copied out
 * behind the step that read the last of it, and in before the answering engine's step that
 * runs the last token. So the cache of a prompt is the reader's, every sampled token and
 * what follows is the other's. Who was forked, wants the prompt's logprobs, steers or
 * captures, generates nothing or has one token alone is not sent; who is preempted by
 * dropping its pages is read again by the engine that it is in.
 *
 * Owns parcels, each by count: a sequence that will land it, a sequence that fills it, and
 * every enqueued step that copies. THREAD: pair: before start. send: the submitter's.
 * on_read: the reader's engine thread, with its look held; it takes the other's inbox, and
 * of one that has failed its look: the reader's locks come first. The rest: each engine's
 * own.
 * Always true: a sequence is in one of away (its prompt is being read), inbox and live. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/engine/engine_int.h"

struct mc_parcel {
    atomic_int refs;
    struct mc_mem mem;
    int32_t n_page, n_ctx;
    int32_t *page;                 /* the pages that are read, then those that are written */
    uint32_t (*init)[2];           /* the latter with their tags */
    int32_t *n_init;
    uint8_t *buf[MC_MAX_RANKS];
    struct mc_engine *to;
    struct mc_seq *q;              /* of to; until it was read */
    struct mc_handle reading;      /* these three with to's inbox held */
    bool cancelled;
    char why[sizeof((struct mc_cancel *)0)->why];
    struct mc_end end;             /* the reader's */
};

/* ---- parcels ----------------------------------------------------------------------- */

static struct mc_parcel *ref(struct mc_parcel *p)
{
    atomic_fetch_add(&p->refs, 1);
    return p;
}

void mc_parcel_unref(struct mc_parcel *p)
{
    if (!p || atomic_fetch_sub(&p->refs, 1) > 1)
        return;
    mc_mem_fini(&p->mem);
    free(p);
}

static struct mc_parcel *parcel_new(struct mc_engine *e, struct mc_seq *q)
{
    struct mc_parcel *p = calloc(1, sizeof *p);
    bool ok;

    if (!p)
        return NULL;
    atomic_init(&p->refs, 1);
    mc_mem_init(&p->mem, e->model->be);
    p->to = e;
    p->q = q;
    p->n_ctx = q->n_ids - 1;
    p->n_page = (p->n_ctx + MC_PAGE - 1) / MC_PAGE;
    p->page = mc_mem_take_host(&p->mem, (size_t)p->n_page * sizeof *p->page);
    p->init = mc_mem_take_host(&p->mem, (size_t)p->n_page * sizeof *p->init);
    p->n_init = mc_mem_take_host(&p->mem, sizeof *p->n_init);
    ok = p->page && p->init && p->n_init;
    for (int32_t i = 0; i < e->crew.n && ok; i++) {
        int64_t bytes = e->crew.run[i].dev.kv.page_stride * p->n_page;

        p->buf[i] = mc_mem_take_host(&p->mem, (size_t)bytes);
        ok = p->buf[i] != NULL;
    }
    if (ok)
        return p;
    mc_parcel_unref(p);
    return NULL;
}

struct mc_parcel *mc_parcel_of(const struct mc_request *r)
{
    return r->parcel ? ref(r->parcel) : NULL;
}

int32_t mc_parcel_tokens(const struct mc_parcel *p)
{
    return p->n_ctx;
}

/* ---- there and back ---------------------------------------------------------------- */

static void unlink_away(struct mc_engine *e, const struct mc_seq *q)
{
    struct mc_seq **at = &e->away;

    while (*at && *at != q)
        at = &(*at)->next;
    if (*at)
        *at = q->next;
}

static void on_token(void *ctx, const struct mc_token *t)
{
    (void)ctx, (void)t;
}

static void on_read(void *ctx, const struct mc_end *end)
{
    struct mc_parcel *p = ctx;
    struct mc_engine *e = p->to;

    pthread_mutex_lock(&e->inbox);
    p->end = *end;
    unlink_away(e, p->q);
    mc_inbox_add(e, p->q);
    p->q = NULL;
    pthread_mutex_unlock(&e->inbox);
    if (atomic_load(&e->failed))
        mc_engine_bury(e);
}

bool mc_pair_takes(const struct mc_engine *e, const struct mc_request *r)
{
    return e->reader && r->n_ids > 1 && r->limit != 0 && !r->prompt_logprobs &&
           r->from.seq == 0 && r->n_steer == 0 && r->n_capture == 0;
}

int mc_pair_send(struct mc_engine *e, struct mc_seq *q, const struct mc_request *r,
                 struct mc_err *err)
{
    struct mc_parcel *p = parcel_new(e, q);
    struct mc_request ask = *r;
    struct mc_handle h = {0};
    char why[sizeof p->why];
    bool cancelled;
    int rc;

    if (!p)
        return mc_fail(err, MC_ENOMEM, "no memory for the pages of %d tokens", r->n_ids);
    ask.n_ids = p->n_ctx;
    ask.limit = 0;
    ask.n_top = -1;
    ask.n_bias = ask.n_stop = 0;
    ask.sink = (struct mc_sink){.token = on_token, .end = on_read, .ctx = p};
    ask.parcel = p;
    ref(p); /* for this function: it may be read, landed and forgotten meanwhile */
    q->lands = p;
    pthread_mutex_lock(&e->inbox);
    q->next = e->away;
    e->away = q;
    pthread_mutex_unlock(&e->inbox);
    rc = mc_engine_submit(e->reader, &ask, &h, err);
    pthread_mutex_lock(&e->inbox);
    if (rc < 0)
        unlink_away(e, q); /* its end is not called then */
    p->reading = h;
    cancelled = rc == 0 && p->q && p->cancelled;
    memcpy(why, p->why, sizeof why);
    pthread_mutex_unlock(&e->inbox);
    if (cancelled)
        mc_engine_cancel(e->reader, h, why[0] ? why : NULL);
    mc_parcel_unref(p);
    return rc;
}

void mc_pair_cancel(struct mc_engine *e, const struct mc_cancel *c)
{
    struct mc_handle reading = {0};
    struct mc_seq *q;

    pthread_mutex_lock(&e->inbox);
    for (q = e->away; q && (q->id != c->h.seq || q->gen != c->h.gen); q = q->next)
        ;
    if (q) {
        q->lands->cancelled = true;
        memcpy(q->lands->why, c->why, sizeof c->why);
        reading = q->lands->reading;
    }
    pthread_mutex_unlock(&e->inbox);
    if (reading.seq)
        mc_engine_cancel(e->reader, reading, c->why[0] ? c->why : NULL);
}

bool mc_pair_failed(struct mc_engine *e, struct mc_seq *q)
{
    const struct mc_end *end = q->lands ? &q->lands->end : NULL;

    if (!end || end->finish == MC_FINISH_LENGTH)
        return false;
    mc_seq_end(e, q, end->finish, -1, end->err.code ? &end->err : NULL);
    return true;
}

/* ---- with a step ------------------------------------------------------------------- */

void mc_pair_sends(struct mc_step *s, struct mc_seq *q)
{
    struct mc_parcel *p = q->sends;

    memcpy(p->page, q->page, (size_t)p->n_page * sizeof *p->page);
    s->sent[s->n_sent++] = ref(p);
}

bool mc_pair_land(struct mc_engine *e, struct mc_step *s, struct mc_seq *q)
{
    struct mc_parcel *p = q->lands;

    if (p->n_page > mc_kv_n_free(e->kv) + mc_kv_n_cached(e->kv))
        return false;
    for (int32_t i = 0; i < p->n_page; i++) {
        q->page[q->n_page++] = p->page[i] = mc_keep_take(e, -1, q, &p->init[i][1]);
        p->init[i][0] = (uint32_t)p->page[i];
    }
    *p->n_init = p->n_page;
    q->n_ctx = q->n_pub = p->n_ctx;
    q->n_shared_seen = 0;
    q->n_cached = p->end.usage.n_cached;
    q->lands = NULL;
    s->landed[s->n_landed++] = p;
    return true;
}

static int put(struct mc_run *run, int32_t rank, const struct mc_parcel *p, bool out)
{
    const struct mc_page_copy_p copy = {.kv = run->dev.kv, .pages = p->page,
                                        .n = p->n_page, .to_buf = out,
                                        .buf = p->buf[rank]};
    const struct mc_page_init_p init = {.kv = run->dev.kv, .list = &p->init[0][0],
                                        .n_list = p->n_init, .cap = p->n_page};
    int rc = out ? 0 : mc_k_page_init(run->be, run->stream, &init);

    return rc < 0 ? rc : mc_k_page_copy(run->be, run->stream, &copy);
}

int mc_pair_put(struct mc_engine *e, int32_t rank, const struct mc_step *s, bool out)
{
    struct mc_parcel *const *p = out ? s->sent : s->landed;
    int rc = 0;

    for (int32_t i = 0, n = out ? s->n_sent : s->n_landed; i < n && rc == 0; i++)
        rc = put(&e->crew.run[rank], rank, p[i], out);
    return rc;
}

void mc_pair_passed(struct mc_step *s)
{
    while (s->n_sent > 0)
        mc_parcel_unref(s->sent[--s->n_sent]);
    while (s->n_landed > 0)
        mc_parcel_unref(s->landed[--s->n_landed]);
}

/* ---- pairing ----------------------------------------------------------------------- */

static bool same_tokens(const struct mc_tok *a, const struct mc_tok *b)
{
    bool same = mc_tok_n(a) == mc_tok_n(b);

    for (int32_t i = 0; i < mc_tok_n(a) && same; i++) {
        size_t n, m;
        bool x, y;
        const char *s = mc_tok_piece(a, i, &n, &x), *t = mc_tok_piece(b, i, &m, &y);

        same = n == m && x == y && memcmp(s, t, n) == 0;
    }
    return same;
}

static bool same_pages(const struct mc_kv *a, const struct mc_kv *b)
{
    return a->layout == b->layout && a->page_stride == b->page_stride &&
           a->layer_stride == b->layer_stride && a->n_layer == b->n_layer &&
           a->hk == b->hk && a->d == b->d && a->c == b->c && a->r == b->r &&
           a->index_d == b->index_d && a->n_index == b->n_index && !a->k_scale &&
           !b->k_scale && !a->v_scale && !b->v_scale;
}

static const char *differ(const struct mc_engine *a, const struct mc_engine *b)
{
    const struct mc_config *x = &a->model->cfg, *y = &b->model->cfg;

    if (strcmp(x->family, y->family) != 0 || x->n_layer != y->n_layer ||
        x->hidden != y->hidden || x->n_head != y->n_head || x->rope_theta != y->rope_theta)
        return "they are not of one shape";
    if (!same_tokens(a->tok, b->tok))
        return "their tokenizers differ";
    if (strcmp(a->model->be->name, b->model->be->name) != 0 || a->crew.n != b->crew.n)
        return "they run on different backends or ranks";
    if (mc_ranks_shards(&a->ranks) > 1 || mc_ranks_shards(&b->ranks) > 1)
        return "tokens that are spread over ranks (--shard-tokens) are not handed over";
    for (int32_t i = 0; i < a->crew.n; i++)
        if (!same_pages(&a->crew.run[i].dev.kv, &b->crew.run[i].dev.kv))
            return "their caches differ, or have scales of their own";
    if (b->o.max_context < a->o.max_context)
        return "the one that reads holds a shorter context (--max-context)";
    return NULL;
}

int mc_engine_pair(struct mc_engine *e, struct mc_engine *reader, struct mc_err *err)
{
    const double gib = 1 << 30;
    double have = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    double a = mc_engine_bytes(e), b = mc_engine_bytes(reader);
    const char *why = differ(e, reader);

    if (why)
        return mc_fail_param(err, MC_EARG, "prefill_model",
                             "the model and its prefill model can't share pages: %s", why);
    if (a + b > have)
        return mc_fail_param(err, MC_EARG, "prefill_model",
                             "%.1f GiB of the model and %.1f GiB of its prefill model are "
                             "%.1f GiB, more than this machine's %.1f GiB",
                             a / gib, b / gib, (a + b) / gib, have / gib);
    e->reader = reader;
    return 0;
}
