/* life.c - what came to each sequence, and for how many steps it waited for what.
 *
 * OWNS the lives (in struct mc_seq), the reasons' texts and the ring of lives that ended.
 * THREAD: the engine's, with look held.
 * Always true: a text, once written, stays as it is; reasons[] of a life are in the order
 * of their events. A plan's own reason comes first; where it gives none, what ran out
 * says why. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/engine/engine_int.h"

/* Reasons that need no policy; the others come after. */
enum { T_OTHER, T_FULL, T_PAGES, T_SLOTS, T_CHOSEN, T_NOTHING, T_HELD, N_OWN };
static const char *const own_texts[N_OWN] = {
    [T_OTHER] = "other reasons",
    [T_FULL] = "the step is full",
    [T_PAGES] = "no pages",
    [T_SLOTS] = "as many run as may",
    [T_CHOSEN] = "the policy chose others",
    [T_NOTHING] = "the policy ran nothing",
    [T_HELD] = "held by the policy",
};

static uint32_t generation(const struct mc_engine *e)
{
    return e->policy.ops->generation ? e->policy.ops->generation(e->policy.self) : 0;
}

int mc_life_open(struct mc_engine *e, struct mc_err *err)
{
    e->past = calloc(MC_N_PAST, sizeof *e->past);
    if (!e->past)
        return mc_fail(err, MC_ENOMEM, "no memory for the lives of %d sequences",
                       MC_N_PAST);
    for (int i = 0; i < N_OWN; i++)
        snprintf(e->life_text[i], MC_WHY_MAX, "%s", own_texts[i]);
    e->n_life_text = N_OWN;
    return 0;
}

/* ---- events ------------------------------------------------------------------------ */

void mc_life_note(struct mc_engine *e, struct mc_seq *q, enum mc_life_what what,
                  int32_t n)
{
    struct mc_life *l = &q->life;

    if (l->n_event < MC_LIFE_EVENTS)
        l->n_event++;
    l->event[l->n_event - 1] = (struct mc_life_event){
        .t = what == MC_LIFE_QUEUED ? q->usage.t_arrive : mc_now(),
        .generation = generation(e), .what = what, .n = n};
}

void mc_life_end(struct mc_engine *e, const struct mc_seq *q, const struct mc_end *end)
{
    static const char *const how[] = {
        [MC_FINISH_STOP] = "stop", [MC_FINISH_LENGTH] = "length",
        [MC_FINISH_CANCEL] = "cancelled", [MC_FINISH_ERROR] = "error"};
    struct mc_past *p = &e->past[e->n_past++ % MC_N_PAST];
    struct mc_life *l = &p->life;

    *p = (struct mc_past){.h = {q->id, q->gen}, .t_arrive = q->usage.t_arrive,
                          .life = q->life};
    memcpy(p->name, q->name, sizeof p->name);
    snprintf(p->end, sizeof p->end, "%s%s%.60s", how[end->finish],
             *end->err.text ? ": " : "", end->err.text);
    if (l->n_event < MC_LIFE_EVENTS)
        l->n_event++;
    l->event[l->n_event - 1] = (struct mc_life_event){
        .t = end->usage.t_end, .generation = end->generation, .what = MC_LIFE_ENDED,
        .n = end->usage.n_gen};
}

/* ---- reasons ----------------------------------------------------------------------- */

static int32_t text_index(struct mc_engine *e, const char *text)
{
    char cut[MC_WHY_MAX];

    snprintf(cut, sizeof cut, "%s", text);
    for (int32_t i = 0; i < e->n_life_text; i++)
        if (strcmp(e->life_text[i], cut) == 0)
            return i;
    if (e->n_life_text == MC_N_TEXT)
        return T_OTHER;
    memcpy(e->life_text[e->n_life_text], cut, sizeof cut);
    return e->n_life_text++;
}

/* A policy's own text, looked up once a generation. */
static int32_t policy_text(struct mc_engine *e, uint16_t why, uint32_t gen)
{
    const char *text;

    if (gen != e->text_generation) {
        memset(e->text_of, 0, sizeof e->text_of);
        e->text_generation = gen;
    }
    if (why == 0 || why >= sizeof e->text_of || !e->policy.ops->why)
        return T_HELD;
    if (e->text_of[why] == 0) {
        text = e->policy.ops->why(e->policy.self, why);
        e->text_of[why] = (uint8_t)(text ? text_index(e, text) : T_HELD);
    }
    return e->text_of[why];
}

/* What kept a row out that the plan does not hold by name. */
static int32_t own_text(const struct mc_engine *e, const struct mc_step *s,
                        const struct mc_seq *q, const struct mc_row *r)
{
    int32_t n_free, n_cached, left;

    mc_kv_ready(e->kv, 0, &n_free, &n_cached);
    left = n_free + n_cached;
    if (s->n_row >= e->n_slot || (q->state == MC_STATE_WAITING && e->n_slot_free == 0))
        return T_SLOTS;
    if (s->n_tok >= e->o.chunk)
        return T_FULL;
    if (r->p_step > left || (q->state == MC_STATE_WAITING &&
                             mc_row_prompt_pages(e->view, r, r->n_left) > left))
        return T_PAGES;
    return s->n_row > 0 ? T_CHOSEN : T_NOTHING;
}

static void add(struct mc_life *l, int32_t text)
{
    uint16_t event = (uint16_t)(l->n_event > 0 ? l->n_event - 1 : 0);
    int32_t i = l->n_reason;

    while (i > 0 && l->reason[i - 1].event == event && l->reason[i - 1].text != text)
        i--;
    if (i > 0 && l->reason[i - 1].event == event) {
        l->reason[i - 1].steps++;
        return;
    }
    if (l->n_reason == MC_LIFE_REASONS)
        return;
    l->reason[l->n_reason].event = event;
    l->reason[l->n_reason].text = (uint16_t)text;
    l->reason[l->n_reason++].steps = 1;
}

void mc_life_step(struct mc_engine *e, const struct mc_step *s)
{
    uint32_t gen = generation(e);

    for (int32_t i = 0; i < e->view->n_row; i++) {
        const struct mc_row *r = mc_view_row(e->view, i);
        struct mc_seq *q = mc_seq_get(e, (struct mc_handle){r->seq, r->gen});
        bool named = q && q->planned == s->plan;

        if (!q || (named && q->note == MC_NOTE_DONE))
            continue;
        if (q->t_served == e->view->now) {
            if (q->life.n_event > 0 &&
                q->life.event[q->life.n_event - 1].generation != gen)
                mc_life_note(e, q, MC_LIFE_SERVED, q->n_gen);
            continue;
        }
        add(&q->life, named && q->note ? policy_text(e, q->note, gen)
                                       : own_text(e, s, q, r));
    }
}
