/* engine.c - an engine's thread and loop, looking in.
 *
 * Owns the thread. THREAD: as mc.h says; the loop is the engine thread.
 * Always true: at most e->depth steps are enqueued; while one runs on the device the last
 * one is published and the next planned. The thread sleeps when there is nothing to do.
 *
 * The loop: take what came in; plan and enqueue until depth steps are in flight or
 * nothing is to be run; wait for the oldest and publish it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/crash.h"
#include "core/base/log.h"
#include "core/base/thread.h"
#include "core/engine/engine_int.h"
#include "core/model/load.h"

static const double LOOK_AGAIN_S = 0.005; /* at live sequences that could not run */
static const double MEET_S = 0.5; /* idle ranks, so that one that is lost is missed */

/* ---- the loop ---------------------------------------------------------------------- */

/* Ends everything with one error: the device failed, or the engine stops. */
static void end_all(struct mc_engine *e, const struct mc_err *err)
{
    while (e->n_live > 0)
        mc_seq_end(e, &e->seqs[e->live[0]], MC_FINISH_ERROR, -1, err);
}

static void admit(struct mc_engine *e, struct mc_seq *q)
{
    struct mc_row row = {.seq = q->id,
                         .gen = q->gen,
                         .lane = q->lane,
                         .tenant = q->tenant,
                         .state = MC_STATE_WAITING,
                         .n_prompt = q->n_prompt,
                         .n_left = q->n_prompt,
                         .n_max = q->limit,
                         .priority = (int16_t)q->priority,
                         .t_arrive = q->usage.t_arrive,
                         .due_first = q->due_first,
                         .due_end = q->deadline,
                         .slo_token = (float)q->slo_token};
    struct mc_err err = {0};

    e->live[e->n_live++] = (int32_t)q->id - 1;
    e->live_gen[q->id - 1] = q->gen;
    mc_life_note(e, q, MC_LIFE_QUEUED, q->n_prompt);
    if (e->rec)
        mc_trace_arrive(e, q);
    if (mc_pair_failed(e, q))
        return;
    if (e->policy.ops->admit && e->policy.ops->admit(e->policy.self, &row, &err) < 0)
        mc_seq_end(e, q, MC_FINISH_ERROR, -1, &err);
}

static void cancel_one(struct mc_engine *e, const struct mc_cancel *c)
{
    struct mc_seq *q = mc_seq_get(e, c->h);
    struct mc_err err = {0};

    if (!q) {
        mc_pair_cancel(e, c);
        return;
    }
    if (!c->why[0]) {
        mc_seq_end(e, q, MC_FINISH_STOP, -1, NULL);
        return;
    }
    mc_fail(&err, MC_ECANCEL, "%s", c->why);
    mc_info("engine", "request %s cancelled after %d tokens: %s", q->name, q->n_gen,
            c->why);
    mc_seq_end(e, q, MC_FINISH_CANCEL, -1, &err);
}

static void end_overdue(struct mc_engine *e)
{
    double now = mc_now();

    for (int32_t i = e->n_live - 1; i >= 0; i--) {
        struct mc_seq *q = &e->seqs[e->live[i]];
        struct mc_err err = {0};

        if (q->deadline <= 0 || q->deadline > now)
            continue;
        mc_fail(&err, MC_EDEADLINE, "the request's deadline passed");
        mc_seq_end(e, q, MC_FINISH_ERROR, -1, &err);
    }
}

/* Takes submissions and cancels. Cancels come after the submissions they may name. */
static void take_inbox(struct mc_engine *e)
{
    struct mc_seq *q;
    struct mc_cancel *c;

    pthread_mutex_lock(&e->inbox);
    q = e->inbox_first;
    e->inbox_first = e->inbox_last = NULL;
    c = e->cancels;
    e->cancels = NULL;
    pthread_mutex_unlock(&e->inbox);
    while (q) {
        struct mc_seq *next = q->next;

        admit(e, q);
        q = next;
    }
    while (c) {
        struct mc_cancel *next = c->next;

        cancel_one(e, c);
        free(c);
        c = next;
    }
    end_overdue(e);
}

/* Sleeps until something comes in; a policy that left work idle, deadlines and pages on
 * their way back are looked at again after a short while. Returns false to stop. */
static bool sleep_for_work(struct mc_engine *e)
{
    bool stop;

    pthread_mutex_lock(&e->inbox);
    if (!e->inbox_first && !e->cancels && !e->stopping && !e->woken) {
        if (e->n_live > 0 || e->crew.n > 1)
            mc_cond_wait_until(&e->bell, &e->inbox,
                               mc_now() + (e->n_live > 0 ? LOOK_AGAIN_S : MEET_S));
        else
            pthread_cond_wait(&e->bell, &e->inbox);
    }
    stop = e->stopping;
    e->woken = false;
    pthread_mutex_unlock(&e->inbox);
    return !stop;
}

static void fail_engine(struct mc_engine *e, int code, const char *what)
{
    pthread_mutex_lock(&e->look);
    mc_fail(&e->fail, code, "%s: %s", what,
            mc_crew_parted(&e->crew) ? mc_crew_parted(&e->crew) : mc_code_text(code));
    pthread_mutex_lock(&e->inbox); /* after this no submission gets in */
    atomic_store(&e->failed, code);
    pthread_mutex_unlock(&e->inbox);
    mc_error("engine", "the engine failed: %s", e->fail.text);
    take_inbox(e);
    end_all(e, &e->fail);
    pthread_mutex_unlock(&e->look);
}

void mc_engine_bury(struct mc_engine *e)
{
    pthread_mutex_lock(&e->look);
    take_inbox(e);
    end_all(e, &e->fail);
    pthread_mutex_unlock(&e->look);
}

static int publish_oldest(struct mc_engine *e)
{
    struct mc_step *s = &e->step[e->n_published % MC_DEPTH];
    double t0 = mc_now();
    int rc = mc_crew_wait(&e->crew, s->ticket);

    if (rc < 0)
        return rc;
    pthread_mutex_lock(&e->look);
    mc_trace_time(e, s, t0);
    mc_kv_settle(e->kv, s->ticket);
    mc_tap_settle(e, s->ticket);
    mc_publish(e, s);
    e->n_published++;
    if (e->n_published == e->n_step) { /* idle device: everything given back is settled */
        mc_kv_settle(e->kv, UINT64_MAX);
        mc_tap_settle(e, UINT64_MAX);
    }
    if (e->policy.ops->step_end)
        e->policy.ops->step_end(e->policy.self);
    pthread_mutex_unlock(&e->look);
    return 0;
}

/* Ranks that had nothing to do for a while meet; each has to be there. */
static int look_after(struct mc_engine *e)
{
    int rc;

    if (e->crew.n == 1 || mc_now() - e->t_met < MEET_S)
        return 0;
    pthread_mutex_lock(&e->look); /* who enqueues holds it */
    rc = mc_crew_meet(&e->crew, MC_AT_IDLE);
    pthread_mutex_unlock(&e->look);
    e->t_met = mc_now();
    return rc < 0 ? rc : mc_crew_wait(&e->crew, mc_crew_mark(&e->crew));
}

/* A negative code when the device failed. *idle: nothing runs and nothing is to run. */
static int turn(struct mc_engine *e, bool *idle)
{
    int rc = 0, more = 1;

    pthread_mutex_lock(&e->look);
    if (e->n_step == e->n_published)
        e->t_host = mc_now();
    take_inbox(e);
    if (e->n_step == e->n_published)
        mc_kv_settle(e->kv, UINT64_MAX); /* of who ended while nothing ran */
    mc_pins_turn(e);
    mc_resize_turn(e);
    while (rc == 0 && more && e->n_step - e->n_published < (uint64_t)e->depth) {
        more = mc_plan_next(e);
        if (more)
            rc = mc_step_enqueue(e, &e->step[e->n_step % MC_DEPTH]);
    }
    *idle = e->n_step == e->n_published;
    if (*idle && e->policy.ops->step_end)
        e->policy.ops->step_end(e->policy.self);
    pthread_mutex_unlock(&e->look);
    if (rc == 0 && !*idle)
        rc = publish_oldest(e);
    return rc;
}

static void *loop(void *arg)
{
    struct mc_engine *e = arg;
    bool idle = true, run = true;

    while (run) {
        int rc = turn(e, &idle);

        atomic_fetch_add_explicit(&e->n_turn, 1, memory_order_relaxed);
        if (rc == 0 && idle)
            rc = look_after(e);
        if (rc < 0) {
            fail_engine(e, rc, "a step did not complete");
            return NULL;
        }
        if (idle) {
            run = sleep_for_work(e);
        } else {
            pthread_mutex_lock(&e->inbox);
            run = !e->stopping;
            pthread_mutex_unlock(&e->inbox);
        }
    }
    return NULL;
}

void mc_engine_set_policy(struct mc_engine *e, const struct mc_policy *p)
{
    e->policy = *p;
}

int mc_engine_start(struct mc_engine *e, struct mc_err *err)
{
    int rc = e->reader ? mc_engine_start(e->reader, err) : 0;

    if (rc < 0)
        return rc;
    if (mc_thread_run(&e->thread, loop, e) != 0)
        return mc_fail(err, MC_EINTERNAL, "no thread for the engine");
    e->started = true;
    mc_crash_part(mc_look_crash, e);
    return 0;
}

void mc_engine_stop(struct mc_engine *e)
{
    struct mc_err err = {0};

    if (e->crew.n == 0 || !e->crew.run[e->crew.n - 1].stream)
        return; /* it never opened */
    if (e->reader) /* first: what it had comes here to be ended */
        mc_engine_stop(e->reader);
    pthread_mutex_lock(&e->inbox);
    e->stopping = true;
    pthread_cond_signal(&e->bell);
    pthread_mutex_unlock(&e->inbox);
    if (e->started)
        pthread_join(e->thread, NULL);
    e->started = false;
    mc_fail(&err, MC_EDRAIN, "the server is shutting down");
    pthread_mutex_lock(&e->look);
    take_inbox(e);
    mc_crew_wait(&e->crew, mc_crew_mark(&e->crew));
    end_all(e, &err);
    mc_tap_settle(e, UINT64_MAX); /* nothing runs any more */
    pthread_mutex_unlock(&e->look);
}

uint64_t mc_engine_turns(const struct mc_engine *e)
{
    return atomic_load_explicit(&e->n_turn, memory_order_relaxed);
}

/* ---- looking in -------------------------------------------------------------------- */

const struct mc_config *mc_engine_config(const struct mc_engine *e)
{
    return &e->model->cfg;
}

const struct mc_tok *mc_engine_tok(const struct mc_engine *e)
{
    return e->tok;
}

const char *mc_engine_path(const struct mc_engine *e)
{
    return e->o.model;
}

int mc_engine_row_type(const struct mc_engine *e)
{
    return e->model->be->row_dt;
}

struct mc_tensors *mc_engine_tensors(struct mc_engine *e, struct mc_err *err)
{
    if (!e->tensors)
        mc_fail(err, MC_EUNSUP, "backend %s has no tensors for scripts", e->model->be->name);
    return e->tensors;
}

void mc_engine_status(struct mc_engine *e, struct mc_engine_status *out)
{
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&e->look);
    out->running = e->started;
    out->failed = atomic_load(&e->failed) != 0;
    out->fail = e->fail;
    snprintf(out->backend, sizeof out->backend, "%s (%s)", e->model->be->name,
             e->model->be->what);
    snprintf(out->kv, sizeof out->kv, "%s", mc_kv_layout_name(e->pool.layout));
    out->n_rank = e->ranks.n;
    for (int32_t i = 0; i < e->ranks.n; i++) {
        out->rank_weight_bytes[i] = e->ranks.rank[i].model.weight_bytes;
        out->weight_bytes += out->rank_weight_bytes[i];
    }
    for (int32_t i = 0; i < e->n_live; i++) {
        enum mc_seq_state state = e->seqs[e->live[i]].state;

        out->n_waiting += state == MC_STATE_WAITING;
        out->n_paused += state == MC_STATE_PAUSED;
        out->n_running += state == MC_STATE_PREFILL || state == MC_STATE_DECODE;
    }
    out->p_total = mc_kv_total(e->kv);
    out->p_free = mc_kv_n_free(e->kv);
    out->p_held = mc_kv_n_held(e->kv);
    out->p_cached = mc_kv_n_cached(e->kv);
    out->p_pending = mc_kv_n_pending(e->kv);
    out->p_host = e->swap.n;
    out->p_host_free = mc_swap_n_free(e);
    out->swap_bytes_us = (double)e->swap.bytes_us;
    out->kv_tokens = atomic_load(&e->p_goal) * MC_PAGE;
    out->max_context = mc_seq_context(e);
    out->max_seqs = e->n_slot;
    out->generation =
        e->policy.ops->generation ? e->policy.ops->generation(e->policy.self) : 0;
    out->steps = (double)e->n_published;
    pthread_mutex_unlock(&e->look);
    if (e->reader && !out->failed) {
        struct mc_engine_status reader;

        mc_engine_status(e->reader, &reader);
        out->failed = reader.failed;
        out->fail = reader.fail;
    }
}

int mc_engine_seqs(struct mc_engine *e, struct mc_seq_info *out, int cap)
{
    double now = mc_now();
    int n;

    pthread_mutex_lock(&e->look);
    n = e->n_live;
    for (int i = 0; i < n && i < cap; i++) {
        const struct mc_seq *q = &e->seqs[e->live[i]];

        out[i] = (struct mc_seq_info){.h = {q->id, q->gen},
                                      .state = q->state,
                                      .lane = q->lane,
                                      .tenant = q->tenant,
                                      .n_prompt = q->n_prompt,
                                      .n_gen = q->n_gen,
                                      .age = now - q->usage.t_arrive};
        memcpy(out[i].name, q->name, sizeof out[i].name);
    }
    pthread_mutex_unlock(&e->look);
    return n;
}
