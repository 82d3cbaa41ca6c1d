/* test_fuzz_script.c - step VMs under a script that does at random whatever a script can
 * do with what hooks are handed: Lua errors only, and a plan that holds.
 *
 * LONG=1 in the environment runs twenty times as many; FUZZ_SEED=n begins there. */
#include "tests/c/test.h"

#include <lauxlib.h>

#include "lua/host/embed.h"
#include "lua/host/limit.h"
#include "tests/c/stepvm_util.h"

enum { OPS = 2000, SEEDS = 12, ALLOCS = 60 };

static int times(int n)
{
    return getenv("LONG") ? n * 20 : n;
}

static unsigned first_seed(void)
{
    const char *s = getenv("FUZZ_SEED");

    return s ? (unsigned)strtoul(s, NULL, 10) : 1;
}

/* ---- the script -------------------------------------------------------------------- */

/* Every field and method of the reference, as Lua strings. */
static void put_names(FILE *f)
{
    for (const struct mc_embed *e = mc_embedded; e->path; e++) {
        char name[64];

        if (strncmp(e->path, "lua/mc/meta/", 12) != 0)
            continue;
        for (const char *p = e->text; *p; p = strchr(p, '\n') + 1) {
            if (sscanf(p, "---@field %63[a-z_]", name) == 1 ||
                sscanf(p, "function %*[A-Za-z]:%63[a-z_]", name) == 1)
                fprintf(f, "'%s', ", name);
            if (!strchr(p, '\n'))
                break;
        }
    }
}

static char *read_fuzz(void)
{
    FILE *f = fopen("tests/policy/fuzz.lua", "r");
    char *text = calloc(1, 16384);

    assert_non_null(f);
    assert_true(fread(text, 1, 16383, f) > 1000);
    fclose(f);
    return text;
}

/* A scheduler and a sampler; handles of earlier calls stay among what is tried. */
static const char body[] =
    "local kept, skip = {}, {}\n"
    "local function pool(...)\n"
    "  local t = { mc, mc.vocab, mc.log, mc.metrics, mc.config, string, table, math, ... "
    "}\n"
    "  for i = 1, #kept do t[#t + 1] = kept[i] end\n"
    "  return t\n"
    "end\n"
    "local function keep(v) kept[#kept % 40 + 1] = v end\n"
    "for _, lib in ipairs { mc.log } do\n" /* they would fill the log */
    "  for _, k in ipairs { 'debug', 'info', 'warn', 'error' } do skip[lib[k]] = true "
    "end\n"
    "end\n"
    "skip[string.rep] = true\n" /* gigabytes of it are the arena's test */
    "local n = 0\n"
    "local P = { api = 1, kind = KIND, state = { a = 1 } }\n"
    "if KIND == 'scheduler' then\n"
    "  P.why = { 'x', 'y' }\n"
    "  function P.plan(view, plan)\n"
    "    n = n + 1\n"
    "    for _, r in view:running() do keep(r) keep(r.user) break end\n"
    "    for _, l in view:lanes() do keep(l) break end\n"
    "    keep((select(2, view:running())))\n"
    "    FUZZ.run(view.step * 1000 + n, OPS, NAMES, pool(view, plan, view, plan, "
    "view.state,\n"
    "      view.decode), skip)\n"
    "  end\n"
    "  function P.evict(view) FUZZ.run(view.step, 200, NAMES, pool(view), skip) end\n"
    "  function P.admit(row) FUZZ.run(row.seq, 200, NAMES, pool(row), skip) return true "
    "end\n"
    "else\n"
    "  local set = mc.vocab.set('[eE]')\n"
    "  function P.chain(seq, want)\n"
    "    FUZZ.run(seq.id, 400, NAMES, pool(seq, want, set), skip)\n"
    "    return { ban = set, temperature = 1 }\n"
    "  end\n"
    "  function P.pick(cands, seq)\n"
    "    keep(cands) keep(seq)\n"
    "    FUZZ.run(seq.id, OPS, NAMES, pool(cands, seq, set, seq.state, seq.want), skip)\n"
    "    return cands:draw()\n"
    "  end\n"
    "end\n"
    "return P\n";

static struct mc_stepvm *open_fuzz(int ops, bool no_jit)
{
    char *fuzz = read_fuzz(), *dir = dir_new(), path[128];
    struct mc_step_opts o;
    struct mc_generation *g;
    struct mc_stepvm *s;
    struct mc_err err = {0};

    for (int i = 0; i < 2; i++) {
        FILE *f;

        snprintf(path, sizeof path, "%s/%s.lua", dir, i ? "t" : "s");
        f = fopen(path, "w");
        fprintf(f, "%s\nlocal KIND, OPS = '%s', %d\nlocal NAMES = { ", fuzz,
                i ? "sampler" : "scheduler", ops);
        put_names(f);
        fprintf(f, "'n' }\n%s", body);
        fclose(f);
        chmod(path, 0644);
    }
    dir_write(dir, "init.lua", "return { scheduler = 's', sampler = 't' }");
    o = opts();
    o.no_jit = no_jit;
    assert_ok(mc_generation_open(dir, &g, &err), err);
    assert_ok(mc_stepvm_open(&o, g, &s, NULL, 0, &err), err);
    mc_generation_unref(g);
    s->opts.hook_us = 120000000;
    dir_free(dir);
    free(fuzz);
    return s;
}

static struct step_block *some_step(unsigned seed)
{
    struct step_block *b = step_new(1 + (int)(seed % 4), (int)(seed % 60));

    for (unsigned i = 0; i < 3 + seed % 20; i++)
        step_row(b, (int)(i % (unsigned)b->view.n_lane), (int)(1 + (seed + i) % 4),
                 1 + (int)(seed * 37 + i * 91) % 900);
    b->view.step = seed;
    return b;
}

/* Each row once, in the view, within the budgets. */
static void check_plan_holds(const struct step_block *b, const struct mc_plan *p,
                             int tokens, int rows)
{
    char seen[STEP_ROWS + 1] = {0};

    assert_in_range(p->n, 0, MC_PLAN_CAP);
    assert_in_range(p->tok_left, 0, tokens);
    assert_in_range(p->row_left, 0, rows);
    assert_true(p->page_left >= 0);
    for (int i = 0; i < p->n; i++) {
        const struct mc_item *it = &p->item[i];

        assert_in_range(it->seq, 1, (unsigned)b->view.n_row);
        assert_int_equal(it->gen, 1);
        assert_in_range(it->what, MC_RUN, MC_FAIL);
        assert_false(seen[it->seq]);
        seen[it->seq] = 1;
        assert_true(it->why <= 2 && it->draft >= 0);
        if (it->what == MC_RUN)
            assert_in_range(it->n, 1, tokens);
    }
}

/* ---- tests ------------------------------------------------------------------------- */

static void fuzz_scheduler_hooks_give_lua_errors_only(void **st)
{
    struct mc_stepvm *s = open_fuzz(OPS, false);
    struct mc_plan *p = plan_new(256, 64, 100);
    double keep[MC_N_STATE] = {0};

    (void)st;
    for (unsigned i = 0, seed = first_seed(); i < (unsigned)times(SEEDS); i++, seed++) {
        struct step_block *b = some_step(seed);
        struct mc_err err = {0};
        int answer;

        *p = (struct mc_plan){.abi = MC_ABI, .cap = MC_PLAN_CAP, .tok_left = 256,
                              .row_left = 64, .page_left = (int32_t)(seed % 60)};
        if (mc_stepvm_plan(s, &b->view, p, keep, &err) < 0)
            fail_msg("seed %u: %s", seed, err.text);
        check_plan_holds(b, p, 256, 64);
        *p = (struct mc_plan){.abi = MC_ABI, .cap = MC_PLAN_CAP, .tok_left = 256,
                              .row_left = 64};
        if (mc_stepvm_evict(s, &b->view, 3, p, keep, &err) < 0 ||
            mc_stepvm_admit(s, &b->row[0], keep, &answer, &err) < 0)
            fail_msg("seed %u: %s", seed, err.text);
        free(b);
    }
    mc_stepvm_close(s);
    free(p);
}

static void fuzz_sampler_hooks_give_lua_errors_only(void **st)
{
    struct mc_stepvm *s = open_fuzz(OPS, false);
    struct mc_cands c = {.n = 5, .drawn = 3};

    (void)st;
    for (int i = 0; i < 5; i++)
        c.id[i] = i + 1;
    for (unsigned i = 0, seed = first_seed(); i < (unsigned)times(SEEDS); i++, seed++) {
        struct mc_pick_seq seq = {
            .seq = seed, .gen = 1, .done = 4, .n_tail = 2, .tail = {3, 4}};
        struct mc_params want = {.top_p = 1, .ban = {-1, -1}}, got;
        struct mc_err err = {0};
        int32_t id;

        if (mc_stepvm_chain(s, &seq, &want, &got, &err) < 0 ||
            mc_stepvm_pick(s, &c, &seq, &id, &err) < 0)
            fail_msg("seed %u: %s", seed, err.text);
        assert_int_equal(id, 3);
    }
    mc_stepvm_close(s);
}

/* ---- the k-th allocation fails ----------------------------------------------------- */

static struct {
    lua_Alloc alloc;
    long left; /* allocations until one fails; then every third */
    long failed;
} failing;

/* As the VM's own does when the arena is full: compiled code is left by a jump, the
 * interpreter raises. */
static void *fail_some(void *ud, void *p, size_t old, size_t n)
{
    const struct mc_vm *vm = ud;

    if (n <= old || --failing.left >= 0 || failing.left % 3 != 0)
        return failing.alloc(ud, p, old, n);
    failing.failed++;
    if (vm->jit)
        mc_limit_leave(MC_LIMIT_MEMORY);
    return NULL;
}

static void fuzz_a_failing_allocator_gives_lua_errors_only(void **st)
{
    struct mc_plan *p = plan_new(256, 64, 100);
    int lost = 0, lived = 0;

    (void)st;
    failing.failed = 0;
    for (int k = 0; k < times(ALLOCS); k++) {
        struct mc_stepvm *s = open_fuzz(150, k % 3 != 0);
        struct step_block *b = some_step((unsigned)k + 1);
        double keep[MC_N_STATE] = {0};
        struct mc_err err = {0};
        void *ud;
        int rc;

        failing.alloc = lua_getallocf(s->vm->L, &ud);
        failing.left = k * 7;
        lua_setallocf(s->vm->L, fail_some, ud);
        *p = (struct mc_plan){.abi = MC_ABI, .cap = MC_PLAN_CAP, .tok_left = 256,
                              .row_left = 64, .page_left = 60};
        rc = mc_stepvm_plan(s, &b->view, p, keep, &err);
        if (rc < 0 && rc != MC_ENOMEM && rc != MC_EPOLICY)
            fail_msg("allocation %d: %s", k, err.text);
        if (rc == 0)
            check_plan_holds(b, p, 256, 64);
        lost += s->vm->lost != 0;
        lived += !s->vm->lost;
        if (!s->vm->lost)
            lua_setallocf(s->vm->L, failing.alloc, ud);
        mc_stepvm_close(s);
        free(b);
    }
    print_message("%ld allocations failed, %d VMs were given up, %d went on\n",
                  failing.failed, lost, lived);
    assert_true(failing.failed > ALLOCS && lived > ALLOCS / 2);
    free(p);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(fuzz_scheduler_hooks_give_lua_errors_only),
    cmocka_unit_test(fuzz_sampler_hooks_give_lua_errors_only),
    cmocka_unit_test(fuzz_a_failing_allocator_gives_lua_errors_only),
};
MC_TEST_MAIN(tests)
