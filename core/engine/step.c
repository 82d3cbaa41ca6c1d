/* step.c - a step's staging and its way to the device.
 *
 * Owns MC_DEPTH blocks of staging, which all ranks read. THREAD: the engine's.
 * Always true: device state changes only by what is enqueued here, in stream order: the
 * cleared pages, then row arrays and deltas (table_apply), page moves (swap.c), then two
 * graphs: forward and sample (neither in a step without rows, which moves pages only). The
 * graphs are recorded once and replayed as rows, lengths and owners change: what changes is
 * only what table_apply writes. So a slot or a page may be given to the next sequence while
 * an older step that names it still runs: its new owner's deltas come later in the stream. */
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/engine/engine_int.h"

static int open_staging(struct mc_engine *e, struct mc_step *s)
{
    struct mc_mem *m = &e->mem;

    s->row = calloc((size_t)e->n_slot, sizeof *s->row);
    s->sent = calloc((size_t)e->n_slot, sizeof(struct mc_parcel *));
    s->landed = calloc((size_t)e->n_slot, sizeof(struct mc_parcel *));
    s->rows_base = mc_mem_take_host(m, mc_rows_bytes(&e->caps));
    s->delta = mc_mem_take_host(m, (size_t)e->max_delta * sizeof *s->delta);
    s->slots_in = mc_mem_take_host(m, (size_t)e->n_slot * sizeof *s->slots_in);
    s->init = mc_mem_take_host(m, (size_t)e->max_init * sizeof *s->init);
    s->max_init = e->max_init;
    s->n_init = mc_mem_take_host(m, sizeof *s->n_init);
    s->ring = mc_mem_take_host(m, (size_t)e->n_slot * sizeof *s->ring);
    s->taps = mc_mem_take_host(m, mc_taps_bytes(&e->caps));
    if (!s->row || !s->sent || !s->landed || !s->rows_base || !s->delta || !s->slots_in ||
        !s->init || !s->n_init || !s->ring || (e->caps.taps > 0 && !s->taps))
        return MC_ENOMEM;
    s->rows = mc_rows_bind(s->rows_base, &e->caps);
    return 0;
}

int mc_step_open(struct mc_engine *e, struct mc_err *err)
{
    struct mc_out *ring[MC_DEPTH];
    int rc = 0;

    /* a sequence that starts or comes back brings its pages, its ids and its biases */
    e->max_delta = e->o.max_context + e->pitch + MC_MAX_BIAS + 4 * e->n_slot + 64;
    e->max_init = 2 * e->n_slot + e->o.chunk / MC_PAGE + 1;
    for (int i = 0; i < MC_DEPTH && rc == 0; i++) {
        rc = open_staging(e, &e->step[i]);
        ring[i] = e->step[i].ring;
    }
    if (rc < 0)
        return mc_fail(err, rc, "no memory for the staging of %d slots", e->n_slot);
    rc = mc_crew_open(&e->crew, &e->ranks, &e->pool, &e->caps, err);
    if (rc < 0)
        return rc;
    rc = mc_crew_rings(&e->crew, ring);
    return rc < 0 ? mc_fail(err, rc, "a step can't be recorded: %s", mc_code_text(rc)) : 0;
}

void mc_step_begin(struct mc_engine *e, struct mc_step *s)
{
    s->plan = ++e->n_plan;
    s->n_row = s->n_out = s->n_tok = s->n_decode = 0;
    s->n_delta = s->n_slots_in = 0;
    s->cost = (struct mc_cost_step){0};
    *s->n_init = 0;
    mc_moves_reset(&s->moves);
    if (s->taps)
        s->taps->n = 0;
    memset(mc_staged(s->rows.live), 0, 4 * sizeof(int32_t));
    mc_staged(s->rows.q0)[0] = 0;
}

static void delta(struct mc_step *s, int what, int32_t slot, int32_t at, int32_t value,
                  uint32_t tag)
{
    s->delta[s->n_delta++] = (struct mc_delta){what, slot, at, value, tag};
}

static int32_t deltas_of(const struct mc_seq *q)
{
    bool counts = q->fresh && (q->params.repetition_penalty != 1 ||
                               q->params.presence_penalty != 0 ||
                               q->params.frequency_penalty != 0);

    return (q->fresh ? 1 + q->n_page + q->n_bias : 0) + (counts ? q->n_ids : 0) + 1;
}

bool mc_step_room(const struct mc_engine *e, const struct mc_step *s,
                  const struct mc_seq *q)
{
    if (q->taps && !mc_tap_room(e, s))
        return false;
    return s->n_delta + deltas_of(q) + e->o.chunk / MC_PAGE + 2 <= e->max_delta;
}

/* Takes pages for a context of n_ctx tokens; returns the context that they cover. */
int mc_step_grow(struct mc_engine *e, struct mc_step *s, struct mc_seq *q, int32_t n_ctx)
{
    while (q->n_page * MC_PAGE < n_ctx && *s->n_init < e->max_init) {
        uint32_t tag;
        int32_t shard = q->n_page ? mc_kv_next_shard(e->kv, q->page, q->n_page) : q->shard;
        int32_t page = mc_keep_take(e, shard, q, &tag);

        if (page < 0)
            break;
        s->init[*s->n_init][0] = (uint32_t)page;
        s->init[*s->n_init][1] = tag;
        ++*s->n_init;
        if (!q->fresh) /* a fresh slot's whole table is written by set_slot */
            delta(s, MC_DELTA_PAGE, q->slot, q->n_page, page, tag);
        q->page[q->n_page++] = page;
    }
    return q->n_page * MC_PAGE < n_ctx ? q->n_page * MC_PAGE : n_ctx;
}

static uint32_t float_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    return u;
}

static struct mc_samp samp_of(const struct mc_seq *q)
{
    const struct mc_params *p = &q->params;
    struct mc_samp s = {
        .temperature = (float)p->temperature,
        .top_p = (float)p->top_p,
        .min_p = (float)p->min_p,
        .rep = (float)p->repetition_penalty,
        .presence = (float)p->presence_penalty,
        .frequency = (float)p->frequency_penalty,
        .top_k = p->top_k,
        .n_bias = q->n_bias,
        .no_eos_until = p->min_tokens,
        .seed_lo = (uint32_t)q->seed,
        .seed_hi = (uint32_t)(q->seed >> 32),
    };

    for (int i = 0; i < 2; i++)
        if (p->ban[i] >= 0 && p->ban[i] < MC_MAX_SETS)
            s.ban[s.n_ban++] = p->ban[i];
    if (s.rep != 1 || s.presence != 0 || s.frequency != 0)
        s.flags |= MC_SAMP_PENALTY;
    if (p->flags & MC_PARAM_PICK)
        s.flags |= MC_SAMP_CANDS;
    if (q->n_top >= 0)
        s.flags |= MC_SAMP_TOP;
    return s;
}

/* Everything of a slot that starts or comes back: state, table, biases, counts. */
static void set_slot(struct mc_engine *e, struct mc_step *s, struct mc_seq *q)
{
    struct mc_slot *in = &s->slots_in[s->n_slots_in];

    *in = (struct mc_slot){.tok = -1,
                           .pos = q->n_ctx,
                           .n_gen = q->n_gen,
                           .samp = samp_of(q)};
    delta(s, MC_DELTA_SLOT, q->slot, 0, s->n_slots_in++, 0);
    for (int32_t i = 0; i < q->n_page; i++)
        delta(s, MC_DELTA_PAGE, q->slot, i, q->page[i], mc_kv_tag(e->kv, q->page[i]));
    for (int32_t i = 0; i < q->n_bias; i++)
        delta(s, MC_DELTA_BIAS, q->slot, i, q->bias[i].id, float_bits(q->bias[i].add));
    if (in->samp.flags & MC_SAMP_PENALTY)
        for (int32_t i = 0; i < q->n_ids; i++)
            delta(s, i < q->n_prompt ? MC_DELTA_SEEN : MC_DELTA_GEN, q->slot, 0,
                  q->ids[i], 0);
    q->fresh = false;
}

/* A row with logits: sampled, or (target >= 0) looked up. */
static void add_out(struct mc_step *s, int32_t row, int32_t target)
{
    mc_staged(s->rows.out_row)[s->n_out] = row;
    mc_staged(s->rows.target)[s->n_out++] = target;
}

void mc_step_add(struct mc_engine *e, struct mc_step *s, struct mc_seq *q, int32_t n)
{
    bool decode = q->state == MC_STATE_DECODE;
    struct mc_step_row *row = &s->row[s->n_row];
    int32_t *tok = mc_staged(s->rows.tok), *pos = mc_staged(s->rows.pos);
    int32_t *row_seq = mc_staged(s->rows.row_seq);

    if (q->fresh)
        set_slot(e, s, q);
    if (q->override_tok >= 0) {
        delta(s, MC_DELTA_TOK, q->slot, 0, q->override_tok, 0);
        q->override_tok = -1;
    }
    *row = (struct mc_step_row){.seq = q->id, .gen = q->gen, .out = s->n_out};
    for (int32_t i = 0; i < n; i++) {
        int32_t at = q->n_ctx + i;

        tok[s->n_tok + i] = decode ? -1 : q->ids[at];
        pos[s->n_tok + i] = at;
        row_seq[s->n_tok + i] = s->n_row;
        if (q->prompt_logprobs && at + 1 == q->n_told && q->n_told < q->n_prompt)
            add_out(s, s->n_tok + i, q->ids[q->n_told++]);
    }
    if (decode) {
        s->cost.n_decode++;
        s->cost.ktok_decode += (float)(q->n_ctx + 1) * 1e-3f;
    } else {
        s->cost.n_prompt_row++;
        s->cost.n_prompt_tok += n;
        s->cost.ktok_prompt += (float)n * ((float)q->n_ctx + (float)(n + 1) / 2) * 1e-3f;
    }
    if (!decode && q->n_ctx < q->n_most)
        mc_count(e, MC_C_recomputed_tokens_total,
                 n < q->n_most - q->n_ctx ? n : q->n_most - q->n_ctx);
    q->n_ctx += n;
    q->n_most = q->n_ctx > q->n_most ? q->n_ctx : q->n_most;
    q->added_in = s->plan;
    q->n_added = n;
    row->sampled = decode || (q->n_ctx == q->n_ids && mc_seq_room(e, q) > 0);
    if (row->sampled)
        add_out(s, s->n_tok + n - 1, -1);
    if (q->taps)
        mc_tap_add(s, q, q->n_ctx - n, n);
    row->n_ctx = q->n_ctx;
    row->n_out = s->n_out - row->out;
    mc_staged(s->rows.kv_len)[s->n_row] = q->n_ctx;
    mc_staged(s->rows.slot)[s->n_row] = q->slot;
    s->n_tok += n;
    s->n_decode += decode;
    mc_staged(s->rows.q0)[++s->n_row] = s->n_tok;
    q->n_fly += row->sampled;
    if (!decode && q->n_ctx == q->n_ids)
        q->state = MC_STATE_DECODE;
    if (q->sends && q->n_ctx == q->n_ids)
        mc_pair_sends(s, q);
}

static size_t taps_bytes(const struct mc_step *s)
{
    return s->taps ? sizeof *s->taps + (size_t)s->taps->n * sizeof s->taps->v[0] : 0;
}

static const struct mc_graph *forward_of(const struct mc_run *run, const struct mc_step *s)
{
    if (s->taps && s->taps->n > 0)
        return run->tapped;
    return run->few && s->n_tok <= run->be->few_rows ? run->few : run->forward;
}

/* Page moves, forward, and what samples its rows, on one rank. */
static int run_on(struct mc_engine *e, int32_t rank, const struct mc_step *s, int slot)
{
    struct mc_run *run = &e->crew.run[rank];
    bool tapped = s->taps && s->taps->n > 0;
    const struct mc_stage stage = {.rows = s->rows_base, .delta = s->delta,
                                   .n_delta = s->n_delta, .slots_in = s->slots_in,
                                   .init = s->init, .n_init = s->n_init,
                                   .max_init = s->max_init,
                                   .taps = tapped ? s->taps : NULL,
                                   .taps_bytes = taps_bytes(s)};
    int rc = mc_run_put(run, &stage);

    if (rc == 0)
        rc = mc_moves_put(e, rank, &s->moves);
    if (rc == 0)
        rc = mc_pair_put(e, rank, s, false);
    if (rc == 0 && s->n_row > 0)
        rc = run->be->graph_run(run->stream, forward_of(run, s));
    if (rc == 0)
        rc = mc_pair_put(e, rank, s, true);
    if (rc == 0 && s->n_out > 0)
        rc = run->be->graph_run(run->stream, run->sample[slot]);
    return rc;
}

static void count_step(struct mc_engine *e, const struct mc_step *s)
{
    double bytes = 0;

    if (s->n_row == 0)
        return; /* it moved pages only */
    for (int32_t i = 0; i < e->ranks.n; i++) {
        const struct mc_model *m = &e->ranks.rank[i].model;

        bytes += (double)m->body_bytes + (s->n_out > 0 ? (double)m->head_bytes : 0);
    }
    mc_count(e, MC_C_steps_total, 1);
    mc_count(e, MC_C_prompt_tokens_total, s->n_tok - s->n_decode);
    mc_count(e, MC_C_weight_bytes_read_total, bytes);
}

int mc_step_enqueue(struct mc_engine *e, struct mc_step *s)
{
    int32_t *live = mc_staged(s->rows.live);
    int rc;

    live[MC_LIVE_ROWS] = s->n_tok;
    live[MC_LIVE_DECODE] = s->n_decode;
    live[MC_LIVE_SEQS] = s->n_row;
    live[MC_LIVE_OUT] = s->n_out;
    rc = mc_crew_plant(&e->crew, s->n_tok > s->n_decode ? MC_AT_PREFILL : MC_AT_DECODE);
    for (int32_t i = 0; i < e->crew.n && rc == 0; i++)
        rc = run_on(e, i, s, (int)(s - e->step));
    s->ticket = mc_crew_mark(&e->crew);
    s->t_enqueue = e->t_met = mc_now();
    count_step(e, s);
    e->n_step++;
    return rc;
}
