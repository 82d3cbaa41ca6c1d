/* tensors.h - which tensors a model has, of what shape, and how ranks cut them.
 *
 * The one list that loading, planning and the check for strangers walk. Names are those
 * of Hugging Face files, without a checkpoint's prefix. OWNS nothing. THREAD: any. */
#ifndef MC_MODEL_TENSORS_H
#define MC_MODEL_TENSORS_H

#include "core/model/config.h"

/* H hidden, h query heads, hk kv heads, d head dim (MLA: nope + r), v an output head's
 * width, c latent, E experts, I widths, V vocabulary. */
enum mc_matrix {
    MC_M_EMBED,      /* [V,H] */
    MC_M_HEAD,       /* [V,H] */
    MC_M_Q,          /* [h*d,H], in MLA only without a query latent */
    MC_M_K,          /* [hk*d,H] */
    MC_M_V,          /* [hk*d,H] */
    MC_M_O,          /* [H,h*v] */
    MC_M_Q_A,        /* [q_lora,H] */
    MC_M_Q_B,        /* [h*d,q_lora] */
    MC_M_KV_A,       /* [c+r,H] */
    MC_M_KV_B,       /* [h*(nope+v),c]: loaded as the stacks W_UK and W_UV, and kept whole
                        where long chunks are expanded */
    MC_M_INDEX_Q,    /* [hi*di,q_lora] */
    MC_M_INDEX_K,    /* [di,H] */
    MC_M_INDEX_GATE, /* [hi,H] */
    MC_M_GATE,       /* [I,H], as MC_M_UP */
    MC_M_UP,
    MC_M_DOWN,        /* [H,I] */
    MC_M_ROUTER,      /* [E,H] */
    MC_M_EXPERT_GATE, /* E times, loaded as stacks */
    MC_M_EXPERT_UP,
    MC_M_EXPERT_DOWN,
    MC_M_SHARED_GATE,
    MC_M_SHARED_UP,
    MC_M_SHARED_DOWN,
    MC_M_SHARED_MIX, /* [1,H] */
    MC_M_EH,         /* [H,2H] */
    MC_N_MATRIX,
};

enum mc_vector {
    MC_V_NORM, /* [H]: the model's last; of an MTP layer its own */
    MC_V_ATTN_NORM,
    MC_V_MLP_NORM,
    MC_V_Q_BIAS,
    MC_V_K_BIAS,
    MC_V_V_BIAS,
    MC_V_Q_NORM, /* [d], of a head; MLA: [q_lora] */
    MC_V_K_NORM, /* [d]; MLA: [c] */
    MC_V_INDEX_NORM, /* [di] */
    MC_V_INDEX_BIAS,
    MC_V_ROUTER_BIAS, /* [E] */
    MC_V_E_NORM,      /* [H], of an MTP layer */
    MC_V_H_NORM,
    MC_N_VECTOR,
};

/* How ranks share a tensor. Whatever is cut by rows is joined by the cut columns of the
 * matrix behind it. */
enum mc_cut {
    MC_CUT_NONE,  /* each rank has all of it */
    MC_CUT_HEADS, /* rows: query heads */
    MC_CUT_KV,    /* rows: kv heads, of which several ranks may have the same */
    MC_CUT_ROWS,  /* rows: a feed-forward width, a vocabulary */
    MC_CUT_HEAD_COLS,
    MC_CUT_COLS,
};

enum { MC_MAX_SPECS = 48, MC_TENSOR_NAME = 128 };

struct mc_tensor_spec {
    char name[MC_TENSOR_NAME]; /* a matrix's module, without ".weight"; a vector's full
                                  name; of experts '#' is the number */
    bool vector;
    uint8_t at;  /* enum mc_matrix or mc_vector */
    uint8_t cut; /* enum mc_cut */
    int32_t n, k;  /* rows and columns; a vector has n values and k = 0 */
    int32_t count; /* experts; else 1 */
};

/* The tensors of a layer: -1 the ends, n_layer and up the MTP layers. Returns how many.
 */
int mc_tensors_of(const struct mc_config *c, int32_t layer,
                  struct mc_tensor_spec out[MC_MAX_SPECS]);

/* The name of expert e; others' names as they are. */
void mc_tensor_name(const struct mc_tensor_spec *t, const char *prefix, int32_t e,
                    char out[MC_TENSOR_NAME + 32]);

/* A part of a larger whole. */
struct mc_span {
    int32_t at, n;
};

/* The ranks' parts of a model: rank r of n. */
struct mc_slice {
    int32_t rank, n;
};

/* Feed-forward widths and vocabularies are shared in units of so many. */
int32_t mc_width_unit(int32_t n, int32_t ranks);

/* A rank's share of `all`, in whole units. */
struct mc_span mc_share(int32_t all, int32_t unit, struct mc_slice s);

/* The query and kv heads of a rank; false when they can't be shared so. */
bool mc_share_heads(const struct mc_config *c, struct mc_slice s, struct mc_span *q,
                    struct mc_span *kv);

/* The rows and columns of a matrix, or the values of a vector (rows), that a rank has. The
 * heads can be shared. */
void mc_tensor_cut(const struct mc_config *c, const struct mc_tensor_spec *t,
                   struct mc_slice s, struct mc_span *rows, struct mc_span *cols);

#endif
