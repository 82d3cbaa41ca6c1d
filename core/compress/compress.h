/* compress.h - writes a compressed checkpoint from one that the loader reads.
 *
 * The source is a Hugging Face directory in any format of core/weights; a recipe says
 * what each matrix becomes. The result is a directory that this program and others load:
 * shards of safetensors (5 GB, unless told otherwise), named and described as
 * compressed-tensors does (matrices in fp8 blocks alone: as DeepSeek does,
 * weight_scale_inv), and every other small file of the source. Files are written in order
 * and config.json last, so that what is unfinished does not load; a run that was killed
 * goes on at the first shard that is not whole, with the same bytes as a run that was
 * not, whatever the number of threads. OWNS nothing afterwards. THREAD: one; it starts
 * its own. */
#ifndef MC_COMPRESS_COMPRESS_H
#define MC_COMPRESS_COMPRESS_H

#include <jansson.h>

#include "core/base/err.h"
#include "core/compress/recipe.h"
#include "kernels/kernels.h"

struct mc_ckpt;

/* What became of the matrices of one role, format by format. */
struct mc_press_class {
    enum mc_role role;
    char from[16], to[16];
    int64_t n_matrix, n_weight; /* weights: elements */
    uint64_t from_bytes, to_bytes;
    struct mc_loss loss; /* zero for what was kept */
};
enum { MC_PRESS_CLASSES = 64 };

struct mc_press_report {
    struct mc_press_class cls[MC_PRESS_CLASSES];
    int n_cls;
    uint64_t from_bytes, to_bytes; /* all tensors */
    int n_shard, n_before; /* n_before: shards that an earlier run had written */
};

struct mc_press {
    const struct mc_ckpt *src;
    const struct mc_recipe *recipe;
    const char *recipe_name; /* for the record in DST */
    int jobs;                /* threads; 0: one a core */
    uint64_t shard_bytes;    /* at most, save for a larger matrix; 0: 5 GB */
    /* Per column of a module's input, how much its error counts; NULL: all alike. */
    const float *(*importance)(void *ctx, const char *module, int32_t columns);
    const json_t *calibration; /* what the record is to say of it; NULL: nothing */
    void *ctx;
    /* Called from the main thread about once a second and at the end. */
    void (*progress)(void *ctx, uint64_t done, uint64_t all, int shard, int n_shard);
};

/* What would be done, without reading a weight: fills the report (no losses). line is
 * called for each matrix. */
struct mc_press_line {
    const char *module, *from;
    int32_t n, k;
    enum mc_role role;
    struct mc_target to;
    uint64_t from_bytes, to_bytes;
};
int mc_press_explain(const struct mc_press *p,
                     void (*line)(void *, const struct mc_press_line *), void *ctx,
                     struct mc_press_report *out, struct mc_err *err);

/* dst: a directory that is not there yet, or that an earlier run of the same began. */
int mc_press_run(const struct mc_press *p, const char *dst, struct mc_press_report *out,
                 struct mc_err *err);

#endif
