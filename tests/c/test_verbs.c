/* test_verbs.c - what operators ask of generations: list, check, diff. The test plays the
 * engine. */
#include "tests/c/test.h"

#include <pthread.h>

#include "lua/host/check.h"
#include "lua/host/verbs.h"
#include "tests/c/policies_util.h"

static const struct mc_policy_admin *const verbs = &mc_policy_verbs;

/* Checks path and wants this in the error, or success with NULL. */
static void check(struct rig *r, const char *path, const char *want)
{
    struct mc_err err = {0};
    json_t *out = NULL;
    int rc = verbs->check(r->p, path, &out, &err);

    if (!want)
        assert_ok(rc, err);
    else if (rc >= 0 || !strstr(err.text, want))
        fail_msg("wanted '%s', got %d '%s'", want, rc, err.text);
    json_decref(out);
}

static const char *in(const char *dir, const char *file)
{
    static char path[400];

    snprintf(path, sizeof path, "%s/%s", dir, file);
    return path;
}

static void check_refuses_what_fails_only_later(void **st)
{
    static const struct {
        const char *body, *error;
    } cases[] = {
        {"for _, r in view:waiting() do if r.n_left > 100 then error('waits') end end",
         "s.lua:4: waits"},
        {"if view.kv_free == 0 then error('dry') end", "s.lua:4: dry"},
        {"for _, r in view:paused() do error('paused') end", "s.lua:4: paused"},
        {"if view.rows_left < 10 then local x = nil + 1 end", "s.lua:4: attempt to perform"},
        {"for _, l in view:lanes() do if l.id == 1 then error('lane') end end",
         "s.lua:4: lane"},
        {"for _, r in view:waiting() do while true do end end", "s.lua:4"},
    };
    struct rig r = {.dir = dir_new()};

    (void)st;
    write_hold(r.dir, 1);
    rig_open(&r, false);
    check(&r, NULL, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dir_scheduler(r.dir, cases[i].body, "");
        check(&r, NULL, cases[i].error);
        check(&r, r.dir, cases[i].error);
        check(&r, "s", cases[i].error);
        check(&r, in(r.dir, "s.lua"), cases[i].error);
        assert_int_equal(rig_step(&r), 0); /* what serves is untouched */
        assert_int_equal(rig_status(&r).live, 1);
    }
    assert_string_equal(rig_status(&r).error, "");
    rig_close(&r);
}

static void check_takes_one_file_that_nobody_names(void **st)
{
    struct rig r = {.dir = dir_new()};
    char path[300];

    (void)st;
    write_hold(r.dir, 1);
    dir_write(r.dir, "other.lua", "return { api = 1, kind = 'scheduler',\n"
              "init = function(o) assert(o.chunk == 7, 'opts') end,\n"
              "plan = function(v) error('other') end }");
    dir_write(r.dir, "init.lua", "return { scheduler = 's', opts = { s = {} } }");
    rig_open(&r, false);
    check(&r, NULL, NULL);
    check(&r, "other", "other.lua:2: opts");
    dir_write(r.dir, "init.lua", "return { scheduler = 's', opts = { other = { chunk = 7 } } }");
    check(&r, "other.lua", "other.lua:3: other");
    dir_write(r.dir, "pick.lua", "return { api = 1, kind = \"sampler\", chain = 3 }");
    check(&r, "pick", "pick.lua: chain must be a function");
    dir_write(r.dir, "liar.lua", "local x = { kind = 'sampler' }\n"
                                 "return { api = 1, kind = 'scheduler' }");
    check(&r, "liar", "liar.lua: kind must be \"sampler\"");
    dir_write(r.dir, "none.lua", "return {}");
    check(&r, "none", "none.lua: it returns no table with kind");
    check(&r, in(r.dir, "nosuch.lua"), "No such file");
    snprintf(path, sizeof path, "%s/routes", r.dir);
    assert_int_equal(mkdir(path, 0755), 0);
    check(&r, path, "init.lua: No such file");
    dir_write(path, "x.lua", "return { api = 1, kind = 'routes', }");
    check(&r, in(path, "x.lua"), NULL);
    rig_close(&r);
}

/* An edge VM of its own runs what routes do at load. */
static void check_alone_runs_routes_and_routers(void **st)
{
    char *dir = dir_new(), path[300];
    struct mc_err err = {0};
    json_t *out = NULL;

    (void)st;
    snprintf(path, sizeof path, "%s/routes", dir);
    assert_int_equal(mkdir(path, 0755), 0);
    dir_write(dir, "init.lua", "return { routes = { 'x' } }");
    dir_write(path, "x.lua", "return { api = 1, kind = 'routes',\n"
              "['GET /x'] = function(req, res) res:json {} end,\n"
              "init = function() local ok, why = pcall(mc.submit, { prompt = 'a' })\n"
              "assert(not ok and tostring(why):find('what waits') and\n"
              "mc.shared.incr('k') == 1) end }");
    assert_ok(mc_check_alone(dir, NULL, &out, &err), err);
    json_decref(out);
    dir_write(path, "x.lua", "return { api = 1, kind = 'routes', ['GET x'] = print }");
    assert_true(mc_check_alone(dir, NULL, &out, &err) < 0);
    assert_non_null(strstr(err.text, "routes/x.lua"));
    dir_write(path, "x.lua", "return { api = 1, kind = 'routes',\n"
                             "init = function() while true do end end }");
    assert_int_equal(mc_check_alone(in(path, "x.lua"), NULL, &out, &err), MC_EBUDGET);
    dir_free(dir);
}

static void list_tells_probation(void **st)
{
    struct rig r = {.dir = dir_new()};
    struct mc_err err = {0};
    json_t *out, *live;

    (void)st;
    write_hold(r.dir, 1);
    rig_open(&r, false);
    write_hold(r.dir, 2);
    rig_reload(&r, NULL);
    for (int i = 0; i < 2; i++) {
        assert_ok(verbs->list(r.p, &out, &err), err);
        live = json_array_get(json_object_get(out, "generations"), 0);
        assert_int_equal(json_integer_value(json_object_get(live, "generation")), 2);
        assert_string_equal(json_string_value(json_object_get(live, "state")), "live");
        assert_int_equal(json_is_true(json_object_get(live, "probation")), i == 0);
        json_decref(out);
        for (int k = 0; k < 1000; k++)
            rig_step(&r);
    }
    rig_close(&r);
}

static void diff(struct rig *r, const char *from, const char *to, const char *want)
{
    struct mc_err err = {0};
    json_t *out = NULL;
    const char *text;

    assert_ok(verbs->diff(r->p, from, to, &out, &err), err);
    text = json_string_value(json_object_get(out, "text"));
    if (!*want ? *text : !strstr(text, want))
        fail_msg("wanted '%s' in:\n%s", want, text);
    json_decref(out);
}

static void diff_shows_what_a_reload_would_change(void **st)
{
    struct rig r = {.dir = dir_new()};
    struct mc_err err = {0};
    json_t *out;

    (void)st;
    write_hold(r.dir, 1);
    rig_open(&r, false);
    diff(&r, NULL, NULL, "");
    write_hold(r.dir, 2);
    diff(&r, NULL, NULL, "--- live/s.lua\n+++ disk/s.lua\n@@ -1,4 +1,4 @@\n"
         "-local P = { api = 1, kind = 'scheduler', why = { 'waiting for 1' } }\n"
         "+local P = { api = 1, kind = 'scheduler', why = { 'waiting for 2' } }\n");
    rig_reload(&r, NULL);
    diff(&r, NULL, NULL, "");
    diff(&r, "1", "2", "+++ 2/s.lua");
    diff(&r, "kept", NULL, "--- kept/s.lua\n+++ live/s.lua");
    dir_write(r.dir, "init.lua", "return { scheduler = 'new' }");
    dir_write(r.dir, "new.lua", "return {\n");
    diff(&r, NULL, NULL, "--- /dev/null\n+++ disk/new.lua\n@@ -0,0 +1,1 @@\n+return {\n");
    assert_int_equal(verbs->diff(r.p, "9", NULL, &out, &err), MC_ENOENT);
    assert_int_equal(verbs->diff(r.p, "disk", NULL, &out, &err), MC_EARG);
    rig_close(&r);
}

static atomic_bool in_hook, stop;

static void *loop_in_hook(void *arg)
{
    struct rig *r = arg;

    while (!stop) {
        in_hook = true;
        rig_step(r);
    }
    return NULL;
}

static void verbs_answer_while_a_hook_runs_away(void **st)
{
    struct rig r = {.dir = dir_new()};
    struct mc_err err = {0};
    pthread_t t;
    json_t *out;

    (void)st;
    mc_log_set("policy", MC_LOG_OFF);
    dir_scheduler(r.dir, "if view.step > 1500 then while true do end end", "");
    rig_open(&r, false);
    in_hook = stop = false;
    pthread_create(&t, NULL, loop_in_hook, &r);
    while (!in_hook)
        ;
    assert_ok(verbs->list(r.p, &out, &err), err);
    json_decref(out);
    diff(&r, NULL, NULL, "");
    write_hold(r.dir, 3);
    check(&r, NULL, NULL);
    assert_ok(verbs->reload(r.p, &out, &err), err);
    json_decref(out);
    stop = true;
    pthread_join(t, NULL);
    rig_until(&r, rig_status(&r).live == 2);
    mc_log_set("policy", MC_LOG_INFO);
    rig_close(&r);
}

static json_t *shadow(struct rig *r, const char *path)
{
    struct mc_err err = {0};
    json_t *out = NULL;

    assert_ok(verbs->shadow(r->p, path, &out, &err), err);
    return out;
}

static int64_t number(struct rig *r, const char *key)
{
    json_t *out = shadow(r, NULL);
    int64_t n = json_integer_value(json_object_get(out, key));

    json_decref(out);
    return n;
}

static void shadow_plans_beside_and_changes_nothing(void **st)
{
    struct rig r = {.dir = dir_new()};
    struct mc_err err = {0};
    json_t *out;
    int items;

    (void)st;
    dir_scheduler(r.dir, "for _, s in view:running() do plan:decode(s) end", "");
    dir_write(r.dir, "same.lua",
              "return { api = 1, kind = 'scheduler', plan = function(v, p)\n"
              "for _, s in v:running() do s.user[1] = 5 p:decode(s) end end }");
    dir_write(r.dir, "more.lua",
              "return { api = 1, kind = 'scheduler', plan = function(v, p)\n"
              "local n = 0 for _, s in v:running() do n = n + 1\n"
              "  if n > 1 then p:decode(s) end end\n"
              "for _, s in v:waiting() do p:prefill(s, 9) end end }");
    dir_write(r.dir, "spin.lua",
              "return { api = 1, kind = 'scheduler', plan = function(v, p)\n"
              "if v.step > 1500 then\n  while true do end\nend end }");
    rig_open(&r, false);
    json_decref(shadow(&r, NULL));
    json_decref(shadow(&r, "same"));
    rig_until(&r, number(&r, "views") >= 20);
    assert_int_equal(number(&r, "differ"), 0);
    assert_true(r.b->row[0].user[0] == 0); /* its numbers are not written back */
    items = r.plan->n;
    json_decref(shadow(&r, "more"));
    rig_until(&r, number(&r, "views") >= 20);
    assert_int_equal(number(&r, "differ"), number(&r, "views"));
    assert_int_equal(number(&r, "rows_only_live"), number(&r, "views"));
    assert_int_equal(number(&r, "rows_only_shadow"), 2 * number(&r, "views"));
    assert_int_equal(r.plan->n, items);
    json_decref(shadow(&r, "spin"));
    rig_until(&r, (out = shadow(&r, NULL), items = !!json_object_get(out, "error"),
                   json_decref(out), items));
    out = shadow(&r, NULL);
    assert_non_null(
        strstr(json_string_value(json_object_get(out, "error")), "spin.lua:3"));
    assert_false(json_is_true(json_object_get(out, "shadow")));
    json_decref(out);
    assert_int_equal(rig_status(&r).lost, 0);
    assert_true(verbs->shadow(r.p, "nosuch", &out, &err) < 0);
    json_decref(shadow(&r, "more"));
    json_decref(shadow(&r, "off"));
    rig_step(&r);
    assert_int_equal(rig_status(&r).live, 1);
    rig_close(&r);
}

static void starving_on_probation_rolls_back(void **st)
{
    struct rig r = {.dir = dir_new()};

    (void)st;
    write_hold(r.dir, 1);
    rig_open(&r, false);
    r.policy.ops->starved(r.policy.self); /* nothing to go back to */
    rig_step(&r);
    assert_int_equal(rig_status(&r).live, 1);
    write_hold(r.dir, 2);
    rig_reload(&r, NULL);
    assert_int_equal(rig_status(&r).live, 2);
    r.policy.ops->starved(r.policy.self);
    rig_step(&r);
    assert_int_equal(rig_status(&r).live, 1);
    rig_until(&r, strstr(rig_status(&r).error, "starves a sequence while on probation"));
    write_hold(r.dir, 3);
    rig_reload(&r, NULL);
    for (int i = 0; i < 1000; i++)
        rig_step(&r);
    r.policy.ops->starved(r.policy.self); /* off probation: an operator decides */
    rig_step(&r);
    assert_int_equal(rig_status(&r).live, 3);
    rig_close(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(check_refuses_what_fails_only_later),
    cmocka_unit_test(check_takes_one_file_that_nobody_names),
    cmocka_unit_test(check_alone_runs_routes_and_routers),
    cmocka_unit_test(list_tells_probation),
    cmocka_unit_test(diff_shows_what_a_reload_would_change),
    cmocka_unit_test(verbs_answer_while_a_hook_runs_away),
    cmocka_unit_test(shadow_plans_beside_and_changes_nothing),
    cmocka_unit_test(starving_on_probation_rolls_back),
};
MC_TEST_MAIN(tests)
