/* report.c - what a benchmark measured, for people and as JSON.
 *
 * Owns the lists until the end. THREAD: main. */
#include <stdio.h>

#include "core/cli/bench.h"

void mc_report_begin(struct mc_report *r, const char *command, bool json)
{
    *r = (struct mc_report){.command = command, .json = json, .flat = json_object(),
                            .rows = json_array()};
}

void mc_report_add(struct mc_report *r, const char *name, double value, const char *unit,
                   const char *mark)
{
    json_object_set_new(r->flat, name, json_real(value));
    json_array_append_new(r->rows, json_pack("{s:s, s:f, s:s, s:s?, s:s}", "name", name,
                                             "value", value, "unit", unit, "mark", mark,
                                             "command", r->command));
    if (r->json)
        return;
    printf("  %-34s %12.6g %-10s %s\n", name, value, unit, mark ? mark : "");
    fflush(stdout); /* a row takes its time: a pipe shows each as it is done */
}

void mc_report_end(struct mc_report *r)
{
    json_object_set(r->flat, "rows", r->rows);
    if (r->json) {
        json_dumpf(r->flat, stdout, JSON_INDENT(2));
        printf("\n");
    }
    json_decref(r->flat);
    json_decref(r->rows);
}
