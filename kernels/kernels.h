/* kernels.h - the operation table: what a forward pass may ask of a device.
 *
 * The contract between the forward passes (core/model), the engine (core/engine) and the
 * bodies: kernels/ref (scalar, the oracle) and kernels/cpu (SIMD). It is written for a
 * CUDA backend too, but includes nothing of ours and names no CUDA type.
 *
 * Rules
 *  1. An operation is three functions over one plain params struct. need() at boot: scratch
 *     and plan bytes for the capacities in p, or a refusal by name. plan() once a step on
 *     the host, pure: a work-list into a staging buffer (attention only). run() enqueues
 *     only: no allocation, no wait, no host read of device data; legal to replay.
 *  2. Params hold capacities and addresses, never live counts: those sit in device memory
 *     (struct mc_rows) at fixed addresses, so that a captured step replays as lengths
 *     change. On the CPU device memory is host memory.
 *  3. Activations are opaque (struct mc_act): whoever runs before a linear writes them in
 *     the form that the linear's run layout wants (mc_backend.act_of). A pass hands them on
 *     and never looks inside.
 *  4. Rounding points are stated beside each operation; ref reproduces them.
 *  5. A row's result does not depend on the other rows of the batch: sums over K run in one
 *     order for any number of rows; attention is cut in splits of MC_SPLIT tokens aligned
 *     to absolute positions and folded left to right.
 *  6. Collectives are operations; sums run in rank order 0..n-1 on every rank.
 *  7. Ties in top-k and argmax go to the lowest id.
 *
 * T rows, R sampled rows, S sequences, H hidden, h heads of a rank, hk kv heads of a rank,
 * d head dim, c latent and r rope dims of MLA, E experts, V vocabulary (of a rank where it
 * says [V/n]). All sums are f32. "row type" is the type of the residual stream and of q, k,
 * v: f32 in ref and cpu, bf16 in cuda.
 * THREAD: need and run: the engine's; bodies run on the stream's own threads. */
#ifndef MC_KERNELS_H
#define MC_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mc_stream; /* an ordered queue of operations on one device */
struct mc_graph;  /* recorded operations, params by value */

enum mc_dtype { MC_F32, MC_F16, MC_BF16, MC_E4M3, MC_I8, MC_U8, MC_I32, MC_I64, MC_N_DTYPE };

enum {
    MC_PAGE = 64,       /* tokens a KV page */
    MC_SPLIT = 256,     /* tokens an attention split, aligned to absolute positions */
    MC_CANDS = 64,      /* candidates shown to the host for one row */
    MC_TOP = 20,        /* logprobs kept for one row */
    MC_MAX_FAN = 4,     /* linears that share one input */
    MC_MAX_BIAS = 1024, /* logit_bias entries of a slot */
};

/* ---- weights ------------------------------------------------------------------------- */

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

/* Decodes columns [k0, k1) of one row to f32: the oracle for every pack. k0 is a multiple
 * of the format's block. kernels/ref/disk.c */
void mc_disk_row(const struct mc_disk *d, int32_t row, int32_t k0, int32_t k1, float *out);

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
int mc_encode_rows(const struct mc_encode *e, int32_t n, const float *x, struct mc_loss *loss);
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

static inline struct mc_w mc_ws_at(const struct mc_ws *s, int32_t i)
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

/* ---- rows, pages, slots --------------------------------------------------------------- */

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
static inline int64_t mc_kv_layer_bytes(uint16_t layout, int32_t hk, int32_t d)
{
    int64_t each = layout == MC_KV_F32 ? 4 * d : layout == MC_KV_BF16 ? 2 * d : d + 4;

    return 2 * (int64_t)hk * MC_PAGE * each;
}

/* Bytes of a token's latent; the 656 of FP8_656 at c = 512, r = 64. */
static inline int64_t mc_mla_token_bytes(uint16_t layout, int32_t c, int32_t r)
{
    int64_t n = (int64_t)c + r, n_scale = (c + MC_SCALE_COLS - 1) / MC_SCALE_COLS;

    return layout == MC_KV_F32    ? 4 * n
           : layout == MC_KV_BF16 ? 2 * n
           : layout == MC_KV_FP8_PLAIN ? n : c + 4 * n_scale + 2 * (int64_t)r;
}

/* Bytes of one index of one page. */
static inline int64_t mc_index_bytes(uint16_t layout, int32_t index_d)
{
    return (int64_t)MC_PAGE * (layout == MC_KV_F32 ? 4 * index_d : index_d + 4);
}

struct mc_kv {
    uint8_t *base;
    int64_t page_stride, layer_stride; /* bytes */
    const float *k_scale, *v_scale;    /* [n_layer] static scales, or NULL: dynamic; written
                                          into a GQA page either way, readers look there */
    int32_t *table;                    /* [n_slot][pitch] physical page of each block */
    uint32_t *want_tag;                /* [n_slot][pitch] tag that the sequence expects */
    uint32_t *tag;                     /* [n_page] tag that the page carries */
    int32_t pitch, n_page, n_slot;
    int32_t hk, d, n_layer;            /* GQA */
    int32_t c, r;                      /* MLA (hk, d are 0 then), else 0 */
    int32_t index_d, n_index;          /* DSA, else 0 */
    int64_t index_off, index_stride;   /* bytes */
    int32_t rank, n_shard;
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

/* The ranks' shared memory for one-shot collectives; n 1: no communication. */
struct mc_peer {
    void *buf[8];
    uint32_t *flag[8], *epoch, *abort;
    int32_t rank, n;
    void *nccl;
};

/* ---- operations ------------------------------------------------------------------------
 * MC_OP(name): the list fixes ids. An entry that a backend has no body for is NULL there
 * and refused when a model asks for it; its params struct comes with its first body. */
#define MC_OPS(MC_OP) \
    MC_OP(pack) MC_OP(page_init) MC_OP(page_copy) MC_OP(page_check) MC_OP(table_apply) \
    MC_OP(embed) MC_OP(join) MC_OP(linear) MC_OP(glu) MC_OP(quant) MC_OP(gqa_prep) \
    MC_OP(gqa_attn) MC_OP(attn_merge) MC_OP(mla_prep) MC_OP(mla_q) MC_OP(mla_attn) \
    MC_OP(mla_out) MC_OP(mla_expand) MC_OP(attn_ragged) MC_OP(dsa_prep) MC_OP(dsa_topk) \
    MC_OP(dsa_merge) MC_OP(route) MC_OP(moe) MC_OP(all_gather) MC_OP(all_to_all) \
    MC_OP(gather_rows) MC_OP(chain) MC_OP(sample) MC_OP(verify) MC_OP(commit) \
    MC_OP(mtp_in) MC_OP(nll) MC_OP(pool) MC_OP(lora) MC_OP(tensor) MC_OP(tap)

enum mc_op_id {
#define MC_OP(name) MC_OP_##name,
    MC_OPS(MC_OP)
#undef MC_OP
    MC_N_OP
};

/* pack: a disk slice -> w, whose q/scale/zero point to memory of the sizes that need()
 * gave. Rows [row0, row0+w.n), columns [k0, k0+w.k) of the disk matrix. */
struct mc_pack_p {
    struct mc_disk disk;
    struct mc_w w;
    int32_t row0, k0;
};

/* page_init: zeroes pages and stamps their tags. list: pairs {page, tag} in device memory,
 * n_list[0] of them; cap the capacity. */
struct mc_page_init_p {
    struct mc_kv kv;
    const uint32_t *list; /* [cap][2] */
    const int32_t *n_list;
    int32_t cap;
};

/* page_copy: pages to or from a buffer, page after page, page_stride bytes each. */
struct mc_page_copy_p {
    struct mc_kv kv;
    const int32_t *pages; /* [n] */
    int32_t n;
    uint8_t *buf;
    bool to_buf;
};

/* page_check: slot.bad |= 1 where a page of a sequence of this step carries another tag
 * than want_tag, or is none. */
struct mc_page_check_p {
    struct mc_rows rows;
    struct mc_kv kv;
    struct mc_slot *slots;
};

/* How often a token was generated (it sticks at the top), and whether the prompt has it. */
enum { MC_COUNT_OUT = 0x7fff, MC_COUNT_SEEN = 0x8000 };

/* table_apply: all uploads of a step in one launch: copies the staged row arrays to their
 * fixed addresses, then applies the deltas. Not part of a graph (its source alternates). */
struct mc_table_apply_p {
    struct mc_kv kv;
    struct mc_slot *slots;         /* [n_slot] */
    uint16_t *counts;              /* [n_slot][V]: MC_COUNT_... */
    struct mc_bias *bias;          /* [n_slot][MC_MAX_BIAS] */
    int32_t vocab;                 /* V: row pitch of counts */
    const void *rows_from;         /* staging */
    void *rows_to;                 /* device; where mc_rows' arrays lie */
    size_t rows_bytes;
    const struct mc_delta *delta;  /* staging, [n_delta] */
    int32_t n_delta;
    const struct mc_slot *slots_in; /* staging, named by MC_DELTA_SLOT */
};

/* embed: x[t] = W[token of row t] dequantised, row type; zero where the id is another
 * rank's ([row0, row0 + w.n) are ours). */
struct mc_embed_p {
    struct mc_rows rows;
    struct mc_w w; /* [V/n, H] */
    const struct mc_slot *slots;
    int32_t row0;
    void *x; /* [T,H] row type */
};

/* join: all-reduce, residual add, RMSNorm and quantisation in one.
 * res = (first ? 0 : res) + sum over ranks of x; norm = res * rsqrt(mean(res^2) + eps) * w;
 * act (if x is not NULL) gets norm in its layout; norm_out (if not NULL) gets it in the row
 * type. w NULL: the residual only. Rounding: sums and norm in f32; res stored in the row type. */
struct mc_join_p {
    struct mc_rows rows;
    const void *x; /* [T,H] partial, row type */
    void *res;     /* [T,H] row type */
    const float *w; /* [H] */
    float eps;
    int32_t h;
    bool first;
    struct mc_act act;
    void *norm_out; /* [T,H] or NULL */
    struct mc_peer peer;
};

/* linear: y_i = act * W_i^T (+ bias_i), for up to four matrices of one input. Output f32
 * sums rounded to y's type. The rows are those of a step or gathered ones: n_live says. */
struct mc_linear_p {
    const int32_t *n_live; /* device: live rows */
    int32_t cap, n_w;
    struct mc_act act;
    struct mc_w w[MC_MAX_FAN];
    const float *bias[MC_MAX_FAN];
    void *y[MC_MAX_FAN];
    int32_t pitch[MC_MAX_FAN]; /* elements between rows of y_i */
    uint16_t y_dt;             /* enum mc_dtype */
};

/* glu: act_out = silu(act Wg^T) * (act Wu^T). Rounding: the product in f32, then act_out's
 * layout. scratch: f32 [T, 2I] where need() asks for it. */
struct mc_glu_p {
    const int32_t *n_live;
    int32_t cap;
    struct mc_act act;
    struct mc_w gate, up; /* [I,H] */
    struct mc_act out;    /* [T,I] */
    void *scratch;
};

/* quant: row-type [T,k] -> act, for inputs that no fusion covers. */
struct mc_quant_p {
    const int32_t *n_live;
    int32_t cap;
    const void *x;
    struct mc_act act;
};

/* gqa_prep: q/k norm (if given), rope, KV write. q [T,h,d] is rotated in place; k and v
 * [T,hk,d] go to the page of their position, cast by the cache's layout: bf16 by round to
 * nearest even; fp8 e4m3 after dividing by the token's scale amax/448 (or the static
 * scale), clamped to +-448, round to nearest even. The rope angle is the f32 product
 * pos * inv_freq. Rows of a sequence marked bad write nothing. */
struct mc_gqa_prep_p {
    struct mc_rows rows;
    struct mc_kv kv;
    const struct mc_slot *slots;
    int32_t layer, h;
    void *q, *k, *v;            /* row type */
    const float *q_norm, *k_norm; /* [d] or NULL */
    float eps;
    struct mc_rope rope;
};

/* gqa_attn: for each row and head, softmax(scale q.k) v over positions <= its own (and
 * > pos - window when window > 0), from the cache, in splits of MC_SPLIT absolute
 * positions. o [parts][h][d] f32 unnormalised, ml [parts][h][2] {max, sum}, a row's parts
 * beginning at mc_part_row(); decode rows leave part i for split i ({-inf, 0} where the
 * window is past it), prefill rows fold theirs into part 0. Probabilities stay f32. n_part
 * = parts of the longest context, a capacity. A row of a bad sequence leaves {-inf, 0}. */
struct mc_gqa_attn_p {
    struct mc_rows rows;
    struct mc_kv kv;
    const struct mc_slot *slots;
    int32_t layer, h, n_part, window;
    int32_t cap_decode; /* rows that have n_part parts; later rows have one */
    float scale;
    const void *q;
    float *o, *ml;
    const void *plan;
};

/* The first part of row t: rows below cap_decode have n_part of them, later ones one. */
static inline int64_t mc_part_row(int32_t t, int32_t cap_decode, int32_t n_part)
{
    return t < cap_decode ? (int64_t)t * n_part
                          : (int64_t)cap_decode * n_part + (t - cap_decode);
}

/* attn_merge: folds parts left to right (decode rows: 0..pos/MC_SPLIT, below n_part;
 * prefill rows: part 0), normalises, writes act ([T, h*d]), or out if that is given; zeros
 * where no position was seen. */
struct mc_attn_merge_p {
    struct mc_rows rows;
    int32_t h, d, n_part, cap_decode;
    const float *o, *ml;
    struct mc_act act;
    void *out; /* [T,h,d] row type, or NULL */
};

/* mla_prep: the normed query latent rms(q_a) * q_norm goes to act and norm_out, whichever
 * is given (q_a NULL: neither); rms(kv_a[0..c)) * kv_norm and the rotated kv_a[c..c+r) go
 * to the page of the row's position, clamped to +-448 before every cast to e4m3, round to
 * nearest even. FP8_656: a scale is amax/448 of its 128 values, at least 1e-4, rounded up
 * to a power of two. Rows of a sequence marked bad write nothing. */
struct mc_mla_prep_p {
    struct mc_rows rows;
    struct mc_kv kv;
    const struct mc_slot *slots;
    int32_t layer, q_lora;
    const void *q_a, *kv_a;        /* [T,q_lora] or NULL, [T,c+r]; row type */
    const float *q_norm, *kv_norm; /* [q_lora], [c] */
    float eps;
    struct mc_rope rope; /* dim r, off 0: the key's own */
    struct mc_act act;   /* [T,q_lora]; x NULL: not wanted */
    void *norm_out;      /* [T,q_lora] row type, or NULL */
};

/* mla_q: rotates the last r of each head of q and absorbs W_UK into the first nope:
 * out [T,h,c+r] = q[0..nope) W_UK_h ++ rope(q[nope..)). Without w_uk (n 0) only rotates:
 * out [T,h,nope+r], which may be q. */
struct mc_mla_q_p {
    struct mc_rows rows;
    int32_t h, nope, c;
    const void *q;     /* [T,h,nope+r] row type */
    struct mc_ws w_uk; /* h matrices [c,nope] */
    struct mc_rope rope; /* dim r, off nope */
    void *out;         /* row type */
};

/* mla_attn: as gqa_attn, over latents that all heads share: softmax(scale q.[c;r]) c. o
 * [parts][h][c], ml [parts][h][2]. With idx a row sees the positions of its list only, in
 * the list's order; part i then holds entries [i*MC_SPLIT, ...) of it, and n_part is
 * ceil(topk / MC_SPLIT) at most. Positions below `first` are not seen: 0, or 1 in an MTP
 * layer, whose entry of position p lies at p + 1. */
struct mc_mla_attn_p {
    struct mc_rows rows;
    struct mc_kv kv;
    const struct mc_slot *slots;
    int32_t layer, h, n_part, cap_decode;
    float scale;
    const void *q;      /* [T,h,c+r] row type */
    const int32_t *idx; /* [T,topk] positions, rising, -1 behind the last; or NULL */
    int32_t topk;
    int32_t first;
    float *o, *ml;
    const void *plan;
};

/* mla_out: act [T,h*v] = o_lat of each head times W_UV_h^T. */
struct mc_mla_out_p {
    const int32_t *n_live;
    int32_t cap, h, c, v;
    const void *o_lat; /* [T,h,c] row type */
    struct mc_ws w_uv; /* h matrices [v,c] */
    struct mc_act act;
};

/* dsa_prep: LayerNorm of k (with bias), rope of the first dims of k and of each head of q,
 * the key's page write. gates = gate * hi^-0.5 * index_d^-0.5. With F32 pages qi is f32;
 * else q and k are cast to e4m3 with scale max(amax, 1e-4)/448, one a head and row: the
 * query's is multiplied into its gate, the key's lies in the page. */
struct mc_dsa_prep_p {
    struct mc_rows rows;
    struct mc_kv kv;
    const struct mc_slot *slots;
    int32_t index, hi;              /* which index of the page; heads */
    const void *q, *k, *gate;       /* [T,hi,index_d], [T,index_d], [T,hi]; row type */
    const float *k_norm, *k_bias;   /* [index_d] */
    float eps;
    struct mc_rope rope; /* off 0 */
    void *qi;            /* [T,hi,index_d] f32 or e4m3 */
    float *gates;        /* [T,hi] */
};

/* dsa_topk: score(t, s) = kscale_s * sum over heads of gates[h] * relu(qi[h] . k[s]) for
 * first <= s <= pos; idx = the topk positions of the largest scores in rising order (lowest
 * position first on ties), -1 behind the last; all of them when they are no more than topk.
 * Bad sequences: all -1. */
struct mc_dsa_topk_p {
    struct mc_rows rows;
    struct mc_kv kv;
    const struct mc_slot *slots;
    int32_t index, hi, topk, context; /* context: longest, a capacity */
    int32_t first;                    /* as in mla_attn */
    const void *qi;
    const float *gates;
    int32_t *idx; /* [T,topk] */
    void *scratch;
};

/* route: logits = x W^T in f32; scores are their sigmoid, or softmax over all experts.
 * Selection by score + bias (bias NULL: by score), weight by score alone; with n_group > 1
 * only the topk_group groups whose two largest biased scores sum highest take part, the
 * others at -inf. The top_k largest (lowest id on ties), largest first; normalised (sum +
 * 1e-20) if asked, times factor. Then experts' lists for moe: order holds row*top_k +
 * place, by expert and rising; offset [E+1] where each expert's begins. */
struct mc_route_p {
    const int32_t *n_live;
    int32_t cap;
    const void *x;     /* [T,H] row type */
    struct mc_w w;     /* [E,H] */
    const float *bias; /* [E] or NULL */
    int32_t top_k, n_group, topk_group;
    bool softmax, norm;
    float factor;
    int32_t *ids;   /* [T,top_k] */
    float *weights; /* [T,top_k] */
    int32_t *offset, *order; /* [E+1], [T*top_k] */
    void *scratch;
};

/* moe: y[t] = sum over a row's places, in their order, of weight * down(silu(gate x) * up
 * x) of its expert, + add (times sigmoid(add_gate[t]) when that is given). Rounding: as glu
 * into mid's layout, then sums in f32, y in the row type. Reads only experts that were
 * chosen. */
struct mc_moe_p {
    const int32_t *n_live;
    int32_t cap, top_k;
    struct mc_act act; /* [T,H] */
    const int32_t *ids, *offset, *order;
    const float *weights;
    struct mc_ws gate, up, down; /* E matrices [I,H], [I,H], [H,I] */
    struct mc_act mid;           /* [T*top_k, I] */
    const void *add;             /* [T,H] row type: the shared expert; or NULL */
    const void *add_gate;        /* [T] row type, or NULL */
    void *y;                     /* [T,H] row type */
    void *scratch;
};

/* mtp_in: act [T,2H] = rms(emb) * enorm ++ rms(hidden) * hnorm: the token after each row's
 * hidden state, and that state after the model's last norm. */
struct mc_mtp_in_p {
    const int32_t *n_live;
    int32_t cap, h;
    const void *emb, *hidden; /* [T,H] row type */
    const float *enorm, *hnorm;
    float eps;
    struct mc_act act;
};

/* gather_rows: out[r] = norm[out_row[r]]; norm is the last join's norm_out. */
struct mc_gather_rows_p {
    struct mc_rows rows;
    const void *norm; /* [T,H] row type */
    int32_t h;
    void *out; /* [R,H] row type */
};

/* chain: in place over logits f32 [R,V]: foreign and padding ids to -inf, logit_bias, bans,
 * then repetition (prompt and output), presence and frequency (output) penalties, then
 * division by temperature (not for a greedy row). raw_lse is taken first, over the real
 * vocabulary. A row with a NaN or +inf gets max = NaN. */
struct mc_chain_p {
    struct mc_rows rows;
    float *logits;     /* [R, pitch] */
    float *raw; /* [R, pitch]: a copy of the real vocabulary, made before any change */
    int32_t vocab, n_real, pitch; /* ids >= n_real are padding */
    const struct mc_slot *slots;
    const uint16_t *counts;
    const struct mc_bias *bias;
    const uint32_t *masks; /* ban sets [n][ceil V/32] */
    const int32_t *eos;    /* [n_eos], masked while slot.n_gen < no_eos_until */
    int32_t n_eos;
    float *stat; /* [R][4]: max, lse of processed logits, raw max, raw lse */
};

/* sample: one token a row, exact over the whole vocabulary: top_k, top_p (renormalised),
 * min_p, then the draw: philox4x32-10 keyed by the slot's seed at counter {out.pos, 0, 0,
 * 0}; ids in rising order. Greedy: the largest processed logit, lowest id on ties. Fills
 * out[R]. */
struct mc_sample_p {
    struct mc_rows rows;
    const float *logits, *raw;
    int32_t vocab, n_real, pitch;
    const struct mc_slot *slots;
    const float *stat;
    struct mc_out *out; /* [R] */
    void *scratch;      /* need().scratch bytes */
};

/* commit: slot.tok, pos, n_gen and counts from out; copies out to the ring that the host
 * reads after the step's event. */
struct mc_commit_p {
    struct mc_rows rows;
    const struct mc_out *out;
    struct mc_slot *slots;
    uint16_t *counts;
    int32_t vocab;
    struct mc_out *ring; /* host-visible [R] */
};

/* nll: for each row t with target >= 0: lse - logit[target] over f32 logits [R,V]. */
struct mc_nll_p {
    const int32_t *n_live;
    int32_t cap, vocab, n_real, pitch;
    const float *logits;
    const int32_t *target; /* [cap] */
    float *nll, *lse;      /* [cap] */
};

/* ---- backend -------------------------------------------------------------------------- */

struct mc_need {
    size_t scratch; /* bytes behind the params' scratch pointer */
    size_t plan;    /* bytes of its work-list */
    size_t q, scale, zero; /* pack: bytes of the packed matrix */
};

struct mc_op {
    const char *name;
    size_t p_bytes; /* of its params struct */
    int (*need)(const void *p, struct mc_need *need, const char **why);
    int (*plan)(const void *p, const struct mc_rows *host_rows, void *buf); /* or NULL */
    int (*run)(struct mc_stream *s, const void *p);
};

struct mc_backend_opts {
    int threads;          /* 0: one a core */
    const char *cpu;      /* "portable", "avx2", "avx512", NULL: the best that runs here */
    int ref_act;          /* ref only: enum mc_act_layout to round activations to, -1: f32 */
};

/* A device and its bodies. Returned functions give 0 or a negative error code; a code is
 * one of MC_K_*, which equal the program's codes of the same name. */
struct mc_backend {
    const char *name; /* "ref", "cpu", "cuda" */
    char what[64];    /* "avx512-vnni, 2 threads" */
    uint16_t row_dt;  /* row type */
    const struct mc_op *op[MC_N_OP];

    /* The run layout for a disk format, and the activation layout that it reads. */
    uint16_t (*run_of)(const struct mc_backend *b, uint16_t disk_fmt);
    uint16_t (*act_of)(const struct mc_backend *b, uint16_t run_layout);

    void *(*alloc)(struct mc_backend *b, size_t bytes); /* device memory, zeroed; or NULL */
    void (*release)(struct mc_backend *b, void *p, size_t bytes);
    void *(*host_alloc)(struct mc_backend *b, size_t bytes); /* staging, zeroed */
    void (*host_release)(struct mc_backend *b, void *p, size_t bytes);
    /* A blocking copy of host bytes to device memory, for boot. */
    int (*upload)(struct mc_backend *b, void *dst, const void *src, size_t bytes);

    int (*stream_new)(struct mc_backend *b, struct mc_stream **out);
    void (*stream_free)(struct mc_stream *s);
    /* Events are numbers: mark() returns the ticket of all that was enqueued before it;
     * wait() blocks the caller until that is done, or returns the error that stopped it. */
    uint64_t (*mark)(struct mc_stream *s);
    int (*wait)(struct mc_stream *s, uint64_t ticket);
    bool (*done)(struct mc_stream *s, uint64_t ticket);
    /* Between begin and end run() records instead of enqueuing. */
    int (*graph_begin)(struct mc_stream *s);
    int (*graph_end)(struct mc_stream *s, struct mc_graph **out);
    int (*graph_run)(struct mc_stream *s, const struct mc_graph *g);
    void (*graph_free)(struct mc_graph *g);

    void (*close)(struct mc_backend *b);
};

enum { MC_K_EARG = -1, MC_K_EUNSUP = -3, MC_K_EINTERNAL = -17, MC_K_ENOMEM = -26 };

/* Each makes a backend or returns NULL with a static reason in *why. */
struct mc_backend *mc_ref_open(const struct mc_backend_opts *o, const char **why);
struct mc_backend *mc_cpu_open(const struct mc_backend_opts *o, const char **why);

/* Typed calls: mc_k_embed(b, s, &p). */
#define MC_OP(name)                                                                        \
    struct mc_##name##_p;                                                                  \
    static inline int mc_k_##name(const struct mc_backend *b, struct mc_stream *s,         \
                                  const struct mc_##name##_p *p)                           \
    {                                                                                      \
        return b->op[MC_OP_##name]->run(s, p);                                             \
    }
MC_OPS(MC_OP)
#undef MC_OP

#endif
