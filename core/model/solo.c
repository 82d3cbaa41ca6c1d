/* solo.c - one sequence run by hand through a pass.
 *
 * Owns its buffers. THREAD: one.
 * Always true: page i of the sequence is physical page i; tags are not checked against
 * anything but themselves. The rows are prefill rows, also where there is only one. */
#include "core/model/solo.h"

#include <stdlib.h>
#include <string.h>

#include "core/model/memory.h"

struct mc_solo {
    const struct mc_model *m;
    struct mc_solo_opts o;
    struct mc_mem mem;
    struct mc_step_mem dev;
    struct mc_pass *pass;
    struct mc_stream *stream;
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
    struct mc_step_mem *d = &s->dev;
    size_t pages = (size_t)s->n_page;

    d->kv = mc_model_kv(s->m, s->o.kv);
    d->kv.pitch = d->kv.n_page = s->n_page;
    d->kv.n_slot = 1;
    if (mc_step_mem_take(d, &s->mem, &s->m->cfg, caps) < 0)
        return MC_ENOMEM;
    s->stage_base = mc_mem_take_host(&s->mem, d->rows_bytes);
    s->init = mc_mem_take_host(&s->mem, pages * sizeof *s->init);
    s->n_init = mc_mem_take_host(&s->mem, sizeof *s->n_init);
    s->delta = mc_mem_take_host(&s->mem, (pages + 1) * sizeof *s->delta);
    s->slot_in = mc_mem_take_host(&s->mem, sizeof *s->slot_in);
    if (!s->stage_base || !s->init || !s->n_init || !s->delta || !s->slot_in)
        return MC_ENOMEM;
    s->stage = mc_rows_bind(s->stage_base, caps);
    return 0;
}

int mc_solo_open(const struct mc_model *m, const struct mc_solo_opts *o,
                 struct mc_solo **out, struct mc_err *err)
{
    struct mc_pass_caps caps = {.rows = o->rows, .seqs = 1, .outs = o->outs,
                                .context = o->context};
    struct mc_solo *s = calloc(1, sizeof *s);
    int rc = MC_ENOMEM;

    if (!s)
        return mc_fail(err, MC_ENOMEM, "no memory for a sequence");
    s->m = m;
    s->o = *o;
    s->n_page = (o->context + MC_PAGE - 1) / MC_PAGE;
    mc_mem_init(&s->mem, m->be);
    if (m->be->row_dt != MC_F32)
        rc = mc_fail(err, MC_EUNSUP, "backend %s: results can't be read on the host",
                     m->be->name);
    else if (take_all(s, &caps) < 0)
        rc = mc_fail(err, MC_ENOMEM, "no memory for a context of %d", o->context);
    else
        rc = m->be->stream_new(m->be, &s->stream);
    if (rc == 0)
        rc = mc_pass_open(m, &caps, &s->dev, &s->pass, err);
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
    if (s->stream)
        s->m->be->stream_free(s->stream);
    mc_pass_close(s->pass);
    mc_mem_fini(&s->mem);
    free(s);
}

void mc_solo_reset(struct mc_solo *s)
{
    s->pos = 0;
}

/* Fills the staging of one run; everything of the slot and its table at position 0. */
static void stage(struct mc_solo *s, const int32_t *ids, int32_t n, int32_t pos,
                  const int32_t *out_row, int32_t n_out, struct mc_table_apply_p *up)
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
    *up = mc_step_upload(&s->dev, s->m->cfg.vocab, s->stage_base);
    up->delta = s->delta;
    up->n_delta = n_delta;
    up->slots_in = s->slot_in;
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

typedef int (*pass_fn)(struct mc_pass *p, struct mc_stream *s,
                       const struct mc_pass_watch *w);

static int run_at(struct mc_solo *s, pass_fn pass, const int32_t *ids, int32_t n,
                  int32_t pos, const int32_t *out_row, int32_t n_out,
                  const struct mc_pass_watch *watch, struct mc_err *err)
{
    struct mc_backend *be = s->m->be;
    struct mc_page_init_p init = {.kv = s->dev.kv,
                                  .list = &s->init[0][0],
                                  .n_list = s->n_init,
                                  .cap = s->n_page};
    struct mc_table_apply_p up;
    int rc = check_run(s, ids, n, pos, out_row, n_out, err);

    if (rc < 0)
        return rc;
    stage(s, ids, n, pos, out_row, n_out, &up);
    rc = mc_k_page_init(be, s->stream, &init);
    if (rc == 0)
        rc = mc_k_table_apply(be, s->stream, &up);
    if (rc == 0)
        rc = pass(s->pass, s->stream, watch);
    if (rc == 0)
        rc = mc_solo_wait(s);
    return rc < 0 ? mc_fail(err, rc, "a pass failed: %s", mc_code_text(rc)) : 0;
}

int mc_solo_run(struct mc_solo *s, const int32_t *ids, int32_t n, const int32_t *out_row,
                int32_t n_out, const struct mc_pass_watch *watch, const float **logits,
                struct mc_err *err)
{
    int rc = run_at(s, mc_pass_forward, ids, n, s->pos, out_row, n_out, watch, err);

    if (rc == 0)
        s->pos += n;
    *logits = s->dev.logits;
    return rc;
}

int mc_solo_draft(struct mc_solo *s, const int32_t *ids, int32_t n, int32_t pos,
                  const void *hidden, const int32_t *out_row, int32_t n_out,
                  const struct mc_pass_watch *watch, const float **logits,
                  struct mc_err *err)
{
    size_t row = (size_t)s->m->cfg.hidden * (s->m->be->row_dt == MC_F32 ? 4 : 2);
    void *to = mc_pass_draft_hidden(s->pass);

    if (!to || n < 1 || n > s->o.rows || pos < 1)
        return mc_fail(err, MC_EARG, "no draft of %d rows at position %d", n, pos);
    *logits = s->dev.logits;
    memcpy(to, hidden ? hidden : mc_pass_peek(s->pass, MC_PEEK_NORM), (size_t)n * row);
    return run_at(s, mc_pass_draft, ids, n, pos, out_row, n_out, watch, err);
}

int mc_solo_wait(struct mc_solo *s)
{
    return s->m->be->wait(s->stream, s->m->be->mark(s->stream));
}

const struct mc_pass *mc_solo_pass(const struct mc_solo *s)
{
    return s->pass;
}
