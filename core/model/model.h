/* model.h - a loaded model on a backend, and one forward pass over ragged rows.
 *
 * A model is its checked config and its weights in run layouts. A pass is what one step
 * needs besides: activation buffers and the params structs of every operation, bound to
 * fixed addresses once, so that running a pass only enqueues. Families differ in their
 * config alone: it says of each layer which tensors it has (tensors.h) and which blocks
 * run it (pass_int.h). OWNS weights and buffers. THREAD: open and close one; run: the
 * engine's. */
#ifndef MC_MODEL_MODEL_H
#define MC_MODEL_MODEL_H

#include <stdatomic.h>

#include "core/base/err.h"
#include "core/model/config.h"
#include "core/model/memory.h"
#include "core/model/tensors.h"
#include "kernels/kernels.h"

struct mc_ckpt;

enum { MC_MAX_SETS = 64 }; /* vocabulary sets on the device at once */

/* Rows of a chunk from which latents are better expanded (--mla-expand): see attn_mla.c. 0: at
 * no length, or this backend can't. */
enum { MC_EXPAND_LEAST = 192 };
int32_t mc_expand_from(const struct mc_backend *be, const struct mc_config *c);

/* Weights of a layer, by the enums of tensors.h; what it lacks is zero. The ends of the
 * model, embedding, head and last norm, are kept in one too. */
struct mc_layer {
    struct mc_w w[MC_N_MATRIX];
    float *v[MC_N_VECTOR];
    struct mc_ws w_uk, w_uv;             /* MLA: h matrices [c,nope], [v,c] */
    struct mc_ws e_gate, e_up, e_down;   /* E matrices */
    int32_t index; /* which index of a page is its own, or that of the layer it follows */
};

struct mc_model {
    struct mc_backend *be;
    struct mc_config cfg;
    struct mc_slice slice;
    struct mc_span heads, kv_heads; /* this rank's */
    int32_t row0;          /* first row of this rank's part of the vocabulary */
    int32_t n_real;        /* ids >= n_real are padding rows of the vocabulary */
    struct mc_layer end;
    struct mc_layer *layer; /* [n_layer + n_mtp] */
    float *inv_freq;       /* [rotated dims / 2] */
    float rope_mul;
    float *k_scale, *v_scale; /* [n_layer + n_mtp] static scales of the cache, or NULL */
    uint64_t body_bytes;   /* weight bytes that every pass reads (of experts: those of one
                              row) ... */
    uint64_t head_bytes;   /* ... and those that one with sampled rows reads besides */
    uint64_t weight_bytes; /* resident */
    atomic_uint n_packed;  /* matrices so far: how loading gets on, for any thread to see */
    struct mc_mem mem;     /* what it owns on the device */
};

/* Loads a rank's part onto the backend. n_real: the tokenizer's ids, at most cfg.vocab.
 * The checkpoint may be closed afterwards. The backend must outlive the model. */
int mc_model_open(struct mc_backend *be, const struct mc_ckpt *c,
                  const struct mc_config *cfg, struct mc_slice slice, int32_t n_real,
                  struct mc_model *out, struct mc_err *err);
void mc_model_close(struct mc_model *m);

/* Capacities of a pass. Rows are [decode | prefill]; a sequence has one decode row, so
 * decode rows are at most seqs. */
struct mc_pass_caps {
    int32_t rows, seqs, outs;
    int32_t context;    /* longest context in tokens */
    bool no_page_check; /* trusts page tables: nothing looks at the tags */
    int32_t taps;       /* entries of a step's tap list; 0: there is no tapped pass */
};

/* Device buffers shared by a pass and whoever feeds it. */
struct mc_step_mem {
    struct mc_rows rows;     /* bound in rows_base */
    void *rows_base;
    size_t rows_bytes;
    struct mc_kv kv;
    struct mc_slot *slots;   /* [n_slot] */
    uint16_t *counts;        /* [n_slot][V] */
    struct mc_bias *bias;    /* [n_slot][MC_MAX_BIAS] */
    uint32_t *masks;         /* ban sets, [MC_MAX_SETS][ceil V/32] */
    int32_t *eos;            /* [MC_MAX_EOS] */
    struct mc_taps *taps;    /* or NULL */
    float *part;             /* [outs, part_pitch]: logits of this rank's vocabulary */
    int32_t part_pitch;      /* the widest rank's */
    float *logits, *raw, *stat; /* [R, V] [R, V] [R, 4] of the rows that this rank samples:
                                   R is outs over the ranks; alone, logits is part */
    struct mc_out *mine;     /* [R]; alone, out */
    struct mc_out *out;      /* [outs], of all ranks */
};

/* ---- step_mem.c ---- */

/* Bytes of the row arrays for these capacities, and the arrays in a block of that size:
 * staging and device blocks have the same layout. */
size_t mc_rows_bytes(const struct mc_pass_caps *caps);
size_t mc_taps_bytes(const struct mc_pass_caps *caps);
struct mc_rows mc_rows_bind(void *base, const struct mc_pass_caps *caps);
/* An array of a staging block, to be written: bound rows are const, as the device reads
 * them. */
static inline int32_t *mc_staged(const int32_t *p)
{
    return (int32_t *)(uintptr_t)p;
}

/* The shape of a model's pages on a rank: its layers, those of MTP behind the others,
 * then its indexes. How many pages, the tables' sizes and all addresses are for the
 * caller to fill in. Of a loaded model: with its static scales. */
struct mc_kv mc_kv_of(const struct mc_config *c, struct mc_slice slice,
                      enum mc_kv_layout layout);
struct mc_kv mc_model_kv(const struct mc_model *m, enum mc_kv_layout layout);
/* Takes every buffer of d from m; d->kv has its sizes. 0 or MC_ENOMEM. */
int mc_step_mem_take(struct mc_step_mem *d, struct mc_mem *m,
                     const struct mc_model *model, const struct mc_pass_caps *caps);
/* The upload of a staging block of rows to d; the caller adds its deltas. */
struct mc_table_apply_p mc_step_upload(const struct mc_step_mem *d, int32_t vocab,
                                       const void *rows_from);

/* ---- pass.c ---- */

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
    /* Or NULL: after each operation, with the params that it was bound to. */
    void (*on_op)(void *ctx, const struct mc_op *op, const void *params);
};
int mc_pass_forward(struct mc_pass *p, struct mc_stream *s,
                    const struct mc_pass_watch *w);
/* The same with taps, for a step whose list in mem is not empty. */
int mc_pass_tapped(struct mc_pass *p, struct mc_stream *s, const struct mc_pass_watch *w);
/* Enqueues the draft layer over the rows in mem, each a hidden state [H] in draft_hidden
 * and the token behind it, at that token's position; f32 logits go where the model's do.
 * A model without one does nothing; draft_hidden is NULL then. */
int mc_pass_draft(struct mc_pass *p, struct mc_stream *s, const struct mc_pass_watch *w);
void *mc_pass_draft_hidden(struct mc_pass *p);

/* What the last layer left, device memory; NULL where the model has no such thing. */
enum mc_peek {
    MC_PEEK_RESIDUAL,       /* [rows,H] row type */
    MC_PEEK_NORM,           /* the last norm: after the last layer the model's own */
    MC_PEEK_EXPERTS,        /* i32 [rows,top_k], best first */
    MC_PEEK_EXPERT_WEIGHTS, /* f32 */
    MC_PEEK_INDEX_SET,      /* i32 [rows,topk], rising, then -1 */
};
const void *mc_pass_peek(const struct mc_pass *p, enum mc_peek what);
/* Enqueues the sample graph: chain, sample, commit to ring (host-visible [outs]). */
int mc_pass_sample(struct mc_pass *p, struct mc_stream *s, struct mc_out *ring);

#endif
