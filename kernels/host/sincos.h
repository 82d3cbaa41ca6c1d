/* sincos.h - sine and cosine of a rotary angle, the same bits on every device.
 *
 * The angle is a float up to position times frequency: reduced by multiples of pi/2 in
 * double, exactly enough up to 2^27; then Cephes' polynomials, within 1.5 ulp. A
 * library's own would keep an array in local memory for large angles. */
#ifndef MC_HOST_SINCOS_H
#define MC_HOST_SINCOS_H

#include <stdint.h>

#include "kernels/inline.h"

MC_INLINE void mc_sincos(float angle, float *s, float *c)
{
    double x = (double)angle,
           n = x * 0.63661977236758134 + 0x1.8p52; /* 2/pi; to nearest */
    int64_t q = (int64_t)(n - 0x1.8p52);
    float r, z, sine, cosine;

    n = (double)q;
    r = (float)(x - n * 0x1.921fb54400000p+0 -
                n * 0x1.0b4611a626331p-34); /* pi/2 in two */
    z = r * r;
    sine = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * r +
           r;
    cosine = ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z +
              4.166664568298827e-2f) * z * z - 0.5f * z + 1;
    *s = q & 1 ? cosine : sine;
    *c = q & 1 ? sine : cosine;
    if (q & 2)
        *s = -*s;
    if ((q + 1) & 2)
        *c = -*c;
}

#endif
