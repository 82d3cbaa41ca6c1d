/* pass_int.h - building a pass: a list of operations, bound once, block by block.
 *
 * A pass is lists of operations in the order in which they run; asking whether a backend
 * takes them and running them is walking a list. A block (attention, feed-forward) adds
 * the operations of one layer: it reads its input, the normed residual stream, in the
 * forms that it said it wants, and leaves a partial sum in p->x.
 *
 * Forms: matrices of different run layouts want one input in different layouts. The
 * operation that makes it writes one form, and row values if anything else is wanted;
 * mc_pass_quant makes the others from those.
 *
 * Errors are sticky while a pass is opened: the first sets rc and err, and what is added
 * afterwards is dropped. OWNS: see pass.c. THREAD: opening. */
#ifndef MC_MODEL_PASS_INT_H
#define MC_MODEL_PASS_INT_H

#include "core/model/model.h"

/* What a buffer is for: layers and blocks share those of one use. Lifetimes: see the
 * blocks. */
enum mc_use {
    MC_USE_X,    /* partial sums that a join adds to the residual stream */
    MC_USE_X_NEXT, /* with several ranks: those of every other join */
    MC_USE_RES,  /* the residual stream */
    MC_USE_NORM, /* the last join's norm, row type */
    MC_USE_Q,
    MC_USE_K,
    MC_USE_V,
    MC_USE_LATENT,    /* normed query latent, row type */
    MC_USE_ABSORBED,  /* MLA's query over the latent */
    MC_USE_PARTS,     /* attention's splits */
    MC_USE_ML,
    MC_USE_O_LATENT,
    MC_USE_FRESH,      /* a layer's keys and values of prompt rows, in bf16 */
    MC_USE_SHARD_Q,    /* sharded tokens: the queries of all heads of the group, ... */
    MC_USE_SHARD_FOLD, /* ... what they found here, ... */
    MC_USE_SHARD_LIST, /* ... positions chosen among this rank's, with their scores, ... */
    MC_USE_SHARD_BAD,  /* ... and sequences whose pages are not theirs */
    MC_USE_INDEX_Q,
    MC_USE_INDEX_K,
    MC_USE_INDEX_GATE,
    MC_USE_INDEX_QI,
    MC_USE_INDEX_GATES,
    MC_USE_INDEX_SET,
    MC_USE_EXPERT_IDS,
    MC_USE_EXPERT_WEIGHTS,
    MC_USE_EXPERT_OFFSET,
    MC_USE_EXPERT_ORDER,
    MC_USE_SHARED,
    MC_USE_SHARED_MIX,
    MC_USE_PICKED,       /* [R,H] rows that need logits */
    MC_USE_DRAFT_HIDDEN, /* [T,H] what an MTP layer continues */
    MC_N_USE,
};

/* An activation's buffers are of one use, layout and width. */
enum mc_act_use {
    MC_ACT_HIDDEN,
    MC_ACT_LATENT,
    MC_ACT_ATTN,
    MC_ACT_MID,
    MC_ACT_EXPERT_MID,
    MC_ACT_LAST,
    MC_ACT_DRAFT
};

/* Forms that a block wants of its input: 1 << enum mc_act_layout, or row values. */
enum { MC_WANT_ROWS = 1 << 15 };

/* An input as its consumers find it; act[f] is there where bit f of have is. */
struct mc_input {
    unsigned have;
    struct mc_act act[MC_N_ACT];
    const void *rows; /* row values, or NULL */
};

struct mc_bound {
    const struct mc_op *op;
    void *params;    /* owned */
    int32_t scratch; /* offset of the scratch pointer in params, -1: none */
    int32_t layer;   /* op NULL: a mark for watchers */
};

struct mc_list {
    struct mc_bound *v;
    int32_t n, cap;
};

struct mc_act_buf {
    struct mc_act act;
    uint8_t use;
};

struct mc_pass {
    const struct mc_model *m;
    struct mc_pass_caps caps;
    const struct mc_step_mem *mem;
    struct mc_mem own;
    struct mc_list forward, tapped, sample, draft;
    struct mc_list *to; /* that is added to */
    struct {
        void *p;
        size_t bytes;
    } buf[MC_N_USE];
    struct mc_act_buf *act;
    int32_t n_act;
    size_t scratch_bytes;
    uint64_t slow; /* bit i: operation i runs its body for any size */
    void *scratch;
    void *x, *res, *norm; /* [T,H] row type */
    void *x_next; /* takes its turn with x: peers may still read what was joined last */
    bool whole;   /* x is no partial sum: every rank has all of it */
    int rc;
    struct mc_err *err;
};

/* ---- build.c: what blocks are made of ---- */

size_t mc_pass_row_bytes(const struct mc_pass *p); /* of one value, row type */
/* A buffer of that use with room for so much; NULL after an error. */
void *mc_pass_buffer(struct mc_pass *p, enum mc_use use, size_t bytes);
struct mc_act mc_pass_act(struct mc_pass *p, enum mc_act_use use, uint16_t layout,
                          int32_t rows, int32_t k);
/* The form that w reads, as a wish. */
unsigned mc_pass_form(const struct mc_pass *p, const struct mc_w *w);

/* Adds an operation with a copy of its params, of `bytes`. */
void mc_pass_add(struct mc_pass *p, enum mc_op_id id, const void *params, size_t bytes,
                 int32_t scratch);
#define MC_PASS_ADD(p, name, params) \
    mc_pass_add((p), MC_OP_##name, (const struct mc_##name##_p *)(params), \
                sizeof(struct mc_##name##_p), -1)
#define MC_PASS_ADD_SCRATCH(p, name, params)                               \
    mc_pass_add((p), MC_OP_##name, (const struct mc_##name##_p *)(params), \
                sizeof(struct mc_##name##_p),                              \
                (int32_t)offsetof(struct mc_##name##_p, scratch))
void mc_pass_mark(struct mc_pass *p, int32_t layer);

/* Joins p->x into the residual stream, normed by w [H] to what is wanted. */
struct mc_input mc_pass_join(struct mc_pass *p, const float *w, bool first,
                             unsigned want);
/* The forms of `want` that are not there yet, from in->rows. */
void mc_pass_quant(struct mc_pass *p, struct mc_input *in, enum mc_act_use use, int32_t k,
                   unsigned want);
/* The first form of a wish, and whether whoever makes it has to write row values too. */
int mc_pass_first_form(unsigned want);
bool mc_pass_needs_rows(unsigned want);

struct mc_fan {
    const struct mc_w *w;
    const float *bias; /* or NULL */
    void *y;           /* [T, w->n] row type */
};
/* Linears of one input, as few operations as forms. */
void mc_pass_linear(struct mc_pass *p, const struct mc_input *in, const struct mc_fan *f,
                    int n);

/* ---- blocks ---- */

struct mc_block {
    unsigned (*wants)(const struct mc_pass *p, const struct mc_layer *y);
    void (*add)(struct mc_pass *p, int32_t layer, const struct mc_input *in);
};

extern const struct mc_block mc_attn_gqa, mc_attn_mla, mc_ffn_dense, mc_ffn_moe;

/* mtp.c: from the embeddings in p->x to the draft layer's input there */
void mc_pass_add_draft(struct mc_pass *p);
/* Where the entries of a layer begin: see mtp.c. */
static inline int32_t mc_pass_first(const struct mc_pass *p, int32_t layer)
{
    return layer >= p->m->cfg.n_layer;
}

/* ffn_dense.c: glu and down into y [T,H]; also of a shared expert. */
unsigned mc_glu_wants(const struct mc_pass *p, const struct mc_w *gate);
void mc_glu_add(struct mc_pass *p, const struct mc_input *in, const struct mc_w *gate,
                const struct mc_w *up, const struct mc_w *down, void *y);

/* Fresh pages of a layer (kernels/types.h), or NULL: where the operator asked for them and
 * pages keep less than bf16. */
float *mc_pass_fresh(struct mc_pass *p, int32_t layer);

/* Ranks that tokens are spread over. */
static inline int32_t mc_pass_shards(const struct mc_pass *p)
{
    return p->mem->kv.n_shard > 1 ? p->mem->kv.n_shard : 1;
}

/* Splits of a row's context, a capacity: of what one rank has of it. */
static inline int32_t mc_pass_parts(const struct mc_pass *p)
{
    int32_t blocks = (p->caps.context + MC_PAGE - 1) / MC_PAGE, n = mc_pass_shards(p);

    return ((blocks + n - 1) / n * MC_PAGE + MC_SPLIT - 1) / MC_SPLIT;
}

#endif
