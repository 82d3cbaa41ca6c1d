/* admin.c - the verbs. OWNS nothing. THREAD: any. */
#include "core/serve/admin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "core/serve/args.h"
#include "core/serve/gen.h"
#include "core/serve/look.h"
#include "core/serve/pins.h"

enum { SEQS_MAX = 4096 };

/* ---- models ---------------------------------------------------------------------------- */

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
    return failed ? "failed" : atomic_load(&s->draining) ? "draining" : loading ? "loading"
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
    row = json_pack("{s:s, s:s, s:s, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:i}", "model",
                    m->id, "backend", st.backend, "kv", st.kv, "weight_bytes",
                    (json_int_t)st.weight_bytes, "waiting", st.n_waiting, "running",
                    st.n_running, "paused", st.n_paused, "max_seqs", st.max_seqs,
                    "max_context", st.max_context, "kv_tokens", st.kv_tokens, "steps", st.steps,
                    "generation", (int)st.generation);
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

static int v_status(struct mc_server *s, const json_t *args, json_t **out, struct mc_err *err)
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
static int v_stats(struct mc_server *s, const json_t *args, json_t **out, struct mc_err *err)
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

static int v_models(struct mc_server *s, const json_t *args, json_t **out, struct mc_err *err)
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
                            (json_int_t)s->started, "max_context", st.max_context, "family",
                            mc_engine_config(m->engine)->family, "n_layer",
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
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "model", m->id, "total",
                     st.p_total, "free", st.p_free, "held", st.p_held, "cached", st.p_cached,
                     "pending", st.p_pending, "page_tokens", MC_PAGE, "host_total", st.p_host,
                     "host_free", st.p_host_free);
}

/* Of one model, or a row for each. */
static int v_kv(struct mc_server *s, const json_t *args, json_t **out, struct mc_err *err)
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

static int v_kv_dump(struct mc_server *s, const json_t *args, json_t **out,
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
                         "rank", d.rank, "layers", d.n_layer, "indexes", d.n_index, "bytes",
                         hex, (int)(2 * d.n));
    free(hex);
    free(d.bytes);
    return *out ? 0 : mc_fail(err, MC_ENOMEM, "no memory for a page's bytes");
}

/* ---- sequences ------------------------------------------------------------------------ */

static const char *const state_names[] = {"", "waiting", "prefill", "decode", "paused",
                                          "done"};

static json_t *seq_row(const struct mc_server *s, const struct mc_served *m,
                       const struct mc_seq_info *r)
{
    char id[MC_SEQ_ID];

    mc_seq_id(s, m, r->h, id);
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:s, s:i, s:i, s:f}", "id", id, "request",
                     r->name, "model", m->id, "state", state_names[r->state], "lane",
                     (int)r->lane, "tenant", mc_keys_tenant(s->keys, r->tenant), "n_prompt",
                     r->n_prompt, "n_gen", r->n_gen, "age", r->age);
}

/* Calls fn for each live sequence of each model. */
static int each_seq(struct mc_server *s, void (*fn)(void *ctx, const struct mc_served *m,
                                                    const struct mc_seq_info *r),
                    void *ctx, struct mc_err *err)
{
    struct mc_seq_info *rows = malloc(SEQS_MAX * sizeof *rows);

    if (!rows)
        return mc_fail(err, MC_ENOMEM, "no memory for the list");
    for (int i = 0; i < s->n_model; i++) {
        struct mc_engine *e = s->model[i].engine;
        int n = e ? mc_engine_seqs(e, rows, SEQS_MAX) : 0;

        for (int k = 0; k < n && k < SEQS_MAX; k++)
            fn(ctx, &s->model[i], &rows[k]);
    }
    free(rows);
    return 0;
}

struct listing {
    struct mc_server *s;
    json_t *rows;
};

static void add_row(void *ctx, const struct mc_served *m, const struct mc_seq_info *r)
{
    struct listing *l = ctx;

    json_array_append_new(l->rows, seq_row(l->s, m, r));
}

static int v_seqs(struct mc_server *s, const json_t *args, json_t **out, struct mc_err *err)
{
    struct listing l = {s, json_array()};

    (void)args;
    *out = l.rows;
    return each_seq(s, add_row, &l, err);
}

struct ending {
    struct mc_server *s;
    const char *id, *why;
    int found;
};

static void end_if_named(void *ctx, const struct mc_served *m, const struct mc_seq_info *r)
{
    struct ending *e = ctx;
    char mine[MC_SEQ_ID];

    mc_seq_id(e->s, m, r->h, mine);
    if (strcmp(mine, e->id) != 0 && strcmp(r->name, e->id) != 0)
        return;
    mc_engine_cancel(m->engine, r->h, e->why ? e->why : "cancelled by an operator");
    e->found++;
}

/* By a sequence's id or by the request's: all of its sequences. */
static int v_cancel(struct mc_server *s, const json_t *args, json_t **out, struct mc_err *err)
{
    struct ending e = {s, mc_arg_text(args, 0), mc_arg_text(args, 1), 0};
    int rc;

    if (!e.id)
        return mc_fail_param(err, MC_EARG, "id", "cancel takes a sequence's or a request's id");
    rc = each_seq(s, end_if_named, &e, err);
    if (rc < 0)
        return rc;
    if (!e.found)
        return mc_fail_param(err, MC_ENOENT, "id", "no sequence or request '%.60s' is alive",
                             e.id);
    *out = json_pack("{s:i}", "cancelled", e.found);
    return 0;
}

/* ---- the server ----------------------------------------------------------------------- */

static int v_drain(struct mc_server *s, const json_t *args, json_t **out, struct mc_err *err)
{
    double seconds = -1;
    int rc = mc_arg_number(args, 0, "seconds", 86400, &seconds, err);

    if (rc < 0)
        return rc;
    if (!s->drain)
        return mc_fail(err, MC_EUNSUP, "nothing to drain here");
    s->drain(s->self, seconds);
    *out = json_pack("{s:b}", "draining", 1);
    return 0;
}

static int v_set(struct mc_server *s, const json_t *args, json_t **out, struct mc_err *err)
{
    const char *key = mc_arg_text(args, 0), *value = mc_arg_text(args, 1);
    const char *eq = key && !value ? strchr(key, '=') : NULL;
    char name[64];
    int rc;

    if (eq) { /* `set drain=5` */
        snprintf(name, sizeof name, "%.*s", (int)(eq - key), key);
        key = name;
        value = eq + 1;
    }
    if (!key || !value)
        return mc_fail(err, MC_EARG, "set takes a setting and its value (drain=5); those "
                       "that are live in `mascon config --dump` can change");
    if (!s->set)
        return mc_fail(err, MC_EUNSUP, "nothing to set here");
    rc = s->set(s->self, key, value, err);
    if (rc < 0)
        return rc;
    *out = json_pack("{s:s}", key, value);
    return 0;
}

static int log_levels(json_t **out)
{
    struct mc_log_unit units[32];
    int n = mc_log_units(units, 32);

    *out = json_object();
    for (int i = 0; i < n; i++)
        json_object_set_new(*out, units[i].name, json_string(units[i].level));
    return 0;
}

static int v_log(struct mc_server *s, const json_t *args, json_t **out, struct mc_err *err)
{
    const char *unit = mc_arg_text(args, 0), *level = mc_arg_text(args, 1);
    const char *eq = unit && !level ? strchr(unit, '=') : NULL;
    char name[64];
    int code, rc;

    (void)s;
    if (!unit)
        return log_levels(out);
    if (eq) { /* `log http=debug`, as --log has it */
        snprintf(name, sizeof name, "%.*s", (int)(eq - unit), unit);
        unit = name;
        level = eq + 1;
    } else if (!level) { /* `log debug`: all units */
        level = unit;
        unit = NULL;
    }
    code = level ? mc_log_level_of(level) : MC_EARG;
    if (code < 0)
        return mc_fail_param(err, MC_EARG, "level",
                             "no log level '%.40s': there are debug, info, warn, error and off, "
                             "alone or behind a unit (http=debug)", level);
    rc = mc_log_set(unit, (enum mc_log_level)code);
    if (rc < 0)
        return mc_fail_param(err, rc, "unit", "no level for the unit '%.40s'", unit);
    *out = json_pack("{s:s, s:s}", "unit", unit ? unit : "all", "level", level);
    return 0;
}

/* ---- policies ------------------------------------------------------------------------- */

static int need_policies(const struct mc_server *s, struct mc_err *err)
{
    return s->policies ? 0 : mc_fail(err, MC_ELOADING, "policies are not loaded yet");
}

static int v_reload(struct mc_server *s, const json_t *args, json_t **out, struct mc_err *err)
{
    int rc = need_policies(s, err);

    (void)args;
    if (rc == 0 && s->keys)
        rc = mc_keys_reload(s->keys, err);
    return rc < 0 ? rc : s->policies->reload(s->policies_self, out, err);
}

static int v_rollback(struct mc_server *s, const json_t *args, json_t **out,
                      struct mc_err *err)
{
    int rc = need_policies(s, err);

    (void)args;
    return rc < 0 ? rc : s->policies->rollback(s->policies_self, out, err);
}

static int v_list(struct mc_server *s, const json_t *args, json_t **out, struct mc_err *err)
{
    int rc = need_policies(s, err);

    (void)args;
    return rc < 0 ? rc : s->policies->list(s->policies_self, out, err);
}

static int v_check(struct mc_server *s, const json_t *args, json_t **out, struct mc_err *err)
{
    int rc = need_policies(s, err);

    return rc < 0 ? rc : s->policies->check(s->policies_self, mc_arg_text(args, 0), out, err);
}

static int v_diff(struct mc_server *s, const json_t *args, json_t **out, struct mc_err *err)
{
    int rc = need_policies(s, err);

    return rc < 0 ? rc : s->policies->diff(s->policies_self, mc_arg_text(args, 0),
                                           mc_arg_text(args, 1), out, err);
}

static int v_shadow(struct mc_server *s, const json_t *args, json_t **out, struct mc_err *err)
{
    int rc = need_policies(s, err);

    return rc < 0 ? rc : s->policies->shadow(s->policies_self, mc_arg_text(args, 0), out, err);
}

static int v_config(struct mc_server *s, const json_t *args, json_t **out, struct mc_err *err)
{
    (void)args, (void)err;
    *out = json_deep_copy(s->config);
    return 0;
}

#define WORD MC_VERB_WORD
#define REPL MC_VERB_REPL
const struct mc_verb mc_verbs[] = {
    {"status", "[MODEL]", "state, model and load", "engine.status", WORD, v_status},
    {"stats", "[MODEL]", "counters since the start", "engine.stats", WORD, v_stats},
    {"models", "", "what is served", "engine.models", 0, v_models},
    {"kv", "[MODEL]", "KV pages", "kv.stats", WORD, v_kv},
    {"kv.dump", "PAGE [LAYER | indexN] [RANK] [MODEL]", "a KV page's bytes, of one layer",
     "kv.dump", REPL, v_kv_dump},
    {"pin", "PROMPT [SECONDS] [TENANT] [MODEL]", "keep the KV pages of a prompt", "kv.pin", WORD,
     mc_pins_pin},
    {"unpin", "ID [MODEL]", "let them go", "kv.unpin", WORD, mc_pins_unpin},
    {"pins", "", "what is kept", "kv.pins", WORD, mc_pins_list},
    {"cached", "PROMPT [TENANT] [MODEL]", "tokens of a prompt that would be found", "kv.cached",
     WORD, mc_pins_cached},
    {"seqs", "", "live sequences", "seqs", WORD, v_seqs},
    {"why", "ID", "a request's life: what came when, and why it waited", "why", WORD,
     mc_look_why},
    {"top", "[MODEL]", "sequences, lanes, pages and steps at a glance", "top", WORD | REPL,
     mc_look_top},
    {"cancel", "ID [WHY]", "end a sequence or all of a request", "cancel", WORD, v_cancel},
    {"drain", "[SECONDS]", "finish open requests, then end the server", "engine.drain",
     WORD | REPL, v_drain},
    {"set", "KEY VALUE", "change a live setting", "engine.set", WORD | REPL, v_set},
    {"log", "[UNIT] [LEVEL]", "change a log level; alone: the levels", "log.level", WORD, v_log},
    {"reload", "", "load the policies and API keys again", "policy.reload", WORD | REPL, v_reload},
    {"rollback", "", "go back to the policies before", "policy.rollback", WORD | REPL,
     v_rollback},
    {"policy.list", "", "what runs", "policy.list", REPL, v_list},
    {"policy.check", "[PATH]", "try the files without running them", "policy.check", REPL,
     v_check},
    {"policy.diff", "[FROM] [TO]", "what differs between generations, or on disk",
     "policy.diff", REPL, v_diff},
    {"policy.shadow", "[PATH | off]", "a candidate plans beside what runs", "policy.shadow",
     REPL, v_shadow},
    {"config", "", "the settings", NULL, 0, v_config},
    {0},
};

int mc_verb_run(struct mc_server *s, const char *name, const json_t *args, json_t **out,
                struct mc_err *err)
{
    const struct mc_verb *v;

    *out = NULL;
    for (v = mc_verbs; v->name; v++)
        if (strcmp(v->name, name) == 0)
            return v->run(s, args, out, err);
    return mc_fail_param(err, MC_ENOENT, "verb", "there is no verb '%.40s'", name);
}
