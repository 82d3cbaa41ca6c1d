/* ragged.cuh - the scratch of attn_ragged, as its launcher and its kernels see it.
 *
 * A round takes `seg` positions, [round*seg, ..), of every long chunk's context. Their
 * latents lie side by side as bf16 rows, a chunk's from a multiple of 64 on, in the order
 * of sequences; a product with kv_b makes each row its keys and values. What rows have
 * summed so far is carried from round to round. Owns nothing. THREAD: device code. */
#ifndef MC_CUDA_RAGGED_CUH
#define MC_CUDA_RAGGED_CUH

#include "kernels/cuda/dev.cuh"
#include "kernels/cuda/params.h"

MC_DEV bool mc_seq_is_long(const struct mc_rows &r, int32_t s, int32_t long_rows)
{
    return mc_row_is_long(&r, r.q0[s], long_rows);
}

/* How many positions of a round sequence s has, of those that its rows see. */
MC_DEV int32_t mc_round_len(const mc_cu_attn_ragged &a, int32_t s)
{
    int32_t n = a.p.rows.kv_len[s] - a.round * a.seg;

    return n < 0 ? 0 : n < a.seg ? n : a.seg;
}

/* The first row of sequence s in the scratch; of n sequences: rows in use. */
MC_DEV int32_t mc_round_row(const mc_cu_attn_ragged &a, int32_t s)
{
    int32_t row = 0;

    for (int32_t i = 0; i < s; i++)
        if (mc_seq_is_long(a.p.rows, i, a.p.long_rows))
            row += (mc_round_len(a, i) + 63) / 64 * 64;
    return row;
}

#endif
