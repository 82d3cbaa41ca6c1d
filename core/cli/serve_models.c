/* serve_models.c - the models of `mascon serve`: their names, opening and closing.
 *
 * OWNS nothing: what it opens is the server's. THREAD: main; open on the loading thread. */
#include <stdio.h>
#include <string.h>

#include "core/base/log.h"
#include "core/cli/cli.h"
#include "core/cli/serve.h"

enum { TOK_THREADS = 2, RESIZE_S = 10 };

/* NAME=PATH, else the path's basename. */
void mc_model_name(const char *arg, const char *given, char *name, size_t cap,
                   const char **path)
{
    const char *eq = strchr(arg, '='), *slash = strchr(arg, '/'), *base;
    size_t n;

    *path = arg;
    if (eq && eq > arg && (!slash || eq < slash)) {
        *path = eq + 1;
        snprintf(name, cap, "%.*s", (int)(eq - arg), arg);
    } else {
        for (n = strlen(arg); n > 1 && arg[n - 1] == '/'; n--)
            ;
        for (base = arg + n; base > arg && base[-1] != '/'; base--)
            ;
        snprintf(name, cap, "%.*s", (int)(arg + n - base), base);
    }
    if (given && *given)
        snprintf(name, cap, "%s", given);
}

/* ---- names ------------------------------------------------------------------------- */

static bool is_served(const struct mc_server *s, const char *name)
{
    for (int i = 0; i < s->n_model; i++)
        if (strcmp(s->model[i].id, name) == 0)
            return true;
    return false;
}

/* Shares of memory go to models that there are. */
static int check_shares(const struct mc_server *s, const struct mc_settings *set,
                        struct mc_err *err)
{
    char name[128];
    int64_t bytes;
    int rc = 0;

    for (int i = 0; i < s->n_model && rc == 0; i++)
        rc = mc_settings_share(set, MC_SETTING_kv_memory, s->model[i].id, s->n_model,
                               &bytes, err);
    for (int i = 0; rc == 0 && mc_settings_share_name(set, MC_SETTING_kv_memory, i, name,
                                                      sizeof name); i++)
        if (!is_served(s, name))
            rc = mc_fail_param(err, MC_EARG, "kv_memory",
                               "kv_memory: there is no model '%s'", name);
    return rc;
}

int mc_models_name(struct mc_server *s, const struct mc_settings *set,
                   const char *const *args, int n, const char **paths, struct mc_err *err)
{
    char name[sizeof s->model[0].id];

    if (n > 1 && *set->name)
        return mc_fail_param(err, MC_EARG, "name",
                             "--name is for one model: of several, say "
                             "NAME=PATH");
    for (int i = 0; i < n; i++) {
        mc_model_name(args[i], set->name, name, sizeof name, &paths[i]);
        if (is_served(s, name))
            return mc_fail_param(err, MC_EARG, "model",
                                 "two models are called '%s': give "
                                 "each a NAME=PATH of its own",
                                 name);
        memcpy(s->model[s->n_model++].id, name, sizeof name);
    }
    if (n > 1 && *set->prefill_model)
        return mc_fail_param(err, MC_EARG, "prefill_model",
                             "--prefill-model reads the prompts "
                             "of one model");
    if (n > 1 && *set->record)
        return mc_fail_param(err, MC_EUNSUP, "record",
                             "--record records one model's server");
    return check_shares(s, set, err);
}

/* ---- opening and closing ----------------------------------------------------------- */

/* The model's memory for pages is both's, evenly. */
static int pair(struct mc_engine *e, const struct mc_settings *set, struct mc_err *err)
{
    struct mc_engine *reader = NULL;
    int rc = mc_cli_engine(set, set->prefill_model, &reader, err);

    if (rc < 0)
        return mc_err_while(err, "loading the prefill model");
    rc = mc_engine_pair(e, reader, err);
    if (rc < 0)
        mc_engine_close(reader);
    return rc;
}

static int open_one(struct mc_served *m, int n, const struct mc_settings *set,
                    const char *path, struct mc_keys *keys, struct mc_err *err)
{
    struct mc_settings own = *set; /* its strings are lent */
    struct mc_engine_status st;
    int rc = mc_settings_share(set, MC_SETTING_kv_memory, m->id, n, &own.kv_memory, err);

    if (*set->prefill_model)
        own.kv_memory /= 2;
    if (rc == 0)
        rc = mc_cli_engine(&own, path, &m->engine, err);
    if (rc == 0 && *set->prefill_model)
        rc = pair(m->engine, &own, err);
    if (rc == 0)
        rc = mc_serve_weights(set, m->engine, keys, err);
    if (rc == 0)
        rc = mc_pump_open(mc_engine_tok(m->engine), &m->pump, err);
    if (rc == 0)
        rc = mc_tokpool_open(mc_engine_tok(m->engine), TOK_THREADS, &m->tokpool, err);
    if (rc < 0)
        return n > 1 ? mc_err_while(err, "loading model '%s'", m->id) : rc;
    mc_engine_status(m->engine, &st);
    mc_tokpool_limit(m->tokpool, st.max_context);
    return 0;
}

int mc_models_open(struct mc_server *s, const struct mc_settings *set,
                   const char *const *paths, struct mc_keys *keys, struct mc_err *err)
{
    int rc = 0;

    for (int i = 0; i < s->n_model && rc == 0; i++)
        rc = open_one(&s->model[i], s->n_model, set, paths[i], keys, err);
    return rc;
}

int mc_models_resize(struct mc_server *s, const struct mc_settings *set,
                     struct mc_err *err)
{
    int rc = check_shares(s, set, err);

    for (int i = 0; i < s->n_model && rc == 0; i++) {
        int64_t bytes = 0;

        rc = mc_settings_share(set, MC_SETTING_kv_memory, s->model[i].id, s->n_model,
                               &bytes, err);
        if (rc == 0)
            rc = mc_engine_set_kv(s->model[i].engine, (uint64_t)bytes, err);
    }
    for (int i = 0; i < s->n_model && rc == 0; i++)
        if (!mc_engine_resized(s->model[i].engine, RESIZE_S))
            mc_warn("serve", "%s: the KV pool still shrinks: sequences hold its pages",
                    s->model[i].id);
    return rc;
}

int mc_models_failed(const struct mc_server *s, struct mc_err *err)
{
    struct mc_engine_status st;

    for (int i = 0; i < s->n_model; i++) {
        mc_engine_status(s->model[i].engine, &st);
        if (!st.failed)
            continue;
        if (err)
            *err = st.fail;
        return st.fail.code;
    }
    return 0;
}

void mc_models_show(const struct mc_server *s)
{
    struct mc_engine_status st;

    for (int i = 0; i < s->n_model; i++) {
        const struct mc_served *m = &s->model[i];

        mc_engine_status(m->engine, &st);
        printf("  model     %s (%s, %.1f MB, %s)\n"
               "  KV        %d tokens, %s; context %d\n",
               m->id, mc_engine_config(m->engine)->family, (double)st.weight_bytes / 1e6,
               st.backend, st.kv_tokens, st.kv, st.max_context);
    }
}
