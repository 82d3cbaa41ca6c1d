/* vec_avx512.h - the vector words of the bodies, 16 lanes: AVX-512 F, BW, DQ, VL, VNNI.
 * vec_portable.h says what each word means. */
#ifndef MC_CPU_VEC_H
#define MC_CPU_VEC_H

#include <immintrin.h>
#include <stdint.h>

#include "kernels/host/cast.h"

enum { VN = 16 };
typedef __m512 vf;
typedef __m512i vi;

#define VEC static inline __attribute__((always_inline))

VEC vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
VEC void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
VEC __mmask16 lanes(int n) { return (__mmask16)((1u << n) - 1); }
VEC vf vf_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(lanes(n), p); }
VEC void vf_store_n(float *p, vf x, int n) { _mm512_mask_storeu_ps(p, lanes(n), x); }
VEC vf vf_set(float x) { return _mm512_set1_ps(x); }
VEC vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
VEC vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
VEC vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
VEC vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
VEC vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
VEC vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
VEC vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
VEC vf vf_abs(vf x) { return _mm512_abs_ps(x); }
VEC vf vf_round(vf x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT); }
VEC vi vf_int(vf x) { return _mm512_cvtps_epi32(x); }
VEC vf vf_exp2i(vf y, vi n)
{
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(y), _mm512_slli_epi32(n, 23)));
}
VEC vf vf_zero_below(vf x, vf lim, vf y)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, lim, _CMP_NLT_UQ), y);
}

VEC float vf_sum(vf x)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

VEC float vf_top(vf x) { return _mm512_reduce_max_ps(x); }
VEC vf vf_mag_max(vf a, vf b)
{
    return _mm512_castsi512_ps(
        _mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(vf_abs(b))));
}
VEC float vf_mag_top(vf x)
{
    return mc_f32_of_bits((uint32_t)_mm512_reduce_max_epi32(_mm512_castps_si512(x)));
}

VEC __m512 pair_sum(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}

VEC void vf_sum4(vf a, vf b, vf c, vf d, float *out)
{
    __m512d x = _mm512_castps_pd(pair_sum(a, b)), y = _mm512_castps_pd(pair_sum(c, d));
    __m512 z = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(z), _mm512_extractf32x8_ps(z, 1));

    _mm_storeu_ps(out,
                  _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1)));
}

VEC void vf_transpose(vf *x)
{
    vf y[16];
    int i;

    _Pragma("GCC unroll 16") for (i = 0; i < 16; i += 4) { /* 4x4 blocks of a lane each */
        __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(x[i], x[i + 1]));
        __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(x[i], x[i + 1]));
        __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(x[i + 2], x[i + 3]));
        __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(x[i + 2], x[i + 3]));

        y[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        y[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        y[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        y[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    _Pragma("GCC unroll 4") for (i = 0; i < 4; i++) { /* then the lanes */
        vf a = _mm512_shuffle_f32x4(y[i], y[i + 4], 0x88);
        vf b = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0x88);
        vf c = _mm512_shuffle_f32x4(y[i], y[i + 4], 0xdd);
        vf d = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0xdd);

        x[i] = _mm512_shuffle_f32x4(a, b, 0x88);
        x[i + 4] = _mm512_shuffle_f32x4(c, d, 0x88);
        x[i + 8] = _mm512_shuffle_f32x4(a, b, 0xdd);
        x[i + 12] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
}

VEC vf vf_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
VEC vf vf_load_bf16(const uint16_t *p)
{
    __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));

    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}
VEC vf vf_load_e4m3_256(const uint8_t *p)
{
    __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));

    x = _mm256_and_si256(_mm256_slli_epi16(x, 7), _mm256_set1_epi16((short)0xbf80));
    return _mm512_cvtph_ps(x);
}
VEC void vf_load2_e4m3_256(const uint8_t *p, vf *a, vf *b)
{
    __m512i x = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));

    x = _mm512_and_si512(_mm512_slli_epi16(x, 7), _mm512_set1_epi16((short)0xbf80));
    *a = _mm512_cvtph_ps(_mm512_castsi512_si256(x));
    *b = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1));
}
VEC vf vf_load_e4m3(const uint8_t *p)
{
    __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));

    x = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 1);
    x = _mm256_and_si256(x, _mm256_set1_epi16((short)0xbf80));
    x = _mm256_or_si256(x, _mm256_and_si256(_mm256_add_epi16(x, _mm256_set1_epi16(0x80)),
                          _mm256_set1_epi16(0x4000))); /* 0x7f is NaN */
    return _mm512_mul_ps(_mm512_cvtph_ps(x), _mm512_set1_ps(256));
}
VEC vf vf_load_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
VEC vf vf_load_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
VEC void vf_store_bf16(uint16_t *p, vf x)
{
    __m512i u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16),
                                                                _mm512_set1_epi32(1));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));

    r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
}
VEC void vf_store_i16(int16_t *p, vf x)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x)));
}

VEC vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
VEC void vi_store(void *p, vi x) { _mm512_storeu_si512(p, x); }
VEC vi vi_zero(void) { return _mm512_setzero_si512(); }
VEC vi vi_set_pair(const int16_t *p) { return _mm512_set1_epi32(*(const int32_t *)p); }
VEC vi vi_madd(vi acc, vi w, vi a) { return _mm512_dpwssd_epi32(acc, w, a); }
VEC vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
VEC vf vi_float(vi x) { return _mm512_cvtepi32_ps(x); }
VEC vi vi_nibbles(vi x, int i)
{
    x = _mm512_srli_epi16(x, (unsigned)(4 * i));
    return i == 3 ? x : _mm512_and_si512(x, _mm512_set1_epi16(15));
}
VEC vi vi_e2m1(vi x, int i)
{
    vi lut = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));

    x = i == 0 ? _mm512_slli_epi16(x, 8) : i == 1 ? _mm512_slli_epi16(x, 4) : x;
    x = i == 3 ? _mm512_srli_epi16(x, 4) : x;
    return _mm512_shuffle_epi8(lut, _mm512_and_si512(x, _mm512_set1_epi16(0x0f00)));
}
VEC vi vi_load_i8(const int8_t *p)
{
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
}

#endif
