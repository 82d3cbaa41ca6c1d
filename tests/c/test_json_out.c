/* test_json_out.c - JSON written by hand, byte for byte. */
#include "tests/c/test.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "core/serve/json_out.h"

static void check(const char *in, size_t n, const char *want)
{
    struct mc_buf b = {0};

    mc_json_str(&b, in, n);
    assert_false(b.failed);
    assert_int_equal(b.n, strlen(want));
    assert_memory_equal(b.p, want, b.n);
    mc_buf_free(&b);
}

static void json_strings_are_escaped_byte_for_byte(void **state)
{
    (void)state;
    check("", 0, "\"\"");
    check("plain text", 10, "\"plain text\"");
    check("a\"b\\c/d", 7, "\"a\\\"b\\\\c/d\"");
    check("\b\t\n\f\r", 5, "\"\\b\\t\\n\\f\\r\"");
    check("\0\x01\x0B\x1F\x7F", 5, "\"\\u0000\\u0001\\u000b\\u001f\x7F\"");
    check("a\n\nb\r\n", 6, "\"a\\n\\nb\\r\\n\"");
    check("\xE2\x80\xA8\xE2\x80\xA9", 6, "\"\\u2028\\u2029\"");
    check("x\xE2\x80\xA7y\xE2\x80\xAAz", 9, "\"x\xE2\x80\xA7y\xE2\x80\xAAz\"");
    check("\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x98\x80", 9,
          "\"\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x98\x80\"");
    check("<script>&'", 10, "\"<script>&'\"");
}

static void json_strings_replace_what_is_no_utf8(void **state)
{
    (void)state;
    check("\xFF", 1, "\"\xEF\xBF\xBD\"");
    check("a\xC0\x80""b", 4, "\"a\xEF\xBF\xBD\xEF\xBF\xBD""b\"");
    check("\xED\xA0\x80", 3, "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
    check("\xE2\x80", 2, "\"\xEF\xBF\xBD\"");
    check("\"\xF0\x9F\"", 4, "\"\\\"\xEF\xBF\xBD\\\"\"");
}

/* Every byte and every pair of bytes reads back as what was put in, where that was text. */
static void json_strings_read_back(void **state)
{
    (void)state;
    for (unsigned v = 0; v < 0x10000; v++) {
        char in[3] = {(char)(v >> 8), (char)v, 'x'};
        struct mc_buf b = {0};
        json_error_t e;
        json_t *j;

        mc_json_str(&b, in, 3);
        j = json_loadb(b.p, b.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
        assert_non_null(j);
        if ((v & 0x8080) == 0) {
            assert_int_equal(json_string_length(j), 3);
            assert_memory_equal(json_string_value(j), in, 3);
        }
        assert_null(memchr(b.p, '\n', b.n));
        assert_null(memchr(b.p, '\r', b.n));
        json_decref(j);
        mc_buf_free(&b);
    }
}

static void check_float(float v, const char *want)
{
    struct mc_buf b = {0};

    mc_json_float(&b, v);
    mc_buf_put(&b, "", 1);
    assert_string_equal(b.p, want);
    mc_buf_free(&b);
}

static void json_floats_are_short_and_finite(void **state)
{
    (void)state;
    check_float(0, "0");
    check_float(-0.5f, "-0.5");
    check_float(-0.1f, "-0.1");
    check_float(-1.0f / 3, "-0.33333334");
    check_float(-9999.0f, "-9999");
    check_float(1e-30f, "1e-30");
    check_float(INFINITY, "null");
    check_float(-INFINITY, "null");
    check_float(NAN, "null");
}

static void json_buffer_grows_drops_and_stays_failed(void **state)
{
    struct mc_buf b = {0};

    (void)state;
    for (int i = 0; i < 1000; i++)
        mc_buf_fmt(&b, "%d,", i);
    assert_int_equal(b.n, 10 * 2 + 90 * 3 + 900 * 4);
    mc_buf_drop(&b, 2);
    assert_memory_equal(b.p, "1,2,", 4);
    mc_json_strz(&b, NULL);
    assert_memory_equal(b.p + b.n - 4, "null", 4);
    assert_null(mc_buf_room(&b, SIZE_MAX / 2));
    assert_true(b.failed);
    mc_buf_puts(&b, "x");
    assert_memory_equal(b.p + b.n - 4, "null", 4);
    mc_buf_free(&b);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(json_strings_are_escaped_byte_for_byte),
    cmocka_unit_test(json_strings_replace_what_is_no_utf8),
    cmocka_unit_test(json_strings_read_back),
    cmocka_unit_test(json_floats_are_short_and_finite),
    cmocka_unit_test(json_buffer_grows_drops_and_stays_failed),
};
MC_TEST_MAIN(tests)
