/* look.c - `mascon why ID` and `mascon top`: the verbs of these names, for people.
 *
 * top draws again and again on a terminal, over what it drew before, until Ctrl-C; to a
 * pipe or a file it writes one picture. Rates are between two looks. OWNS nothing after
 * it returns. THREAD: main. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/cli/cli.h"
#include "core/cli/client.h"

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static const char *text(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

/* ---- why --------------------------------------------------------------------------- */

static void show_event(const json_t *ev)
{
    static const struct {
        const char *key, *text;
    } counts[] = {{"prompt", "prompt tokens"}, {"cached", "tokens were cached"},
                  {"made", "tokens made"}};
    const char *reason, *gap = "";
    json_t *n;

    printf("  %9.3f s  %-15s", number(ev, "t"), text(ev, "what"));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (json_object_get(ev, counts[i].key))
            printf("  %d %s", (int)number(ev, counts[i].key), counts[i].text);
    printf("  (generation %d)\n", (int)number(ev, "generation"));
    if (!json_object_get(ev, "skipped"))
        return;
    printf("  %9s    skipped %d steps: ", "", (int)number(ev, "skipped"));
    json_object_foreach(json_object_get(ev, "why"), reason, n) {
        printf("%s%s %d", gap, reason, (int)json_integer_value(n));
        gap = ", ";
    }
    printf("\n");
}

static void show_lives(const json_t *lives)
{
    json_t *life, *ev;
    size_t i, k;

    json_array_foreach(lives, i, life) {
        printf("%s  %s%s%s\n", text(life, "id"), text(life, "request"),
               json_object_get(life, "end") ? "  ended: " : "", text(life, "end"));
        json_array_foreach(json_object_get(life, "events"), k, ev)
            show_event(ev);
    }
}

int mc_cmd_why(int argc, char **argv, const struct mc_lua_half *lua)
{
    struct mc_settings set;
    bool json = false;
    const struct mc_flag flags[] = {{"json", NULL, &json, "the answer as JSON"}, {0}};
    struct mc_args a = {.word = "why", .usage = "ID", .who = MC_FOR_SOCK, .flags = flags,
                        .min = 1, .max = 1, .set = &set};
    struct mc_client *c = NULL;
    json_t *lives = NULL;
    struct mc_err err;
    int rc = mc_args_parse(&a, argc, argv, lua);

    if (rc < 0) {
        rc = mc_client_open(set.socket, &c, &err);
        if (rc == 0)
            rc = mc_client_call(c, "why", json_pack("[s]", a.pos[0]), &lives, &err);
        if (rc < 0)
            rc = mc_cli_fail(&err);
        else if (json)
            mc_cli_show(lives, true);
        else
            show_lives(lives);
        json_decref(lives);
        mc_client_close(c);
    }
    mc_settings_free(&set);
    return rc;
}

/* ---- top --------------------------------------------------------------------------- */

enum { PLAIN_ROWS = 40 };

static volatile sig_atomic_t stop;

static void on_sigint(int sig)
{
    (void)sig;
    stop = 1;
}

/* Lines of sequences that fit below the head. */
static size_t rows_that_fit(bool terminal, size_t used)
{
    struct winsize w;

    if (!terminal)
        return PLAIN_ROWS;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) < 0 || w.ws_row == 0)
        return 15;
    return w.ws_row > used + 1 ? w.ws_row - used - 1 : 1;
}

static double rate(const json_t *now, const json_t *before, const char *key)
{
    double t = number(now, "t") - number(before, "t");

    return t > 0 ? (number(now, key) - number(before, key)) / t : 0;
}

/* Over what was drawn before: on a terminal the rest of each line is erased. */
static void show_top(const json_t *v, const json_t *before, bool terminal)
{
    const json_t *pages = json_object_get(v, "pages"),
                 *lanes = json_object_get(v, "lanes");
    const json_t *seqs = json_object_get(v, "seqs");
    const char *end = terminal ? "\x1b[K\n" : "\n";
    size_t i, fit = rows_that_fit(terminal, 7 + json_array_size(lanes));
    json_t *row;

    printf("%s: %s  policies: generation %d  %.0f steps%s", text(v, "model"),
           text(v, "state"), (int)number(v, "generation"), number(v, "steps"), end);
    printf("tokens/s  %.1f made, %.1f read   steps/s %.1f   last step %.2f ms, planning "
           "%.2f ms%s",
           rate(v, before, "made_tokens"), rate(v, before, "prompt_tokens"),
           rate(v, before, "steps"), number(v, "step_ms"), number(v, "host_ms"), end);
    printf("pages     %d: %d held, %d cached, %d free   preemptions %.0f  starved %.0f  "
           "plans by the built-in %.0f%s", (int)number(pages, "total"),
           (int)number(pages, "held"), (int)number(pages, "cached"),
           (int)number(pages, "free"), number(v, "preemptions"), number(v, "starved"),
           number(v, "plan_fallbacks"), end);
    json_array_foreach(lanes, i, row)
        printf("lane %d    weight %g, %d running, %d waiting, served %.0f%s",
               (int)number(row, "lane"), number(row, "weight"),
               (int)number(row, "running"), (int)number(row, "waiting"),
               number(row, "served"), end);
    printf("%s%-10s %-8s %4s %-12s %7s %7s %8s  %s%s", end, "id", "state", "lane",
           "tenant", "prompt", "made", "age", "request", end);
    json_array_foreach(seqs, i, row) {
        if (i >= fit) {
            printf("... %zu in all%s", json_array_size(seqs), end);
            break;
        }
        printf("%-10s %-8s %4d %-12.12s %7d %7d %7.1fs  %.40s%s", text(row, "id"),
               text(row, "state"), (int)number(row, "lane"), text(row, "tenant"),
               (int)number(row, "n_prompt"), (int)number(row, "n_gen"),
               number(row, "age"), text(row, "request"), end);
    }
}

/* Two looks make one picture. */
static int watch(struct mc_client *c, const char *model, double every, long count,
                 bool json, struct mc_err *err)
{
    bool terminal = isatty(STDOUT_FILENO) && !json;
    json_t *before = NULL, *now = NULL;
    int rc = mc_client_call(c, "top", json_pack("[s*]", model), &before, err);

    for (long i = 0; rc == 0 && !stop && (terminal || i < count); i++) {
        usleep((useconds_t)(every * 1e6));
        rc = mc_client_call(c, "top", json_pack("[s*]", model), &now, err);
        if (rc < 0)
            break;
        fputs(terminal ? i == 0 ? "\x1b[2J\x1b[H" : "\x1b[H" : "", stdout);
        if (json)
            mc_cli_show(now, true);
        else
            show_top(now, before, terminal);
        fputs(terminal ? "\x1b[J" : "", stdout);
        fflush(stdout);
        json_decref(before);
        before = now;
        now = NULL;
    }
    json_decref(before);
    return stop ? 0 : rc;
}

int mc_cmd_top(int argc, char **argv, const struct mc_lua_half *lua)
{
    struct sigaction sa = {.sa_handler = on_sigint};
    struct mc_settings set;
    const char *every = "1", *count = "1";
    bool json = false;
    const struct mc_flag flags[] = {
        {"every", "SECONDS", &every, "between two looks [1]"},
        {"n", "COUNT", &count, "pictures, when not on a terminal [1]"},
        {"json", NULL, &json, "each look as JSON"}, {0}};
    struct mc_args a = {.word = "top", .usage = "[MODEL] [--every SECONDS] [--n COUNT]",
                        .who = MC_FOR_SOCK, .flags = flags, .max = 1, .set = &set};
    struct mc_client *c = NULL;
    struct mc_err err;
    int rc = mc_args_parse(&a, argc, argv, lua);

    if (rc < 0) {
        char *end;
        double s = strtod(every, NULL);
        long n = strtol(count, &end, 10);

        sigaction(SIGINT, &sa, NULL);
        if (!(s >= 0.05 && s <= 3600))
            rc = mc_fail_param(&err, MC_EARG, "every",
                               "--every takes 0.05..3600 seconds");
        else if (*end || n < 1)
            rc = mc_fail_param(&err, MC_EARG, "n", "--n takes a count from 1, not '%s'",
                               count);
        else
            rc = mc_client_open(set.socket, &c, &err);
        if (rc == 0)
            rc = watch(c, a.n_pos ? a.pos[0] : NULL, s, n, json, &err);
        if (rc < 0)
            rc = mc_cli_fail(&err);
        mc_client_close(c);
    }
    mc_settings_free(&set);
    return rc;
}
