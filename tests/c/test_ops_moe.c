/* test_ops_moe.c - route and moe of every CPU body against what they are made of: a row's
 * experts by glu and linear of the same body, one at a time, to the bit; the router's choice
 * by plain loops. So neither the lists by expert nor the batch have a part in a result. */
#include "tests/c/test.h"

#include "tests/c/ops.h"

/* ---- route ------------------------------------------------------------------------- */

struct route_case {
    int32_t rows, e, k, top_k, n_group, topk_group;
    bool softmax, bias, norm;
};

/* Scores in double; equal to the body's up to err. */
static void want_scores(const struct route_case *c, const float *x, const float *w,
                        double *s)
{
    double sum = 0, max = -1e30;
    int32_t e, i;

    for (e = 0; e < c->e; e++) {
        for (s[e] = 0, i = 0; i < c->k; i++)
            s[e] += (double)x[i] * w[e * c->k + i];
        max = fmax(max, s[e]);
    }
    for (e = 0; e < c->e; e++)
        sum += s[e] = c->softmax ? exp(s[e] - max) : 1 / (1 + exp(-s[e]));
    for (e = 0; e < c->e && c->softmax; e++)
        s[e] /= sum;
}

/* How much the two best biased scores of e's group make. */
static double group_sum(const struct route_case *c, const double *pick, int32_t e)
{
    int32_t n = c->e / c->n_group, g = e / n, i;
    double a = -1e30, b = -1e30;

    for (i = g * n; i < (g + 1) * n; i++) {
        if (pick[i] > a)
            b = a, a = pick[i];
        else if (pick[i] > b)
            b = pick[i];
    }
    return a + b;
}

/* Chosen experts may be no worse than the others, up to err; weights follow from scores. */
static void check_row(const char *what, const struct route_case *c, const double *s,
                      const float *bias, const int32_t *ids, const float *weights,
                      float factor)
{
    const double err = 1e-5;
    double pick[256], sum = 0, least = 1e30, low_group = 1e30;
    bool in[256] = {false}, group[64] = {false};
    int32_t i, e, n_groups = 0, each = c->n_group > 1 ? c->e / c->n_group : c->e;

    for (e = 0; e < c->e; e++)
        pick[e] = s[e] + (c->bias ? bias[e] : 0);
    for (i = 0; i < c->top_k; i++) {
        e = ids[i];
        assert_true(e >= 0 && e < c->e && !in[e]);
        in[e] = true;
        n_groups += !group[e / each];
        group[e / each] = true;
        sum += s[e];
        assert_true(i == 0 || pick[e] <= pick[ids[i - 1]] + err);
        least = fmin(least, pick[e]);
        if (c->n_group > 1)
            low_group = fmin(low_group, group_sum(c, pick, e));
    }
    assert_true(c->n_group <= 1 || n_groups <= c->topk_group);
    for (e = 0; e < c->e; e++)
        if (!in[e] && pick[e] > least + err && (c->n_group <= 1 || group[e / each]))
            fail_msg("%s: expert %d was passed over", what, e);
    for (e = 0; e < c->e && c->n_group > 1 && n_groups == c->topk_group; e++)
        assert_true(group[e / each] || group_sum(c, pick, e) <= low_group + err);
    for (i = 0; i < c->top_k; i++) {
        double want = (c->norm ? s[ids[i]] / (sum + 1e-20) : s[ids[i]]) * factor;

        assert_true(fabs(weights[i] - want) <= err * (1 + want));
    }
}

static void check_route(struct kern *cpu, const struct route_case *c, uint64_t *seed)
{
    struct mc_disk d = ops_disk(&ops_fmts[0], c->e, c->k, seed);
    struct mc_w w = ops_pack(cpu, &d);
    int32_t rows = c->rows, n = rows * c->top_k, t, i;
    float *x = malloc((size_t)(rows * c->k) * 4), bias[256], one_w[64];
    float *weights = malloc((size_t)n * 4), *scratch = malloc((size_t)rows * 256 * 4);
    int32_t *ids = malloc((size_t)n * 4), *order = malloc((size_t)n * 4), offset[257];
    int32_t one_ids[64], one_offset[257], one_order[64], one = 1;
    struct mc_route_p p = {.n_live = &rows, .cap = rows, .x = x, .w = w, .top_k = c->top_k,
                           .bias = c->bias ? bias : NULL, .n_group = c->n_group,
                           .topk_group = c->topk_group, .softmax = c->softmax, .norm = c->norm,
                           .factor = 2.5f, .ids = ids, .weights = weights, .offset = offset,
                           .order = order, .scratch = scratch};

    for (i = 0; i < rows * c->k; i++)
        x[i] = kern_randn(seed) * 0.2f;
    for (i = 0; i < c->e; i++)
        bias[i] = kern_randn(seed) * 0.1f;
    kern_run(cpu, route, p);
    for (t = 0; t < rows; t++) {
        double s[256];

        want_scores(c, x + t * c->k, d.q, s);
        check_row(cpu->b->what, c, s, bias, ids + t * c->top_k, weights + t * c->top_k,
                  2.5f);
    }
    assert_int_equal(offset[0], 0);
    assert_int_equal(offset[c->e], n);
    for (i = 0; i < c->e; i++)
        for (t = offset[i]; t < offset[i + 1]; t++) {
            assert_int_equal(ids[order[t]], i);
            assert_true(t == offset[i] || order[t] > order[t - 1]);
        }
    p.n_live = &one;
    p.ids = one_ids, p.weights = one_w, p.offset = one_offset, p.order = one_order;
    for (t = 0; t < rows; t++) { /* alone */
        p.x = x + t * c->k;
        kern_run(cpu, route, p);
        assert_memory_equal(one_ids, ids + t * c->top_k, (size_t)c->top_k * 4);
        assert_memory_equal(one_w, weights + t * c->top_k, (size_t)c->top_k * 4);
    }
    free(x), free(weights), free(scratch), free(ids), free(order);
    ops_w_free(&w);
    ops_disk_free(&d);
}

static void ops_route_picks_the_best_experts(void **state)
{
    static const struct route_case cases[] = {
        {1, 8, 64, 2, 1, 1, false, true, true},      {7, 16, 96, 4, 0, 0, false, false, false},
        {130, 40, 100, 6, 4, 2, false, true, true},  {33, 256, 64, 8, 8, 4, false, true, true},
        {5, 9, 60, 9, 1, 1, true, false, true},      {99, 128, 48, 8, 1, 1, true, false, false},
    };
    struct kern cpu;
    uint64_t seed = 71;
    size_t i;

    (void)state;
    ops_each_body (cpu, 2)
        for (i = 0; i < sizeof cases / sizeof cases[0]; i++)
            check_route(&cpu, &cases[i], &seed);
}

/* Equal experts: the lowest ids, in rising order. */
static void ops_route_ties_go_to_the_lowest_id(void **state)
{
    struct kern cpu;
    float x[32] = {0}, w[40 * 32], weights[5], scratch[48];
    struct mc_disk d = {.fmt = MC_D_F32, .n = 40, .k = 32, .q = w};
    int32_t ids[5], offset[41], order[5], one = 1, i;

    (void)state;
    for (i = 0; i < 40 * 32; i++)
        w[i] = (float)i;
    ops_each_body (cpu, 1) {
        struct mc_w m = ops_pack(&cpu, &d);

        kern_run(&cpu, route, {.n_live = &one, .cap = 1, .x = x, .w = m, .top_k = 5,
                               .n_group = 4, .topk_group = 2, .factor = 1, .ids = ids,
                               .weights = weights, .offset = offset, .order = order,
                               .scratch = scratch});
        for (i = 0; i < 5; i++) {
            assert_int_equal(ids[i], i);
            assert_true(weights[i] == 0.5f);
        }
        ops_w_free(&m);
    }
}

/* ---- moe --------------------------------------------------------------------------- */

enum { E = 6, TOP = 3, CAP = 200 };

struct experts {
    struct mc_ws ws;
    struct mc_disk disk[E];
};

/* E matrices packed one behind the other. */
static struct experts experts_new(struct kern *cpu, const struct ops_fmt *f, int32_t n,
                                  int32_t k, uint64_t *seed)
{
    struct experts x = {{.n = E}, {{0}}};
    struct mc_need need;
    const char *why = "";
    int32_t e;

    for (e = 0; e < E; e++) {
        struct mc_pack_p p;

        x.disk[e] = ops_disk(f, n, k, seed);
        x.disk[e].global *= (float)(1 + e); /* NVFP4: each matrix has its own */
        p = (struct mc_pack_p){.disk = x.disk[e],
                               .w = {.layout = cpu->b->run_of(cpu->b, f->fmt), .dt = MC_F32,
                                     .n = n, .k = k}};
        assert_int_equal(cpu->b->op[MC_OP_pack]->need(&p, &need, &why), 0);
        if (e == 0) {
            x.ws.w = p.w;
            x.ws.q_step = (int64_t)(need.q + 63) / 64 * 64;
            x.ws.scale_step = (int64_t)(need.scale + 63) / 64 * 64;
            x.ws.w.q = malloc((size_t)x.ws.q_step * E);
            x.ws.w.scale = malloc((size_t)x.ws.scale_step * E + 1);
        }
        p.w = mc_ws_at(&x.ws, e);
        kern_run(cpu, pack, p);
    }
    return x;
}

static void experts_free(struct experts *x)
{
    int32_t e;

    for (e = 0; e < E; e++)
        ops_disk_free(&x->disk[e]);
    free(x->ws.w.q), free(x->ws.w.scale);
}

/* Lists as route makes them, of random choices; some experts get nothing. */
static void random_choice(int32_t rows, int32_t *ids, float *weights, int32_t *offset,
                          int32_t *order, uint64_t *seed)
{
    int32_t t, i, e, at = 0;

    for (t = 0; t < rows; t++) {
        e = (int32_t)(kern_rand(seed) % (E - 1));
        for (i = 0; i < TOP; i++, e = (e + 1 + (int32_t)(kern_rand(seed) % 2)) % (E - 1))
            ids[t * TOP + i] = e;
        if (ids[t * TOP + 2] == ids[t * TOP])
            ids[t * TOP + 2] = (ids[t * TOP + 1] + 1) % (E - 1);
    }
    for (e = 0; e < E; e++) {
        offset[e] = at;
        for (i = 0; i < rows * TOP; i++)
            if (ids[i] == e)
                order[at++] = i;
    }
    offset[E] = at;
    for (i = 0; i < rows * TOP; i++)
        weights[i] = 0.1f + 0.01f * (float)(kern_rand(seed) % 100);
}

static struct mc_act row_of(const struct mc_act *a, int32_t t)
{
    struct mc_act one = *a;

    one.x = (uint8_t *)a->x + (int64_t)t * a->k * (a->layout == MC_A_F32 ? 4 : 2);
    one.s = a->s + (int64_t)t * a->k / 32;
    one.bf = (float *)a->bf + (int64_t)t * a->k / 32;
    return one;
}

/* One row by glu and linear; alike: whether fma and two roundings are the same (portable). */
static void row_by_parts(struct kern *cpu, const struct mc_moe_p *p, int32_t t, float *y)
{
    int32_t h = p->down.w.n, one = 1, i, c;
    struct mc_act mid = ops_act(p->mid.layout, 1, p->mid.k);
    float *part = malloc((size_t)h * 4), g = 1;
    bool fused = strncmp(cpu->b->what, "portable", 8) != 0;

    for (c = 0; c < h; c++)
        y[c] = 0;
    for (i = 0; i < TOP; i++) {
        int32_t e = p->ids[t * TOP + i];
        float weight = p->weights[t * TOP + i];

        kern_run(cpu, glu, {.n_live = &one, .cap = 1, .act = row_of(&p->act, t),
                            .gate = mc_ws_at(&p->gate, e), .up = mc_ws_at(&p->up, e),
                            .out = mid});
        kern_run(cpu, linear, {.n_live = &one, .cap = 1, .n_w = 1, .act = mid,
                               .w = {mc_ws_at(&p->down, e)}, .y = {part}, .pitch = {h},
                               .y_dt = MC_F32});
        for (c = 0; c < h; c++)
            y[c] = fused ? fmaf(weight, part[c], y[c]) : weight * part[c] + y[c];
    }
    if (p->add_gate)
        g = 1 / (1 + expf(-((const float *)p->add_gate)[t]));
    for (c = 0; c < h && p->add; c++)
        y[c] += ((const float *)p->add)[t * h + c] * g;
    free(part);
    ops_act_free(&mid);
}

static void check_moe(struct kern *cpu, struct kern *ref, const struct ops_fmt *f,
                      int32_t rows, int how, uint64_t *seed)
{
    int32_t h = f->unit > 128 ? 256 : 160, inner = f->unit > 128 ? 256 : 128, i, t, c;
    struct experts gate, up, down;
    int32_t ids[CAP * TOP], offset[E + 1], order[CAP * TOP];
    float weights[CAP * TOP], add_gate[CAP], *y, *add, want[256];
    struct mc_act act, mid;
    struct mc_need need;
    const char *why = "";
    struct mc_moe_p p;

    h = f->unit == 128 ? 256 : h;
    gate = experts_new(cpu, f, inner, h, seed);
    up = experts_new(cpu, f, inner, h, seed);
    down = experts_new(cpu, f, h, inner, seed);
    act = ops_rows(ref, cpu->b->act_of(cpu->b, gate.ws.w.layout), rows, h, seed);
    mid = ops_act(act.layout, rows * TOP, inner);
    y = malloc((size_t)(rows * h) * 4);
    add = malloc((size_t)(rows * h) * 4);
    for (i = 0; i < rows * h; i++)
        add[i] = kern_randn(seed);
    for (i = 0; i < rows; i++)
        add_gate[i] = kern_randn(seed);
    random_choice(rows, ids, weights, offset, order, seed);
    p = (struct mc_moe_p){.n_live = &rows,
                          .cap = rows,
                          .top_k = TOP,
                          .act = act,
                          .ids = ids,
                          .offset = offset,
                          .order = order,
                          .weights = weights,
                          .gate = gate.ws,
                          .up = up.ws,
                          .down = down.ws,
                          .mid = mid,
                          .add = how > 0 ? add : NULL,
                          .add_gate = how > 1 ? add_gate : NULL,
                          .y = y};
    assert_int_equal(cpu->b->op[MC_OP_moe]->need(&p, &need, &why), 0);
    p.scratch = malloc(need.scratch);
    kern_run(cpu, moe, p);
    for (t = 0; t < rows; t++) {
        row_by_parts(cpu, &p, t, want);
        for (c = 0; c < h; c++) { /* the gate's exp and a fused add apart, the same bits */
            double tol = how ? 4 * OPS_U * (fabs((double)add[t * h + c]) + fabsf(want[c]))
                             : 0;

            if (!(fabs((double)y[t * h + c] - want[c]) <= tol))
                fail_msg("%s %s %d rows: y[%d,%d] is %.9g, want %.9g", cpu->b->what,
                         f->name, rows, t, c, y[t * h + c], want[c]);
        }
    }
    free(p.scratch), free(y), free(add);
    ops_act_free(&act);
    ops_act_free(&mid);
    experts_free(&gate), experts_free(&up), experts_free(&down);
}

static void ops_moe_is_glu_and_linear_of_each_expert(void **state)
{
    static const int32_t rows[] = {1, 2, 13, 200};
    struct kern cpu, ref = kern_ref(1, -1);
    uint64_t seed = 73;
    int32_t f, r;

    (void)state;
    ops_each_body (cpu, 2)
        for (f = 0; f < OPS_N_FMT; f++)
            for (r = 0; r < 4; r++)
                check_moe(&cpu, &ref, &ops_fmts[f], rows[r], (f + r) % 3, &seed);
    kern_close(&ref);
}

/* A step of more places than a worker holds sums of: rows repeat, so do their results. */
static void ops_moe_takes_any_number_of_rows(void **state)
{
    enum { H = 64, ROWS = 3000 };
    struct kern cpu;
    uint64_t seed = 79;

    (void)state;
    ops_each_body (cpu, 2) {
        struct experts up = experts_new(&cpu, &ops_fmts[2], H, H, &seed);
        int32_t *ids = malloc(ROWS * TOP * 4), *order = malloc(ROWS * TOP * 4),
                offset[E + 1];
        float *weights = malloc(ROWS * TOP * 4), *y = malloc(ROWS * H * 4);
        struct mc_act act = ops_act(MC_A_F32, ROWS, H),
                      mid = ops_act(MC_A_F32, ROWS * TOP, H);
        void *scratch = malloc(ROWS * TOP * H * 4);
        int32_t rows = ROWS, t;

        random_choice(ROWS, ids, weights, offset, order, &seed);
        for (t = 0; t < ROWS * H; t++)
            ((float *)act.x)[t] = t < 50 * H ? kern_randn(&seed)
                                             : ((float *)act.x)[t - 50 * H];
        for (t = 50 * TOP; t < ROWS * TOP; t++) {
            ids[t] = ids[t - 50 * TOP];
            weights[t] = weights[t - 50 * TOP];
        }
        for (int32_t e = 0, at = 0; e <= E; e++) {
            offset[e] = at;
            for (t = 0; t < ROWS * TOP; t++)
                if (ids[t] == e)
                    order[at++] = t;
        }
        kern_run(&cpu, moe,
                 {.n_live = &rows,
                  .cap = ROWS,
                  .top_k = TOP,
                  .act = act,
                  .ids = ids,
                  .offset = offset,
                  .order = order,
                  .weights = weights,
                  .gate = up.ws,
                  .up = up.ws,
                  .down = up.ws,
                  .mid = mid,
                  .y = y,
                  .scratch = scratch});
        for (t = 50; t < ROWS; t++)
            assert_memory_equal(y + t * H, y + (t - 50) * H, H * 4);
        free(ids), free(order), free(weights), free(y), free(scratch);
        ops_act_free(&act);
        ops_act_free(&mid);
        experts_free(&up);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(ops_route_picks_the_best_experts),
    cmocka_unit_test(ops_route_ties_go_to_the_lowest_id),
    cmocka_unit_test(ops_moe_is_glu_and_linear_of_each_expert),
    cmocka_unit_test(ops_moe_takes_any_number_of_rows),
};

MC_TEST_MAIN(tests)
