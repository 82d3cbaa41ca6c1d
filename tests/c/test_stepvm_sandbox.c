/* test_stepvm_sandbox.c - what scripts in a step VM can not do: reach out, use up memory,
 * leave an error that nobody can read. */
#include "tests/c/test.h"

#include "core/serve/metrics.h"
#include "lua/host/limit.h"
#include "lua/host/trial.h"
#include "tests/c/stepvm_util.h"

/* ---- the sandbox ------------------------------------------------------------------- */

static void stepvm_sandbox_has_no_holes(void **st)
{
    (void)st;
    check_plan(
        "local holes = {\n"
        "  function() return require 'ffi' end, function() return package.preload.ffi() end,\n"
        "  function() return package.loadlib end, function() return getfenv(0).os end,\n"
        "  function() return debug.getregistry() end, function() return jit.off() end,\n"
        "  function() getmetatable('').__index.rep = nil end, function() string.rep = nil end,\n"
        "  function() _G.print = nil end, function() setmetatable(_G, {}) end,\n"
        "  function() return newproxy(true) end, function() os.exit() end,\n"
        "  function() return io.popen('id') end, function() return load('\\27LJ') end,\n"
        "  function() return loadstring('return 1') end, function() return dofile('x') end,\n"
        "  function() rawset(mc, 'submit', 1) end, function() return rawget(mc, 'x') end,\n"
        "  function() return ffi.new('int') end, function() return setfenv(1, {}) end,\n"
        "  function() x = 1 end, function() return undefined_name end,\n"
        "  function() mc.log = nil end, function() mc.log.info = nil end,\n"
        "  function() setmetatable(mc, {}) end, function() setmetatable(view, {}) end,\n"
        "  function() setmetatable(string, {}) end, function() string.x = 1 end,\n"
        "  function() return coroutine.wrap(print) end, function() print(1) end,\n"
        "  function() collectgarbage('stop') end, function() collectgarbage() end,\n"
        "  function() collectgarbage('setpause', 1) end, function() collectgarbage('step') end,\n"
        "  function() mc.submit {} end, function() mc.engine.status() end,\n"
        "  function() return string.dump(function() end) end,\n"
        "  function() return ('').dump(function() end) end,\n"
        "}\n"
        "for i, f in ipairs(holes) do\n"
        "  local ok, v = pcall(f) assert(not ok, 'hole ' .. i .. ' gave ' .. tostring(v))\n"
        "end\n"
        "assert(('').dump == nil and collectgarbage('count') > 0)\n"
        "assert(string.rep('x', 3) == 'xxx' and ('x'):rep(3) == 'xxx')\n"
        "local _, err = pcall(function() mc.submit {} end)\n"
        "assert(err:find('mc.submit is not available in a scheduler hook'), err)\n"
        "local a, b = pcall(setmetatable, {}, { __gc = function() end }) assert(a)\n"
        "for _, name in ipairs { 'assert', 'error', 'pcall', 'xpcall', 'ipairs', 'pairs', 'next',\n"
        "  'select', 'tonumber', 'tostring', 'type', 'unpack', 'setmetatable' } do end\n");
}

static void stepvm_binary_chunks_are_refused(void **st)
{
    static const char dump[] =
        "\x1bLJ\x02\x02\x0f\x02\x00\x01\x00\x01\x02)\x00\x07\x00L\x00"
        "\x02\x00",
                      evil[] = "\x1bLJ\2\xff\xff\xff\xff\x0f";
    char *dir = dir_new();
    struct mc_stepvm *s;
    struct mc_err err = {0};

    (void)st;
    for (int i = 0; i < 4; i++) {
        dir_scheduler(dir, "", "");
        dir_write_n(dir, i % 2 ? "init.lua" : "s.lua", i < 2 ? dump : evil,
                    i < 2 ? sizeof dump - 1 : sizeof evil - 1);
        assert_int_equal(open_dir(dir, &s, &err), MC_EPOLICY);
        assert_non_null(strstr(err.text, "binary chunk refused"));
    }
    dir_free(dir);
}

static void stepvm_one_script_cannot_change_what_another_sees(void **st)
{
    char *dir = dir_new();
    struct mc_stepvm *s;
    struct mc_err err = {0};

    (void)st;
    dir_write(dir, "init.lua", "pcall(function() string.rep = nil end)\n"
              "pcall(function() leak = 1 end)\n"
              "return { scheduler = 's', sampler = 't' }");
    dir_write(dir, "s.lua", "pcall(function() math.floor = nil end) local P = "
              "{ api = 1, kind = 'scheduler', plan = function() end } return P");
    dir_write(dir, "t.lua", "assert(math.floor(1.5) == 1 and ('x'):rep(2) == 'xx')\n"
              "assert(not pcall(function() return leak end))\n"
              "return { api = 1, kind = 'sampler', chain = function(_, w) return w end }");
    assert_ok(open_dir(dir, &s, &err), err);
    mc_stepvm_close(s);
    dir_free(dir);
}

/* ---- memory, error values ---------------------------------------------------------- */

static void stepvm_memory_bombs_become_errors(void **st)
{
    static const char *const bombs[] = {
        "local t = {} for i = 1, 1e9 do t[i] = ('x'):rep(100) .. i end",
        "local s = ('x'):rep(1e9)",
        "local s = 'x' while true do s = s .. s end",
        "local function f(n) return 1 + f(n + 1) end f(1)",
        "local function f() return pcall(f) end f() error('not enough memory or depth')",
        "local t = {} for i = 1, 1e9 do t[i] = function() return i end end",
        "local t = {} while true do t = { t } end",
        "local t = {} for i = 1, 1e6 do t[i] = { i } end t[2 ^ 24] = 1 t = { unpack(t) }",
        "return table.concat(setmetatable({}, { __index = 1 }), ',', 1, 1e9)",
        "local t = {} for i = 1, 1e9 do t['k' .. i] = i end",
    };

    (void)st;
    for (size_t i = 0; i < sizeof bombs / sizeof *bombs; i++) {
        char body[400];
        struct mc_stepvm *s;
        struct step_block *b = step_new(1, 10);
        struct mc_plan *p = plan_new(256, 64, 10);
        struct mc_err err = {0};
        size_t before = rss_bytes();
        int rc;

        snprintf(body, sizeof body, "if view.step == 1 then %s end", bombs[i]);
        s = open_plan(body, "");
        s->opts.hook_us = 20000000;
        rc = run_plan(s, b, p, &err);
        assert_true(rc == MC_ENOMEM || rc == MC_EPOLICY);
#ifdef MC_LIMIT_BY_HOOK
        (void)before; /* TSan's shadow counts in RSS */
#else
        assert_true(rss_bytes() < before + (96u << 20));
#endif
        if (!s->vm->lost) { /* it still works, or says that it can't */
            b->view.step = 2;
            rc = run_plan(s, b, p, &err);
            assert_true(rc == 0 || (rc == MC_ENOMEM && !s->vm->jit));
        }
        mc_stepvm_close(s);
        free(b);
        free(p);
    }
}

static void stepvm_a_small_arena_is_refused_at_any_size(void **st)
{
    int opened = 0, refused = 0;

    (void)st;
    for (size_t mem = 65536; mem < 900000; mem += 4099) {
        struct mc_step_opts o = opts();
        struct mc_generation *g;
        struct mc_stepvm *s;
        struct mc_err err = {0};
        int rc;

        o.mem = mem;
        assert_ok(mc_generation_open(NULL, &g, &err), err);
        rc = mc_stepvm_open(&o, g, &s, NULL, 0, &err);
        assert_true(rc == 0 || rc == MC_ENOMEM || rc == MC_EPOLICY);
        opened += rc == 0;
        refused += rc < 0;
        mc_stepvm_close(s);
        mc_generation_unref(g);
    }
    print_message("%d sizes refused, %d opened\n", refused, opened);
    assert_true(opened > 10 && refused > 10);
}

static void stepvm_error_values_of_any_kind_become_text(void **st)
{
    static const struct {
        const char *code, *text;
    } cases[] = {
        {"error(nil)", "nil value"},
        {"error()", "nil value"},
        {"error({})", "table value"},
        {"error(true)", "boolean value"},
        {"error(function() end)", "function value"},
        {"error(12)", "12"},
        {"error(view)", "table value"},
        {"error(setmetatable({}, { __tostring = function() error('x') end }))", "table value"},
        {"error(setmetatable({}, { __tostring = function() return {} end }))", "table value"},
        {"error(setmetatable({}, { __tostring = function() return 'told' end }))", "told"},
        {"error({ code = 'overloaded', message = 'too much' })", "too much"},
        {"error(setmetatable({}, { __index = function() error('y') end }))", "table value"},
        {"error('two\\nlines\\27[31m')", "two lines [31m"},
        {"error('plain', 0)", "plain"},
        {"local x = nil + 1", "s.lua:4: attempt to perform arithmetic"},
        {"for _, r in view:running() do error(r) end", "row"},
        {"error(('long'):rep(1000))", "longlong"},
        {"return xpcall(error, function() error('again') end) or error('out')", "out"},
    };

    (void)st;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mc_stepvm *s = open_plan(cases[i].code, "");
        struct step_block *b = step_new(1, 10);
        struct mc_plan *p = plan_new(256, 64, 10);
        struct mc_err err = {0};

        step_row(b, 0, MC_STATE_DECODE, 10);
        assert_int_equal(run_plan(s, b, p, &err), MC_EPOLICY);
        if (!strstr(err.text, cases[i].text))
            fail_msg("%s gave '%s'", cases[i].code, err.text);
        assert_null(strchr(err.text, '\n'));
        assert_null(strchr(err.text, 27));
        assert_int_equal(p->n, 0);
        mc_stepvm_close(s);
        free(b);
        free(p);
    }
}

/* ---- what scripts count, and what they are told ------------------------------------ */

static const char counting_scheduler[] =
    "local steps = mc.metrics.counter('my_steps', 'steps seen', { 'kind' })\n"
    "local depth = mc.metrics.gauge('my_depth', 'rows')\n"
    "assert(mc.config.max_waiting == 7 and mc.config.backend == 'cpu' and mc.config.watch)\n"
    "local function fails(why, f, ...)\n"
    "  local ok, err = pcall(f, ...)\n"
    "  assert(not ok and err:find(why, 1, true), tostring(err))\n"
    "end\n"
    "fails(\"mc.submit is not available in a scheduler's file\",\n"
    "  function() return mc.submit end)\n"
    "local P = { api = 1, kind = 'scheduler' }\n"
    "function P.init() depth:set(3) end\n"
    "function P.plan(view)\n"
    "  steps:inc(2, 'a')\n"
    "  steps:inc(nil, 'b')\n"
    "  depth:set(view.kv_total)\n"
    "  fails('my_depth is a gauge, which has no observe', depth.observe, depth, 1)\n"
    "  fails('my_steps has 1 labels, and 0 values', steps.inc, steps, 1)\n"
    "  fails('takes a number, not a table', steps.inc, steps, {}, 'a')\n"
    "  fails('is called with a colon', steps.inc, 1)\n"
    "  fails('not for a hook', mc.metrics.counter, 'late', 'too late')\n"
    "  fails(\"mc.config has no 'max_wating'\", function() return mc.config.max_wating end)\n"
    "  fails('can\\'t be changed', function() mc.config.max_waiting = 1 end)\n"
    "  fails('in a scheduler hook', function() return mc.submit end)\n"
    "end\n"
    "return P\n";

static const char sampler[] =
    "local ok, err = pcall(function() return mc.sleep end)\n"
    "assert(err:find(\"in a sampler's file\"), err)\n"
    "return { api = 1, kind = 'sampler', chain = function(seq, want)\n"
    "  ok, err = pcall(function() return mc.sleep end)\n"
    "  assert(err:find('mc.sleep is not available in a sampler hook'), err)\n"
    "  return want\n"
    "end }\n";

static double shown(struct mc_metrics *m, const char *name)
{
    const struct mc_metrics_source src = {.metrics = m};
    static char text[65536];
    const char *at;

    text[mc_metrics_render(&src, text, sizeof text - 1)] = 0;
    at = strstr(text, name);
    return at ? atof(at + strlen(name)) : -1;
}

/* What is only being tried (dry runs, a search for a line) counts nothing. */
static void stepvm_scripts_count_and_read_the_settings(void **st)
{
    char *dir = dir_new();
    struct mc_step_opts o = opts();
    struct step_block *b = step_new(2, 100);
    struct mc_plan *p = plan_new(256, 64, 100);
    struct mc_pick_seq seq = {.seq = 1};
    struct mc_params want = {.ban = {-1, -1}}, got;
    struct mc_metrics *m;
    struct mc_generation *g;
    struct mc_stepvm *s;
    struct mc_err err = {0};
    json_t *config = json_pack("{s:i, s:s, s:b}", "max_waiting", 7, "backend", "cpu",
                               "watch", 1);

    (void)st;
    dir_write(dir, "s.lua", counting_scheduler);
    dir_write(dir, "t.lua", sampler);
    dir_write(dir, "init.lua", "return { scheduler = 's', sampler = 't' }");
    assert_ok(mc_metrics_open(&m, &err), err);
    o.metrics = m;
    o.config = config;
    assert_ok(mc_generation_open(dir, &g, &err), err);
    assert_ok(mc_stepvm_open(&o, g, &s, NULL, 0, &err), err);
    assert_ok(mc_trial_run(&s, NULL, 0, NULL, &err), err);
    assert_true(shown(m, "\nmascon_my_steps_total{kind=\"a\"} ") < 0);
    assert_true(shown(m, "\nmascon_my_depth ") == 3);
    for (int i = 0; i < 3; i++)
        assert_ok(run_plan(s, b, p, &err), err);
    assert_true(shown(m, "\nmascon_my_steps_total{kind=\"a\"} ") == 6);
    assert_true(shown(m, "\nmascon_my_steps_total{kind=\"b\"} ") == 3);
    assert_true(shown(m, "\nmascon_my_depth ") == b->view.p_total);
    assert_ok(mc_stepvm_chain(s, &seq, &want, &got, &err), err);
    mc_stepvm_close(s);
    mc_generation_unref(g);
    mc_metrics_close(m);
    json_decref(config);
    dir_free(dir);
    free(b);
    free(p);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(stepvm_scripts_count_and_read_the_settings),
    cmocka_unit_test(stepvm_sandbox_has_no_holes),
    cmocka_unit_test(stepvm_binary_chunks_are_refused),
    cmocka_unit_test(stepvm_one_script_cannot_change_what_another_sees),
    cmocka_unit_test(stepvm_memory_bombs_become_errors),
    cmocka_unit_test(stepvm_a_small_arena_is_refused_at_any_size),
    cmocka_unit_test(stepvm_error_values_of_any_kind_become_text),
};
MC_TEST_MAIN(tests)
