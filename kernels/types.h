/* types.h - what operations are done on: weights, activations, rows, pages, slots.
 *
 * Plain structs of capacities and device addresses, shared by every body. Rules and letters
 * (T, H, h, ...): see kernels.h. OWNS nothing. THREAD: as the operation that takes it. */
#ifndef MC_KERNELS_TYPES_H
#define MC_KERNELS_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/inline.h"

struct mc_stream; /* an ordered queue of operations on one device */
struct mc_graph;  /* recorded operations, params by value */
struct mc_comm;   /* where ranks meet */

enum mc_dtype {
    MC_F32,
    MC_F16,
    MC_BF16,
    MC_E4M3,
    MC_I8,
    MC_U8,
    MC_I32,
    MC_I64,
    MC_N_DTYPE
};

enum {
    MC_PAGE = 64,       /* tokens a KV page */
    MC_SPLIT = 256,     /* tokens an attention split, aligned to absolute positions */
    MC_CANDS = 64,      /* candidates shown to the host for one row */
    MC_TOP = 20,        /* logprobs kept for one row */
    MC_MAX_FAN = 4,     /* linears that share one input */
    MC_MAX_BIAS = 1024, /* logit_bias entries of a slot */
    MC_MAX_RANKS = 8,
};

/* ---- ranks ------------------------------------------------------------------------- */

/* Where n ranks meet; each has a stream of its own. A rank that fails, and one that keeps
 * the others waiting for longer than patience_ms, parts them for good: whoever waits or
 * comes later leaves with MC_K_ERANK. */
int mc_comm_open(int32_t n, uint32_t patience_ms, struct mc_comm **out);
void mc_comm_close(struct mc_comm *c); /* after the streams */
/* Parts the ranks; the first reason is kept. Any thread. */
void mc_comm_break(struct mc_comm *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* The reason, or NULL as long as they hold together (and for c NULL). Any thread. */
const char *mc_comm_broken(const struct mc_comm *c);

/* ---- weights ----------------------------------------------------------------------- */

/* Disk formats: how a checkpoint stores a matrix [n, k], row-major, k contiguous.
 * core/weights/formats.c has their sizes and how they slice. */
enum mc_disk_fmt {
    MC_D_F32,
    MC_D_F16,
    MC_D_BF16,
    MC_D_E4M3,  /* q [n,k]; scale f32, f16 or bf16: [1], [n,1] or [ceil n/128, ceil k/128] */
    MC_D_INT4,  /* compressed-tensors: element i of a row in word i/8 at bits 4*(i%8);
                   (nibble - 8 or zero) * scale[row, i/group]; scale bf16, f16 or f32; zero
                   u32 [ceil n/8, k/group]: row r in word r/8 at bits 4*(r%8) */
    MC_D_NVFP4, /* e2m1, two a byte, low nibble first; scale e4m3 a group of 16, divided
                   (compressed-tensors) or multiplied (ModelOpt) by one f32: see `global` */
    MC_D_Q4_0,  /* ggml blocks of 32 (k-quants: 256) */
    MC_D_Q4_1,
    MC_D_Q5_0,
    MC_D_Q5_1,
    MC_D_Q8_0,
    MC_D_Q4_K,
    MC_D_Q5_K,
    MC_D_Q6_K,
    MC_N_DISK,
};

/* A borrowed view of one matrix in a checkpoint, valid while the checkpoint is open. */
struct mc_disk {
    uint16_t fmt;             /* enum mc_disk_fmt */
    uint16_t scale_dt;        /* enum mc_dtype of scale */
    int32_t n, k;             /* rows, columns, unpacked */
    int32_t group;            /* columns a scale (INT4, NVFP4), else 0 */
    int32_t block_n, block_k; /* E4M3: rows and columns a scale; block_k >= k: a whole row */
    const void *q, *scale, *zero;
    float global; /* NVFP4: multiplies every scale (compressed-tensors: 1/weight_global_scale) */
};

/* Decodes columns [k0, k1) of one row to f32: the oracle for every pack. kernels/ref/disk.c */
void mc_disk_row(const struct mc_disk *d, int32_t row, int32_t k0, int32_t k1,
                 float *out);

/* The inverse: rows of f32 become a disk format. q and scale are those of the piece. */
struct mc_encode {
    uint16_t fmt; /* MC_D_BF16; MC_D_E4M3 in blocks of 128 x 128, f32 scales; MC_D_INT4,
                     symmetric, bf16 scales; MC_D_NVFP4 */
    int32_t k, group;
    float global;            /* NVFP4: as in struct mc_disk; see mc_encode_global */
    const float *importance; /* [k] weight of a column's squared error; NULL: all 1 */
    void *q, *scale;
};

/* What was lost, to be added up over pieces. */
struct mc_loss {
    double ref2, err2, dot, got2; /* sums of x^2, (x-y)^2, x*y, y^2 */
};

/* Encodes n rows [n,k]; E4M3: a piece begins at a multiple of 128 rows. INT4 and NVFP4
 * look for the scale of each group that loses least. A NaN or an infinity: MC_K_EARG.
 * kernels/host/encode.c */
int mc_encode_rows(const struct mc_encode *e, int32_t n, const float *x,
                   struct mc_loss *loss);
/* NVFP4's factor for a matrix whose largest magnitude is amax. */
float mc_encode_global(float amax);

/* Run layouts: what linears read. Few, and each backend places the bytes as it likes. */
enum mc_run_layout {
    MC_W_F32,
    MC_W_BF16,
    MC_W_F16,
    MC_W_I8,    /* int8, a scale and maybe an offset a group of 16 columns or more */
    MC_W_I4,    /* 0..15, a scale and an offset a group of 32 or more: w = q*scale + min */
    MC_W_E4M3,  /* e4m3, one f32 scale a row and 128 columns, or a row */
    MC_W_NVFP4, /* e2m1, one e4m3 scale a group of 16, one f32 */
    MC_N_RUN,
};

struct mc_w {
    uint16_t layout, dt; /* enum mc_run_layout; row type of its output */
    int32_t n, k, group;
    int32_t row0, k0; /* where a rank's cut lies inside its first scale block */
    void *q, *scale, *zero;
    uint64_t bytes; /* what one pass over it reads */
};

/* Matrices of one shape and run layout, so many bytes apart: the experts of a layer, the
 * heads of an absorbed projection. */
struct mc_ws {
    struct mc_w w; /* the first */
    int64_t q_step, scale_step, zero_step;
    int32_t n;
};

MC_INLINE struct mc_w mc_ws_at(const struct mc_ws *s, int32_t i)
{
    struct mc_w w = s->w;

    w.q = (char *)w.q + i * s->q_step;
    w.scale = w.scale ? (char *)w.scale + i * s->scale_step : NULL;
    w.zero = w.zero ? (char *)w.zero + i * s->zero_step : NULL;
    return w;
}

#define MC_ACT_TINY 1e-30f /* 127/amax and 32767/amax stay finite above it */

/* Activation layouts. */
enum mc_act_layout {
    MC_A_F32,  /* x f32 [T,k] */
    MC_A_BF16, /* x bf16 [T,k] */
    MC_A_I8,   /* x int8 [T,k], s f32 [T,k/32] scale a block of 32 columns: amax/127; q is
                  x*(127/amax) rounded to nearest even; a block that holds a NaN or an
                  infinity gets a scale that is not finite, one whose amax is below
                  MC_ACT_TINY zeros; bf: f32 [T,k/32], the scale times the sum of the
                  block's q, for offsets */
    MC_A_I16,  /* the same with 16-bit values: amax/32767 */
    MC_A_E4M3, /* x e4m3 [T,k], s f32 [T,ceil k/128]: amax/448; q is x/s, cast as in a page */
    MC_N_ACT,
};

struct mc_act {
    void *x;
    float *s;
    void *bf;
    int32_t k;
    uint16_t layout;
};

/* ---- rows, pages, slots ------------------------------------------------------------ */

/* The ragged rows of a step: [decode rows | prefill rows], sequence by sequence. All
 * pointers are device arrays at fixed addresses, written by table_apply. */
struct mc_rows {
    int32_t cap, cap_seq, cap_out; /* capacities: T, S, R */
    const int32_t *live;           /* [4] rows, decode rows, sequences, sampled rows */
    const int32_t *tok;            /* [T] token id, or -1: the slot's last token */
    const int32_t *pos;            /* [T] position in the sequence */
    const int32_t *row_seq;        /* [T] index of the row's sequence, 0..S-1 */
    const int32_t *q0;             /* [S+1] first row of each sequence */
    const int32_t *kv_len;         /* [S] tokens in the context after this step */
    const int32_t *slot;           /* [S] slot of each sequence */
    const int32_t *out_row;        /* [R] rows that need logits */
    const int32_t *target;         /* [R] -1: sample; else the id whose raw logprob is wanted,
                                      and the slot stays as it is. NULL: all sample */
};
enum { MC_LIVE_ROWS, MC_LIVE_DECODE, MC_LIVE_SEQS, MC_LIVE_OUT };

/* Fresh pages: keys and values of a step's own prompt rows, of one layer, where those rows
 * attend to them in bf16 rather than to what an fp8 page keeps of them (--prefill-kv bf16).
 * They are laid out as MC_KV_F32 pages are and hold values of bf16; tokens of older steps in
 * the first block are as their page has them. A sequence's begin at mc_fresh_first(), with
 * the block of its first row. A named exception to rule 5 of kernels.h: a row's result
 * depends on where its chunk began. */
MC_INLINE int32_t mc_fresh_pages(int32_t rows, int32_t seqs) /* a capacity */
{
    return rows / 64 + 2 * seqs + 2;
}

MC_INLINE int32_t mc_fresh_first(const struct mc_rows *r, int32_t seq)
{
    return r->q0[seq] / 64 + 2 * seq;
}

/* KV layouts. A page of a layer holds, for MC_PAGE tokens,
 *
 *   GQA   K [hk][MC_PAGE][d], V the same, then for FP8 f32 scales K [hk][MC_PAGE], V the same
 *   MLA   [MC_PAGE] tokens of the latent (c values, normed) and the shared key (r values,
 *         rotated): f32, bf16, FP8_PLAIN (all e4m3, unscaled or by the static k_scale) or
 *         FP8_656 (c e4m3, an f32 scale for each 128 of them, r bf16; 656 bytes at 512 + 64)
 *
 * and a page of an index (DSA's keys, on layers that own an indexer) [MC_PAGE][index_d]
 * e4m3, then [MC_PAGE] f32 scales; with F32 pages [MC_PAGE][index_d] f32. Page-major, so
 * that one copy moves a page with all that belongs to its tokens: layer l lies at
 * base + page*page_stride + l*layer_stride, index i at ... + index_off + i*index_stride. */
enum mc_kv_layout {
    MC_KV_F32,
    MC_KV_BF16,
    MC_KV_FP8, /* GQA only */
    MC_N_GQA_KV,
    MC_KV_FP8_PLAIN = MC_N_GQA_KV, /* MLA only, as what follows */
    MC_KV_FP8_656,
    MC_N_KV,
};

enum { MC_SCALE_COLS = 128 }; /* values of a latent that share a scale in FP8_656 */

/* Bytes of one layer of one page; at least layer_stride. */
MC_INLINE int64_t mc_kv_layer_bytes(uint16_t layout, int32_t hk, int32_t d)
{
    int64_t each = layout == MC_KV_F32 ? 4 * d : layout == MC_KV_BF16 ? 2 * d : d + 4;

    return 2 * (int64_t)hk * MC_PAGE * each;
}

/* Bytes of a token's latent; the 656 of FP8_656 at c = 512, r = 64. */
MC_INLINE int64_t mc_mla_token_bytes(uint16_t layout, int32_t c, int32_t r)
{
    int64_t n = (int64_t)c + r, n_scale = (c + MC_SCALE_COLS - 1) / MC_SCALE_COLS;

    return layout == MC_KV_F32    ? 4 * n
           : layout == MC_KV_BF16 ? 2 * n
           : layout == MC_KV_FP8_PLAIN ? n : c + 4 * n_scale + 2 * (int64_t)r;
}

/* Bytes of one index of one page. */
MC_INLINE int64_t mc_index_bytes(uint16_t layout, int32_t index_d)
{
    return (int64_t)MC_PAGE * (layout == MC_KV_F32 ? 4 * index_d : index_d + 4);
}

struct mc_kv {
    uint8_t *base;
    int64_t page_stride, layer_stride; /* bytes */
    const float *k_scale, *v_scale;    /* [n_layer] static scales, or NULL: dynamic; written
                                          into a GQA page either way, readers look there */
    int32_t *table;                    /* [n_slot][pitch] page of each block */
    uint32_t *want_tag;                /* [n_slot][pitch] tag that the sequence expects */
    uint32_t *tag;                     /* [n_page] tag that the page carries */
    int32_t pitch, n_page, n_slot;     /* n_page: of this rank */
    int32_t hk, d, n_layer;            /* GQA */
    int32_t c, r;                      /* MLA (hk, d are 0 then), else 0 */
    int32_t index_d, n_index;          /* DSA, else 0 */
    int64_t index_off, index_stride;   /* bytes */
    int32_t rank, n_shard;             /* tokens lie spread over groups of n_shard ranks
                                          (0, 1: no), of which this is one's number; page p
                                          of a table is page p / n_shard of the group's rank
                                          p mod n_shard, and the blocks of a slot go round */
    uint16_t layout;
};

/* What a sequence samples with; copied into its slot at admission. */
struct mc_samp {
    float temperature; /* below 1e-5: greedy */
    float top_p, min_p;
    float rep, presence, frequency; /* 1, 0, 0: off */
    int32_t top_k;                  /* <= 0 or >= V: off */
    int32_t n_bias;                 /* entries in the slot's bias list */
    int32_t n_ban;                  /* ban sets named in ban[], bitsets in mc_chain_p.masks */
    int32_t ban[2];
    int32_t no_eos_until;    /* eos ids are masked while fewer tokens are generated */
    uint32_t flags;          /* MC_SAMP_... */
    uint32_t seed_lo, seed_hi;
};
enum {
    MC_SAMP_PENALTY = 1, /* rep, presence or frequency in use: counts are kept */
    MC_SAMP_CANDS = 2,   /* the host wants candidates (a Lua pick) */
    MC_SAMP_TOP = 4,     /* the host wants the top logprobs */
};

/* Device-resident state of a sequence. After admission commit is its only writer. */
struct mc_slot {
    int32_t tok;   /* last token */
    int32_t pos;   /* position that tok will take */
    int32_t n_gen; /* tokens generated */
    uint32_t bad;  /* MC_BAD_...: nothing of it is published or written to a page */
    struct mc_samp samp;
};
enum {
    MC_BAD_PAGE = 1,   /* a page was no longer its own (page_check) */
    MC_BAD_LOGITS = 2, /* NaN, +inf or nothing but -inf (sample) */
};

/* One change to device state, made by table_apply in list order. */
struct mc_delta {
    int32_t what, slot, at, value; /* MC_DELTA_... */
    uint32_t tag;
};
enum {
    MC_DELTA_PAGE, /* table[slot][at] = value, want_tag = tag */
    MC_DELTA_SLOT, /* slot = slots_in[value]; its counts are cleared */
    MC_DELTA_SEEN, /* prompt token `value` counts for repetition in slot */
    MC_DELTA_GEN,  /* token `value` was generated before (a resumed sequence): counts */
    MC_DELTA_BIAS, /* bias[slot][at] = {value, tag as f32 bits} */
    MC_DELTA_TOK,  /* the host overrides the slot's last token (a Lua pick): counts move */
};

struct mc_bias {
    int32_t id;
    float add;
};

/* What comes back to the host for one sampled row. */
struct mc_out {
    int32_t slot, tok; /* tok -1: the row was bad, see bad; of a target row: the target */
    uint32_t bad;      /* MC_BAD_...; the fields below are 0 then */
    int32_t pos;       /* position that tok takes */
    float logprob;     /* of tok, raw logits */
    float raw_lse;
    int32_t n_top, n_cand;
    float rest, lse; /* probability mass not among the candidates; of processed logits */
    int32_t top_id[MC_TOP];
    float top_logprob[MC_TOP]; /* raw logits; only finite ones are listed */
    int32_t cand_id[MC_CANDS];
    float cand_p[MC_CANDS], cand_logit[MC_CANDS];
};

struct mc_rope {
    const float *inv_freq; /* [dim/2], already scaled (llama3, yarn) */
    float mul;             /* on cos and sin (yarn), else 1 */
    int16_t dim, off;      /* rotated dims and where they begin in a head */
    uint8_t pair;          /* MC_ROPE_HALVES or MC_ROPE_NEIGHBOURS */
};
enum { MC_ROPE_HALVES, MC_ROPE_NEIGHBOURS };

/* A strided view of up to four axes, outermost first; those that it has not have n 1. */
enum { MC_AXES = 4 };
struct mc_strided {
    void *p;
    uint16_t dt;           /* MC_F32, MC_F16, MC_BF16, MC_I32 */
    int32_t n[MC_AXES];
    int64_t step[MC_AXES]; /* elements; 0: the axis repeats what it has */
};

/* What a step does besides, to rows between its layers (tap). Device data: a recorded step
 * replays as it changes. Behind layer 0 lie the embeddings, behind layer i what the i-th of
 * them leaves in the residual stream. */
struct mc_tap {
    int32_t layer;   /* or MC_TAP_... */
    int32_t row, n;  /* rows [row, row+n) of the step; of the logits', for MC_TAP_LOGITS */
    float scale;
    const void *add; /* [H] row type: added, times scale, to each; or NULL */
    void *out;       /* [n, columns] row type (f32 of logits): copied to; or NULL */
};
struct mc_taps {
    int32_t n, pad_;
    struct mc_tap v[];
};
enum { MC_TAP_NORM = -1, /* the last norm's rows */
       MC_TAP_LOGITS = -2 };

/* A rank among n. n below 2: alone, and nothing waits for anybody. */
struct mc_peer {
    struct mc_comm *comm;
    int32_t rank, n;
};

/* Rows of `rows` that fall to a rank when row r is rank r mod n's. */
MC_INLINE int32_t mc_peer_rows(const struct mc_peer *peer, int32_t rows)
{
    return peer->n > 1 ? (rows - peer->rank + peer->n - 1) / peer->n : rows;
}

/* The row of all that is a rank's i-th. */
MC_INLINE int32_t mc_peer_row(const struct mc_peer *peer, int32_t i)
{
    return peer->n > 1 ? i * peer->n + peer->rank : i;
}

#endif
