/* disk.c - every disk format decoded to f32, one value at a time: the oracle of pack.
 *
 * Owns nothing. THREAD: any.
 * Always true: reads only the bytes of the row asked for, by memcpy or byte loads, so a
 * part of a matrix need not be aligned; every product and sum is one rounding, in the
 * order written here, which is the order of the formats' own reference code (compared bit
 * for bit in tests/c/test_matrix.c).
 *
 * A ggml block is a run of 32 or 256 columns of one row: f16 scales first (last in Q6_K),
 * then packed codes. In the 32-column blocks byte j holds column j in its low nibble and
 * column j + 16 in its high one; fifth bits are one u32, bit = column. In the k-quants a
 * 256-column block has 8 (Q6_K: 16) sub-blocks with small integer scales of their own. */
#include <assert.h>

#include "kernels/host/cast.h"
#include "kernels/kernels.h"

static uint16_t u16_at(const uint8_t *p)
{
    uint16_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

static uint32_t u32_at(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

static float f16_at(const uint8_t *p)
{
    return mc_f32_of_f16(u16_at(p));
}

/* Element i of an array of dt. */
static float num_at(const void *base, uint16_t dt, int64_t i)
{
    const uint8_t *p = base;

    switch (dt) {
    case MC_F32:
        return mc_f32_of_bits(u32_at(p + 4 * i));
    case MC_F16:
        return mc_f32_of_f16(u16_at(p + 2 * i));
    case MC_BF16:
        return mc_f32_of_bf16(u16_at(p + 2 * i));
    case MC_E4M3:
        return mc_f32_of_e4m3(p[i]);
    }
    assert(!"a scale's type");
    return 0;
}

/* ---- Hugging Face formats ---------------------------------------------------------- */

static void row_plain(const struct mc_disk *d, uint16_t dt, int32_t row, int32_t k0,
                      int32_t k1, float *out)
{
    for (int32_t k = k0; k < k1; k++)
        *out++ = num_at(d->q, dt, (int64_t)row * d->k + k);
}

static void row_e4m3(const struct mc_disk *d, int32_t row, int32_t k0, int32_t k1,
                     float *out)
{
    int64_t per_row = (d->k + (int64_t)d->block_k - 1) / d->block_k;
    int64_t first = row / d->block_n * per_row;

    for (int32_t k = k0; k < k1; k++)
        *out++ = num_at(d->q, MC_E4M3, (int64_t)row * d->k + k) *
                 num_at(d->scale, d->scale_dt, first + k / d->block_k);
}

static void row_int4(const struct mc_disk *d, int32_t row, int32_t k0, int32_t k1,
                     float *out)
{
    const uint8_t *q = d->q, *zero = d->zero;
    int64_t groups = d->k / d->group;

    for (int32_t k = k0; k < k1; k++) {
        int64_t at = (int64_t)row * d->k + k, g = k / d->group;
        int code = q[at / 2] >> 4 * (at % 2) & 15, z = 8;

        if (zero)
            z = u32_at(zero + 4 * (row / 8 * groups + g)) >> 4 * (row % 8) & 15;
        *out++ = (float)(code - z) * num_at(d->scale, d->scale_dt, row * groups + g);
    }
}

/* Sign in bit 3. */
static float e2m1(int code)
{
    static const float value[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

    return code & 8 ? -value[code & 7] : value[code & 7];
}

static void row_nvfp4(const struct mc_disk *d, int32_t row, int32_t k0, int32_t k1,
                      float *out)
{
    const uint8_t *q = d->q;
    int64_t groups = d->k / d->group;

    for (int32_t k = k0; k < k1; k++) {
        int64_t at = (int64_t)row * d->k + k;
        float s = num_at(d->scale, MC_E4M3, row * groups + k / d->group);

        *out++ = e2m1(q[at / 2] >> 4 * (at % 2)) * s * d->global;
    }
}

/* ---- ggml blocks ------------------------------------------------------------------- */

static void q4_0(const uint8_t *b, float *y)
{
    float d = f16_at(b);

    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)((b[2 + j] & 15) - 8);
        y[j + 16] = d * (float)((b[2 + j] >> 4) - 8);
    }
}

static void q4_1(const uint8_t *b, float *y)
{
    float d = f16_at(b), m = f16_at(b + 2);

    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)(b[4 + j] & 15) + m;
        y[j + 16] = d * (float)(b[4 + j] >> 4) + m;
    }
}

/* The fifth bit of column j, in place. */
static int fifth(uint32_t bits, int j)
{
    return (int)(bits >> j & 1) << 4;
}

static void q5_0(const uint8_t *b, float *y)
{
    float d = f16_at(b);
    uint32_t h = u32_at(b + 2);

    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)(((b[6 + j] & 15) | fifth(h, j)) - 16);
        y[j + 16] = d * (float)(((b[6 + j] >> 4) | fifth(h, j + 16)) - 16);
    }
}

static void q5_1(const uint8_t *b, float *y)
{
    float d = f16_at(b), m = f16_at(b + 2);
    uint32_t h = u32_at(b + 4);

    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)((b[8 + j] & 15) | fifth(h, j)) + m;
        y[j + 16] = d * (float)((b[8 + j] >> 4) | fifth(h, j + 16)) + m;
    }
}

static void q8_0(const uint8_t *b, float *y)
{
    float d = f16_at(b);

    for (int j = 0; j < 32; j++)
        y[j] = d * (float)(int8_t)b[2 + j];
}

/* Q4_K and Q5_K: the 6-bit scale and minimum of sub-block i from 12 bytes. The first four
 * pairs are the low 6 bits of bytes i and i + 4; of the others the low nibbles share byte
 * i + 4 and the two high bits are the spare ones of bytes i - 4 and i. */
static void scale_min(const uint8_t *s, int i, int *scale, int *min)
{
    if (i < 4) {
        *scale = s[i] & 63;
        *min = s[i + 4] & 63;
    } else {
        *scale = (s[i + 4] & 15) | s[i - 4] >> 6 << 4;
        *min = s[i + 4] >> 4 | s[i] >> 6 << 4;
    }
}

/* d, dmin, 12 bytes of scales, [q5: 32 bytes of fifth bits], 128 bytes of nibbles: each 32
 * bytes hold sub-block 2c low and 2c + 1 high. */
static void k4_or_k5(const uint8_t *b, const uint8_t *high, const uint8_t *q, float *y)
{
    float d = f16_at(b), dmin = f16_at(b + 2);

    for (int i = 0; i < 8; i++) {
        int scale, min;

        scale_min(b + 4, i, &scale, &min);
        for (int j = 0; j < 32; j++) {
            int code = q[i / 2 * 32 + j] >> 4 * (i % 2) & 15;

            if (high)
                code |= (high[j] >> i & 1) << 4;
            y[i * 32 + j] = d * (float)scale * (float)code - dmin * (float)min;
        }
    }
}

static void q4_K(const uint8_t *b, float *y)
{
    k4_or_k5(b, NULL, b + 16, y);
}

static void q5_K(const uint8_t *b, float *y)
{
    k4_or_k5(b, b + 16, b + 48, y);
}

/* 128 bytes of low nibbles, 64 of high bit pairs, 16 int8 scales, d. Each half of the block
 * is four runs of 32 columns: runs 0 and 1 are the low nibbles of 64 bytes, 2 and 3 the
 * high ones; the pair of run r is at bits 2r. */
static void q6_K(const uint8_t *b, float *y)
{
    const uint8_t *low = b, *high = b + 128, *scale = b + 192;
    float d = f16_at(b + 208);

    for (int c = 0; c < 256; c++) {
        int half = c / 128, run = c % 128 / 32, j = c % 32;
        int lo = low[half * 64 + run % 2 * 32 + j] >> 4 * (run / 2) & 15;
        int hi = high[half * 32 + j] >> 2 * run & 3;

        y[c] = d * (float)(int8_t)scale[c / 16] * (float)((lo | hi << 4) - 32);
    }
}

static const struct block {
    void (*decode)(const uint8_t *b, float *y);
    int32_t cols, bytes;
} blocks[MC_N_DISK] = {
    [MC_D_Q4_0] = {q4_0, 32, 18},   [MC_D_Q4_1] = {q4_1, 32, 20},
    [MC_D_Q5_0] = {q5_0, 32, 22},   [MC_D_Q5_1] = {q5_1, 32, 24},
    [MC_D_Q8_0] = {q8_0, 32, 34},   [MC_D_Q4_K] = {q4_K, 256, 144},
    [MC_D_Q5_K] = {q5_K, 256, 176}, [MC_D_Q6_K] = {q6_K, 256, 210},
};

static void row_blocks(const struct mc_disk *d, int32_t row, int32_t k0, int32_t k1,
                       float *out)
{
    const struct block *f = &blocks[d->fmt];
    const uint8_t *b = (const uint8_t *)d->q +
                       ((int64_t)row * (d->k / f->cols) + k0 / f->cols) * f->bytes;
    float y[256];

    assert(f->decode && d->k % f->cols == 0);
    for (int32_t k = k0 - k0 % f->cols; k < k1; k += f->cols, b += f->bytes) {
        int32_t from = k < k0 ? k0 : k, to = k1 - k < f->cols ? k1 : k + f->cols;

        f->decode(b, y);
        memcpy(out + (from - k0), y + (from - k), (size_t)(to - from) * sizeof *y);
    }
}

void mc_disk_row(const struct mc_disk *d, int32_t row, int32_t k0, int32_t k1, float *out)
{
    assert(d->fmt < MC_N_DISK && row >= 0 && row < d->n && k0 >= 0 && k1 <= d->k);
    switch (d->fmt) {
    case MC_D_F32:
        row_plain(d, MC_F32, row, k0, k1, out);
        return;
    case MC_D_F16:
        row_plain(d, MC_F16, row, k0, k1, out);
        return;
    case MC_D_BF16:
        row_plain(d, MC_BF16, row, k0, k1, out);
        return;
    case MC_D_E4M3:
        row_e4m3(d, row, k0, k1, out);
        return;
    case MC_D_INT4:
        row_int4(d, row, k0, k1, out);
        return;
    case MC_D_NVFP4:
        row_nvfp4(d, row, k0, k1, out);
        return;
    default:
        row_blocks(d, row, k0, k1, out);
        return;
    }
}
