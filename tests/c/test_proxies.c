/* test_proxies.c - whose X-Forwarded-For is believed, and how far. */
#include "tests/c/test.h"

#include <arpa/inet.h>
#include <string.h>

#include "core/serve/proxies.h"

static struct mc_proxies *open_list(const char *list)
{
    struct mc_proxies *p = NULL;
    struct mc_err err = {0};

    assert_ok(mc_proxies_open(list, &p, &err), err);
    return p;
}

static const char *follow(const struct mc_proxies *p, const char *peer, const char *line)
{
    static char text[MC_IP_TEXT];
    struct in6_addr ip;

    assert_true(mc_ip_parse(peer, strlen(peer), &ip));
    mc_proxies_follow(p, line, &ip);
    mc_ip_text(&ip, text);
    return text;
}

static void nobody_is_believed_unless_named(void **state)
{
    struct mc_proxies *p = open_list("10.0.0.0/8");

    (void)state;
    assert_string_equal(follow(NULL, "10.0.0.1", "1.2.3.4"), "10.0.0.1");
    assert_string_equal(follow(p, "192.168.0.1", "1.2.3.4"), "192.168.0.1");
    assert_string_equal(follow(p, "11.0.0.1", "1.2.3.4"), "11.0.0.1");
    mc_proxies_close(p);
}

static void the_last_address_that_is_no_proxy_is_the_client(void **state)
{
    static const struct {
        const char *peer, *line, *client;
    } cases[] = {
        {"10.0.0.1", "1.2.3.4", "1.2.3.4"},
        {"10.0.0.1", "6.6.6.6, 1.2.3.4", "1.2.3.4"}, /* the first may be forged */
        {"10.0.0.1", "6.6.6.6, 1.2.3.4, 10.9.9.9 ,10.1.1.1", "1.2.3.4"},
        {"10.0.0.1", "10.2.2.2,10.1.1.1", "10.2.2.2"},
        {"10.0.0.1", "", "10.0.0.1"},
        {"10.0.0.1", " , ", "10.0.0.1"},
        {"10.0.0.1", "unknown", "10.0.0.1"},
        {"10.0.0.1", "1.2.3.4, unknown", "10.0.0.1"},
        {"10.0.0.1", "1.2.3.4:5678", "1.2.3.4"},
        {"10.0.0.1", "[2001:db8::7]:99", "2001:db8::7"},
        {"::1", "2001:db8::7", "2001:db8::7"},
        {"::ffff:10.0.0.1", "1.2.3.4", "1.2.3.4"},
        {"2001:db8:1::5", "1.2.3.4", "1.2.3.4"},
        {"2001:db8:2::5", "1.2.3.4", "2001:db8:2::5"},
    };
    struct mc_proxies *p = open_list("10.0.0.0/8, ::1,2001:db8:1::/48");

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(follow(p, cases[i].peer, cases[i].line), cases[i].client);
    mc_proxies_close(p);
}

static void several_lines_are_followed_from_the_last(void **state)
{
    struct mc_proxies *p = open_list("10.0.0.0/8");
    struct in6_addr ip;
    char text[MC_IP_TEXT];

    (void)state;
    assert_true(mc_ip_parse("10.0.0.1", 8, &ip));
    assert_true(mc_proxies_follow(p, "10.3.3.3", &ip));
    assert_false(mc_proxies_follow(p, "9.9.9.9, 1.2.3.4", &ip));
    mc_ip_text(&ip, text);
    assert_string_equal(text, "1.2.3.4");
    mc_proxies_close(p);
}

static void lists_that_are_none_are_refused(void **state)
{
    static const char *const bad[] = {"proxy.example", "10.0.0.0/33", "10.0.0.0/", "::1/129",
                                      "10.0.0/8", "10.0.0.0/8x", "/8", "10.0.0.0/-1"};
    struct mc_proxies *p;
    struct mc_err err;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(mc_proxies_open(bad[i], &p, &err), MC_EARG);
        assert_null(p);
        assert_string_equal(err.param, "trusted_proxies");
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(nobody_is_believed_unless_named),
    cmocka_unit_test(the_last_address_that_is_no_proxy_is_the_client),
    cmocka_unit_test(several_lines_are_followed_from_the_last),
    cmocka_unit_test(lists_that_are_none_are_refused),
};

MC_TEST_MAIN(tests)
