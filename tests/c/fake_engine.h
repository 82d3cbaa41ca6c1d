/* fake_engine.h - a double of the engine behind mc.h, for tests of what reads from it.
 *
 * Included by one test file: it defines mc_engine_* and mc_tok_piece, so that the linker
 * takes no real engine or tokenizer from the library. A sequence does what the test says,
 * by hand (fake_give, fake_end) or on a thread of its own (fake_run) that gives scripted
 * tokens at a pace and honours cancel, as the engine's does. */
#ifndef MC_FAKE_ENGINE_H
#define MC_FAKE_ENGINE_H

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/mc.h"

enum { FAKE_SEQS = 8192, FAKE_VOCAB = 1024, FAKE_PIECE = 512 };

struct fake_seq {
    struct mc_sink sink;
    int32_t limit, n_gen, n_ids, n_top;
    char name[64], why[64];
    atomic_bool cancelled, stopped, ended; /* stopped: cancelled with why NULL */
    double t_cancel; /* when mc_engine_cancel was called */
};

struct mc_engine {
    pthread_mutex_t lock; /* seq[].cancelled, why, n_seq */
    struct fake_seq *seq;
    atomic_int n_seq;
    int refuse; /* submit fails with this code */
    int32_t n_cached;
    bool minus_inf; /* the unlikely tokens' logprobs */

    char piece[FAKE_VOCAB][FAKE_PIECE];
    size_t piece_n[FAKE_VOCAB];
    bool special[FAKE_VOCAB];
    int32_t n_vocab;

    pthread_t thread;
    atomic_bool running;
    int32_t script[FAKE_VOCAB];
    int32_t n_script; /* the script repeats up to the limit when loop */
    bool loop;
    int us;           /* a step */
    enum mc_finish finish;
    struct mc_err fail; /* finish ERROR or CANCEL */
};

static double fake_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static struct mc_engine *fake_open(void)
{
    struct mc_engine *e = calloc(1, sizeof *e);

    e->seq = calloc(FAKE_SEQS, sizeof *e->seq);
    pthread_mutex_init(&e->lock, NULL);
    e->finish = MC_FINISH_STOP;
    return e;
}

/* Adds a piece and, as the next token, to the script; returns its id. */
static int32_t fake_piece(struct mc_engine *e, const char *s, size_t n)
{
    int32_t id = e->n_vocab++;

    memcpy(e->piece[id], s, n);
    e->piece_n[id] = n;
    e->script[e->n_script++] = id;
    return id;
}

static __attribute__((unused)) void fake_clear(struct mc_engine *e)
{
    e->n_vocab = e->n_script = 0;
    memset(e->special, 0, sizeof e->special);
}

/* "AB|C D|EF": pieces between bars. */
static __attribute__((unused)) void fake_text(struct mc_engine *e, const char *s)
{
    for (const char *bar; (bar = strchr(s, '|')) != NULL; s = bar + 1)
        fake_piece(e, s, (size_t)(bar - s));
    fake_piece(e, s, strlen(s));
}

/* "F0|9F98": the same in hex. */
static __attribute__((unused)) void fake_hex(struct mc_engine *e, const char *s)
{
    char buf[FAKE_PIECE];
    size_t n = 0;

    for (;; s++) {
        if (*s == '|' || *s == 0) {
            fake_piece(e, buf, n);
            n = 0;
            if (*s == 0)
                return;
        } else {
            char two[3] = {s[0], s[1], 0};

            buf[n++] = (char)strtoul(two, NULL, 16);
            s++;
        }
    }
}

static void fake_give(struct mc_engine *e, int i, int32_t id)
{
    struct fake_seq *s = &e->seq[i];
    struct mc_token t = {.id = id, .logprob = -0.25f * (float)(id + 1)};

    t.n_top = s->n_top > 0 ? s->n_top : 0;
    for (int32_t k = 0; k < t.n_top; k++) {
        t.top_id[k] = (id + k) % e->n_vocab;
        t.top_logprob[k] = e->minus_inf && k > 0 ? -INFINITY
                                                 : -0.25f * (float)(id + k + 1);
    }
    s->n_gen++;
    s->sink.token(s->sink.ctx, &t);
}

static void fake_end(struct mc_engine *e, int i, enum mc_finish finish)
{
    struct fake_seq *s = &e->seq[i];
    struct mc_end end = {.finish = finish, .stop_id = finish == MC_FINISH_STOP ? 2 : -1};

    end.usage = (struct mc_usage){.n_prompt = s->n_ids, .n_cached = e->n_cached,
                                  .n_gen = s->n_gen};
    if (finish == MC_FINISH_ERROR)
        end.err = e->fail;
    if (finish == MC_FINISH_CANCEL)
        mc_fail(&end.err, MC_ECANCEL, "%s", s->why);
    atomic_store(&s->ended, true);
    s->sink.end(s->sink.ctx, &end);
}

static void fake_step(struct mc_engine *e, int i)
{
    struct fake_seq *s = &e->seq[i];

    if (atomic_load(&s->ended))
        return;
    if (atomic_load(&s->cancelled))
        fake_end(e, i, atomic_load(&s->stopped) ? MC_FINISH_STOP : MC_FINISH_CANCEL);
    else if (s->n_gen == s->limit)
        fake_end(e, i, MC_FINISH_LENGTH);
    else if (s->n_gen >= e->n_script && !e->loop)
        fake_end(e, i, e->finish);
    else
        fake_give(e, i, e->script[s->n_gen % e->n_script]);
}

static void *fake_main(void *arg)
{
    struct mc_engine *e = arg;

    while (atomic_load(&e->running)) {
        int n = atomic_load(&e->n_seq);

        for (int i = 0; i < n; i++)
            fake_step(e, i);
        usleep((useconds_t)e->us);
    }
    return NULL;
}

static __attribute__((unused)) void fake_run(struct mc_engine *e, int us)
{
    e->us = us;
    atomic_store(&e->running, true);
    pthread_create(&e->thread, NULL, fake_main, e);
}

static __attribute__((unused)) int fake_live(struct mc_engine *e)
{
    int live = 0;

    for (int i = 0; i < atomic_load(&e->n_seq); i++)
        live += !atomic_load(&e->seq[i].ended);
    return live;
}

static void fake_close(struct mc_engine *e)
{
    if (atomic_load(&e->running)) {
        atomic_store(&e->running, false);
        pthread_join(e->thread, NULL);
    }
    for (int i = 0; i < atomic_load(&e->n_seq); i++)
        if (!atomic_load(&e->seq[i].ended))
            fake_end(e, i, MC_FINISH_CANCEL);
    pthread_mutex_destroy(&e->lock);
    free(e->seq);
    free(e);
}

int mc_engine_hold(struct mc_engine *e, const int32_t *ids, int32_t n,
                   const struct mc_who *who, struct mc_held **out, struct mc_err *err)
{
    (void)e, (void)ids, (void)n, (void)who, (void)out;
    return mc_fail(err, MC_EUNSUP, "nothing is kept here");
}

void mc_engine_release(struct mc_engine *e, struct mc_held *h)
{
    (void)e, (void)h;
}

const int32_t *mc_held_ids(const struct mc_held *h, int32_t *n)
{
    (void)h;
    *n = 0;
    return NULL;
}

uint64_t mc_held_bytes(const struct mc_engine *e, const struct mc_held *h)
{
    (void)e, (void)h;
    return 0;
}

int mc_engine_pack(struct mc_engine *e, const struct mc_held *h, uint8_t **data,
                   size_t *n, struct mc_err *err)
{
    (void)e, (void)h, (void)data, (void)n;
    return mc_fail(err, MC_EUNSUP, "nothing is kept here");
}

uint64_t mc_engine_pack_most(struct mc_engine *e)
{
    (void)e;
    return 0;
}

int mc_engine_unpack(struct mc_engine *e, const uint8_t *data, size_t n,
                     const struct mc_who *who, struct mc_held **out, struct mc_err *err)
{
    (void)e, (void)data, (void)n, (void)who, (void)out;
    return mc_fail(err, MC_EUNSUP, "nothing is kept here");
}

int mc_engine_row_type(const struct mc_engine *e)
{
    (void)e;
    return MC_F32;
}

struct mc_tensors *mc_engine_tensors(struct mc_engine *e, struct mc_err *err)
{
    (void)e;
    mc_fail(err, MC_EUNSUP, "no tensors here");
    return NULL;
}

int mc_engine_submit(struct mc_engine *e, const struct mc_request *r,
                     struct mc_handle *out, struct mc_err *err)
{
    int i = atomic_load(&e->n_seq);
    struct fake_seq *s = &e->seq[i];

    if (e->refuse)
        return mc_fail(err, e->refuse, "refused by the test");
    s->sink = r->sink;
    s->limit = r->limit;
    s->n_ids = r->n_ids;
    s->n_top = r->n_top;
    memcpy(s->name, r->name, sizeof s->name);
    *out = (struct mc_handle){(uint32_t)i + 1, 1};
    atomic_store(&e->n_seq, i + 1);
    return 0;
}

void mc_engine_cancel(struct mc_engine *e, struct mc_handle h, const char *why)
{
    struct fake_seq *s = &e->seq[h.seq - 1];

    pthread_mutex_lock(&e->lock);
    if (!atomic_load(&s->cancelled)) {
        snprintf(s->why, sizeof s->why, "%s", why ? why : "");
        atomic_store(&s->stopped, !why);
        s->t_cancel = fake_now();
        atomic_store(&s->cancelled, true);
    }
    pthread_mutex_unlock(&e->lock);
}

const struct mc_tok *mc_engine_tok(const struct mc_engine *e)
{
    return (const struct mc_tok *)e;
}

const char *mc_tok_piece(const struct mc_tok *t, int32_t id, size_t *n, bool *special)
{
    const struct mc_engine *e = (const struct mc_engine *)t;

    *n = e->piece_n[id];
    *special = e->special[id];
    return e->piece[id];
}

#endif
