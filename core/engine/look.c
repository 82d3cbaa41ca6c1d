/* look.c - looking in: sequences' lives, lanes, the last step.
 *
 * OWNS nothing. THREAD: any; it takes `look`. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/crash.h"
#include "core/engine/engine_int.h"

enum { CRASH_SEQS = 64 };

static const char *const state_names[] = {" ?",      " waiting", " prefill",
                                          " decode", " paused",  " done"};

/* ---- lives ------------------------------------------------------------------------- */

static bool is_asked_for(const char *id, struct mc_handle h, const char *name)
{
    char mine[32];

    snprintf(mine, sizeof mine, "%u.%u", h.seq, h.gen);
    return strcmp(id, mine) == 0 || strcmp(id, name) == 0;
}

static void show(const struct mc_engine *e, struct mc_life_info *out,
                 const struct mc_life *l)
{
    out->n_event = l->n_event;
    memcpy(out->event, l->event, sizeof out->event);
    out->n_reason = l->n_reason;
    for (int32_t i = 0; i < l->n_reason; i++) {
        out->reason[i].event = l->reason[i].event;
        out->reason[i].steps = l->reason[i].steps;
        memcpy(out->reason[i].text, e->life_text[l->reason[i].text], MC_WHY_MAX);
    }
}

int mc_engine_lives(struct mc_engine *e, const char *id, struct mc_life_info *out,
                    int cap)
{
    uint32_t first, i;
    int n = 0;

    pthread_mutex_lock(&e->look);
    first = e->n_past > MC_N_PAST ? e->n_past - MC_N_PAST : 0;
    for (i = first; i != e->n_past; i++) {
        const struct mc_past *p = &e->past[i % MC_N_PAST];

        if (!is_asked_for(id, p->h, p->name) || n++ >= cap)
            continue;
        out[n - 1] = (struct mc_life_info){.h = p->h, .t_arrive = p->t_arrive};
        memcpy(out[n - 1].name, p->name, sizeof p->name);
        memcpy(out[n - 1].end, p->end, sizeof p->end);
        show(e, &out[n - 1], &p->life);
    }
    for (int32_t k = 0; k < e->n_live; k++) {
        const struct mc_seq *q = &e->seqs[e->live[k]];

        if (!is_asked_for(id, (struct mc_handle){q->id, q->gen}, q->name) || n++ >= cap)
            continue;
        out[n - 1] = (struct mc_life_info){.h = {q->id, q->gen},
                                           .t_arrive = q->usage.t_arrive};
        memcpy(out[n - 1].name, q->name, sizeof q->name);
        show(e, &out[n - 1], &q->life);
    }
    pthread_mutex_unlock(&e->look);
    return n;
}

/* ---- a crash ----------------------------------------------------------------------- */

/* In a signal handler: it locks nothing, so what it reads may be changing. */
void mc_look_crash(void *engine)
{
    const struct mc_engine *e = engine;
    int32_t n = e->n_live;

    mc_crash_put("model       ");
    mc_crash_put(e->o.model);
    mc_crash_number("\nsteps       ", e->n_step);
    mc_crash_number(" enqueued, ", e->n_published);
    mc_crash_number(" done\nalive       ", (uint64_t)(n > 0 ? n : 0));
    mc_crash_put(" sequences\n");
    for (int32_t i = 0; i < n && i < e->n_seqs && i < CRASH_SEQS; i++) {
        const struct mc_seq *q = &e->seqs[e->live[i] % e->n_seqs];

        mc_crash_number("  ", q->id);
        mc_crash_number(".", q->gen);
        mc_crash_put(" ");
        mc_crash_put(q->name);
        mc_crash_put(state_names[q->state % (MC_STATE_DONE + 1)]);
        mc_crash_number(" ", (uint64_t)q->n_prompt);
        mc_crash_number("+", (uint64_t)q->n_gen);
        mc_crash_put(" tokens\n");
    }
}

/* ---- lanes, steps ------------------------------------------------------------------ */

int mc_engine_lanes(struct mc_engine *e, struct mc_lane_info *out, int cap)
{
    struct mc_lane_info all[MC_N_LANE] = {0};
    double now = mc_now();
    int n = 0;

    pthread_mutex_lock(&e->look);
    for (int32_t i = 0; i < e->n_live; i++) {
        const struct mc_seq *q = &e->seqs[e->live[i]];

        all[q->lane].n_wait += q->state == MC_STATE_WAITING;
        all[q->lane].n_run += q->state != MC_STATE_WAITING;
    }
    for (uint32_t i = 0; i < MC_N_LANE; i++) {
        const struct mc_party_state *l = &e->lane[i];

        all[i].id = i;
        all[i].weight = l->weight;
        all[i].tok_in = l->tok_in;
        all[i].tok_out = l->tok_out;
        all[i].served = l->t_served > 0 ? l->served * exp((l->t_served - now) / 60) : 0;
        if (i > 0 && all[i].n_wait + all[i].n_run == 0 && l->tok_in == 0)
            continue;
        if (n++ < cap)
            out[n - 1] = all[i];
    }
    pthread_mutex_unlock(&e->look);
    return n;
}

void mc_engine_step_info(struct mc_engine *e, struct mc_step_info *out)
{
    const struct mc_step *s;

    pthread_mutex_lock(&e->look);
    s = &e->step[e->n_published % MC_DEPTH];
    *out = (struct mc_step_info){.steps = (double)e->n_published, .dev_us = e->dev_us,
                                 .host_us = e->host_us};
    if (e->n_step > e->n_published) {
        out->rows = s->n_row;
        out->tokens = s->n_tok;
    }
    pthread_mutex_unlock(&e->look);
}
