/* pump.c - one thread that turns ready generations into bytes of HTTP responses.
 *
 * Owns every started job with its gens. THREAD: `lock` guards the lists and the flags
 * that others set; all else of a job belongs to the pump thread once started, to its
 * maker before.
 *
 * A job is run when a gen rang, when its client left, and when a tick finds it blocked by
 * a slow reader or long silent. The lock is never held while a gen is closed: closing
 * waits for a bell, and the bell takes the lock. */
#include "core/serve/pump.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "core/base/thread.h"
#include "core/serve/dialect.h"

enum { OUT_SOON = 65536 }; /* bytes gathered before they are handed over */
static const double BLOCKED_TICK_S = 0.02, TICK_S = 1, PING_S = 15;

enum state {
    RUNNING,
    TAILED,   /* a stream's last bytes are in out */
    ANSWERED, /* whole, or with a status */
};

struct mc_pump_job {
    struct mc_pump *pump;
    struct mc_req *req;
    struct mc_answer answer;
    void (*done)(void *ctx);
    void *ctx;

    /* lock */
    struct mc_pump_job *prev, *next, *next_ready;
    bool started, queued, finished;

    /* pump thread */
    enum state state;
    struct mc_gen **gen; /* NULL once ended */
    int n_live;
    struct mc_buf out; /* stream bytes that the response has not taken */
    bool begun, blocked;
    double t_out;
};

struct mc_pump {
    const struct mc_tok *tok;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t bell;
    struct mc_pump_job *all, *ready, **ready_end;
    bool stop;
    int n_blocked; /* pump thread */
};

/* ---- lists; lock held -------------------------------------------------------------- */

static void enqueue(struct mc_pump_job *j)
{
    struct mc_pump *p = j->pump;

    if (j->queued || !j->started)
        return;
    j->queued = true;
    j->next_ready = NULL;
    *p->ready_end = j;
    p->ready_end = &j->next_ready;
    pthread_cond_signal(&p->bell);
}

static struct mc_pump_job *dequeue(struct mc_pump *p)
{
    struct mc_pump_job *j = p->ready;

    if (!j)
        return NULL;
    p->ready = j->next_ready;
    if (!p->ready)
        p->ready_end = &p->ready;
    j->queued = false;
    return j;
}

static void list(struct mc_pump_job *j)
{
    j->next = j->pump->all;
    if (j->next)
        j->next->prev = j;
    j->pump->all = j;
}

static void unlist(struct mc_pump_job *j)
{
    if (j->prev)
        j->prev->next = j->next;
    else
        j->pump->all = j->next;
    if (j->next)
        j->next->prev = j->prev;
}

/* ---- a job, on the pump thread ----------------------------------------------------- */

static void job_free(struct mc_pump_job *j)
{
    mc_answer_fini(&j->answer);
    mc_buf_free(&j->out);
    free(j->gen);
    free(j);
}

static void close_gens(struct mc_pump_job *j)
{
    for (int i = 0; i < j->answer.n; i++) {
        mc_gen_close(j->gen[i]);
        j->gen[i] = NULL;
    }
    j->n_live = 0;
}

static void set_blocked(struct mc_pump_job *j, bool blocked)
{
    j->pump->n_blocked += blocked - j->blocked;
    j->blocked = blocked;
}

/* The response is complete, or there is nobody to read it, or (not whole) it is to be cut
 * by mc_req_done. A job that rang since is in the queue and is freed from there. */
static void finish(struct mc_pump_job *j, bool whole)
{
    struct mc_pump *p = j->pump;
    void (*done)(void *) = j->done;
    void *ctx = j->ctx;
    bool queued;

    close_gens(j);
    set_blocked(j, false);
    if (j->begun && whole)
        mc_res_end(j->req);
    pthread_mutex_lock(&p->lock);
    unlist(j);
    j->finished = true;
    queued = j->queued;
    pthread_mutex_unlock(&p->lock);
    if (!queued)
        job_free(j);
    done(ctx);
}

/* Ends the job with an error: a status while there is time, else an event. */
static void fail(struct mc_pump_job *j, const struct mc_err *e)
{
    mc_info("pump", "request %s failed: %s: %s", mc_req_id(j->req), mc_code_name(e->code),
            e->text);
    close_gens(j);
    if (j->begun) {
        mc_answer_error(e, &j->out);
        j->state = TAILED;
    } else {
        mc_res_error(j->req, e);
        j->state = ANSWERED;
    }
}

/* All choices have ended. */
static void tail(struct mc_pump_job *j)
{
    struct mc_err e;

    mc_answer_tail(&j->answer, &j->out);
    if (j->answer.o.stream) {
        j->state = TAILED;
    } else if (j->out.failed) {
        mc_fail(&e, MC_ENOMEM, "out of memory for an answer");
        fail(j, &e);
    } else {
        mc_res_send(j->req, 200, "application/json", j->out.p, j->out.n);
        j->state = ANSWERED;
    }
}

/* What choice i has to say. */
static void take(struct mc_pump_job *j, int i)
{
    const struct mc_end *end;
    struct mc_piece piece;
    struct mc_err e;
    int rc = 0;

    while (j->gen[i] && j->out.n < OUT_SOON &&
           (rc = mc_gen_take(j->gen[i], &piece, &end)) == 1)
        mc_answer_piece(&j->answer, i, &piece, &j->out);
    if (rc != 2)
        return;
    if (end->finish != MC_FINISH_STOP && end->finish != MC_FINISH_LENGTH) {
        e = end->err;
        if (e.code == 0)
            mc_fail(&e, MC_EINTERNAL, "the sequence ended without a reason");
        fail(j, &e);
        return;
    }
    mc_answer_end(&j->answer, i, end, &j->out);
    mc_gen_close(j->gen[i]);
    j->gen[i] = NULL;
    j->n_live--;
}

/* True when there may be more to take at once. */
static bool advance(struct mc_pump_job *j)
{
    for (int i = 0; i < j->answer.n && j->state == RUNNING; i++)
        take(j, i);
    if (j->state == RUNNING && j->n_live == 0)
        tail(j);
    return j->state == RUNNING && j->out.n >= OUT_SOON;
}

/* A comment line keeps proxies and clients from giving up while a long prompt is read. */
static void ping(struct mc_pump_job *j)
{
    if (j->state == RUNNING && j->answer.o.stream && j->out.n == 0 &&
        mc_now() - j->t_out > j->answer.o.ping_s)
        mc_buf_puts(&j->out, ": ping\n\n");
}

/* Hands over what is in out; MC_EAGAIN when the client reads too slowly. */
static int flush(struct mc_pump_job *j)
{
    int rc = 0;

    if (j->out.failed)
        return MC_ENOMEM;
    if (j->state == ANSWERED || j->out.n == 0)
        return 0;
    if (!j->begun) {
        rc = mc_res_begin(j->req, 200, "text/event-stream; charset=utf-8");
        j->begun = rc == 0;
    }
    if (rc == 0)
        rc = mc_res_write(j->req, j->out.p, j->out.n);
    if (rc == 0) {
        j->out.n = 0;
        j->t_out = mc_now();
    }
    return rc;
}

/* One turn; the job may be gone afterwards. */
static void run(struct mc_pump_job *j)
{
    int rc = mc_req_is_gone(j->req) ? MC_ECANCEL : 0;
    bool more = true;

    while (rc == 0 && more) {
        more = j->state == RUNNING && advance(j);
        ping(j);
        rc = flush(j);
    }
    set_blocked(j, rc == MC_EAGAIN);
    if (!j->blocked && (rc < 0 || j->state != RUNNING))
        finish(j, rc == 0);
}

/* ---- the thread -------------------------------------------------------------------- */

/* Lock held: those that nobody rings for. */
static void enqueue_due(struct mc_pump *p)
{
    double now = mc_now();

    for (struct mc_pump_job *j = p->all; j; j = j->next)
        if (j->blocked || now - j->t_out > j->answer.o.ping_s)
            enqueue(j);
}

/* Lock held. */
static void wait_bell(struct mc_pump *p)
{
    double until = mc_now() + (p->n_blocked > 0 ? BLOCKED_TICK_S : TICK_S);

    if (!p->all)
        pthread_cond_wait(&p->bell, &p->lock);
    else if (mc_cond_wait_until(&p->bell, &p->lock, until) == ETIMEDOUT)
        enqueue_due(p);
}

static void run_unlocked(struct mc_pump *p, struct mc_pump_job *j)
{
    pthread_mutex_unlock(&p->lock);
    if (j->finished)
        job_free(j);
    else
        run(j);
    pthread_mutex_lock(&p->lock);
}

static void end_all(struct mc_pump *p)
{
    struct mc_err e;

    mc_fail(&e, MC_EDRAIN, "the server is shutting down");
    while (p->all) {
        struct mc_pump_job *j = p->all;

        pthread_mutex_unlock(&p->lock);
        if (j->state == RUNNING)
            fail(j, &e);
        finish(j, flush(j) == 0);
        pthread_mutex_lock(&p->lock);
    }
}

static void *pump_main(void *arg)
{
    struct mc_pump *p = arg;
    struct mc_pump_job *j;

    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        j = dequeue(p);
        if (j)
            run_unlocked(p, j);
        else
            wait_bell(p);
    }
    end_all(p);
    while ((j = dequeue(p)) != NULL)
        run_unlocked(p, j);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- from other threads ------------------------------------------------------------ */

struct mc_pump_job *mc_pump_job(struct mc_pump *p, struct mc_req *r,
                                const struct mc_pump_opts *o)
{
    struct mc_pump_job *j = calloc(1, sizeof *j);

    if (!j)
        return NULL;
    j->pump = p;
    j->req = r;
    if (mc_answer_init(&j->answer, p->tok, o) < 0) {
        job_free(j);
        return NULL;
    }
    if (j->answer.o.ping_s <= 0)
        j->answer.o.ping_s = PING_S;
    return j;
}

void mc_pump_ring(void *job)
{
    struct mc_pump_job *j = job;

    pthread_mutex_lock(&j->pump->lock);
    enqueue(j); /* nothing before it is started, which queues it */
    pthread_mutex_unlock(&j->pump->lock);
}

void mc_pump_start(struct mc_pump_job *j, struct mc_gen **gens, int n,
                   void (*done)(void *), void *ctx)
{
    struct mc_err e;

    j->done = done;
    j->ctx = ctx;
    j->t_out = mc_now();
    j->gen = calloc((size_t)n, sizeof *j->gen);
    if (j->gen && mc_answer_choices(&j->answer, n) == 0) {
        memcpy(j->gen, gens, (size_t)n * sizeof *j->gen);
        j->n_live = n;
    } else {
        for (int i = 0; i < n; i++)
            mc_gen_close(gens[i]);
        mc_fail(&e, MC_ENOMEM, "no memory for an answer");
        mc_res_error(j->req, &e);
        j->state = ANSWERED;
    }
    pthread_mutex_lock(&j->pump->lock);
    j->started = true;
    list(j);
    enqueue(j);
    pthread_mutex_unlock(&j->pump->lock);
}

void mc_pump_drop(struct mc_pump_job *j)
{
    if (j)
        job_free(j);
}

void mc_pump_gone(struct mc_pump *p, struct mc_req *r)
{
    pthread_mutex_lock(&p->lock);
    for (struct mc_pump_job *j = p->all; j; j = j->next)
        if (j->req == r)
            enqueue(j);
    pthread_mutex_unlock(&p->lock);
}

int mc_pump_open(const struct mc_tok *tok, struct mc_pump **out, struct mc_err *err)
{
    struct mc_pump *p = calloc(1, sizeof *p);
    int rc;

    if (!p)
        return mc_fail(err, MC_ENOMEM, "no memory for the pump");
    p->tok = tok;
    p->ready_end = &p->ready;
    mc_cond_init(&p->bell);
    pthread_mutex_init(&p->lock, NULL);
    rc = mc_thread_run(&p->thread, pump_main, p);
    if (rc != 0) {
        pthread_cond_destroy(&p->bell);
        pthread_mutex_destroy(&p->lock);
        free(p);
        return mc_fail(err, MC_EIO, "the pump's thread: %s", strerror(rc));
    }
    *out = p;
    return 0;
}

void mc_pump_close(struct mc_pump *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_signal(&p->bell);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->bell);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
