/* test_utf8.c - UTF-8 checked, cut at whole characters, and repaired. */
#include "tests/c/test.h"

#include <string.h>

#include "core/base/err.h"
#include "core/base/utf8.h"

/* text, its repaired form ('?' for U+FFFD), length that is ready */
static const struct {
    const char *text, *clean;
    size_t ready;
} rows[] = {
    {"", "", 0},
    {"abc", "abc", 3},
    {"abcdefghijklmnop\xff", "abcdefghijklmnop?", 17},
    {"\xc3\xa9", "\xc3\xa9", 2},
    {"a\xc3", "a?", 1},
    {"\xe6\xbc\xa2", "\xe6\xbc\xa2", 3},
    {"\xe6\xbc", "?", 0},
    {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80", 4},
    {"x\xf0\x9f\x98", "x?", 1},
    {"x\xf0\x9f", "x?", 1},
    {"x\xf0", "x?", 1},
    {"\x80", "?", 1},                     /* a continuation alone is done, and wrong */
    {"\xc0\xaf", "??", 2},                /* overlong */
    {"\xe0\x80\xaf", "???", 3},
    {"\xe0\x80", "??", 2},                /* no third byte can save it */
    {"\xf0\x80\x80\xaf", "????", 4},
    {"\xed\xa0\x80", "???", 3},           /* a surrogate */
    {"\xed\x9f\xbf", "\xed\x9f\xbf", 3},  /* the character before them */
    {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf", 4},
    {"\xf4\x90\x80\x80", "????", 4},      /* above U+10FFFF */
    {"\xf5\x80", "??", 2},
    {"\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63", "???b?c", 9}, /* Unicode's own example */
    {"\xe6\xbc\x61", "?a", 3},
    {"\xc3\xc3", "??", 1},
    {"\xf0\x9f\x98\x80\xe6", "\xf0\x9f\x98\x80?", 4},
};

/* The expected text with each '?' spelled out. */
static size_t spell(const char *s, char *out)
{
    size_t n = 0;

    for (; *s; s++) {
        if (*s == '?') {
            memcpy(out + n, "\xef\xbf\xbd", 3);
            n += 3;
        } else {
            out[n++] = *s;
        }
    }
    return n;
}

static void utf8_repairs_each_maximal_subpart_once(void **state)
{
    char want[128], got[128];
    size_t i, n, n_want;

    (void)state;
    for (i = 0; i < sizeof rows / sizeof *rows; i++) {
        n = strlen(rows[i].text);
        n_want = spell(rows[i].clean, want);
        assert_int_equal(mc_utf8_clean(rows[i].text, n, NULL), n_want);
        assert_int_equal(mc_utf8_clean(rows[i].text, n, got), n_want);
        assert_memory_equal(got, want, n_want);
        assert_true(mc_utf8_valid(got, n_want));
        assert_int_equal(mc_utf8_valid(rows[i].text, n),
                         strchr(rows[i].clean, '?') == NULL);
    }
}

static void utf8_holds_back_only_what_more_bytes_may_complete(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(mc_utf8_ready(rows[i].text, strlen(rows[i].text)),
                         rows[i].ready);
}

/* A text cut anywhere and fed piece by piece comes out as when repaired whole. */
static void utf8_streamed_repair_equals_repair_of_the_whole(void **state)
{
    static const char text[] =
        "a\xc3\xa9\xf0\x9f\x98\x80\xe6\xbc\xa2\xff\xe6\xbc\x62\xf0\x9f";
    size_t n = sizeof text - 1, n_want, a, b, k, at, used, ready;
    char want[64], got[64];

    (void)state;
    n_want = mc_utf8_clean(text, n, want);
    for (a = 0; a <= n; a++) {
        for (b = a; b <= n; b++) {
            const size_t end[] = {a, b, n};

            for (k = 0, at = 0, used = 0; k < 3; k++) {
                ready = k < 2 ? mc_utf8_ready(text + at, end[k] - at) : n - at;
                used += mc_utf8_clean(text + at, ready, got + used);
                at += ready;
            }
            assert_int_equal(used, n_want);
            assert_memory_equal(got, want, n_want);
        }
    }
}

static void utf8_put_and_get_agree_on_every_code_point(void **state)
{
    uint32_t cp;
    char out[4];
    size_t n;

    (void)state;
    for (cp = 0; cp <= 0x10ffff; cp++) {
        n = mc_utf8_put(cp, out);
        if (n != mc_utf8_len(out[0]) || mc_utf8_get(out) != cp)
            fail_msg("U+%04X", (unsigned)cp);
        if (mc_utf8_valid(out, n) != (cp < 0xd800 || cp > 0xdfff))
            fail_msg("U+%04X valid", (unsigned)cp);
    }
}

/* Whatever its values held: an error that JSON can't carry is an answer that never comes. */
static void utf8_is_what_errors_are_made_of(void **state)
{
    char bad[512];
    struct mc_err err;

    (void)state;
    mc_fail(&err, MC_EARG, "a file says \xff\n%s", "\xc3");
    assert_string_equal(err.text, "a file says \xef\xbf\xbd ");
    for (size_t n = 0; n < sizeof bad; n++) {
        memset(bad, 0xe6, n);
        bad[n] = 0;
        mc_fail_param(&err, MC_EARG, bad, "%s", bad);
        assert_true(mc_utf8_valid(err.text, strlen(err.text)));
        assert_true(mc_utf8_valid(err.param, strlen(err.param)));
        mc_err_while(&err, "reading %s", bad);
        assert_true(mc_utf8_valid(err.text, strlen(err.text)));
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(utf8_repairs_each_maximal_subpart_once),
    cmocka_unit_test(utf8_holds_back_only_what_more_bytes_may_complete),
    cmocka_unit_test(utf8_streamed_repair_equals_repair_of_the_whole),
    cmocka_unit_test(utf8_put_and_get_agree_on_every_code_point),
    cmocka_unit_test(utf8_is_what_errors_are_made_of),
};
MC_TEST_MAIN(tests)
