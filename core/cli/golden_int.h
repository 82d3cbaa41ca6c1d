/* golden_int.h - between the files that hold golden files against a model.
 *
 * OWNS nothing. THREAD: main. */
#ifndef MC_CLI_GOLDEN_INT_H
#define MC_CLI_GOLDEN_INT_H

#include "core/cli/golden.h"
#include "core/model/solo.h"
#include "core/weights/weights.h"

enum { MC_GOLDEN_ROWS = 256, MC_GOLDEN_OUTS = 64 }; /* of one run */

struct mc_golden_tol {
    bool by_kl; /* else by difference */
    double max, mean;
};

struct mc_golden_job {
    struct mc_golden *g;
    struct mc_solo *solo;
    struct mc_golden_tol tol;
    int over, files;
};

/* What was found in one file. */
struct mc_golden_found {
    double max_abs, sum_abs, n_abs;
    double kl, n_kl, top1;
    double worst; /* difference beyond what is allowed, at most 0 when all is well */
};

/* A tensor of this dtype, or NULL; *n is its element count, *last its last dimension. */
const void *mc_golden_tensor(const struct mc_ckpt *c, const char *dtype, int64_t *n,
                             int64_t *last, const char *fmt, int i, int j);
/* The verdict on one file. */
void mc_golden_say(struct mc_golden_job *r, const char *file, bool ok, const char *fmt,
                   ...) __attribute__((format(printf, 4, 5)));

/* ---- golden_logits.c ---- */
int32_t mc_golden_argmax(const float *x, int64_t n);
/* One row of logits against its golden; a NaN is an infinite difference. */
void mc_golden_compare(struct mc_golden_found *f, const float *got, const float *want,
                       int64_t v, double allowed);
bool mc_golden_within(const struct mc_golden_job *r, const struct mc_golden_found *f);

int mc_golden_logits(struct mc_golden_job *r, const char *file, struct mc_err *err);
int mc_golden_greedy(struct mc_golden_job *r, const char *file, struct mc_err *err);

/* ---- golden_layers.c ---- */

/* Expert or index choices against theirs: how many rows there were, how many were too
 * close to call, and how many differ of the others. */
struct mc_golden_sets {
    int64_t rows, close, wrong;
    double weights; /* largest difference of experts' weights */
};
/* Of what the layer just run chose, prompt i of file c. */
void mc_golden_choices(struct mc_golden_job *r, const struct mc_ckpt *c, int i,
                       int32_t layer, struct mc_golden_sets *experts,
                       struct mc_golden_sets *index);
int mc_golden_layers(struct mc_golden_job *r, const char *file, struct mc_err *err);

/* golden_draft.c, golden_text.c */
int mc_golden_drafts(struct mc_golden_job *r, const char *file, struct mc_err *err);
int mc_golden_tokenizer(struct mc_golden_job *r, const char *file, struct mc_err *err);
int mc_golden_chats(struct mc_golden_job *r, const char *file, struct mc_err *err);

#endif
