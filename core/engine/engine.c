/* engine.c - opening an engine, its thread and loop, submit and cancel.
 *
 * Owns the engine. THREAD: as mc.h says; the loop is the engine thread.
 * Always true: at most e->depth steps are enqueued; while one runs on the device the last
 * one is published and the next planned. The thread sleeps when there is nothing to do.
 *
 * The loop: take what came in; plan and enqueue until depth steps are in flight or
 * nothing is to be run; wait for the oldest and publish it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/engine/engine_int.h"
#include "core/weights/weights.h"

_Static_assert((int)MC_K_EARG == (int)MC_EARG && (int)MC_K_EUNSUP == (int)MC_EUNSUP &&
                   (int)MC_K_EINTERNAL == (int)MC_EINTERNAL &&
                   (int)MC_K_ENOMEM == (int)MC_ENOMEM,
               "kernels.h repeats the program's codes");

/* ---- opening ----------------------------------------------------------------------- */

static int open_backend(struct mc_engine *e, struct mc_err *err)
{
    const struct mc_backend_opts o = {.threads = e->o.threads,
                                      .cpu = e->o.cpu,
                                      .ref_act = -1};
    const char *name = e->o.backend ? e->o.backend : "cpu", *why = NULL;

    if (strcmp(name, "cpu") == 0)
        e->be = mc_cpu_open(&o, &why);
    else if (strcmp(name, "ref") == 0)
        e->be = mc_ref_open(&o, &why);
    else
        return mc_fail_param(err, MC_EUNSUP, "backend",
                             "--backend %s: this build has cpu and ref", name);
    if (!e->be)
        return mc_fail_param(err, MC_EUNSUP, "backend", "--backend %s: %s", name,
                             why ? why : "can't be opened");
    return 0;
}

static int open_model(struct mc_engine *e, struct mc_err *err)
{
    struct mc_ckpt *c = NULL;
    struct mc_config cfg;
    int rc;

    rc = mc_ckpt_open(e->o.model, &c, err);
    if (rc == 0)
        rc = mc_config_load(c, &cfg, err);
    if (rc == 0)
        rc = mc_tok_open(c, &e->tok, err);
    if (rc == 0)
        rc = mc_model_open(e->be, c, &cfg, mc_tok_n(e->tok), &e->model, err);
    mc_ckpt_close(c);
    return rc;
}

/* The layout and sizes of pages; the pool itself is taken by mc_step_open. */
static int size_kv(struct mc_engine *e, struct mc_err *err)
{
    static const char *const names[] = {"f32", "bf16", "fp8"};
    const struct mc_config *c = &e->model.cfg;
    struct mc_kv *kv = &e->dev.kv;
    const char *want = !e->o.kv || strcmp(e->o.kv, "auto") == 0 ? "bf16" : e->o.kv;
    int layout = 0;
    uint64_t bytes = e->o.kv_bytes;

    while (layout < MC_N_KV && strcmp(names[layout], want) != 0)
        layout++;
    if (layout == MC_N_KV)
        return mc_fail_param(err, MC_EUNSUP, "kv",
                             "--kv %s: this model takes auto, f32, bf16, "
                             "fp8",
                             want);
    *kv = (struct mc_kv){.hk = c->n_kv_head, .d = c->head_dim, .n_layer = c->n_layer,
                         .n_shard = 1, .layout = (uint16_t)layout};
    kv->layer_stride = mc_kv_layer_bytes(kv->layout, kv->hk, kv->d);
    kv->page_stride = kv->layer_stride * c->n_layer;
    if (bytes == 0) { /* a context of 2,048 for each slot, at most a quarter of memory */
        uint64_t quarter = (uint64_t)sysconf(_SC_PHYS_PAGES) *
                           (uint64_t)sysconf(_SC_PAGESIZE) / 4;
        uint64_t enough = (uint64_t)e->n_slot * (2048 / MC_PAGE) *
                          (uint64_t)kv->page_stride;

        bytes = enough < quarter ? enough : quarter;
    }
    kv->n_page = bytes / (uint64_t)kv->page_stride > INT32_MAX / MC_PAGE
                     ? INT32_MAX / MC_PAGE
                     : (int32_t)(bytes / (uint64_t)kv->page_stride);
    if (kv->n_page < 2)
        return mc_fail_param(
            err, MC_EARG, "kv-memory",
            "--kv-memory %llu holds %d pages of %lld bytes, 2 are needed",
            (unsigned long long)bytes, kv->n_page, (long long)kv->page_stride);
    if (e->o.max_context <= 0 || e->o.max_context > c->max_context)
        e->o.max_context = c->max_context;
    if (e->o.max_context > kv->n_page * MC_PAGE)
        e->o.max_context = kv->n_page * MC_PAGE;
    e->pitch = (e->o.max_context + MC_PAGE - 1) / MC_PAGE;
    kv->pitch = e->pitch;
    kv->n_slot = e->n_slot;
    return 0;
}

static int open_tables(struct mc_engine *e, struct mc_err *err)
{
    e->kv = mc_kv_new(e->dev.kv.n_page);
    e->seqs = calloc((size_t)e->n_seqs, sizeof *e->seqs);
    e->live = calloc((size_t)e->n_seqs, sizeof *e->live);
    e->live_gen = calloc((size_t)e->n_seqs, sizeof *e->live_gen);
    e->slot_free = calloc((size_t)e->n_slot, sizeof *e->slot_free);
    e->view = calloc(1, mc_view_cap(e));
    if (!e->kv || !e->seqs || !e->live || !e->live_gen ||
        !e->slot_free || !e->view)
        return mc_fail(err, MC_ENOMEM, "no memory for %d sequences", e->n_seqs);
    for (int32_t i = e->n_seqs - 1; i >= 0; i--) {
        e->seqs[i].id = (uint32_t)i + 1;
        e->seqs[i].gen = 1;
        e->seqs[i].next = e->seq_free;
        e->seq_free = &e->seqs[i];
    }
    for (int32_t i = e->n_slot - 1; i >= 0; i--)
        e->slot_free[e->n_slot_free++] = i;
    for (int i = 0; i < MC_N_LANE; i++)
        e->lane[i].weight = 1;
    for (int i = 0; i < MC_N_TENANT; i++)
        e->tenant[i].weight = 1;
    for (int i = 0; i < MC_MAX_SETS; i++)
        e->set_handle[i] = -1;
    return 0;
}

static void defaults(struct mc_engine *e, const struct mc_engine_opts *o)
{
    e->o = *o;
    e->n_slot = o->max_seqs > 0 ? o->max_seqs : 64;
    e->o.max_waiting = o->max_waiting > 0 ? o->max_waiting : 1024;
    e->o.chunk = o->chunk > 0 ? o->chunk : 256;
    if (e->o.chunk < e->n_slot)
        e->o.chunk = e->n_slot; /* a step has room for every decode row */
    e->n_seqs = e->o.max_waiting + e->n_slot;
    e->depth = o->sync ? 1 : MC_DEPTH;
    e->policy = mc_policy_builtin;
}

int mc_engine_open(const struct mc_engine_opts *o, struct mc_engine **out,
                   struct mc_err *err)
{
    struct mc_engine *e = calloc(1, sizeof *e);
    struct mc_pass_caps caps;
    int rc;

    if (!e)
        return mc_fail(err, MC_ENOMEM, "no memory for an engine");
    pthread_mutex_init(&e->look, NULL);
    pthread_mutex_init(&e->inbox, NULL);
    pthread_cond_init(&e->bell, NULL);
    defaults(e, o);
    rc = open_backend(e, err);
    if (rc == 0) {
        mc_mem_init(&e->mem, e->be);
        rc = open_model(e, err);
    }
    if (rc == 0)
        rc = size_kv(e, err);
    if (rc == 0)
        rc = open_tables(e, err);
    if (rc == 0)
        rc = mc_step_open(e, err);
    caps = (struct mc_pass_caps){.rows = e->o.chunk, .seqs = e->n_slot, .outs = e->n_slot,
                                 .context = e->o.max_context};
    if (rc == 0)
        rc = mc_pass_open(&e->model, &caps, &e->dev, &e->pass, err);
    if (rc == 0 && e->be->stream_new(e->be, &e->stream) < 0)
        rc = mc_fail(err, MC_EINTERNAL, "no stream on backend %s", e->be->name);
    if (rc == 0)
        rc = mc_step_record(e, err);
    if (rc < 0) {
        mc_engine_close(e);
        return rc;
    }
    *out = e;
    return 0;
}

void mc_engine_set_policy(struct mc_engine *e, const struct mc_policy *p)
{
    e->policy = *p;
}

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
                         .t_arrive = q->usage.t_arrive};
    struct mc_err err = {0};

    e->live[e->n_live++] = (int32_t)q->id - 1;
    e->live_gen[q->id - 1] = q->gen;
    if (e->policy.ops->admit && e->policy.ops->admit(e->policy.self, &row, &err) < 0)
        mc_seq_end(e, q, MC_FINISH_ERROR, -1, &err);
}

static void cancel_one(struct mc_engine *e, const struct mc_cancel *c)
{
    struct mc_seq *q = mc_seq_get(e, c->h);
    struct mc_err err = {0};

    if (!q)
        return;
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
        if (e->n_live > 0) {
            struct timespec ts;

            clock_gettime(CLOCK_REALTIME, &ts);
            ts.tv_nsec += 5 * 1000000;
            ts.tv_sec += ts.tv_nsec / 1000000000;
            ts.tv_nsec %= 1000000000;
            pthread_cond_timedwait(&e->bell, &e->inbox, &ts);
        } else {
            pthread_cond_wait(&e->bell, &e->inbox);
        }
    }
    stop = e->stopping;
    e->woken = false;
    pthread_mutex_unlock(&e->inbox);
    return !stop;
}

static void fail_engine(struct mc_engine *e, int code, const char *what)
{
    pthread_mutex_lock(&e->inbox); /* after this no submission gets in */
    atomic_store(&e->failed, code);
    pthread_mutex_unlock(&e->inbox);
    pthread_mutex_lock(&e->look);
    mc_fail(&e->fail, code, "%s: %s", what, mc_code_text(code));
    mc_error("engine", "the engine failed: %s", e->fail.text);
    take_inbox(e);
    end_all(e, &e->fail);
    pthread_mutex_unlock(&e->look);
}

static int publish_oldest(struct mc_engine *e)
{
    struct mc_step *s = &e->step[e->n_published % MC_DEPTH];
    int rc = e->be->wait(e->stream, s->ticket);

    if (rc < 0)
        return rc;
    pthread_mutex_lock(&e->look);
    mc_kv_settle(e->kv, s->ticket);
    mc_publish(e, s);
    e->n_published++;
    if (e->n_published == e->n_step) /* idle device: everything given back is settled */
        mc_kv_settle(e->kv, e->be->mark(e->stream));
    if (e->policy.ops->step_end)
        e->policy.ops->step_end(e->policy.self);
    pthread_mutex_unlock(&e->look);
    return 0;
}

/* One turn; a negative code when the device failed. *idle: nothing runs, nothing to run.
 */
static int turn(struct mc_engine *e, bool *idle)
{
    int rc = 0, more = 1;

    pthread_mutex_lock(&e->look);
    take_inbox(e);
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

int mc_engine_start(struct mc_engine *e, struct mc_err *err)
{
    if (pthread_create(&e->thread, NULL, loop, e) != 0)
        return mc_fail(err, MC_EINTERNAL, "no thread for the engine");
    e->started = true;
    return 0;
}

void mc_engine_stop(struct mc_engine *e)
{
    struct mc_err err = {0};

    if (!e->started)
        return;
    pthread_mutex_lock(&e->inbox);
    e->stopping = true;
    pthread_cond_signal(&e->bell);
    pthread_mutex_unlock(&e->inbox);
    pthread_join(e->thread, NULL);
    e->started = false;
    mc_fail(&err, MC_EDRAIN, "the server is shutting down");
    pthread_mutex_lock(&e->look);
    take_inbox(e);
    e->be->wait(e->stream, e->be->mark(e->stream));
    end_all(e, &err);
    pthread_mutex_unlock(&e->look);
}

void mc_engine_close(struct mc_engine *e)
{
    if (!e)
        return;
    mc_engine_stop(e);
    if (e->stream)
        e->be->stream_free(e->stream);
    if (e->forward)
        e->be->graph_free(e->forward);
    for (int i = 0; i < MC_DEPTH; i++)
        if (e->sample[i])
            e->be->graph_free(e->sample[i]);
    mc_pass_close(e->pass);
    for (int i = 0; i < MC_DEPTH; i++)
        free(e->step[i].row);
    if (e->be) {
        mc_mem_fini(&e->mem);
        if (e->model.be)
            mc_model_close(&e->model);
        e->be->close(e->be);
    }
    mc_kv_free(e->kv);
    mc_tok_close(e->tok);
    free(e->seqs), free(e->live), free(e->live_gen), free(e->slot_free), free(e->view);
    pthread_mutex_destroy(&e->look);
    pthread_mutex_destroy(&e->inbox);
    pthread_cond_destroy(&e->bell);
    free(e);
}

/* ---- submit and cancel ------------------------------------------------------------- */

/* With inbox held: is the engine taking requests at all? */
static int check_open(struct mc_engine *e, struct mc_err *err)
{
    if (atomic_load(&e->failed))
        return mc_fail(err, MC_EINTERNAL, "the engine has failed");
    if (e->stopping)
        return mc_fail(err, MC_EDRAIN, "the server is shutting down");
    return 0;
}

/* Takes a record for a request, or says why there is none. */
static int reserve(struct mc_engine *e, struct mc_seq **out, struct mc_err *err)
{
    int rc;

    pthread_mutex_lock(&e->inbox);
    rc = check_open(e, err);
    if (rc == 0 && (e->n_queued >= e->o.max_waiting || !e->seq_free))
        rc = mc_fail(err, MC_ELIMIT, "%d requests are waiting already", e->n_queued);
    if (rc == 0) {
        *out = e->seq_free;
        e->seq_free = (*out)->next;
        e->n_queued++;
    }
    pthread_mutex_unlock(&e->inbox);
    return rc;
}

int mc_engine_submit(struct mc_engine *e, const struct mc_request *r,
                     struct mc_handle *out, struct mc_err *err)
{
    struct mc_seq *q = NULL;
    int rc;

    rc = reserve(e, &q, err);
    if (rc < 0)
        return rc;
    rc = mc_seq_fill(e, q, r, err);
    pthread_mutex_lock(&e->inbox);
    if (rc == 0)
        rc = check_open(e, err); /* it may have ended meanwhile */
    if (rc < 0) {
        e->n_queued--;
        q->next = e->seq_free;
        e->seq_free = q;
    } else {
        *out = (struct mc_handle){q->id, q->gen};
        q->arrival = ++e->n_arrived;
        q->next = NULL;
        if (e->inbox_last)
            e->inbox_last->next = q;
        else
            e->inbox_first = q;
        e->inbox_last = q;
        pthread_cond_signal(&e->bell);
    }
    pthread_mutex_unlock(&e->inbox);
    return rc;
}

void mc_engine_cancel(struct mc_engine *e, struct mc_handle h, const char *why)
{
    struct mc_cancel *c = calloc(1, sizeof *c);

    if (!c)
        return; /* it will end by itself */
    c->h = h;
    if (why)
        snprintf(c->why, sizeof c->why, "%s", *why ? why : "cancelled");
    pthread_mutex_lock(&e->inbox);
    c->next = e->cancels;
    e->cancels = c;
    pthread_cond_signal(&e->bell);
    pthread_mutex_unlock(&e->inbox);
}

void mc_engine_wake(struct mc_engine *e)
{
    pthread_mutex_lock(&e->inbox);
    e->woken = true;
    pthread_cond_signal(&e->bell);
    pthread_mutex_unlock(&e->inbox);
}

/* ---- looking in -------------------------------------------------------------------- */

const struct mc_config *mc_engine_config(const struct mc_engine *e)
{
    return &e->model.cfg;
}

const struct mc_tok *mc_engine_tok(const struct mc_engine *e)
{
    return e->tok;
}

void mc_engine_status(struct mc_engine *e, struct mc_engine_status *out)
{
    static const char *const kv[] = {"f32", "bf16", "fp8"};

    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&e->look);
    out->running = e->started;
    out->failed = atomic_load(&e->failed) != 0;
    out->fail = e->fail;
    snprintf(out->backend, sizeof out->backend, "%s (%s)", e->be->name, e->be->what);
    snprintf(out->kv, sizeof out->kv, "%s", kv[e->dev.kv.layout]);
    out->weight_bytes = e->model.weight_bytes;
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
    out->max_context = e->o.max_context;
    out->max_seqs = e->n_slot;
    out->kv_tokens = e->dev.kv.n_page * MC_PAGE;
    out->generation =
        e->policy.ops->generation ? e->policy.ops->generation(e->policy.self) : 0;
    out->steps = (double)e->n_published;
    pthread_mutex_unlock(&e->look);
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
