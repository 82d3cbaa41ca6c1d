/* tap.c - what is taken from a sequence's rows, and added to them: capture and steering.
 *
 * Owns the references to the tensors that live sequences name, and those of sequences
 * that ended until no enqueued step names them. THREAD: mc_tap_fill the submitter's; the
 * rest the engine's. Always true: a step's list holds at most caps.taps entries, and each
 * points into a tensor that is held. A step whose list is empty runs the pass without
 * taps. */
#include <stdlib.h>
#include <string.h>

#include "core/engine/engine_int.h"

/* ---- from a request ---------------------------------------------------------------- */

static int check_layer(const struct mc_engine *e, const char *field, int32_t layer,
                       int32_t least, struct mc_err *err)
{
    int32_t most = e->model->cfg.n_layer;

    if (layer >= least && layer <= most)
        return 0;
    return mc_fail_param(err, MC_EARG, field, "%s: layer %d is outside 0..%d", field,
                         layer, most);
}

static int check_tensor(const struct mc_engine *e, const char *field,
                        const struct mc_tensor *t, int n_dim, int32_t cols, int dt,
                        struct mc_err *err)
{
    char text[80];

    if (!t->store ||
        !mc_tensors_reach(mc_account_pool(mc_tensor_account(t)), e->model->be))
        return mc_fail_param(err, MC_EARG, field, "%s: its tensor is on another device",
                             field);
    if (t->n_dim == n_dim && t->v.n[3] == cols && t->v.dt == dt && t->v.step[3] == 1 &&
        (n_dim == 1 || t->v.step[2] == cols))
        return 0;
    mc_tensor_text(t, text);
    return mc_fail_param(err, MC_EARG, field, "%s: %s is not %s [%s%d]", field, text,
                         mc_dtype_name(dt), n_dim == 2 ? "rows, " : "", cols);
}

static int check(const struct mc_engine *e, const struct mc_request *r,
                 struct mc_err *err)
{
    const struct mc_config *c = &e->model->cfg;
    int dt = e->model->be->row_dt, rc = 0;

    if (e->caps.taps == 0)
        return mc_fail_param(err, MC_EUNSUP, r->n_steer ? "steer" : "capture",
                             "backend %s can't capture or steer", e->model->be->name);
    if (r->n_steer > MC_MAX_TAPS || r->n_capture > MC_MAX_TAPS)
        return mc_fail_param(err, MC_EARG, r->n_steer > MC_MAX_TAPS ? "steer" : "capture",
                             "at most %d layers are steered, and %d captured",
                             MC_MAX_TAPS, MC_MAX_TAPS);
    for (int32_t i = 0; i < r->n_steer && rc == 0; i++) {
        const struct mc_steer *s = &r->steer[i];

        rc = check_layer(e, "steer", s->layer, 0, err);
        if (rc == 0)
            rc = check_tensor(e, "steer", &s->add, 1, c->hidden, dt, err);
    }
    for (int32_t i = 0; i < r->n_capture && rc == 0; i++) {
        const struct mc_capture *t = &r->capture[i];
        bool logits = t->layer == MC_TAP_LOGITS;

        rc = check_layer(e, "capture", t->layer, MC_TAP_LOGITS, err);
        if (rc == 0)
            rc = check_tensor(e, "capture", &t->to, 2, logits ? c->vocab : c->hidden,
                              logits ? MC_F32 : dt, err);
    }
    return rc;
}

int mc_tap_fill(struct mc_engine *e, struct mc_seq *q, const struct mc_request *r,
                struct mc_err *err)
{
    struct mc_seq_taps *t;
    int rc;

    if (r->n_steer == 0 && r->n_capture == 0)
        return 0;
    rc = check(e, r, err);
    if (rc < 0)
        return rc;
    t = calloc(1, sizeof *t);
    if (!t)
        return mc_fail(err, MC_ENOMEM, "no memory for taps");
    for (; t->n_steer < r->n_steer; t->n_steer++) {
        t->steer[t->n_steer] = r->steer[t->n_steer];
        mc_tensor_ref(&r->steer[t->n_steer].add);
    }
    for (; t->n_capture < r->n_capture; t->n_capture++) {
        t->capture[t->n_capture] = r->capture[t->n_capture];
        t->hidden |= r->capture[t->n_capture].layer != MC_TAP_LOGITS;
        mc_tensor_ref(&r->capture[t->n_capture].to);
    }
    q->taps = t;
    return 0;
}

/* ---- steps ------------------------------------------------------------------------- */

bool mc_tap_room(const struct mc_engine *e, const struct mc_step *s)
{
    return s->taps->n + 2 * MC_MAX_TAPS <= e->caps.taps;
}

/* Rows [row, row+n) of the step to rows `at`.. of the tensor, as far as it goes. */
static void add_capture(struct mc_taps *l, const struct mc_capture *c, int32_t row,
                        int32_t at, int32_t n)
{
    const struct mc_strided *to = &c->to.v;
    int32_t room = to->n[2] - at;

    if (room <= 0)
        return;
    l->v[l->n++] = (struct mc_tap){
        .layer = c->layer,
        .row = row,
        .n = n < room ? n : room,
        .out = (char *)to->p + (int64_t)at * to->n[3] * (int64_t)mc_dtype_bytes(to->dt)};
}

void mc_tap_add(struct mc_step *s, const struct mc_seq *q, int32_t at, int32_t n)
{
    const struct mc_seq_taps *t = q->taps;
    bool sampled = s->row[s->n_row].sampled;

    for (int32_t i = 0; i < t->n_steer; i++)
        s->taps->v[s->taps->n++] = (struct mc_tap){.layer = t->steer[i].layer,
                                                   .row = s->n_tok,
                                                   .n = n,
                                                   .scale = t->steer[i].scale,
                                                   .add = t->steer[i].add.v.p};
    for (int32_t i = 0; i < t->n_capture; i++)
        if (t->capture[i].layer != MC_TAP_LOGITS)
            add_capture(s->taps, &t->capture[i], s->n_tok, at, n);
        else if (sampled)
            add_capture(s->taps, &t->capture[i], s->n_out - 1, q->n_gen + q->n_fly, 1);
}

/* ---- ends -------------------------------------------------------------------------- */

void mc_tap_drop(struct mc_seq_taps *t)
{
    for (int32_t i = 0; t && i < t->n_steer; i++)
        mc_tensor_drop(&t->steer[i].add);
    for (int32_t i = 0; t && i < t->n_capture; i++)
        mc_tensor_drop(&t->capture[i].to);
    free(t);
}

void mc_tap_end(struct mc_engine *e, struct mc_seq *q)
{
    struct mc_seq_taps *t = q->taps;

    if (!t)
        return;
    t->ticket = e->n_published == e->n_step ? 0 : mc_crew_mark(&e->crew);
    t->next = e->taps_gone;
    e->taps_gone = t;
    q->taps = NULL;
    mc_tap_settle(e, 0);
}

void mc_tap_settle(struct mc_engine *e, uint64_t done)
{
    struct mc_seq_taps **at = &e->taps_gone;

    while (*at) {
        struct mc_seq_taps *t = *at;

        if (t->ticket > done) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        mc_tap_drop(t);
    }
}
