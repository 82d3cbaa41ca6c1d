/* seq.c - a sequence's life: filled from a request, its pages and prefix, its end.
 *
 * Owns the copies made of a request and the ids list. THREAD: mc_seq_fill the submitter's
 * (the record is not shared yet); the rest the engine's.
 * Always true: ids[0..n_ids) is the whole known context; chain covers full pages of it. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "core/base/clock.h"
#include "core/engine/engine_int.h"

struct mc_seq *mc_seq_get(struct mc_engine *e, struct mc_handle h)
{
    if (h.seq == 0 || h.seq > (uint32_t)e->n_seqs || h.gen == 0)
        return NULL;
    return e->live_gen[h.seq - 1] == h.gen ? &e->seqs[h.seq - 1] : NULL;
}

int32_t mc_seq_context(const struct mc_engine *e)
{
    int32_t holds = atomic_load(&e->p_goal) * MC_PAGE;

    return holds < e->o.max_context ? holds : e->o.max_context;
}

/* ---- from a request ---------------------------------------------------------------- */

static int check_ids(const struct mc_engine *e, const struct mc_request *r,
                     struct mc_err *err)
{
    int32_t room = mc_seq_context(e);

    if (r->n_ids < 1)
        return mc_fail_param(err, MC_EARG, "prompt", "the prompt has no tokens");
    if (r->n_ids + (r->limit != 0) > room)
        return mc_fail_param(
            err, MC_ECTX, "prompt",
            "the prompt has %d tokens; with room for one more, the context holds %d",
            r->n_ids, room);
    for (int32_t i = 0; i < r->n_ids; i++)
        if (r->ids[i] < 0 || r->ids[i] >= e->model->n_real)
            return mc_fail_param(err, MC_EARG, "prompt",
                                 "prompt token %d at index %d is outside 0..%d",
                                 r->ids[i], i, e->model->n_real - 1);
    return 0;
}

static int check_lists(const struct mc_engine *e, const struct mc_request *r,
                       struct mc_err *err)
{
    if (r->n_bias < 0 || r->n_bias > MC_MAX_BIAS)
        return mc_fail_param(err, MC_EARG, "logit_bias",
                             "logit_bias has %d entries, at most %d", r->n_bias,
                             MC_MAX_BIAS);
    for (int32_t i = 0; i < r->n_bias; i++)
        if (r->bias[i].id < 0 || r->bias[i].id >= e->model->n_real ||
            !(r->bias[i].add >= -100) || !(r->bias[i].add <= 100))
            return mc_fail_param(
                err, MC_EARG, "logit_bias",
                "logit_bias: token %d (0..%d) or its bias (-100..100) is out "
                "of range",
                r->bias[i].id, e->model->n_real - 1);
    if (r->n_stop < 0 || r->n_stop > MC_MAX_STOP_IDS)
        return mc_fail_param(err, MC_EARG, "stop_token_ids",
                             "stop_token_ids has %d entries, at most %d", r->n_stop,
                             MC_MAX_STOP_IDS);
    for (int32_t i = 0; i < r->n_stop; i++)
        if (r->stop_ids[i] < 0 || r->stop_ids[i] >= e->model->n_real)
            return mc_fail_param(err, MC_EARG, "stop_token_ids",
                                 "stop_token_ids: %d is outside 0..%d", r->stop_ids[i],
                                 e->model->n_real - 1);
    return 0;
}

static int check_range(const char *name, double v, double lo, double hi,
                       struct mc_err *err)
{
    if (v >= lo && v <= hi)
        return 0;
    return mc_fail_param(err, MC_EARG, name, "%s is %g, must be %g to %g", name, v, lo,
                         hi);
}

static int check_want(const struct mc_request *r, struct mc_err *err)
{
    const struct mc_params *w = &r->want;
    const struct {
        const char *name;
        double v, lo, hi;
    } list[] = {
        {"temperature", w->temperature, 0, 100},
        {"top_p", w->top_p, 0, 1},
        {"min_p", w->min_p, 0, 1},
        {"repetition_penalty", w->repetition_penalty, 0.01, 100},
        {"presence_penalty", w->presence_penalty, -100, 100},
        {"frequency_penalty", w->frequency_penalty, -100, 100},
        {"max_tokens", r->limit, -1, INT32_MAX},
        {"min_tokens", w->min_tokens, 0, INT32_MAX},
        {"logprobs", r->n_top, -1, MC_TOP},
        {"lane", r->lane, 0, MC_N_LANE - 1},
        {"tenant", r->tenant, 0, MC_N_TENANT - 1},
        {"priority", r->priority, -1000, 1000},
        {"slo_token", r->slo_token, 0, 1e6},
    };

    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        int rc = check_range(list[i].name, list[i].v, list[i].lo, list[i].hi, err);

        if (rc < 0)
            return rc;
    }
    return 0;
}

static void copy_request(const struct mc_engine *e, struct mc_seq *q,
                         const struct mc_request *r)
{
    int32_t room = mc_seq_context(e) - r->n_ids;

    memcpy(q->ids, r->ids, (size_t)r->n_ids * sizeof *q->ids);
    q->n_ids = q->n_prompt = r->n_ids;
    q->limit = r->limit < 0 || r->limit > room ? room : r->limit;
    q->want = q->params = r->want;
    q->n_top = r->n_top;
    q->n_bias = r->n_bias;
    if (r->n_bias)
        memcpy(q->bias, r->bias, (size_t)r->n_bias * sizeof *q->bias);
    q->n_stop = r->n_stop;
    if (r->n_stop)
        memcpy(q->stop, r->stop_ids, (size_t)r->n_stop * sizeof *q->stop);
    q->ignore_eos = r->ignore_eos;
    q->prompt_logprobs = r->prompt_logprobs && r->n_top >= 0 && r->sink.prompt;
    q->n_told = 1; /* nothing predicts the first */
    q->lane = r->lane;
    q->tenant = r->tenant;
    q->priority = r->priority;
    q->deadline = r->deadline;
    q->due_first = r->due_first;
    q->slo_token = r->slo_token;
    memcpy(q->name, r->name, sizeof q->name);
    q->name[sizeof q->name - 1] = 0;
    q->sink = r->sink;
}

struct mc_hash mc_seq_root(uint32_t tenant, const char *salt)
{
    struct {
        uint32_t tenant;
        char salt[sizeof ((struct mc_request *)0)->salt];
    } who = {.tenant = tenant};

    memcpy(who.salt, salt, strnlen(salt, sizeof who.salt));
    return mc_kv_root(&who, sizeof who);
}

static void free_buffers(struct mc_seq *q)
{
    mc_parcel_unref(q->sends), mc_parcel_unref(q->lands);
    q->sends = q->lands = NULL;
    free(q->ids), free(q->page), free(q->place), free(q->chain), free(q->bias);
    q->ids = q->page = q->place = NULL, q->chain = NULL, q->bias = NULL;
}

int mc_seq_fill(struct mc_engine *e, struct mc_seq *q, const struct mc_request *r,
                struct mc_err *err)
{
    int rc = check_ids(e, r, err);

    if (rc == 0)
        rc = check_lists(e, r, err);
    if (rc == 0)
        rc = check_want(r, err);
    if (rc < 0)
        return rc;
    *q = (struct mc_seq){.id = q->id, .gen = q->gen, .slot = -1, .override_tok = -1,
                         .shard = -1};
    q->cap_ids = r->n_ids + 64;
    q->ids = malloc((size_t)q->cap_ids * sizeof *q->ids);
    q->page = malloc((size_t)e->pitch * sizeof *q->page);
    q->place = malloc((size_t)e->pitch * sizeof *q->place);
    q->cap_chain = e->pitch;
    q->chain = malloc((size_t)q->cap_chain * sizeof *q->chain);
    q->bias = r->n_bias ? malloc((size_t)r->n_bias * sizeof *q->bias) : NULL;
    q->seed = r->seed;
    if (!r->seeded && getrandom(&q->seed, sizeof q->seed, 0) != sizeof q->seed)
        q->seed = (uint64_t)(mc_now() * 1e9);
    if (!q->ids || !q->page || !q->place || !q->chain || (r->n_bias && !q->bias)) {
        free_buffers(q);
        return mc_fail(err, MC_ENOMEM, "no memory for a request of %d tokens", r->n_ids);
    }
    rc = mc_tap_fill(e, q, r, err);
    if (rc < 0) {
        free_buffers(q);
        return rc;
    }
    copy_request(e, q, r);
    q->root = mc_seq_root(r->tenant, r->salt);
    q->sends = mc_parcel_of(r);
    q->state = MC_STATE_WAITING;
    q->usage.n_prompt = r->n_ids;
    q->usage.t_arrive = mc_now();
    return 0;
}

void mc_seq_unfill(struct mc_seq *q)
{
    free_buffers(q);
    mc_tap_drop(q->taps);
    q->taps = NULL;
}

int mc_seq_append(struct mc_seq *q, int32_t id)
{
    if (q->n_ids == q->cap_ids) {
        int32_t cap = q->cap_ids * 2;
        int32_t *ids = realloc(q->ids, (size_t)cap * sizeof *ids);

        if (!ids)
            return MC_ENOMEM;
        q->ids = ids;
        q->cap_ids = cap;
    }
    q->ids[q->n_ids++] = id;
    return 0;
}

/* ---- pages -------------------------------------------------------------------------- */

/* The last page first: of a cached chain the head is the most useful. The step that is being
 * planned may still read them (swap.c), and its ticket is beyond all that is enqueued. */
void mc_seq_drop_pages(struct mc_engine *e, struct mc_seq *q)
{
    uint64_t ticket = mc_crew_mark(&e->crew) + (e->planning ? 1 : 0);

    while (q->n_page > 0)
        mc_kv_give(e->kv, q->page[--q->n_page], (int32_t)q->id, ticket);
    q->shard = -1;
    q->n_ctx = q->n_pub = q->n_shared_seen = 0;
}

/* ---- state ------------------------------------------------------------------------- */

int32_t mc_seq_room(const struct mc_engine *e, const struct mc_seq *q)
{
    int32_t by_limit = q->limit - q->n_gen - q->n_fly;
    int32_t by_context = e->o.max_context - q->n_ids - q->n_fly;

    return by_limit < by_context ? by_limit : by_context;
}

bool mc_seq_can_run(const struct mc_engine *e, const struct mc_seq *q)
{
    bool picks = q->params.flags & MC_PARAM_PICK;

    switch (q->state) {
    case MC_STATE_WAITING:
        return true;
    case MC_STATE_PREFILL:
        return q->n_ctx < q->n_ids;
    case MC_STATE_DECODE:
        return mc_seq_room(e, q) > 0 && !(picks && q->n_fly > 0);
    case MC_STATE_PAUSED:
        return q->n_fly == 0;
    case MC_STATE_DONE:
        break;
    }
    return false;
}

static void unlist(struct mc_engine *e, const struct mc_seq *q)
{
    int32_t index = (int32_t)q->id - 1, i = 0;

    e->live_gen[index] = 0;
    while (e->live[i] != index)
        i++;
    memmove(e->live + i, e->live + i + 1, (size_t)(e->n_live - i - 1) * sizeof *e->live);
    e->n_live--;
}

static void release(struct mc_engine *e, struct mc_seq *q)
{
    mc_seq_drop_pages(e, q);
    mc_swap_forget(e, q);
    if (q->slot >= 0)
        e->slot_free[e->n_slot_free++] = q->slot;
    unlist(e, q);
    mc_tap_end(e, q);
    free_buffers(q);
    q->slot = -1;
    pthread_mutex_lock(&e->inbox);
    q->gen += q->gen == UINT32_MAX ? 2 : 1; /* never 0 */
    q->next = e->seq_free;
    e->seq_free = q;
    pthread_mutex_unlock(&e->inbox);
}

void mc_seq_end(struct mc_engine *e, struct mc_seq *q, enum mc_finish how,
                int32_t stop_id, const struct mc_err *err)
{
    static const enum mc_counter by_finish[] = {
        [MC_FINISH_STOP] = MC_C_requests_stop_total,
        [MC_FINISH_LENGTH] = MC_C_requests_length_total,
        [MC_FINISH_CANCEL] = MC_C_requests_cancel_total,
        [MC_FINISH_ERROR] = MC_C_requests_error_total,
    };
    struct mc_end end = {.finish = how, .stop_id = stop_id, .usage = q->usage};

    end.usage.n_gen = q->n_gen;
    end.usage.n_cached = q->n_cached;
    end.usage.t_end = mc_now();
    if (err)
        end.err = *err;
    end.generation = e->policy.ops->generation ? e->policy.ops->generation(e->policy.self)
                                               : 0;
    if (e->rec)
        mc_trace_end(e, q, &end);
    mc_life_end(e, q, &end);
    mc_count(e, by_finish[how], 1);
    mc_observe(e, MC_H_e2e_request_latency_seconds, end.usage.t_end - end.usage.t_arrive);
    if (q->state == MC_STATE_WAITING) {
        pthread_mutex_lock(&e->inbox);
        e->n_queued--;
        pthread_mutex_unlock(&e->inbox);
    }
    q->state = MC_STATE_DONE;
    q->sink.end(q->sink.ctx, &end);
    release(e, q);
}
