/* plan.c - the policy is asked, its plan checked, trimmed and turned into a step.
 *
 * Owns nothing. THREAD: the engine's.
 * Always true: whatever a policy writes, a step holds each sequence once, within the
 * budgets of tokens, rows and pages, in a state that allows it; what does not hold is
 * trimmed and counted. An empty valid plan means that nothing runs; only an error falls
 * back to the built-in. */
#include <string.h>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/engine/engine_int.h"

static void reset_plan(struct mc_engine *e)
{
    struct mc_plan *p = &e->plan;
    const struct mc_step_view *v = e->view;

    p->abi = MC_ABI;
    p->epoch = v->epoch;
    p->n = 0;
    p->cap = MC_PLAN_CAP;
    p->tok_left = v->tok_cap;
    p->row_left = v->row_cap;
    p->page_left = v->p_free + v->p_evict;
    p->page_soon = v->p_pending;
}

static bool plan_is_sound(const struct mc_engine *e)
{
    return e->plan.n >= 0 && e->plan.n <= MC_PLAN_CAP;
}

typedef int (*ask_fn)(const struct mc_policy *p, struct mc_engine *e, int32_t need,
                      struct mc_err *err);

static int ask_plan(const struct mc_policy *p, struct mc_engine *e, int32_t need,
                    struct mc_err *err)
{
    (void)need;
    return p->ops->plan(p->self, e->view, &e->plan, err);
}

static int ask_evict(const struct mc_policy *p, struct mc_engine *e, int32_t need,
                     struct mc_err *err)
{
    const struct mc_policy *q = p->ops->evict ? p : &mc_policy_builtin;

    return q->ops->evict(q->self, e->view, need, &e->plan, err);
}

/* The policy, or the built-in when it fails. */
static void ask(struct mc_engine *e, ask_fn fn, int32_t need)
{
    struct mc_err err = {0};

    reset_plan(e);
    if (fn(&e->policy, e, need, &err) == 0 && plan_is_sound(e))
        return;
    mc_count(e, MC_C_plan_fallback_total, 1);
    mc_view_build(e);
    reset_plan(e);
    fn(&mc_policy_builtin, e, need, &err);
}

/* ---- items ------------------------------------------------------------------------- */

static void chain_params(struct mc_engine *e, struct mc_seq *q)
{
    struct mc_err err = {0};

    q->pick.seq = q->id;
    q->pick.gen = q->gen;
    q->pick.n_prompt = q->n_prompt;
    q->pick.seed_lo = (uint32_t)q->seed;
    q->pick.seed_hi = (uint32_t)(q->seed >> 32);
    q->params = q->want;
    if (e->policy.ops->chain &&
        e->policy.ops->chain(e->policy.self, &q->pick, &q->want, &q->params, &err) < 0)
        q->params = q->want;
    for (int i = 0; i < 2; i++)
        q->params.ban[i] = mc_set_place(e, q->params.ban[i]);
}

/* Who of its lane came earlier, is no less urgent and still waits has been passed by. */
static void note_passed(struct mc_engine *e, const struct mc_seq *q)
{
    for (int32_t i = 0; i < e->n_live; i++) {
        struct mc_seq *o = &e->seqs[e->live[i]];

        if (o == q)
            return; /* the rest came later */
        o->n_passed += o->state == MC_STATE_WAITING && o->lane == q->lane &&
                       o->priority >= q->priority;
    }
}

/* A waiting sequence gets a slot, its sampling and the pages of its prefix. */
static bool start(struct mc_engine *e, struct mc_step *s, struct mc_seq *q)
{
    if (e->n_slot_free == 0 || (q->lands && !mc_pair_land(e, s, q)))
        return false;
    q->slot = e->slot_free[--e->n_slot_free];
    q->fresh = true;
    if (q->n_page == 0) {
        mc_prefix_take(e, s, q);
        q->n_cached = q->n_ctx;
    }
    q->state = MC_STATE_PREFILL;
    q->usage.t_start = mc_now();
    chain_params(e, q);
    mc_count(e, MC_C_prompt_tokens_cached_total, q->n_cached);
    mc_observe(e, MC_H_request_queue_time_seconds, q->usage.t_start - q->usage.t_arrive);
    pthread_mutex_lock(&e->inbox);
    e->n_queued--;
    pthread_mutex_unlock(&e->inbox);
    note_passed(e, q);
    mc_life_note(e, q, MC_LIFE_STARTED, q->n_cached);
    if (e->rec)
        mc_trace_start(e, q);
    return true;
}

static bool run(struct mc_engine *e, struct mc_step *s, struct mc_seq *q, int32_t n)
{
    int32_t room = e->o.chunk - s->n_tok;

    if (q->state == MC_STATE_PAUSED || !mc_seq_can_run(e, q) || n < 1 ||
        s->n_row >= e->n_slot)
        return false;
    if (q->state == MC_STATE_WAITING && !start(e, s, q))
        return false;
    if (!mc_step_room(e, s, q))
        return false;
    if (q->state == MC_STATE_DECODE)
        n = 1;
    else if (n > q->n_ids - q->n_ctx)
        n = q->n_ids - q->n_ctx;
    if (n > room)
        n = room;
    if (q->prompt_logprobs && q->n_told < q->n_prompt && n > e->n_slot - s->n_out)
        n = e->n_slot - s->n_out; /* each of its rows has logits */
    if (n < 1)
        return false;
    n = mc_step_grow(e, s, q, q->n_ctx + n) - q->n_ctx;
    if (n < 1)
        return false;
    mc_step_add(e, s, q, n);
    q->t_served = e->lane[q->lane].t_ran = e->view->now;
    q->served = e->n_step;
    return true;
}

static bool preempt(struct mc_engine *e, struct mc_step *s, struct mc_seq *q, bool swap)
{
    if (q->state != MC_STATE_DECODE && q->state != MC_STATE_PREFILL)
        return false;
    if (swap && !mc_swap_out(e, s, q))
        return false;
    if (!swap)
        mc_seq_drop_pages(e, q);
    q->state = MC_STATE_PAUSED;
    q->n_preempt++;
    mc_life_note(e, q, MC_LIFE_PREEMPTED, q->n_gen);
    mc_count(e, MC_C_num_preemptions_total, 1);
    mc_count(e, swap ? MC_C_swapped_total : MC_C_dropped_total, 1);
    return true;
}

/* What was generated is known, so coming back is a prefill of what has no KV: the whole
 * context, or the last token when pages come back from host memory. */
static bool back(struct mc_engine *e, struct mc_step *s, struct mc_seq *q)
{
    if (q->state != MC_STATE_PAUSED || q->n_fly > 0)
        return false;
    q->fresh = true; /* its table is written whole */
    if (q->n_place > 0 && !mc_swap_in(e, s, q))
        return false;
    if (q->n_page == 0)
        mc_prefix_take(e, s, q);
    q->state = MC_STATE_PREFILL;
    q->override_tok = -1; /* it is among the ids now */
    mc_life_note(e, q, MC_LIFE_RESUMED, q->n_gen);
    return true;
}

static bool fail(struct mc_engine *e, struct mc_seq *q, int32_t code)
{
    struct mc_err err = {0};

    mc_fail(&err, code < 0 && code > -MC_E_END_ ? code : MC_EAGAIN,
            "refused by the scheduler policy");
    mc_seq_end(e, q, MC_FINISH_ERROR, -1, &err);
    return true;
}

static bool apply(struct mc_engine *e, struct mc_step *s, const struct mc_item *it)
{
    struct mc_seq *q = mc_seq_get(e, (struct mc_handle){it->seq, it->gen});

    if (!q || q->planned == s->plan)
        return false;
    q->planned = s->plan;
    q->note = it->what == MC_HOLD ? it->why : it->what == MC_RUN ? 0 : MC_NOTE_DONE;
    switch (it->what) {
    case MC_RUN:
        return run(e, s, q, it->n);
    case MC_SWAP:
    case MC_DROP:
        return preempt(e, s, q, it->what == MC_SWAP);
    case MC_BACK:
        return back(e, s, q);
    case MC_HOLD:
        return true;
    case MC_FAIL:
        return fail(e, q, it->n);
    default:
        return false;
    }
}

/* Decode rows first: the ragged rows of a step are [decode | prefill]. */
static void apply_all(struct mc_engine *e, struct mc_step *s)
{
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < e->plan.n; i++) {
            const struct mc_item *it = &e->plan.item[i];
            const struct mc_seq *q = mc_seq_get(e, (struct mc_handle){it->seq, it->gen});
            bool decode = it->what == MC_RUN && q && q->state == MC_STATE_DECODE;

            if (decode == (pass == 0) && !apply(e, s, it))
                mc_count(e, MC_C_plan_trimmed_total, 1);
        }
}

/* ---- growth that can't be met ------------------------------------------------------ */

static int32_t pages_short(const struct mc_engine *e)
{
    const struct mc_step_view *v = e->view;

    return mc_resize_over(e) + mc_view_growth(v, e->n_step == e->n_published) -
           v->p_free - v->p_evict;
}

/* A sequence that holds all there is and needs more ends here, alone. */
static void end_the_full(struct mc_engine *e)
{
    struct mc_seq *only = NULL;
    int32_t n = 0;

    for (int32_t i = 0; i < e->n_live; i++) {
        struct mc_seq *q = &e->seqs[e->live[i]];

        if (q->n_page > 0) {
            only = q;
            n++;
        }
    }
    if (n == 1 && only->n_fly == 0 && e->n_pin == 0 && mc_kv_n_pending(e->kv) == 0)
        mc_seq_end(e, only, MC_FINISH_LENGTH, -1, NULL);
}

/* Whether anybody was preempted. */
static bool apply_evictions(struct mc_engine *e, struct mc_step *s)
{
    int32_t done = 0;

    for (int32_t i = 0; i < e->plan.n; i++) {
        const struct mc_item *it = &e->plan.item[i];

        if ((it->what == MC_DROP || it->what == MC_SWAP) && apply(e, s, it))
            done++;
        else
            mc_count(e, MC_C_plan_trimmed_total, 1);
    }
    return done > 0;
}

static void make_room(struct mc_engine *e, struct mc_step *s)
{
    int32_t need = pages_short(e);

    /* pages already on their way back are enough: the next turn has them */
    if (need <= 0 || need <= mc_kv_n_pending(e->kv))
        return;
    ask(e, ask_evict, need);
    if (!apply_evictions(e, s) && e->n_step == e->n_published) {
        /* nobody gave way and nothing will come back by itself */
        s->plan = ++e->n_plan; /* who was named in vain may be named again */
        reset_plan(e);
        mc_policy_builtin.ops->evict(NULL, e->view, need, &e->plan, NULL);
        if (!apply_evictions(e, s))
            mc_pins_yield(e);
    }
    end_the_full(e);
    mc_view_build(e);
}

/* Nothing runs, and pins hold what any row would need to go on. */
static void unpin_for_rows(struct mc_engine *e)
{
    const struct mc_step_view *v = e->view;
    int32_t least = INT32_MAX;

    for (int32_t i = 0; i < v->n_row; i++)
        if (mc_view_row(v, i)->p_step < least)
            least = mc_view_row(v, i)->p_step;
    if (v->n_row > 0 && least > v->p_free + v->p_evict + v->p_pending)
        mc_pins_yield(e);
}

/* Once a second: sequences that this policy lets starve, each told of once. */
static void look_for_starved(struct mc_engine *e)
{
    double now = e->view->now;
    int n = 0;

    if (now - e->t_alarm < 1)
        return;
    e->t_alarm = now;
    for (int32_t i = 0; i < e->n_live; i++) {
        struct mc_seq *q = &e->seqs[e->live[i]];
        double since = q->t_served > 0 ? q->t_served : q->usage.t_arrive;
        double ran = e->lane[q->lane].t_ran;

        if (q->starved || !mc_seq_can_run(e, q) ||
            !mc_starves(now - since, q->state == MC_STATE_WAITING, q->n_passed,
                        (int64_t)(e->n_step - q->served),
                        now - (ran > since ? ran : since)))
            continue;
        q->starved = true;
        n++;
        mc_warn("engine", "request %s starves: nothing for %.0f s; %d that came later "
                "started", q->name, now - since, q->n_passed);
    }
    if (n == 0)
        return;
    mc_count(e, MC_C_starved_total, n);
    if (e->policy.ops->starved)
        e->policy.ops->starved(e->policy.self);
}

int mc_plan_next(struct mc_engine *e)
{
    struct mc_step *s = &e->step[e->n_step % MC_DEPTH];
    double t0 = mc_now();

    mc_view_build(e);
    if (e->view->n_row == 0)
        return 0;
    mc_step_begin(e, s);
    e->planning = true;
    make_room(e, s);
    if (e->rec)
        mc_trace_view(e);
    ask(e, ask_plan, 0);
    mc_view_read_back(e);
    apply_all(e, s);
    e->planning = false;
    mc_life_step(e, s);
    look_for_starved(e);
    mc_observe(e, MC_H_plan_seconds, mc_now() - t0);
    if (s->n_row == 0 && e->n_step == e->n_published) {
        mc_count(e, MC_C_idle_by_policy_total, 1);
        unpin_for_rows(e);
    }
    return s->n_row > 0 || *s->n_init > 0 || mc_moves_any(&s->moves) || s->n_landed > 0;
}
