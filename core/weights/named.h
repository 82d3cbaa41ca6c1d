/* named.h - one tensor of a checkpoint by its name, as rows of f32: for who looks at weights.
 *
 * OWNS the checkpoint, open, and what unpacking took. THREAD: one at a time; it reads files. */
#ifndef MC_WEIGHTS_NAMED_H
#define MC_WEIGHTS_NAMED_H

#include "core/base/err.h"
#include "kernels/kernels.h"

struct mc_named {
    struct mc_ckpt *ckpt;
    struct mc_disk d; /* its rows; of a vector one */
    void *own;
    int n_dim; /* 1 or 2 */
};

/* A vector's or a matrix's whole name ("model.norm.weight"); of a packed matrix that which it
 * would have unpacked. MC_ENOENT names one that is there and begins alike. */
int mc_named_open(const char *path, const char *name, struct mc_named *out,
                  struct mc_err *err);
void mc_named_close(struct mc_named *w);
/* Rows [from, from+n), unpacked. */
int mc_named_rows(const struct mc_named *w, int32_t from, int32_t n, float *out,
                  struct mc_err *err);
/* MC_BF16 or MC_F16 where that holds what is stored, else MC_F32. */
int mc_named_type(const struct mc_named *w);

#endif
