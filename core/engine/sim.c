/* sim.c - engine.c's loop, plan.c's checks and publish.c's bookkeeping over a clock that
 * jumps from event to event.
 *
 * Owns the simulated sequences. THREAD: one.
 * Always true: pages held by sequences plus free ones are the pool; at most `depth` steps
 * are in flight, in order. */
#include "core/engine/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/engine/engine_int.h"

enum { STEPS_MAX = 20000000, DEPTH_MAX = 8 };

static const double LOOK_AGAIN_S = 0.005, STUCK_S = 60;

struct sim_seq {
    const struct mc_rec_req *in;
    struct mc_sim_req *out;
    enum mc_seq_state state;
    int32_t target; /* tokens that it made when it was recorded */
    int32_t n_ids, n_ctx, n_fly, n_gen, n_hit, n_page, n_preempt, n_passed;
    double t_served;
    int32_t served;
    double user[MC_N_USER];
    int32_t planned;
};

struct row {
    int32_t seq, n_ctx;
    bool sampled;
};

struct step {
    double done;
    struct row *row; /* [row_cap] */
    int32_t n_row, n_tok;
    struct mc_cost_step cost;
};

struct run {
    const struct mc_sim_opts *o;
    const struct mc_rec_head *h;
    struct mc_sim *out;
    struct sim_seq *seq; /* [n_req] */
    int32_t *live, n_live, next; /* indices in order of arrival; the next to arrive */
    struct mc_party_state lane[MC_REC_LANES], tenant[1];
    struct step step[DEPTH_MAX];
    int32_t n_step, n_done, n_plan, free, n_slot;
    int32_t miss_at[2];
    double now, device; /* the host's clock; when the device is free */
    double t_ran, t_alarm;
    struct mc_step_view *view;
    struct mc_plan plan;
};

static int32_t pages_of(const struct run *r, int32_t tokens)
{
    return (tokens + r->h->p_tokens - 1) / r->h->p_tokens;
}

/* ---- the view ---------------------------------------------------------------------- */

static int32_t room_of(const struct sim_seq *q)
{
    return q->in->in.limit - q->n_gen - q->n_fly;
}

static bool can_run(const struct sim_seq *q)
{
    switch (q->state) {
    case MC_STATE_WAITING:
        return true;
    case MC_STATE_PREFILL:
        return q->n_ctx < q->n_ids;
    case MC_STATE_DECODE:
        return room_of(q) > 0;
    case MC_STATE_PAUSED:
        return q->n_fly == 0;
    case MC_STATE_DONE:
        break;
    }
    return false;
}

static int32_t hit_of(const struct sim_seq *q)
{
    return q->state == MC_STATE_WAITING ? q->in->n_hit : 0;
}

static void fill_row(const struct run *r, int32_t i, struct mc_row *row)
{
    const struct sim_seq *q = &r->seq[i];
    const struct mc_rec_arrive *a = &q->in->in;
    int32_t hit = hit_of(q), next = q->state == MC_STATE_PAUSED ? q->n_ids + 1
                                                                 : q->n_ctx + hit + 1;

    *row = (struct mc_row){
        .seq = (uint32_t)i + 1, .gen = 1, .lane = a->lane, .group = a->group,
        .state = (uint16_t)q->state, .priority = (int16_t)a->priority,
        .n_preempt = (int16_t)q->n_preempt, .t_arrive = a->t, .t_start = q->out->t_start,
        .t_first = q->out->t_first, .t_last = q->out->t_last, .due_first = a->due_first,
        .due_end = a->due_end, .slo_token = a->slo_token,
        .n_guess = (float)(a->limit - q->n_gen), .n_prompt = a->n_prompt, .n_gen = q->n_gen,
        .n_max = a->limit, .n_ctx = q->n_ctx, .n_ahead = q->n_fly,
        .n_left = q->state == MC_STATE_DECODE ? 0 : q->n_ids - q->n_ctx - hit,
        .n_hit = hit, .n_hit_soon = hit, .p_held = q->n_page, .p_own = q->n_page,
        .p_step = pages_of(r, next) - (q->state == MC_STATE_PAUSED ? 0 : q->n_page),
    };
    row->p_step = row->p_step > 0 ? row->p_step : 0;
    memcpy(row->user, q->user, sizeof row->user);
}

static void fill_lane(struct run *r, struct mc_party *p, int32_t i)
{
    struct mc_party_state *s = &r->lane[i];

    mc_party_decay(s, r->now);
    *p = (struct mc_party){.id = (uint32_t)i, .weight = s->weight, .tok_in = s->tok_in,
                           .tok_out = s->tok_out, .served = s->served,
                           .vtime = (s->tok_in + s->tok_out) / (double)s->weight};
    memcpy(p->user, s->user, sizeof p->user);
}

static void build_view(struct run *r)
{
    const struct step *fly = r->n_step > r->n_done ? &r->step[r->n_done % DEPTH_MAX]
                                                   : NULL;
    struct mc_step_view *v = r->view;
    struct mc_row *row = (struct mc_row *)(v + 1);
    struct mc_party *lane;
    uint32_t at;

    *v = (struct mc_step_view){
        .abi = MC_ABI, .epoch = (uint32_t)r->n_plan + 1, .step = r->n_step, .now = r->now,
        .n_lane = MC_REC_LANES, .n_tenant = 1, .n_order = MC_N_ORDER,
        .tok_cap = r->h->tok_cap, .row_cap = r->h->row_cap, .p_tokens = r->h->p_tokens,
        .p_total = r->h->p_total, .p_free = r->free, .fly_rows = fly ? fly->n_row : 0,
        .fly_tokens = fly ? fly->n_tok : 0,
        .fly_us = (float)(r->device > r->now ? (r->device - r->now) * 1e6 : 0),
        .host_us = (float)r->o->host_us, .decode = r->o->decode, .prefill = r->o->prefill,
    };
    for (int32_t i = 0; i < r->n_live; i++)
        if (can_run(&r->seq[r->live[i]])) {
            fill_row(r, r->live[i], &row[v->n_row]);
            v->n_wait_all += row[v->n_row++].state == MC_STATE_WAITING;
        }
    v->off_row = at = (uint32_t)sizeof *v;
    v->off_lane = at += (uint32_t)((size_t)v->n_row * sizeof *row);
    v->off_tenant = at += (uint32_t)(MC_REC_LANES * sizeof *lane);
    v->off_order = at += (uint32_t)sizeof *lane;
    v->bytes = (at + (uint32_t)((size_t)v->n_row * MC_N_ORDER * sizeof(int32_t)) + 7) &
               ~7u;
    lane = (struct mc_party *)((char *)v + v->off_lane);
    for (int32_t i = 0; i < MC_REC_LANES; i++)
        fill_lane(r, &lane[i], i);
    lane[MC_REC_LANES] = (struct mc_party){.weight = 1}; /* the tenant */
    for (int32_t i = 0; i < v->n_row; i++) {
        struct mc_party *p = &lane[row[i].lane];

        *(row[i].state == MC_STATE_WAITING ? &p->n_wait : &p->n_run) += 1;
        p->p_held += row[i].p_held;
    }
    v->p_reserve = mc_view_reserve(v);
    mc_view_sort(v);
}

static void read_back(struct run *r)
{
    for (int32_t i = 0; i < r->view->n_row; i++) {
        const struct mc_row *row = mc_view_row(r->view, i);

        memcpy(r->seq[row->seq - 1].user, row->user, sizeof row->user);
    }
    for (int32_t i = 0; i < MC_REC_LANES; i++)
        memcpy(r->lane[i].user, mc_view_lane(r->view, i)->user, sizeof r->lane[i].user);
}

/* ---- a sequence's ways ------------------------------------------------------------- */

static void drop_pages(struct run *r, struct sim_seq *q)
{
    r->free += q->n_page;
    q->n_page = q->n_ctx = 0;
}

static void end_seq(struct run *r, struct sim_seq *q)
{
    int32_t index = (int32_t)(q - r->seq), i = 0;

    drop_pages(r, q);
    r->n_slot += q->state != MC_STATE_WAITING;
    q->state = MC_STATE_DONE;
    q->out->t_end = r->now;
    q->out->n_gen = q->n_gen;
    q->out->n_preempt = q->n_preempt;
    while (r->live[i] != index)
        i++;
    memmove(r->live + i, r->live + i + 1, (size_t)(r->n_live - i - 1) * sizeof *r->live);
    r->n_live--;
}

static bool start(struct run *r, struct sim_seq *q)
{
    if (r->n_slot == 0 || pages_of(r, q->in->n_hit) > r->free)
        return false;
    r->n_slot--;
    q->state = MC_STATE_PREFILL;
    q->n_ctx = q->in->n_hit;
    q->n_page = pages_of(r, q->n_ctx);
    r->free -= q->n_page;
    q->out->t_start = r->now;
    for (int32_t i = 0; &r->seq[r->live[i]] != q; i++) {
        struct sim_seq *o = &r->seq[r->live[i]];

        o->n_passed += o->state == MC_STATE_WAITING && o->in->in.lane == q->in->in.lane &&
                       o->in->in.priority >= q->in->in.priority;
    }
    return true;
}

static void add_row(struct run *r, struct step *s, struct sim_seq *q, int32_t n)
{
    bool decode = q->state == MC_STATE_DECODE;
    struct row *row = &s->row[s->n_row++];

    if (decode) {
        s->cost.n_decode++;
        s->cost.ktok_decode += (float)(q->n_ctx + 1) * 1e-3f;
    } else {
        s->cost.n_prompt_row++;
        s->cost.n_prompt_tok += n;
        s->cost.ktok_prompt += (float)n * ((float)q->n_ctx + (float)(n + 1) / 2) * 1e-3f;
        mc_party_serve(&r->lane[q->in->in.lane], r->now, n, 0);
    }
    q->n_ctx += n;
    s->n_tok += n;
    *row = (struct row){(int32_t)(q - r->seq), q->n_ctx,
                        decode || (q->n_ctx == q->n_ids && room_of(q) > 0)};
    q->n_fly += row->sampled;
    if (!decode && q->n_ctx == q->n_ids)
        q->state = MC_STATE_DECODE;
    q->t_served = r->t_ran = r->lane[q->in->in.lane].t_ran = r->now;
    q->served = r->n_step;
}

static bool run_row(struct run *r, struct step *s, struct sim_seq *q, int32_t n)
{
    int32_t most, more;

    if (q->state == MC_STATE_PAUSED || !can_run(q) || n < 1 ||
        s->n_row >= r->h->row_cap || (q->state == MC_STATE_WAITING && !start(r, q)))
        return false;
    most = q->state == MC_STATE_DECODE ? 1 : q->n_ids - q->n_ctx;
    n = n < most ? n : most;
    n = n < r->h->tok_cap - s->n_tok ? n : r->h->tok_cap - s->n_tok;
    most = (q->n_page + r->free) * r->h->p_tokens - q->n_ctx;
    n = n < most ? n : most;
    if (n < 1)
        return false;
    more = pages_of(r, q->n_ctx + n) - q->n_page;
    if (more > 0) {
        q->n_page += more;
        r->free -= more;
    }
    add_row(r, s, q, n);
    return true;
}

static bool apply(struct run *r, struct step *s, const struct mc_item *it)
{
    struct sim_seq *q;

    if (it->seq < 1 || it->seq > (uint32_t)r->o->rec->n_req || it->gen != 1)
        return false;
    q = &r->seq[it->seq - 1];
    if (q->state < MC_STATE_WAITING || q->state == MC_STATE_DONE ||
        q->planned == r->n_plan)
        return false;
    q->planned = r->n_plan;
    switch (it->what) {
    case MC_RUN:
        return run_row(r, s, q, it->n);
    case MC_DROP:
        if (!mc_row_runs(&(struct mc_row){.state = (uint16_t)q->state}))
            return false;
        drop_pages(r, q);
        q->state = MC_STATE_PAUSED;
        q->n_preempt++;
        r->out->preempted++;
        return true;
    case MC_BACK:
        if (q->state != MC_STATE_PAUSED || q->n_fly > 0)
            return false;
        q->state = MC_STATE_PREFILL;
        return true;
    case MC_FAIL:
        end_seq(r, q);
        return true;
    default:
        return it->what == MC_HOLD;
    }
}

/* ---- planning ---------------------------------------------------------------------- */

static void reset_plan(struct run *r)
{
    struct mc_plan *p = &r->plan;

    p->abi = MC_ABI;
    p->epoch = r->view->epoch;
    p->n = 0;
    p->cap = MC_PLAN_CAP;
    p->tok_left = r->view->tok_cap;
    p->row_left = r->view->row_cap;
    p->page_left = r->view->p_free;
    p->page_soon = 0;
}

static int ask(struct run *r, const struct mc_policy *p, int32_t need, struct mc_err *err)
{
    const struct mc_policy_ops *ops = p->ops->evict || !need ? p->ops
                                                             : mc_policy_builtin.ops;

    reset_plan(r);
    return need ? ops->evict(p->self, r->view, need, &r->plan, err)
                : ops->plan(p->self, r->view, &r->plan, err);
}

/* The policy (need 0: its plan), or the built-in when it fails. */
static void ask_or_builtin(struct run *r, int32_t need)
{
    struct mc_err err = {0};
    double t0 = mc_now();
    int rc = ask(r, r->o->policy, need, &err);

    if (!need)
        r->out->us[r->out->views++ % 1024] = (float)((mc_now() - t0) * 1e6);
    if (rc == 0 && r->plan.n >= 0 && r->plan.n <= MC_PLAN_CAP)
        return;
    if (r->out->failed++ == 0)
        r->out->err = err;
    ask(r, &mc_policy_builtin, need, &err);
}

static void make_room(struct run *r, struct step *s)
{
    int32_t need = mc_view_growth(r->view, r->n_step == r->n_done) - r->view->p_free;

    if (need <= 0)
        return;
    ask_or_builtin(r, need);
    for (int32_t i = 0; i < r->plan.n; i++)
        if (r->plan.item[i].what != MC_DROP || !apply(r, s, &r->plan.item[i]))
            r->out->trimmed++;
    build_view(r);
}

static double seconds_of(struct run *r, const struct step *s, double begins)
{
    double us = mc_cost_us(&r->o->decode, &r->o->prefill, &s->cost);

    return us * 1e-6 * mc_sim_miss(r->o, s->cost.n_prompt_tok > 0, begins, r->miss_at);
}

/* True when there is something to run. */
static bool plan_step(struct run *r)
{
    struct step *s = &r->step[r->n_step % DEPTH_MAX];
    double begins;

    build_view(r);
    if (r->view->n_row == 0)
        return false;
    r->n_plan++;
    s->n_row = s->n_tok = 0;
    s->cost = (struct mc_cost_step){0};
    make_room(r, s);
    ask_or_builtin(r, 0);
    read_back(r);
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < r->plan.n; i++) {
            const struct mc_item *it = &r->plan.item[i];
            bool decode = it->what == MC_RUN && it->seq >= 1 &&
                          it->seq <= (uint32_t)r->o->rec->n_req &&
                          r->seq[it->seq - 1].state == MC_STATE_DECODE;

            if (decode == (pass == 0) && !apply(r, s, it))
                r->out->trimmed++;
        }
    r->now += r->o->host_us * 1e-6;
    if (s->n_row == 0)
        return false;
    begins = r->now > r->device ? r->now : r->device;
    s->done = r->device = begins + seconds_of(r, s, begins);
    s->cost.us = (float)((s->done - begins) * 1e6);
    r->n_step++;
    return true;
}

/* ---- publishing -------------------------------------------------------------------- */

static void publish_token(struct run *r, struct sim_seq *q)
{
    q->n_fly--;
    q->n_ids++;
    q->n_gen++;
    mc_party_serve(&r->lane[q->in->in.lane], r->now, 0, 1);
    if (q->out->t_first == 0)
        q->out->t_first = r->now;
    else
        r->out->gap[r->out->n_gap++] = (float)(r->now - q->out->t_last);
    q->out->t_last = r->now;
    if (q->n_gen >= q->target)
        end_seq(r, q);
}

/* Without memory there is no list. */
static void keep_step(struct run *r, const struct step *s)
{
    int32_t n = r->out->steps;
    struct mc_rec_step *list = r->out->step;

    if (n > 0 && !list)
        return;
    if ((n & (n - 1)) == 0)
        list = realloc(list, (size_t)(n ? 2 * n : 1) * sizeof *list);
    if (list)
        list[n] = (struct mc_rec_step){.t = s->done, .cost = s->cost,
                                       .host_us = (float)r->o->host_us};
    else
        free(r->out->step);
    r->out->step = list;
}

static void publish(struct run *r)
{
    struct step *s = &r->step[r->n_done++ % DEPTH_MAX];

    r->now = r->now > s->done ? r->now : s->done;
    if (r->o->keep_steps)
        keep_step(r, s);
    r->out->steps++;
    for (int32_t i = 0; i < s->n_row; i++) {
        struct sim_seq *q = &r->seq[s->row[i].seq];

        if (q->state == MC_STATE_DONE)
            continue;
        if (s->row[i].sampled)
            publish_token(r, q);
        else if (s->row[i].n_ctx == q->n_ids && q->target == 0)
            end_seq(r, q);
    }
    if (r->o->policy->ops->step_end)
        r->o->policy->ops->step_end(r->o->policy->self);
}

/* ---- the clock --------------------------------------------------------------------- */

/* Who ended before its first token of its own will (a client that left) is left out. */
static void arrive(struct run *r)
{
    for (; r->next < r->o->rec->n_req; r->next++) {
        const struct mc_rec_req *in = &r->o->rec->req[r->next];
        struct sim_seq *q = &r->seq[r->next];

        if (in->in.t > r->now)
            return;
        q->in = in;
        q->out = &r->out->req[r->next];
        q->target = in->finish ? in->n_gen : in->in.limit;
        if (q->target > in->in.limit)
            q->target = in->in.limit;
        q->out->skipped = q->target == 0 && in->in.limit > 0;
        if (q->out->skipped || pages_of(r, in->in.n_prompt + 1) > r->h->p_total) {
            q->out->skipped = true;
            q->state = MC_STATE_DONE;
            continue;
        }
        q->state = MC_STATE_WAITING;
        q->n_ids = in->in.n_prompt;
        q->t_served = in->in.t;
        q->planned = -1;
        r->live[r->n_live++] = r->next;
    }
}

static void look_for_starved(struct run *r)
{
    if (r->now - r->t_alarm < 1)
        return;
    r->t_alarm = r->now;
    for (int32_t i = 0; i < r->n_live; i++) {
        struct sim_seq *q = &r->seq[r->live[i]];
        double ran = r->lane[q->in->in.lane].t_ran;
        double quiet = r->now - (ran > q->t_served ? ran : q->t_served);

        if (!q->out->starved && can_run(q) &&
            mc_starves(r->now - q->t_served, q->state == MC_STATE_WAITING, q->n_passed,
                       r->n_step - q->served, quiet)) {
            q->out->starved = true;
            r->out->starved++;
        }
    }
}

static double next_arrival(const struct run *r)
{
    return r->next < r->o->rec->n_req ? r->o->rec->req[r->next].in.t : INFINITY;
}

static void turn(struct run *r)
{
    bool more = true;
    double until;

    arrive(r);
    while (more && r->n_step - r->n_done < (int32_t)r->h->depth) {
        more = plan_step(r);
        arrive(r);
    }
    look_for_starved(r);
    if (r->n_step > r->n_done) {
        publish(r);
        return;
    }
    until = next_arrival(r);
    if (r->n_live > 0 && until > r->now + LOOK_AGAIN_S) {
        until = r->now + LOOK_AGAIN_S;
        if (r->now - r->t_ran > 1)
            until = r->now + 0.1; /* nothing will change soon */
        r->out->idle_s += until - r->now;
        r->out->stuck = until - r->t_ran > STUCK_S && next_arrival(r) == INFINITY;
    }
    r->now = until > r->now ? until : r->now;
}

/* ---- the whole --------------------------------------------------------------------- */

static int open_run(struct run *r, const struct mc_sim_opts *o, struct mc_sim *out)
{
    size_t n = (size_t)o->rec->n_req, tokens = 1;

    r->o = o;
    r->h = &o->rec->head;
    r->out = out;
    r->free = r->h->p_total;
    r->n_slot = r->h->row_cap;
    for (size_t i = 0; i < n; i++)
        tokens += (size_t)(o->rec->req[i].finish ? o->rec->req[i].n_gen
                                                 : o->rec->req[i].in.limit);
    for (int i = 0; i < MC_REC_LANES; i++)
        r->lane[i].weight = r->h->weight[i];
    out->req = calloc(n + 1, sizeof *out->req);
    out->gap = tokens < STEPS_MAX ? malloc(tokens * sizeof *out->gap) : NULL;
    r->seq = calloc(n + 1, sizeof *r->seq);
    r->live = calloc(n + 1, sizeof *r->live);
    r->view = calloc(1, sizeof *r->view + n * (sizeof(struct mc_row) + MC_N_ORDER * 4) +
                            (MC_REC_LANES + 1) * sizeof(struct mc_party) + 64);
    for (int i = 0; i < DEPTH_MAX; i++) {
        r->step[i].row = calloc((size_t)r->h->row_cap, sizeof *r->step[i].row);
        if (!r->step[i].row)
            return MC_ENOMEM;
    }
    return out->req && out->gap && r->seq && r->live && r->view ? 0 : MC_ENOMEM;
}

int mc_sim_run(const struct mc_sim_opts *o, struct mc_sim *out, struct mc_err *err)
{
    struct run *r = calloc(1, sizeof *r);
    int rc = r ? 0 : MC_ENOMEM;

    memset(out, 0, sizeof *out);
    if (rc == 0)
        rc = open_run(r, o, out);
    while (rc == 0 && !out->stuck && r->n_step < STEPS_MAX &&
           (r->n_live > 0 || r->next < o->rec->n_req))
        turn(r);
    if (r) {
        for (int i = 0; i < DEPTH_MAX; i++)
            free(r->step[i].row);
        free(r->seq), free(r->live), free(r->view);
        free(r);
    }
    return rc < 0 ? mc_fail(err, rc, "no memory to simulate %d requests", o->rec->n_req)
                  : 0;
}

void mc_sim_free(struct mc_sim *s)
{
    free(s->req), free(s->gap), free(s->step);
    memset(s, 0, sizeof *s);
}
