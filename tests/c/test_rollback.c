/* test_rollback.c - policies in service: state over reloads, hooks that fail, runaways,
 * roll-back. The test plays the engine. */
#include "tests/c/test.h"

#include <pthread.h>

#include "lua/host/limit.h"
#include "tests/c/policies_util.h"

/* ---- state ------------------------------------------------------------------------- */

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

/* ---- failures in service ----------------------------------------------------------- */

static const char *const hook_code[MC_N_HOOK] = {
    "plan = function(view) if view.step >= 2005 then %s end end,",
    "evict = function(view) if view.step >= 2000 then %s end end,",
    "admit = function(row) if row.seq >= 4242 then %s end return true end,",
    "chain = function(seq, want) if seq.id >= 4242 then %s end return want end,",
    "pick = function(c, seq) if seq.id >= 4242 then %s end end,",
    "keep = function(b) for _, x in b:all() do if x.depth >= 4242 then %s end end end,",
};

static const char *file_of(enum mc_hook h)
{
    return h <= MC_HOOK_ADMIT ? "s.lua:" : h == MC_HOOK_KEEP ? "c.lua:" : "t.lua:";
}

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
             h == MC_HOOK_CHAIN || h == MC_HOOK_PICK ? line : "");
    dir_write(r->dir, "t.lua", text);
    snprintf(text, sizeof text, "return { api = 1, kind = 'cache',\n%s }",
             h == MC_HOOK_KEEP ? line : "keep = function() end");
    dir_write(r->dir, "c.lua", text);
    dir_write(r->dir, "init.lua",
              "return { scheduler = 's', sampler = 't', cache = 'c' }");
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
    struct mc_block block = {.depth = 4242};
    int32_t id = -7;
    int rc;

    switch (h) {
    case MC_HOOK_KEEP:
        rc = ops->keep(r->policy.self, &block, 1, &err);
        return rc == 1 ? 0 : rc; /* 1: nobody asked for, the oldest goes */
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
        assert_non_null(strstr(rig_status(&r).error, file_of(h)));
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
    dir_scheduler(r.dir,
                  "if view.step > 1500 and view.step % 200 == 0 then error('now') end",
                  "");
    rig_open(&r, false);
    for (int i = 0; i < 2500; i++)
        failed += rig_step(&r) < 0;
    assert_int_equal(failed, 13); /* 5 in 1,000 steps are not too many */
    assert_int_equal(rig_status(&r).live, 1);
    dir_scheduler(r.dir,
                  "if view.step > 1500 and view.step % 20 == 0 then error('now') end",
                  "");
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
        assert_non_null(strstr(rig_status(&r).error, file_of(h)));
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
    rig_until(&r, strstr(rig_status(&r).error, "used up its memory at t.lua:3"));
    rig_close(&r);
}

/* What a VM has come to hold is not in a fresh one: run again, the call ends. */
static void generation_a_runaway_by_what_its_vm_holds_is_found_in_the_next(void **st)
{
    static const char *const what[] = {"while true do end", "while true do pcall(error) end"};
    struct timespec nap = {.tv_nsec = 300000000};

    (void)st;
    for (size_t i = 0; i < sizeof what / sizeof *what; i++) {
        struct rig r = {.dir = dir_new()};
        char text[400];

        snprintf(text, sizeof text, "local n = 0\n"
                 "return { api = 1, kind = 'scheduler', plan = function(view, plan)\n"
                 "  if view.step < 2000 then return end\n"
                 "  n = n + 1\n"
                 "  if n > 5 then\n"
                 "    %s\n"
                 "  end\n"
                 "end }", what[i]);
        dir_write(r.dir, "s.lua", text);
        dir_write(r.dir, "init.lua", "return { scheduler = 's' }");
        rig_open(&r, false);
        nanosleep(&nap, NULL); /* the spare is made */
        rig_until(&r, strstr(rig_status(&r).error, "in the hook at s.lua:2"));
        rig_until(&r, strstr(rig_status(&r).error, "used up its time at s.lua:6"));
        assert_true(rig_status(&r).lost <= 3);
        rig_close(&r);
    }
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

static atomic_bool reloaded;

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
    cmocka_unit_test(generation_state_is_kept_by_name_over_reloads),
    cmocka_unit_test(generation_an_error_in_any_hook_costs_one_call_and_three_roll_back),
    cmocka_unit_test(generation_failures_roll_back_to_the_kept_one),
    cmocka_unit_test(generation_ten_failures_in_a_thousand_steps_roll_back),
    cmocka_unit_test(generation_a_runaway_costs_its_vm_and_the_spare_goes_on),
    cmocka_unit_test(generation_a_memory_bomb_costs_its_vm_and_the_spare_goes_on),
    cmocka_unit_test(generation_a_runaway_by_what_its_vm_holds_is_found_in_the_next),
    cmocka_unit_test(generation_thirty_two_lost_vms_turn_scripts_off),
    cmocka_unit_test(generation_is_tried_on_the_step_that_runs_now),
};
MC_TEST_MAIN(tests)
