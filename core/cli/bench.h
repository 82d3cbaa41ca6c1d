/* bench.h - the kinds of `mascon bench`, and how one reports what it measured.
 * OWNS nothing. THREAD: main. */
#ifndef MC_CLI_BENCH_H
#define MC_CLI_BENCH_H

#include <jansson.h>

#include "core/cli/cli.h"

/* argv[0] is the kind's word. */
int mc_bench_lua(int argc, char **argv, const struct mc_lua_half *lua);
int mc_bench_kv(int argc, char **argv, const struct mc_lua_half *lua);
int mc_bench_weights(int argc, char **argv, const struct mc_lua_half *lua);

/* ---- report.c ---- */

/* Numbers by name. People see a line as soon as it is known, a program one JSON object at
 * the end: each number flat, and rows[] of {name, value, unit, mark, command}. */
struct mc_report {
    const char *command; /* what makes these numbers again */
    bool json;
    json_t *flat, *rows;
};

void mc_report_begin(struct mc_report *r, const char *command, bool json);
/* mark: what is to be reached, or NULL. */
void mc_report_add(struct mc_report *r, const char *name, double value, const char *unit,
                   const char *mark);
void mc_report_end(struct mc_report *r);

#endif
