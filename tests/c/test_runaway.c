/* test_runaway.c - scripts that never come back, in every hook, while other threads throw,
 * allocate and ask the time; afterwards the process is whole.
 *
 * Every shape must be left, none may be caught by the script, and none may leave a lock
 * held: the checks at the end would hang. */
#include "tests/c/test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "lua/host/gate.h"
#include "lua/host/limit.h"
#include "tests/c/stepvm_util.h"

static const struct {
    const char *code;
    bool in_c; /* loops inside one C library function: a hook can't stop it */
} shapes[] = {
    {"while true do end", 0},
    {"for i = 1, math.huge do end", 0},
    {"repeat until false", 0},
    {"local function f() return f() end f()", 0},
    {"::a:: goto a", 0},
    {"while true do pcall(function() while true do end end) end", 0},
    {"while true do xpcall(error, function() while true do end end) end", 0},
    {"while true do pcall(error) end", 0},
    {"while true do pcall(function() pcall(error) error('x') end) end", 0},
    {"local function f() pcall(f) error(f) end while true do pcall(f) end", 0},
    {"local s = ('a'):rep(26) .. 'b' while true do s:match(('.-'):rep(12) .. 'c') end", 1},
    {"while true do local t = {} for i = 1, 100 do t[i] = { i } end end", 0},
    {"while true do local s = '' for i = 1, 100 do s = s .. i end end", 0},
    {"while true do table.sort({ 3, 1, 2 }, function(a, b) return a < b end) end", 0},
    {"table.sort({ 3, 1, 2 }, function() while true do end end)", 0},
    {"('x'):gsub('x', function() while true do end end)", 0},
    {"tostring(setmetatable({}, { __tostring = function() while true do end end }))", 0},
    {"local _ = setmetatable({}, { __index = function() while true do end end }).x", 0},
    {"while true do mc.log.info('again') end", 0},
    {"while true do mc.now() pcall(mc.vocab.set, 'x') end", 0},
    {"while true do pcall(string.format, '%d', 'x') end", 0},
    {"error(setmetatable({}, { __tostring = function() while true do end end }))", 0},
};
enum { N_SHAPE = sizeof shapes / sizeof *shapes, HOOK_US = 10000 };

static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- noise: what shares locks with a runaway --------------------------------------- */

static atomic_bool quiet;

static int throw_errors(lua_State *L)
{
    for (int i = 0; i < 50; i++) {
        lua_getglobal(L, "pcall");
        lua_getglobal(L, "error");
        lua_call(L, 1, 0);
    }
    return 0;
}

static void *make_noise(void *arg)
{
    struct mc_vm *vm = mc_vm_new(MC_ENV_EDGE, 0, false, NULL);
    unsigned n = 0;

    (void)arg;
    while (!atomic_load(&quiet)) {
        time_t t = time(NULL);
        struct tm tm;
        void *p = malloc(100 + n++ % 5000);

        localtime_r(&t, &tm);
        if (mc_vm_protect(vm, throw_errors, NULL, NULL) < 0)
            abort();
        free(p);
    }
    mc_vm_close(vm);
    return NULL;
}

static void check_process_is_whole(void)
{
    time_t t = time(NULL);
    struct tm tm;
    char *p = malloc(1 << 20);
    struct mc_stepvm *s = open_plan("assert(not pcall(error)) error('fine')", "");
    struct step_block *b = step_new(1, 10);
    struct mc_plan *plan = plan_new(10, 10, 10);
    struct mc_err err = {0};

    assert_non_null(p);
    assert_non_null(localtime_r(&t, &tm));
    assert_int_equal(run_plan(s, b, plan, &err), MC_EPOLICY);
    assert_non_null(strstr(err.text, "fine"));
    mc_stepvm_close(s);
    free(b);
    free(plan);
    free(p);
}

/* ---- the hooks --------------------------------------------------------------------- */

/* A VM whose hook h is this code; the others do nothing. */
static struct mc_stepvm *open_hook(enum mc_hook h, const char *code)
{
    char *dir = dir_new(), s[2048], t[2048];
    struct mc_stepvm *vm;
    struct mc_err err = {0};

    snprintf(s, sizeof s,
             "return { api = 1, kind = 'scheduler',\nplan = function(view, plan)\n%s\nend,\n"
             "evict = function(view, need)\n%s\nend,\nadmit = function(row)\n%s\nend }",
             h == MC_HOOK_PLAN ? code : "", h == MC_HOOK_EVICT ? code : "",
             h == MC_HOOK_ADMIT ? code : "");
    snprintf(t, sizeof t,
             "return { api = 1, kind = 'sampler',\nchain = function(seq, want)\n%s\n"
             "return want end,\npick = function(c, seq)\n%s\nend }",
             h == MC_HOOK_CHAIN ? code : "", h == MC_HOOK_PICK ? code : "");
    dir_write(dir, "s.lua", s);
    dir_write(dir, "t.lua", t);
    snprintf(s, sizeof s,
             "return { api = 1, kind = 'cache',\nkeep = function(blocks)\n%s\nend }",
             h == MC_HOOK_KEEP ? code : "");
    dir_write(dir, "c.lua", s);
    dir_write(dir, "init.lua", "return { scheduler = 's', sampler = 't', cache = 'c' }");
    assert_ok(open_dir(dir, &vm, &err), err);
    vm->opts.hook_us = HOOK_US;
    dir_free(dir);
    return vm;
}

static int call_hook(struct mc_stepvm *s, enum mc_hook h, struct mc_err *err)
{
    static struct mc_plan p;
    struct step_block *b = step_new(1, 10);
    struct mc_pick_seq q = {.seq = 1};
    struct mc_params want = {.ban = {-1, -1}}, out;
    struct mc_cands c = {.n = 2, .id = {2, 3}};
    struct mc_block block = {0};
    int32_t id;
    int rc = 0, answer;

    step_row(b, 0, MC_STATE_DECODE, 10);
    p = (struct mc_plan){.cap = MC_PLAN_CAP,
                         .tok_left = 10,
                         .row_left = 10,
                         .page_left = 10};
    switch (h) {
    case MC_HOOK_PLAN: rc = mc_stepvm_plan(s, &b->view, &p, state, err); break;
    case MC_HOOK_EVICT: rc = mc_stepvm_evict(s, &b->view, 1, &p, state, err); break;
    case MC_HOOK_ADMIT: rc = mc_stepvm_admit(s, &b->row[0], state, &answer, err); break;
    case MC_HOOK_KEEP: rc = mc_stepvm_keep(s, &block, 1, err); break;
    case MC_HOOK_CHAIN: rc = mc_stepvm_chain(s, &q, &want, &out, err); break;
    default: rc = mc_stepvm_pick(s, &c, &q, &id, err); break;
    }
    free(b);
    return rc;
}

static void runaway_of_any_shape_in_any_hook_is_left(void **st)
{
    pthread_t noise[2];
    double worst = 0;
    int n = 0;

    (void)st;
    atomic_store(&quiet, false);
    for (int i = 0; i < 2; i++)
        pthread_create(&noise[i], NULL, make_noise, NULL);
    for (int k = 0; k < N_SHAPE; k++) {
        for (enum mc_hook h = 0; h < MC_N_HOOK; h++) {
            struct mc_stepvm *s;
            struct mc_err err = {0};
            double t0;
            int rc;

#ifdef MC_LIMIT_BY_HOOK
            if (shapes[k].in_c)
                continue;
#endif
            s = open_hook(h, shapes[k].code);
            t0 = now_ms();
            rc = call_hook(s, h, &err);
            worst = now_ms() - t0 > worst ? now_ms() - t0 : worst;
            if (rc != MC_EBUDGET)
                fail_msg("%s in %s: %d %s", shapes[k].code, mc_hook_names[h], rc,
                         err.text);
            assert_true(s->vm->lost == MC_EBUDGET);
            mc_stepvm_close(s);
            n++;
        }
    }
    atomic_store(&quiet, true);
    for (int i = 0; i < 2; i++)
        pthread_join(noise[i], NULL);
    check_process_is_whole();
    print_message("%d of %d left; budget %d ms, longest %.1f ms by the wall clock\n", n,
                  n, HOOK_US / 1000, worst);
}

static void runaway_at_load_is_left_and_its_line_found(void **st)
{
    static const struct {
        const char *file, *text, *at;
    } cases[] = {
        {"s.lua", "\n\nwhile true do end", "s.lua:3"},
        {"init.lua", "local t = 0\nfor i = 1, math.huge do t = t + i end\nreturn {}", "init.lua:2"},
        {"s.lua", "return { api = 1, kind = 'scheduler', plan = function() end,\n"
                  "init = function()\nwhile true do pcall(error) end end }", "s.lua:3"},
        {"s.lua", "return { api = 1, kind = 'scheduler', plan = function() end,\n\n"
                  "tests = function() repeat until false end }", "s.lua:3"},
#ifndef MC_LIMIT_BY_HOOK
        {"s.lua", "local s = ('a'):rep(26) .. 'b'\n"
                  "while true do s:match(('.-'):rep(12) .. 'c') end", "s.lua:2"},
#endif
    };

    (void)st;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *dir = dir_new(), at[80] = "";
        struct mc_step_opts o = opts();
        struct mc_generation *g;
        struct mc_stepvm *s;
        struct mc_err err = {0};

        dir_scheduler(dir, "", "");
        dir_write(dir, cases[i].file, cases[i].text);
        o.load_us = 20000;
        assert_ok(mc_generation_open(dir, &g, &err), err);
        assert_int_equal(mc_stepvm_open(&o, g, &s, at, sizeof at, &err), MC_EBUDGET);
        o.follow = true;
        assert_int_equal(mc_stepvm_open(&o, g, &s, at, sizeof at, &err), MC_EBUDGET);
        assert_string_equal(at, cases[i].at);
        mc_generation_unref(g);
        dir_free(dir);
    }
    check_process_is_whole();
}

/* A lost VM's call, run again in a VM that follows lines, ends at the same place. */
static void runaway_line_is_found_by_running_it_again(void **st)
{
    char *dir = dir_new(), at[80] = "";
    struct mc_step_opts o = opts();
    struct mc_stepvm *s, *again;
    struct mc_generation *g;
    struct step_block *b = step_new(1, 10);
    struct mc_plan *p = plan_new(256, 64, 10);
    struct mc_err err = {0};

    (void)st;
    dir_scheduler(dir, "for _, r in view:running() do plan:decode(r)\n"
                       "  if r.n_prompt == 77 then\n"
                       "    while view.tokens_left > 0 do\n"
                       "      local x = 1\n"
                       "    end\n"
                       "  end\n"
                       "end", "");
    o.hook_us = HOOK_US;
    assert_ok(mc_generation_open(dir, &g, &err), err);
    assert_ok(mc_stepvm_open(&o, g, &s, NULL, 0, &err), err);
    for (int i = 70; i < 80; i++)
        step_row(b, 0, MC_STATE_DECODE, i);
    assert_int_equal(run_plan(s, b, p, &err), MC_EBUDGET);
    o.follow = true;
    o.hook_us = 100000;
    assert_ok(mc_stepvm_open(&o, g, &again, at, sizeof at, &err), err);
    assert_int_equal(mc_stepvm_replay(again, s, &err), MC_EBUDGET);
    if (strcmp(again->vm->at, "s.lua:6") != 0 && strcmp(again->vm->at, "s.lua:7") != 0)
        fail_msg("found %s", again->vm->at);
    mc_stepvm_close(again);
    mc_stepvm_close(s);
    mc_generation_unref(g);
    dir_free(dir);
    free(b);
    free(p);
}

/* What an abandonment leaves behind is its machine code; memory and time stay bounded. */
static void runaway_vms_leave_little_behind(void **st)
{
    size_t rss = 0;
    double t0;
    int n = 60;

    (void)st;
    for (int i = 0; i < n; i++) {
        struct mc_stepvm *s = open_hook(
            MC_HOOK_PLAN, "local t = {} for i = 1, 2e5 do t[i] = { i } end\n"
                          "while true do pcall(error) for i = 1, 100 do t[i] = { i } end end");
        struct mc_err err = {0};
        int rc = call_hook(s, MC_HOOK_PLAN, &err);

        assert_true(rc == MC_EBUDGET);
        mc_stepvm_close(s);
        if (i == 4)
            rss = rss_bytes();
    }
    print_message("RSS grew %zd KiB over %d lost VMs\n",
                  (ssize_t)(rss_bytes() - rss) / 1024, n - 5);
    assert_true(rss_bytes() < rss + (32u << 20));
    t0 = now_ms();
    check_process_is_whole();
    assert_true(now_ms() - t0 < 1000);
}

static void *run_with_signals_blocked(void *arg)
{
    struct mc_err err = {0};
    struct mc_stepvm *s;
    sigset_t all;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    s = open_hook(MC_HOOK_PLAN, "while true do end");
    *(int *)arg = call_hook(s, MC_HOOK_PLAN, &err);
    mc_stepvm_close(s);
    return NULL;
}

/* As in a server, whose threads leave SIGTERM and the like to one of them. */
static void runaway_is_left_on_a_thread_that_blocks_signals(void **st)
{
    pthread_t t;
    int rc = 0;

    (void)st;
    pthread_create(&t, NULL, run_with_signals_blocked, &rc);
    pthread_join(t, NULL);
    assert_int_equal(rc, MC_EBUDGET);
}

static void runaway_within_budget_is_left_alone(void **st)
{
    struct mc_stepvm *s = open_hook(MC_HOOK_PLAN,
                                    "for i = 1, 1e5 do pcall(error) end");
    struct mc_err err = {0};

    (void)st;
    s->opts.hook_us = 60000000;
    for (int i = 0; i < 3; i++)
        assert_ok(call_hook(s, MC_HOOK_PLAN, &err), err);
    mc_stepvm_close(s);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(runaway_of_any_shape_in_any_hook_is_left),
    cmocka_unit_test(runaway_at_load_is_left_and_its_line_found),
    cmocka_unit_test(runaway_line_is_found_by_running_it_again),
    cmocka_unit_test(runaway_vms_leave_little_behind),
    cmocka_unit_test(runaway_is_left_on_a_thread_that_blocks_signals),
    cmocka_unit_test(runaway_within_budget_is_left_alone),
};
MC_TEST_MAIN(tests)
