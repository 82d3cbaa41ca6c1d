/* hooks.c - the engine's side of the policies: hooks with fall-back, swapping, rolling back.
 *
 * Owns the engine thread's part of struct mc_policies. THREAD: engine; it neither locks,
 * allocates nor waits here, and what it must tell goes to the builder by a ring.
 * Always true: live's generation number is live_number, or live is NULL and live_number
 * says for which generation a spare is awaited (0: the built-in policy in C serves). */
#include "lua/host/policies_int.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/base/crash.h"
#include "core/base/log.h"

static __thread bool on_engine; /* in a hook that the engine called */

/* ---- telling the builder ----------------------------------------------------------- */

void mc_hooks_event(struct mc_policies *p, int kind, int level, uint32_t number,
                       const char *text)
{
    unsigned in = atomic_load_explicit(&p->ev_in, memory_order_relaxed);
    unsigned out = atomic_load_explicit(&p->ev_out, memory_order_acquire);
    struct mc_event *e = &p->event[in % MC_N_EVENT];

    if (in - out == MC_N_EVENT) {
        atomic_fetch_add(&p->ev_dropped, 1);
        return;
    }
    e->kind = kind;
    e->level = level;
    e->number = number;
    snprintf(e->text, sizeof e->text, "%s", text);
    atomic_store_explicit(&p->ev_in, in + 1, memory_order_release);
    if (in == out)
        mc_builder_wake(p);
}

/* A script's line, from whichever thread its VM runs on. */
void mc_hooks_log(void *ctx, int level, const char *text)
{
    struct mc_policies *p = ctx;

    if (on_engine)
        mc_hooks_event(p, MC_EVENT_LOG, level, 0, text);
    else
        mc_log_at((enum mc_log_level)level, "policy", "%s", text);
}

/* Hands a VM that the engine is done with to the builder. */
void mc_hooks_bury(struct mc_policies *p, struct mc_stepvm *s)
{
    if (!s)
        return;
    s->next = atomic_load(&p->dead);
    while (!atomic_compare_exchange_weak(&p->dead, &s->next, s))
        ;
    mc_builder_wake(p);
}

/* ---- declared state ---------------------------------------------------------------- */

static bool same_layout(const struct mc_layout *a, const struct mc_layout *b)
{
    bool same = a->n == b->n;

    for (int i = 0; same && i < a->n; i++)
        same = strcmp(a->name[i], b->name[i]) == 0;
    return same;
}

/* The number by which seqs remember what their state means. */
static uint32_t layout_number(struct mc_policies *p, const struct mc_layout *l)
{
    uint32_t oldest = p->n_layout > MC_N_LAYOUT ? p->n_layout - MC_N_LAYOUT : 0;

    for (uint32_t k = p->n_layout; k > oldest; k--)
        if (same_layout(&p->layout[(k - 1) % MC_N_LAYOUT], l)) {
            p->layout[(k - 1) % MC_N_LAYOUT] = *l; /* it may start with other values */
            return k;
        }
    p->layout[p->n_layout % MC_N_LAYOUT] = *l;
    return ++p->n_layout;
}

/* Rewrites state from one declaration to another: by name, else the declared start. A
 * declaration that is too long ago counts as none. */
static void follow_layout(struct mc_policies *p, uint32_t *number, double *state,
                          uint32_t to)
{
    static const struct mc_layout none;
    const struct mc_layout *old = &none, *new = &p->layout[(to - 1) % MC_N_LAYOUT];
    double was[MC_N_STATE];

    if (*number == to)
        return;
    if (*number > 0 && *number <= p->n_layout && p->n_layout - *number < MC_N_LAYOUT)
        old = &p->layout[(*number - 1) % MC_N_LAYOUT];
    memcpy(was, state, sizeof was);
    memset(state, 0, sizeof was);
    for (int i = 0; i < new->n; i++) {
        state[i] = new->start[i];
        for (int k = 0; k < old->n; k++)
            if (strcmp(old->name[k], new->name[i]) == 0)
                state[i] = was[k];
    }
    *number = to;
}

/* ---- who serves -------------------------------------------------------------------- */

static uint32_t live_number(const struct mc_policies *p)
{
    return mc_numbers_live(atomic_load(&p->numbers));
}

static uint32_t kept_number(const struct mc_policies *p)
{
    return mc_numbers_kept(atomic_load(&p->numbers));
}

static void set_numbers(struct mc_policies *p, uint32_t live, uint32_t kept)
{
    atomic_store(&p->steps, 0);
    atomic_store(&p->numbers, (uint64_t)live << 32 | kept);
}

void mc_hooks_set_live(struct mc_policies *p, struct mc_stepvm *s)
{
    p->live = s;
    if (!s)
        return;
    for (int k = 0; k < 2; k++)
        p->live_layout[k] = layout_number(p, &s->layout[k]);
    follow_layout(p, &p->state_layout, p->state, p->live_layout[0]);
}

static void forget_bad(struct mc_policies *p)
{
    p->bad_row = 0;
    p->n_bad = 0;
}

static void swap_in(struct mc_policies *p, struct mc_stepvm *s)
{
    mc_hooks_bury(p, p->kept);
    p->kept = p->live;
    set_numbers(p, s->gen->number, live_number(p));
    mc_hooks_set_live(p, s);
    forget_bad(p);
    mc_hooks_event(p, MC_EVENT_LIVE, 0, s->gen->number, "");
}

/* keep: the one that serves now is kept in turn; else it is done with. */
static void roll_back(struct mc_policies *p, bool keep)
{
    struct mc_stepvm *old = p->live;

    set_numbers(p, kept_number(p), keep ? live_number(p) : 0);
    mc_hooks_set_live(p, p->kept);
    p->kept = keep ? old : NULL;
    if (!keep)
        mc_hooks_bury(p, old);
    forget_bad(p);
    mc_hooks_event(p, keep ? MC_EVENT_LIVE : MC_EVENT_BACK, 0, live_number(p), "");
}

/* Between two steps: what waits to serve, serves. */
static void at_boundary(struct mc_policies *p)
{
    struct mc_stepvm *s = atomic_exchange(&p->next, NULL);

    if (s && atomic_load(&p->degraded))
        mc_hooks_bury(p, s);
    else if (s)
        swap_in(p, s);
    if (atomic_exchange(&p->want_rollback, false) && kept_number(p))
        roll_back(p, true);
}

/* The VM to call, or NULL: the built-in policy serves. */
static struct mc_stepvm *serving(struct mc_policies *p)
{
    struct mc_stepvm *s;

    if (p->live || live_number(p) == 0)
        return p->live;
    s = atomic_exchange(&p->spare, NULL);
    if (s && s->gen->number != live_number(p)) {
        mc_hooks_bury(p, s);
        s = NULL;
    }
    if (s) {
        mc_hooks_set_live(p, s);
        mc_builder_wake(p); /* the next spare */
    }
    return p->live;
}

/* In a signal handler. */
void mc_hooks_crash(void *policies)
{
    struct mc_policies *p = policies;
    int h = atomic_load_explicit(&p->hook, memory_order_relaxed);
    int i = (h < 0 ? -h : h) - 1;

    mc_crash_number("policies    generation ", live_number(p));
    mc_crash_put("\nlast hook   ");
    mc_crash_put(i >= 0 && i < MC_N_HOOK ? mc_hook_names[i] : "none");
    mc_crash_put(h < 0 ? " (running)\n" : "\n");
}

/* ---- calling hooks ----------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The VM for a hook, or NULL when the built-in policy is to do it. */
static struct mc_stepvm *begin(struct mc_policies *p, enum mc_hook h, uint64_t *t0)
{
    struct mc_stepvm *s = p->off & (1u << h) ? NULL : serving(p);

    if (!s || !mc_stepvm_has(s, h))
        return NULL;
    p->called = true;
    on_engine = true;
    atomic_store_explicit(&p->hook, -(int)h - 1, memory_order_relaxed);
    *t0 = now_ns();
    return s;
}

static void count(struct mc_hook_count *c, uint64_t ns, int rc)
{
    uint64_t max = atomic_load_explicit(&c->max_ns, memory_order_relaxed);

    atomic_fetch_add_explicit(&c->calls, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->sum_ns, ns, memory_order_relaxed);
    if (ns > max)
        atomic_store_explicit(&c->max_ns, ns, memory_order_relaxed);
    if (rc < 0)
        atomic_fetch_add_explicit(&c->failures, 1, memory_order_relaxed);
}

/* Counts a call; after a failure decides what is called until the step ends. */
static int end(struct mc_policies *p, enum mc_hook h, uint64_t t0, int rc,
               struct mc_err *err)
{
    struct mc_stepvm *s = p->live;
    char text[320];

    on_engine = false;
    atomic_store_explicit(&p->hook, (int)h + 1, memory_order_relaxed);
    count(&p->count[h], now_ns() - t0, rc);
    if (rc >= 0)
        return rc;
    p->bad = true;
    p->off |= 1u << h;
    if (rc != MC_EBUDGET && rc != MC_ENOMEM) {
        snprintf(text, sizeof text, "%s: %s; the built-in policy served",
                 mc_hook_names[h], err->text);
        mc_hooks_event(p, MC_EVENT_FAILED, 0, s->gen->number, text);
        return rc;
    }
    s->vm->lost = rc; /* the builder says so, with the line */
    p->off = ~0u;
    p->live = NULL;
    mc_hooks_bury(p, s);
    if (atomic_fetch_add(&p->lost, 1) + 1 >= MC_LOST_MAX) {
        atomic_store(&p->degraded, true);
        set_numbers(p, 0, 0);
        mc_hooks_bury(p, p->kept);
        p->kept = NULL;
    }
    return rc;
}

/* What the builder asked for: the step as it is. Too big a block waits for a bigger buffer. */
static void give_record(struct mc_policies *p, const struct mc_step_view *v,
                        const struct mc_plan *plan)
{
    int asked = MC_RECORD_ASKED;

    if (atomic_load_explicit(&p->record_state, memory_order_relaxed) != asked ||
        !atomic_compare_exchange_strong(&p->record_state, &asked, MC_RECORD_COPYING))
        return;
    p->record.bytes = v->bytes;
    if (v->bytes <= p->record_cap) {
        memcpy(p->record.view, v, v->bytes);
        p->record.tok_left = plan->tok_left;
        p->record.row_left = plan->row_left;
        p->record.page_left = plan->page_left;
    }
    atomic_store(&p->record_state, MC_RECORD_GIVEN);
}

static int plan_live(struct mc_policies *p, struct mc_step_view *v, struct mc_plan *plan,
                     struct mc_err *err)
{
    struct mc_err mine;
    uint64_t t0;
    struct mc_stepvm *s = begin(p, MC_HOOK_PLAN, &t0);

    if (!s)
        return mc_policy_builtin.ops->plan(NULL, v, plan, err);
    err = err ? err : &mine;
    return end(p, MC_HOOK_PLAN, t0, mc_stepvm_plan(s, v, plan, p->state, err), err);
}

static int op_plan(void *self, struct mc_step_view *v, struct mc_plan *plan,
                   struct mc_err *err)
{
    struct mc_policies *p = self;
    int rc;

    if (!p->called) /* the first hook of a step: a boundary, also when steps are rare */
        at_boundary(p);
    give_record(p, v, plan);
    mc_shadow_before(&p->shadow, v, plan);
    rc = plan_live(p, v, plan, err);
    if (mc_shadow_after(&p->shadow, plan, rc == 0))
        mc_builder_wake(p);
    return rc;
}

static int op_evict(void *self, struct mc_step_view *v, int32_t need,
                    struct mc_plan *plan, struct mc_err *err)
{
    struct mc_policies *p = self;
    struct mc_err mine;
    uint64_t t0;
    struct mc_stepvm *s = begin(p, MC_HOOK_EVICT, &t0);

    if (!s)
        return mc_policy_builtin.ops->evict(NULL, v, need, plan, err);
    err = err ? err : &mine;
    return end(p, MC_HOOK_EVICT, t0, mc_stepvm_evict(s, v, need, plan, p->state, err),
               err);
}

/* A hook that fails refuses nobody. */
static int op_admit(void *self, const struct mc_row *row, struct mc_err *err)
{
    struct mc_policies *p = self;
    struct mc_err mine;
    uint64_t t0;
    struct mc_stepvm *s = begin(p, MC_HOOK_ADMIT, &t0);
    int answer = 0;

    if (!s)
        return mc_policy_builtin.ops->admit(NULL, row, err);
    if (end(p, MC_HOOK_ADMIT, t0, mc_stepvm_admit(s, row, p->state, &answer, &mine),
            &mine) < 0)
        return mc_policy_builtin.ops->admit(NULL, row, err);
    return answer < 0 ? mc_fail(err, answer, "%s (by policy)", mc_code_text(answer)) : 0;
}

static int op_chain(void *self, struct mc_pick_seq *seq, const struct mc_params *want,
                    struct mc_params *out, struct mc_err *err)
{
    struct mc_policies *p = self;
    struct mc_err mine;
    uint64_t t0;
    struct mc_stepvm *s = begin(p, MC_HOOK_CHAIN, &t0);

    if (!s)
        return mc_policy_builtin.ops->chain(NULL, seq, want, out, err);
    err = err ? err : &mine;
    follow_layout(p, &seq->layout, seq->state, p->live_layout[1]);
    return end(p, MC_HOOK_CHAIN, t0, mc_stepvm_chain(s, seq, want, out, err), err);
}

static int op_pick(void *self, const struct mc_cands *c, struct mc_pick_seq *seq,
                   int32_t *id, struct mc_err *err)
{
    struct mc_policies *p = self;
    struct mc_err mine;
    uint64_t t0;
    struct mc_stepvm *s = begin(p, MC_HOOK_PICK, &t0);

    if (!s)
        return mc_policy_builtin.ops->pick(NULL, c, seq, id, err);
    err = err ? err : &mine;
    follow_layout(p, &seq->layout, seq->state, p->live_layout[1]);
    return end(p, MC_HOOK_PICK, t0, mc_stepvm_pick(s, c, seq, id, err), err);
}

static int op_keep(void *self, struct mc_block *block, int32_t n, struct mc_err *err)
{
    struct mc_policies *p = self;
    struct mc_err mine;
    uint64_t t0;
    struct mc_stepvm *s = begin(p, MC_HOOK_KEEP, &t0);

    if (!s)
        return 1;
    err = err ? err : &mine;
    return end(p, MC_HOOK_KEEP, t0, mc_stepvm_keep(s, block, n, err), err);
}

static const uint32_t *op_vocab_set(void *self, int32_t handle, int32_t *n)
{
    struct mc_policies *p = self;

    *n = p->sets.vocab.n;
    return mc_sets_bits(&p->sets, handle);
}

/* Rule 3: whether the steps that went wrong are too many. */
static bool too_bad(struct mc_policies *p)
{
    uint64_t oldest;

    if (p->called && !p->bad)
        p->bad_row = 0;
    if (!p->bad)
        return false;
    p->bad_row++;
    p->bad_at[p->n_bad++ % MC_BAD_MANY] = p->step;
    oldest = p->bad_at[p->n_bad % MC_BAD_MANY];
    return p->bad_row >= MC_BAD_IN_A_ROW ||
           (p->n_bad >= MC_BAD_MANY && p->step - oldest < MC_BAD_WINDOW);
}

static void op_step_end(void *self)
{
    struct mc_policies *p = self;

    p->step++;
    if ((too_bad(p) || p->starves) && live_number(p)) {
        atomic_fetch_add(&p->rollbacks, 1);
        roll_back(p, false);
    }
    p->off = 0;
    p->starves = false;
    if (p->called && atomic_fetch_add(&p->steps, 1) + 1 == MC_BAD_WINDOW &&
        kept_number(p))
        mc_hooks_event(p, MC_EVENT_LOG, MC_LOG_INFO, 0,
                       "the live generation has served 1,000 steps: off probation");
    p->called = p->bad = false;
    at_boundary(p);
}

/* On probation a generation that starves someone goes, at the next boundary. */
static void op_starved(void *self)
{
    struct mc_policies *p = self;

    if (!kept_number(p) || atomic_load(&p->steps) >= MC_BAD_WINDOW)
        return;
    mc_hooks_event(p, MC_EVENT_FAILED, 0, live_number(p),
                   "it starves a sequence while on probation; rolling back");
    p->starves = true;
}

static const char *op_why(void *self, uint16_t index)
{
    struct mc_policies *p = self;

    if (!p->live)
        return mc_policy_builtin.ops->why(NULL, index);
    return index < MC_N_WHY ? p->live->why[index] : NULL;
}

static uint32_t op_generation(void *self)
{
    return live_number(self);
}

const struct mc_policy_ops mc_hooks_ops = {
    .plan = op_plan,
    .evict = op_evict,
    .admit = op_admit,
    .chain = op_chain,
    .pick = op_pick,
    .keep = op_keep,
    .vocab_set = op_vocab_set,
    .step_end = op_step_end,
    .starved = op_starved,
    .why = op_why,
    .generation = op_generation,
};
