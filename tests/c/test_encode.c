/* test_encode.c - f32 rows to disk formats: what is lost, what is refused, which bytes.
 */
#include "tests/c/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/host/cast.h"
#include "kernels/kernels.h"

enum { N = 130, K = 256 };

struct coded {
    uint8_t q[N * K * 2], scale[N * K];
    struct mc_loss loss;
    struct mc_disk disk;
};

static float uniform(uint32_t *s)
{
    *s = *s * 1664525u + 1013904223u;
    return (float)(*s >> 8) / (1 << 23) - 1;
}

/* Near normal: a sum of uniforms, now and then an outlier. */
static void fill(float *x, int64_t n, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] = 0.02f * (uniform(&seed) + uniform(&seed) + uniform(&seed));
        if (seed % 97 == 0)
            x[i] *= 2;
    }
}

static int encode(struct coded *c, uint16_t fmt, int32_t group, const float *x,
                  const float *importance)
{
    float amax = 0;
    struct mc_encode e = {.fmt = fmt, .k = K, .group = group, .importance = importance,
                          .q = c->q, .scale = c->scale};

    for (int i = 0; i < N * K; i++)
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    e.global = mc_encode_global(amax);
    memset(c, 0, sizeof *c);
    c->disk = (struct mc_disk){.fmt = fmt, .n = N, .k = K, .group = group, .q = c->q,
                               .scale = c->scale, .global = e.global, .block_n = 128,
                               .block_k = 128,
                               .scale_dt = fmt == MC_D_E4M3 ? MC_F32
                                           : fmt == MC_D_NVFP4 ? MC_E4M3 : MC_BF16};
    return mc_encode_rows(&e, N, x, &c->loss);
}

/* The decoder's rows against the input: relative error, and that the loss says the same.
 */
static double decoded_error(const struct coded *c, const float *x)
{
    double err2 = 0, ref2 = 0;
    float y[K];

    for (int r = 0; r < N; r++) {
        mc_disk_row(&c->disk, r, 0, K, y);
        for (int i = 0; i < K; i++) {
            err2 += (double)(x[r * K + i] - y[i]) * (x[r * K + i] - y[i]);
            ref2 += (double)x[r * K + i] * x[r * K + i];
        }
    }
    /* the decoder may multiply its two scales in another order */
    assert_true(fabs(err2 - c->loss.err2) <= 1e-6 * err2 + 1e-12 * ref2);
    assert_true(fabs(ref2 - c->loss.ref2) <= 1e-6 * ref2 + 1e-30);
    return ref2 > 0 ? sqrt(err2 / ref2) : 0;
}

static void encode_loses_what_the_format_must(void **state)
{
    static const struct {
        uint16_t fmt;
        int32_t group;
        double least, most; /* of the relative error: measured, and no room for a fault */
    } of[] = {{MC_D_BF16, 0, 1e-4, 2.5e-3}, {MC_D_E4M3, 0, 0.01, 0.03},
              {MC_D_INT4, 128, 0.05, 0.13}, {MC_D_INT4, 64, 0.05, 0.12},
              {MC_D_INT4, 32, 0.05, 0.11},  {MC_D_NVFP4, 16, 0.05, 0.11}};
    static float x[N * K];
    static struct coded c;

    (void)state;
    fill(x, N * K, 1);
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        double e;

        assert_int_equal(encode(&c, of[i].fmt, of[i].group, x, NULL), 0);
        e = decoded_error(&c, x);
        if (e < of[i].least || e > of[i].most)
            fail_msg("format %d group %d: relative error %g", of[i].fmt, of[i].group, e);
    }
}

/* What a rounding with scale amax/by loses of a group. */
static double loss(const float *x, const float *w, int32_t n, float by)
{
    float amax = 0, s;
    double err = 0;

    for (int32_t i = 0; i < n; i++)
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    s = mc_f32_of_bf16(mc_bf16_of_f32(amax / by));
    for (int32_t i = 0; i < n; i++) {
        double d = x[i] - rintf(fminf(fmaxf(x[i] / s, -8), 7)) * s;

        err += (w ? w[i] : 1) * d * d;
    }
    return err;
}

/* The least loss over a fine grid of scales. */
static double least_loss(const float *x, const float *w, int32_t n)
{
    double least = INFINITY;

    for (float by = 5; by < 12; by += 0.01f)
        least = fmin(least, loss(x, w, n, by));
    return least;
}

static void int4_search_beats_plain_rounding_in_every_group(void **state)
{
    static float x[N * K], w[K];
    static struct coded c;
    double plain_all = 0, got_all = 0, least_all = 0;
    uint32_t seed = 5;
    float y[K];

    (void)state;
    fill(x, N * K, 2);
    for (int i = 0; i < K; i++)
        w[i] = 0.1f + fabsf(uniform(&seed)) * (i % 7 == 0 ? 50 : 1);
    assert_int_equal(encode(&c, MC_D_INT4, 64, x, w), 0);
    for (int r = 0; r < N; r++) {
        mc_disk_row(&c.disk, r, 0, K, y);
        for (int g = 0; g < K; g += 64) {
            double got = 0, plain = loss(x + r * K + g, w + g, 64, 7);

            for (int i = g; i < g + 64; i++)
                got += (double)w[i] * (x[r * K + i] - y[i]) * (x[r * K + i] - y[i]);
            assert_true(got <= plain * 1.000001);
            plain_all += plain;
            got_all += got;
            least_all += least_loss(x + r * K + g, w + g, 64);
        }
    }
    assert_true(got_all < 0.9 * plain_all);
    print_message("int4: the search's loss is %.4f of the least\n", got_all / least_all);
    assert_true(got_all < 1.02 * least_all);
}

static void encode_is_exact_where_the_format_is(void **state)
{
    static float x[N * K], z[N * K];
    static struct coded a, b;
    static const uint16_t fmts[] = {MC_D_BF16, MC_D_E4M3, MC_D_INT4, MC_D_NVFP4};

    (void)state;
    fill(x, N * K, 3);
    for (size_t f = 0; f < 4; f++) { /* what was decoded is encoded again without loss */
        int32_t group = fmts[f] == MC_D_INT4 ? 32 : fmts[f] == MC_D_NVFP4 ? 16 : 0;

        assert_int_equal(encode(&a, fmts[f], group, x, NULL), 0);
        for (int r = 0; r < N; r++)
            mc_disk_row(&a.disk, r, 0, K, z + r * K);
        assert_int_equal(encode(&b, fmts[f], group, z, NULL), 0);
        if (fmts[f] == MC_D_NVFP4) /* its factor moves with the largest value */
            assert_true(decoded_error(&b, z) < 0.05);
        else
            assert_true(decoded_error(&b, z) < 2e-3);
    }
}

static void encode_takes_zeros_constants_and_denormals(void **state)
{
    static float x[N * K];
    static struct coded c;
    static const float values[] = {0, 1, -3.5f, 1e-40f, 1e-38f, 6e4f};
    static const uint16_t fmts[] = {MC_D_BF16, MC_D_E4M3, MC_D_INT4, MC_D_NVFP4};

    (void)state;
    for (size_t v = 0; v < 6; v++)
        for (size_t f = 0; f < 4; f++) {
            int32_t group = fmts[f] == MC_D_INT4 ? 128 : fmts[f] == MC_D_NVFP4 ? 16 : 0;
            float y[K];

            for (int i = 0; i < N * K; i++)
                x[i] = values[v];
            assert_int_equal(encode(&c, fmts[f], group, x, NULL), fmts[f] == MC_D_NVFP4 &&
                             values[v] != 0 && fabsf(values[v]) < 1e-30f ? MC_K_EARG : 0);
            mc_disk_row(&c.disk, N - 1, 0, K, y);
            for (int i = 0; i < K; i++)
                assert_true(isfinite(y[i]) &&
                            fabsf(y[i] - values[v]) <= 0.04f * fabsf(values[v]) + 1e-30f);
        }
}

static void encode_refuses_what_is_not_a_number(void **state)
{
    static float x[N * K];
    static struct coded c;

    (void)state;
    fill(x, N * K, 4);
    x[77] = NAN;
    assert_int_equal(encode(&c, MC_D_INT4, 32, x, NULL), MC_K_EARG);
    x[77] = -INFINITY;
    assert_int_equal(encode(&c, MC_D_BF16, 0, x, NULL), MC_K_EARG);
    x[77] = 0;
    assert_int_equal(encode(&c, MC_D_INT4, 48, x, NULL), MC_K_EARG);
    assert_int_equal(encode(&c, MC_D_Q8_0, 0, x, NULL), MC_K_EARG);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(encode_loses_what_the_format_must),
    cmocka_unit_test(int4_search_beats_plain_rounding_in_every_group),
    cmocka_unit_test(encode_is_exact_where_the_format_is),
    cmocka_unit_test(encode_takes_zeros_constants_and_denormals),
    cmocka_unit_test(encode_refuses_what_is_not_a_number),
};

MC_TEST_MAIN(tests)
