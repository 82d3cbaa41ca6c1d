/* shadow.c - copies for a candidate, its plans, and how they differ from what was done.
 * Owns its VM and buffers. THREAD: as shadow.h says; `state` hands the record over. */
#include "lua/host/shadow.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "lua/host/trial.h"

/* ---- engine ------------------------------------------------------------------------ */

void mc_shadow_before(struct mc_shadow *s, const struct mc_step_view *v,
                      const struct mc_plan *plan)
{
    int ready = MC_SHADOW_READY;

    if (atomic_load_explicit(&s->state, memory_order_relaxed) != ready ||
        !atomic_compare_exchange_strong(&s->state, &ready, MC_SHADOW_COPYING))
        return;
    s->record.bytes = v->bytes;
    if (v->bytes > s->cap)
        return;
    memcpy(s->record.view, v, v->bytes);
    s->record.tok_left = plan->tok_left;
    s->record.row_left = plan->row_left;
    s->record.page_left = plan->page_left;
}

bool mc_shadow_after(struct mc_shadow *s, const struct mc_plan *plan, bool ok)
{
    if (atomic_load_explicit(&s->state, memory_order_relaxed) != MC_SHADOW_COPYING)
        return false;
    if (!ok) {
        atomic_store(&s->state, MC_SHADOW_READY);
        return false;
    }
    memcpy(&s->live, plan, offsetof(struct mc_plan, item) +
                               (size_t)plan->n * sizeof *plan->item);
    atomic_store(&s->state, MC_SHADOW_GIVEN);
    return true;
}

/* ---- builder ----------------------------------------------------------------------- */

static const struct mc_item *find(const struct mc_plan *p, uint32_t seq)
{
    for (int32_t i = 0; i < p->n; i++)
        if (p->item[i].seq == seq && p->item[i].what != MC_HOLD)
            return &p->item[i];
    return NULL;
}

static void compare(struct mc_shadow *s)
{
    uint64_t before = s->only_live + s->only_mine + s->other;

    for (int32_t i = 0; i < s->live.n; i++) {
        const struct mc_item *a = &s->live.item[i], *b = find(&s->mine, a->seq);

        if (a->what == MC_HOLD)
            continue;
        s->only_live += !b;
        s->other += b && (a->what != b->what || a->n != b->n);
    }
    for (int32_t i = 0; i < s->mine.n; i++)
        s->only_mine += s->mine.item[i].what != MC_HOLD &&
                        !find(&s->live, s->mine.item[i].seq);
    s->views++;
    s->differ += s->only_live + s->only_mine + s->other > before;
}

static void plan(struct mc_shadow *s)
{
    struct mc_err err;
    double t0 = mc_now(), us;
    char at[80] = "";
    int rc;

    s->mine.n = 0;
    s->mine.abi = MC_ABI;
    s->mine.cap = MC_PLAN_CAP;
    s->mine.tok_left = s->record.tok_left;
    s->mine.row_left = s->record.row_left;
    s->mine.page_left = s->record.page_left;
    rc = mc_stepvm_plan(s->vm, s->record.view, &s->mine, s->slots, &err);
    us = (mc_now() - t0) * 1e6;
    if (rc == 0) {
        s->sum_us += us;
        s->max_us = us > s->max_us ? us : s->max_us;
        compare(s);
        return;
    }
    if (s->vm->vm->lost)
        mc_trial_find(s->vm, at, sizeof at);
    snprintf(s->error, sizeof s->error, "%.150s%s%.70s", err.text, *at ? " at " : "", at);
    mc_stepvm_close(s->vm);
    s->vm = NULL;
}

static void grow(struct mc_shadow *s)
{
    free(s->record.view);
    s->cap = s->record.bytes * 2;
    s->record.view = malloc(s->cap);
    if (!s->record.view)
        s->cap = 0;
}

void mc_shadow_take(struct mc_shadow *s)
{
    if (atomic_load(&s->state) != MC_SHADOW_GIVEN)
        return;
    if (s->record.bytes > s->cap)
        grow(s);
    else
        plan(s);
    atomic_store(&s->state, s->vm ? MC_SHADOW_READY : MC_SHADOW_OFF);
}

/* Takes the record back from the engine. */
static void stop(struct mc_shadow *s)
{
    int ready = MC_SHADOW_READY;

    while (!atomic_compare_exchange_strong(&s->state, &ready, MC_SHADOW_OFF) &&
           ready == MC_SHADOW_COPYING)
        ready = MC_SHADOW_READY; /* it is copying: microseconds, and the hook */
    atomic_store(&s->state, MC_SHADOW_OFF);
}

int mc_shadow_begin(struct mc_shadow *s, const struct mc_step_opts *o, const char *path,
                    struct mc_err *err)
{
    struct mc_generation *g = NULL;
    struct mc_stepvm *vm = NULL;
    int rc = mc_generation_open_path(path, &g, err);

    if (rc == 0)
        rc = mc_trial_open(o, g, &vm, err);
    if (rc == 0)
        rc = mc_trial_run(&vm, NULL, 0, NULL, err);
    mc_generation_unref(g);
    if (rc < 0)
        return rc;
    mc_shadow_end(s);
    s->vm = vm;
    s->views = s->differ = s->only_live = s->only_mine = s->other = 0;
    s->sum_us = s->max_us = 0;
    s->error[0] = 0;
    snprintf(s->path, sizeof s->path, "%s", path);
    memcpy(s->slots, vm->layout[0].start, sizeof s->slots);
    atomic_store(&s->state, MC_SHADOW_READY);
    return 0;
}

void mc_shadow_end(struct mc_shadow *s)
{
    stop(s);
    mc_stepvm_close(s->vm);
    free(s->record.view);
    s->vm = NULL;
    s->record.view = NULL;
    s->cap = 0;
}

json_t *mc_shadow_report(const struct mc_shadow *s)
{
    json_t *out;

    if (!*s->path)
        return json_pack("{s:b}", "shadow", 0);
    out = json_pack("{s:b, s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "shadow",
                    s->vm != NULL, "path", s->path, "views", (json_int_t)s->views,
                    "differ", (json_int_t)s->differ, "rows_only_live",
                    (json_int_t)s->only_live, "rows_only_shadow",
                    (json_int_t)s->only_mine, "rows_other", (json_int_t)s->other,
                    "plan_us", s->views ? s->sum_us / (double)s->views : 0,
                    "plan_us_worst", s->max_us);
    if (*s->error)
        json_object_set_new(out, "error", json_string(s->error));
    return out;
}
