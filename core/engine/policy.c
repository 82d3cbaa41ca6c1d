/* policy.c - the built-in policy: first come, first served.
 *
 * What the engine runs when no script is loaded and what serves a step whose script
 * failed, so it uses nothing that can fail: no memory, no lock, no clock.
 * Owns nothing. THREAD: engine.
 *
 * Always true of a plan made here: a row is named once; a row that waits is never
 * overtaken by one that came later, unless another reads its prefix; a row starts only when
 * its whole prompt fits (two half-read prompts can't starve each other of pages), or when
 * nothing else runs; nothing starts while a paused row could not come back. */
#include "core/engine/policy.h"

#include <stdbool.h>
#include <stddef.h>

enum { WHY_NONE, WHY_PAGES, WHY_FULL, WHY_PREFIX };

static const char *const why_texts[] = {
    [WHY_PAGES] = "no pages",
    [WHY_FULL] = "the step is full",
    [WHY_PREFIX] = "another reads its prefix",
};

static struct mc_item *add(struct mc_plan *p, const struct mc_row *r, int what, int why)
{
    struct mc_item *it;

    if (p->n >= p->cap)
        return NULL;
    it = &p->item[p->n++];
    *it = (struct mc_item){.seq = r->seq, .gen = r->gen, .what = (uint16_t)what,
                           .why = (uint16_t)why};
    return it;
}

/* Grants the row n tokens that cost so many pages; the caller has checked that it may. */
static bool run(struct mc_plan *p, const struct mc_row *r, int32_t n, int32_t pages)
{
    struct mc_item *it = add(p, r, MC_RUN, WHY_NONE);

    if (!it)
        return false;
    it->n = n;
    p->tok_left -= n;
    p->row_left--;
    p->page_left -= pages;
    return true;
}

/* Decodes and resumes what it can; how many rows run, and whether any stayed paused. One
 * comes back beside others only when those have room to go on: else it would take the pages
 * that they wait for, be preempted for them, and come back again for ever. */
static void run_started(const struct mc_step_view *v, struct mc_plan *p, int32_t *running,
                        bool *stuck)
{
    int32_t started = 0;

    *running = 0;
    *stuck = false;
    for (int32_t i = 0; i < v->n_row; i++)
        started += mc_row_runs(mc_view_row(v, i));
    for (int32_t i = 0; i < v->n_row && p->row_left > 0 && p->tok_left > 0; i++) {
        const struct mc_row *r = mc_view_row(v, i);

        if (r->state == MC_STATE_DECODE && r->p_step <= p->page_left)
            *running += run(p, r, 1, r->p_step);
    }
    for (int32_t i = 0; i < v->n_row; i++) {
        const struct mc_row *r = mc_view_row(v, mc_view_ordered(v, MC_ORDER_ARRIVAL, i));

        if (r->state != MC_STATE_PAUSED)
            continue;
        if (*stuck || p->row_left <= 0 ||
            r->p_step > p->page_left - (started > 0 ? v->p_reserve : 0) ||
            !add(p, r, MC_BACK, WHY_NONE)) {
            *stuck = true;
            continue;
        }
        p->row_left--;
        p->page_left -= r->p_step;
        ++*running;
        started++;
    }
}

/* Is the i-th row's prefix being read by another, or is it given to read in this plan? Then
 * waiting for it is sooner than reading it twice. Rows of a group share a page at least. */
static bool prefix_soon(const struct mc_step_view *v, int32_t i)
{
    const struct mc_row *r = mc_view_row(v, mc_view_ordered(v, MC_ORDER_ARRIVAL, i));

    if (r->state != MC_STATE_WAITING || r->n_hit_soon > r->n_hit)
        return r->state == MC_STATE_WAITING;
    while (--i >= 0 && r->group && r->n_hit == 0) {
        const struct mc_row *o = mc_view_row(v, mc_view_ordered(v, MC_ORDER_ARRIVAL, i));

        if (o->state == MC_STATE_WAITING && o->group == r->group)
            return true;
    }
    return false;
}

/* Why this row can't have prompt tokens now, or WHY_NONE with *n of them. */
static int prompt_tokens(const struct mc_step_view *v, const struct mc_plan *p,
                         const struct mc_row *r, int32_t running, bool stuck, int32_t *n)
{
    if (p->row_left <= 0 || p->tok_left <= 0)
        return WHY_FULL;
    if (r->state == MC_STATE_WAITING &&
        (stuck || (running > 0 && mc_row_prompt_pages(v, r, r->n_left) >
                                      p->page_left - v->p_reserve)))
        return WHY_PAGES;
    *n = r->n_left < p->tok_left ? r->n_left : p->tok_left;
    if (mc_row_prompt_pages(v, r, *n) > p->page_left)
        *n = (p->page_left + r->p_held + r->p_shared) * v->p_tokens - r->n_ctx - r->n_hit;
    return *n > 0 ? WHY_NONE : WHY_PAGES;
}

/* The youngest go first; the oldest stays, or nothing would ever end. */
static int evict_youngest(void *self, struct mc_step_view *v, int32_t need,
                          struct mc_plan *p, struct mc_err *err)
{
    int32_t host = v->p_host_free, oldest = -1;

    (void)self, (void)err;
    for (int32_t i = 0; i < v->n_row && oldest < 0; i++)
        if (mc_row_runs(mc_view_row(v, mc_view_ordered(v, MC_ORDER_ARRIVAL, i))))
            oldest = mc_view_ordered(v, MC_ORDER_ARRIVAL, i);
    for (int32_t i = v->n_row - 1; i >= 0 && need > 0; i--) {
        int32_t k = mc_view_ordered(v, MC_ORDER_ARRIVAL, i);
        const struct mc_row *r = mc_view_row(v, k);
        bool swap = r->p_held <= host && r->us_swap < r->us_redo;

        if (k == oldest || r->p_own <= 0 || !mc_row_runs(r))
            continue;
        if (!add(p, r, swap ? MC_SWAP : MC_DROP, WHY_PAGES))
            break;
        host -= swap ? r->p_held : 0;
        need -= r->p_own;
    }
    return 0;
}

/* Prompts of rows in one state, in order of arrival. */
static void read_prompts(const struct mc_step_view *v, struct mc_plan *p,
                         enum mc_seq_state state, bool stuck, int32_t *running)
{
    int why = WHY_NONE;

    for (int32_t i = 0; i < v->n_row; i++) {
        const struct mc_row *r = mc_view_row(v, mc_view_ordered(v, MC_ORDER_ARRIVAL, i));
        int32_t n = 0;

        if (r->n_left <= 0 || r->state != state)
            continue;
        if (why == WHY_NONE && *running > 0 && prefix_soon(v, i)) {
            add(p, r, MC_HOLD, WHY_PREFIX);
            continue;
        }
        if (why == WHY_NONE)
            why = prompt_tokens(v, p, r, *running, stuck, &n);
        if (why != WHY_NONE)
            add(p, r, MC_HOLD, why);
        else
            *running += run(p, r, n, mc_row_prompt_pages(v, r, n));
    }
}

static int plan_first_come(void *self, struct mc_step_view *v, struct mc_plan *p,
                           struct mc_err *err)
{
    int32_t running;
    bool stuck;

    (void)self, (void)err;
    run_started(v, p, &running, &stuck);
    read_prompts(v, p, MC_STATE_PREFILL, stuck, &running); /* half-read ones hold pages */
    read_prompts(v, p, MC_STATE_WAITING, stuck, &running);
    return 0;
}

static int admit_all(void *self, const struct mc_row *row, struct mc_err *err)
{
    (void)self, (void)row, (void)err;
    return 0;
}

static int chain_as_wanted(void *self, struct mc_pick_seq *seq,
                           const struct mc_params *want, struct mc_params *out,
                           struct mc_err *err)
{
    (void)self, (void)seq, (void)err;
    *out = *want;
    return 0;
}

static int pick_drawn(void *self, const struct mc_cands *c, struct mc_pick_seq *seq,
                      int32_t *id, struct mc_err *err)
{
    (void)self, (void)c, (void)seq, (void)err;
    *id = -1;
    return 0;
}

static void step_end(void *self)
{
    (void)self;
}

static const char *why(void *self, uint16_t index)
{
    (void)self;
    return index < sizeof why_texts / sizeof *why_texts ? why_texts[index] : NULL;
}

static uint32_t generation(void *self)
{
    (void)self;
    return 0;
}

static const struct mc_policy_ops ops = {
    .plan = plan_first_come,
    .evict = evict_youngest,
    .admit = admit_all,
    .chain = chain_as_wanted,
    .pick = pick_drawn,
    .step_end = step_end,
    .why = why,
    .generation = generation,
};

const struct mc_policy mc_policy_builtin = {&ops, NULL};
