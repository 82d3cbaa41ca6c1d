/* test_cuda_moe.c - route and moe on emulated CUDA. The router against the oracle, whose
 * logits are the same sums in another order: choices are equal where scores are no closer
 * than that. A row's experts against glu and linear of the same backend, one expert at a
 * time, to the bit: neither lists, nor pieces, nor the batch have a part in a result. */
#include "tests/c/test.h"

#include "tests/c/cuda_help.h"

/* ---- route ------------------------------------------------------------------------- */

struct route_case {
    int32_t rows, e, k, top_k, n_group, topk_group;
    bool softmax, bias, norm;
};

struct lists {
    int32_t *ids, *offset, *order;
    float *weights;
};

static struct lists lists_new(int32_t places, int32_t e)
{
    return (struct lists){malloc((size_t)places * 4), malloc((size_t)(e + 1) * 4),
                          malloc((size_t)places * 4), malloc((size_t)places * 4)};
}

static void lists_free(struct lists *l)
{
    free(l->ids), free(l->offset), free(l->order), free(l->weights);
}

static void run_route(struct kern *k, struct mc_route_p p, const struct lists *l)
{
    p.ids = l->ids, p.offset = l->offset, p.order = l->order, p.weights = l->weights;
    p.scratch = malloc((size_t)(p.cap * p.w.n) * 4);
    kern_run(k, route, p);
    free(p.scratch);
}

static void check_route(struct kern *cu, struct kern *ref, const struct route_case *c,
                        uint64_t *seed)
{
    struct mc_disk d = ops_disk(&ops_fmts[2], c->e, c->k, seed);
    struct mc_w w = ops_pack(cu, &d), wr = ops_pack(ref, &d);
    int32_t n = c->rows * c->top_k, rows = c->rows, one = 1;
    struct lists got = lists_new(n, c->e), want = lists_new(n, c->e),
                 alone = lists_new(c->top_k, c->e);
    float *xf, bias[1024];
    uint16_t *x = randoms((int64_t)rows * c->k, &xf, seed);
    struct mc_route_p p = {.n_live = &rows, .cap = rows + 3, .top_k = c->top_k,
                           .bias = c->bias ? bias : NULL, .n_group = c->n_group,
                           .topk_group = c->topk_group, .softmax = c->softmax,
                           .norm = c->norm, .factor = 2.5f};

    for (int32_t i = 0; i < c->e; i++)
        bias[i] = kern_randn(seed) * 0.1f;
    for (int32_t i = 0; i < rows * c->k; i++) /* scores apart, not all at 0 or 1 */
        x[i] = mc_bf16_of_f32(xf[i] * 0.1f), xf[i] = mc_f32_of_bf16(x[i]);
    p.x = x, p.w = w;
    run_route(cu, p, &got);
    p.x = xf, p.w = wr;
    run_route(ref, p, &want);
    assert_memory_equal(got.ids, want.ids, (size_t)n * 4);
    for (int32_t i = 0; i < n; i++)
        assert_true(fabsf(got.weights[i] - want.weights[i]) <=
                    1e-5f * (1 + want.weights[i]));
    assert_memory_equal(got.offset, want.offset, (size_t)(c->e + 1) * 4);
    assert_memory_equal(got.order, want.order, (size_t)n * 4);
    p.w = w, p.n_live = &one, p.cap = 1;
    for (int32_t t = 0; t < rows; t += 7) {
        p.x = x + (int64_t)t * c->k;
        run_route(cu, p, &alone);
        assert_memory_equal(alone.ids, got.ids + t * c->top_k, (size_t)c->top_k * 4);
        assert_memory_equal(alone.weights, got.weights + t * c->top_k,
                            (size_t)c->top_k * 4);
    }
    free(x), free(xf);
    lists_free(&got), lists_free(&want), lists_free(&alone);
    ops_w_free(&w), ops_w_free(&wr);
    ops_disk_free(&d);
}

static void cuda_route_picks_as_the_oracle(void **state)
{
    static const struct route_case cases[] = {
        {1, 8, 64, 2, 1, 1, false, true, true},
        {7, 16, 96, 4, 0, 0, false, false, false},
        {30, 40, 96, 6, 4, 2, false, true, true},
        {9, 256, 64, 8, 8, 4, false, true, true},
        {5, 9, 64, 9, 1, 1, true, false, true},
        {66, 384, 32, 8, 1, 1, true, false, false},
    };
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);
    uint64_t seed = 71;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_route(&cu, &ref, &cases[i], &seed);
    kern_close(&cu);
    kern_close(&ref);
}

/* Equal experts: the lowest ids, in rising order; a row of NaNs goes somewhere too. */
static void cuda_route_ties_go_to_the_lowest_id(void **state)
{
    struct kern cu = cuda_open();
    uint16_t x[64] = {0}, w[40 * 32];
    struct mc_disk d = {.fmt = MC_D_BF16, .n = 40, .k = 32, .q = w};
    struct lists l = lists_new(10, 40);
    int32_t rows = 2;

    (void)state;
    for (int32_t i = 0; i < 40 * 32; i++)
        w[i] = mc_bf16_of_f32((float)i);
    for (int32_t i = 32; i < 64; i++)
        x[i] = 0x7fc0;
    struct mc_w m = ops_pack(&cu, &d);
    run_route(&cu,
              (struct mc_route_p){.n_live = &rows,
                                  .cap = 2,
                                  .x = x,
                                  .w = m,
                                  .top_k = 5,
                                  .n_group = 4,
                                  .topk_group = 2,
                                  .factor = 1},
              &l);
    for (int32_t i = 0; i < 5; i++) {
        assert_int_equal(l.ids[i], i);
        assert_true(l.weights[i] == 0.5f);
        assert_in_range(l.ids[5 + i], 0, 39);
    }
    ops_w_free(&m);
    lists_free(&l);
    kern_close(&cu);
}

/* ---- moe --------------------------------------------------------------------------- */

enum { E = 6, TOP = 3 };

static struct mc_ws stack(struct kern *cu, const struct kind *q, int32_t n, int32_t k,
                          uint64_t *seed)
{
    struct mc_ws s = {.n = E};

    for (int32_t e = 0; e < E; e++) {
        struct mc_disk d = disk_of(q, n, k, seed);
        struct mc_pack_p p = {.disk = d, .w = {.layout = cu->b->run_of(cu->b, d.fmt),
                                               .n = n, .k = k}};
        struct mc_need need;
        const char *why = "";

        p.disk.global *= (float)(1 + e); /* NVFP4: each matrix has its own */
        assert_int_equal(cu->b->op[MC_OP_pack]->need(&p, &need, &why), 0);
        if (e == 0) {
            s.w = p.w;
            s.q_step = (int64_t)(need.q + 63) / 64 * 64;
            s.scale_step = (int64_t)(need.scale + 63) / 64 * 64;
            s.zero_step = (int64_t)(need.zero + 63) / 64 * 64;
            s.w.q = malloc((size_t)s.q_step * E);
            s.w.scale = malloc((size_t)s.scale_step * E + 1);
            s.w.zero = malloc((size_t)s.zero_step * E + 1);
        }
        p.w = mc_ws_at(&s, e);
        kern_run(cu, pack, p);
        ops_disk_free(&d);
    }
    return s;
}

/* Experts 0..E-2, the first far more often: its rows fill several pieces. */
static void choose(int32_t rows, const struct lists *l, uint64_t *seed)
{
    int32_t at = 0;

    for (int32_t t = 0; t < rows; t++)
        for (int32_t i = 0; i < TOP; i++)
            l->ids[t * TOP + i] = i == 0 && t % 4
                                      ? 0
                                      : (t + i +
                                         (int32_t)(kern_rand(seed) % 2) * 3 * (i == 0)) %
                                            (E - 1);
    for (int32_t t = 0; t < rows; t++) /* all different in a row */
        for (int32_t i = 1; i < TOP; i++)
            for (int32_t j = 0; j < i; j++)
                if (l->ids[t * TOP + i] == l->ids[t * TOP + j])
                    l->ids[t * TOP + i] = (l->ids[t * TOP + i] + 1) % (E - 1), j = -1;
    for (int32_t e = 0; e < E; e++) {
        l->offset[e] = at;
        for (int32_t i = 0; i < rows * TOP; i++)
            if (l->ids[i] == e)
                l->order[at++] = i;
    }
    l->offset[E] = at;
    for (int32_t i = 0; i < rows * TOP; i++)
        l->weights[i] = 0.1f + 0.01f * (float)(kern_rand(seed) % 100);
}

static void row_by_parts(struct kern *cu, const struct mc_moe_p *p, int32_t t, float *y)
{
    int32_t h = p->down.w.n, one = 1;
    struct mc_act mid = ops_act(MC_A_BF16, 1, p->mid.k), x = p->act;
    float *part = malloc((size_t)h * 4), g = 1;

    x.x = (uint16_t *)x.x + (int64_t)t * x.k;
    memset(y, 0, (size_t)h * 4);
    for (int32_t i = 0; i < TOP; i++) {
        int32_t e = p->ids[t * TOP + i];

        kern_run(cu, glu,
                 {.n_live = &one,
                  .cap = 1,
                  .act = x,
                  .gate = mc_ws_at(&p->gate, e),
                  .up = mc_ws_at(&p->up, e),
                  .out = mid});
        kern_run(cu, linear, {.n_live = &one, .cap = 1, .n_w = 1, .act = mid,
                              .w = {mc_ws_at(&p->down, e)}, .y = {part}, .pitch = {h},
                              .y_dt = MC_F32});
        for (int32_t c = 0; c < h; c++)
            y[c] += p->weights[t * TOP + i] * part[c];
    }
    if (p->add_gate)
        g = 1 / (1 + expf(-as_f32(p->add_gate, t)));
    for (int32_t c = 0; c < h && p->add; c++)
        y[c] += as_f32(p->add, (int64_t)t * h + c) * g;
    free(part);
    ops_act_free(&mid);
}

static void check_moe(struct kern *cu, const struct kind *q, int32_t h, int32_t inner,
                      int32_t rows, int how, uint64_t *seed)
{
    struct mc_ws gate = stack(cu, q, inner, h, seed), up = stack(cu, q, inner, h, seed),
                 down = stack(cu, q, h, inner, seed);
    struct lists l = lists_new(rows * TOP, E);
    float *xf, *addf, *gatef, *want = malloc((size_t)h * 4);
    uint16_t *x = randoms((int64_t)rows * h, &xf, seed),
             *add = randoms((int64_t)rows * h, &addf, seed),
             *add_gate = randoms(rows, &gatef, seed), *y = malloc((size_t)(rows * h) * 2),
             *mid = malloc((size_t)(rows * TOP * inner) * 2);
    struct mc_moe_p p = {.n_live = &rows,
                         .cap = rows + 1,
                         .top_k = TOP,
                         .act = {.x = x, .k = h, .layout = MC_A_BF16},
                         .ids = l.ids,
                         .offset = l.offset,
                         .order = l.order,
                         .weights = l.weights,
                         .gate = gate,
                         .up = up,
                         .down = down,
                         .mid = {.x = mid, .k = inner, .layout = MC_A_BF16},
                         .add = how > 0 ? add : NULL,
                         .add_gate = how > 1 ? add_gate : NULL,
                         .y = y,
                         .scratch = malloc((size_t)(rows * TOP * h) * 4)};

    choose(rows, &l, seed);
    kern_run(cu, moe, p);
    for (int32_t t = 0; t < rows; t += rows > 20 ? 9 : 1) {
        row_by_parts(cu, &p, t, want);
        for (int32_t c = 0; c < h; c++)
            if (y[t * h + c] != mc_bf16_of_f32(want[c]))
                fail_msg("%s %d rows how %d: y[%d,%d] is %.9g, want %.9g", q->fmt, rows,
                         how, t, c, as_f32(y, t * h + c), want[c]);
    }
    free(x), free(xf), free(add), free(addf), free(add_gate), free(gatef), free(want);
    free(y), free(mid), free(p.scratch);
    lists_free(&l);
    ops_w_free(&gate.w), ops_w_free(&up.w), ops_w_free(&down.w);
}

static void cuda_moe_is_glu_and_linear_of_each_expert(void **state)
{
    static const int32_t rows_of[] = {1, 5, 28, 70};
    static const struct {
        int32_t kind, h, inner;
    } cases[] = {{0, 192, 96}, {1, 160, 64}, {3, 256, 128}, {4, 128, 192}, {6, 192, 64},
                 {0, 96, 32}, {6, 64, 320}};
    struct kern cu = cuda_open();
    uint64_t seed = 83;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_moe(&cu, &kinds[cases[i].kind], cases[i].h, cases[i].inner,
                  rows_of[i % 4], (int)i % 3, &seed);
    kern_close(&cu);
}

static void cuda_moe_refuses_by_name(void **state)
{
    struct kern cu = cuda_open();
    struct mc_w w = {.layout = MC_W_BF16, .n = 64, .k = 64};
    struct mc_moe_p p = {.top_k = 2, .cap = 1, .act = {.k = 64, .layout = MC_A_BF16},
                         .mid = {.k = 64, .layout = MC_A_BF16}, .gate = {.w = w, .n = 4},
                         .up = {.w = w, .n = 4}, .down = {.w = w, .n = 4}};

    (void)state;
    assert_null(kern_refuses(&cu, moe, p));
    p.up.w.layout = MC_W_I4;
    assert_non_null(strstr(kern_refuses(&cu, moe, p), "different formats"));
    p.up.w.layout = MC_W_BF16;
    p.mid.k = 32;
    assert_non_null(strstr(kern_refuses(&cu, moe, p), "columns"));
    kern_close(&cu);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(cuda_route_picks_as_the_oracle),
    cmocka_unit_test(cuda_route_ties_go_to_the_lowest_id),
    cmocka_unit_test(cuda_moe_is_glu_and_linear_of_each_expert),
    cmocka_unit_test(cuda_moe_refuses_by_name),
};

MC_TEST_MAIN(tests)
