/* vec_portable.h - the vector words of the bodies in plain C, 4 lanes, and what each
 * means.
 *
 * A body is written once over these words and compiled for each width. A float word acts
 * lane by lane. Only what is said to be exact is the same in every width: fma here is a
 * product and a sum, each rounded. */
#ifndef MC_CPU_VEC_H
#define MC_CPU_VEC_H

#include <stdint.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/host/cast.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { VN = 4 };
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef uint32_t vu __attribute__((vector_size(16)));

#define VEC static inline __attribute__((always_inline))

VEC vf vf_load(const float *p)
{
    vf x;

    memcpy(&x, p, sizeof x);
    return x;
}
VEC void vf_store(float *p, vf x) { memcpy(p, &x, sizeof x); }
VEC vf vf_load_n(const float *p, int n) /* n values, then zeros; reads no further */
{
    vf x = {0};

    memcpy(&x, p, (size_t)n * 4);
    return x;
}
VEC void vf_store_n(float *p, vf x, int n) { memcpy(p, &x, (size_t)n * 4); }
VEC vf vf_set(float x) { return (vf){x, x, x, x}; }
VEC vf vf_add(vf a, vf b) { return a + b; }
VEC vf vf_sub(vf a, vf b) { return a - b; }
VEC vf vf_mul(vf a, vf b) { return a * b; }
VEC vf vf_div(vf a, vf b) { return a / b; }
VEC vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
VEC vf vf_pick(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }
VEC vf vf_max(vf a, vf b) { return vf_pick(a > b, a, b); } /* b when either is a NaN */
VEC vf vf_min(vf a, vf b) { return vf_pick(a < b, a, b); } /* the same */
VEC vf vf_abs(vf x) { return (vf)((vi)x & 0x7fffffff); }
VEC vf vf_round(vf x) /* to nearest even, |x| < 2^22 */
{
    const vf big = vf_set(0x1.8p23f);

    return x + big - big;
}
VEC vi vf_int(vf x) /* of whole numbers */
{
    return __builtin_convertvector(x, vi);
}
VEC vf vf_exp2i(vf y, vi n)
{
    return (vf)((vu)y + ((vu)n << 23));
} /* y * 2^n, nothing denormal */
VEC vf vf_zero_below(vf x, vf lim, vf y) { return (vf)(~(x < lim) & (vi)y); }
VEC float vf_sum(vf x) { return (x[0] + x[2]) + (x[1] + x[3]); }
VEC float vf_top(vf x) /* the largest lane */
{
    float a = x[0] > x[1] ? x[0] : x[1], b = x[2] > x[3] ? x[2] : x[3];

    return a > b ? a : b;
}
/* Magnitudes compared as integers: a NaN is above an infinity, that above all else. a is
 * a magnitude already. */
VEC vf vf_mag_max(vf a, vf b)
{
    vi x = (vi)a, y = (vi)vf_abs(b);

    return vf_pick(x > y, (vf)x, (vf)y);
}
VEC float vf_mag_top(vf x) /* the largest lane in that order */
{
    vi b = (vi)x;
    int32_t lo = b[0] > b[1] ? b[0] : b[1], hi = b[2] > b[3] ? b[2] : b[3];

    return mc_f32_of_bits((uint32_t)(lo > hi ? lo : hi));
}
/* The sum of a vector's lanes, here of four vectors at once: quads of lanes first, as
 * t = (x0 + x2) + (x1 + x3), then over the quads t0, or t0 + t1, or (t0 + t2) + (t1 +
 * t3). */
VEC void vf_sum4(vf a, vf b, vf c, vf d, float *out)
{
    out[0] = vf_sum(a), out[1] = vf_sum(b), out[2] = vf_sum(c), out[3] = vf_sum(d);
}
VEC void vf_transpose(vf *x) /* VN vectors as a square */
{
    vf a = x[0], b = x[1], c = x[2], d = x[3];
    int i;

    for (i = 0; i < 4; i++)
        x[i] = (vf){a[i], b[i], c[i], d[i]};
}

/* VN narrow values as f32, exact. */
VEC vf vf_load_f16(const uint16_t *p)
{
    return (vf){mc_f32_of_f16(p[0]), mc_f32_of_f16(p[1]), mc_f32_of_f16(p[2]),
                mc_f32_of_f16(p[3])};
}
VEC vf vf_load_bf16(const uint16_t *p)
{
    return (vf)((vi){p[0], p[1], p[2], p[3]} << 16);
}
VEC vf vf_load_e4m3(const uint8_t *p)
{
    return (vf){mc_f32_of_e4m3(p[0]), mc_f32_of_e4m3(p[1]), mc_f32_of_e4m3(p[2]),
                mc_f32_of_e4m3(p[3])};
}
VEC vf vf_load_e4m3_256(const uint8_t *p) /* over 256, no NaNs among them */
{
    return vf_load_e4m3(p) * 0x1p-8f;
}
VEC void vf_load2_e4m3_256(const uint8_t *p, vf *a, vf *b) /* 2 VN of them */
{
    *a = vf_load_e4m3_256(p);
    *b = vf_load_e4m3_256(p + VN);
}
VEC vf vf_load_u8(const uint8_t *p) { return (vf){p[0], p[1], p[2], p[3]}; }
VEC vf vf_load_i8(const int8_t *p) { return (vf){p[0], p[1], p[2], p[3]}; }
VEC void vf_store_bf16(uint16_t *p, vf x) /* to nearest even, NaN stays */
{
    for (int i = 0; i < VN; i++)
        p[i] = mc_bf16_of_f32(x[i]);
}
VEC void vf_store_i16(int16_t *p, vf x) /* to nearest even, |x| <= 32767 */
{
    vi q = vf_int(vf_round(x));

    for (int i = 0; i < VN; i++)
        p[i] = (int16_t)q[i];
}

/* Integer words. A lane holds a pair of int16, or one int32 sum. */
VEC vi vi_load(const void *p)
{
    vi x;

    memcpy(&x, p, sizeof x);
    return x;
}
VEC void vi_store(void *p, vi x) { memcpy(p, &x, sizeof x); }
VEC vi vi_zero(void) { return (vi){0}; }
VEC vi vi_set_pair(const int16_t *p) /* the pair at p in every lane */
{
    int32_t x;

    memcpy(&x, p, 4);
    return (vi){x, x, x, x};
}
VEC vi vi_madd(vi acc, vi w, vi a) /* acc + w.lo*a.lo + w.hi*a.hi, exact */
{
#if defined(__SSE2__)
    return acc + (vi)_mm_madd_epi16((__m128i)w, (__m128i)a);
#else
    return acc + (w << 16 >> 16) * (a << 16 >> 16) + (w >> 16) * (a >> 16);
#endif
}
VEC vi vi_add(vi a, vi b) { return a + b; }
VEC vf vi_float(vi x) { return __builtin_convertvector(x, vf); }
VEC vi vi_nibbles(vi x, int i) /* pairs of nibble i of each 16 bits */
{
    return x >> (4 * i) & 0x000f000f;
}
VEC vi vi_e2m1(vi x, int i) /* pairs of e2m1 nibble i of each 16 bits, times 512 */
{
    int16_t w[2 * VN];
    int j;

    memcpy(w, &x, sizeof w);
    for (j = 0; j < 2 * VN; j++)
        w[j] = (int16_t)e2m1_512((uint16_t)w[j] >> (4 * i) & 15);
    memcpy(&x, w, sizeof x);
    return x;
}
VEC vi vi_load_i8(const int8_t *p) /* 2*VN bytes as pairs */
{
    typedef int8_t bytes __attribute__((vector_size(8)));
    typedef int16_t words __attribute__((vector_size(16)));
    bytes x;

    memcpy(&x, p, sizeof x);
    return (vi)__builtin_convertvector(x, words);
}

#endif
