/* test_generation.c - policy directories as generations: read, checked, built beside the one
 * that serves, swapped at a step boundary. The test plays the engine. */
#include "tests/c/test.h"

#include "tests/c/policies_util.h"

/* ---- choosing, reading ------------------------------------------------------------- */

static void generation_builtin_set_serves_without_a_directory(void **st)
{
    struct rig r = {0};

    (void)st;
    rig_open(&r, false);
    assert_int_equal(rig_step(&r), 0);
    assert_int_equal(r.plan->n, 4);
    assert_int_equal(r.policy.ops->generation(r.policy.self), 1);
    assert_string_equal(rig_status(&r).dir, "");
    rig_close(&r);
}

static void generation_directory_serves_and_lacks_come_from_the_builtin_set(void **st)
{
    struct rig r = {.dir = dir_new()};
    struct mc_pick_seq q = {.seq = 1};
    struct mc_params want = {.temperature = 0.5, .ban = {-1, -1}}, out;
    struct mc_generation *g[3];
    struct mc_err err = {0};

    (void)st;
    write_hold(r.dir, 7);
    rig_open(&r, false);
    assert_int_equal(rig_step(&r), 0);
    assert_int_equal(r.plan->n, 2);
    assert_string_equal(r.policy.ops->why(r.policy.self, 1), "waiting for 7");
    assert_ok(r.policy.ops->chain(r.policy.self, &q, &want, &out, &err), err);
    assert_true(out.temperature == 0.5);
    assert_int_equal(mc_policies_generations(r.p, g), 1);
    assert_string_equal(mc_generation_choice(g[0], "scheduler", 0), "s");
    assert_string_equal(mc_generation_choice(g[0], "sampler", 0), "sampler");
    mc_generation_unref(g[0]);
    rig_close(&r);
}

static void generation_missing_directory_is_an_error(void **st)
{
    struct mc_policies_opts o = {.dir = "/tmp/mascon-no-such", .vocab = test_vocab()};
    struct mc_policies *p;
    struct mc_err err = {0};

    (void)st;
    assert_int_equal(mc_policies_open(&o, &p, &err), MC_ENOENT);
    assert_null(p);
}

static void generation_broken_directory_at_start_leaves_the_builtin_set(void **st)
{
    struct rig r = {.dir = dir_new()};

    (void)st;
    dir_scheduler(r.dir, "if", "");
    rig_open(&r, false);
    assert_int_equal(rig_step(&r), 0);
    assert_int_equal(r.plan->n, 4);
    assert_non_null(strstr(rig_status(&r).error, "s.lua:5:"));
    write_hold(r.dir, 1); /* mended */
    rig_reload(&r, NULL);
    assert_int_equal(rig_step(&r), 0);
    assert_int_equal(r.plan->n, 2);
    assert_string_equal(rig_status(&r).error, "");
    rig_close(&r);
}

static void generation_refuses_files_that_others_can_change(void **st)
{
    struct rig r = {.dir = dir_new()};
    char path[200], other[200], *outside = dir_new();

    (void)st;
    write_hold(r.dir, 1);
    rig_open(&r, false);
    snprintf(path, sizeof path, "%s/s.lua", r.dir);
    assert_int_equal(chmod(path, 0666), 0);
    rig_reload(&r, "s.lua is world-writable");
    if (geteuid() == 0) {
        assert_int_equal(chmod(path, 0644), 0);
        assert_int_equal(chown(path, 12345, 12345), 0);
        rig_reload(&r, "s.lua is owned by user 12345");
    }
    unlink(path);
    write_hold(outside, 2);
    snprintf(other, sizeof other, "%s/s.lua", outside);
    assert_int_equal(symlink(other, path), 0);
    rig_reload(&r, "s.lua leads out of the policy directory");
    unlink(path);
    assert_int_equal(symlink("../../../../../../../etc/hostname", path), 0);
    rig_reload(&r, "s.lua leads out of the policy directory");
    unlink(path);
    assert_int_equal(mkdir(path, 0755), 0);
    rig_reload(&r, "s.lua is not a regular file");
    rmdir(path);
    assert_int_equal(mkfifo(path, 0644), 0);
    rig_reload(&r, "s.lua is not a regular file");
    unlink(path);
    rig_reload(&r, "there is no s.lua");
    assert_int_equal(chmod(r.dir, 0777), 0);
    rig_reload(&r, "is world-writable");
    assert_int_equal(rig_status(&r).live, 1);
    rig_close(&r);
    dir_free(outside);
}

static void generation_mistakes_in_init_and_tables_are_named(void **st)
{
    static const struct {
        const char *init, *s, *error;
    } cases[] = {
        {"return", NULL, "init.lua: must return a table"},
        {"return 3", NULL, "init.lua: must return a table"},
        {"return { = }", NULL, "init.lua:1: unexpected symbol near '='"},
        {"return { schedular = 's' }", NULL, "unknown key 'schedular' (did you mean 'scheduler'?)"},
        {"return { scheduler = 3 }", NULL, "scheduler must be a string"},
        {"return { scheduler = '../s' }", NULL, "must name a file of letters"},
        {"return { scheduler = 's.lua' }", NULL, "must name a file of letters"},
        {"return { scheduler = '' }", NULL, "must name a file of letters"},
        {"return { scheduler = 'nosuch' }", NULL, "there is no nosuch.lua"},
        {"return { routes = 'x' }", NULL, "routes must be a table"},
        {"return { routes = { 'nosuch' } }", NULL, "there is no routes/nosuch.lua"},
        {"return { routes = { x = 'nosuch' } }", NULL, "routes must be a list"},
        {"return { router = 'nosuch' }", NULL, "there is no nosuch.lua"},
        {"return { router = 'bad' }", NULL, "bad.lua:1: bad"},
        {"return { router = 'syntax' }", NULL, "syntax.lua:1:"},
        {"return { scheduler = 's', opts = { sched = {} } }", NULL, "opts.sched is for no file"},
        {"return { scheduler = 's', opts = { s = 1 } }", NULL, "opts.s must be a table"},
        {"error('at top')", NULL, "init.lua:1: at top"},
        {"return { scheduler = 's' }", "", "s.lua: must return a table"},
        {NULL, "return { kind = 'scheduler', plan = print }", "'print' is not defined"},
        {NULL, "return { kind = 'scheduler' }", "api must be 1, not 'nil'"},
        {NULL, "return { api = 2, kind = 'scheduler' }", "api must be 1, not '2'"},
        {NULL, "return { api = 1, kind = 'sampler' }", "kind must be \"scheduler\", not 'sampler'"},
        {NULL, "return { api = 1, kind = 'scheduler' }", "hook 'plan' is missing"},
        {NULL, "local P = { api = 1, kind = 'scheduler' }\n\nP.pln = function() end return P",
         "s.lua:3: unknown key 'pln' (did you mean 'plan'?)"},
        {NULL, "return { api = 1, kind = 'scheduler', plan = 1 }", "plan must be a function"},
        {NULL, "return { api = 1, kind = 'scheduler', plan = function() end, state = 1 }",
         "state must be a table"},
        {NULL, "return { api = 1, kind = 'scheduler', plan = function() end, state = { a = 'x' } }",
         "state.a must be a number"},
        {NULL, "local s = {} for i = 1, 17 do s['k' .. i] = i end\n"
               "return { api = 1, kind = 'scheduler', plan = function() end, state = s }",
         "state has 17 names, at most 16"},
        {NULL, "return { api = 1, kind = 'scheduler', plan = function() end, why = { 1 } }",
         "why must be a list"},
        {NULL, "return { api = 1, kind = 'scheduler', plan = function() end,\n"
               "init = function(o) error('no ' .. tostring(o.x)) end }", "s.lua:2: no nil"},
        {NULL, "return { api = 1, kind = 'scheduler', plan = function() end,\n"
               "tests = function() assert(1 == 2, 'my test') end }", "my test"},
        {NULL, "return { api = 1, kind = 'scheduler', plan = function(view)\n"
               "for _, r in view:waiting() do r.x = 1 end end }",
         "trying plan with one row waiting: s.lua:2: 'x' can't be written"},
        {NULL, "return { api = 1, kind = 'scheduler', plan = function() end, evict =\n"
               "function(view) error('evicted') end }", "trying evict with"},
        {NULL, "return { api = 1, kind = 'scheduler', plan = function(view)\n"
               "if view.kv_free == 0 then local x = nil .. 'x' end end }",
         "trying plan with no pages left: s.lua:2: attempt to concatenate"},
    };
    struct rig r = {.dir = dir_new()};

    (void)st;
    write_hold(r.dir, 1);
    dir_write(r.dir, "bad.lua", "return 1");
    dir_write(r.dir, "syntax.lua", "return (");
    rig_open(&r, false);
    mc_log_set("policy", MC_LOG_OFF);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_hold(r.dir, 1);
        if (cases[i].init)
            dir_write(r.dir, "init.lua", cases[i].init);
        if (cases[i].s)
            dir_write(r.dir, "s.lua", cases[i].s);
        rig_reload(&r, cases[i].error);
        assert_non_null(strstr(rig_status(&r).error, cases[i].error));
        assert_int_equal(rig_step(&r), 0);
        assert_int_equal(r.plan->n, 2);
        assert_int_equal(rig_status(&r).live, 1);
    }
    mc_log_set("policy", MC_LOG_INFO);
    rig_close(&r);
}

static void generation_opts_reach_init(void **st)
{
    struct rig r = {.dir = dir_new()};

    (void)st;
    dir_scheduler(r.dir, "for _, x in view:waiting() do plan:prefill(x, n) end",
                  "local n function P.init(o) n = o.chunk end");
    dir_write(r.dir, "init.lua", "return { scheduler = 's', opts = { s = { chunk = 33 } } }");
    rig_open(&r, false);
    assert_int_equal(rig_step(&r), 0);
    assert_int_equal(r.plan->item[0].n, 33);
    rig_close(&r);
}

/* ---- swapping ---------------------------------------------------------------------- */

static void generation_reload_swaps_at_a_step_boundary_and_keeps_the_old(void **st)
{
    struct rig r = {.dir = dir_new()};
    struct mc_err err = {0};
    uint32_t number;

    (void)st;
    write_hold(r.dir, 1);
    checked = made_live = 0;
    rig_open(&r, false);
    rig_step(&r);
    write_hold(r.dir, 2);
    assert_ok(mc_policies_reload(r.p, &number, &err), err);
    assert_int_equal(number, 2);
    assert_int_equal(live_number, 2); /* new requests at once, steps at a boundary */
    assert_string_equal(r.policy.ops->why(r.policy.self, 1), "waiting for 1");
    assert_int_equal(rig_status(&r).next, 2);
    rig_step(&r);
    assert_string_equal(r.policy.ops->why(r.policy.self, 1), "waiting for 2");
    assert_int_equal(rig_status(&r).live, 2);
    assert_int_equal(rig_status(&r).kept, 1);
    assert_int_equal(rig_status(&r).next, 0);

    assert_ok(mc_policies_rollback(r.p, &number, &err), err);
    assert_int_equal(number, 1);
    rig_step(&r);
    assert_string_equal(r.policy.ops->why(r.policy.self, 1), "waiting for 1");
    assert_int_equal(rig_status(&r).kept, 2);
    rig_until(&r, live_number == 1);
    assert_ok(mc_policies_rollback(r.p, &number, &err), err);
    rig_step(&r);
    assert_string_equal(r.policy.ops->why(r.policy.self, 1), "waiting for 2");
    assert_int_equal(checked, 2);
    rig_close(&r);
}

static void generation_rollback_without_a_kept_one_says_so(void **st)
{
    struct rig r = {0};
    struct mc_err err = {0};
    uint32_t number;

    (void)st;
    rig_open(&r, false);
    assert_int_equal(mc_policies_rollback(r.p, &number, &err), MC_ENOENT);
    rig_close(&r);
}

static void generation_saved_files_go_live_by_themselves(void **st)
{
    struct rig r = {.dir = dir_new()};
    char cmd[600];

    (void)st;
    write_hold(r.dir, 1);
    rig_open(&r, true);
    write_hold(r.dir, 2); /* written beside and renamed, as editors do */
    rig_until(&r, strcmp(r.policy.ops->why(r.policy.self, 1), "waiting for 2") == 0);
    /* A typo leaves it, and says where. */
    dir_write(r.dir, "s.lua", "local x = = 1");
    rig_until(&r, rig_status(&r).error[0]);
    assert_non_null(strstr(rig_status(&r).error, "s.lua:1:"));
    assert_string_equal(r.policy.ops->why(r.policy.self, 1), "waiting for 2");
    /* As Kubernetes changes a mounted directory: a link's swap. */
    snprintf(cmd, sizeof cmd,
             "cd %s && mkdir v1 && sed 's/waiting for %%d/waiting for 3/' > v1/s.lua <<'E'\n%sE\n"
             "echo \"return { scheduler = 's' }\" > v1/init.lua && ln -s v1 ..tmp && "
             "rm s.lua init.lua && mv -T ..tmp ..data && ln -s ..data/s.lua s.lua && "
             "ln -s ..data/init.lua init.lua && cp -r v1 v2 && "
             "sed -i 's/for 3/for 4/' v2/s.lua && ln -s v2 ..tmp && mv -T ..tmp ..data",
             r.dir, hold_all);
    assert_int_equal(system(cmd), 0);
    rig_until(&r, strcmp(r.policy.ops->why(r.policy.self, 1), "waiting for 4") == 0);
    rig_close(&r);
}

static void generation_touching_a_file_makes_no_new_one(void **st)
{
    struct rig r = {.dir = dir_new()};
    struct timespec nap = {.tv_nsec = 600000000};
    struct mc_err err = {0};
    uint32_t number;

    (void)st;
    write_hold(r.dir, 1);
    rig_open(&r, true);
    write_hold(r.dir, 1);
    nanosleep(&nap, NULL);
    rig_step(&r);
    assert_int_equal(rig_status(&r).live, 1);
    assert_ok(mc_policies_reload(r.p, &number, &err), err); /* asked for: it does */
    assert_int_equal(number, 2);
    rig_close(&r);
}

static void generation_thousands_of_reloads_leave_memory_flat(void **st)
{
    struct rig r = {.dir = dir_new()};
    char *big = malloc(100001 + sizeof hold_all);
    size_t rss = 0;
    int n = 300;

    (void)st;
    memset(big, ' ', 100000);
    memcpy(big + 100000, hold_all, sizeof hold_all);
    write_hold(r.dir, 1);
    dir_write(r.dir, "s.lua", big);
    rig_open(&r, false);
    mc_log_set("policy", MC_LOG_WARN);
    for (int i = 0; i < n; i++) {
        rig_reload(&r, NULL);
        if (i == n / 3)
            rss = rss_bytes();
    }
    mc_log_set("policy", MC_LOG_INFO);
    print_message("RSS %zu KiB, then %zu KiB after %d more reloads\n", rss / 1024,
                  rss_bytes() / 1024, n - n / 3);
#ifndef MC_SANITIZE /* whose allocators hold freed memory back */
    assert_true(rss_bytes() < rss + rss / 20 + (1 << 20));
#endif
    assert_int_equal(rig_status(&r).live, (uint32_t)n + 1);
    free(big);
    rig_close(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(generation_builtin_set_serves_without_a_directory),
    cmocka_unit_test(generation_directory_serves_and_lacks_come_from_the_builtin_set),
    cmocka_unit_test(generation_missing_directory_is_an_error),
    cmocka_unit_test(generation_broken_directory_at_start_leaves_the_builtin_set),
    cmocka_unit_test(generation_refuses_files_that_others_can_change),
    cmocka_unit_test(generation_mistakes_in_init_and_tables_are_named),
    cmocka_unit_test(generation_opts_reach_init),
    cmocka_unit_test(generation_reload_swaps_at_a_step_boundary_and_keeps_the_old),
    cmocka_unit_test(generation_rollback_without_a_kept_one_says_so),
    cmocka_unit_test(generation_saved_files_go_live_by_themselves),
    cmocka_unit_test(generation_touching_a_file_makes_no_new_one),
    cmocka_unit_test(generation_thousands_of_reloads_leave_memory_flat),
};
MC_TEST_MAIN(tests)
