/* calibrate.h - how much each column of each matrix matters, seen on a text.
 *
 * A matrix's error in column k is multiplied by the inputs of column k: the mean square
 * of those over a text is the weight that the column's squared error gets when scales are
 * looked for (struct mc_encode.importance). The text goes through the model in windows of
 * 512 tokens; of an expert only rows that were sent to it count, unless these are too few:
 * then the rows of a whole window go through it besides, as its layer has them.
 * Draft layers are not run, so that their columns count alike.
 * OWNS its sums. THREAD: made by one, then read by all. */
#ifndef MC_COMPRESS_CALIBRATE_H
#define MC_COMPRESS_CALIBRATE_H

#include "core/base/err.h"
#include "core/model/ranks.h"
#include "core/model/tokenizer.h"

struct mc_calib;

/* n_token at most so many of the text's tokens are used; less than one window is an
 * error. Host backends only. */
int mc_calib_run(struct mc_ranks *ranks, const struct mc_tok *tok, const char *path,
                 int32_t n_token, struct mc_calib **out, struct mc_err *err);
void mc_calib_free(struct mc_calib *c);

/* [columns], their mean 1; NULL where all inputs were 0, or where the matrix is used in
 * another form than it is stored in (kv_b). Matches mc_press.importance. */
const float *mc_calib_importance(void *calib, const char *module, int32_t columns);

/* What experts saw. each is called for every expert, by the name of its down projection. */
struct mc_calib_seen {
    int32_t n_token;
    int32_t n_expert;          /* experts, over all layers */
    int32_t n_unseen, n_lent;  /* of these: no row was sent there; rows were lent to it */
    int64_t least, most;       /* rows that were sent to an expert */
    double mean;
};
void mc_calib_seen(const struct mc_calib *c, struct mc_calib_seen *out,
                   void (*each)(void *ctx, const char *module, int64_t rows,
                                int64_t lent),
                   void *ctx);

#endif
