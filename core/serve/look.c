/* look.c - what a request went through, and what the engine does now, as JSON.
 *
 * OWNS nothing. THREAD: any. */
#include "core/serve/look.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/serve/admin.h"
#include "core/serve/args.h"

enum { LIVES_MAX = 64, LANES_MAX = 64 };

/* ---- why --------------------------------------------------------------------------- */

static const struct {
    const char *what, *n; /* what the event's number counts; NULL: nothing */
} life_names[] = {
    [MC_LIFE_QUEUED] = {"queued", "prompt"},
    [MC_LIFE_STARTED] = {"prefill", "cached"},
    [MC_LIFE_FIRST] = {"first token", NULL},
    [MC_LIFE_SERVED] = {"next generation", "made"},
    [MC_LIFE_PREEMPTED] = {"preempted", "made"},
    [MC_LIFE_RESUMED] = {"resumed", "made"},
    [MC_LIFE_ENDED] = {"ended", "made"},
};

/* Steps in which it was passed over after event i, by reason. */
static void put_reasons(json_t *o, const struct mc_life_info *l, int32_t i)
{
    json_t *why = json_object();
    int32_t steps = 0;

    for (int32_t k = 0; k < l->n_reason; k++) {
        if (l->reason[k].event != i)
            continue;
        steps += l->reason[k].steps;
        json_object_set_new(why, l->reason[k].text, json_integer(l->reason[k].steps));
    }
    if (steps > 0) {
        json_object_set_new(o, "skipped", json_integer(steps));
        json_object_set(o, "why", why);
    }
    json_decref(why);
}

static json_t *life_of(const struct mc_server *s, const struct mc_served *m,
                       const struct mc_life_info *l)
{
    json_t *events = json_array(), *o;
    char id[MC_SEQ_ID];

    for (int32_t i = 0; i < l->n_event; i++) {
        const struct mc_life_event *ev = &l->event[i];

        o = json_pack("{s:f, s:s}", "t", ev->t - l->t_arrive, "what",
                      life_names[ev->what].what);
        if (life_names[ev->what].n)
            json_object_set_new(o, life_names[ev->what].n, json_integer(ev->n));
        json_object_set_new(o, "generation", json_integer(ev->generation));
        put_reasons(o, l, i);
        json_array_append_new(events, o);
    }
    mc_seq_id(s, m, l->h, id);
    o = json_pack("{s:s, s:s}", "id", id, "request", l->name);
    if (*l->end)
        json_object_set_new(o, "end", json_string(l->end));
    json_object_set_new(o, "events", events);
    return o;
}

/* Of one model's engine, to which a sequence's id without the model's name means
 * something. */
static void add_lives(const struct mc_server *s, const struct mc_served *m,
                      const char *id, struct mc_life_info *lives, json_t *out)
{
    size_t name = strlen(m->id);
    bool its = strncmp(id, m->id, name) == 0 && id[name] == '/';
    int n = mc_engine_lives(m->engine, its ? id + name + 1 : id, lives, LIVES_MAX);

    for (int i = 0; i < n && i < LIVES_MAX; i++)
        json_array_append_new(out, life_of(s, m, &lives[i]));
}

int mc_look_why(struct mc_server *s, const json_t *args, json_t **out, struct mc_err *err)
{
    const char *id = mc_arg_text(args, 0);
    struct mc_life_info *lives;

    if (!id)
        return mc_fail_param(err, MC_EARG, "id",
                             "why takes a sequence's or a request's id");
    if (!atomic_load(&s->ready))
        return mc_fail(err, MC_ELOADING, "the model is still loading");
    lives = malloc(LIVES_MAX * sizeof *lives);
    if (!lives)
        return mc_fail(err, MC_ENOMEM, "no memory for the list");
    *out = json_array();
    for (int i = 0; i < s->n_model; i++)
        add_lives(s, &s->model[i], id, lives, *out);
    free(lives);
    if (json_array_size(*out) > 0)
        return 0;
    json_decref(*out);
    *out = NULL;
    return mc_fail_param(err, MC_ENOENT, "id",
                         "no sequence or request '%.60s' lives or is among "
                         "the last that ended: ids stand in the answer's header "
                         "x-request-id and in `mascon seqs`",
                         id);
}

/* ---- top --------------------------------------------------------------------------- */

static json_t *lanes_of(struct mc_engine *e)
{
    struct mc_lane_info lanes[LANES_MAX];
    int n = mc_engine_lanes(e, lanes, LANES_MAX);
    json_t *out = json_array();

    for (int i = 0; i < n && i < LANES_MAX; i++)
        json_array_append_new(out, json_pack("{s:i, s:f, s:i, s:i, s:f, s:f, s:f}",
                                             "lane", (int)lanes[i].id, "weight",
                                             (double)lanes[i].weight, "running",
                                             lanes[i].n_run, "waiting", lanes[i].n_wait,
                                             "served", lanes[i].served, "prompt",
                                             lanes[i].tok_in, "made", lanes[i].tok_out));
    return out;
}

/* Another verb's answer; NULL when it has none. */
static json_t *ask(struct mc_server *s, const char *verb, const char *model)
{
    json_t *args = json_array(), *out = NULL;

    if (model)
        json_array_append_new(args, json_string(model));
    mc_verb_run(s, verb, args, &out, NULL);
    json_decref(args);
    return out ? out : json_null();
}

int mc_look_top(struct mc_server *s, const json_t *args, json_t **out, struct mc_err *err)
{
    struct mc_step_info step;
    const struct mc_served *m;
    struct mc_engine *e;
    json_t *status;
    int rc = mc_arg_model(s, args, 0, &m, err);

    if (rc < 0)
        return rc;
    e = m->engine;
    mc_engine_step_info(e, &step);
    status = ask(s, "status", m->id);
    *out = json_pack(
        "{s:f, s:O?, s:O?, s:O?, s:f, s:f, s:f, s:f, s:f, s:i, s:i, s:f, s:f, s:f}", "t",
        mc_now(), "model", json_object_get(status, "model"), "state",
        json_object_get(status, "state"), "generation",
        json_object_get(status, "generation"), "prompt_tokens",
        mc_engine_counter(e, MC_C_prompt_tokens_total), "made_tokens",
        mc_engine_counter(e, MC_C_generation_tokens_total), "steps", step.steps,
        "step_ms", step.dev_us / 1e3, "host_ms", step.host_us / 1e3, "rows_now",
        step.rows, "tokens_now", step.tokens, "preemptions",
        mc_engine_counter(e, MC_C_num_preemptions_total), "starved",
        mc_engine_counter(e, MC_C_starved_total), "plan_fallbacks",
        mc_engine_counter(e, MC_C_plan_fallback_total));
    json_decref(status);
    if (!*out)
        return mc_fail(err, MC_ENOMEM, "no memory for the picture");
    json_object_set_new(*out, "pages", ask(s, "kv", m->id));
    json_object_set_new(*out, "lanes", lanes_of(e));
    json_object_set_new(*out, "seqs", ask(s, "seqs", NULL));
    return 0;
}
