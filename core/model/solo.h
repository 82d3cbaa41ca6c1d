/* solo.h - one sequence run by hand through a pass: no engine, no policy.
 *
 * For eval and benchmarks, which want logits at chosen positions, the residual stream
 * between layers, or a pass's time. OWNS its passes, KV pages and streams, one a rank;
 * reads results from device memory, so it takes host backends only. THREAD: one. */
#ifndef MC_MODEL_SOLO_H
#define MC_MODEL_SOLO_H

#include "core/model/crew.h"

struct mc_solo;

struct mc_solo_opts {
    int32_t context; /* tokens at most */
    int32_t rows;    /* tokens a run at most */
    int32_t outs;    /* logit rows a run at most */
    enum mc_kv_layout kv;
};

int mc_solo_open(struct mc_ranks *r, const struct mc_solo_opts *o, struct mc_solo **out,
                 struct mc_err *err);
void mc_solo_close(struct mc_solo *s);
/* Back to position 0 with clean pages. */
void mc_solo_reset(struct mc_solo *s);
/* Goes on where another is, with its pages: of two models that store the same ones. It has
 * run something itself. */
void mc_solo_take(struct mc_solo *s, const struct mc_solo *from);
/* The next n ids (at most rows). out_row: [n_out] rows of these n whose logits are
 * wanted. *logits: f32 [n_out, V], valid until the next run. A watch may wait on
 * mc_solo_wait. */
int mc_solo_run(struct mc_solo *s, const int32_t *ids, int32_t n, const int32_t *out_row,
                int32_t n_out, const struct mc_pass_watch *watch, const float **logits,
                struct mc_err *err);
/* The draft layer over n tokens at positions pos.., each with the hidden state [H] before
 * it; hidden NULL: those that the last run left, row by row. Needs a model with one. */
int mc_solo_draft(struct mc_solo *s, const int32_t *ids, int32_t n, int32_t pos,
                  const void *hidden, const int32_t *out_row, int32_t n_out,
                  const struct mc_pass_watch *watch, const float **logits,
                  struct mc_err *err);
/* Until rank 0 has run what is enqueued on it; its pass. */
int mc_solo_wait(struct mc_solo *s);
const struct mc_pass *mc_solo_pass(const struct mc_solo *s);

#endif
