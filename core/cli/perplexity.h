/* perplexity.h - how well a model predicts a text. See perplexity.c. THREAD: main. */
#ifndef MC_CLI_PERPLEXITY_H
#define MC_CLI_PERPLEXITY_H

#include "core/base/err.h"
#include "core/model/model.h"
#include "core/model/tokenizer.h"

struct mc_perplexity {
    double nll; /* mean, natural log, over the scored tokens */
    int32_t n_token, n_scored, n_window;
};

/* Windows of 512 tokens without BOS, each on its own; its second half is scored. A text of
 * less than one window is refused. */
int mc_perplexity(const struct mc_model *m, const struct mc_tok *tok, enum mc_kv_layout kv,
                  const char *path, struct mc_perplexity *out, struct mc_err *err);

#endif
