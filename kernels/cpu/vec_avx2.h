/* vec_avx2.h - the vector words of the bodies, 8 lanes: AVX2, FMA, F16C.
 * vec_portable.h says what each word means. */
#ifndef MC_CPU_VEC_H
#define MC_CPU_VEC_H

#include <immintrin.h>
#include <stdint.h>

#include "kernels/host/cast.h"

enum { VN = 8 };
typedef __m256 vf;
typedef __m256i vi;

#define VEC static inline __attribute__((always_inline))

VEC __m256i lanes(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
VEC vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
VEC void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
VEC vf vf_load_n(const float *p, int n) { return _mm256_maskload_ps(p, lanes(n)); }
VEC void vf_store_n(float *p, vf x, int n) { _mm256_maskstore_ps(p, lanes(n), x); }
VEC vf vf_set(float x) { return _mm256_set1_ps(x); }
VEC vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
VEC vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
VEC vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
VEC vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
VEC vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
VEC vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
VEC vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
VEC vf vf_abs(vf x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
VEC vf vf_round(vf x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
VEC vi vf_int(vf x) { return _mm256_cvtps_epi32(x); }
VEC vf vf_exp2i(vf y, vi n)
{
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(y), _mm256_slli_epi32(n, 23)));
}
VEC vf vf_zero_below(vf x, vf lim, vf y)
{
    return _mm256_and_ps(_mm256_cmp_ps(x, lim, _CMP_NLT_UQ), y);
}

VEC float vf_sum(vf x)
{
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

VEC float vf_top(vf x)
{
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

VEC vf vf_mag_max(vf a, vf b)
{
    return _mm256_castsi256_ps(
        _mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(vf_abs(b))));
}
VEC float vf_mag_top(vf x)
{
    __m128i b = _mm_max_epi32(_mm256_castsi256_si128(_mm256_castps_si256(x)),
                              _mm256_extracti128_si256(_mm256_castps_si256(x), 1));

    b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0xb1));
    return mc_f32_of_bits((uint32_t)_mm_cvtsi128_si32(b));
}

VEC __m256 pair_sum(__m256 a, __m256 b)
{
    return _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
}

VEC void vf_sum4(vf a, vf b, vf c, vf d, float *out)
{
    __m256d x = _mm256_castps_pd(pair_sum(a, b)), y = _mm256_castps_pd(pair_sum(c, d));
    __m256 z = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)),
                             _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));

    _mm_storeu_ps(out,
                  _mm_add_ps(_mm256_castps256_ps128(z), _mm256_extractf128_ps(z, 1)));
}

VEC void vf_transpose(vf *x)
{
    vf y[8];
    int i;

    _Pragma("GCC unroll 8") for (i = 0; i < 8; i += 4) { /* 4x4 blocks of a lane each */
        __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(x[i], x[i + 1]));
        __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(x[i], x[i + 1]));
        __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(x[i + 2], x[i + 3]));
        __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(x[i + 2], x[i + 3]));

        y[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
        y[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
        y[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
        y[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
    }
    _Pragma("GCC unroll 4") for (i = 0; i < 4; i++) { /* then the lanes */
        x[i] = _mm256_permute2f128_ps(y[i], y[i + 4], 0x20);
        x[i + 4] = _mm256_permute2f128_ps(y[i], y[i + 4], 0x31);
    }
}

VEC vf vf_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
VEC vf vf_load_bf16(const uint16_t *p)
{
    __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));

    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}
VEC vf vf_load_e4m3_256(const uint8_t *p)
{
    __m128i x = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p));

    x = _mm_and_si128(_mm_slli_epi16(x, 7), _mm_set1_epi16((short)0xbf80));
    return _mm256_cvtph_ps(x);
}
VEC void vf_load2_e4m3_256(const uint8_t *p, vf *a, vf *b)
{
    __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));

    x = _mm256_and_si256(_mm256_slli_epi16(x, 7), _mm256_set1_epi16((short)0xbf80));
    *a = _mm256_cvtph_ps(_mm256_castsi256_si128(x));
    *b = _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1));
}
VEC vf vf_load_e4m3(const uint8_t *p)
{
    __m128i x = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)p));

    x = _mm_srai_epi16(_mm_slli_epi16(x, 8), 1);
    x = _mm_and_si128(x, _mm_set1_epi16((short)0xbf80));
    x = _mm_or_si128(x, _mm_and_si128(_mm_add_epi16(x, _mm_set1_epi16(0x80)),
                       _mm_set1_epi16(0x4000))); /* 0x7f is NaN */
    return _mm256_mul_ps(_mm256_cvtph_ps(x), _mm256_set1_ps(256));
}
VEC vf vf_load_u8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
VEC vf vf_load_i8(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
VEC __m128i low_words(__m256i x) /* eight dwords that fit a word, as words */
{
    __m256i w = _mm256_packs_epi32(x, x);

    return _mm_unpacklo_epi64(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
}
VEC void vf_store_bf16(uint16_t *p, vf x)
{
    __m256i u = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i q = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);

    r = _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(r), _mm256_castsi256_ps(q), nan));
    _mm_storeu_si128((__m128i *)p, low_words(_mm256_srai_epi32(r, 16)));
}
VEC void vf_store_i16(int16_t *p, vf x)
{
    _mm_storeu_si128((__m128i *)p, low_words(_mm256_cvtps_epi32(x)));
}

VEC vi vi_load(const void *p) { return _mm256_loadu_si256(p); }
VEC void vi_store(void *p, vi x) { _mm256_storeu_si256(p, x); }
VEC vi vi_zero(void) { return _mm256_setzero_si256(); }
VEC vi vi_set_pair(const int16_t *p) { return _mm256_set1_epi32(*(const int32_t *)p); }
VEC vi vi_madd(vi acc, vi w, vi a)
{
    return _mm256_add_epi32(acc, _mm256_madd_epi16(w, a));
}
VEC vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
VEC vf vi_float(vi x) { return _mm256_cvtepi32_ps(x); }
VEC vi vi_nibbles(vi x, int i)
{
    x = _mm256_srli_epi16(x, (4 * i));
    return i == 3 ? x : _mm256_and_si256(x, _mm256_set1_epi16(15));
}
VEC vi vi_e2m1(vi x, int i)
{
    vi lut = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));

    x = i == 0 ? _mm256_slli_epi16(x, 8) : i == 1 ? _mm256_slli_epi16(x, 4) : x;
    x = i == 3 ? _mm256_srli_epi16(x, 4) : x;
    return _mm256_shuffle_epi8(lut, _mm256_and_si256(x, _mm256_set1_epi16(0x0f00)));
}
VEC vi vi_load_i8(const int8_t *p)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
}

#endif
