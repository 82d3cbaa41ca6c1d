/* bench.c - see bench.h. Medians of calls made as the engine makes them: the view copied,
 * the gate armed, the script run, its plan copied back.
 *
 * OWNS a directory of policies while it runs. THREAD: as bench.h says. */
#include "lua/host/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/sample.h"
#include "lua/host/arena.h"
#include "lua/host/policies.h"
#include "lua/host/trial.h"

enum {
    ROWS = 256,
    WARM = 2000,
    CALLS = 2000,
    RELOADS = 20,
    RUNAWAYS = 5,
    RUNAWAY_STEP = 1 << 20
};

/* first come, first served, as shipped, but for one step in which it never ends */
static const char scheduler[] =
    "local P = { api = 1, kind = 'scheduler' }\n"
    "function P.plan(view, plan)\n"
    "  for _, row in view:running() do plan:decode(row) end\n"
    "  for _, row in view:waiting() do plan:prefill(row, 512) end\n"
    "  while view.step == 1048576 do end\n"
    "end\n"
    "return P\n";
/* looks at each of 32 candidates, as examples/sampler_no_e.lua does late in an answer */
static const char sampler[] =
    "local S = { api = 1, kind = 'sampler' }\n"
    "local stop\n"
    "function S.init() stop = mc.vocab.set('[eE]') end\n"
    "function S.chain(seq, want) return { temperature = want.temperature, keep = 32 } "
    "end\n"
    "function S.pick(c, seq)\n"
    "  for i = 1, c.n do\n"
    "    if stop:has(c:id(i)) and c:p(i) > 2 then return c:id(i) end\n"
    "  end\n"
    "  return c:draw()\n"
    "end\n"
    "return S\n";

struct bench {
    void (*add)(void *ctx, const char *name, double value, const char *unit,
                const char *mark);
    void *ctx;
    char dir[32];
    struct mc_policies *policies;
    struct mc_policy p;
    struct mc_plan plan;
    struct {
        struct mc_step_view view;
        struct mc_row row[ROWS];
        struct mc_party lane[1], tenant[1];
        int32_t order[MC_N_ORDER * ROWS];
    } step;
    double took[CALLS];
};

/* ---- a step ------------------------------------------------------------------------ */

static void make_step(struct bench *b, int n)
{
    struct mc_step_view *v = &b->step.view;

    memset(&b->step, 0, sizeof b->step);
    *v = (struct mc_step_view){.abi = MC_ABI,
                               .bytes = sizeof b->step,
                               .step = 1,
                               .now = 60,
                               .n_row = n,
                               .n_lane = 1,
                               .n_tenant = 1,
                               .n_order = MC_N_ORDER,
                               .tok_cap = 512,
                               .row_cap = ROWS,
                               .p_tokens = 64,
                               .p_total = 4096,
                               .p_free = 2048};
#define AT(member) (uint32_t)((char *)b->step.member - (char *)v)
    v->off_row = AT(row);
    v->off_lane = AT(lane);
    v->off_tenant = AT(tenant);
    v->off_order = AT(order);
#undef AT
    b->step.lane[0].weight = 1;
    for (int i = 0; i < n; i++)
        b->step.row[i] = (struct mc_row){
            .seq = (uint32_t)i + 1, .gen = 1, .state = MC_STATE_DECODE, .n_prompt = 100,
            .n_gen = i + 1, .n_max = 1000, .n_ctx = 101 + i, .p_held = 6, .p_own = 6};
    mc_view_sort(v);
}

static double plan_once(struct bench *b)
{
    struct mc_err err;
    double t0;

    b->plan = (struct mc_plan){.abi = MC_ABI, .cap = MC_PLAN_CAP, .tok_left = 512,
                               .row_left = ROWS, .page_left = 2048};
    t0 = mc_now();
    b->p.ops->plan(b->p.self, &b->step.view, &b->plan, &err);
    t0 = mc_now() - t0;
    b->p.ops->step_end(b->p.self);
    return t0;
}

/* ---- what is measured -------------------------------------------------------------- */

static void hooks(struct bench *b)
{
    static const int sizes[] = {1, 64, 256};
    char name[32];

    for (int k = 0; k < 3; k++) {
        make_step(b, sizes[k]);
        for (int i = 0; i < WARM; i++)
            plan_once(b);
        for (int i = 0; i < CALLS; i++)
            b->took[i] = plan_once(b);
        snprintf(name, sizeof name, "plan_us_%d", sizes[k]);
        b->add(b->ctx, name, mc_median(b->took, CALLS) * 1e6, "us", NULL);
        snprintf(name, sizeof name, "plan_us_%d_p99", sizes[k]);
        b->add(b->ctx, name, b->took[CALLS * 99 / 100] * 1e6, "us", NULL);
    }
}

static void sampling(struct bench *b)
{
    struct mc_cands c = {.n = 32, .drawn = 7};
    struct mc_pick_seq seq = {.seq = 1, .gen = 1, .done = 100};
    const struct mc_params want = {.temperature = 1, .top_p = 1, .ban = {-1, -1}};
    struct mc_params got;
    struct mc_err err;
    int32_t id;

    for (int i = 0; i < 32; i++) {
        c.id[i] = i + 60;
        c.p[i] = 0.03f;
    }
    for (int i = -WARM; i < CALLS; i++) {
        double t0 = mc_now();

        b->p.ops->pick(b->p.self, &c, &seq, &id, &err);
        if (i >= 0)
            b->took[i] = mc_now() - t0;
        b->p.ops->step_end(b->p.self);
    }
    b->add(b->ctx, "pick_us", mc_median(b->took, CALLS) * 1e6, "us", "5 (a token of 32)");
    for (int i = 0; i < CALLS; i++) {
        double t0 = mc_now();

        b->p.ops->chain(b->p.self, &seq, &want, &got, &err);
        b->took[i] = mc_now() - t0;
        b->p.ops->step_end(b->p.self);
    }
    b->add(b->ctx, "chain_us", mc_median(b->took, CALLS) * 1e6, "us", "(a sequence)");
}

/* From asking to the step boundary at which it serves. */
static int reloads(struct bench *b, struct mc_err *err)
{
    for (int i = 0; i < RELOADS; i++) {
        double t0 = mc_now();
        uint32_t number;
        int rc = mc_policies_reload(b->policies, &number, err);

        if (rc < 0)
            return rc;
        while (b->p.ops->generation(b->p.self) != number)
            b->p.ops->step_end(b->p.self);
        b->took[i] = mc_now() - t0;
    }
    b->add(b->ctx, "reload_ms", mc_median(b->took, RELOADS) * 1e3, "ms", "1000");
    return 0;
}

/* A plan that never ends: how long the step waits for the built-in one, and for how long
 * after that no script serves. */
static void runaways(struct bench *b)
{
    double back[RUNAWAYS];

    for (int i = 0; i < RUNAWAYS; i++) {
        double t0;
        uint64_t lost;
        struct mc_policies_status st;

        make_step(b, 64);
        b->step.view.step = RUNAWAY_STEP;
        b->took[i] = plan_once(b);
        b->step.view.step = 1;
        mc_policies_status(b->policies, &st);
        lost = st.hook[MC_HOOK_PLAN].calls;
        t0 = mc_now();
        do {
            usleep(200);
            plan_once(b);
            mc_policies_status(b->policies, &st);
        } while (st.hook[MC_HOOK_PLAN].calls == lost && mc_now() - t0 < 10);
        back[i] = mc_now() - t0;
    }
    b->add(b->ctx, "runaway_ms", mc_median(b->took, RUNAWAYS) * 1e3, "ms", "250");
    b->add(b->ctx, "runaway_back_ms", mc_median(back, RUNAWAYS) * 1e3, "ms", NULL);
}

static int memory(struct bench *b, struct mc_err *err)
{
    enum { VMS = 8 };
    struct mc_sets sets = {.vocab = mc_vocab_bytes()};
    const struct mc_step_opts o = {.sets = &sets, .log = mc_step_quiet};
    struct mc_stepvm *vm[VMS] = {NULL};
    struct mc_generation *g;
    double before;
    int rc = mc_generation_open(NULL, &g, err), n = 0;

    if (rc < 0)
        return rc;
    before = mc_resident_bytes();
    for (; n < VMS && rc == 0; n++)
        rc = mc_trial_open(&o, g, &vm[n], err);
    if (rc == 0) {
        b->add(b->ctx, "step_vm_heap_kb", (double)mc_arena_used(vm[0]->vm->arena) / 1024,
               "KB", NULL);
        b->add(b->ctx, "step_vm_rss_kb", (mc_resident_bytes() - before) / VMS / 1024,
               "KB", NULL);
    }
    for (int i = 0; i < n; i++)
        mc_stepvm_close(vm[i]);
    mc_sets_fini(&sets);
    mc_generation_unref(g);
    return rc;
}

/* ---- all --------------------------------------------------------------------------- */

static int put(const char *dir, const char *name, const char *text, struct mc_err *err)
{
    char path[64];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f) || chmod(path, 0644))
        return mc_fail(err, MC_EIO, "%s can't be written", path);
    return 0;
}

static void clear(const char *dir)
{
    static const char *const files[] = {"/init.lua", "/s.lua", "/t.lua", ""};
    char path[64];

    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s%s", dir, files[i]);
        remove(path);
    }
}

int mc_lua_bench(void (*add)(void *ctx, const char *name, double value, const char *unit,
                             const char *mark), void *ctx, struct mc_err *err)
{
    struct bench *b = calloc(1, sizeof *b);
    struct mc_policies_opts o = {.no_watch = true, .vocab = mc_vocab_bytes()};
    int rc = 0;

    if (!b)
        return mc_fail(err, MC_ENOMEM, "no memory to measure");
    b->add = add;
    b->ctx = ctx;
    strcpy(b->dir, "/tmp/mascon-bench-XXXXXX");
    if (!mkdtemp(b->dir))
        rc = mc_fail(err, MC_EIO, "no directory in /tmp");
    if (rc == 0)
        rc = put(b->dir, "s.lua", scheduler, err);
    if (rc == 0)
        rc = put(b->dir, "t.lua", sampler, err);
    if (rc == 0)
        rc = put(b->dir, "init.lua", "return { scheduler = 's', sampler = 't' }", err);
    o.dir = b->dir;
    if (rc == 0)
        rc = mc_policies_open(&o, &b->policies, err);
    if (rc == 0) {
        b->p = mc_policies_policy(b->policies);
        hooks(b);
        sampling(b);
        rc = reloads(b, err);
    }
    if (rc == 0) {
        runaways(b);
        rc = memory(b, err);
    }
    mc_policies_close(b->policies);
    clear(b->dir);
    free(b);
    return rc;
}
