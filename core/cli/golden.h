/* golden.h - golden files held against a model. See golden.c. THREAD: main. */
#ifndef MC_CLI_GOLDEN_H
#define MC_CLI_GOLDEN_H

#include <stdbool.h>

#include "core/base/err.h"
#include "core/model/ranks.h"
#include "core/model/tokenizer.h"

struct mc_lua_half;

struct mc_golden {
    const char *dir;
    struct mc_ranks *ranks;
    const struct mc_model *model; /* rank 0's */
    const struct mc_tok *tok;
    const struct mc_lua_half *lua; /* renders chat.jsonl */
    enum mc_kv_layout kv;
    bool exact; /* the scalar oracle: absolute tolerances when kv is f32 */
    bool json;
};

/* 0: all within tolerance. 1: some are over. Negative: a file can't be read. */
int mc_golden_run(struct mc_golden *g, struct mc_err *err);
/* chat.jsonl (golden_chat.c): how many conversations it has, how many are rendered
 * otherwise, and the line of the first of those, 0 for none. */
int mc_golden_chat(const struct mc_golden *g, const char *file, size_t *n, size_t *wrong,
                   size_t *first, struct mc_err *err);

#endif
