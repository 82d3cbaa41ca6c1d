/* bench.h - what the Lua half costs: hooks, reloads, a runaway, memory. For `mascon bench`.
 * OWNS nothing after it returns. THREAD: one that has no limit armed. */
#ifndef MC_LUA_BENCH_H
#define MC_LUA_BENCH_H

#include "core/base/err.h"

/* add: called for each number as it is known; mark as in mc_report_add. */
int mc_lua_bench(void (*add)(void *ctx, const char *name, double value, const char *unit,
                             const char *mark), void *ctx, struct mc_err *err);

#endif
