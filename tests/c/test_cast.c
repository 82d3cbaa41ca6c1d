/* test_cast.c - bf16, f16 and e4m3 casts against independent definitions; philox. */
#include "tests/c/test.h"

#include <stdlib.h>

#include "kernels/host/cast.h"
#include "kernels/host/philox.h"

static void cast_e4m3_known_values(void **state)
{
    static const struct {
        float x;
        uint8_t want;
    } t[] = {
        {300, 0x79},      {304, 0x7A} /* tie */, {447, 0x7E},      {448, 0x7E},
        {465, 0x7E},      {1000, 0x7E},          {-1000, 0xFE},    {INFINITY, 0x7E},
        {-INFINITY, 0xFE}, {NAN, 0x7F},          {-NAN, 0x7F},     {0.0f, 0x00},
        {-0.0f, 0x80},    {0x1p-9f, 0x01},       {0x1p-10f, 0x00} /* tie */,
        {0x1.004189374bc6ap-10f, 0x01} /* 1.001 * 2^-10 */,
        {1, 0x38},        {4, 0x48},             {2, 0x40},        {-1, 0xB8},
        {0x1p-6f, 0x08},  {0x1.ep-7f, 0x08} /* tie of 7 and 8 steps */,
        {0x1.ap-7f, 0x06} /* tie of 6 and 7 steps */,
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof t / sizeof t[0]; i++)
        if (mc_e4m3_of_f32(t[i].x) != t[i].want)
            fail_msg("%a -> 0x%02X, not 0x%02X", (double)t[i].x, mc_e4m3_of_f32(t[i].x),
                     t[i].want);
}

/* The value of a code, from the format's definition. */
static double e4m3_value(int code)
{
    int e = code >> 3 & 15, m = code & 7;
    double v = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);

    return code & 0x80 ? -v : v;
}

/* Nearest code by search, ties to the even one: every bf16 value as input. */
static void cast_e4m3_is_nearest_even_for_every_bf16(void **state)
{
    uint32_t u;

    (void)state;
    for (u = 0; u < 0x10000; u++) {
        float x = mc_f32_of_bf16((uint16_t)u);
        double a = fabs((double)x);
        int best = 0, c;

        if (isnan(x)) {
            assert_int_equal(mc_e4m3_of_f32(x), 0x7F);
            continue;
        }
        for (c = 1; c <= 0x7E; c++) {
            double d = fabs(a - e4m3_value(c)), d0 = fabs(a - e4m3_value(best));

            if (d < d0 || (d == d0 && c % 2 == 0))
                best = c;
        }
        if (a > 448)
            best = 0x7E;
        assert_int_equal(mc_e4m3_of_f32(x), best | (signbit(x) ? 0x80 : 0));
    }
}

static void cast_e4m3_round_trips(void **state)
{
    int c;

    (void)state;
    for (c = 0; c < 256; c++) {
        float x = mc_f32_of_e4m3((uint8_t)c);

        if ((c & 0x7F) == 0x7F) {
            assert_true(isnan(x));
            continue;
        }
        assert_true((double)x == e4m3_value(c));
        assert_int_equal(mc_e4m3_of_f32(x), c);
    }
}

static void cast_bf16_rounds_to_even_and_keeps_nan(void **state)
{
    (void)state;
    assert_int_equal(mc_bf16_of_f32(1), 0x3F80);
    assert_int_equal(mc_bf16_of_f32(mc_f32_of_bits(0x3F808000)), 0x3F80); /* tie, even */
    assert_int_equal(mc_bf16_of_f32(mc_f32_of_bits(0x3F818000)), 0x3F82); /* tie, odd */
    assert_int_equal(mc_bf16_of_f32(mc_f32_of_bits(0x3F808001)), 0x3F81);
    assert_int_equal(mc_bf16_of_f32(mc_f32_of_bits(0x7F7FFFFF)), 0x7F80); /* overflow */
    assert_int_equal(mc_bf16_of_f32(-INFINITY), 0xFF80);
    assert_int_equal(mc_bf16_of_f32(-0.0f), 0x8000);
    assert_true(isnan(mc_f32_of_bf16(mc_bf16_of_f32(mc_f32_of_bits(0x7F800001)))));
    assert_true(isnan(mc_f32_of_bf16(mc_bf16_of_f32(mc_f32_of_bits(0xFFFFFFFF)))));
}

static void cast_f16_round_trips(void **state)
{
    uint32_t h;

    (void)state;
    for (h = 0; h < 0x10000; h++) {
        float x = mc_f32_of_f16((uint16_t)h);

        if (isnan(x)) {
            assert_int_equal(h & 0x7C00, 0x7C00);
            assert_true(isnan(mc_f32_of_f16(mc_f16_of_f32(x))));
        } else {
            assert_int_equal(mc_f16_of_f32(x), h);
        }
    }
}

/* Between neighbours a and b: below the middle a, above it b, in the middle the even. */
static void cast_f16_rounds_to_nearest_even(void **state)
{
    uint32_t h;

    (void)state;
    for (h = 0; h < 0x7BFF; h++) {
        float a = mc_f32_of_f16((uint16_t)h), b = mc_f32_of_f16((uint16_t)(h + 1));
        float mid = (a + b) / 2;

        assert_int_equal(mc_f16_of_f32(mid), h % 2 ? h + 1 : h);
        assert_int_equal(mc_f16_of_f32(nextafterf(mid, 0)), h);
        assert_int_equal(mc_f16_of_f32(nextafterf(mid, INFINITY)), h + 1);
        assert_int_equal(mc_f16_of_f32(-mid), (h % 2 ? h + 1 : h) | 0x8000);
    }
    assert_int_equal(mc_f16_of_f32(65519.996f), 0x7BFF);
    assert_int_equal(mc_f16_of_f32(65520), 0x7C00);
    assert_int_equal(mc_f16_of_f32(INFINITY), 0x7C00);
}

/* From Random123's kat_vectors. */
static void philox_known_answers(void **state)
{
    static const struct {
        uint32_t c[4], k[2], want[4];
    } t[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    size_t i, j;

    (void)state;
    for (i = 0; i < 3; i++) {
        uint32_t c[4] = {t[i].c[0], t[i].c[1], t[i].c[2], t[i].c[3]};

        mc_philox4x32(c, t[i].k[0], t[i].k[1]);
        for (j = 0; j < 4; j++)
            assert_int_equal(c[j], t[i].want[j]);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(cast_e4m3_known_values),
    cmocka_unit_test(cast_e4m3_is_nearest_even_for_every_bf16),
    cmocka_unit_test(cast_e4m3_round_trips),
    cmocka_unit_test(cast_bf16_rounds_to_even_and_keeps_nan),
    cmocka_unit_test(cast_f16_round_trips),
    cmocka_unit_test(cast_f16_rounds_to_nearest_even),
    cmocka_unit_test(philox_known_answers),
};

MC_TEST_MAIN(tests)
