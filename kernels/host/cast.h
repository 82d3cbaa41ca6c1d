/* cast.h - the one definition of the narrow float formats: bf16, f16, e4m3.
 *
 * Every cast rounds to nearest even and keeps a NaN a NaN. e4m3 (no infinities, largest
 * 448) clamps to +-448 first, infinities too; its NaN is 0x7F whatever the sign was.
 * Written in integers, so that hosts and devices agree byte for byte. */
#ifndef MC_HOST_CAST_H
#define MC_HOST_CAST_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/inline.h"

MC_INLINE uint32_t mc_bits_of_f32(float x)
{
    uint32_t u;

    memcpy(&u, &x, 4);
    return u;
}

MC_INLINE float mc_f32_of_bits(uint32_t u)
{
    float x;

    memcpy(&x, &u, 4);
    return x;
}

MC_INLINE float mc_f32_of_bf16(uint16_t v)
{
    return mc_f32_of_bits((uint32_t)v << 16);
}

MC_INLINE uint16_t mc_bf16_of_f32(float x)
{
    uint32_t u = mc_bits_of_f32(x);

    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40); /* quiet, so that the payload can't vanish */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

MC_INLINE float mc_f32_of_f16(uint16_t v)
{
    uint32_t sign = (uint32_t)(v & 0x8000) << 16, e = v >> 10 & 31, m = v & 0x3ff;

    if (e == 0)
        return mc_f32_of_bits(sign | mc_bits_of_f32((float)m * 0x1p-24f));
    if (e == 31)
        return mc_f32_of_bits(sign | 0x7f800000 | m << 13);
    return mc_f32_of_bits(sign | (e + 112) << 23 | m << 13);
}

MC_INLINE uint16_t mc_f16_of_f32(float x)
{
    uint32_t u = mc_bits_of_f32(x), a = u & 0x7fffffff;
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);

    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x1ff));
    if (a >= 0x477ff000) /* 65520, half way past the largest */
        return sign | 0x7c00;
    if (a < 0x38800000) /* subnormal: steps of 2^-24; adding 0.5 leaves them in the
                           mantissa */
        return (uint16_t)(sign | (mc_bits_of_f32(mc_f32_of_bits(a) + 0.5f) - 0x3f000000));
    a += 0xfff + (a >> 13 & 1);
    return (uint16_t)(sign | ((a >> 13) - (112 << 10)));
}

MC_INLINE float mc_f32_of_e4m3(uint8_t v)
{
    uint32_t sign = (uint32_t)(v & 0x80) << 24, a = v & 0x7f;

    if (a == 0x7f)
        return mc_f32_of_bits(sign | 0x7fc00000);
    if (a < 8)
        return mc_f32_of_bits(sign | mc_bits_of_f32((float)a * 0x1p-9f));
    return mc_f32_of_bits(sign | ((a << 20) + (120u << 23)));
}

MC_INLINE uint8_t mc_e4m3_of_f32(float x)
{
    uint32_t u = mc_bits_of_f32(x), a = u & 0x7fffffff;
    uint8_t sign = (uint8_t)(u >> 24 & 0x80);

    if (a > 0x7f800000)
        return 0x7f;
    if (a >= 0x43e00000) /* 448 */
        return sign | 0x7e;
    if (a < 0x3c800000) /* below 2^-6: steps of 2^-9; adding 2^14 leaves them in the
                           mantissa */
        return (uint8_t)(sign |
                         (mc_bits_of_f32(mc_f32_of_bits(a) + 0x1p14f) - 0x46800000));
    a += 0x7ffff + (a >> 20 & 1);
    return (uint8_t)(sign | ((a >> 20) - (120 << 3)));
}

#endif
