/* perplexity.h - how well a model predicts a text, and how near another's predictions are.
 * See perplexity.c. THREAD: main. */
#ifndef MC_CLI_PERPLEXITY_H
#define MC_CLI_PERPLEXITY_H

#include "core/base/err.h"
#include "core/model/ranks.h"
#include "core/model/tokenizer.h"

/* Over the scored tokens, natural logs. */
struct mc_perplexity {
    double nll; /* mean */
    int32_t n_token, n_scored, n_window;
    /* With a reference: */
    double ref_nll;
    double kl, kl_max; /* sum p_ref log(p_ref / p): mean and largest */
    double top1;       /* share whose most likely token is the reference's */
    double top1_clear; /* the same where the reference's best leads by more than 0.25 */
    int32_t n_clear;
};

/* A model and how it stores keys and values. */
struct mc_predictor {
    struct mc_ranks *ranks;
    enum mc_kv_layout kv;
};

/* Windows of 512 tokens without BOS, each on its own; its second half is scored. A text of
 * less than one window is refused, and a reference of another vocabulary. ref: or NULL. */
int mc_perplexity(const struct mc_predictor *of, const struct mc_predictor *ref,
                  const struct mc_tok *tok, const char *path, struct mc_perplexity *out,
                  struct mc_err *err);

#endif
