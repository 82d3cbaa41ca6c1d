/* test_fair.c - the shipped fair scheduler under a flood: arrivals made up, steps simulated.
 *
 * Tenant B asks now and then; tenant A, in a lane of its own, sends a hundred times more than
 * can be served. What B waits for its first token must stay below twice what it waits alone. */
#include "tests/c/test.h"

#include <stdlib.h>
#include <string.h>

#include "core/engine/sim.h"
#include "core/mc.h"
#include "lua/host/lone.h"

enum { B_ASKS = 80, A_ASKS = 3000 };

static void add(struct mc_recording *r, uint32_t lane, double t, int32_t prompt,
                int32_t gen)
{
    struct mc_rec_req *q = &r->req[r->n_req++];

    memset(q, 0, sizeof *q);
    q->in = (struct mc_rec_arrive){.t = t,
                                   .seq = (uint32_t)r->n_req,
                                   .gen = 1,
                                   .lane = lane,
                                   .n_prompt = prompt,
                                   .limit = gen};
    q->n_gen = gen;
    q->finish = MC_FINISH_LENGTH;
}

static int by_time(const void *a, const void *b)
{
    const struct mc_rec_req *x = a, *y = b;

    return x->in.t < y->in.t ? -1 : x->in.t > y->in.t;
}

static struct mc_recording arrivals(int flood)
{
    struct mc_recording r = {
        .head = {.abi = MC_ABI, .depth = 2, .p_tokens = 64, .p_total = 400, .tok_cap = 256,
                 .row_cap = 32, .max_context = 4096}};
    uint32_t x = 7;

    for (int i = 0; i < MC_REC_LANES; i++)
        r.head.weight[i] = 1;
    r.req = calloc(B_ASKS + A_ASKS, sizeof *r.req);
    for (int i = 0; i < B_ASKS; i++) {
        x = x * 1664525u + 1013904223u;
        add(&r, 1, 1 + i * 1.0 + (x >> 16) % 500 * 1e-3, 100 + (int32_t)(x >> 20) % 400,
            30);
    }
    for (int i = 0; i < A_ASKS && flood; i++) /* all in the first seconds */
        add(&r, 0, 0.5 + i * 1e-3, 300, 60);
    qsort(r.req, (size_t)r.n_req, sizeof *r.req, by_time);
    return r;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* The 95th of a hundred waits of tenant B for a first token, in seconds. */
static double p95(const char *policy, int flood)
{
    struct mc_recording rec = arrivals(flood);
    struct mc_sim_opts o = {.rec = &rec, .host_us = 200,
                            .decode = {.us_base = 8000, .us_row = 150, .us_ktok_kv = 20},
                            .prefill = {.us_base = 1000, .us_tok = 60, .us_ktok_kv = 10}};
    struct mc_lone *lone = NULL;
    struct mc_policy p = mc_policy_builtin;
    struct mc_sim sim;
    struct mc_err err = {0};
    double wait[B_ASKS];
    int n = 0;

    if (policy) {
        assert_ok(mc_lone_open(policy, &lone, &err), err);
        p = mc_lone_policy(lone);
    }
    o.policy = &p;
    assert_ok(mc_sim_run(&o, &sim, &err), err);
    assert_false(sim.stuck);
    assert_int_equal(sim.failed, 0);
    for (int i = 0; i < rec.n_req; i++)
        if (rec.req[i].in.lane == 1) {
            assert_true(sim.req[i].t_first > 0);
            wait[n++] = sim.req[i].t_first - rec.req[i].in.t;
        }
    assert_int_equal(n, B_ASKS);
    qsort(wait, B_ASKS, sizeof *wait, by_value);
    mc_sim_free(&sim);
    mc_lone_close(lone);
    free(rec.req);
    return wait[B_ASKS * 95 / 100];
}

static void fair_scheduler_keeps_a_tenant_from_another_ones_flood(void **state)
{
    double alone = p95("sched_fair", 0), flooded = p95("sched_fair", 1);

    (void)state;
    print_message("p95 of the first token: alone %.0f ms, in a flood %.0f ms; first come "
                  "%.0f ms\n", 1e3 * alone, 1e3 * flooded, 1e3 * p95(NULL, 1));
    assert_true(flooded < 2 * alone);
    assert_true(p95(NULL, 1) > 20 * alone); /* it is the scheduler that does it */
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(fair_scheduler_keeps_a_tenant_from_another_ones_flood),
};

MC_TEST_MAIN(tests)
