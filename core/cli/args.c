/* args.c - command lines: settings and a subcommand's own flags, and --help made of them.
 *
 * OWNS nothing. THREAD: main. An unknown flag is an error that names the nearest. */
#include <stdio.h>
#include <string.h>

#include "core/base/log.h"
#include "core/cli/cli.h"
#include "core/cli/lua_half.h"

enum { NAME_MAX_ = 64 };

/* One flag as found on the command line: a setting or one of the subcommand's. */
struct found {
    int setting;               /* -1: none */
    const struct mc_flag *own; /* NULL: none */
    bool takes;                /* a value follows */
    bool negated;              /* --no-x */
};

static bool takes_value(enum mc_setting_kind kind)
{
    return kind != MC_SET_SWITCH && kind != MC_SET_TRUE;
}

/* "max_context" -> "max-context", "page_tags" -> "no-page-tags". */
static void flag_name(const struct mc_setting *row, char *out, size_t cap)
{
    char *p;

    snprintf(out, cap, "%s%s", row->kind == MC_SET_TRUE ? "no-" : "", row->key);
    for (p = out; *p; p++)
        if (*p == '_')
            *p = '-';
}

static bool find(const struct mc_args *a, const char *name, struct found *out)
{
    const struct mc_flag *f;
    char spelled[NAME_MAX_];
    int i;

    memset(out, 0, sizeof *out);
    out->setting = -1;
    for (f = a->flags; f && f->name; f++) {
        if (strcmp(f->name, name) == 0) {
            out->own = f;
            out->takes = f->arg != NULL;
            return true;
        }
    }
    for (i = 0; i < MC_N_SETTING; i++) {
        if (!(mc_setting_list[i].who & a->who))
            continue;
        flag_name(&mc_setting_list[i], spelled, sizeof spelled);
        if (strcmp(spelled, name) == 0) {
            out->setting = i;
            out->takes = takes_value(mc_setting_list[i].kind);
            return true;
        }
    }
    return false;
}

static int unknown(const struct mc_args *a, const char *arg)
{
    char names[MC_N_SETTING][NAME_MAX_];
    const char *list[MC_N_SETTING + 32], *near;
    const struct mc_flag *f;
    int i, n = 0;

    for (f = a->flags; f && f->name && n < 31; f++)
        list[n++] = f->name;
    for (i = 0; i < MC_N_SETTING; i++) {
        if (!(mc_setting_list[i].who & a->who))
            continue;
        flag_name(&mc_setting_list[i], names[i], sizeof names[i]);
        list[n++] = names[i];
    }
    list[n] = NULL;
    near = mc_nearest(arg + strspn(arg, "-"), list);
    fprintf(stderr, "mascon: %s: unknown flag '%.60s'", a->word, arg);
    if (near)
        fprintf(stderr, "; did you mean '%s%s'?", near[1] ? "--" : "-", near);
    fprintf(stderr, "\n");
    return 2;
}

static void help(const struct mc_args *a)
{
    const struct mc_flag *f;
    char left[96], name[NAME_MAX_];
    int i;

    printf("usage: mascon %s%s%s\n", a->word, *a->usage ? " " : "", a->usage);
    for (f = a->flags; f && f->name; f++) {
        snprintf(left, sizeof left, "%s%s %s", f->name[1] ? "--" : "-", f->name,
                 f->arg ? f->arg : "");
        printf("  %-36s %s\n", left, f->help);
    }
    for (i = 0; i < MC_N_SETTING; i++) {
        const struct mc_setting *row = &mc_setting_list[i];

        if (!(row->who & a->who))
            continue;
        flag_name(row, name, sizeof name);
        snprintf(left, sizeof left, "--%s %s", name,
                 row->kind == MC_SET_INT      ? "N"
                 : takes_value(row->kind)     ? row->limits
                                              : "");
        printf("  %-36s %s%s", left, row->kind == MC_SET_TRUE ? "do not " : "",
               row->help);
        if (*row->def && takes_value(row->kind))
            printf(" [%s]", row->def);
        printf("\n");
    }
}

/* Walks argv once; with apply false only looks for --help and --config. */
static int walk(struct mc_args *a, int argc, char **argv, bool apply, const char **config)
{
    char name[NAME_MAX_];
    struct mc_err err;
    int i;

    for (i = 1; i < argc; i++) {
        const char *arg = argv[i], *eq, *value;
        struct found f;

        if (arg[0] != '-' || !arg[1]) {
            if (apply && a->n_pos >= a->max) {
                fprintf(stderr, "mascon: %s: one argument too many: '%.60s'\n", a->word,
                        arg);
                return 2;
            }
            if (apply)
                a->pos[a->n_pos++] = arg;
            continue;
        }
        if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
            help(a);
            return 0;
        }
        eq = strchr(arg, '=');
        snprintf(name, sizeof name, "%.*s", (int)(eq ? (size_t)(eq - arg) : strlen(arg)),
                 arg);
        if (!find(a, name + (name[1] == '-' ? 2 : 1), &f) ||
            (name[1] != '-') != (name[2] == 0))
            return unknown(a, name);
        value = eq ? eq + 1 : NULL;
        if (f.takes && !value && ++i < argc)
            value = argv[i];
        if (f.takes != (value != NULL)) {
            fprintf(stderr, "mascon: %s: %s %s\n", a->word, name,
                    f.takes ? "needs a value" : "takes no value");
            return 2;
        }
        if (f.setting == MC_SETTING_config)
            *config = value;
        if (!apply)
            continue;
        if (f.own && f.takes)
            *(const char **)f.own->out = value;
        else if (f.own)
            *(bool *)f.own->out = true;
        else if (mc_settings_set(a->set, f.setting, value, MC_FROM_FLAG, name, &err) < 0)
            return mc_cli_fail(&err), 2;
    }
    return -1;
}

int mc_args_parse(struct mc_args *a, int argc, char **argv, const struct mc_lua_half *lua)
{
    const char *config = NULL;
    json_t *table = NULL;
    struct mc_err err;
    int rc;

    a->n_pos = 0;
    if (a->who)
        mc_settings_init(a->set);
    rc = walk(a, argc, argv, false, &config);
    if (rc >= 0)
        return rc;
    if (config) {
        if (lua->table(config, &table, &err) < 0 ||
            mc_settings_file(a->set, table, &err) < 0) {
            json_decref(table);
            mc_err_while(&err, "reading %s", config);
            return mc_cli_fail(&err), 2;
        }
        json_decref(table);
    }
    rc = walk(a, argc, argv, true, &config);
    if (rc >= 0)
        return rc;
    if (a->n_pos < a->min) {
        fprintf(stderr, "mascon: usage: mascon %s %s\n", a->word, a->usage);
        return 2;
    }
    return -1;
}

int mc_cli_fail(const struct mc_err *err)
{
    fprintf(stderr, "mascon: %s\n", err->text);
    return 1;
}

int mc_cli_logs(const struct mc_settings *s, struct mc_err *err)
{
    char copy[1024], *save = NULL, *pair;
    int rc = 0;

    mc_log_json(strcmp(s->log_format, "json") == 0);
    snprintf(copy, sizeof copy, "%s", s->log);
    for (pair = strtok_r(copy, ",", &save); pair && rc == 0;
         pair = strtok_r(NULL, ",", &save)) {
        char *eq = strchr(pair, '=');
        int level = mc_log_level_of(eq ? eq + 1 : pair);

        if (level < 0)
            return mc_fail_param(err, MC_EARG, "log",
                                 "--log: '%.60s' names no level (debug info warn error off)",
                                 pair);
        if (eq)
            *eq = 0;
        rc = mc_log_set(eq ? pair : NULL, (enum mc_log_level)level);
        if (rc < 0)
            return mc_fail_param(err, rc, "log", "--log: no room for the unit '%.60s'",
                                 pair);
    }
    return 0;
}
