/* test_shared.c - mc.shared's table, and API keys. */
#include "tests/c/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "core/serve/keys.h"
#include "core/serve/sha256.h"
#include "core/serve/shared.h"
#include "tests/c/tmpdir.h"

static struct mc_shared *open_table(size_t bytes)
{
    struct mc_shared *s = NULL;
    struct mc_err err = {0};

    assert_ok(mc_shared_open(bytes, &s, &err), err);
    return s;
}

static int set_text(struct mc_shared *s, const char *key, const char *text, double ttl,
                    double now)
{
    struct mc_shared_value v = {.is_text = true, .text = (char *)text, .n = strlen(text)};
    struct mc_err err;

    return mc_shared_set(s, key, strlen(key), &v, ttl, now, &err);
}

/* The text of a key, or NULL; freed by the next call. */
static const char *get_text(struct mc_shared *s, const char *key, double now)
{
    static char text[256];
    struct mc_shared_value v;

    if (!mc_shared_get(s, key, strlen(key), now, &v) || !v.is_text)
        return NULL;
    snprintf(text, sizeof text, "%.*s", (int)v.n, v.text);
    free(v.text);
    return text;
}

static void shared_values_are_replaced_end_and_go(void **state)
{
    struct mc_shared *s = open_table(1 << 20);

    (void)state;
    assert_int_equal(set_text(s, "a", "one", 0, 10), 0);
    assert_string_equal(get_text(s, "a", 1e9), "one");
    assert_int_equal(set_text(s, "a", "two", 5, 10), 0);
    assert_string_equal(get_text(s, "a", 14.9), "two");
    assert_null(get_text(s, "a", 15));
    assert_int_equal(set_text(s, "b", "", 0, 10), 0);
    assert_string_equal(get_text(s, "b", 10), "");
    mc_shared_drop(s, "b", 1);
    mc_shared_drop(s, "never", 5);
    assert_null(get_text(s, "b", 10));
    mc_shared_close(s);
}

static void shared_refuses_what_is_too_large(void **state)
{
    struct mc_shared *s = open_table(1 << 20);
    struct mc_shared_value v = {.is_text = true};
    char *big = calloc(1, MC_SHARED_VALUE + 1);
    struct mc_err err;

    (void)state;
    assert_int_equal(mc_shared_set(s, "", 0, &v, 0, 1, &err), MC_EARG);
    assert_int_equal(mc_shared_set(s, big, MC_SHARED_KEY + 1, &v, 0, 1, &err), MC_EARG);
    v.text = big;
    v.n = MC_SHARED_VALUE + 1;
    assert_int_equal(mc_shared_set(s, "k", 1, &v, 0, 1, &err), MC_EARG);
    v.n = MC_SHARED_VALUE;
    assert_int_equal(mc_shared_set(s, "k", 1, &v, 0, 1, &err), 0);
    free(big);
    mc_shared_close(s);
}

static void shared_full_table_lets_the_ended_and_then_the_unused_go(void **state)
{
    struct mc_shared *s = open_table(100 * 200);
    char key[32], text[101] = {0};
    int i, left = 0;

    (void)state;
    memset(text, 'x', 90);
    assert_int_equal(set_text(s, "ends", "soon", 1, 0), 0);
    assert_int_equal(set_text(s, "used", "often", 0, 0), 0);
    for (i = 0; i < 1000; i++) {
        snprintf(key, sizeof key, "k%d", i);
        assert_int_equal(set_text(s, key, text, 0, 10), 0);
        assert_string_equal(get_text(s, "used", 10), "often");
    }
    for (i = 0; i < 1000; i++) {
        snprintf(key, sizeof key, "k%d", i);
        left += get_text(s, key, 10) != NULL;
    }
    assert_in_range(left, 50, 110);
    assert_non_null(get_text(s, "k999", 10));
    assert_null(get_text(s, "k0", 10));
    mc_shared_close(s);
}

static void shared_sums_start_at_zero_and_end_together(void **state)
{
    struct mc_shared *s = open_table(1 << 20);
    struct mc_err err;
    double sum;

    (void)state;
    assert_int_equal(mc_shared_incr(s, "n", 1, 2, 10, 0, &sum, &err), 0);
    assert_true(sum == 2);
    assert_int_equal(mc_shared_incr(s, "n", 1, -0.5, 100, 9, &sum, &err), 0);
    assert_true(sum == 1.5);
    assert_int_equal(mc_shared_incr(s, "n", 1, 1, 10, 10, &sum, &err), 0);
    assert_true(sum == 1); /* the first use's ttl was over */
    set_text(s, "t", "text", 0, 0);
    assert_int_equal(mc_shared_incr(s, "t", 1, 1, 0, 0, &sum, &err), MC_EARG);
    mc_shared_close(s);
}

static void shared_bucket_gives_its_burst_then_its_rate(void **state)
{
    struct mc_shared *s = open_table(1 << 20);
    struct mc_err err;
    double after;
    int i;

    (void)state;
    for (i = 0; i < 5; i++)
        assert_int_equal(mc_shared_take(s, "b", 1, 1, 2, 5, 100, &after, &err), 0);
    assert_int_equal(mc_shared_take(s, "b", 1, 1, 2, 5, 100, &after, &err), MC_ELIMIT);
    assert_true(fabs(after - 0.5) < 1e-9);
    assert_int_equal(mc_shared_take(s, "b", 1, 1, 2, 5, 100.5, &after, &err), 0);
    assert_int_equal(mc_shared_take(s, "b", 1, 1, 2, 5, 100.5, &after, &err), MC_ELIMIT);
    for (i = 0; i < 5; i++) /* never more than the burst */
        assert_int_equal(mc_shared_take(s, "b", 1, 1, 2, 5, 1000, &after, &err), 0);
    assert_int_equal(mc_shared_take(s, "b", 1, 1, 2, 5, 1000, &after, &err), MC_ELIMIT);
    assert_int_equal(mc_shared_take(s, "b", 1, 6, 2, 5, 1000, &after, &err), MC_EARG);
    assert_int_equal(mc_shared_take(s, "b", 1, 1, 0, 5, 1000, &after, &err), MC_EARG);
    assert_int_equal(mc_shared_take(s, "b", 1, NAN, 1, 5, 1000, &after, &err), MC_EARG);
    mc_shared_close(s);
}

/* ---- keys -------------------------------------------------------------------------- */

static int load(const char *text, struct mc_keys **out, struct mc_err *err)
{
    char *dir = tmp_new();
    int rc;

    mc_log_set("http", MC_LOG_OFF);
    tmp_text(dir, "keys", text);
    rc = mc_keys_open(tmp_path(dir, "keys"), out, err);
    tmp_free(dir);
    return rc;
}

static void keys_name_their_tenants(void **state)
{
    struct mc_keys *k = NULL;
    struct mc_err err = {0};
    uint32_t tenant;

    (void)state;
    assert_ok(load("# comment\n\nkey-number-1\n  key-number-2\tacme # theirs\r\n"
                   "key-number-3 acme\nkey-number-4 other", &k, &err), err);
    assert_ok(mc_keys_check(k, "Bearer key-number-1", NULL, &tenant, &err), err);
    assert_string_equal(mc_keys_tenant(k, tenant), "");
    assert_ok(mc_keys_check(k, "bearer   key-number-2", NULL, &tenant, &err), err);
    assert_string_equal(mc_keys_tenant(k, tenant), "acme");
    assert_ok(mc_keys_check(k, NULL, "key-number-4", &tenant, &err), err);
    assert_string_equal(mc_keys_tenant(k, tenant), "other");
    assert_string_equal(mc_keys_tenant(k, 99), "");
    assert_string_equal(mc_keys_tenant(NULL, 0), "");
    mc_keys_close(k);
}

static void keys_refuse_everything_else(void **state)
{
    static const char *const wrong[] = {"", "Bearer ", "Bearer key-number", "key-number-1",
                                        "Basic key-number-1", "Bearer key-number-12"};
    struct mc_keys *k = NULL;
    struct mc_err err = {0};
    uint32_t tenant = 7;
    size_t i;

    (void)state;
    assert_ok(load("key-number-1 acme\n", &k, &err), err);
    for (i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(mc_keys_check(k, wrong[i], NULL, &tenant, &err), MC_EAUTH);
    assert_int_equal(mc_keys_check(k, NULL, NULL, &tenant, &err), MC_EAUTH);
    assert_int_equal(tenant, 0);
    assert_null(strstr(err.text, "key-number"));
    mc_keys_close(k);
    assert_int_equal(load("# none\n", &k, &err), MC_EARG);
    assert_int_equal(load("short\n", &k, &err), MC_EARG);
    assert_non_null(strstr(err.text, "line 1"));
    assert_true(mc_keys_open("/nonexistent", &k, &err) < 0);
}

static void sha256_of_known_messages(void **state)
{
    static const struct {
        const char *text, *sum;
    } known[] = { /* FIPS 180-4's, and the lengths at which padding grows */
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
        {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"},
    };
    uint8_t sum[MC_SHA256];
    char hex[MC_SHA256_HEX];

    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        mc_sha256(known[i].text, strlen(known[i].text), sum);
        mc_sha256_hex(sum, hex);
        assert_string_equal(hex, known[i].sum);
    }
}

static void keys_are_kept_by_hash_and_read_again(void **state)
{
    char *dir = tmp_new();
    struct mc_keys *k = NULL;
    struct mc_err err = {0};
    uint32_t acme, tenant;

    (void)state;
    mc_log_set("http", MC_LOG_OFF);
    tmp_text(dir, "keys",
             "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad "
             "acme\n");
    assert_ok(mc_keys_open(tmp_path(dir, "keys"), &k, &err), err);
    assert_ok(mc_keys_check(k, "Bearer abc", NULL, &acme, &err), err);
    assert_string_equal(mc_keys_tenant(k, acme), "acme");
    tmp_text(dir, "keys", "key-number-1 other\nkey-number-2 acme\n");
    assert_ok(mc_keys_reload(k, &err), err);
    assert_int_equal(mc_keys_check(k, "Bearer abc", NULL, &tenant, &err), MC_EAUTH);
    assert_ok(mc_keys_check(k, "Bearer key-number-2", NULL, &tenant, &err), err);
    assert_int_equal(tenant, acme);
    tmp_text(dir, "keys", "sha256:BA78 acme\n");
    assert_int_equal(mc_keys_reload(k, &err), MC_EARG);
    assert_ok(mc_keys_check(k, "Bearer key-number-2", NULL, &tenant, &err), err);
    tmp_text(dir, "keys", "key-number-1 a/b\n");
    assert_int_equal(mc_keys_reload(k, &err), MC_EARG);
    mc_keys_close(k);
    tmp_free(dir);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(sha256_of_known_messages),
    cmocka_unit_test(keys_are_kept_by_hash_and_read_again),
    cmocka_unit_test(shared_values_are_replaced_end_and_go),
    cmocka_unit_test(shared_refuses_what_is_too_large),
    cmocka_unit_test(shared_full_table_lets_the_ended_and_then_the_unused_go),
    cmocka_unit_test(shared_sums_start_at_zero_and_end_together),
    cmocka_unit_test(shared_bucket_gives_its_burst_then_its_rate),
    cmocka_unit_test(keys_name_their_tenants),
    cmocka_unit_test(keys_refuse_everything_else),
};

MC_TEST_MAIN(tests)
