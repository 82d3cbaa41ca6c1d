/* test_ref_moe.c - reference route and moe against the definition in double precision. */
#include "tests/c/test.h"

#include "tests/c/kern.h"

static struct mc_w weights(float *q, int32_t n, int32_t k)
{
    return (struct mc_w){.layout = MC_W_F32, .n = n, .k = k, .q = q};
}

static float *randoms(size_t n, float size, uint64_t *seed)
{
    float *x = malloc((n ? n : 1) * sizeof *x);
    size_t i;

    for (i = 0; i < n; i++)
        x[i] = size * kern_randn(seed);
    return x;
}

/* ---- route ------------------------------------------------------------------------- */

enum { MAX_T = 64, MAX_E = 384 };

struct routed {
    int32_t ids[MAX_T * 8], offset[MAX_E + 1], order[MAX_T * 8];
    float weights[MAX_T * 8];
};

/* Routes one-hot rows: row t of x picks column t of w, so that logits are given
 * literally. */
static void route_logits(struct kern *k, struct mc_route_p p, int32_t n_expert,
                         int32_t rows, const float *logits, struct routed *out)
{
    float *w = malloc((size_t)(n_expert * rows) * sizeof *w),
          *x = calloc((size_t)(rows * rows), 4);
    int32_t e, t;

    for (t = 0; t < rows; t++) {
        x[t * rows + t] = 1;
        for (e = 0; e < n_expert; e++)
            w[e * rows + t] = logits[t * n_expert + e];
    }
    memset(out, 0x55, sizeof *out);
    p.n_live = &rows;
    p.cap = rows;
    p.x = x;
    p.w = weights(w, n_expert, rows);
    p.ids = out->ids;
    p.weights = out->weights;
    p.offset = out->offset;
    p.order = out->order;
    kern_run(k, route, p);
    free(w), free(x);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void ref_route_picks_by_bias_and_weighs_without(void **state)
{
    static const float logits[] = {0, 1, 2, -1, 3, 0, 0, 0}, bias[] = {0, 0, -1, 1};
    struct kern k = kern_ref(1, -1);
    struct routed r;
    double a = sigmoid(-1), b = sigmoid(1);

    (void)state;
    /* biased: .5 .731 -.119 1.269 | .953 .5 -.5 1.5 */
    route_logits(
        &k, (struct mc_route_p){.bias = bias, .top_k = 2, .norm = true, .factor = 2.5f},
        4, 2, logits, &r);
    assert_memory_equal(r.ids, ((int32_t[]){3, 1, 3, 0}), 16);
    assert_float_equal(r.weights[0], 2.5 * a / (a + b), 1e-6);
    assert_float_equal(r.weights[1], 2.5 * b / (a + b), 1e-6);
    assert_memory_equal(r.offset, ((int32_t[]){0, 1, 2, 2, 4}), 20);
    assert_memory_equal(r.order, ((int32_t[]){3, 1, 0, 2}), 16);

    route_logits(&k, (struct mc_route_p){.bias = bias, .top_k = 2, .factor = 1}, 4, 2,
                 logits, &r);
    assert_float_equal(r.weights[0], a, 1e-6);
    assert_float_equal(r.weights[3], sigmoid(3), 1e-6);
    kern_close(&k);
}

/* Every expert equal; then two levels: the lowest ids of the higher, then of the lower.
 */
static void ref_route_gives_ties_to_the_lowest_id(void **state)
{
    float logits[2 * 16] = {0};
    struct kern k = kern_ref(1, -1);
    struct routed r;
    int softmax;

    (void)state;
    logits[16 + 5] = logits[16 + 11] = 1;
    for (softmax = 0; softmax < 2; softmax++) {
        struct mc_route_p p = {.top_k = 4, .softmax = softmax, .factor = 1};

        route_logits(&k, p, 16, 2, logits, &r);
        assert_memory_equal(r.ids, ((int32_t[]){0, 1, 2, 3, 5, 11, 0, 1}), 32);
    }
    /* groups tie too */
    route_logits(
        &k, (struct mc_route_p){.top_k = 4, .n_group = 4, .topk_group = 2, .factor = 1},
        16, 1, logits, &r);
    assert_memory_equal(r.ids, ((int32_t[]){0, 1, 2, 3}), 16);
    kern_close(&k);
}

/* Experts of other groups are out even where all that remain are below zero. */
static void ref_route_masks_groups_of_negative_scores(void **state)
{
    /* sums of the two best: -.9, -.2 (one good, one bad), -.1, -2 */
    static const float biased[] = {-.4f,  -.5f,  -.6f, .4f, -.6f, -.7f,
                                   -.05f, -.05f, -.9f, -1,  -1,   -1};
    float logits[12] = {0}, bias[12];
    struct kern k = kern_ref(1, -1);
    struct routed r;
    int i;

    (void)state;
    for (i = 0; i < 12; i++)
        bias[i] = biased[i] - 0.5f;
    route_logits(&k,
                 (struct mc_route_p){.bias = bias,
                                     .top_k = 5,
                                     .n_group = 4,
                                     .topk_group = 2,
                                     .factor = 1},
                 12, 1, logits, &r);
    assert_memory_equal(r.ids, ((int32_t[]){3, 6, 7, 4, 5}), 20);
    assert_float_equal(r.weights[0], 0.5, 1e-7);
    assert_memory_equal(r.offset, ((int32_t[]){0, 0, 0, 0, 1, 2, 3, 4, 5, 5, 5, 5, 5}),
                        52);
    assert_memory_equal(r.order, ((int32_t[]){0, 3, 4, 1, 2}), 20);
    kern_close(&k);
}

/* The definition: rank = how many are better. Returns how far the last one that was taken
 * lies above the first that was not. */
static double route_want(const struct mc_route_p *p, const double *logit, int32_t n,
                         int32_t *ids, double *weights)
{
    double score[MAX_E], pick[MAX_E], sum = 0, edge[2] = {INFINITY, -INFINITY};
    int32_t e, f, g, size = p->n_group > 1 ? n / p->n_group : n, rank, above;

    for (e = 0; e < n; e++)
        sum += exp(logit[e]);
    for (e = 0; e < n; e++) {
        score[e] = p->softmax ? exp(logit[e]) / sum : sigmoid(logit[e]);
        pick[e] = score[e] + (p->bias ? p->bias[e] : 0);
    }
    if (p->n_group > 1) {
        double best[MAX_E], keep[MAX_E];

        for (g = 0; g < p->n_group; g++)
            for (best[g] = -INFINITY, e = g * size; e < (g + 1) * size; e++)
                for (f = g * size; f < e; f++)
                    best[g] = fmax(best[g], pick[e] + pick[f]);
        for (g = 0; g < p->n_group; g++) {
            for (above = 0, f = 0; f < p->n_group; f++)
                above += best[f] > best[g];
            keep[g] = above < p->topk_group;
        }
        for (e = 0; e < n; e++)
            pick[e] = keep[e / size] ? pick[e] : -INFINITY;
    }
    for (sum = 0, e = 0; e < n; e++) {
        for (rank = 0, f = 0; f < n; f++)
            rank += pick[f] > pick[e];
        if (rank < p->top_k) {
            ids[rank] = e;
            weights[rank] = score[e];
            sum += score[e];
        }
        edge[rank >= p->top_k] = rank < p->top_k ? fmin(edge[0], pick[e])
                                                 : fmax(edge[1], pick[e]);
    }
    for (e = 0; e < p->top_k; e++)
        weights[e] *= p->factor / (p->norm ? sum : 1);
    return edge[0] - edge[1];
}

/* Lists by expert hold each row and place once, by expert, rising. */
static void check_lists(const struct routed *r, int32_t n_expert, int32_t n)
{
    bool seen[MAX_T * 8] = {false};
    int32_t e, i;

    assert_int_equal(r->offset[0], 0);
    assert_int_equal(r->offset[n_expert], n);
    for (e = 0; e < n_expert; e++)
        for (i = r->offset[e]; i < r->offset[e + 1]; i++) {
            assert_false(seen[r->order[i]]);
            seen[r->order[i]] = true;
            assert_int_equal(r->ids[r->order[i]], e);
            assert_true(i == r->offset[e] || r->order[i] > r->order[i - 1]);
        }
}

/* 1e-5: logits are f32 sums of 96 terms, scores move by at most as much. */
static void ref_route_is_its_definition(void **state)
{
    static const struct {
        int32_t n_expert, top_k, n_group, topk_group;
        bool softmax, norm, bias;
    } c[] = {
        {384, 8, 1, 1, false, true, true}, {256, 8, 8, 4, false, true, true},
        {128, 8, 0, 0, true, true, false}, {64, 6, 1, 1, true, false, false},
        {32, 4, 4, 1, false, false, true}, {7, 7, 0, 0, false, true, false},
        {1, 1, 1, 1, true, true, false},   {60, 4, 0, 0, true, false, true},
    };
    enum { H = 96 };
    uint64_t seed = 71;
    size_t i;
    int32_t t, e, j;

    (void)state;
    for (i = 0; i < sizeof c / sizeof c[0]; i++) {
        struct kern k = kern_ref(2, -1);
        int32_t n = c[i].n_expert, rows = (int32_t)(17 + i), far = 0;
        float *x = randoms((size_t)(rows * H), 1, &seed),
              *w = randoms((size_t)(n * H), 0.1f, &seed);
        float *bias = randoms((size_t)n, 0.3f, &seed);
        struct routed r;
        struct mc_route_p p = {
            .n_live = &rows, .cap = rows, .x = x, .w = weights(w, n, H),
            .bias = c[i].bias ? bias : NULL, .top_k = c[i].top_k, .n_group = c[i].n_group,
            .topk_group = c[i].topk_group, .softmax = c[i].softmax, .norm = c[i].norm,
            .factor = 2.827f, .ids = r.ids, .weights = r.weights, .offset = r.offset,
            .order = r.order};

        kern_run(&k, route, p);
        check_lists(&r, n, rows * c[i].top_k);
        for (t = 0; t < rows; t++) {
            double logit[MAX_E], want[8];
            int32_t ids[8];

            for (e = 0; e < n; e++)
                for (logit[e] = 0, j = 0; j < H; j++)
                    logit[e] += (double)x[t * H + j] * w[e * H + j];
            if (route_want(&p, logit, n, ids, want) < 1e-5)
                continue;
            far++;
            for (j = 0; j < c[i].top_k; j++) {
                const int32_t *id = r.ids + t * c[i].top_k;

                for (e = 0; id[j] != ids[e]; e++) /* near ties may change places */
                    assert_true(e < c[i].top_k - 1);
                assert_float_equal(r.weights[t * c[i].top_k + j], want[e], 1e-5);
                assert_true(abs(e - j) <= 1);
            }
        }
        assert_true(far > rows / 2);
        free(x), free(w), free(bias);
        kern_close(&k);
    }
}

/* Whatever the logits are, ids are distinct and name experts. */
static void ref_route_stays_in_range_with_nan(void **state)
{
    float logits[3 * 8];
    struct kern k = kern_ref(1, -1);
    struct routed r;
    int i;

    (void)state;
    for (i = 0; i < 24; i++)
        logits[i] = i < 8 ? NAN : i < 16 ? -INFINITY : i == 20 ? NAN : (float)i;
    for (i = 0; i < 2; i++) {
        struct mc_route_p p = {.top_k = 4, .softmax = i, .norm = true, .factor = 1};

        route_logits(&k, p, 8, 1, logits, &r);
        check_lists(&r, 8, 4);
        route_logits(&k, p, 8, 1, logits + 8, &r);
        check_lists(&r, 8, 4);
        route_logits(&k, p, 8, 1, logits + 16, &r);
        check_lists(&r, 8, 4);
    }
    assert_non_null(kern_refuses(&k, route, {.w = weights(logits, 8, 1), .top_k = 9}));
    assert_non_null(kern_refuses(&k, route, {.w = weights(logits, 8, 1), .top_k = 2,
                                             .n_group = 3, .topk_group = 1}));
    assert_non_null(kern_refuses(&k, route, {.w = weights(logits, 8, 1), .top_k = 3,
                                             .n_group = 4, .topk_group = 1}));
    kern_close(&k);
}

/* ---- moe --------------------------------------------------------------------------- */

enum { E = 6, H = 64, I = 160, K = 3 };

struct experts {
    float *gate, *up, *down;
    struct mc_ws ws[3];
};

/* Expert matrices with a gap between them; experts that `used` leaves out are NaN. */
static struct experts experts_new(const bool used[E], uint64_t *seed)
{
    struct experts x;
    size_t each = H * I + 5, e, i, j;
    float **m[3] = {&x.gate, &x.up, &x.down};

    for (j = 0; j < 3; j++) {
        *m[j] = randoms(E * each, 0.1f, seed);
        for (e = 0; e < E; e++)
            for (i = e * each; i < (e + 1) * each; i++)
                if (!used[e] || i >= e * each + H * I)
                    (*m[j])[i] = NAN;
        x.ws[j] = (struct mc_ws){.w = weights(*m[j], j < 2 ? I : H, j < 2 ? H : I),
                                 .q_step = (int64_t)(each * 4), .n = E};
    }
    return x;
}

static void experts_free(struct experts *x)
{
    free(x->gate), free(x->up), free(x->down);
}

/* The definition in double, of row t with input x. */
static void moe_want(const struct experts *m, const float *x, const int32_t *ids,
                     const float *weights_, const float *add, double gate, double *y)
{
    size_t each = H * I + 5;
    int32_t j, i, c;

    for (c = 0; c < H; c++)
        y[c] = add ? add[c] * gate : 0;
    for (j = 0; j < K; j++)
        for (i = 0; i < I; i++) {
            double g = 0, u = 0;

            for (c = 0; c < H; c++) {
                g += (double)m->gate[(size_t)ids[j] * each + (size_t)(i * H + c)] * x[c];
                u += (double)m->up[(size_t)ids[j] * each + (size_t)(i * H + c)] * x[c];
            }
            g = g * sigmoid(g) * u * weights_[j];
            for (c = 0; c < H; c++)
                y[c] += g * m->down[(size_t)ids[j] * each + (size_t)(c * I + i)];
        }
}

/* 2e-6: sums of some hundred f32 terms below 1. */
/* The places in the order of their experts, as route leaves them. */
static void order_of(const int32_t *ids, int32_t n, int32_t *order)
{
    int32_t at = 0, e, i;

    for (e = 0; e < E; e++)
        for (i = 0; i < n; i++)
            if (ids[i] == e)
                order[at++] = i;
}

static void ref_moe_is_its_definition_and_reads_only_chosen_experts(void **state)
{
    static const bool used[E] = {true, false, true, true, true, false};
    static const int32_t from[] = {4, 0, 2, 3};
    enum { ROWS = 11 };
    struct kern k = kern_ref(2, -1);
    uint64_t seed = 73;
    struct experts m = experts_new(used, &seed);
    float *x = randoms(ROWS * H, 1, &seed), *add = randoms(ROWS * H, 1, &seed);
    float *w = randoms(ROWS * K, 0.5f, &seed), *gate = randoms(ROWS, 1, &seed);
    float y[ROWS * H], mid[ROWS * K * I], one[H];
    int32_t ids[ROWS * K], order[ROWS * K], rows = ROWS, t, j, how;
    struct mc_moe_p p = {.n_live = &rows,
                         .cap = ROWS,
                         .top_k = K,
                         .act = {.x = x, .k = H, .layout = MC_A_F32},
                         .ids = ids,
                         .order = order,
                         .weights = w,
                         .gate = m.ws[0],
                         .up = m.ws[1],
                         .down = m.ws[2],
                         .mid = {.x = mid, .k = I, .layout = MC_A_F32},
                         .y = y};

    (void)state;
    for (t = 0; t < ROWS; t++)
        for (j = 0; j < K; j++)
            ids[t * K + j] = from[(t + j * (1 + t % 3)) % 4];
    order_of(ids, ROWS * K, order);
    for (how = 0; how < 3; how++) {
        p.add = how > 0 ? add : NULL;
        p.add_gate = how > 1 ? gate : NULL;
        kern_run(&k, moe, p);
        for (t = 0; t < ROWS; t++) {
            double want[H];

            moe_want(&m, x + t * H, ids + t * K, w + t * K, p.add ? add + t * H : NULL,
                     p.add_gate ? sigmoid(gate[t]) : 1, want);
            for (j = 0; j < H; j++)
                assert_float_equal(y[t * H + j], want[j], 2e-6);
        }
    }
    rows = 1; /* row 7 alone: the same bits */
    p.act.x = x + 7 * H;
    p.ids = ids + 7 * K;
    order_of(p.ids, K, order);
    p.weights = w + 7 * K;
    p.add = add + 7 * H;
    p.add_gate = gate + 7;
    p.y = one;
    kern_run(&k, moe, p);
    assert_memory_equal(one, y + 7 * H, sizeof one);
    p.mid.k = I - 1;
    assert_non_null(kern_refuses(&k, moe, p));
    free(x), free(add), free(w), free(gate);
    experts_free(&m);
    kern_close(&k);
}

/* The middle is rounded to its layout: what is multiplied by down is what mid then holds.
 */
static void ref_moe_rounds_its_middle(void **state)
{
    static const bool used[E] = {true, true, true, true, true, true};
    struct kern k = kern_ref(1, MC_A_I16);
    uint64_t seed = 79;
    struct experts m = experts_new(used, &seed);
    float *x = randoms(H, 1, &seed), s[K * I / 32], bf[K * I / 32], y[H],
          w[K] = {0.5f, -2, 0.25f};
    int16_t mid[K * I];
    int32_t ids[K] = {3, 0, 5}, order[K] = {1, 0, 2}, one = 1, c, i, j;

    (void)state;
    kern_run(&k, moe,
             {.n_live = &one,
              .cap = 1,
              .top_k = K,
              .act = {.x = x, .k = H, .layout = MC_A_F32},
              .ids = ids,
              .order = order,
              .weights = w,
              .gate = m.ws[0],
              .up = m.ws[1],
              .down = m.ws[2],
              .mid = {.x = mid, .s = s, .bf = bf, .k = I, .layout = MC_A_I16},
              .y = y});
    for (c = 0; c < H; c++) {
        double want = 0;

        for (j = 0; j < K; j++)
            for (i = 0; i < I; i++)
                want += (double)w[order[j]] * mid[j * I + i] * s[(j * I + i) / 32] *
                        m.down[ids[order[j]] * (H * I + 5) + c * I + i];
        assert_float_equal(y[c], want, 2e-6);
    }
    free(x);
    experts_free(&m);
    kern_close(&k);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(ref_route_picks_by_bias_and_weighs_without),
    cmocka_unit_test(ref_route_gives_ties_to_the_lowest_id),
    cmocka_unit_test(ref_route_masks_groups_of_negative_scores),
    cmocka_unit_test(ref_route_is_its_definition),
    cmocka_unit_test(ref_route_stays_in_range_with_nan),
    cmocka_unit_test(ref_moe_is_its_definition_and_reads_only_chosen_experts),
    cmocka_unit_test(ref_moe_rounds_its_middle),
};

MC_TEST_MAIN(tests)
