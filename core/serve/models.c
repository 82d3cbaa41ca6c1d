/* models.c - see models.h. OWNS nothing. THREAD: any. */
#include "core/serve/models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/serve/args.h"
#include "core/serve/gen.h"

static const char *state_of(const struct mc_server *s)
{
    struct mc_engine_status st = {0};
    bool failed = false, loading = !atomic_load(&s->ready);

    for (int i = 0; i < s->n_model; i++) {
        if (s->model[i].engine)
            mc_engine_status(s->model[i].engine, &st);
        failed |= st.failed;
        loading |= !s->model[i].engine;
    }
    return failed                      ? "failed"
           : atomic_load(&s->draining) ? "draining"
           : loading                   ? "loading"
                                       : "ok";
}

/* Why the policies that serve are not those on disk, if so. */
static void put_policy_error(const struct mc_server *s, json_t *status)
{
    json_t *list = NULL, *why = NULL;

    if (s->policies && s->policies->list(s->policies_self, &list, NULL) == 0)
        why = json_object_get(list, "error");
    if (why)
        json_object_set(status, "policy_error", why);
    json_decref(list);
}

static json_t *status_of(const struct mc_served *m)
{
    struct mc_engine_status st = {0};
    json_t *row;

    if (m->engine)
        mc_engine_status(m->engine, &st);
    row = json_pack("{s:s, s:s, s:s, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:i}",
                    "model", m->id, "backend", st.backend, "kv", st.kv, "weight_bytes",
                    (json_int_t)st.weight_bytes, "waiting", st.n_waiting, "running",
                    st.n_running, "paused", st.n_paused, "max_seqs", st.max_seqs,
                    "max_context", st.max_context, "kv_tokens", st.kv_tokens, "steps",
                    st.steps, "generation", (int)st.generation);
    if (row && st.failed)
        json_object_set_new(row, "error", json_string(st.fail.text));
    return row;
}

/* Of several models: their names and sums, and each in a row. */
static json_t *status_of_all(const struct mc_server *s)
{
    static const char *const sums[] = {"waiting", "running", "paused", "weight_bytes"};
    json_t *rows = json_array(), *all = json_pack("{s:o}", "models", rows);
    char names[MC_SERVED_MAX * 130] = "";
    size_t n = 0;

    for (int i = 0; i < s->n_model; i++) {
        json_array_append_new(rows, status_of(&s->model[i]));
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "",
                              s->model[i].id);
    }
    json_object_set_new(all, "model", json_string(names));
    for (size_t k = 0; k < sizeof sums / sizeof *sums; k++) {
        json_int_t sum = 0;

        for (int i = 0; i < s->n_model; i++)
            sum += json_integer_value(json_object_get(json_array_get(rows, (size_t)i),
                                                      sums[k]));
        json_object_set_new(all, sums[k], json_integer(sum));
    }
    json_object_set(all, "generation",
                    json_object_get(json_array_get(rows, 0), "generation"));
    return all;
}

int mc_models_status(struct mc_server *s, const json_t *args, json_t **out,
                     struct mc_err *err)
{
    const struct mc_served *m = mc_served_find(s, mc_arg_text(args, 0));
    json_t *row;

    if (!m)
        return mc_arg_model(s, args, 0, &m, err);
    row = s->n_model > 1 && !mc_arg_text(args, 0) ? status_of_all(s) : status_of(m);
    *out = json_pack("{s:s}", "state", state_of(s));
    if (!*out || !row)
        return mc_fail(err, MC_ENOMEM, "no memory for the status");
    json_object_update(*out, row);
    json_decref(row);
    put_policy_error(s, *out);
    return 0;
}

/* Of one model, or of all together. */
int mc_models_stats(struct mc_server *s, const json_t *args, json_t **out,
                    struct mc_err *err)
{
    static const char *const names[] = {
#define X(name, help) #name,
        MC_COUNTERS(X)
#undef X
    };
    const struct mc_served *m;
    bool all = !mc_arg_text(args, 0);
    int rc = mc_arg_model(s, args, 0, &m, err);

    if (rc < 0)
        return rc;
    *out = json_object();
    for (int c = 0; c < MC_N_COUNTER; c++) {
        double v = all ? 0 : mc_engine_counter(m->engine, (enum mc_counter)c);

        for (int i = 0; all && i < s->n_model; i++)
            if (s->model[i].engine)
                v += mc_engine_counter(s->model[i].engine, (enum mc_counter)c);
        json_object_set_new(*out, names[c], json_real(v));
    }
    return 0;
}

int mc_models_list(struct mc_server *s, const json_t *args, json_t **out,
                   struct mc_err *err)
{
    const json_t *limit = json_object_get(s->config, "max_tokens_default");
    struct mc_engine_status st;

    (void)args;
    *out = json_array();
    for (int i = 0; i < s->n_model; i++) {
        const struct mc_served *m = &s->model[i];

        if (!m->engine)
            return mc_fail(err, MC_ELOADING, "the model is still loading");
        mc_engine_status(m->engine, &st);
        json_array_append_new(
            *out, json_pack("{s:s, s:I, s:i, s:s, s:i, s:i, s:i}", "id", m->id, "created",
                            (json_int_t)s->started, "max_context", st.max_context,
                            "family", mc_engine_config(m->engine)->family, "n_layer",
                            mc_engine_config(m->engine)->n_layer, "hidden",
                            mc_engine_config(m->engine)->hidden, "max_tokens_default",
                            mc_limit_default(m->engine,
                                             limit ? json_integer_value(limit) : -1)));
    }
    return 0;
}

static json_t *pages_of(const struct mc_served *m)
{
    struct mc_engine_status st;

    mc_engine_status(m->engine, &st);
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "model", m->id,
                     "total", st.p_total, "free", st.p_free, "held", st.p_held, "cached",
                     st.p_cached, "pending", st.p_pending, "page_tokens", MC_PAGE,
                     "host_total", st.p_host, "host_free", st.p_host_free);
}

/* Of one model, or a row for each. */
int mc_models_kv(struct mc_server *s, const json_t *args, json_t **out,
                 struct mc_err *err)
{
    const struct mc_served *m;
    int rc = mc_arg_model(s, args, 0, &m, err);

    if (rc < 0)
        return rc;
    if (s->n_model == 1 || mc_arg_text(args, 0)) {
        *out = pages_of(m);
        return 0;
    }
    *out = json_array();
    for (int i = 0; i < s->n_model; i++)
        if (s->model[i].engine)
            json_array_append_new(*out, pages_of(&s->model[i]));
    return 0;
}

/* A whole number from 0; absent: 0. */
static int whole_arg(const json_t *args, size_t i, const char *name, int32_t *out,
                     struct mc_err *err)
{
    double n = 0;
    int rc = mc_arg_number(args, i, name, INT32_MAX, &n, err);

    *out = rc == 0 ? (int32_t)n : 0;
    if (rc == 0 && *out != n)
        rc = mc_fail_param(err, MC_EARG, name, "%s must be a whole number", name);
    return rc;
}

static int piece_arg(const json_t *args, struct mc_page_piece *p, struct mc_err *err)
{
    const char *part = mc_arg_text(args, 1);
    int rc = whole_arg(args, 0, "page", &p->page, err);

    p->index = part && strncmp(part, "index", 5) == 0;
    if (rc == 0 && p->index) {
        json_t *number = json_pack("[s]", part[5] ? part + 5 : "0");

        rc = whole_arg(number, 0, "index", &p->layer, err);
        json_decref(number);
    } else if (rc == 0) {
        rc = whole_arg(args, 1, "layer", &p->layer, err);
    }
    return rc < 0 ? rc : whole_arg(args, 2, "rank", &p->rank, err);
}

int mc_models_kv_dump(struct mc_server *s, const json_t *args, json_t **out,
                     struct mc_err *err)
{
    static const char digit[] = "0123456789abcdef";
    struct mc_page_piece p = {0};
    struct mc_page_dump d;
    const struct mc_served *m;
    char *hex;
    int rc = mc_arg_model(s, args, 3, &m, err);

    if (rc == 0)
        rc = piece_arg(args, &p, err);
    if (rc == 0)
        rc = mc_engine_dump(m->engine, &p, &d, err);
    if (rc < 0)
        return rc;
    hex = malloc(2 * d.n + 1);
    for (size_t i = 0; hex && i < d.n; i++) {
        hex[2 * i] = digit[d.bytes[i] >> 4];
        hex[2 * i + 1] = digit[d.bytes[i] & 15];
    }
    if (hex)
        *out = json_pack("{s:i, s:s, s:I, s:s, s:i, s:i, s:i, s:s#}", "page", p.page,
                         "state", d.state, "tag", (json_int_t)d.tag, "layout", d.layout,
                         "rank", d.rank, "layers", d.n_layer, "indexes", d.n_index,
                         "bytes", hex, (int)(2 * d.n));
    free(hex);
    free(d.bytes);
    return *out ? 0 : mc_fail(err, MC_ENOMEM, "no memory for a page's bytes");
}
