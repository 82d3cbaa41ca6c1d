/* policy.c - `mascon policy WORD`: what runs, files tried and tested, differences, a start.
 *
 * list and diff ask the server. check asks it too, since it has the model's vocabulary and
 * the step that runs now; where none answers the files are tried in this process. OWNS
 * nothing after it returns. THREAD: main. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/cli/cli.h"
#include "core/cli/client.h"
#include "core/cli/lua_half.h"

#define USAGE "[list | check [PATH] | diff [FROM [TO]] | test [PATH] | " \
              "shadow [PATH | off] | init DIR]"

struct cmd {
    struct mc_args args;
    struct mc_settings set;
    bool json;
    const char *views; /* a recording */
    const struct mc_lua_half *lua;
};

static json_t *texts(const struct cmd *c, int from)
{
    json_t *list = json_array();

    for (int i = from; i < c->args.n_pos; i++)
        json_array_append_new(list, json_string(c->args.pos[i]));
    return list;
}

static int do_list(struct cmd *c)
{
    return mc_cli_call(c->set.socket, "policy.list", json_array(), c->json);
}

/* In the server when one answers, else here. */
static int do_check(struct cmd *c)
{
    const char *given = c->args.n_pos > 1 ? c->args.pos[1] : NULL;
    struct mc_client *client = NULL;
    char path[PATH_MAX];
    json_t *out = NULL, *params;
    struct mc_err err = {0};
    int rc;

    if (given && realpath(given, path)) /* the server runs in another directory */
        given = path;
    if (!c->views && mc_client_open(c->set.socket, &client, &err) == 0) {
        params = json_array();
        if (given)
            json_array_append_new(params, json_string(given));
        rc = mc_client_call(client, "policy.check", params, &out, &err);
        mc_client_close(client);
    } else if (given) {
        rc = c->lua->check(given, c->views, &out, &err);
    } else {
        rc = c->views ? mc_fail(&err, MC_EARG, "policy check --views: which files?")
                      : err.code;
    }
    if (rc == 0)
        mc_cli_show(out, c->json);
    if (rc == 0 && (json_integer_value(json_object_get(out, "starved")) ||
                    json_is_true(json_object_get(out, "stuck"))))
        fprintf(stderr, "mascon: warning: of the shipped arrivals, %d starve under this "
                "scheduler\n", (int)json_integer_value(json_object_get(out, "starved")));
    json_decref(out);
    return rc < 0 ? mc_cli_fail(&err) : 0;
}

static int do_shadow(struct cmd *c)
{
    char path[PATH_MAX];
    json_t *params = texts(c, 1);

    if (c->args.n_pos > 1 && strcmp(c->args.pos[1], "off") != 0 &&
        realpath(c->args.pos[1], path))
        json_array_set_new(params, 0, json_string(path));
    return mc_cli_call(c->set.socket, "policy.shadow", params, c->json);
}

static int do_diff(struct cmd *c)
{
    struct mc_client *client = NULL;
    json_t *out = NULL;
    struct mc_err err = {0};
    int rc = mc_client_open(c->set.socket, &client, &err);

    if (rc == 0)
        rc = mc_client_call(client, "policy.diff", texts(c, 1), &out, &err);
    if (rc == 0 && c->json)
        mc_cli_show(out, true);
    else if (rc == 0 && !json_string_length(json_object_get(out, "text")))
        puts("no difference");
    else if (rc == 0)
        fputs(json_string_value(json_object_get(out, "text")), stdout);
    json_decref(out);
    mc_client_close(client);
    return rc < 0 ? mc_cli_fail(&err) : 0;
}

/* Lines as TAP has them; a failure's reason under its line. */
static int do_test(struct cmd *c)
{
    const char *given = c->args.n_pos > 1 ? c->args.pos[1] : ".";
    char path[PATH_MAX];
    json_t *out = NULL, *row;
    struct mc_err err = {0};
    int failed = 0;
    size_t i;

    if (c->lua->test(realpath(given, path) ? path : given, c->views, &out, &err) < 0)
        return mc_cli_fail(&err);
    json_array_foreach(out, i, row) {
        bool ok = json_is_true(json_object_get(row, "ok"));

        failed += !ok;
        if (c->json)
            continue;
        printf("%s %zu - %s: %s\n", ok ? "ok" : "not ok", i + 1,
               json_string_value(json_object_get(row, "file")),
               json_string_value(json_object_get(row, "name")));
        if (!ok)
            printf("    %s\n", json_string_value(json_object_get(row, "error")));
    }
    if (c->json)
        mc_cli_show(out, true);
    else
        printf("%zu passed, %d failed\n", i - (size_t)failed, failed);
    json_decref(out);
    return failed > 0;
}

/* Writes one file of a new directory; one that is there stays as it is. */
static int put_file(const char *dir, const char *name, const char *text, size_t n)
{
    char path[PATH_MAX], *slash;
    FILE *f;
    bool bad;

    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return errno = ENAMETOOLONG, -1;
    slash = strrchr(path, '/');
    *slash = 0;
    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        return -1;
    *slash = '/';
    f = fopen(path, "wx");
    if (!f)
        return -1;
    bad = fwrite(text, 1, n, f) != n;
    bad |= fclose(f) != 0;
    return bad ? -1 : 0;
}

static int do_init(struct cmd *c)
{
    const char *dir = c->args.n_pos > 1 ? c->args.pos[1] : NULL, *name, *text;
    int made = 0, kept = 0;
    size_t n;

    if (!dir) {
        fprintf(stderr, "mascon: policy init: which directory?\n");
        return 2;
    }
    if (mkdir(dir, 0755) < 0 && errno != EEXIST) {
        fprintf(stderr, "mascon: %s: %s\n", dir, strerror(errno));
        return 1;
    }
    for (int i = 0; (name = c->lua->starter(i, &text, &n)); i++) {
        if (put_file(dir, name, text, n) == 0) {
            made++;
        } else if (errno == EEXIST) {
            kept++;
        } else {
            fprintf(stderr, "mascon: %s/%s: %s\n", dir, name, strerror(errno));
            return 1;
        }
    }
    printf("%s: %d files written%s\n  try them    mascon policy check %s\n"
           "  serve them  mascon serve MODEL --policies %s\n", dir, made,
           kept ? ", those that were there stay as they were" : "", dir, dir);
    return 0;
}

static const struct word {
    const char *name;
    int max; /* arguments */
    int (*run)(struct cmd *c);
} words[] = {
    {"list", 0, do_list},
    {"check", 1, do_check},
    {"diff", 2, do_diff},
    {"shadow", 1, do_shadow},
    {"test", 1, do_test},
    {"init", 1, do_init},
    {0},
};

static int unknown(const char *name)
{
    const char *names[16], *near;
    int n = 0;

    for (; words[n].name; n++)
        names[n] = words[n].name;
    names[n] = NULL;
    near = mc_nearest(name, names);
    fprintf(stderr, "mascon: policy: no word '%.40s'%s%s%s\n", name,
            near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    return 2;
}

int mc_cmd_policy(int argc, char **argv, const struct mc_lua_half *lua)
{
    struct cmd c = {.lua = lua};
    const struct mc_flag flags[] = {
        {"json", NULL, &c.json, "the answer as JSON"},
        {"views", "FILE", &c.views, "check, test: with the views of a recording (in this "
                                    "process)"}, {0}};
    const struct word *w = words;
    int rc;

    c.args = (struct mc_args){.word = "policy", .usage = USAGE, .who = MC_FOR_SOCK,
                              .flags = flags, .max = 3, .set = &c.set};
    rc = mc_args_parse(&c.args, argc, argv, lua);
    if (rc >= 0)
        return rc;
    while (c.args.n_pos && w->name && strcmp(w->name, c.args.pos[0]) != 0)
        w++;
    if (!w->name)
        rc = unknown(c.args.pos[0]);
    else if (c.args.n_pos - 1 > w->max)
        rc = (fprintf(stderr, "mascon: policy %s: one argument too many: '%.60s'\n",
                      w->name, c.args.pos[w->max + 1]),
              2);
    else
        rc = w->run(&c);
    mc_settings_free(&c.set);
    return rc;
}
