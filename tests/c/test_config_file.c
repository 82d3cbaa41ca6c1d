/* test_config_file.c - mascon.lua and flags through the one table of settings. */
#include "tests/c/test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/cli/cli.h"
#include "core/cli/lua_half.h"
#include "core/cli/serve.h"
#include "core/serve/keys.h"
#include "lua/host/settings.h"
#include "tests/c/tmpdir.h"

static const struct mc_lua_half lua = {.table = mc_lua_table};

/* Writes text to a file and reads it as settings. */
static int load(const char *text, struct mc_settings *s, struct mc_err *err)
{
    char path[] = "/tmp/mascon-config-XXXXXX";
    int fd = mkstemp(path), rc;
    json_t *table = NULL;

    memset(err, 0, sizeof *err);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    rc = mc_lua_table(path, &table, err);
    if (rc == 0)
        rc = mc_settings_file(s, table, err);
    json_decref(table);
    unlink(path);
    return rc;
}

static void config_file_sets_what_it_names(void **state)
{
    struct mc_settings s;
    struct mc_err err;

    (void)state;
    mc_settings_init(&s);
    assert_ok(load("return { port = 81 - 1, backend = 'ref', watch = false, "
                   "kv_memory = '2G', log = { lua = 'debug' } }", &s, &err), err);
    assert_int_equal(s.port, 80);
    assert_string_equal(s.backend, "ref");
    assert_false(s.watch);
    assert_true(s.page_tags);
    assert_int_equal(s.kv_memory, 2ll << 30);
    assert_string_equal(s.log, "lua=debug");
    assert_string_equal(s.listen, "127.0.0.1:8000");
    mc_settings_free(&s);
}

static void memory_is_shared_evenly_or_by_name(void **state)
{
    struct mc_settings s;
    struct mc_err err;
    int64_t bytes;
    char name[16];

    (void)state;
    mc_settings_init(&s);
    assert_ok(load("return { kv_memory = '3G' }", &s, &err), err);
    assert_ok(mc_settings_share(&s, MC_SETTING_kv_memory, "any", 3, &bytes, &err), err);
    assert_int_equal(bytes, 1ll << 30);
    assert_false(mc_settings_share_name(&s, MC_SETTING_kv_memory, 0, name, sizeof name));
    assert_ok(load("return { kv_memory = { small = '1G', large = '3G' } }", &s, &err), err);
    assert_int_equal(s.kv_memory, 4ll << 30);
    assert_ok(mc_settings_share(&s, MC_SETTING_kv_memory, "large", 2, &bytes, &err), err);
    assert_int_equal(bytes, 3ll << 30);
    assert_true(mc_settings_share_name(&s, MC_SETTING_kv_memory, 1, name, sizeof name));
    assert_true(strcmp(name, "large") == 0 || strcmp(name, "small") == 0);
    assert_false(mc_settings_share_name(&s, MC_SETTING_kv_memory, 2, name, sizeof name));
    assert_int_equal(mc_settings_share(&s, MC_SETTING_kv_memory, "lar", 2, &bytes, &err),
                     MC_EARG);
    assert_non_null(strstr(err.text, "'lar'"));
    assert_int_equal(load("return { kv_memory = { a = 'much' } }", &s, &err), MC_EARG);
    mc_settings_free(&s);
}

static void config_file_unknown_key_names_the_nearest(void **state)
{
    struct mc_settings s;
    struct mc_err err;

    (void)state;
    mc_settings_init(&s);
    assert_int_equal(load("return { max_contxt = 1 }", &s, &err), MC_EARG);
    assert_non_null(strstr(err.text, "'max_context'"));
    assert_string_equal(err.param, "max_contxt");
    mc_settings_free(&s);
}

static void config_file_refuses_wrong_values(void **state)
{
    static const char *const bad[] = {
        "return { port = 70000 }", "return { port = 1.5 }", "return { port = {} }",
        "return { backend = 'cup' }", "return { watch = 'yes' }", "return { drain = 0/0 }",
        "return { kv_memory = 'much' }", "return { listen = {1} }", "return 7", "return",
        "return {", "error(nil)", "error({})", "return setmetatable({}, {})",
        "return { log = function() end }", "\x1bLJ\x02", "local t = {} t.a = t return t",
    };
    struct mc_settings s;
    struct mc_err err;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof bad / sizeof *bad; i++) {
        mc_settings_init(&s);
        if (load(bad[i], &s, &err) >= 0)
            fail_msg("accepted: %s", bad[i]);
        assert_true(strlen(err.text) > 0);
        mc_settings_free(&s);
    }
}

/* As many tenants as there may be, of long names. */
static void config_file_names_every_tenant(void **state)
{
    static const char text[] =
        "local t = {} for i = 1, %d do t['a-tenant-of-some-length-numbered-' .. i] = i .. '' "
        "end return { tenant_rate = t }";
    char *dir = tmp_new(), lines[8192], all[256];
    struct mc_keys *keys = NULL;
    struct mc_settings s;
    struct mc_err err;
    size_t n = 0;

    (void)state;
    for (int i = 1; i < MC_TENANTS_MAX; i++)
        n += (size_t)snprintf(lines + n, sizeof lines - n,
                              "key-of-%d a-tenant-of-some-length-numbered-%d\n", i + 1000, i);
    tmp_text(dir, "keys", lines);
    assert_ok(mc_keys_open(tmp_path(dir, "keys"), &keys, &err), err);
    mc_settings_init(&s);
    snprintf(all, sizeof all, text, MC_TENANTS_MAX - 1);
    assert_ok(load(all, &s, &err), err);
    assert_ok(mc_serve_rates(&s, keys, &err), err);
    for (uint32_t i = 1; i < MC_TENANTS_MAX; i++)
        assert_true(mc_keys_rate(keys, i) == i);
    snprintf(all, sizeof all, text, 999);
    assert_int_equal(load(all, &s, &err), MC_EBIG);
    assert_string_equal(err.param, "tenant_rate");
    assert_ok(load("return { tenant_rate = { nobody = '1' } }", &s, &err), err);
    assert_int_equal(mc_serve_rates(&s, keys, &err), MC_EARG);
    assert_non_null(strstr(err.text, "tenant_rate"));
    mc_settings_free(&s);
    mc_keys_close(keys);
    tmp_free(dir);
}

static void config_file_that_loops_is_stopped(void **state)
{
    struct mc_settings s;
    struct mc_err err;

    (void)state;
    mc_settings_init(&s);
    assert_true(load("while true do end", &s, &err) < 0);
    assert_non_null(strstr(err.text, "mascon-config-")); /* file and line */
    assert_non_null(strstr(err.text, ":1:"));
    mc_settings_free(&s);
}

static void config_flag_beats_the_file(void **state)
{
    char path[] = "/tmp/mascon-config-XXXXXX";
    char *argv[] = {"serve", "--config", path, "--port=90", "model"};
    struct mc_settings s;
    struct mc_args a = {.word = "serve", .usage = "", .who = MC_FOR_SERVE, .set = &s,
                        .max = 1};
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "return { port = 1, drain = 5 }", 30), 30);
    close(fd);
    assert_int_equal(mc_args_parse(&a, 5, argv, &lua), -1);
    assert_int_equal(s.port, 90);
    assert_int_equal(s.drain, 5);
    assert_int_equal(a.n_pos, 1);
    assert_string_equal(a.pos[0], "model");
    mc_settings_free(&s);
    unlink(path);
}

static void config_dump_restores_itself(void **state)
{
    struct mc_settings a, b;
    struct mc_err err;
    json_t *ja, *jb;
    char *text;

    (void)state;
    mc_settings_init(&a);
    mc_settings_init(&b);
    assert_ok(mc_settings_set(&a, MC_SETTING_name, "a \"quoted\\ name\n", MC_FROM_FLAG,
                              "--name", &err), err);
    assert_ok(mc_settings_set(&a, MC_SETTING_watch, NULL, MC_FROM_FLAG, "--no-watch",
                              &err),
              err);
    assert_ok(mc_settings_set(&a, MC_SETTING_port, "0", MC_FROM_FLAG, "--port", &err),
              err);
    text = mc_settings_dump(&a);
    assert_non_null(strstr(text, "watch = false,  -- from --no-watch; restart\n"));
    assert_non_null(strstr(text, "port = 0,  -- from --port; restart\n"));
    assert_non_null(strstr(text, "drain = 30,  -- default; live\n"));
    assert_ok(load(text, &b, &err), err);
    ja = mc_settings_json(&a);
    jb = mc_settings_json(&b);
    assert_true(json_equal(ja, jb));
    json_decref(ja);
    json_decref(jb);
    free(text);
    mc_settings_free(&a);
    mc_settings_free(&b);
}

static void config_nearest_needs_to_be_near(void **state)
{
    static const char *const list[] = {"serve", "chat", "config", NULL};

    (void)state;
    assert_string_equal(mc_nearest("srve", list), "serve");
    assert_string_equal(mc_nearest("chta", list), "chat");
    assert_null(mc_nearest("zzzzzz", list));
    assert_null(mc_nearest("foo", (const char *[]){"log", NULL}));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(config_file_sets_what_it_names),
    cmocka_unit_test(memory_is_shared_evenly_or_by_name),
        cmocka_unit_test(config_file_unknown_key_names_the_nearest),
    cmocka_unit_test(config_file_refuses_wrong_values),
    cmocka_unit_test(config_file_names_every_tenant),
    cmocka_unit_test(config_file_that_loops_is_stopped),
    cmocka_unit_test(config_flag_beats_the_file),
    cmocka_unit_test(config_dump_restores_itself),
    cmocka_unit_test(config_nearest_needs_to_be_near),
};

MC_TEST_MAIN(tests)
