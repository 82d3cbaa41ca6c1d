/* golden.h - golden files held against a model. See golden.c. THREAD: main. */
#ifndef MC_CLI_GOLDEN_H
#define MC_CLI_GOLDEN_H

#include <stdbool.h>

#include "core/base/err.h"
#include "core/model/model.h"
#include "core/model/tokenizer.h"

struct mc_lua_half;

struct mc_golden {
    const char *dir;
    const struct mc_model *model;
    const struct mc_tok *tok;
    const struct mc_lua_half *lua;
    enum mc_kv_layout kv;
    bool exact; /* the scalar oracle: absolute tolerances when kv is f32 */
    bool json;
};

/* 0: all within tolerance. 1: some are over. Negative: a file can't be read. */
int mc_golden_run(struct mc_golden *g, struct mc_err *err);

#endif
