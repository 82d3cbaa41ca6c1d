/* publish.c - what came back from a step: tokens delivered, stops and limits seen, pages
 * offered for sharing.
 *
 * Owns nothing. THREAD: the engine's, with `look` held; the step's ticket has passed.
 * Always true: a token is appended to its sequence before its sink sees it; a row whose
 * sequence ended meanwhile (a stop was seen a step earlier) is ignored. */
#include <string.h>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/engine/engine_int.h"

static bool is_stop(const struct mc_engine *e, const struct mc_seq *q, int32_t id)
{
    const struct mc_config *c = &e->model->cfg;

    for (int32_t i = 0; i < q->n_stop; i++)
        if (q->stop[i] == id)
            return true;
    for (int32_t i = 0; i < c->n_eos && !q->ignore_eos; i++)
        if (c->eos[i] == id)
            return true;
    return false;
}

static void end_bad(struct mc_engine *e, struct mc_seq *q, uint32_t bad)
{
    struct mc_err err = {0};

    if (bad & MC_BAD_PAGE) {
        mc_count(e, MC_C_page_tag_mismatch_total, 1);
        mc_fail(&err, MC_EINTERNAL, "a KV page of this request was no longer its own");
    } else {
        mc_count(e, MC_C_bad_rows_total, 1);
        mc_fail(&err, MC_EINTERNAL, "the model's logits were not finite");
    }
    mc_error("engine", "request %s ended: %s", q->name, err.text);
    mc_seq_end(e, q, MC_FINISH_ERROR, -1, &err);
}

static void copy_cands(const struct mc_out *o, int32_t keep, struct mc_cands *c)
{
    *c = (struct mc_cands){.n = o->n_cand,
                           .rest = o->rest,
                           .lse = o->lse,
                           .drawn = o->tok};
    if (keep > 0 && keep < c->n)
        c->n = keep;
    for (int32_t i = 0; i < c->n; i++) {
        c->id[i] = o->cand_id[i];
        c->p[i] = o->cand_p[i];
        c->logit[i] = o->cand_logit[i];
    }
    for (int32_t i = c->n; i < o->n_cand; i++)
        c->rest += o->cand_p[i];
}

/* The hook's choice, or the device's own when it has none or fails. */
static int32_t pick(struct mc_engine *e, struct mc_seq *q, const struct mc_out *o)
{
    struct mc_cands c;
    struct mc_err err = {0};
    int32_t id = -1;

    if (!(q->params.flags & MC_PARAM_PICK) || !e->policy.ops->pick)
        return o->tok;
    copy_cands(o, q->params.keep, &c);
    q->pick.done = q->n_gen;
    if (e->policy.ops->pick(e->policy.self, &c, &q->pick, &id, &err) < 0 || id < 0)
        return o->tok;
    if (id >= e->model->n_real) {
        mc_warn("engine", "pick returned token %d, outside 0..%d", id,
                e->model->n_real - 1);
        return o->tok;
    }
    if (id != o->tok)
        q->override_tok = id;
    return id;
}

/* The last 32 tokens, for a sampler that looks back. */
static void push_tail(struct mc_pick_seq *p, int32_t id)
{
    const int32_t cap = sizeof p->tail / sizeof p->tail[0];

    if (p->n_tail == cap)
        memmove(p->tail, p->tail + 1, (size_t)(--p->n_tail) * sizeof *p->tail);
    p->tail[p->n_tail++] = id;
}

static float logprob_of(const struct mc_out *o, int32_t id)
{
    if (id == o->tok)
        return o->logprob;
    for (int32_t i = 0; i < o->n_top; i++)
        if (o->top_id[i] == id)
            return o->top_logprob[i];
    return 0; /* a picked token outside the top list: not known */
}

static struct mc_token token_of(const struct mc_seq *q, const struct mc_out *o,
                                int32_t id)
{
    struct mc_token t = {.id = id, .logprob = logprob_of(o, id)};

    if (q->n_top > 0) {
        t.n_top = q->n_top < o->n_top ? q->n_top : o->n_top;
        for (int32_t i = 0; i < t.n_top; i++) {
            t.top_id[i] = o->top_id[i];
            t.top_logprob[i] = o->top_logprob[i];
        }
    }
    return t;
}

static void deliver(struct mc_seq *q, const struct mc_out *o, int32_t id)
{
    struct mc_token t = token_of(q, o, id);

    q->sink.token(q->sink.ctx, &t);
}

static void time_token(struct mc_engine *e, struct mc_seq *q, double now)
{
    if (q->usage.t_first == 0) {
        q->usage.t_first = now;
        mc_observe(e, MC_H_time_to_first_token_seconds, now - q->usage.t_arrive);
        mc_life_note(e, q, MC_LIFE_FIRST, 0);
    } else {
        mc_observe(e, MC_H_inter_token_latency_seconds, now - q->t_last);
    }
    q->t_last = now;
}

static void publish_token(struct mc_engine *e, struct mc_seq *q, const struct mc_out *o,
                          double now)
{
    int32_t id;

    q->n_fly--;
    if (o->tok < 0) {
        end_bad(e, q, o->bad);
        return;
    }
    id = pick(e, q, o);
    if (mc_seq_append(q, id) < 0) {
        struct mc_err err = {0};

        mc_fail(&err, MC_ENOMEM, "no memory for the context");
        mc_seq_end(e, q, MC_FINISH_ERROR, -1, &err);
        return;
    }
    q->n_gen++;
    push_tail(&q->pick, id);
    mc_count(e, MC_C_generation_tokens_total, 1);
    mc_party_serve(&e->lane[q->lane], now, 0, 1);
    mc_party_serve(&e->tenant[q->tenant], now, 0, 1);
    time_token(e, q, now);
    mc_prefix_share(e, q);
    if (is_stop(e, q, id)) {
        mc_seq_end(e, q, MC_FINISH_STOP, id, NULL);
        return;
    }
    deliver(q, o, id);
    if (q->n_gen >= q->limit || q->n_ids >= e->o.max_context)
        mc_seq_end(e, q, MC_FINISH_LENGTH, -1, NULL);
}

/* Logprobs of prompt tokens; a bad row among them ends the sequence. */
static bool publish_targets(struct mc_engine *e, struct mc_seq *q, const struct mc_out *o,
                            int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        struct mc_token t;

        if (o[i].tok < 0) {
            end_bad(e, q, o[i].bad);
            return false;
        }
        t = token_of(q, &o[i], o[i].tok);
        q->sink.prompt(q->sink.ctx, &t);
    }
    return true;
}

static void publish_prompt(struct mc_engine *e, struct mc_seq *q)
{
    mc_prefix_share(e, q);
    if (q->n_pub == q->n_ids && q->limit == 0)
        mc_seq_end(e, q, MC_FINISH_LENGTH, -1, NULL);
}

void mc_publish(struct mc_engine *e, struct mc_step *s)
{
    double now = e->t_done;

    mc_pair_passed(s);
    if (s->n_row == 0)
        return; /* it moved pages only */
    mc_observe(e, MC_H_step_seconds, now - s->t_enqueue);
    if (e->rec)
        mc_trace_step(e, s);
    for (int32_t i = 0; i < s->n_row; i++) {
        const struct mc_step_row *r = &s->row[i];
        struct mc_seq *q = mc_seq_get(e, (struct mc_handle){r->seq, r->gen});
        int32_t n;

        if (!q)
            continue;
        n = s->rows.q0[i + 1] - s->rows.q0[i];
        if (i >= s->n_decode) {
            mc_party_serve(&e->lane[q->lane], now, n, 0);
            mc_party_serve(&e->tenant[q->tenant], now, n, 0);
        }
        if (q->n_page > 0 && r->n_ctx <= q->n_ctx) /* else it was preempted meanwhile */
            q->n_pub = r->n_ctx;
        if (!publish_targets(e, q, &s->ring[r->out], r->n_out - r->sampled))
            continue;
        if (r->sampled)
            publish_token(e, q, &s->ring[r->out + r->n_out - 1], now);
        else
            publish_prompt(e, q);
    }
}
