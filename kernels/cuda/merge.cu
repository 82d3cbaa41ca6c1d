/* merge.cu - attn_merge: parts folded left to right, normalised, into an activation or
 * rows; or as they are, with their {max, sum}, for the fold of ranks. A warp takes 128
 * columns of a row, four a lane. */
#include "kernels/cuda/dev.cuh"

MC_DEV void leave_fold(const struct mc_attn_merge_p &p, int64_t t, int32_t c,
                       const mc_f4 &o, float m, float sum)
{
    int64_t k = static_cast<int64_t>(p.h) * p.d;
    float *ml = p.fold + p.rows.cap * k + (t * p.h + c / p.d) * 2;

    if (c >= k)
        return;
    mc_st16(p.fold + t * k + c, {__float_as_uint(o.v[0]), __float_as_uint(o.v[1]),
                                 __float_as_uint(o.v[2]), __float_as_uint(o.v[3])});
    if (c % p.d == 0) {
        ml[0] = m;
        ml[1] = sum;
    }
}

MC_KERNEL(k_attn_merge, struct mc_attn_merge_p)
{
    int32_t t = static_cast<int32_t>(blockIdx.x), k = p.h * p.d, n;
    int32_t c0 = (static_cast<int32_t>(blockIdx.y) * 4 + mc_warp()) * 128,
            c = c0 + 4 * mc_lane();
    int64_t part;
    float m = -INFINITY, sum = 0;
    mc_f4 o = {};

    if (t >= p.rows.live[MC_LIVE_ROWS] || c0 >= k)
        return;
    n = t < p.rows.live[MC_LIVE_DECODE] ? p.rows.pos[t] / MC_SPLIT + 1 : 1;
    n = n < p.n_part ? n : p.n_part;
    part = mc_part_row(t, p.cap_decode, p.n_part);
    if (c < k) {
        float inv;

        for (int32_t i = 0; i < n; i++, part++) {
            const float *ml = p.ml + (part * p.h + c / p.d) * 2;
            float m1 = ml[0], l1 = ml[1], top, a, b;

            if (l1 == 0)
                continue;
            uint4 u = mc_ld16(p.o + part * k + c);
            mc_f4 o1 = {{__uint_as_float(u.x), __uint_as_float(u.y), __uint_as_float(u.z),
                         __uint_as_float(u.w)}};

            if (sum == 0) {
                m = m1;
                sum = l1;
                o = o1;
                continue;
            }
            top = m > m1 ? m : m1;
            a = expf(m - top);
            b = expf(m1 - top);
            for (int j = 0; j < 4; j++)
                o.v[j] = o.v[j] * a + o1.v[j] * b;
            m = top;
            sum = sum * a + l1 * b;
        }
        inv = p.fold ? 1 : sum == 0 ? 0 : 1 / sum;
        for (int j = 0; j < 4; j++)
            o.v[j] *= inv;
    }
    if (p.fold)
        leave_fold(p, t, c, o, m, sum);
    else if (!p.out)
        mc_act_put(p.act, t, c0, o);
    else if (c < k)
        mc_bf16_put4(static_cast<uint16_t *>(p.out) + static_cast<int64_t>(t) * k + c, o);
}
