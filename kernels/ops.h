/* ops.h - the operations: their ids and one params struct each.
 *
 * Rules, letters and what need, plan and run may do: see kernels.h. Rounding points are
 * stated beside each operation. OWNS nothing. THREAD: as kernels.h. */
#ifndef MC_KERNELS_OPS_H
#define MC_KERNELS_OPS_H

#include "kernels/types.h"

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
    MC_OP(mtp_in) MC_OP(nll) MC_OP(pool) MC_OP(lora) MC_OP(tensor) MC_OP(tap) \
    MC_OP(agree) MC_OP(shard_merge)

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
 * n_list[0] of them; cap the capacity. Pages of other ranks are passed over, here and by
 * page_copy. */
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
 * than want_tag, or is none. Where tokens are sharded each rank looks at its own pages, and
 * all find what one does (a collective: found is brought). */
struct mc_page_check_p {
    struct mc_rows rows;
    struct mc_kv kv;
    struct mc_slot *slots;
    uint32_t *found;     /* [S] where tokens are sharded */
    struct mc_peer peer;
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
 * pos * inv_freq. Rows of a sequence marked bad write nothing. fresh: see types.h. */
struct mc_gqa_prep_p {
    struct mc_rows rows;
    struct mc_kv kv;
    const struct mc_slot *slots;
    int32_t layer, h;
    void *q, *k, *v;            /* row type */
    const float *q_norm, *k_norm; /* [d] or NULL */
    float eps;
    struct mc_rope rope;
    float *fresh; /* or NULL: written for prefill rows, too */
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
    const float *fresh; /* or NULL: what prefill rows see of their own step */
};

/* The first part of row t: rows below cap_decode have n_part of them, later ones one. */
MC_INLINE int64_t mc_part_row(int32_t t, int32_t cap_decode, int32_t n_part)
{
    return t < cap_decode ? (int64_t)t * n_part
                          : (int64_t)cap_decode * n_part + (t - cap_decode);
}

/* attn_merge: folds parts left to right (decode rows: 0..pos/MC_SPLIT, below n_part;
 * prefill rows: part 0), normalises, writes act ([T, h*d]), or out if that is given; zeros
 * where no position was seen. With fold they stay unnormalised, for shard_merge. */
struct mc_attn_merge_p {
    struct mc_rows rows;
    int32_t h, d, n_part, cap_decode;
    const float *o, *ml;
    struct mc_act act;
    void *out;   /* [T,h,d] row type, or NULL */
    float *fold; /* [cap,h,d], then {max, sum} [cap,h,2]; or NULL */
};

/* shard_merge: what the ranks of a group made of their own tokens, for this rank's heads:
 * folded by rising phase (kernels/host/kv.h), so that it does not matter with whom a
 * sequence begins, and normalised. A collective: fold is brought. */
struct mc_shard_merge_p {
    struct mc_rows rows;
    struct mc_kv kv;
    int32_t h, d;      /* heads of a rank */
    const float *fold; /* of n_shard*h heads, as attn_merge leaves it */
    void *out;         /* [T,h,d] row type */
    struct mc_peer peer;
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
    float *fresh;        /* as in gqa_prep */
};

/* Long chunks: prefill rows whose sequence has at least long_rows rows in the step (0: none)
 * are left to attn_ragged by mla_q, mla_attn and mla_out. */
MC_INLINE bool mc_row_is_long(const struct mc_rows *r, int32_t t, int32_t long_rows)
{
    const int32_t *q0 = r->q0;

    return long_rows > 0 && t >= r->live[MC_LIVE_DECODE] &&
           q0[r->row_seq[t] + 1] - q0[r->row_seq[t]] >= long_rows;
}

/* mla_q: rotates the last r of each head of q and absorbs W_UK into the first nope:
 * out [T,h,c+r] = q[0..nope) W_UK_h ++ rope(q[nope..)). Without w_uk (n 0) only rotates:
 * out [T,h,nope+r], which may be q. Rows of long chunks are only rotated, within q. A
 * quantised w_uk reads q as act_of says; so w_uv. */
struct mc_mla_q_p {
    struct mc_rows rows;
    int32_t h, nope, c, long_rows;
    void *q;     /* [T,h,nope+r] row type */
    struct mc_ws w_uk; /* h matrices [c,nope] */
    struct mc_rope rope; /* dim r, off nope */
    void *out;         /* row type */
};

/* mla_attn: as gqa_attn, over latents that all heads share: softmax(scale q.[c;r]) c. o
 * [parts][h][c], ml [parts][h][2]. With idx a row sees the positions of its list only, in
 * the list's order; part i then holds entries [i*MC_SPLIT, ...) of it, and n_part need
 * not be more than those of topk or of the longest context. Positions below `first` are not
 * seen: 0, or 1 in an MTP layer, whose entry of position p lies at p + 1. Rows of long
 * chunks (not with idx) see nothing. Where tokens are sharded a row sees this rank's own,
 * as a shorter context with splits of its own. */
struct mc_mla_attn_p {
    struct mc_rows rows;
    struct mc_kv kv;
    const struct mc_slot *slots;
    int32_t layer, h, n_part, cap_decode;
    float scale;
    const void *q;      /* [T,h,c+r] row type */
    const int32_t *idx; /* [T,topk] positions, rising, -1 behind the last; or NULL */
    int32_t topk;
    int32_t first, long_rows;
    float *o, *ml;
    const void *plan;
    const float *fresh; /* as in gqa_attn; not with idx, nor of sharded tokens */
};

/* mla_out: act [T,h*v] = o_lat of each head times W_UV_h^T; rows of long chunks hold
 * anything. */
struct mc_mla_out_p {
    struct mc_rows rows;
    int32_t h, c, v, long_rows;
    const void *o_lat; /* [T,h,c] row type */
    struct mc_ws w_uv; /* h matrices [v,c] */
    struct mc_act act;
};

/* attn_ragged: rows of long chunks attend to keys and values expanded from the latents as
 * stored: act = softmax(scale q.[W_UK latent; key]) (W_UV latent) over first..pos. Less work
 * than the absorbed form where a token's expansion serves enough rows. A head's split of
 * tokens is expanded at a time, in f32; splits and folds as in gqa_attn. (cuda: more at a time,
 * keys, values and probabilities rounded to bf16, a running softmax.) Runs behind mla_out,
 * and leaves other rows alone.
 * A named exception to rule 5: a row's result depends on whether its chunk is long (the two
 * forms differ in rounding), though on nothing else of the batch. */
struct mc_attn_ragged_p {
    struct mc_rows rows;
    struct mc_kv kv;
    const struct mc_slot *slots;
    int32_t layer, h, nope, v, first, long_rows;
    float scale;
    const void *q;     /* [T,h,nope+r] row type, rotated by mla_q */
    struct mc_w kv_b;  /* [h*(nope+v), c]: a head's keys, then its values */
    struct mc_act act; /* [T,h*v] */
    void *scratch;     /* need().scratch bytes */
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
 * position first on ties; a NaN counts as -inf), -1 behind the last; all of them when they
 * are no more than topk. Bad sequences: all -1. Where tokens are sharded: of this rank's
 * own. */
struct mc_dsa_topk_p {
    struct mc_rows rows;
    struct mc_kv kv;
    const struct mc_slot *slots;
    int32_t index, hi, topk, context; /* context: longest, a capacity */
    int32_t first;                    /* as in mla_attn */
    const void *qi;
    const float *gates;
    int32_t *idx; /* [T,topk] */
    float *score; /* [T,topk] their scores, where positions had to be chosen; or NULL */
    void *scratch;
};

/* dsa_merge: of the lists that the ranks of a group chose among their own tokens, what all of
 * them together would have chosen, this rank's own positions of it. A collective: lists is
 * brought. */
struct mc_dsa_merge_p {
    struct mc_rows rows;
    struct mc_kv kv;
    int32_t topk, first;
    const int32_t *lists; /* [cap,topk] of dsa_topk; then their scores, f32 [cap,topk] */
    int32_t *idx;         /* [T,topk] */
    struct mc_peer peer;
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
 * chosen. Row i of mid is what the expert of place order[i] made before down. */
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

/* all_gather: out[i] = in[i / n] of rank i mod n, row_bytes each: what every rank made of
 * its rows, on all ranks. With n_shard ranks making parts of every row, out[i] = the in[i] of
 * this rank's group side by side. */
struct mc_all_gather_p {
    const int32_t *n_live; /* rows of out */
    int32_t cap;
    const void *in; /* [ceil cap/n]; of parts [cap] */
    void *out;      /* [cap] */
    int32_t row_bytes; /* of in */
    int32_t n_shard;   /* 0: whole rows */
    struct mc_peer peer;
};

/* all_to_all: rows whose columns are spread over the ranks, whole to the rank that works on
 * them: row i to rank i mod n, as its row i / n. */
struct mc_all_to_all_p {
    const int32_t *n_live; /* rows of in */
    int32_t cap;
    const float *in; /* [cap, pitch]: this rank's columns of every row */
    int32_t pitch, out_pitch;
    int32_t col0[MC_MAX_RANKS + 1]; /* columns [col0[r], col0[r+1]) are rank r's */
    float *out;                     /* [ceil cap/n, out_pitch] */
    struct mc_peer peer;
};

/* agree: parts the ranks when a digest of this step's rows, and of its sequences' page
 * tables and slots, is not the same on all. With rows.live NULL they only meet. A rank that
 * is alone agrees. */
enum { MC_FAULT_NONE, MC_FAULT_ERROR, MC_FAULT_STALL };
struct mc_agree_p {
    struct mc_rows rows;
    struct mc_kv kv;
    const struct mc_slot *slots;
    struct mc_peer peer;
    int32_t fault; /* MC_FAULT_...: planted by tests; STALL never returns */
};

/* gather_rows: out[r] = norm[out_row[r]]; norm is the last join's norm_out. */
struct mc_gather_rows_p {
    struct mc_rows rows;
    const void *norm; /* [T,H] row type */
    int32_t h;
    void *out; /* [R,H] row type */
};

/* chain: in place over logits f32 [R,V]: padding ids to -inf, logit_bias, bans,
 * then repetition (prompt and output), presence and frequency (output) penalties, then
 * division by temperature (not for a greedy row). raw_lse is taken first, over the real
 * vocabulary. A row with a NaN or +inf gets max = NaN. Of n ranks each has the rows r with
 * r mod n its own, at r / n of logits, raw and stat. */
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
    struct mc_peer peer;
};

/* sample: one token a row, exact over the whole vocabulary: top_k, top_p (renormalised),
 * min_p, then the draw: philox4x32-10 keyed by the slot's seed at counter {out.pos, 0, 0,
 * 0}; ids in rising order. Greedy: the largest processed logit, lowest id on ties. Fills
 * out[R]; of n ranks each its own rows, as chain has them. */
struct mc_sample_p {
    struct mc_rows rows;
    const float *logits, *raw;
    int32_t vocab, n_real, pitch;
    const struct mc_slot *slots;
    const float *stat;
    struct mc_out *out; /* [R] */
    void *scratch;      /* need().scratch bytes */
    struct mc_peer peer;
};

/* verify: which drafts of a sequence stand. Its sampled rows follow each other; the input of
 * each behind the first is a draft for what the row before draws. A draft stands when that is
 * the token drawn (sample's out), and all before it stand: what comes out are then the tokens
 * of a run without drafts, greedy or drawn by the same philox; for a draft that is certain of
 * itself this is rejection sampling. accepted [S]: how many stand; next [S]: the token behind
 * them, -1 when its row was bad or the sequence has no sampled row. */
struct mc_verify_p {
    struct mc_rows rows;
    const struct mc_out *out; /* [R], of all ranks */
    int32_t *accepted, *next; /* [S] */
};

/* commit: slot.tok, pos, n_gen and counts from out; copies out to the ring that the host
 * reads after the step's event. */
struct mc_commit_p {
    struct mc_rows rows;
    const struct mc_out *out;
    struct mc_slot *slots;
    uint16_t *counts;
    int32_t vocab;
    struct mc_out *ring; /* host-visible [R], or NULL: the host does not read this rank */
};

/* nll: for each row t with target >= 0: lse - logit[target] over f32 logits [R,V]. */
struct mc_nll_p {
    const int32_t *n_live;
    int32_t cap, vocab, n_real, pitch;
    const float *logits;
    const int32_t *target; /* [cap] */
    float *nll, *lse;      /* [cap] */
};

/* tensor: what scripts compute over views (mc.tensor); never in a pass. Elements are read as
 * f32, everything is done in f32 and rounded to out's type. i32 is only moved: COPY, and the
 * places of TOPK. out overlaps no input.
 *
 *   COPY                    out = a, cast; to i32 the nearest, within its range, 0 of a NaN
 *   ADD SUB MUL DIV         out = a op b, or a op scale when b.p is NULL; equal shapes
 *   MATMUL                  out [.,.,m,n] = a [.,.,m,k] b [.,.,k,n]; k rising in one sum
 *   SUM MEAN NORM MAX       of a's last axis, where out has 1; NORM the root of squares' sum
 *   SOFTMAX                 over the last axis
 *   TOPK                    out the largest of a's last axis, largest first, and ids (i32) their
 *                           places from 0; lowest place first on ties, a NaN as -inf */
enum mc_tensor_what {
    MC_T_COPY, MC_T_ADD, MC_T_SUB, MC_T_MUL, MC_T_DIV, MC_T_MATMUL,
    MC_T_SUM, MC_T_MEAN, MC_T_NORM, MC_T_MAX, MC_T_SOFTMAX, MC_T_TOPK,
    MC_N_T,
};
enum { MC_TOPK_MAX = 1024 };
struct mc_tensor_p {
    int32_t what; /* enum mc_tensor_what */
    float scale;
    struct mc_strided out, ids, a, b; /* ids of TOPK; b of two operands */
};

/* tap: for the list's entries of this layer: without copy x += scale * add, product and sum
 * each rounded; with copy out = x. Of n ranks each has the rows r with r mod n its own, at
 * r / n of x. */
struct mc_tap_p {
    const struct mc_taps *taps;
    int32_t layer, cols;
    bool copy;
    void *x; /* row type; f32 of logits */
    struct mc_peer peer;
};

#endif
