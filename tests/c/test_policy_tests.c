/* test_policy_tests.c - what policies' own tests() are given, and who hears of them. */
#include "tests/c/test.h"

#include "lua/host/check.h"
#include "tests/c/policies_util.h"

/* A scheduler that decodes all, with this body of tests(t). */
static void write_tests(const char *dir, const char *body)
{
    char text[4096];

    snprintf(text, sizeof text,
             "local P = { api = 1, kind = 'scheduler', state = { n = 1 }, why = { 'x' } }\n"
             "function P.plan(view, plan) view.state.n = view.state.n + 1\n"
             "  for _, r in view:running() do r.user[1] = view.state.n plan:decode(r) end\n"
             "  for _, r in view:waiting() do plan:hold(r, 1) end end\n"
             "function P.admit(row) return row.n_prompt < 50, 'overloaded' end\n"
             "function P.tests(t)\n%s\nend\nreturn P\n", body);
    dir_write(dir, "s.lua", text);
    dir_write(dir, "init.lua", "return { scheduler = 's' }");
}

/* Test i of what `policy test` says: its error, "" when it passed. */
static const char *verdict(const char *dir, size_t i)
{
    static char text[400];
    char path[300];
    struct mc_err err = {0};
    json_t *out = NULL, *row;

    snprintf(path, sizeof path, "%s/s.lua", dir);
    assert_ok(mc_test_alone(path, NULL, &out, &err), err);
    row = json_array_get(out, i);
    assert_non_null(row);
    assert_string_equal(json_string_value(json_object_get(row, "file")), "s.lua");
    snprintf(text, sizeof text, "%s",
             json_is_true(json_object_get(row, "ok"))
                 ? "" : json_string_value(json_object_get(row, "error")));
    json_decref(out);
    return text;
}

static void assert_verdict(const char *body, const char *want)
{
    char *dir = dir_new();
    const char *got;

    write_tests(dir, body);
    got = verdict(dir, 0);
    if (!*want ? *got : !strstr(got, want))
        fail_msg("wanted '%s', got '%s'", want, got);
    dir_free(dir);
}

static void tests_make_views_and_read_plans(void **st)
{
    (void)st;
    assert_verdict("local v = t.view { rows = { { state = 'decode' }, { n_prompt = 70 } } }\n"
                   "local p = t.plan(v)\n"
                   "t.expect(p[1]):is { what = 'run', n = 1 }\n"
                   "t.expect(p[2]):is { what = 'hold', why = 1 }\n"
                   "t.expect({ p.n, p.tokens, p.rows, p.order }):is { 2, 1, 1, { 1, 2 } }\n"
                   "t.expect(v.rows[2].n_left):is(70)\n"
                   "t.expect(v.rows[1].user[1]):is(2)\n"
                   "t.plan(v) t.expect(v.rows[1].user[1]):is(3)\n"
                   "t.expect({ t.admit { n_prompt = 9 } }):is { true }\n"
                   "t.expect(select(2, t.admit { n_prompt = 90 })):is('overloaded')", "");
    assert_verdict("local n = 0\n"
                   "for i, v in t.recorded() do n = n + #t.plan(v).order\n"
                   "assert(v.name and #v.rows < 200 and v.tok_cap > 0) end\n"
                   "t.expect(n):between(100, 1000)", "");
    assert_verdict("t.random(50, function(rnd) t.plan(t.random_view(rnd)) end)", "");
    assert_verdict("t.it('a', function() t.plan(t.view {}) end)\n"
                   "t.it('b', function() local v = t.view { rows = { { state = 'decode' } } }\n"
                   "t.plan(v) t.expect(v.rows[1].user[1]):is(2) end)", "");
}

static void tests_that_fail_say_where(void **st)
{
    static const struct {
        const char *body, *error;
    } cases[] = {
        {"t.expect(1):is(2)", "s.lua:7: expected 2, got 1"},
        {"t.expect({ 1, a = 'x' }):is { 1 }", "s.lua:7: expected {1}, got {1, a = \"x\"}"},
        {"t.expect(1):near(1.1)", "s.lua:7: expected 1.1 within"},
        {"t.expect(nil):between(1, 2)", "s.lua:7: expected a number from 1 to 2, got nil"},
        {"t.expect('abc'):matches('^b')", "s.lua:7: expected a text like"},
        {"t.expect(function() end):fails('x')", "s.lua:7: expected an error"},
        {"t.expect(1):equals(1)", "s.lua:7: expect has no 'equals'"},
        {"t.view { lane = {} }", "s.lua:7: a view has no 'lane' (did you mean 'lanes'?)"},
        {"t.view { rows = { { state = 'x' } } }", "s.lua:7: state must be waiting"},
        {"t.view { lanes = { { weigth = 1 } } }", "s.lua:7: a lane has no 'weigth'"},
        {"t.view { rows = { { n_promt = 1 } } }", "s.lua:7: a row has no 'n_promt'"},
        {"t.plan {}", "s.lua:7: this takes a view"},
        {"t.evict(t.view {}, 1)", "s.lua:7: this policy has no evict"},
        {"t.random(9, function(r, s) if s == 4 then error('x') end end)", "x (seed 4)"},
        {"t.it('one', function() error('in one') end)", "s.lua:7: in one"},
        {"error({})", "table"},
        {"error(nil)", "nil"},
    };

    (void)st;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_verdict(cases[i].body, cases[i].error);
}

/* What the hook is shown in a test is as guarded as in service, and gone afterwards. */
static void tests_leave_no_handle_behind(void **st)
{
    char *dir = dir_new();

    (void)st;
    dir_write(dir, "s.lua", "local kept, P = nil, { api = 1, kind = 'scheduler' }\n"
              "function P.plan(view, plan) for _, r in view:running() do kept = r end\n"
              "  if view.kv_free == 1 then error('dry') end end\n"
              "function P.tests(t)\n"
              "  t.plan(t.view { rows = { { state = 'decode' } } })\n"
              "  t.expect(function() return kept.seq end):fails('row is stale')\n"
              "  t.expect(function() t.plan(t.view { pages = 1 }) end):fails('s.lua:3: dry')\n"
              "  t.expect(function() return kept.seq end):fails('row is stale')\n"
              "end\nreturn P\n");
    dir_write(dir, "init.lua", "return { scheduler = 's' }");
    assert_string_equal(verdict(dir, 0), "");
    dir_free(dir);
}

static void tests_that_fail_refuse_a_generation(void **st)
{
    struct rig r = {.dir = dir_new()};

    (void)st;
    write_tests(r.dir, "t.it('holds', function() t.expect(1):is(1) end)");
    rig_open(&r, false);
    write_tests(r.dir, "t.it('holds', function() t.expect(1):is(2) end)");
    rig_reload(&r, "s.lua:7: expected 2, got 1 (test 'holds')");
    assert_int_equal(rig_status(&r).live, 1);
    rig_close(&r);
}

static void tests_of_routes_and_routers_run_too(void **st)
{
    char *dir = dir_new(), path[300];
    struct mc_err err = {0};
    json_t *out = NULL;

    (void)st;
    snprintf(path, sizeof path, "%s/routes", dir);
    assert_int_equal(mkdir(path, 0755), 0);
    dir_write(path, "x.lua", "return { api = 1, kind = 'routes',\n"
              "['POST /x'] = function(req, res)\n"
              "  local b = req:json { n = 'integer 1..5' } res:header('X-A', 'b')\n"
              "  res:json({ twice = 2 * b.n }, 201) end,\n"
              "tests = function(t)\n"
              "  local a = t.call('POST /x', { json = { n = 3 } })\n"
              "  t.expect({ a.status, a.value.twice, a.headers['x-a'] }):is { 201, 6, 'b' }\n"
              "  t.expect(t.call('POST /x', { body = '{\"n\":9}' }).status):is(400)\n"
              "  t.expect(t.call('POST /x', { body = '{' }).status):is(400)\n"
              "end }");
    dir_write(dir, "r.lua", "return { api = 1, kind = 'router',\n"
              "route = function(req) return { lane = #req.path } end, tests = function(t)\n"
              "  t.it('r', function() t.expect(t.route { path = '/abc' }.lane):is(3) end) end }");
    dir_write(dir, "init.lua", "return { router = 'r', routes = { 'x' } }");
    assert_ok(mc_test_alone(dir, NULL, &out, &err), err);
    for (size_t i = 0; i < json_array_size(out); i++) {
        json_t *row = json_array_get(out, i);
        bool bad = strcmp(json_string_value(json_object_get(row, "name")), "r") == 0;

        if (json_is_true(json_object_get(row, "ok")) == bad)
            fail_msg("%s: %s", json_string_value(json_object_get(row, "file")),
                     json_string_value(json_object_get(row, "error")));
    }
    assert_true(json_array_size(out) >= 4);
    json_decref(out);
    dir_free(dir);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(tests_make_views_and_read_plans),
    cmocka_unit_test(tests_that_fail_say_where),
    cmocka_unit_test(tests_leave_no_handle_behind),
    cmocka_unit_test(tests_that_fail_refuse_a_generation),
    cmocka_unit_test(tests_of_routes_and_routers_run_too),
};
MC_TEST_MAIN(tests)
