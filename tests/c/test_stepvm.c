/* test_stepvm.c - one step VM: what scheduler hooks see and grant. */
#include "tests/c/test.h"

#include <time.h>

#include "tests/c/stepvm_util.h"

/* ---- views and plans ------------------------------------------------------------------ */

static void stepvm_shows_rows_lanes_and_numbers(void **st)
{
    (void)st;
    check_plan(
        "local n, sum = 0, 0\n"
        "for i, row in view:running() do n = n + 1; sum = sum + row.n_prompt end\n"
        "assert(n == 3 and sum == 303, n .. ' ' .. sum)\n"
        "n = 0 for _, row in view:waiting() do n = n + 1 end assert(n == 4, n)\n"
        "n = 0 for _, row in view:waiting(10) do assert(row.lane == 10); n = n + 1 end\n"
        "assert(n == 2, n)\n"
        "local seqs = {} for _, row in view:waiting(nil, 'youngest') do\n"
        "  seqs[#seqs + 1] = row.seq end\n"
        "assert(table.concat(seqs, ',') == '8,7,6,5', table.concat(seqs, ','))\n"
        "n = 0 for _, row in view:paused() do n = n + 1 assert(row.seq == 4) end\n"
        "assert(n == 1)\n"
        "local ids = {} for i, l in view:lanes() do ids[i] = l.id end\n"
        "assert(ids[1] == 10 and ids[2] == 11 and #ids == 2)\n"
        "for _, l in view:lanes() do assert(l.ready == 2 and l.weight == 1) end\n"
        "n = 0 for _, t in view:tenants() do\n"
        "  n = n + 1 assert(t.id == 77 and t.ready == 4 and t.running == 3) end\n"
        "assert(n == 1)\n"
        "assert(view.kv_free == 100 and view.kv_total == 1000 and view.now == 100)\n"
        "assert(view.tokens_left == 256 and view.rows_left == 64 and view.p_tokens == 64)\n"
        "assert(view:head(10).seq == 5 and view:head(11).seq == 6)\n"
        "for _, row in view:running() do assert(row.tenant == 77 and row.t_arrive >= 0) end\n"
        "assert(view.decode.us_row == 0 and mc.now() == 100 and mc.time() > 1e9)\n");
}

static void stepvm_plan_grants_and_budgets_move(void **st)
{
    struct mc_stepvm *s = open_plan(
        "for _, r in view:running() do assert(plan:decode(r)) end\n"
        "for _, r in view:running() do error('decided on, still listed') end\n"
        "assert(view.tokens_left == 253 and view.rows_left == 61)\n"
        "for _, r in view:paused() do assert(plan:resume(r)) end\n"
        "local h = view:head(10)\n"
        "assert(h.seq == 5 and plan:prefill(h, 64) == 64 and plan:prefill(h, 1) == 0)\n"
        "assert(view.kv_free == 99 and view.tokens_left == 189)\n"
        "assert(view:head(10).seq == 7)\n"
        "for _, l in view:lanes() do\n"
        "  if l.id == 10 then assert(l.ready == 1 and l.served == 66, l.served) end end\n"
        "for _, t in view:tenants() do\n"
        "  assert(t.ready == 3 and t.running == 0 and t.served == 67, t.served) end\n"
        "assert(plan:prefill(view:head(10), 1e9) == 106)\n"
        "assert(view:head(10) == nil)\n"
        "assert(plan:hold(view:head(11), 1) and plan:reject(view:head(11), 'overloaded'))\n"
        "assert(view:head(11) == nil)\n",
        "P.why = { 'testing' }");
    struct step_block *b = step_new(2, 100);
    struct mc_plan *p = plan_new(256, 64, 100);
    struct mc_err err = {0};

    (void)st;
    for (int i = 0; i < 8; i++)
        step_row(b, i % 2, i < 3 ? MC_STATE_DECODE : i < 4 ? MC_STATE_PAUSED : MC_STATE_WAITING,
                 100 + i);
    assert_ok(run_plan(s, b, p, &err), err);
    assert_int_equal(p->n, 8);
    assert_int_equal(plan_item(p, 1)->what, MC_RUN);
    assert_int_equal(plan_item(p, 1)->n, 1);
    assert_int_equal(plan_item(p, 4)->what, MC_BACK);
    assert_int_equal(plan_item(p, 5)->n, 64);
    assert_int_equal(plan_item(p, 7)->n, 106);
    assert_int_equal(plan_item(p, 6)->what, MC_HOLD);
    assert_int_equal(plan_item(p, 6)->why, 1);
    assert_string_equal(s->why[1], "testing");
    assert_int_equal(plan_item(p, 8)->what, MC_FAIL);
    assert_int_equal(plan_item(p, 8)->n, MC_EAGAIN);
    assert_int_equal(p->tok_left, 256 - 3 - 64 - 106);
    assert_int_equal(p->row_left, 64 - 3 - 1 - 2);
    assert_int_equal(p->page_left, 100 - 1 - 2);
    mc_stepvm_close(s);
    free(b);
    free(p);
}

static void stepvm_grants_only_what_is_there(void **st)
{
    struct mc_stepvm *s = open_plan(
        "local n = 0 for _, r in view:running() do\n"
        "  if plan:decode(r) then n = n + 1 end end\n"
        "local got = 0 for _, r in view:waiting() do got = got + plan:prefill(r, 1e9) end\n"
        "view.state.decoded, view.state.got = n, got\n",
        "P.state = { decoded = 0, got = 0 }");
    static const struct {
        int tokens, rows, pages, decoded, got;
    } cases[] = {
        {1000, 64, 100, 3, 400}, {2, 64, 100, 2, 0},    {50, 64, 100, 3, 47},
        {1000, 2, 100, 2, 0},    {1000, 4, 100, 3, 100}, {1000, 64, 0, 3, 0},
        {1000, 64, 1, 3, 64},    {1000, 64, 3, 3, 164},  {0, 64, 100, 0, 0},
    };
    struct mc_err err = {0};

    (void)st;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct step_block *b = step_new(2, cases[i].pages);
        struct mc_plan *p = plan_new(cases[i].tokens, cases[i].rows, cases[i].pages);

        for (int k = 0; k < 7; k++)
            step_row(b, k % 2, k < 3 ? MC_STATE_DECODE : MC_STATE_WAITING, 100);
        assert_ok(run_plan(s, b, p, &err), err);
        assert_int_equal((int)state[0], cases[i].decoded);
        assert_int_equal((int)state[1], cases[i].got);
        assert_true(p->tok_left >= 0 && p->row_left >= 0 && p->page_left >= 0);
        free(b);
        free(p);
    }
    mc_stepvm_close(s);
    memset(state, 0, sizeof state);
}

static void stepvm_preempt_says_what_comes_free(void **st)
{
    (void)st;
    check_plan(
        "local a, b, c\n"
        "for i, r in view:running() do if not a then a = r elseif not b then b = r\n"
        "  else c = r end end\n"
        "local now, soon = view:preempt(a, 'drop')\n"
        "assert(now == 2 and soon == 0 and view.kv_free == 102)\n"
        "assert(not plan:decode(a))\n"
        "now, soon = view:preempt(b, 'swap')\n"
        "assert(now == 0 and soon == 2 and view.kv_free == 102)\n"
        "now, soon = view:preempt(b, 'swap') assert(now == 0 and soon == 0)\n"
        "assert(not pcall(view.preempt, view, c, 'eat'))\n"
        "for _, r in view:paused() do now, soon = view:preempt(r, 'drop')\n"
        "  assert(now == 0 and soon == 0) end\n");
}

static void stepvm_first_come_policy_in_lua_agrees_with_c(void **st)
{
    static const struct {
        int decode, waiting, paused, tokens, rows, pages;
    } cases[] = {
        {0, 0, 0, 256, 64, 100}, {3, 4, 0, 256, 64, 100}, {3, 4, 2, 256, 64, 100},
        {8, 3, 1, 256, 64, 2},   {0, 2, 0, 256, 64, 1},   {40, 30, 0, 64, 32, 500},
        {5, 9, 3, 999, 64, 7},   {0, 0, 3, 256, 64, 3},
    };
    struct mc_stepvm *s;
    struct mc_err err = {0};

    (void)st;
    assert_ok(open_dir(NULL, &s, &err), err);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct step_block *b = step_new(1, cases[i].pages);
        struct mc_plan *lua = plan_new(cases[i].tokens, cases[i].rows, cases[i].pages);
        struct mc_plan *c = plan_new(cases[i].tokens, cases[i].rows, cases[i].pages);

        for (int k = 0; k < cases[i].decode; k++)
            step_row(b, 0, MC_STATE_DECODE, 64 * (k % 3) + 10)->p_step = k % 4 == 0;
        for (int k = 0; k < cases[i].paused; k++)
            step_row(b, 0, MC_STATE_PAUSED, 200)->p_step = 4;
        for (int k = 0; k < cases[i].waiting; k++)
            step_row(b, 0, MC_STATE_WAITING, 50 + 40 * k);
        assert_ok(run_plan(s, b, lua, &err), err);
        assert_ok(mc_policy_builtin.ops->plan(NULL, &b->view, c, &err), err);
        for (int k = 0; k < b->view.n_row; k++) {
            const struct mc_item *x = plan_item(lua, (uint32_t)k + 1);
            const struct mc_item *y = plan_item(c, (uint32_t)k + 1);

            assert_int_equal(x != NULL, y != NULL);
            if (!x)
                continue;
            assert_int_equal(x->what, y->what);
            assert_int_equal(x->n, y->n);
        }
        assert_int_equal(lua->tok_left, c->tok_left);
        assert_int_equal(lua->page_left, c->page_left);
        free(b);
        free(lua);
        free(c);
    }
    mc_stepvm_close(s);
}

/* ---- handles, fuzz -------------------------------------------------------------------- */

static void stepvm_kept_handles_are_stale(void **st)
{
    struct mc_stepvm *s = open_plan(
        "if view.step == 1 then\n"
        "  for _, r in view:running() do row, user = r, r.user end\n"
        "  for _, l in view:lanes() do lane = l end\n"
        "  for _, t in view:tenants() do tenant = t end\n"
        "  step, it, at = view:running()\n"
        "  return\n"
        "end\n"
        "local function stale(f, ...)\n"
        "  local ok, err = pcall(f, ...)\n"
        "  assert(not ok and err:find('stale'), tostring(err))\n"
        "end\n"
        "stale(function() return row.seq end)  stale(function() return row.lane end)\n"
        "stale(function() return tenant.id end)\n"
        "stale(function() return lane.id end)  stale(function() return user[1] end)\n"
        "stale(function() user[1] = 1 end)     stale(function() return row.user end)\n"
        "stale(plan.decode, plan, row)         stale(plan.prefill, plan, row, 1)\n"
        "stale(plan.resume, plan, row)         stale(plan.hold, plan, row)\n"
        "stale(plan.reject, plan, row, 'overloaded')\n"
        "stale(view.preempt, view, row, 'drop') stale(view.head, view, lane)\n"
        "stale(view.waiting, view, lane)       stale(step, it, at)\n"
        "assert(tostring(row):find('stale') and tostring(lane):find('stale'))\n",
        "local row, user, lane, tenant, step, it, at");
    struct step_block *b = step_new(1, 100);
    struct mc_plan *p = plan_new(256, 64, 100);
    struct mc_err err = {0};

    (void)st;
    step_row(b, 0, MC_STATE_DECODE, 10);
    assert_ok(run_plan(s, b, p, &err), err);
    for (int i = 2; i < 100; i++) { /* compiled code must see it too */
        b->view.step = i;
        p->n = 0;
        assert_ok(run_plan(s, b, p, &err), err);
        assert_int_equal(p->n, 0);
    }
    mc_stepvm_close(s);
    free(b);
    free(p);
}

/* Every field and method with every wrong value, many times, so that compiled code is
 * fuzzed as well as the interpreter. What is not an error must at least be harmless. */
static void stepvm_misuse_of_any_accessor_is_an_error(void **st)
{
    (void)st;
    check_plan(
        "local bad = { -1, 0, 1e9, -1e9, 2^53, 0/0, 1/0, -1/0, 1.5, 'x', '', true, {},\n"
        "  function() end, view, plan, ('x'):rep(1e5) }\n"
        "local row, lane\n"
        "for _, r in view:running() do row = r end\n"
        "for _, l in view:lanes() do lane = l end\n"
        "local tenant for _, t in view:tenants() do tenant = t end\n"
        "local function refused(f, ...)\n"
        "  local ok, err = pcall(f, ...)\n"
        "  assert(not ok and type(err) == 'string', 'accepted: ' .. tostring((...)))\n"
        "end\n"
        "local function get(t, k) return t[k] end\n"
        "local function set(t, k, v) t[k] = v end\n"
        "local things = { view, plan, row, lane, tenant, tenant.user, row.user, lane.user,\n"
        "  view.decode, view.state,\n"
        "  mc, mc.log, mc.vocab, string, table, math, bit, (select(2, view:running())) }\n"
        "for round = 1, 60 do\n"
        "  for i = 1, #bad + 1 do\n"
        "    local v = bad[i]\n"
        "    for _, t in ipairs(things) do\n"
        "      if t ~= string and t ~= table and t ~= math and t ~= bit then\n"
        "        refused(get, t, v) end\n"
        "      refused(set, t, v, 1) refused(set, t, 'seq', v) refused(set, t, 'slot_', v)\n"
        "      refused(set, t, 'epoch_', v) refused(set, t, 'n_row', 1)\n"
        "      if type(t) == 'cdata' then\n"
        "        refused(function() return t + 1 end) refused(function() return t - t end)\n"
        "        refused(function() return t .. 'x' end) refused(function() return t() end)\n"
        "        refused(function() return -t end) refused(function() return t < t end)\n"
        "        refused(function() return unpack(t) end) refused(next, t)\n"
        "        refused(setmetatable, t, {})\n"
        "      end\n"
        "    end\n"
        "    for _, m in ipairs { 'decode', 'resume', 'hold', 'prefill', 'reject' } do\n"
        "      refused(plan[m], plan, v, 1) refused(plan[m], v, v)\n"
        "    end\n"
        "    if not (type(v) == 'number' and v >= 1) then refused(plan.prefill, plan, row, v) end\n"
        "    if v ~= nil and not (type(v) == 'number' and v >= 0) then\n"
        "      refused(plan.decode, plan, row, v) end\n"
        "    if v ~= nil then\n"
        "      refused(plan.decode, plan, row, 0, v) refused(plan.hold, plan, row, v)\n"
        "      refused(view.running, view, v) refused(view.paused, view, v)\n"
        "      refused(view.waiting, view, v) refused(view.waiting, view, 10, v) end\n"
        "    refused(plan.reject, plan, row, v) refused(view.head, view, v)\n"
        "    refused(view.preempt, view, row, v) refused(view.preempt, view, v, 'drop')\n"
        "    refused(get, row.user, v) refused(get, lane.user, v)\n"
        "    if type(v) ~= 'number' then\n"
        "      refused(set, row.user, 1, v) refused(set, lane.user, 2, v) end\n"
        "    local f, it, z = view:running() refused(f, v, 0) refused(f, nil, v)\n"
        "    if not (type(v) == 'number' and v >= 0) then refused(f, it, v)\n"
        "    else assert(v <= 3 or f(it, v) == nil) end\n"
        "    refused(mc.log.info, v ~= 'x' and v ~= '' and #tostring(v) < 99 and v or nil)\n"
        "    refused(mc.log.info, 'm', v == nil and 1 or type(v) == 'table' and 1 or v)\n"
        "    refused(mc.vocab.set, v)\n"
        "  end\n"
        "end\n"
        "refused(get, row.user, 5) refused(get, lane.user, 3) refused(get, row, 'user_')\n"
        "refused(get, row, 'pad_') refused(get, view, 'off_row') refused(get, view, 'rows')\n"
        "assert(#row.user == 4 and #lane.user == 2 and row == row and row ~= lane)\n"
        "assert(row ~= nil and row ~= 1 and tostring(row) == 'row 3.1', tostring(row))\n");
}

static void stepvm_user_numbers_come_back_unless_the_hook_fails(void **st)
{
    struct mc_stepvm *s = open_plan(
        "for _, r in view:running() do r.user[1] = r.user[1] + 1; r.user[4] = r.seq / 4 end\n"
        "for _, l in view:lanes() do l.user[2] = 7 end\n"
        "for _, t in view:tenants() do t.user[1] = 9 end\n"
        "view.state.turn = view.state.turn + 1\n"
        "if view.step == 3 then error('no') end\n",
        "P.state = { turn = 5 }");
    struct step_block *b = step_new(1, 100);
    struct mc_plan *p = plan_new(256, 64, 100);
    struct mc_err err = {0};
    double mine[MC_N_STATE] = {5};

    (void)st;
    step_row(b, 0, MC_STATE_DECODE, 10);
    for (int i = 1; i <= 2; i++) {
        b->view.step = i;
        assert_ok(mc_stepvm_plan(s, &b->view, p, mine, &err), err);
    }
    assert_true(b->row[0].user[0] == 2 && b->row[0].user[3] == 0.25);
    assert_true(b->lane[0].user[1] == 7 && mine[0] == 7);
    assert_true(b->tenant[0].user[0] == 9);
    b->view.step = 3;
    assert_int_equal(mc_stepvm_plan(s, &b->view, p, mine, &err), MC_EPOLICY);
    assert_non_null(strstr(err.text, "s.lua:8: no"));
    assert_true(b->row[0].user[0] == 2 && mine[0] == 7 && s->layout[0].start[0] == 5);
    mc_stepvm_close(s);
    free(b);
    free(p);
}

static void stepvm_a_loop_over_too_many_rows_is_an_error_not_a_crash(void **st)
{
    struct mc_stepvm *s = open_plan(
        "local n = 0\n"
        "local ok, err = pcall(function() while true do n = n + 1 view:running() end end)\n"
        "assert(err:find('too many loops') and n > 2000, err)\n", "");
    struct step_block *b = step_new(1, 100);
    struct mc_plan *p = plan_new(256, 64, 100);
    struct mc_err err = {0};

    (void)st;
    for (int i = 0; i < STEP_ROWS; i++)
        step_row(b, 0, MC_STATE_DECODE, 10);
    assert_ok(run_plan(s, b, p, &err), err);
    mc_stepvm_close(s);
    free(b);
    free(p);
}

/* ---- other hooks, log ----------------------------------------------------------------- */

static void stepvm_evict_and_admit_answer(void **st)
{
    struct mc_stepvm *s = open_plan(
        "", "function P.evict(view, need)\n"
            "  for _, r in view:running('youngest') do\n"
            "    if need <= 0 then return end\n"
            "    local now, soon = view:preempt(r, 'drop') need = need - now - soon end end\n"
            "function P.admit(row)\n"
            "  if row.n_prompt > 1000 then return nil, 'context_length_exceeded' end\n"
            "  if row.n_prompt > 500 then return nil end\n"
            "  if row.n_prompt > 400 then return false, 'what' end\n"
            "  return true end");
    struct step_block *b = step_new(1, 0);
    struct mc_plan *p = plan_new(256, 64, 0);
    struct mc_row r = {.seq = 1, .gen = 1, .state = MC_STATE_WAITING};
    struct mc_err err = {0};
    int answer;

    (void)st;
    for (int i = 0; i < 4; i++)
        step_row(b, 0, MC_STATE_DECODE, 100);
    assert_ok(mc_stepvm_evict(s, &b->view, 3, p, state, &err), err);
    assert_int_equal(p->n, 2);
    assert_int_equal(p->item[0].seq, 4);
    assert_int_equal(p->item[0].what, MC_DROP);
    assert_ok(mc_stepvm_admit(s, &r, state, &answer, &err), err);
    assert_int_equal(answer, 0);
    r.n_prompt = 501;
    assert_ok(mc_stepvm_admit(s, &r, state, &answer, &err), err);
    assert_int_equal(answer, MC_EAGAIN);
    r.n_prompt = 1001;
    assert_ok(mc_stepvm_admit(s, &r, state, &answer, &err), err);
    assert_int_equal(answer, MC_ECTX);
    r.n_prompt = 401;
    assert_int_equal(mc_stepvm_admit(s, &r, state, &answer, &err), MC_EPOLICY);
    assert_non_null(strstr(err.text, "no error code 'what'"));
    mc_stepvm_close(s);
    free(b);
    free(p);
}

static void stepvm_log_lines_are_copied_out(void **st)
{
    (void)st;
    n_logged = 0;
    check_plan("mc.log.warn('it is', { n = 3, on = true, who = 'x', t = {} })\n"
               "mc.log.info(('y'):rep(1000)) mc.log.debug('not shown')\n");
    assert_int_equal(n_logged, 2);
    assert_int_equal(logged[0][0], '2');
    assert_non_null(strstr(logged[0], "it is "));
    assert_non_null(strstr(logged[0], " n=3"));
    assert_non_null(strstr(logged[0], " on=true"));
    assert_non_null(strstr(logged[0], " t=table"));
    assert_true(strlen(logged[1]) < 300);
}

/* What a plan over 256 rows costs, with copying in and out: printed, and far below what
 * would stall a step. */
static void stepvm_plan_over_256_rows_is_cheap(void **st)
{
    struct mc_stepvm *s;
    struct step_block *b = step_new(2, 1000);
    struct mc_plan *p = plan_new(8192, 512, 1000);
    struct mc_err err = {0};
    double best = 1e9, sum = 0;
    int rounds = 2000;

    (void)st;
    assert_ok(open_dir(NULL, &s, &err), err);
    for (int i = 0; i < 256; i++)
        step_row(b, i % 2, i < 192 ? MC_STATE_DECODE : MC_STATE_WAITING, 100);
    for (int i = 0; i < rounds; i++) {
        struct timespec t0, t1;
        double us;

        p->n = 0;
        p->tok_left = 8192, p->row_left = 512, p->page_left = 1000;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t0);
        assert_ok(run_plan(s, b, p, &err), err);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t1);
        us = (double)(t1.tv_sec - t0.tv_sec) * 1e6 + (double)(t1.tv_nsec - t0.tv_nsec) * 1e-3;
        best = us < best ? us : best;
        sum += i >= rounds / 2 ? us : 0;
    }
    print_message("plan over 256 rows: best %.1f us, mean %.1f us\n", best, sum / rounds * 2);
    assert_int_equal(p->n, 256);
#ifndef MC_SANITIZE
    assert_true(best < 250); /* half the soft budget; 9 to 15 us measured */
#endif
    mc_stepvm_close(s);
    free(b);
    free(p);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(stepvm_shows_rows_lanes_and_numbers),
    cmocka_unit_test(stepvm_plan_grants_and_budgets_move),
    cmocka_unit_test(stepvm_grants_only_what_is_there),
    cmocka_unit_test(stepvm_preempt_says_what_comes_free),
    cmocka_unit_test(stepvm_first_come_policy_in_lua_agrees_with_c),
    cmocka_unit_test(stepvm_kept_handles_are_stale),
    cmocka_unit_test(stepvm_misuse_of_any_accessor_is_an_error),
    cmocka_unit_test(stepvm_user_numbers_come_back_unless_the_hook_fails),
    cmocka_unit_test(stepvm_a_loop_over_too_many_rows_is_an_error_not_a_crash),
    cmocka_unit_test(stepvm_evict_and_admit_answer),
    cmocka_unit_test(stepvm_log_lines_are_copied_out),
    cmocka_unit_test(stepvm_plan_over_256_rows_is_cheap),
};
MC_TEST_MAIN(tests)
