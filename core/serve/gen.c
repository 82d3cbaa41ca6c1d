/* gen.c - engine tokens become text pieces.
 *
 * Owns the queue of tokens (ring), the text that was not taken yet and a reference for
 * each side: the engine's goes with the sink's end, the reader's with mc_gen_close.
 * THREAD: on_token and on_end on the engine thread; the rest on the reader's, one at a
 * time. `lock` guards what both touch; `bell` is held while on_ready runs, so that after
 * mc_gen_close it is not running and never runs again. They are never held together.
 *
 * All text work is the reader's: the engine thread copies a token and leaves.
 *
 * Always true on the reader's side: a token's piece waits for the next token or the end
 * while any text is held, because what is held at the end needs a piece to go with. */
#include "core/serve/gen.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/thread.h"
#include "core/serve/text.h"

enum { RING_START = 32 };

struct queued {
    struct mc_token token;
    bool prompt;
};

struct mc_gen {
    struct mc_engine *engine;
    struct mc_handle handle;
    atomic_int refs;

    pthread_mutex_t bell;
    void (*on_ready)(void *);
    void *ctx;

    pthread_mutex_t lock;
    pthread_cond_t more;
    struct queued *ring; /* [cap], cap a power of two */
    size_t head, n, cap;
    bool ended, closed, lost; /* lost: memory ran out, the text has a hole */
    struct mc_end end;        /* the reader's once ended */

    struct mc_text text;
    bool keep_special, pending;
    struct mc_token token; /* pending: the token that the next piece is of */
    int32_t n_seen;
};

static void unref(struct mc_gen *g)
{
    if (atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_cond_destroy(&g->more);
    pthread_mutex_destroy(&g->lock);
    pthread_mutex_destroy(&g->bell);
    mc_text_fini(&g->text);
    free(g->ring);
    free(g);
}

/* ---- the engine's side ------------------------------------------------------------- */

static void ring_bell(struct mc_gen *g)
{
    pthread_mutex_lock(&g->bell);
    if (g->on_ready)
        g->on_ready(g->ctx);
    pthread_mutex_unlock(&g->bell);
}

/* Makes room for one more; only a reader that lags 32 tokens behind costs memory here. */
static bool ring_grow(struct mc_gen *g)
{
    size_t cap = g->cap * 2;
    struct queued *ring = malloc(cap * sizeof *ring);

    if (!ring)
        return false;
    for (size_t i = 0; i < g->n; i++)
        ring[i] = g->ring[(g->head + i) & (g->cap - 1)];
    free(g->ring);
    g->ring = ring;
    g->cap = cap;
    g->head = 0;
    return true;
}

static void enqueue(struct mc_gen *g, const struct mc_token *t, bool prompt)
{
    bool first = false;

    pthread_mutex_lock(&g->lock);
    if (!g->closed && !g->lost) {
        if (g->n == g->cap && !ring_grow(g)) {
            g->lost = true;
        } else {
            first = g->n == 0;
            g->ring[(g->head + g->n++) & (g->cap - 1)] = (struct queued){*t, prompt};
        }
        pthread_cond_signal(&g->more);
    }
    pthread_mutex_unlock(&g->lock);
    if (first)
        ring_bell(g);
}

static void on_token(void *ctx, const struct mc_token *t)
{
    enqueue(ctx, t, false);
}

static void on_prompt(void *ctx, const struct mc_token *t)
{
    enqueue(ctx, t, true);
}

static void on_end(void *ctx, const struct mc_end *e)
{
    struct mc_gen *g = ctx;

    pthread_mutex_lock(&g->lock);
    g->end = *e;
    g->ended = true;
    pthread_cond_signal(&g->more);
    pthread_mutex_unlock(&g->lock);
    ring_bell(g);
    unref(g);
}

/* ---- the reader's side ------------------------------------------------------------- */

struct look {
    bool got, prompt, more, ended, lost;
};

/* The state of the queue; takes the next token off it when t is not NULL. What lies
 * behind a cut or a hole is dropped. */
static struct look look(struct mc_gen *g, struct mc_token *t)
{
    struct look q = {0};

    pthread_mutex_lock(&g->lock);
    if (g->lost || g->text.cut)
        g->n = 0;
    q.got = t && g->n > 0;
    if (q.got) {
        *t = g->ring[g->head].token;
        q.prompt = g->ring[g->head].prompt;
        g->head = (g->head + 1) & (g->cap - 1);
        g->n--;
    }
    q.more = g->n > 0;
    q.ended = g->ended;
    q.lost = g->lost;
    pthread_mutex_unlock(&g->lock);
    return q;
}

/* Out of memory: the text can't be told any more, so the sequence ends with an error. */
static void lose(struct mc_gen *g, bool ended)
{
    pthread_mutex_lock(&g->lock);
    g->lost = true;
    pthread_mutex_unlock(&g->lock);
    g->pending = false;
    if (!ended)
        mc_engine_cancel(g->engine, g->handle, "out of memory");
}

/* How it ended, as the reader shall see it: `end` belongs to the reader once ended. */
static const struct mc_end *final_end(struct mc_gen *g)
{
    struct mc_end *e = &g->end;

    if (g->lost) {
        e->finish = MC_FINISH_ERROR;
        e->stop_id = -1;
        mc_fail(&e->err, MC_ENOMEM, "out of memory for a sequence's text");
    } else if (g->text.cut) {
        e->finish = MC_FINISH_STOP;
        e->stop_id = -1;
        e->usage.n_gen = g->n_seen;
        memset(&e->err, 0, sizeof e->err);
    }
    return e;
}

static bool add_token(struct mc_gen *g)
{
    bool special;
    size_t n;
    const char *s = mc_tok_piece(mc_engine_tok(g->engine), g->token.id, &n, &special);

    g->n_seen++;
    if (special && !g->keep_special)
        return true;
    if (mc_text_add(&g->text, s, n) < 0)
        return false;
    if (g->text.cut)
        mc_engine_cancel(g->engine, g->handle, NULL);
    return true;
}

int mc_gen_take(struct mc_gen *g, struct mc_piece *out, const struct mc_end **end)
{
    struct look q;
    bool ok = true;

    q = look(g, g->pending ? NULL : &g->token);
    if (q.prompt) {
        *out = (struct mc_piece){.token = g->token, .prompt = true, .text = ""};
        return 1;
    }
    if (q.got) {
        g->pending = true;
        ok = add_token(g);
    }
    if (ok && g->pending && q.ended && !q.more && !g->text.cut)
        ok = mc_text_flush(&g->text) == 0;
    if (!ok || q.lost)
        lose(g, q.ended);
    if (g->pending && (g->text.cut || q.more || q.ended || !mc_text_held(&g->text))) {
        out->token = g->token;
        out->prompt = false;
        out->text = mc_text_take(&g->text, &out->n);
        g->pending = false;
        return 1;
    }
    if (g->pending || !q.ended)
        return 0;
    *end = final_end(g);
    return 2;
}

/* False when `until` (negative: never) came first. */
static bool wait_more(struct mc_gen *g, double until)
{
    int rc = 0;

    pthread_mutex_lock(&g->lock);
    while (g->n == 0 && !g->ended && rc != ETIMEDOUT)
        rc = until < 0 ? pthread_cond_wait(&g->more, &g->lock)
                       : mc_cond_wait_until(&g->more, &g->lock, until);
    pthread_mutex_unlock(&g->lock);
    return rc != ETIMEDOUT;
}

int mc_gen_wait(struct mc_gen *g, double timeout_s, struct mc_piece *out,
                const struct mc_end **end)
{
    double until = timeout_s < 0 ? -1 : mc_now() + timeout_s;
    int rc;

    do
        rc = mc_gen_take(g, out, end);
    while (rc == 0 && wait_more(g, until));
    return rc;
}

struct mc_handle mc_gen_handle(const struct mc_gen *g)
{
    return g->handle;
}

void mc_gen_cancel(struct mc_gen *g, const char *why)
{
    mc_engine_cancel(g->engine, g->handle, why);
}

void mc_gen_close(struct mc_gen *g)
{
    bool ended;

    if (!g)
        return;
    pthread_mutex_lock(&g->lock);
    g->closed = true;
    ended = g->ended;
    pthread_mutex_unlock(&g->lock);
    pthread_mutex_lock(&g->bell);
    g->on_ready = NULL;
    pthread_mutex_unlock(&g->bell);
    if (!ended)
        mc_engine_cancel(g->engine, g->handle, "its reader closed it");
    unref(g);
}

/* ---- open -------------------------------------------------------------------------- */

static struct mc_gen *gen_new(void)
{
    struct mc_gen *g = calloc(1, sizeof *g);

    if (!g)
        return NULL;
    mc_cond_init(&g->more);
    pthread_mutex_init(&g->lock, NULL);
    pthread_mutex_init(&g->bell, NULL);
    atomic_init(&g->refs, 1);
    return g;
}

int mc_gen_open(struct mc_engine *e, const struct mc_gen_opts *o,
                void (*on_ready)(void *), void *ctx, struct mc_gen **out,
                struct mc_err *err)
{
    struct mc_request req = o->req;
    struct mc_gen *g = gen_new();
    int rc;

    if (!g)
        return mc_fail(err, MC_ENOMEM, "no memory for a sequence");
    g->engine = e;
    g->on_ready = on_ready;
    g->ctx = ctx;
    g->keep_special = o->keep_special;
    g->cap = RING_START;
    g->ring = malloc(g->cap * sizeof *g->ring);
    if (!g->ring) {
        rc = mc_fail(err, MC_ENOMEM, "no memory for a sequence");
        goto fail;
    }
    rc = mc_text_init(&g->text, o->stop, o->stop_len, o->n_stop, err);
    if (rc < 0)
        goto fail;
    req.sink = (struct mc_sink){on_token, on_end, g, on_prompt};
    atomic_store(&g->refs, 2);
    rc = mc_engine_submit(e, &req, &g->handle, err);
    if (rc < 0) {
        atomic_store(&g->refs, 1);
        goto fail;
    }
    *out = g;
    return 0;
fail:
    unref(g);
    return rc;
}
