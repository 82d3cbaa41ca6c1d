/* admin.c - the table of verbs, and those of the server and its policies. OWNS nothing.
 * THREAD: any. */
#include "core/serve/admin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "core/serve/args.h"
#include "core/serve/look.h"
#include "core/serve/models.h"
#include "core/serve/pins.h"
#include "core/serve/seqs.h"

/* ---- the server -------------------------------------------------------------------- */

static int v_drain(struct mc_server *s, const json_t *args, json_t **out,
                   struct mc_err *err)
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

static int v_set(struct mc_server *s, const json_t *args, json_t **out,
                 struct mc_err *err)
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

static int v_log(struct mc_server *s, const json_t *args, json_t **out,
                 struct mc_err *err)
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
        return mc_fail_param(
            err, MC_EARG, "level",
            "no log level '%.40s': there are debug, info, warn, error and off, "
            "alone or behind a unit (http=debug)",
            level);
    rc = mc_log_set(unit, (enum mc_log_level)code);
    if (rc < 0)
        return mc_fail_param(err, rc, "unit", "no level for the unit '%.40s'", unit);
    *out = json_pack("{s:s, s:s}", "unit", unit ? unit : "all", "level", level);
    return 0;
}

/* ---- policies ---------------------------------------------------------------------- */

static int need_policies(const struct mc_server *s, struct mc_err *err)
{
    return s->policies ? 0 : mc_fail(err, MC_ELOADING, "policies are not loaded yet");
}

static int v_reload(struct mc_server *s, const json_t *args, json_t **out,
                    struct mc_err *err)
{
    int rc = need_policies(s, err);

    (void)args;
    if (rc == 0 && s->keys)
        rc = mc_keys_reload(s->keys, err);
    if (rc == 0 && s->admin_keys)
        rc = mc_keys_reload(s->admin_keys, err);
    return rc < 0 ? rc : s->policies->reload(s->policies_self, out, err);
}

static int v_rollback(struct mc_server *s, const json_t *args, json_t **out,
                      struct mc_err *err)
{
    int rc = need_policies(s, err);

    (void)args;
    return rc < 0 ? rc : s->policies->rollback(s->policies_self, out, err);
}

static int v_list(struct mc_server *s, const json_t *args, json_t **out,
                  struct mc_err *err)
{
    int rc = need_policies(s, err);

    (void)args;
    return rc < 0 ? rc : s->policies->list(s->policies_self, out, err);
}

static int v_check(struct mc_server *s, const json_t *args, json_t **out,
                   struct mc_err *err)
{
    int rc = need_policies(s, err);

    return rc < 0 ? rc
                  : s->policies->check(s->policies_self, mc_arg_text(args, 0), out, err);
}

static int v_diff(struct mc_server *s, const json_t *args, json_t **out,
                  struct mc_err *err)
{
    int rc = need_policies(s, err);

    return rc < 0 ? rc : s->policies->diff(s->policies_self, mc_arg_text(args, 0),
                                           mc_arg_text(args, 1), out, err);
}

static int v_shadow(struct mc_server *s, const json_t *args, json_t **out,
                    struct mc_err *err)
{
    int rc = need_policies(s, err);

    return rc < 0 ? rc
                  : s->policies->shadow(s->policies_self, mc_arg_text(args, 0), out, err);
}

static int v_config(struct mc_server *s, const json_t *args, json_t **out,
                    struct mc_err *err)
{
    (void)args, (void)err;
    *out = json_deep_copy(s->config);
    return 0;
}

#define WORD MC_VERB_WORD
#define REPL MC_VERB_REPL
const struct mc_verb mc_verbs[] = {
    {"status", "[MODEL]", "state, model and load", "engine.status", WORD,
     mc_models_status},
    {"stats", "[MODEL]", "counters since the start", "engine.stats", WORD,
     mc_models_stats},
    {"models", "", "what is served", "engine.models", 0, mc_models_list},
    {"kv", "[MODEL]", "KV pages", "kv.stats", WORD, mc_models_kv},
    {"kv.dump", "PAGE [LAYER | indexN] [RANK] [MODEL]", "a KV page's bytes, of one layer",
     "kv.dump", REPL, mc_models_kv_dump},
    {"pin", "PROMPT [SECONDS] [TENANT] [MODEL]", "keep the KV pages of a prompt",
     "kv.pin", WORD, mc_pins_pin},
    {"unpin", "ID [MODEL]", "let them go", "kv.unpin", WORD, mc_pins_unpin},
    {"pins", "", "what is kept", "kv.pins", WORD, mc_pins_list},
    {"cached", "PROMPT [TENANT] [MODEL]", "tokens of a prompt that would be found",
     "kv.cached", WORD, mc_pins_cached},
    {"seqs", "", "live sequences", "seqs", WORD, mc_seqs_list},
    {"why", "ID", "a request's life: what came when, and why it waited", "why", WORD,
     mc_look_why},
    {"top", "[MODEL]", "sequences, lanes, pages and steps at a glance", "top",
     WORD | REPL, mc_look_top},
    {"cancel", "ID [WHY]", "end a sequence or all of a request", "cancel", WORD,
     mc_seqs_cancel},
    {"drain", "[SECONDS]", "finish open requests, then end the server", "engine.drain",
     WORD | REPL, v_drain},
    {"set", "KEY VALUE", "change a live setting", "engine.set", WORD | REPL, v_set},
    {"log", "[UNIT] [LEVEL]", "change a log level; alone: the levels", "log.level", WORD,
     v_log},
    {"reload", "", "load the policies and API keys again", "policy.reload", WORD | REPL,
     v_reload},
    {"rollback", "", "go back to the policies before", "policy.rollback", WORD | REPL,
     v_rollback},
    {"policy.list", "", "what runs", "policy.list", REPL, v_list},
    {"policy.check", "[PATH]", "try the files without running them", "policy.check", REPL,
     v_check},
    {"policy.diff", "[FROM] [TO]", "what differs between generations, or on disk",
     "policy.diff", REPL, v_diff},
    {"policy.shadow", "[PATH | off]", "a candidate plans beside what runs",
     "policy.shadow", REPL, v_shadow},
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
