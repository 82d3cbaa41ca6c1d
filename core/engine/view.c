/* view.c - the block that a policy sees: a copied view, rows, lanes, tenants and orders.
 *
 * Owns nothing; fills e->view. THREAD: the engine's.
 * Always true: rows are those that could run in this step, in order of arrival (one whose
 * tokens are all in flight is left out, and its pages are in no row's count); offsets are
 * 8-byte aligned; every order is a permutation of the rows. */
#define _GNU_SOURCE /* qsort_r */
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/engine/engine_int.h"

size_t mc_view_cap(const struct mc_engine *e)
{
    size_t n = (size_t)e->n_seqs;

    return sizeof(struct mc_step_view) + n * sizeof(struct mc_row) +
           (MC_N_LANE + MC_N_TENANT) * sizeof(struct mc_party) +
           (size_t)MC_N_ORDER * n * sizeof(int32_t) + 64;
}

static int32_t pages_of(int32_t tokens)
{
    return (tokens + MC_PAGE - 1) / MC_PAGE;
}

/* Pages that the row takes to do anything at all in the next step. */
static int32_t pages_next(const struct mc_seq *q, const struct mc_found *f)
{
    int32_t want = 0;

    if (q->state == MC_STATE_DECODE)
        want = pages_of(q->n_ctx + 1) - q->n_page;
    else if (q->state == MC_STATE_PAUSED)
        want = pages_of(q->n_ids + 1) - f->n_held;
    else
        want = pages_of(q->n_ctx + f->n + 1) - q->n_page - f->n_held;
    return want > 0 ? want : 0;
}

/* Rows whose first pages are the same one; 0 for who has no full page yet. */
static uint32_t group_of(const struct mc_seq *q)
{
    uint32_t h = q->n_chain ? (uint32_t)(q->chain[0].lo ^ q->chain[0].lo >> 32) : 0;

    return q->n_chain && h == 0 ? 1 : h;
}

/* What a preemption of the row costs, or is still to cost: by both ways back. */
static void fill_costs(const struct mc_engine *e, const struct mc_seq *q,
                       const struct mc_found *found, struct mc_row *r)
{
    const struct mc_cost *c = &e->cost.prefill;
    double bytes = (double)e->swap.page_bytes, redo;
    int32_t have = found ? found->n : (q->n_page - r->p_own) * MC_PAGE,
            n = q->n_ids - have;
    int32_t moves = r->p_host ? r->p_host : 2 * pages_of(q->n_ctx); /* there and back */

    if (q->state == MC_STATE_WAITING || c->us_tok <= 0)
        return;
    redo = (double)c->us_base * (1 + n / e->o.chunk) + (double)c->us_tok * n +
           (double)c->us_ktok_kv * 1e-3 * n * (have + n / 2.0);
    r->us_redo = (float)redo;
    if (e->swap.n > 0)
        r->us_swap = e->view->swap_queue_us +
                     (float)(moves * bytes / (double)e->swap.bytes_us) + c->us_base;
}

int32_t mc_view_reserve(const struct mc_step_view *v)
{
    int32_t pages = 0;

    for (int32_t i = 0; i < v->n_row; i++) {
        const struct mc_row *r = mc_view_row(v, i);
        int32_t more = r->n_max - r->n_gen;
        int32_t end = r->state == MC_STATE_PREFILL
                          ? r->n_ctx + r->n_left + (more > 0)
                          : r->n_ctx + (more < v->p_tokens ? more : v->p_tokens);
        int32_t take = (end + v->p_tokens - 1) / v->p_tokens - r->p_held;

        if (mc_row_runs(r) && take > 0)
            pages += take;
    }
    return pages;
}

int32_t mc_view_growth(const struct mc_step_view *v, bool idle)
{
    int32_t pages = 0, least = INT32_MAX;
    bool decodes = false;

    for (int32_t i = 0; i < v->n_row; i++) {
        const struct mc_row *r = mc_view_row(v, i);

        if (r->state == MC_STATE_DECODE) {
            decodes = true;
            pages += r->p_step;
        } else if (r->state == MC_STATE_PREFILL && r->p_step < least) {
            least = r->p_step;
        }
    }
    return !decodes && idle && least < INT32_MAX ? least : pages;
}

static void fill_row(struct mc_engine *e, struct mc_seq *q, struct mc_row *r)
{
    bool waits = q->state == MC_STATE_WAITING, paused = q->state == MC_STATE_PAUSED;
    struct mc_found f = waits || paused ? mc_prefix_look(e, q) : (struct mc_found){0};
    int32_t hit = waits ? f.n : 0;

    *r = (struct mc_row){
        .seq = q->id,
        .gen = q->gen,
        .tenant = q->tenant,
        .lane = q->lane,
        .group = group_of(q),
        .state = (uint16_t)q->state,
        .priority = (int16_t)q->priority,
        .n_preempt = (int16_t)q->n_preempt,
        .t_arrive = q->usage.t_arrive,
        .t_start = q->usage.t_start,
        .t_first = q->usage.t_first,
        .t_last = q->t_last,
        .due_first = q->due_first,
        .due_end = q->deadline,
        .slo_token = (float)q->slo_token,
        .n_guess = (float)(q->limit - q->n_gen),
        .n_prompt = q->n_prompt,
        .n_gen = q->n_gen,
        .n_max = q->limit,
        .n_ctx = q->n_ctx,
        .n_ahead = q->n_fly,
        .n_left = q->n_ids - q->n_ctx - hit,
        .n_hit = hit,
        .n_hit_soon = waits ? mc_prefix_soon(e, q, hit) : 0,
        .p_shared = waits ? f.n_held : 0,
        .p_held = q->n_page,
        .p_own = mc_kv_own(e->kv, (int32_t)q->id),
        .p_host = q->n_place,
        .p_step = pages_next(q, &f),
    };
    fill_costs(e, q, paused ? &f : NULL, r);
    if (q->state == MC_STATE_DECODE)
        r->n_left = 0;
    memcpy(r->user, q->user, sizeof r->user);
}

static void fill_party(struct mc_party_state *s, struct mc_party *p,
                       uint32_t id, double now)
{
    mc_party_decay(s, now);
    *p = (struct mc_party){.id = id, .weight = s->weight, .tok_in = s->tok_in,
                           .tok_out = s->tok_out, .served = s->served,
                           .vtime = (s->tok_in + s->tok_out) / (double)s->weight};
    memcpy(p->user, s->user, sizeof p->user);
}

static void count_row(struct mc_party *p, const struct mc_row *r)
{
    if (r->state == MC_STATE_WAITING)
        p->n_wait++;
    else
        p->n_run++;
    p->p_held += r->p_held;
}

/* ---- orders ------------------------------------------------------------------------ */

struct sort {
    const struct mc_row *row;
    const struct mc_party *lane;
    enum mc_order by;
};

/* Smaller comes first; equal keys keep the order of arrival. */
static double key(const struct sort *s, int32_t i)
{
    const struct mc_row *r = &s->row[i];

    switch (s->by) {
    case MC_ORDER_DUE:
        if (r->due_first > 0 && r->t_first == 0)
            return r->due_first;
        return r->due_end > 0 ? r->due_end : 1e300;
    case MC_ORDER_PRIORITY:
        return -r->priority;
    case MC_ORDER_SHORTEST:
        return r->n_left;
    case MC_ORDER_YOUNGEST:
        return -i;
    case MC_ORDER_VTIME:
        return s->lane[r->lane].vtime;
    case MC_ORDER_GROUP:
        return r->group;
    default:
        return i;
    }
}

static int compare(const void *a, const void *b, void *ctx)
{
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    double x = key(ctx, i), y = key(ctx, j);

    return x < y ? -1 : x > y ? 1 : i - j;
}

void mc_view_sort(struct mc_step_view *v)
{
    struct sort s = {.row = mc_view_row(v, 0), .lane = mc_view_lane(v, 0)};
    int32_t *out = (int32_t *)((char *)v + v->off_order);

    for (int o = 0; o < MC_N_ORDER; o++, out += v->n_row) {
        for (int32_t i = 0; i < v->n_row; i++)
            out[i] = i;
        s.by = (enum mc_order)o;
        if (o != MC_ORDER_ARRIVAL)
            qsort_r(out, (size_t)v->n_row, sizeof *out, compare, &s);
    }
}

/* ---- the block --------------------------------------------------------------------- */

static int32_t parties_used(const struct mc_engine *e, bool tenants)
{
    uint32_t most = 0;

    for (int32_t i = 0; i < e->n_live; i++) {
        const struct mc_seq *q = &e->seqs[e->live[i]];
        uint32_t id = tenants ? q->tenant : q->lane;

        most = id > most ? id : most;
    }
    return (int32_t)most + 1;
}

static void lay_out(struct mc_engine *e, struct mc_step_view *v)
{
    uint32_t at = (uint32_t)sizeof *v;

    v->n_lane = parties_used(e, false);
    v->n_tenant = parties_used(e, true);
    v->n_order = MC_N_ORDER;
    v->off_row = at;
    at += (uint32_t)((size_t)v->n_row * sizeof(struct mc_row));
    v->off_lane = at;
    at += (uint32_t)((size_t)v->n_lane * sizeof(struct mc_party));
    v->off_tenant = at;
    at += (uint32_t)((size_t)v->n_tenant * sizeof(struct mc_party));
    v->off_order = at;
    at += (uint32_t)((size_t)(v->n_order * v->n_row) * sizeof(int32_t));
    v->bytes = (at + 7) & ~7u;
}

/* Pages that the rows at work could be given now. Of tokens that are spread over ranks a
 * block's page must be its own rank's, so it may be there when no whole round of pages
 * is. */
static int32_t pages_at_hand(const struct mc_engine *e)
{
    int32_t left[MC_MAX_RANKS], shards = mc_ranks_shards(&e->ranks), n = 0;

    for (int32_t i = 0; i < shards; i++)
        left[i] = mc_kv_n_ready(e->kv, i);
    for (int32_t i = 0; i < 2 * e->n_live && shards > 1;
         i++) { /* those that decode first */
        const struct mc_seq *q = &e->seqs[e->live[i % e->n_live]];
        bool decode = q->state == MC_STATE_DECODE;
        int32_t want = pages_of(decode ? q->n_ctx + 1 : q->n_ids + 1) - q->n_page;

        if (q->n_page == 0 || decode != (i < e->n_live))
            continue;
        for (int32_t k = 0; k < want; k++, n++)
            if (left[mc_kv_next_shard(e->kv, q->page, q->n_page + k)]-- <= 0)
                break;
    }
    return n;
}

void mc_view_build(struct mc_engine *e)
{
    struct mc_step_view *v = e->view;
    struct mc_row *row = (struct mc_row *)(v + 1);
    struct mc_party *lane, *tenant;
    double now = mc_now();
    int32_t n_free, n_cached;

    mc_kv_ready(e->kv, pages_at_hand(e), &n_free, &n_cached);
    *v = (struct mc_step_view){
        .abi = MC_ABI,
        .epoch = ++e->epoch,
        .step = (double)e->n_step,
        .now = now,
        .tok_cap = e->o.chunk,
        .row_cap = e->n_slot,
        .p_tokens = MC_PAGE,
        .p_total = mc_kv_total(e->kv),
        .p_free = n_free,
        .p_evict = n_cached,
        .p_pending = mc_kv_n_pending(e->kv),
        .p_host_free = mc_swap_ready(e),
        .swap_bytes_us = e->swap.bytes_us,
        .swap_queue_us = mc_trace_queue(e),
        .fly_rows = e->n_step > e->n_published ? e->step[e->n_published % MC_DEPTH].n_row
                                               : 0,
        .fly_tokens = e->n_step > e->n_published
                          ? e->step[e->n_published % MC_DEPTH].n_tok
                          : 0,
        .fly_us = mc_trace_fly(e, now),
        .dev_us = e->dev_us,
        .host_us = e->host_us,
        .decode = e->cost.decode,
        .prefill = e->cost.prefill,
    };
    for (int32_t i = 0; i < e->n_live; i++) {
        struct mc_seq *q = &e->seqs[e->live[i]];

        if (!mc_seq_can_run(e, q))
            continue;
        fill_row(e, q, &row[v->n_row++]);
        v->n_wait_all += q->state == MC_STATE_WAITING;
    }
    lay_out(e, v);
    lane = (struct mc_party *)((char *)v + v->off_lane);
    tenant = (struct mc_party *)((char *)v + v->off_tenant);
    for (int32_t i = 0; i < v->n_lane; i++)
        fill_party(&e->lane[i], &lane[i], (uint32_t)i, now);
    for (int32_t i = 0; i < v->n_tenant; i++)
        fill_party(&e->tenant[i], &tenant[i], (uint32_t)i, now);
    for (int32_t i = 0; i < v->n_row; i++) {
        count_row(&lane[row[i].lane], &row[i]);
        count_row(&tenant[row[i].tenant], &row[i]);
    }
    v->p_reserve = mc_view_reserve(v);
    mc_view_sort(v);
}

void mc_view_read_back(struct mc_engine *e)
{
    const struct mc_step_view *v = e->view;
    const struct mc_party *tenant =
        (const struct mc_party *)((const char *)v + v->off_tenant);

    for (int32_t i = 0; i < v->n_row; i++) {
        const struct mc_row *r = mc_view_row(v, i);
        struct mc_seq *q = mc_seq_get(e, (struct mc_handle){r->seq, r->gen});

        if (q)
            memcpy(q->user, r->user, sizeof q->user);
    }
    for (int32_t i = 0; i < v->n_lane; i++)
        memcpy(e->lane[i].user, mc_view_lane(v, i)->user, sizeof e->lane[i].user);
    for (int32_t i = 0; i < v->n_tenant; i++)
        memcpy(e->tenant[i].user, tenant[i].user, sizeof e->tenant[i].user);
}
