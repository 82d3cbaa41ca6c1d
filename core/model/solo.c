/* solo.c - one sequence run by hand through a pass, on all ranks.
 *
 * Owns its buffers. THREAD: one.
 * Always true: page i of the sequence is page i of the pool (of sharded ranks, page i / n of
 * rank i mod n); tags are not checked against
 * anything but themselves. The rows are prefill rows, also where there is only one. Ranks
 * other than 0 replay the recorded pass, one record of their streams: rank 0's, a record an
 * operation, comes last, so that nobody waits for what is not enqueued yet. */
#include "core/model/solo.h"

#include <stdlib.h>
#include <string.h>

#include "core/model/memory.h"

struct mc_solo {
    const struct mc_model *m;
    struct mc_solo_opts o;
    struct mc_crew crew;
    struct mc_run *r0;
    struct mc_mem mem;
    float *logits; /* [outs, V] of all ranks; rank 0's own when it is alone */
    struct mc_rows stage;
    void *stage_base;
    uint32_t (*init)[2];
    int32_t *n_init, n_page;
    struct mc_delta *delta;
    struct mc_slot *slot_in;
    int32_t pos;
};

static int take_all(struct mc_solo *s, const struct mc_pass_caps *caps)
{
    size_t pages = (size_t)s->n_page;

    s->logits = s->r0->dev.logits;
    if (s->crew.n > 1)
        s->logits = mc_mem_take_host(&s->mem, (size_t)caps->outs *
                                                  (size_t)s->m->cfg.vocab *
                                                  sizeof *s->logits);
    s->stage_base = mc_mem_take_host(&s->mem, mc_rows_bytes(caps));
    s->init = mc_mem_take_host(&s->mem, pages * sizeof *s->init);
    s->n_init = mc_mem_take_host(&s->mem, sizeof *s->n_init);
    s->delta = mc_mem_take_host(&s->mem, (pages + 1) * sizeof *s->delta);
    s->slot_in = mc_mem_take_host(&s->mem, sizeof *s->slot_in);
    if (!s->logits || !s->stage_base || !s->init || !s->n_init || !s->delta ||
        !s->slot_in)
        return MC_ENOMEM;
    s->stage = mc_rows_bind(s->stage_base, caps);
    return 0;
}

int mc_solo_open(struct mc_ranks *r, const struct mc_solo_opts *o, struct mc_solo **out,
                 struct mc_err *err)
{
    const struct mc_model *m = &r->rank[0].model;
    struct mc_pass_caps caps = {.rows = o->rows, .seqs = 1, .outs = o->outs,
                                .context = o->context};
    struct mc_pool_size size = {.layout = o->kv, .n_slot = 1};
    int32_t shards = mc_ranks_shards(r);
    struct mc_solo *s = calloc(1, sizeof *s);
    int rc = MC_ENOMEM;

    if (!s)
        return mc_fail(err, MC_ENOMEM, "no memory for a sequence");
    s->m = m;
    s->o = *o;
    s->r0 = &s->crew.run[0];
    s->n_page = size.pitch = (o->context + MC_PAGE - 1) / MC_PAGE;
    size.n_page = (s->n_page + shards - 1) / shards;
    mc_mem_init(&s->mem, m->be);
    if (m->be->row_dt != MC_F32)
        rc = mc_fail(err, MC_EUNSUP, "backend %s: results can't be read on the host",
                     m->be->name);
    else
        rc = mc_crew_open(&s->crew, r, &size, &caps, err);
    if (rc == 0 && take_all(s, &caps) < 0)
        rc = mc_fail(err, MC_ENOMEM, "no memory for a context of %d", o->context);
    if (rc < 0) {
        mc_solo_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void mc_solo_close(struct mc_solo *s)
{
    if (!s)
        return;
    mc_crew_close(&s->crew);
    if (s->crew.n)
        return; /* a rank is stuck and may still read the staging */
    mc_mem_fini(&s->mem);
    free(s);
}

void mc_solo_reset(struct mc_solo *s)
{
    s->pos = 0;
}

void mc_solo_take(struct mc_solo *s, const struct mc_solo *from)
{
    for (int32_t i = 0; i < s->crew.n; i++) {
        const struct mc_kv *kv = &from->crew.run[i].dev.kv;

        memcpy(s->crew.run[i].dev.kv.base, kv->base,
               (size_t)kv->page_stride * (size_t)from->n_page);
    }
    s->pos = from->pos;
}

/* Fills the staging of one run; everything of the slot and its table at position 0. */
static struct mc_stage stage(struct mc_solo *s, const int32_t *ids, int32_t n,
                             int32_t pos, const int32_t *out_row, int32_t n_out)
{
    int32_t *live = mc_staged(s->stage.live);
    int32_t n_delta = 0;

    live[MC_LIVE_ROWS] = n;
    live[MC_LIVE_DECODE] = 0;
    live[MC_LIVE_SEQS] = 1;
    live[MC_LIVE_OUT] = n_out;
    for (int32_t i = 0; i < n; i++) {
        mc_staged(s->stage.tok)[i] = ids[i];
        mc_staged(s->stage.pos)[i] = pos + i;
        mc_staged(s->stage.row_seq)[i] = 0;
    }
    mc_staged(s->stage.q0)[0] = 0;
    mc_staged(s->stage.q0)[1] = n;
    mc_staged(s->stage.kv_len)[0] = pos + n;
    mc_staged(s->stage.slot)[0] = 0;
    for (int32_t i = 0; i < n_out; i++) {
        mc_staged(s->stage.out_row)[i] = out_row[i];
        mc_staged(s->stage.target)[i] = -1;
    }
    *s->n_init = 0;
    if (pos == 0) {
        *s->slot_in = (struct mc_slot){.tok = -1, .samp = {.top_p = 1, .rep = 1}};
        s->delta[n_delta++] = (struct mc_delta){.what = MC_DELTA_SLOT};
        for (int32_t i = 0; i < s->n_page; i++) {
            s->delta[n_delta++] =
                (struct mc_delta){.what = MC_DELTA_PAGE, .at = i, .value = i, .tag = 1};
            s->init[i][0] = (uint32_t)i;
            s->init[i][1] = 1;
        }
        *s->n_init = s->n_page;
    }
    return (struct mc_stage){.rows = s->stage_base, .delta = s->delta, .n_delta = n_delta,
                             .slots_in = s->slot_in, .init = s->init, .n_init = s->n_init,
                             .max_init = s->n_page};
}

/* What a golden file asks for may be anything. */
static int check_run(const struct mc_solo *s, const int32_t *ids, int32_t n, int32_t pos,
                     const int32_t *out_row, int32_t n_out, struct mc_err *err)
{
    if (n < 1 || n > s->o.rows || n_out > s->o.outs || pos + n > s->o.context)
        return mc_fail(err, MC_EARG, "%d rows at position %d of %d", n, pos,
                       s->o.context);
    for (int32_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->m->cfg.vocab)
            return mc_fail(err, MC_EARG, "token %d is outside 0..%d", ids[i],
                           s->m->cfg.vocab - 1);
    for (int32_t i = 0; i < n_out; i++)
        if (out_row[i] < 0 || out_row[i] >= n)
            return mc_fail(err, MC_EARG, "logits of row %d of %d", out_row[i], n);
    return 0;
}

/* Row r of the logits is on rank r mod n. */
static void collect(struct mc_solo *s, int32_t n_out)
{
    size_t v = (size_t)s->m->cfg.vocab;

    for (int32_t r = 0; r < n_out && s->crew.n > 1; r++)
        memcpy(s->logits + (size_t)r * v,
               s->crew.run[r % s->crew.n].dev.logits + (size_t)(r / s->crew.n) * v,
               v * sizeof *s->logits);
}

static int run_at(struct mc_solo *s, bool draft, const int32_t *ids, int32_t n,
                  int32_t pos, const int32_t *out_row, int32_t n_out,
                  const struct mc_pass_watch *watch, struct mc_err *err)
{
    struct mc_stage st;
    int rc = check_run(s, ids, n, pos, out_row, n_out, err);

    if (rc < 0)
        return rc;
    st = stage(s, ids, n, pos, out_row, n_out);
    for (int32_t i = s->crew.n - 1; i >= 0 && rc == 0; i--) {
        struct mc_run *run = &s->crew.run[i];

        rc = mc_run_put(run, &st);
        if (rc == 0 && i > 0)
            rc = run->be->graph_run(run->stream, draft ? run->draft : run->forward);
        else if (rc == 0)
            rc = (draft ? mc_pass_draft : mc_pass_forward)(run->pass, run->stream, watch);
    }
    for (int32_t i = 0; i < s->crew.n && rc == 0; i++)
        rc = s->crew.run[i].be->wait(s->crew.run[i].stream,
                                     s->crew.run[i].be->mark(s->crew.run[i].stream));
    if (rc < 0)
        return mc_fail(err, rc, "a pass failed: %s", mc_crew_parted(&s->crew)
                                                         ? mc_crew_parted(&s->crew)
                                                         : mc_code_text(rc));
    collect(s, n_out);
    return 0;
}

int mc_solo_run(struct mc_solo *s, const int32_t *ids, int32_t n, const int32_t *out_row,
                int32_t n_out, const struct mc_pass_watch *watch, const float **logits,
                struct mc_err *err)
{
    int rc = run_at(s, false, ids, n, s->pos, out_row, n_out, watch, err);

    if (rc == 0)
        s->pos += n;
    *logits = s->logits;
    return rc;
}

int mc_solo_draft(struct mc_solo *s, const int32_t *ids, int32_t n, int32_t pos,
                  const void *hidden, const int32_t *out_row, int32_t n_out,
                  const struct mc_pass_watch *watch, const float **logits,
                  struct mc_err *err)
{
    size_t row = (size_t)s->m->cfg.hidden * (s->m->be->row_dt == MC_F32 ? 4 : 2);

    if (!s->r0->draft || n < 1 || n > s->o.rows || pos < 1)
        return mc_fail(err, MC_EARG, "no draft of %d rows at position %d", n, pos);
    *logits = s->logits;
    for (int32_t i = 0; i < s->crew.n; i++) /* the same on every rank */
        memcpy(mc_pass_draft_hidden(s->crew.run[i].pass),
               hidden ? hidden : mc_pass_peek(s->r0->pass, MC_PEEK_NORM),
               (size_t)n * row);
    return run_at(s, true, ids, n, pos, out_row, n_out, watch, err);
}

int mc_solo_wait(struct mc_solo *s)
{
    return s->r0->be->wait(s->r0->stream, s->r0->be->mark(s->r0->stream));
}

const struct mc_pass *mc_solo_pass(const struct mc_solo *s)
{
    return s->r0->pass;
}
