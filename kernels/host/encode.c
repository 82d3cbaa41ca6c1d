/* encode.c - f32 rows to a disk format: what `mascon compress` writes.
 *
 * Owns nothing. THREAD: any. Always true: the bytes depend on the rows alone, not on the
 * machine: every sum has one order (four lanes, then the lanes).
 *
 * int4: w ~ s*q, q in -8..7, s a bf16. The largest magnitude alone gives a scale that no
 * value likes: candidates around it are tried, then the least-squares scale of the codes
 * found (sum w x q / sum w q^2), and the one with the least weighted error stays. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/host/cast.h"
#include "kernels/host/host.h"

enum { LANES = 4, SIDE = 128, CANDIDATES = 24, REFINE = 2 };

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

static vf load(const float *p)
{
    vf v;

    memcpy(&v, p, sizeof v);
    return v;
}

static vf all(float x)
{
    return (vf){x, x, x, x};
}

static vf pick(vi mask, vf a, vf b)
{
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

static vf clamp(vf x, float lo, float hi)
{
    x = pick(x < all(lo), all(lo), x);
    return pick(x > all(hi), all(hi), x);
}

static vf nearest(vf x) /* even on ties, |x| < 2^22 */
{
    const vf big = all(0x1.8p23f);

    return x + big - big;
}

static float sum(vf v)
{
    return (v[0] + v[2]) + (v[1] + v[3]);
}

static float largest(const float *x, int32_t n)
{
    float m = 0;

    for (int32_t i = 0; i < n; i++)
        m = fabsf(x[i]) > m ? fabsf(x[i]) : m;
    return m;
}

static bool all_finite(const float *x, int64_t n)
{
    uint32_t bad = 0;

    for (int64_t i = 0; i < n; i++)
        bad |= (mc_bits_of_f32(x[i]) & 0x7f800000) == 0x7f800000;
    return !bad;
}

static void add_loss(struct mc_loss *l, const float *x, const float *y, int32_t n)
{
    double ref2 = 0, err2 = 0, dot = 0, got2 = 0;

    for (int32_t i = 0; i < n; i++) {
        double a = x[i], b = y[i];

        ref2 += a * a;
        err2 += (a - b) * (a - b);
        dot += a * b;
        got2 += b * b;
    }
    l->ref2 += ref2;
    l->err2 += err2;
    l->dot += dot;
    l->got2 += got2;
}

/* ---- int4 -------------------------------------------------------------------------- */

/* The weighted error of scale s, and the least-squares scale for the codes that it gives.
 */
static float try_int4(const float *x, const float *w, int32_t n, float s, float *better)
{
    vf err = {0}, xq = {0}, qq = {0};
    float inv = 1 / s;

    for (int32_t i = 0; i < n; i += LANES) {
        vf v = load(x + i), u = w ? load(w + i) : all(1);
        vf q = clamp(nearest(clamp(v * inv, -16, 16)), -8, 7), d = v - q * s;

        err += u * d * d;
        xq += u * v * q;
        qq += u * q * q;
    }
    *better = sum(qq) > 0 ? sum(xq) / sum(qq) : s;
    return sum(err);
}

static float as_bf16(float x)
{
    return mc_f32_of_bf16(mc_bf16_of_f32(x));
}

/* A scale that can be divided by: what bf16 makes zero means a group of nothing. */
static bool usable(float s)
{
    return s > 1e-30f && s < 1e30f;
}

static float scale_int4(const float *x, const float *w, int32_t n)
{
    float amax = largest(x, n), best = 1, least = INFINITY, next = 0;

    if (!usable(as_bf16(amax / 8)))
        return 1; /* all codes 0 */
    for (int i = 0; i < CANDIDATES; i++) {
        float s = as_bf16(amax / (5.5f + 0.25f * (float)i)), better, e;

        e = try_int4(x, w, n, s, &better);
        if (e < least)
            least = e, best = s, next = better;
    }
    for (int i = 0; i < REFINE; i++) {
        float s = as_bf16(next), e;

        if (!usable(s))
            break;
        e = try_int4(x, w, n, s, &next);
        if (e < least)
            least = e, best = s;
    }
    return best;
}

static void encode_int4(const struct mc_encode *e, int32_t row, const float *x, float *y)
{
    uint32_t *q = (uint32_t *)e->q + (int64_t)row * (e->k / 8);
    uint16_t *scale = (uint16_t *)e->scale + (int64_t)row * (e->k / e->group);

    memset(q, 0, (size_t)e->k / 2);
    for (int32_t k0 = 0; k0 < e->k; k0 += e->group) {
        const float *w = e->importance ? e->importance + k0 : NULL;
        float s = scale_int4(x + k0, w, e->group), inv = 1 / s;

        scale[k0 / e->group] = mc_bf16_of_f32(s);
        for (int32_t i = k0; i < k0 + e->group; i++) {
            float v = rintf(fminf(fmaxf(x[i] * inv, -8), 7));

            q[i / 8] |= (uint32_t)((int)v + 8) << 4 * (i % 8);
            y[i] = v * s;
        }
    }
}

/* ---- nvfp4 ------------------------------------------------------------------------- */

static const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

/* The code whose value is nearest; of two the even one. */
static int code_e2m1(float v)
{
    float a = fabsf(v);
    int c = a <= 0.25f   ? 0
            : a < 0.75f  ? 1
            : a <= 1.25f ? 2
            : a < 1.75f  ? 3
            : a <= 2.5f  ? 4
            : a < 3.5f   ? 5
            : a <= 5     ? 6
                         : 7;

    return v < 0 ? c | 8 : c;
}

static float value_e2m1(int code)
{
    return code & 8 ? -e2m1[code & 7] : e2m1[code & 7];
}

static float try_nvfp4(const float *x, const float *w, float s)
{
    float err = 0;

    for (int i = 0; i < 16; i++) {
        float d = x[i] - value_e2m1(code_e2m1(x[i] / s)) * s;

        err += (w ? w[i] : 1) * d * d;
    }
    return err;
}

float mc_encode_global(float amax)
{
    return amax > 0 ? amax / (448 * 6) : 1;
}

/* A group's scale is e4m3: the code for amax/6 and its neighbours are tried. */
static uint8_t scale_nvfp4(const struct mc_encode *e, const float *x, const float *w)
{
    int mid = mc_e4m3_of_f32(largest(x, 16) / 6 / e->global), best = mid;
    float least = INFINITY;

    for (int c = mid - 3; c <= mid + 1; c++) {
        float s, err;

        if (c < 1 || c > 0x7e)
            continue;
        s = mc_f32_of_e4m3((uint8_t)c) * e->global;
        err = usable(s) ? try_nvfp4(x, w, s) : INFINITY;
        if (err < least)
            least = err, best = c;
    }
    return (uint8_t)best;
}

static void encode_nvfp4(const struct mc_encode *e, int32_t row, const float *x, float *y)
{
    uint8_t *q = (uint8_t *)e->q + (int64_t)row * (e->k / 2);
    uint8_t *scale = (uint8_t *)e->scale + (int64_t)row * (e->k / 16);

    for (int32_t k0 = 0; k0 < e->k; k0 += 16) {
        uint8_t c = scale_nvfp4(e, x + k0, e->importance ? e->importance + k0 : NULL);
        float s = mc_f32_of_e4m3(c) * e->global;

        scale[k0 / 16] = c;
        for (int32_t i = k0; i < k0 + 16; i++) {
            int code = usable(s) ? code_e2m1(x[i] / s) : 0;

            q[i / 2] = (uint8_t)(i % 2 ? q[i / 2] | code << 4 : code);
            y[i] = value_e2m1(code) * s;
        }
    }
}

/* ---- e4m3 and bf16 ----------------------------------------------------------------- */

/* Scales of the block row that begins at row. */
static void scales_e4m3(const struct mc_encode *e, int32_t row, int32_t rows,
                        const float *x)
{
    int32_t n_k = (e->k + SIDE - 1) / SIDE;
    float *scale = (float *)e->scale + (int64_t)(row / SIDE) * n_k;

    for (int32_t b = 0; b < n_k; b++) {
        int32_t k0 = b * SIDE, n = e->k - k0 < SIDE ? e->k - k0 : SIDE;
        float amax = 0;

        for (int32_t r = 0; r < rows; r++) {
            float m = largest(x + (int64_t)r * e->k + k0, n);

            amax = m > amax ? m : amax;
        }
        scale[b] = usable(amax / 448) ? amax / 448 : 1;
    }
}

static void encode_e4m3(const struct mc_encode *e, int32_t row, const float *x, float *y)
{
    uint8_t *q = (uint8_t *)e->q + (int64_t)row * e->k;
    const float *scale = (const float *)e->scale +
                         (int64_t)(row / SIDE) * ((e->k + SIDE - 1) / SIDE);

    for (int32_t i = 0; i < e->k; i++) {
        q[i] = mc_e4m3_of_f32(x[i] / scale[i / SIDE]);
        y[i] = mc_f32_of_e4m3(q[i]) * scale[i / SIDE];
    }
}

static void encode_bf16(const struct mc_encode *e, int32_t row, const float *x, float *y)
{
    uint16_t *q = (uint16_t *)e->q + (int64_t)row * e->k;

    for (int32_t i = 0; i < e->k; i++) {
        q[i] = mc_bf16_of_f32(x[i]);
        y[i] = mc_f32_of_bf16(q[i]);
    }
}

/* ---- the border -------------------------------------------------------------------- */

static bool shape_ok(const struct mc_encode *e)
{
    if (e->fmt == MC_D_INT4)
        return (e->group == 32 || e->group == 64 || e->group == 128) &&
               e->k % e->group == 0;
    if (e->fmt == MC_D_NVFP4)
        return e->k % 16 == 0 && usable(e->global);
    return e->fmt == MC_D_E4M3 || e->fmt == MC_D_BF16;
}

int mc_encode_rows(const struct mc_encode *e, int32_t n, const float *x,
                   struct mc_loss *loss)
{
    static void (*const body[MC_N_DISK])(const struct mc_encode *, int32_t, const float *,
                                         float *) = {
        [MC_D_BF16] = encode_bf16,
        [MC_D_E4M3] = encode_e4m3,
        [MC_D_INT4] = encode_int4,
        [MC_D_NVFP4] = encode_nvfp4,
    };
    float *y;

    if (!shape_ok(e) || !all_finite(x, (int64_t)n * e->k))
        return MC_K_EARG;
    y = malloc((size_t)e->k * sizeof *y);
    if (!y)
        return MC_K_ENOMEM;
    for (int32_t r = 0; r < n; r++) {
        const float *row = x + (int64_t)r * e->k;

        if (e->fmt == MC_D_E4M3 && r % SIDE == 0)
            scales_e4m3(e, r, n - r < SIDE ? n - r : SIDE, row);
        body[e->fmt](e, r, row, y);
        add_loss(loss, row, y, e->k);
    }
    free(y);
    return 0;
}
