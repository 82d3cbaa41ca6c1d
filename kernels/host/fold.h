/* fold.h - the one arithmetic by which attention parts are put together.
 *
 * A part is {max, sum} and an unnormalised o[d] of one split. Prefill rows fold as they go,
 * decode rows leave parts for attn_merge: both call this, left to right, so that a result
 * does not depend on how a context was cut into chunks. Element by element and without
 * fused operations: any width of vector gives the same bits. */
#ifndef MC_HOST_FOLD_H
#define MC_HOST_FOLD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* (ml, o) becomes itself followed by the part (ml1, o1); a part of sum 0 is empty. */
static inline void mc_fold(float *ml, float *o, const float *ml1, const float *o1,
                           int32_t d)
{
    float m, a, b;
    int32_t i;

    if (ml1[1] == 0)
        return;
    if (ml[1] == 0) {
        ml[0] = ml1[0];
        ml[1] = ml1[1];
        memcpy(o, o1, (size_t)d * sizeof o[0]);
        return;
    }
    m = ml[0] > ml1[0] ? ml[0] : ml1[0];
    a = expf(ml[0] - m);
    b = expf(ml1[0] - m);
    for (i = 0; i < d; i++)
        o[i] = o[i] * a + o1[i] * b;
    ml[0] = m;
    ml[1] = ml[1] * a + ml1[1] * b;
}

/* o /= sum, or zeros when nothing was seen. */
static inline void mc_fold_end(const float *ml, float *o, int32_t d)
{
    float inv = ml[1] == 0 ? 0 : 1 / ml[1];
    int32_t i;

    for (i = 0; i < d; i++)
        o[i] *= inv;
}

#endif
