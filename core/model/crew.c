/* crew.c - the ranks at work: a pass on each, and what is common to their steps.
 *
 * Owns passes, streams and step memory. THREAD: its owner's.
 * Always true: every rank's stream gets the same records in the same order. */
#include "core/model/crew.h"

#include <stddef.h>

enum {
    SLICE_MS = 50,
    LATE_MS = 60000, /* behind the others, with nothing left that they would meet over: on
                        a busy machine an emulated step ends late */
    LEAVE_MS = 500, /* to come back once the ranks have parted */
};

/* ---- opening ----------------------------------------------------------------------- */

static int record(struct mc_run *run, struct mc_pass *p,
                  int (*pass)(struct mc_pass *, struct mc_stream *,
                              const struct mc_pass_watch *),
                  struct mc_graph **out)
{
    int rc = run->be->graph_begin(run->stream), end;

    if (rc < 0)
        return rc;
    rc = pass(p, run->stream, NULL);
    end = run->be->graph_end(run->stream, out);
    return rc < 0 ? rc : end;
}

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Where launches cost what they could have to do, a step of few rows is recorded by itself:
 * over the same memory, so that it does not matter which of the two a step takes. */
static int record_few(struct mc_run *run, const struct mc_pass_caps *all,
                      struct mc_err *err)
{
    int32_t few = run->be->few_rows;
    struct mc_pass_caps caps = *all;
    int rc;

    if (few <= 0 || all->rows <= few)
        return 0;
    caps.taps = 0;
    run->few_dev = run->dev;
    run->few_dev.rows.cap = caps.rows = few;
    run->few_dev.rows.cap_seq = caps.seqs = least(all->seqs, few);
    run->few_dev.rows.cap_out = caps.outs = least(all->outs, few);
    rc = mc_pass_open(run->m, &caps, &run->few_dev, &run->few_pass, err);
    if (rc < 0)
        return rc;
    rc = record(run, run->few_pass, mc_pass_forward, &run->few);
    return rc < 0 ? mc_fail(err, rc, "a pass of %d rows can't be recorded: %s", few,
                            mc_code_text(rc))
                  : 0;
}

static int open_run(struct mc_run *run, const struct mc_pool_size *size, int32_t n_shard,
                    const struct mc_pass_caps *caps, struct mc_err *err)
{
    int rc;

    run->dev.kv = mc_model_kv(run->m, size->layout);
    run->dev.kv.n_page = size->n_page;
    run->dev.kv.n_slot = size->n_slot;
    run->dev.kv.pitch = size->pitch;
    run->dev.kv.n_shard = n_shard;
    run->dev.kv.rank = run->be->peer.rank % n_shard;
    if (mc_step_mem_take(&run->dev, &run->mem, run->m, caps) < 0)
        return mc_fail(err, MC_ENOMEM, "no memory for %d KV pages and %d slots: lower "
                       "--kv-memory (%zu bytes taken so far)", size->n_page, size->n_slot,
                       run->mem.bytes);
    rc = mc_pass_open(run->m, caps, &run->dev, &run->pass, err);
    if (rc < 0)
        return rc;
    rc = run->be->stream_new(run->be, &run->stream);
    if (rc == 0)
        rc = record(run, run->pass, mc_pass_forward, &run->forward);
    if (rc == 0 && caps->taps > 0)
        rc = record(run, run->pass, mc_pass_tapped, &run->tapped);
    if (rc == 0 && mc_pass_draft_hidden(run->pass))
        rc = record(run, run->pass, mc_pass_draft, &run->draft);
    if (rc < 0)
        return mc_fail(err, rc, "a pass can't be recorded: %s", mc_code_text(rc));
    return record_few(run, caps, err);
}

int mc_crew_open(struct mc_crew *c, struct mc_ranks *r, const struct mc_pool_size *size,
                 const struct mc_pass_caps *caps, struct mc_err *err)
{
    int rc = 0;

    c->ranks = r;
    c->fault = r->fault;
    while (c->n < r->n && rc == 0) {
        struct mc_run *run = &c->run[c->n];

        run->m = &r->rank[c->n].model;
        run->be = r->rank[c->n++].be;
        mc_mem_init(&run->mem, run->be);
        rc = open_run(run, size, mc_ranks_shards(r), caps, err);
    }
    return rc;
}

int mc_crew_rings(struct mc_crew *c, struct mc_out *const ring[MC_DEPTH])
{
    int rc = 0;

    for (int32_t i = 0; i < c->n; i++)
        for (int k = 0; k < MC_DEPTH && rc == 0; k++) {
            struct mc_run *run = &c->run[i];
            int end;

            rc = run->be->graph_begin(run->stream);
            if (rc < 0)
                break;
            rc = mc_pass_sample(run->pass, run->stream, i == 0 ? ring[k] : NULL);
            end = run->be->graph_end(run->stream, &run->sample[k]);
            rc = rc < 0 ? rc : end;
        }
    return rc;
}

static void close_run(struct mc_run *run)
{
    struct mc_graph *graph[4 + MC_DEPTH] = {run->forward, run->draft, run->tapped, run->few};

    for (int k = 0; k < MC_DEPTH; k++)
        graph[4 + k] = run->sample[k];
    if (run->stream)
        run->be->stream_free(run->stream);
    for (int k = 0; k < 4 + MC_DEPTH; k++)
        run->be->graph_free(graph[k]);
    mc_pass_close(run->few_pass);
    mc_pass_close(run->pass);
    mc_mem_fini(&run->mem);
}

/* Once the ranks have parted each comes back soon, or not at all. */
static bool all_back(struct mc_crew *c)
{
    for (int32_t i = 0; i < c->n; i++) {
        struct mc_run *run = &c->run[i];

        if (run->stream &&
            run->be->wait_ms(run->stream, run->be->mark(run->stream), LEAVE_MS) == 1)
            return false;
    }
    return true;
}

void mc_crew_close(struct mc_crew *c)
{
    if (mc_crew_parted(c) && !all_back(c)) {
        c->ranks->stuck = true;
        return;
    }
    for (int32_t i = 0; i < c->n; i++)
        close_run(&c->run[i]);
    *c = (struct mc_crew){0};
}

/* ---- steps ------------------------------------------------------------------------- */

/* The list is uploaded as row arrays are. */
static int put_taps(struct mc_run *run, const struct mc_stage *s)
{
    struct mc_table_apply_p up = mc_step_upload(&run->dev, run->m->cfg.vocab, s->taps);

    up.rows_to = run->dev.taps;
    up.rows_bytes = s->taps_bytes;
    return mc_k_table_apply(run->be, run->stream, &up);
}

int mc_run_put(struct mc_run *run, const struct mc_stage *s)
{
    struct mc_page_init_p init = {.kv = run->dev.kv, .list = &s->init[0][0],
                                  .n_list = s->n_init, .cap = s->max_init};
    struct mc_table_apply_p up = mc_step_upload(&run->dev, run->m->cfg.vocab, s->rows);
    int rc = mc_k_page_init(run->be, run->stream, &init);

    up.delta = s->delta;
    up.n_delta = s->n_delta;
    up.slots_in = s->slots_in;
    if (rc == 0)
        rc = mc_k_table_apply(run->be, run->stream, &up);
    return rc < 0 || !s->taps ? rc : put_taps(run, s);
}

int mc_crew_meet(struct mc_crew *c, enum mc_fault_at at)
{
    struct mc_fault f = c->fault;
    bool due = f.what && (f.at == at || f.at == MC_AT_ANY);
    int rc = 0;

    if (due)
        c->fault.what = MC_FAULT_NONE;
    for (int32_t i = 0; i < c->n && rc == 0; i++) {
        const struct mc_agree_p p = {.peer = c->run[i].be->peer,
                                     .fault = due && i == f.rank ? f.what : MC_FAULT_NONE};

        rc = mc_k_agree(c->run[i].be, c->run[i].stream, &p);
    }
    return rc;
}

int mc_crew_plant(struct mc_crew *c, enum mc_fault_at at)
{
    return c->fault.what && c->run[0].be->op[MC_OP_agree] ? mc_crew_meet(c, at) : 0;
}

uint64_t mc_crew_mark(const struct mc_crew *c)
{
    return c->run[0].be->mark(c->run[0].stream);
}

const char *mc_crew_parted(const struct mc_crew *c)
{
    return c->ranks ? mc_comm_broken(c->ranks->comm) : NULL;
}

/* A rank passes the step's last meeting with the others: when one is through, all are about
 * to be. */
static bool one_is_through(const struct mc_crew *c, uint64_t ticket)
{
    for (int32_t i = 0; i < c->n; i++)
        if (c->run[i].be->done(c->run[i].stream, ticket))
            return true;
    return false;
}

int mc_crew_wait(struct mc_crew *c, uint64_t ticket)
{
    int rc = 0, late = 0;

    if (c->n == 1)
        return c->run[0].be->wait(c->run[0].stream, ticket);
    for (int32_t i = 0; i < c->n && rc == 0; i++)
        do {
            rc = c->run[i].be->wait_ms(c->run[i].stream, ticket, SLICE_MS);
            if (rc == 1 && one_is_through(c, ticket))
                late += SLICE_MS;
            if (rc == 1 && late >= LATE_MS)
                mc_comm_break(c->ranks->comm, "rank %d did not finish a step", i);
            if (mc_crew_parted(c))
                rc = MC_ERANK;
        } while (rc == 1);
    return rc;
}
