/* strided.h - elements and rows of strided views, for the bodies of `tensor`.
 *
 * A row is the last axis; rows count over the axes before it. OWNS nothing. THREAD: any.
 */
#ifndef MC_HOST_STRIDED_H
#define MC_HOST_STRIDED_H

#include "kernels/host/cast.h"
#include "kernels/types.h"

MC_INLINE int64_t mc_strided_rows(const struct mc_strided *v)
{
    return (int64_t)v->n[0] * v->n[1] * v->n[2];
}

/* Where row r of a view of `of`'s shape begins in v. */
MC_INLINE int64_t mc_strided_row(const struct mc_strided *v,
                                     const struct mc_strided *of, int64_t r)
{
    int64_t c = r % of->n[2], b = r / of->n[2] % of->n[1], a = r / of->n[2] / of->n[1];

    return a * v->step[0] + b * v->step[1] + c * v->step[2];
}

MC_INLINE float mc_strided_get(const struct mc_strided *v, int64_t at)
{
    switch (v->dt) {
    case MC_BF16:
        return mc_f32_of_bf16(((const uint16_t *)v->p)[at]);
    case MC_F16:
        return mc_f32_of_f16(((const uint16_t *)v->p)[at]);
    case MC_I32:
        return (float)((const int32_t *)v->p)[at];
    default:
        return ((const float *)v->p)[at];
    }
}

MC_INLINE int32_t mc_i32_of_f32(float x)
{
    return x >= 0x1p31f    ? INT32_MAX
           : x >= -0x1p31f ? (int32_t)lrintf(x)
           : x < 0         ? INT32_MIN
                           : 0;
}

MC_INLINE void mc_strided_put(const struct mc_strided *v, int64_t at, float x)
{
    switch (v->dt) {
    case MC_BF16:
        ((uint16_t *)v->p)[at] = mc_bf16_of_f32(x);
        break;
    case MC_F16:
        ((uint16_t *)v->p)[at] = mc_f16_of_f32(x);
        break;
    case MC_I32:
        ((int32_t *)v->p)[at] = mc_i32_of_f32(x);
        break;
    default:
        ((float *)v->p)[at] = x;
    }
}

#endif
