/* trace.c - how long steps take, and what a recorder is told of the engine's doings.
 *
 * Owns nothing. THREAD: the engine's; nothing here waits. A step's time runs from when the
 * device was free for it (it was enqueued, or the one before was done) until it was seen to
 * be done. */
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/engine/engine_int.h"

static const double VIEW_EVERY_S = 0.5;

/* ---- times ------------------------------------------------------------------------- */

static double begun(const struct mc_engine *e, const struct mc_step *s)
{
    return s->t_enqueue > e->t_done ? s->t_enqueue : e->t_done;
}

/* What a step took beyond its rows went into moving pages. One that a busy machine held up
 * tells little, so each changes the rate by an eighth at most. */
static void learn_moves(struct mc_engine *e, struct mc_step *s)
{
    double bytes = mc_moves_bytes(e, &s->moves), now = (double)e->swap.bytes_us;
    double rows = s->n_row ? mc_cost_us(&e->cost.decode, &e->cost.prefill, &s->cost) : 0;
    double us = (double)s->cost.us - rows;

    if (bytes <= 0 || (s->n_row > 0 && rows <= 0))
        return; /* nothing to tell it by */
    if (us < bytes / (2 * now))
        us = bytes / (2 * now);
    e->swap.bytes_us += (float)((bytes / us - now) / 8);
    s->cost.us = (float)rows;
}

/* Step s is done; the host waited for it since t_wait. */
void mc_trace_time(struct mc_engine *e, struct mc_step *s, double t_wait)
{
    double now = mc_now();

    s->cost.us = (float)((now - begun(e, s)) * 1e6);
    e->dev_us = s->cost.us;
    e->host_us = (float)((t_wait - e->t_host) * 1e6);
    e->t_done = e->t_host = now;
    if (mc_moves_any(&s->moves))
        learn_moves(e, s);
    else if (s->n_row > 0)
        mc_cost_add(&e->cost, &s->cost);
}

static double moves_us(const struct mc_engine *e, const struct mc_step *s)
{
    double bytes = mc_moves_bytes(e, &s->moves);

    return bytes > 0 ? bytes / (double)e->swap.bytes_us : 0;
}

float mc_trace_queue(const struct mc_engine *e)
{
    double us = 0;

    for (uint64_t i = e->n_published; i < e->n_step; i++)
        us += moves_us(e, &e->step[i % MC_DEPTH]);
    return (float)us;
}

float mc_trace_fly(const struct mc_engine *e, double now)
{
    double us = 0;

    for (uint64_t i = e->n_published; i < e->n_step; i++) {
        const struct mc_step *s = &e->step[i % MC_DEPTH];
        double whole = mc_cost_us(&e->cost.decode, &e->cost.prefill, &s->cost) +
                       moves_us(e, s);
        double past = i == e->n_published ? (now - begun(e, s)) * 1e6 : 0;

        us += whole > past ? whole - past : 0;
    }
    return (float)us;
}

/* ---- the recorder ------------------------------------------------------------------ */

int mc_engine_record(struct mc_engine *e, struct mc_recorder *r, struct mc_err *err)
{
    struct mc_rec_head h = {.abi = MC_ABI, .depth = (uint32_t)e->depth, .p_tokens = MC_PAGE,
                            .p_total = mc_kv_total(e->kv), .tok_cap = e->o.chunk,
                            .row_cap = e->n_slot, .max_context = e->o.max_context};
    const char *slash = strrchr(e->o.model, '/');

    e->rec_tok = calloc((size_t)e->n_slot, sizeof *e->rec_tok);
    if (!e->rec_tok)
        return mc_fail(err, MC_ENOMEM, "no memory to record");
    for (int i = 0; i < MC_REC_LANES; i++)
        h.weight[i] = e->lane[i].weight;
    /* its name: a path would tell of the machine */
    strncpy(h.model, slash ? slash + 1 : e->o.model, sizeof h.model - 1);
    mc_recorder_put(r, MC_REC_HEAD, &h, sizeof h, NULL, 0);
    e->rec = r;
    return 0;
}

void mc_trace_arrive(struct mc_engine *e, struct mc_seq *q)
{
    struct mc_rec_arrive a = {
        .t = mc_recorder_time(e->rec, q->usage.t_arrive),
        .due_first = mc_recorder_time(e->rec, q->due_first),
        .due_end = mc_recorder_time(e->rec, q->deadline),
        .seq = q->id, .gen = q->gen, .lane = q->lane, .tenant = q->tenant,
        .n_prompt = q->n_prompt, .limit = q->limit, .priority = q->priority,
        .slo_token = (float)q->slo_token,
        .n_ids = mc_recorder_tokens(e->rec) ? (uint32_t)q->n_prompt : 0,
    };

    mc_prefix_look(e, q); /* makes the chain */
    a.group = q->n_chain ? (uint32_t)q->chain[0].lo | 1 : 0;
    mc_recorder_put(e->rec, MC_REC_ARRIVE, &a, sizeof a, q->ids,
                    (size_t)a.n_ids * sizeof *q->ids);
}

void mc_trace_start(struct mc_engine *e, const struct mc_seq *q)
{
    struct mc_rec_start s = {.seq = q->id, .gen = q->gen, .n_hit = q->n_cached};

    mc_recorder_put(e->rec, MC_REC_START, &s, sizeof s, NULL, 0);
}

void mc_trace_view(struct mc_engine *e)
{
    struct mc_rec_view v = {.tok_left = e->view->tok_cap, .row_left = e->view->row_cap,
                            .page_left = e->view->p_free + e->view->p_evict};

    if (e->view->now - e->t_rec_view < VIEW_EVERY_S)
        return;
    e->t_rec_view = e->view->now;
    mc_recorder_put(e->rec, MC_REC_VIEW, &v, sizeof v, e->view, e->view->bytes);
}

void mc_trace_step(struct mc_engine *e, const struct mc_step *s)
{
    struct mc_rec_step r = {.t = mc_recorder_time(e->rec, e->t_done), .cost = s->cost,
                            .host_us = e->host_us};

    for (int32_t i = 0; i < s->n_row; i++)
        if (s->row[i].sampled &&
            mc_seq_get(e, (struct mc_handle){s->row[i].seq, s->row[i].gen}))
            e->rec_tok[r.n_tok++] = s->row[i].seq;
    mc_recorder_put(e->rec, MC_REC_STEP, &r, sizeof r, e->rec_tok,
                    (size_t)r.n_tok * sizeof *e->rec_tok);
}

void mc_trace_end(struct mc_engine *e, const struct mc_seq *q, const struct mc_end *end)
{
    struct mc_rec_end r = {.t = mc_recorder_time(e->rec, end->usage.t_end), .seq = q->id,
                           .gen = q->gen, .n_gen = q->n_gen, .finish = (int32_t)end->finish};

    mc_recorder_put(e->rec, MC_REC_END, &r, sizeof r, NULL, 0);
}
