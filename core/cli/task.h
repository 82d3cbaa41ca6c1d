/* task.h - how many questions of a task a model answers rightly.
 *
 * A task is a file of JSON lines. Multiple choice: {"context": TEXT, "choices": [TEXT...],
 * "answer": INDEX from 0}: the choice of which the model gives the tokens the largest
 * probability after the context; and, besides, divided by its bytes. Cloze: {"context":
 * TEXT, "answer": TEXT}: right when greedy decoding gives exactly the answer's tokens.
 * THREAD: main. */
#ifndef MC_CLI_TASK_H
#define MC_CLI_TASK_H

#include "core/base/err.h"
#include "core/cli/perplexity.h"
#include "core/model/tokenizer.h"

struct mc_task {
    int32_t n_choice, n_cloze;             /* questions */
    int32_t right_choice, right_per_byte;  /* of n_choice */
    int32_t right_cloze;                   /* of n_cloze */
};

/* An error names the line and the field. */
int mc_task_run(const struct mc_predictor *of, const struct mc_tok *tok, const char *path,
                struct mc_task *out, struct mc_err *err);

#endif
