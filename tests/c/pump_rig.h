/* pump_rig.h - an HTTP server whose every request the pump answers, over a double of the
 * engine: what the pump's tests start from. */
#ifndef MC_PUMP_RIG_H
#define MC_PUMP_RIG_H

#include "core/serve/pump.h"
#include "tests/c/client.h"
#include "tests/c/fake_engine.h"

enum { MAX_N = 8 };

/* Every request is answered by the pump as the fields say. */
struct rig {
    struct mc_engine *engine;
    struct mc_pump *pump;
    struct mc_http *http;
    uint16_t port;
    struct mc_pump_opts o;
    struct mc_pump_prompt prompt[2];
    int n;
    int32_t limit;
    const char *stop;
    atomic_int n_done, n_gone;
};

static struct rig rig;

static void on_done(void *ctx)
{
    mc_req_done(ctx);
    atomic_fetch_add(&rig.n_done, 1);
}

static int on_request(void *self, struct mc_req *r, struct mc_err *err)
{
    static const int32_t prompt_ids[5] = {1, 2, 3, 4, 5};
    size_t stop_len = rig.stop ? strlen(rig.stop) : 0;
    struct mc_gen_opts o = {.stop = &rig.stop, .stop_len = &stop_len, .n_stop = rig.stop != NULL};
    struct mc_pump_job *j = mc_pump_job(rig.pump, r, &rig.o);
    struct mc_gen *gen[MAX_N];
    int rc;

    (void)self;
    assert_non_null(j);
    o.req.ids = prompt_ids;
    o.req.limit = rig.limit;
    o.req.n_top = rig.o.n_logprobs;
    for (int i = 0; i < rig.n; i++) {
        o.req.n_ids = rig.prompt[i / (rig.n / rig.o.n_prompts)].n_ids;
        rc = mc_gen_open(rig.engine, &o, mc_pump_ring, j, &gen[i], err);
        if (rc < 0) {
            while (i-- > 0)
                mc_gen_close(gen[i]);
            mc_pump_drop(j);
            return rc;
        }
    }
    mc_pump_start(j, gen, rig.n, on_done, r);
    return 0;
}

static void on_gone(void *self, struct mc_req *r)
{
    (void)self;
    atomic_fetch_add(&rig.n_gone, 1);
    mc_pump_gone(rig.pump, r);
}

static const struct mc_edge_ops ops = {on_request, on_gone};

static int setup(void **state)
{
    static const int32_t ids[2][3] = {{7, 8, 9}, {10, 11, 12}};
    struct mc_http_opts h = {.edge = &ops};
    struct mc_err err;

    (void)state;
    memset(&rig, 0, sizeof rig);
    rig.engine = fake_open();
    rig.prompt[0] = (struct mc_pump_prompt){.ids = ids[0], .n_ids = 3};
    rig.prompt[1] = (struct mc_pump_prompt){.ids = ids[1], .n_ids = 2};
    rig.o = (struct mc_pump_opts){.stream = true, .n_logprobs = -1, .model = "m\"1",
                                  .id = "id-1", .prompts = rig.prompt, .n_prompts = 1};
    rig.n = 1;
    rig.limit = -1;
    assert_ok(mc_pump_open(mc_engine_tok(rig.engine), &rig.pump, &err), err);
    assert_ok(mc_http_open(&h, &rig.http, &err), err);
    rig.port = mc_http_port(rig.http);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    mc_pump_close(rig.pump);
    mc_http_close(rig.http);
    fake_close(rig.engine);
    return 0;
}

#define rig_test(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

#endif
