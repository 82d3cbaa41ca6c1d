/* formats.c - what each disk format becomes, and how its codes and scales are read.
 *
 * The bit layouts are those of kernels/ref/disk.c, which decodes to f32; here codes stay
 * integers and scales the numbers that the file holds. Owns nothing. THREAD: any. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/host/cast.h"

const struct mc_cpu_form mc_cpu_forms[MC_N_DISK] = {
    [MC_D_F32] = {MC_W_F32, S_NONE, 0, 0, 0, 0},
    [MC_D_F16] = {MC_W_F16, S_NONE, 0, 0, 0, 0},
    [MC_D_BF16] = {MC_W_BF16, S_NONE, 0, 0, 0, 0},
    [MC_D_E4M3] = {MC_W_E4M3, S_F32, 0, 0, 0, 0},
    [MC_D_INT4] = {MC_W_I4, S_F32_8, 32, 0, 0, 0},
    [MC_D_NVFP4] = {MC_W_NVFP4, S_E4M3, 16, 16, 0, 0},
    [MC_D_Q4_0] = {MC_W_I4, S_F16_8, 32, 32, 32, 18},
    [MC_D_Q4_1] = {MC_W_I4, S_F16_MIN, 32, 32, 32, 20},
    [MC_D_Q5_0] = {MC_W_I8, S_F16, 32, 32, 32, 22},
    [MC_D_Q5_1] = {MC_W_I8, S_F16_MIN, 32, 32, 32, 24},
    [MC_D_Q8_0] = {MC_W_I8, S_F16, 32, 32, 32, 34},
    [MC_D_Q4_K] = {MC_W_I4, S_K_MIN, 32, 256, 256, 144},
    [MC_D_Q5_K] = {MC_W_I8, S_K_MIN, 32, 256, 256, 176},
    [MC_D_Q6_K] = {MC_W_I8, S_K16, 16, 256, 256, 210},
};

/* ---- codes: 32 columns of a row as stored integers --------------------------------- */

static void nibbles(const uint8_t *q, int8_t *out) /* 16 low ones, then 16 high ones */
{
    int i;

    for (i = 0; i < 16; i++) {
        out[i] = q[i] & 15;
        out[i + 16] = (int8_t)(q[i] >> 4);
    }
}

static void q5_codes(const uint8_t *high, const uint8_t *q, int minus, int8_t *out)
{
    uint32_t h;
    int i;

    memcpy(&h, high, 4);
    nibbles(q, out);
    for (i = 0; i < 32; i++)
        out[i] = (int8_t)(out[i] + (int)(h >> i & 1) * 16 - minus);
}

static void q6_codes(const uint8_t *block, int sub, int8_t *out) /* sub: 0..7, each 32 */
{
    const uint8_t *ql = block + sub / 4 * 64 + sub % 2 * 32,
                  *qh = block + 128 + sub / 4 * 32;
    int shift = sub % 4 * 2, half = sub % 4 / 2 * 4, i;

    for (i = 0; i < 32; i++)
        out[i] = (int8_t)(((ql[i] >> half & 15) | (qh[i] >> shift & 3) << 4) - 32);
}

static void k_codes(const uint8_t *q, const uint8_t *high, int sub, int8_t *out)
{
    int i;

    q += sub / 2 * 32;
    for (i = 0; i < 32; i++) {
        out[i] = (int8_t)(q[i] >> (sub % 2 * 4) & 15);
        if (high)
            out[i] = (int8_t)(out[i] + (high[i] >> sub & 1) * 16);
    }
}

void mc_cpu_codes(const struct mc_disk *d, int32_t row, int32_t k, int8_t *out)
{
    const struct mc_cpu_form *f = &mc_cpu_forms[d->fmt];
    const uint8_t *b = d->q;
    int i;

    if (f->block)
        b += ((int64_t)row * (d->k / f->block) + k / f->block) * f->block_bytes;
    else
        b += ((int64_t)row * d->k + k) / 2;
    switch (d->fmt) {
    case MC_D_Q4_0:
        nibbles(b + 2, out);
        break;
    case MC_D_Q4_1:
        nibbles(b + 4, out);
        break;
    case MC_D_Q5_0:
        q5_codes(b + 2, b + 6, 16, out);
        break;
    case MC_D_Q5_1:
        q5_codes(b + 4, b + 8, 0, out);
        break;
    case MC_D_Q8_0:
        memcpy(out, b + 2, 32);
        break;
    case MC_D_Q4_K:
        k_codes(b + 16, NULL, k % 256 / 32, out);
        break;
    case MC_D_Q5_K:
        k_codes(b + 48, b + 16, k % 256 / 32, out);
        break;
    case MC_D_Q6_K:
        q6_codes(b, k % 256 / 32, out);
        break;
    default: /* MC_D_INT4, MC_D_NVFP4: two a byte, low nibble first */
        for (i = 0; i < 32; i++)
            out[i] = b[i / 2] >> (i % 2 * 4) & 15;
    }
}

/* ---- scales of one row, written to lane j of a record ------------------------------ */

static float scale_at(const struct mc_disk *d, int64_t i)
{
    switch (d->scale_dt) {
    case MC_F16:
        return mc_f32_of_f16(((const uint16_t *)d->scale)[i]);
    case MC_BF16:
        return mc_f32_of_bf16(((const uint16_t *)d->scale)[i]);
    default:
        return ((const float *)d->scale)[i];
    }
}

static void k_scales(const uint8_t *b, int j, uint8_t *rec)
{
    const uint8_t *s = b + 4; /* twelve bytes: eight 6-bit scales and mins */
    int i;

    memcpy(rec + 2 * j, b, 2);
    memcpy(rec + 2 * (PANEL + j), b + 2, 2);
    rec += 4 * PANEL + j;
    for (i = 0; i < 8; i++, rec += 2 * PANEL) {
        rec[0] = i < 4 ? s[i] & 63 : (s[i + 4] & 15) | s[i - 4] >> 6 << 4;
        rec[PANEL] = i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | s[i] >> 6 << 4;
    }
}

static void k16_scales(const uint8_t *b, int j, uint8_t *rec)
{
    int i;

    memcpy(rec + 2 * j, b + 208, 2);
    for (i = 0; i < 16; i++)
        rec[2 * PANEL + i * PANEL + j] = b[192 + i];
}

/* INT4, NVFP4 and E4M3: scales in an array of their own. */
static void array_scales(const struct mc_disk *d, uint16_t scales, int32_t row, int32_t k,
                         int j, uint8_t *rec)
{
    int32_t bn = d->fmt == MC_D_E4M3 ? d->block_n : 1;
    int32_t bk = d->fmt == MC_D_E4M3 ? d->block_k : d->group;
    int64_t at = (int64_t)(row / bn) * ((d->k + bk - 1) / bk) + k / bk;
    float s, min;
    uint32_t zeros;

    if (scales == S_F16_8 || scales == S_BF16_8) {
        memcpy(rec + 2 * j, (const uint16_t *)d->scale + at, 2);
        return;
    }
    if (scales == S_E4M3) {
        rec[j] = ((const uint8_t *)d->scale)[at];
        return;
    }
    s = scale_at(d, at);
    if (d->fmt == MC_D_E4M3)
        s *= 256; /* tiles read e4m3 over 256 */
    memcpy(rec + 4 * j, &s, 4);
    if (scales != S_F32_MIN)
        return;
    memcpy(&zeros,
           (const uint32_t *)d->zero + (row / 8) * ((d->k + bk - 1) / bk) + k / bk, 4);
    min = -(float)(zeros >> 4 * (row % 8) & 15) * s;
    memcpy(rec + 4 * (PANEL + j), &min, 4);
}

void mc_cpu_scales(const struct mc_disk *d, uint16_t scales, int32_t row, int32_t k,
                       int j, uint8_t *rec)
{
    const struct mc_cpu_form *f = &mc_cpu_forms[d->fmt];
    const uint8_t *b;

    if (!f->block) {
        array_scales(d, scales, row, k, j, rec);
        return;
    }
    b = (const uint8_t *)d->q +
        ((int64_t)row * (d->k / f->block) + k / f->block) * f->block_bytes;
    if (scales == S_K_MIN) {
        k_scales(b, j, rec);
    } else if (scales == S_K16) {
        k16_scales(b, j, rec);
    } else {
        memcpy(rec + 2 * j, b, 2);
        if (scales == S_F16_MIN)
            memcpy(rec + 2 * (PANEL + j), b + 2, 2);
    }
}
