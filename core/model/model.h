/* model.h - a loaded model on a backend, and one forward pass over ragged rows.
 *
 * A model is its checked config and its weights in run layouts. A pass is what one step
 * needs besides: activation buffers and the params structs of every operation, bound to
 * fixed addresses once, so that running a pass only enqueues. Families share this: a
 * family is a loader of its tensors and a list of operations (dense.c).
 * OWNS weights and buffers. THREAD: open and close one; run: the engine's. */
#ifndef MC_MODEL_MODEL_H
#define MC_MODEL_MODEL_H

#include "core/base/err.h"
#include "core/model/config.h"
#include "core/model/memory.h"
#include "kernels/kernels.h"

struct mc_ckpt;

struct mc_layer {
    float *attn_norm, *mlp_norm; /* [H] */
    struct mc_w qkv[3];          /* [h*d,H] [hk*d,H] [hk*d,H] */
    float *qkv_bias[3];          /* or NULL */
    float *q_norm, *k_norm;      /* [d] or NULL */
    struct mc_w o;               /* [H,h*d] */
    struct mc_w gate, up, down;  /* [I,H] [I,H] [H,I] */
};

struct mc_model {
    struct mc_backend *be;
    struct mc_config cfg;
    int32_t n_real;        /* ids >= n_real are padding rows of the vocabulary */
    struct mc_w embed, head; /* [V,H]; head is embed when tied */
    float *norm, *inv_freq; /* [H], [d/2] */
    float rope_mul;
    struct mc_layer *layer;
    uint64_t body_bytes,
        head_bytes; /* weight bytes that a pass reads; with sampled rows */
    uint64_t weight_bytes;           /* resident */
    struct mc_mem mem;               /* what it owns on the device */
};

/* Loads everything onto the backend. n_real: the tokenizer's ids, at most cfg.vocab. The
 * checkpoint may be closed afterwards. The backend must outlive the model. */
int mc_model_open(struct mc_backend *be, const struct mc_ckpt *c,
                  const struct mc_config *cfg, int32_t n_real, struct mc_model *out,
                  struct mc_err *err);
void mc_model_close(struct mc_model *m);

/* Capacities of a pass. Rows are [decode | prefill]; a sequence has one decode row, so
 * decode rows are at most seqs. */
struct mc_pass_caps {
    int32_t rows, seqs, outs;
    int32_t context; /* longest context in tokens */
};

/* Device buffers shared by a pass and whoever feeds it. */
struct mc_step_mem {
    struct mc_rows rows; /* device arrays; see mc_rows_bind */
    struct mc_kv kv;
    struct mc_slot *slots;   /* [n_slot] */
    uint16_t *counts;        /* [n_slot][V] */
    struct mc_bias *bias;    /* [n_slot][MC_MAX_BIAS] */
    uint32_t *masks;         /* ban sets, [MC_MAX_SETS][ceil V/32] */
    int32_t *eos;            /* [8] */
    float *logits, *raw, *stat; /* [outs, V] [outs, V] [outs, 4] */
    struct mc_out *out;      /* [outs] */
};

/* Bytes of the row arrays for these capacities, and the arrays in a block of that size:
 * staging and device blocks have the same layout. */
size_t mc_rows_bytes(int32_t cap, int32_t cap_seq, int32_t cap_out);
struct mc_rows mc_rows_bind(void *base, int32_t cap, int32_t cap_seq, int32_t cap_out);

struct mc_pass;
int mc_pass_open(const struct mc_model *m, const struct mc_pass_caps *caps,
                 const struct mc_step_mem *mem, struct mc_pass **out, struct mc_err *err);
void mc_pass_close(struct mc_pass *p);

/* Enqueues the forward graph's operations: embedding to f32 logits [outs, V] in mem.
 * on_layer (NULL in service) is called after each layer's operations with the layer's
 * index, -1 after the embedding, n_layer after the final norm: eval's window into the
 * residual stream, which it reads after waiting on the stream itself. */
struct mc_pass_watch {
    void (*on_layer)(void *ctx, int32_t layer);
    void *ctx;
};
int mc_pass_forward(struct mc_pass *p, struct mc_stream *s,
                    const struct mc_pass_watch *w);
/* The residual stream [rows, H] and the final norm [rows, H], row type; device memory. */
const void *mc_pass_residual(const struct mc_pass *p);
const void *mc_pass_norm(const struct mc_pass *p);
/* Enqueues the sample graph: chain, sample, commit to ring (host-visible [outs]). */
int mc_pass_sample(struct mc_pass *p, struct mc_stream *s, struct mc_out *ring);

enum { MC_MAX_SETS = 64 };

#endif
