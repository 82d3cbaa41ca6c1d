/* tokpool.c - the tokeniser's queue and threads.
 *
 * OWNS both; a job is freed by whoever lets go of it last, its holder or the pool.
 * THREAD: everything shared is under `lock`, a leaf but for done(), which a job's holder
 * must be able to wait for: done() takes no lock that is held around mc_tokjob_drop.
 * Always true: a job is queued, running, or ended; ids and err change only while it runs.
 */
#include "core/serve/tokpool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/thread.h"

enum state { QUEUED, RUNNING, ENDED };
enum { THREADS_MAX = 16, SHRINK = 4 /* no normal form is shorter by more (NFC: 3) */ };

struct mc_tokjob {
    struct mc_tokpool *pool;
    struct mc_tokjob *next;
    enum state state;
    bool dropped; /* while RUNNING: the pool frees it */
    bool calling; /* done() runs */
    void (*done)(void *ctx);
    void *ctx;
    struct mc_ids ids;
    struct mc_err err;
    unsigned flags;
    char *text; /* after the parts */
    size_t n_text;
    int n_part;
    struct mc_tok_part parts[];
};

struct mc_tokpool {
    const struct mc_tok *tok;
    pthread_mutex_t lock;
    pthread_cond_t work, quiet; /* quiet: a done() has returned */
    struct mc_tokjob *first, *last;
    size_t bytes_max; /* constant once jobs come */
    int32_t tokens_max;
    int n_queued, n_thread;
    bool stop;
    pthread_t threads[THREADS_MAX];
};

static void free_job(struct mc_tokjob *j)
{
    mc_ids_free(&j->ids);
    free(j);
}

static void encode(const struct mc_tok *tok, struct mc_tokjob *j)
{
    if (j->n_part == 1)
        mc_tok_encode(tok, j->text, j->n_text,
                      j->flags | (j->parts[0].special ? MC_TOK_SPECIAL : 0), &j->ids,
                      &j->err);
    else
        mc_tok_encode_parts(tok, j->text, j->n_text, j->parts, j->n_part, &j->ids,
                            &j->err);
}

static struct mc_tokjob *pop(struct mc_tokpool *p)
{
    struct mc_tokjob *j = p->first;

    if (j) {
        p->first = j->next;
        if (!p->first)
            p->last = NULL;
        p->n_queued--;
    }
    return j;
}

/* Called and returns with the lock held; the job has run. */
static void finish(struct mc_tokpool *p, struct mc_tokjob *j)
{
    if (j->dropped) {
        free_job(j);
        return;
    }
    j->state = ENDED;
    j->calling = true;
    pthread_mutex_unlock(&p->lock);
    j->done(j->ctx);
    pthread_mutex_lock(&p->lock);
    j->calling = false;
    pthread_cond_broadcast(&p->quiet);
}

static void *worker(void *arg)
{
    struct mc_tokpool *p = arg;
    struct mc_tokjob *j;

    pthread_mutex_lock(&p->lock);
    for (;;) {
        j = pop(p);
        if (!j && p->stop)
            break;
        if (!j) {
            pthread_cond_wait(&p->work, &p->lock);
            continue;
        }
        j->state = RUNNING;
        if (p->stop) {
            mc_fail(&j->err, MC_EDRAIN, "the server is shutting down");
        } else {
            pthread_mutex_unlock(&p->lock);
            encode(p->tok, j);
            pthread_mutex_lock(&p->lock);
        }
        finish(p, j);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

int mc_tokpool_open(const struct mc_tok *tok, int threads, struct mc_tokpool **out,
                    struct mc_err *err)
{
    struct mc_tokpool *p = calloc(1, sizeof *p);

    if (!p)
        return mc_fail(err, MC_ENOMEM, "no memory for the tokeniser pool");
    p->tok = tok;
    p->bytes_max = SIZE_MAX;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->quiet, NULL);
    for (; p->n_thread < threads && p->n_thread < THREADS_MAX; p->n_thread++)
        if (mc_thread_run(&p->threads[p->n_thread], worker, p))
            break;
    if (p->n_thread == 0) {
        mc_tokpool_close(p);
        return mc_fail(err, MC_ENOMEM, "no thread for the tokeniser pool");
    }
    *out = p;
    return 0;
}

void mc_tokpool_limit(struct mc_tokpool *p, int32_t tokens)
{
    size_t longest = 1, n;
    bool special;

    for (int32_t id = 0; id < mc_tok_n(p->tok); id++) {
        mc_tok_piece(p->tok, id, &n, &special);
        longest = n > longest ? n : longest;
    }
    p->tokens_max = tokens;
    p->bytes_max = (size_t)tokens * longest * SHRINK;
}

void mc_tokpool_close(struct mc_tokpool *p)
{
    int i;

    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (i = 0; i < p->n_thread; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->quiet);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static struct mc_tokjob *new_job(struct mc_tokpool *p, const struct mc_tokpart *parts,
                                 int n, size_t bytes)
{
    size_t head = sizeof(struct mc_tokjob) + (size_t)n * sizeof(struct mc_tok_part);
    struct mc_tokjob *j = malloc(head + bytes);
    int i;

    if (!j)
        return NULL;
    memset(j, 0, sizeof *j);
    j->pool = p;
    j->n_part = n;
    j->text = (char *)j + head;
    for (i = 0; i < n; i++) {
        memcpy(j->text + j->n_text, parts[i].text, parts[i].n);
        j->n_text += parts[i].n;
        j->parts[i] = (struct mc_tok_part){j->n_text, parts[i].special};
    }
    return j;
}

int mc_tokpool_encode(struct mc_tokpool *p, const struct mc_tokpart *parts, int n,
                      unsigned flags, void (*done)(void *ctx), void *ctx,
                      struct mc_tokjob **out, struct mc_err *err)
{
    struct mc_tokjob *j;
    size_t bytes = 0;
    bool full;
    int i;

    for (i = 0; i < n; i++)
        bytes += parts[i].n;
    if (bytes > p->bytes_max)
        return mc_fail_param(
            err, MC_ECTX, "prompt",
            "the prompt has %zu bytes, more than %zu: the context holds %d "
            "tokens",
            bytes, p->bytes_max, p->tokens_max);
    j = new_job(p, parts, n, bytes);
    if (!j)
        return mc_fail(err, MC_ENOMEM, "no memory to tokenise");
    j->flags = flags;
    j->done = done;
    j->ctx = ctx;
    *out = j; /* before done() can be called */
    pthread_mutex_lock(&p->lock);
    full = p->stop || p->n_queued >= MC_TOKPOOL_QUEUE;
    if (!full) {
        if (p->last)
            p->last->next = j;
        else
            p->first = j;
        p->last = j;
        p->n_queued++;
        pthread_cond_signal(&p->work);
    }
    pthread_mutex_unlock(&p->lock);
    if (!full)
        return 0;
    *out = NULL;
    free_job(j);
    return mc_fail(err, MC_EAGAIN, "too many prompts wait to be tokenised");
}

int mc_tokjob_take(struct mc_tokjob *j, const struct mc_ids **ids, struct mc_err *err)
{
    enum state state;

    pthread_mutex_lock(&j->pool->lock);
    state = j->state;
    pthread_mutex_unlock(&j->pool->lock);
    if (state != ENDED)
        return 0;
    if (j->err.code) {
        if (err)
            *err = j->err;
        return j->err.code;
    }
    *ids = &j->ids;
    return 1;
}

static void unqueue(struct mc_tokpool *p, struct mc_tokjob *j)
{
    struct mc_tokjob **at = &p->first, *prev = NULL;

    while (*at != j) {
        prev = *at;
        at = &prev->next;
    }
    *at = j->next;
    if (p->last == j)
        p->last = prev;
    p->n_queued--;
}

void mc_tokjob_drop(struct mc_tokjob *j)
{
    struct mc_tokpool *p;
    bool ours;

    if (!j)
        return;
    p = j->pool;
    pthread_mutex_lock(&p->lock);
    while (j->calling)
        pthread_cond_wait(&p->quiet, &p->lock);
    if (j->state == QUEUED)
        unqueue(p, j);
    ours = j->state != RUNNING;
    j->dropped = true;
    pthread_mutex_unlock(&p->lock);
    if (ours)
        free_job(j);
}
