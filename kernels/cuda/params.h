/* params.h - what kernels take that is not just an operation's params.
 *
 * fault: a word that the host looks at when it waits; a kernel that finds its lists
 * broken sets it and does nothing, since a device can't return a code. */
#ifndef MC_CUDA_PARAMS_H
#define MC_CUDA_PARAMS_H

#include "kernels/kernels.h"

struct mc_cu_page_init {
    struct mc_page_init_p p;
    uint32_t *fault;
};

struct mc_cu_page_copy {
    struct mc_page_copy_p p;
    uint32_t *fault;
};

struct mc_cu_table_apply {
    struct mc_table_apply_p p;
    uint32_t *fault;
};

/* Decode rows have n_part blocks each, then come tiles of n_tok rows. */
struct mc_cu_gqa_attn {
    struct mc_gqa_attn_p p;
    int32_t group; /* query heads of a kv head */
    int32_t n_tok; /* rows of a prefill tile: n_tok*group is at most 16 */
    uint32_t *fault;
};

/* As gqa_attn, for the latents that all heads share. */
struct mc_cu_mla_attn {
    struct mc_mla_attn_p p;
    int32_t n_tok; /* rows of a prefill tile: n_tok*h is at most 16, or 1 */
    uint32_t *fault;
};

/* A row's context in segments of seg positions; n_part blocks take them in turn. Of more
 * than one, [rows][n_part][topk] scores and positions are what they leave to the merge.
 */
struct mc_cu_dsa_topk {
    struct mc_dsa_topk_p p;
    int32_t seg, n_part;
    float *score;
    int32_t *pos;
};

#endif
