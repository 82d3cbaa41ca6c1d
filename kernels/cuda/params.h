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
    int32_t n_tok; /* rows of a prefill tile: n_tok*h is at most M, or 1 */
    uint32_t *fault;
};

/* Ranks that meet on their devices; see peer.cuh. Words that the host sees, in pinned memory:
 * fault as above; parted, set by the host when the ranks part; came, the epoch that a kernel
 * of this rank came to; polls, which changes while one spins. */
struct mc_cu_words {
    uint32_t fault, parted, came, polls;
};

enum {
    MC_CU_DIGEST = 1 << 16, /* fault: a digest differs, and this plus whose */
    MC_CU_ASKED = 1 << 17,  /* fault: planted */
    MC_CU_ROOM = 2 << 20,   /* bytes that a rank's rows have at another's, an epoch */
    MC_CU_HEAD_BYTES = 512
};

/* What a rank shows to the others: a block of its device's memory that begins so, zeros at
 * first; then the rows that the others bring, [2 parities][n ranks][MC_CU_ROOM]. */
struct mc_cu_seat {
    uint32_t epoch; /* collectives done */
    uint32_t taken, left; /* of the one under way: rows claimed, blocks done */
    uint32_t pad;
    uint32_t post[2][MC_MAX_RANKS][4]; /* packets, by parity and rank */
};

struct mc_cu_peers {
    struct mc_cu_seat *seat[MC_MAX_RANKS];
    struct mc_cu_words *words;
    int32_t rank, n;
};

struct mc_cu_join {
    struct mc_join_p p;
    struct mc_cu_peers g;
};

struct mc_cu_all_gather {
    struct mc_all_gather_p p;
    struct mc_cu_peers g;
};

struct mc_cu_all_to_all {
    struct mc_all_to_all_p p;
    struct mc_cu_peers g;
};

struct mc_cu_agree {
    struct mc_agree_p p;
    struct mc_cu_peers g;
};

/* Round `round` of the positions that long chunks see, seg of each; see ragged.cuh. */
struct mc_cu_attn_ragged {
    struct mc_attn_ragged_p p;
    int32_t seg, round;
    int32_t *n_live;          /* rows of latents in use */
    uint16_t *latent, *key;   /* [rows][c], [rows][r] bf16 */
    uint16_t *expanded;       /* [rows][h][nope+v] bf16 */
    float *o, *ml;            /* [T][h][v], [T][h][2]: of rounds before */
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
