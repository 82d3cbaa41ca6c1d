/* test_generation.c - policy directories as generations: built beside the one that serves,
 * swapped at a step boundary, rolled back. The test plays the engine. */
#include "tests/c/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "core/base/log.h"
#include "lua/host/limit.h"
#include "lua/host/policies.h"
#include "tests/c/policy_dir.h"

struct rig {
    struct mc_policies *p;
    struct mc_policy policy;
    char *dir;
    struct step_block *b;
    struct mc_plan *plan;
    double step;
};

static atomic_int checked, made_live;
static atomic_uint live_number;
static atomic_bool reloaded;

static int check_edge(void *edge, struct mc_generation *g, struct mc_err *err)
{
    const char *router = mc_generation_choice(g, "router", 0);

    (void)edge;
    checked++;
    return router && strcmp(router, "bad") == 0 ? mc_fail(err, MC_EPOLICY, "bad.lua:1: bad") : 0;
}

static void live_edge(void *edge, struct mc_generation *g)
{
    (void)edge;
    made_live++;
    live_number = g->number;
}

static void rig_open(struct rig *r, bool watch)
{
    struct mc_policies_opts o = {.dir = r->dir, .etc = "/nonexistent", .no_watch = !watch,
                                 .vocab = test_vocab(), .check = check_edge, .live = live_edge};
    struct mc_err err = {0};

    assert_ok(mc_policies_open(&o, &r->p, &err), err);
    r->policy = mc_policies_policy(r->p);
    r->b = step_new(2, 100);
    r->plan = plan_new(0, 0, 0);
    r->step = 2000;
    for (int i = 0; i < 4; i++)
        step_row(r->b, i % 2, i < 2 ? MC_STATE_DECODE : MC_STATE_WAITING, 100);
}

static void rig_close(struct rig *r)
{
    mc_policies_close(r->p);
    if (r->dir)
        dir_free(r->dir);
    free(r->b);
    free(r->plan);
}

/* One step as the engine does it; returns what plan said. */
static int rig_step(struct rig *r)
{
    struct mc_err err = {0};
    int rc;

    *r->plan = (struct mc_plan){.abi = MC_ABI, .cap = MC_PLAN_CAP, .tok_left = 256,
                                .row_left = 64, .page_left = 100};
    r->b->view.step = r->step++;
    rc = r->policy.ops->plan(r->policy.self, &r->b->view, r->plan, &err);
    if (rc < 0) {
        print_message("plan: %s\n", err.text);
        r->plan->n = 0;
        mc_policy_builtin.ops->plan(NULL, &r->b->view, r->plan, &err);
    }
    r->policy.ops->step_end(r->policy.self);
    return rc;
}

static struct mc_policies_status rig_status(struct rig *r)
{
    struct mc_policies_status s;

    mc_policies_status(r->p, &s);
    return s;
}

/* Until cond or 10 s, stepping. */
#define rig_until(r, cond)                                      \
    do {                                                        \
        for (int i_ = 0; !(cond) && i_ < 5000; i_++) {          \
            struct timespec nap_ = {.tv_nsec = 2000000};        \
            rig_step(r);                                        \
            nanosleep(&nap_, NULL);                             \
        }                                                       \
        assert_true(cond);                                      \
    } while (0)

static uint32_t rig_reload(struct rig *r, const char *want_error)
{
    struct mc_err err = {0};
    uint32_t number = 0;
    int rc = mc_policies_reload(r->p, &number, &err);

    if (!want_error)
        assert_ok(rc, err);
    else if (rc >= 0 || !strstr(err.text, want_error))
        fail_msg("wanted '%s', got %d '%s'", want_error, rc, err.text);
    rig_step(r);
    return number;
}

/* A scheduler that holds all rows: its plans are told from the built-in's. */
static const char hold_all[] =
    "local P = { api = 1, kind = 'scheduler', why = { 'waiting for %d' } }\n"
    "function P.plan(view, plan)\n"
    "  for _, r in view:waiting() do plan:hold(r, 1) end\n"
    "end\nreturn P\n";

static void write_hold(const char *dir, int n)
{
    char text[400];

    snprintf(text, sizeof text, hold_all, n);
    dir_write(dir, "s.lua", text);
    dir_write(dir, "init.lua", "return { scheduler = 's' }");
}

/* ---- choosing, reading ---------------------------------------------------------------- */

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

/* ---- swapping ------------------------------------------------------------------------- */

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

/* ---- state ---------------------------------------------------------------------------- */

static void generation_state_is_kept_by_name_over_reloads(void **st)
{
    struct rig r = {.dir = dir_new()};
    struct mc_pick_seq q = {.seq = 1};
    struct mc_params want = {.ban = {-1, -1}}, out;
    struct mc_cands c = {.n = 1, .id = {3}};
    struct mc_err err = {0};
    int32_t id;

    (void)st;
    dir_write(r.dir, "t.lua", "return { api = 1, kind = 'sampler', state = { b = 5, a = 1 },\n"
              "chain = function(s, w) s.state.a = 2 return w end,\n"
              "pick = function(c, s) s.state.b = s.state.b + 1 end }");
    dir_scheduler(r.dir, "view.state.turn = view.state.turn + 1",
                  "P.state = { turn = 10, gone = 1 }");
    dir_write(r.dir, "init.lua", "return { scheduler = 's', sampler = 't' }");
    rig_open(&r, false);
    rig_step(&r);
    assert_ok(r.policy.ops->chain(r.policy.self, &q, &want, &out, &err), err);
    assert_ok(r.policy.ops->pick(r.policy.self, &c, &q, &id, &err), err);
    assert_true(q.state[0] == 2 && q.state[1] == 6);

    dir_write(r.dir, "t.lua", "return { api = 1, kind = 'sampler',\n"
              "state = { aa = 7, b = 9, c = 3 }, chain = function(s, w) return w end,\n"
              "pick = function(c, s) assert(s.state.aa == 7 and s.state.c == 3)\n"
              "s.state.b = s.state.b + 1 end }");
    dir_scheduler(r.dir, "view.state.turn = view.state.turn + 1 return view.state.new",
                  "P.state = { turn = 10, new = 1, also = 2 }\n"
                  "P.why = { 'x' }");
    dir_write(r.dir, "init.lua", "return { scheduler = 's', sampler = 't' }");
    rig_reload(&r, NULL);
    assert_ok(r.policy.ops->pick(r.policy.self, &c, &q, &id, &err), err);
    assert_true(q.state[0] == 7 && q.state[1] == 7 && q.state[2] == 3); /* aa, b, c */
    dir_scheduler(r.dir, "if view.step > 1500 then\n"
                         "assert(view.state.turn == 13, view.state.turn) end",
                  "P.state = { turn = 10 }");
    rig_reload(&r, NULL);
    assert_int_equal(rig_step(&r), 0);
    rig_close(&r);
}

/* ---- failures in service -------------------------------------------------------------- */

static const char *const hook_code[MC_N_HOOK] = {
    "plan = function(view) if view.step >= 2005 then %s end end,",
    "evict = function(view) if view.step >= 2000 then %s end end,",
    "admit = function(row) if row.seq >= 4242 then %s end return true end,",
    "chain = function(seq, want) if seq.id >= 4242 then %s end return want end,",
    "pick = function(c, seq) if seq.id >= 4242 then %s end end,",
};

/* A rig whose hook h does this from a certain step, row or sequence on. */
static void rig_open_failing(struct rig *r, enum mc_hook h, const char *what)
{
    char text[2048], line[1024];

    snprintf(line, sizeof line, hook_code[h], what);
    snprintf(text, sizeof text, "return { api = 1, kind = 'scheduler',\n%s%s }",
             h == MC_HOOK_PLAN ? "" : "plan = function() end,\n",
             h <= MC_HOOK_ADMIT ? line : "");
    dir_write(r->dir, "s.lua", text);
    snprintf(text, sizeof text, "return { api = 1, kind = 'sampler',\n%s%s }",
             h == MC_HOOK_CHAIN ? "" : "chain = function(_, want) return want end,\n",
             h >= MC_HOOK_CHAIN ? line : "");
    dir_write(r->dir, "t.lua", text);
    dir_write(r->dir, "init.lua", "return { scheduler = 's', sampler = 't' }");
    rig_open(r, false);
}

/* Calls hook h so that it fails; what the engine sees. */
static int rig_fail(struct rig *r, enum mc_hook h)
{
    const struct mc_policy_ops *ops = r->policy.ops;
    struct mc_pick_seq q = {.seq = 4242};
    struct mc_row row = {.seq = 4242, .gen = 1};
    struct mc_params want = {.ban = {-1, -1}}, out;
    struct mc_cands c = {.n = 1, .id = {3}};
    struct mc_err err = {0};
    int32_t id = -7;

    switch (h) {
    case MC_HOOK_PLAN:
        r->b->view.step = 2010;
        r->plan->n = 0;
        return ops->plan(r->policy.self, &r->b->view, r->plan, &err);
    case MC_HOOK_EVICT:
        r->b->view.step = 2010;
        return ops->evict(r->policy.self, &r->b->view, 1, r->plan, &err);
    case MC_HOOK_ADMIT:
        return ops->admit(r->policy.self, &row, &err);
    case MC_HOOK_CHAIN:
        return ops->chain(r->policy.self, &q, &want, &out, &err);
    default:
        return ops->pick(r->policy.self, &c, &q, &id, &err);
    }
}

static void generation_an_error_in_any_hook_costs_one_call_and_three_roll_back(void **st)
{
    (void)st;
    mc_log_set("policy", MC_LOG_OFF);
    for (enum mc_hook h = 0; h < MC_N_HOOK; h++) {
        struct rig r = {.dir = dir_new()};
        int want = h == MC_HOOK_ADMIT ? 0 : MC_EPOLICY; /* nobody is refused by a failure */

        rig_open_failing(&r, h, "error('oops')");
        for (int i = 0; i < 3; i++) {
            assert_int_equal(rig_status(&r).live, 1);
            assert_int_equal(rig_fail(&r, h), want);
            assert_int_equal(rig_fail(&r, h), 0); /* the built-in until the step ends */
            r.policy.ops->step_end(r.policy.self);
        }
        assert_int_equal(rig_status(&r).live, 0);
        assert_int_equal(rig_status(&r).rollbacks, 1);
        assert_int_equal(rig_status(&r).hook[h].failures, 3);
        assert_int_equal(rig_step(&r), 0);
        assert_int_equal(r.plan->n, 4);
        rig_until(&r, strstr(rig_status(&r).error, "oops"));
        assert_non_null(strstr(rig_status(&r).error, mc_hook_names[h]));
        assert_non_null(strstr(rig_status(&r).error, h <= MC_HOOK_ADMIT ? "s.lua:" : "t.lua:"));
        rig_close(&r);
    }
    mc_log_set("policy", MC_LOG_INFO);
}

static void generation_failures_roll_back_to_the_kept_one(void **st)
{
    struct rig r = {.dir = dir_new()};

    (void)st;
    mc_log_set("policy", MC_LOG_OFF);
    write_hold(r.dir, 1);
    rig_open(&r, false);
    rig_step(&r);
    dir_scheduler(r.dir, "if view.step > 1500 then error('no') end", "");
    rig_reload(&r, NULL); /* and one step, which swaps and fails */
    assert_int_equal(rig_status(&r).live, 2);
    assert_int_equal(rig_step(&r), MC_EPOLICY);
    assert_int_equal(rig_step(&r), MC_EPOLICY);
    rig_step(&r);
    assert_int_equal(rig_status(&r).live, 1);
    assert_int_equal(rig_status(&r).kept, 0); /* the failed one is not gone back to */
    assert_int_equal(rig_step(&r), 0);
    assert_int_equal(r.plan->n, 2);
    rig_until(&r, live_number == 1);
    mc_log_set("policy", MC_LOG_INFO);
    rig_close(&r);
}

static void generation_ten_failures_in_a_thousand_steps_roll_back(void **st)
{
    struct rig r = {.dir = dir_new()};
    int failed = 0;

    (void)st;
    mc_log_set("policy", MC_LOG_OFF);
    dir_scheduler(r.dir, "if view.step > 1500 and view.step % 200 == 0 then error('now') end", "");
    rig_open(&r, false);
    for (int i = 0; i < 2500; i++)
        failed += rig_step(&r) < 0;
    assert_int_equal(failed, 13); /* 5 in 1,000 steps are not too many */
    assert_int_equal(rig_status(&r).live, 1);
    dir_scheduler(r.dir, "if view.step > 1500 and view.step % 20 == 0 then error('now') end", "");
    rig_reload(&r, NULL);
    failed = 0;
    for (int i = 0; i < 400; i++)
        failed += rig_step(&r) < 0;
    assert_true(failed >= 9 && failed <= 10); /* the reload's own step may have been one */
    assert_int_equal(rig_status(&r).live, 1);
    mc_log_set("policy", MC_LOG_INFO);
    rig_close(&r);
}

static void generation_a_runaway_costs_its_vm_and_the_spare_goes_on(void **st)
{
    (void)st;
    for (enum mc_hook h = 0; h < MC_N_HOOK; h++) {
        struct rig r = {.dir = dir_new()};
        int want = h == MC_HOOK_ADMIT ? 0 : MC_EBUDGET;
        struct timespec nap = {.tv_nsec = 300000000};

        rig_open_failing(&r, h, "while true do pcall(error) end");
        nanosleep(&nap, NULL); /* the spare is made */
        assert_int_equal(rig_fail(&r, h), want);
        assert_int_equal(rig_fail(&r, h), 0);
        r.policy.ops->step_end(r.policy.self);
        assert_int_equal(rig_status(&r).lost, 1);
        assert_int_equal(rig_status(&r).live, 1);
        r.step = 2000;
        assert_int_equal(rig_step(&r), 0);
        assert_int_equal(r.plan->n, 0); /* the script's plan, not the built-in's four */
        rig_until(&r, strstr(rig_status(&r).error, "used up its time at "));
        assert_non_null(strstr(rig_status(&r).error, h <= MC_HOOK_ADMIT ? "s.lua:" : "t.lua:"));
        rig_close(&r);
    }
}

#ifdef MC_LIMIT_BY_HOOK /* an interpreter's "not enough memory" is an error like others */
#define BOMB "return string.rep('x', 1e9)"
#else
#define BOMB "while true do pcall(string.rep, 'x', 1e9) end"
#endif

static void generation_a_memory_bomb_costs_its_vm_and_the_spare_goes_on(void **st)
{
    struct rig r = {.dir = dir_new()};
    struct timespec nap = {.tv_nsec = 300000000};

    (void)st;
    rig_open_failing(&r, MC_HOOK_PICK, BOMB);
    nanosleep(&nap, NULL);
    assert_int_equal(rig_fail(&r, MC_HOOK_PICK), MC_ENOMEM);
    r.policy.ops->step_end(r.policy.self);
    assert_int_equal(rig_step(&r), 0);
    assert_int_equal(r.plan->n, 0);
    assert_int_equal(rig_status(&r).live, 1);
#ifdef MC_LIMIT_BY_HOOK
    rig_until(&r, strstr(rig_status(&r).error, "not enough memory"));
#else
    rig_until(&r, strstr(rig_status(&r).error, "used up its memory at t.lua:3"));
#endif
    rig_close(&r);
}

static void generation_thirty_two_lost_vms_turn_scripts_off(void **st)
{
    struct rig r = {.dir = dir_new()};
    struct mc_err err = {0};
    uint32_t number;

    (void)st;
    mc_log_set("policy", MC_LOG_OFF);
    /* One in a while, so that no roll-back comes first. */
    dir_scheduler(r.dir, "if view.step >= 1e6 then local s = ('x'):rep(1e9) end", "");
    rig_open(&r, false);
    for (int i = 0; i < 32; i++) {
        uint64_t calls = rig_status(&r).hook[MC_HOOK_PLAN].calls;

        assert_false(rig_status(&r).degraded);
        r.step = 2000;
        for (int k = 0; k < 200; k++)
            rig_step(&r);
        rig_until(&r, rig_status(&r).hook[MC_HOOK_PLAN].calls > calls + 150);
        r.step = 1e6;
        rig_step(&r);
        assert_int_equal(rig_status(&r).lost, i + 1);
    }
    assert_true(rig_status(&r).degraded);
    assert_int_equal(rig_status(&r).live, 0);
    r.step = 1e6;
    assert_int_equal(rig_step(&r), 0);
    assert_int_equal(r.plan->n, 4);
    assert_int_equal(mc_policies_reload(r.p, &number, &err), MC_EPOLICY);
    assert_non_null(strstr(err.text, "scripts are off"));
    mc_log_set("policy", MC_LOG_INFO);
    rig_close(&r);
}

static void *reload_in_thread(void *arg)
{
    struct rig *r = arg;
    struct mc_err err = {0};
    uint32_t number;

    assert_int_equal(mc_policies_reload(r->p, &number, &err), MC_EPOLICY);
    atomic_store(&reloaded, true);
    return NULL;
}

static void generation_is_tried_on_the_step_that_runs_now(void **st)
{
    struct rig r = {.dir = dir_new()};
    pthread_t t;

    (void)st;
    write_hold(r.dir, 1);
    rig_open(&r, false);
    r.b->view.p_tokens = 48; /* no made-up step has it */
    dir_scheduler(r.dir, "if view.p_tokens == 48 then error('met it') end", "");
    atomic_store(&reloaded, false);
    pthread_create(&t, NULL, reload_in_thread, &r);
    rig_until(&r, atomic_load(&reloaded));
    pthread_join(t, NULL);
    assert_non_null(strstr(rig_status(&r).error,
                           "trying plan with the last recorded step: s.lua:4: met it"));
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
    cmocka_unit_test(generation_state_is_kept_by_name_over_reloads),
    cmocka_unit_test(generation_an_error_in_any_hook_costs_one_call_and_three_roll_back),
    cmocka_unit_test(generation_failures_roll_back_to_the_kept_one),
    cmocka_unit_test(generation_ten_failures_in_a_thousand_steps_roll_back),
    cmocka_unit_test(generation_a_runaway_costs_its_vm_and_the_spare_goes_on),
    cmocka_unit_test(generation_a_memory_bomb_costs_its_vm_and_the_spare_goes_on),
    cmocka_unit_test(generation_thirty_two_lost_vms_turn_scripts_off),
    cmocka_unit_test(generation_is_tried_on_the_step_that_runs_now),
};
MC_TEST_MAIN(tests)
