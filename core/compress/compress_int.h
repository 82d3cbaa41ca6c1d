/* compress_int.h - between the files of core/compress: the plan of a compression.
 *
 * OWNS: a plan its items, outputs and names. THREAD: made by one, then read by all;
 * losses of a piece are its worker's. */
#ifndef MC_COMPRESS_INT_H
#define MC_COMPRESS_INT_H

#include "core/compress/compress.h"
#include "core/model/config.h"
#include "core/weights/weights.h"

enum { MC_PRESS_ROWS = 128 }; /* rows a piece: a row of fp8 blocks */

/* What of an item an output tensor holds. */
enum mc_part { MC_PART_COPY, MC_PART_Q, MC_PART_SCALE, MC_PART_SHAPE, MC_PART_GLOBAL };

/* A tensor of the result. */
struct mc_out_tensor {
    char *name;
    const char *dtype;
    int32_t n_dim;
    int64_t dim[MC_CKPT_DIMS];
    uint64_t bytes, offset; /* in its shard's data */
    enum mc_part part;
    const void *from; /* COPY */
    int32_t item;     /* else: whose */
};

/* A matrix. */
struct mc_item {
    char *module;
    struct mc_disk disk;
    enum mc_role role;
    struct mc_target to;
    uint64_t from_bytes, to_bytes;
    int32_t first, n_out; /* outputs */
    float global;         /* nvfp4, once its largest magnitude is known */
    int32_t pairs;        /* rows of a head that lie pairwise, of which the result has first
                             all firsts, then all seconds; 0: rows are in order */
    bool other_order;     /* AutoAWQ's, AutoGPTQ's: disk is a copy's, see shard.c ... */
    void *own;            /* ... which is here ... */
    int64_t n_left;       /* ... until so many pieces have been read */
    struct mc_loss loss;
};

struct mc_shard {
    int32_t first, n_out;
    uint64_t bytes; /* of data */
    char file[64];
    char *header; /* JSON, padded to 8 */
    size_t n_header;
};

struct mc_plan_of {
    const struct mc_press *p;
    struct mc_item *item;
    int32_t n_item, cap_item;
    struct mc_out_tensor *out;
    int32_t n_out, cap_out;
    struct mc_shard *shard;
    int32_t n_shard;
    bool ct; /* compressed-tensors' names; else DeepSeek's */
    struct mc_config cfg; /* of a GGUF, else not set */
    uint64_t bytes;
};

/* ---- layout.c: what is written where ---- */
int mc_layout(const struct mc_press *p, struct mc_plan_of *plan, struct mc_err *err);
void mc_layout_free(struct mc_plan_of *plan);
void mc_layout_report(const struct mc_plan_of *plan, struct mc_press_report *out);
/* Adds what an item became to the class that it belongs to. */
void mc_layout_add(const struct mc_item *it, struct mc_press_report *out);

/* ---- describe.c: the source's config with the result's quantization_config; a new
 * reference ---- */
json_t *mc_describe(const struct mc_plan_of *plan, struct mc_err *err);

/* ---- from_gguf.c: the files of a directory that a GGUF has none of; new references - */
/* The config, with what else the file says of frequencies. */
int mc_from_gguf_read(const struct mc_ckpt *c, struct mc_config *cfg, struct mc_err *err);
json_t *mc_from_gguf_config(const struct mc_config *cfg);
json_t *mc_from_gguf_sampling(const struct mc_config *cfg); /* NULL: it says nothing */

/* ---- shard.c ---- */
/* Sets the items' factors when any becomes nvfp4, which reads all that do. */
int mc_shard_measure(struct mc_plan_of *plan, struct mc_err *err);
/* Writes one shard under its name, whole or not at all. */
int mc_shard_write(const struct mc_plan_of *plan, int32_t shard, int dir,
                   struct mc_err *err);
/* Whether the file is there with this header and length. */
bool mc_shard_done(const struct mc_shard *s, int dir);

#endif
