/* test_engine_taps.c - capture and steering through the engine's steps: what is captured
 * is what transformers has there, what is added reaches its sequence and no other. */
#include "tests/c/engine_help.h"

#include <math.h>

#include "core/cli/golden_int.h"
#include "core/engine/engine_int.h"
#include "core/weights/weights.h"

enum {
    ROWS = 16,
    H = 256,
    N_LAYER = 4,
    V = 2048,
    PAGE_BYTES = N_LAYER * 2 * 2 * MC_PAGE * 32 * 4 /* 2 heads of 32, K and V, f32 */
};

static struct mc_account *account_of(struct mc_engine *e)
{
    struct mc_err err = {0};
    struct mc_tensors *ts = mc_engine_tensors(e, &err);
    struct mc_account *a = mc_account_open(ts, 64 << 20);

    assert_non_null(a);
    return a;
}

static struct mc_tensor tensor(struct mc_account *a, int32_t rows, int32_t cols)
{
    struct mc_tensor t;
    struct mc_err err = {0};
    const int32_t shape[2] = {rows, cols};

    if (rows == 0)
        assert_ok(mc_tensor_new(a, MC_F32, 1, &cols, &t, &err), err);
    else
        assert_ok(mc_tensor_new(a, MC_F32, 2, shape, &t, &err), err);
    return t;
}

static const float *row(const struct mc_tensor *t, int32_t i)
{
    return (const float *)t->v.p + (int64_t)i * t->v.n[3];
}

/* Host memory is device memory here: results are read in place, after the end. */
static struct got *run_taps(struct mc_engine *e, struct mc_request *r)
{
    struct got *g = got_new();
    struct mc_handle h;
    struct mc_err err = {0};

    r->sink.ctx = g;
    assert_ok(mc_engine_submit(e, r, &h, &err), err);
    got_wait(g, -1);
    return g;
}

static double used(struct mc_engine *e)
{
    struct mc_tensors_use use;
    struct mc_err err = {0};

    mc_tensors_use(mc_engine_tensors(e, &err), NULL, &use);
    return (double)use.used;
}

/* ---- capture ----------------------------------------------------------------------- */

static void compare_rows(const struct mc_ckpt *c, const char *name, int i,
                         const struct mc_tensor *t)
{
    int64_t n, last;
    const float *want = mc_golden_tensor(c, "F32", &n, &last, name, i, 0);
    double most = 0, off = 0;

    assert_non_null(want);
    assert_int_equal(n, ROWS * H);
    for (int64_t k = 0; k < n; k++) {
        double d = fabs((double)want[k] - ((const float *)t->v.p)[k]);

        most = fmax(most, fabs((double)want[k]));
        off = fmax(off, d);
    }
    if (!(off <= 2e-4 * most))
        fail_msg("%s %d: %g off, of %g", name, i, off, most);
}

static void capture_golden(const char *backend, int32_t ranks)
{
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){.backend = backend,
                                      .ranks = ranks, .chunk = 16, .max_seqs = 8}, NULL);
    struct mc_account *a = account_of(e);
    struct mc_capture c[6];
    struct mc_ckpt *golden;
    struct mc_err err = {0};
    struct mc_request r;
    struct got *g;
    int64_t n, last;
    const int32_t *ids;

    assert_ok(mc_ckpt_open_tensors("tests/models/tiny-llama/golden/layers.safetensors",
                                   &golden, &err), err);
    ids = mc_golden_tensor(golden, "I32", &n, &last, "p0.ids", 0, 0);
    assert_int_equal(n, ROWS);
    for (int i = 0; i < 6; i++)
        c[i] = (struct mc_capture){i <= N_LAYER ? i : MC_TAP_NORM, tensor(a, ROWS, H)};
    r = ask_for(ids, ROWS, 0, NULL);
    r.capture = c;
    r.n_capture = 6;
    g = run_taps(e, &r);
    assert_int_equal(g->end.finish, MC_FINISH_LENGTH);
    compare_rows(golden, "p0.embed", 0, &c[0].to);
    for (int i = 1; i <= N_LAYER; i++)
        compare_rows(golden, "p0.layer.%d", i - 1, &c[i].to);
    compare_rows(golden, "p0.norm", 0, &c[5].to);
    got_free(g);
    for (int i = 0; i < 6; i++)
        mc_tensor_drop(&c[i].to);
    mc_account_close(a);
    mc_ckpt_close(golden);
    assert_idle(e);
    assert_true(used(e) == 0);
    mc_engine_close(e);
}

static void taps_captured_rows_are_the_goldens(void **state)
{
    (void)state;
    capture_golden("ref", 1);
    capture_golden("cpu", 1);
    capture_golden("cpu", 2);
}

/* Row i of the logits is what token i was drawn from, row n-1+i of the hidden states what
 * those came from; chunks, company and a full buffer change nothing. */
static void taps_logits_are_those_of_the_tokens(void **state)
{
    enum { N = 40, GEN_N = 12, KEPT = 9 };
    struct mc_engine *e;
    int32_t ids[N];
    float first[GEN_N] = {0};

    (void)state;
    some_ids(ids, N, 7);
    for (int ranks = 1; ranks <= 2; ranks++) {
        struct got *others[STREAMS], *g;
        struct mc_account *a;
        struct mc_request r;
        struct mc_capture c[2];

        e = engine_open(
            &(struct mc_engine_opts){.chunk = 16, .max_seqs = 10, .ranks = ranks}, NULL);
        a = account_of(e);
        c[0] = (struct mc_capture){MC_TAP_LOGITS, tensor(a, KEPT, V)};
        c[1] = (struct mc_capture){2, tensor(a, N + GEN_N, H)};
        r = ask_for(ids, N, GEN_N, NULL);
        r.capture = c;
        r.n_capture = 2;
        r.n_top = 0;
        if (ranks == 1) {
            g = run_taps(e, &r);
        } else { /* in company */
            struct mc_handle h;
            struct mc_err err = {0};

            g = got_new();
            r.sink.ctx = g;
            assert_ok(mc_engine_submit(e, &r, &h, &err), err);
            run_all(e, true, others);
            got_wait(g, -1);
            for (int i = 0; i < STREAMS; i++)
                got_free(others[i]);
        }
        assert_int_equal(g->n, GEN_N);
        for (int i = 0; i < KEPT; i++) {
            const float *x = row(&c[0].to, i);
            double sum = 0;
            int32_t best = 0;

            for (int32_t k = 1; k < V; k++)
                best = x[k] > x[best] ? k : best;
            assert_int_equal(best, g->id[i]);
            for (int32_t k = 0; k < V; k++)
                sum += exp((double)x[k] - x[best]);
            assert_true(fabs(-log(sum) - g->logprob[i]) < 1e-4);
        }
        for (int i = 0; i < GEN_N; i++) {
            float x = row(&c[1].to, N - 1 + i)[3];

            assert_true(x != 0);
            if (ranks == 1)
                first[i] = x;
            assert_true(fabsf(x - first[i]) <= 1e-3f * (1 + fabsf(x)));
        }
        assert_true(row(&c[1].to, N + GEN_N - 1)[3] == 0); /* the last token never ran */
        got_free(g);
        mc_tensor_drop(&c[0].to), mc_tensor_drop(&c[1].to);
        mc_account_close(a);
        assert_idle(e);
        mc_engine_close(e);
    }
}

/* Rows of layer 3 of one of two contexts that run at once. */
static struct mc_tensor one_of_two(struct mc_engine *e, struct mc_account *a, int32_t n,
                                   int32_t n_gen)
{
    struct mc_capture c = {3, tensor(a, n + n_gen, H)};
    struct got *g[2] = {got_new(), got_new()};
    int32_t ids[2][128];

    for (int i = 0; i < 2; i++) { /* the captured one comes last: it is preempted first */
        struct mc_request r;
        struct mc_handle h;
        struct mc_err err = {0};

        some_ids(ids[i], n, (uint32_t)i + 3);
        r = ask_for(ids[i], n, n_gen, g[i]);
        r.capture = &c;
        r.n_capture = i;
        assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    }
    for (int i = 0; i < 2; i++) {
        got_wait(g[i], -1);
        assert_int_equal(g[i]->n, n_gen);
        got_free(g[i]);
    }
    return c.to;
}

/* A context that is preempted and read again leaves the same rows. */
static void taps_survive_a_preemption(void **state)
{
    enum { N = 100, GEN_N = 80 };
    struct mc_engine *e[2];
    struct mc_account *a[2];
    struct mc_tensor t[2];

    (void)state;
    for (int i = 0; i < 2; i++) { /* 3 pages each; of the second pool's there are 5 */
        e[i] = engine_open(&(struct mc_engine_opts){.max_seqs = 2,
                           .kv_bytes = i ? 5ull * PAGE_BYTES : 0}, NULL);
        a[i] = account_of(e[i]);
        t[i] = one_of_two(e[i], a[i], N, GEN_N);
    }
    assert_true(mc_engine_counter(e[1], MC_C_num_preemptions_total) > 0);
    assert_memory_equal(t[0].v.p, t[1].v.p, (N + GEN_N - 1) * H * sizeof(float));
    for (int i = 0; i < 2; i++) {
        mc_tensor_drop(&t[i]);
        mc_account_close(a[i]);
        assert_idle(e[i]);
        mc_engine_close(e[i]);
    }
}

/* ---- steering ---------------------------------------------------------------------- */

/* Runs n_gen tokens of a prompt, steered by `scale` times v at layer 2 unless v is NULL;
 * rows of layers 2 and 3 go to `to`. */
static struct got *steered(struct mc_engine *e, const int32_t *ids, int32_t n,
                           int32_t n_gen, const struct mc_tensor *v, float scale,
                           struct mc_capture to[2])
{
    struct mc_request r = ask_for(ids, n, n_gen, NULL);
    struct mc_steer s = {.layer = 2, .scale = scale};

    if (v) {
        s.add = *v;
        r.steer = &s;
        r.n_steer = 1;
    }
    r.capture = to;
    r.n_capture = to ? 2 : 0;
    return run_taps(e, &r);
}

static void taps_steering_adds_to_every_row_of_its_layer(void **state)
{
    enum { N = 70, GEN_N = 8 };
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){.chunk = 32,
                                                               .max_seqs = 8},
                                      NULL);
    struct mc_account *a = account_of(e);
    struct mc_tensor v = tensor(a, 0, H);
    struct mc_capture plain[2], up[2], zero[2];
    struct got *g[4];
    int32_t ids[N];
    bool moved = false;

    (void)state;
    some_ids(ids, N, 11);
    for (int i = 0; i < H; i++)
        ((float *)v.v.p)[i] = (float)(i % 7) - 3;
    for (int i = 0; i < 2; i++) {
        plain[i] = (struct mc_capture){2 + i, tensor(a, N + GEN_N, H)};
        up[i] = (struct mc_capture){2 + i, tensor(a, N + GEN_N, H)};
        zero[i] = (struct mc_capture){2 + i, tensor(a, N + GEN_N, H)};
    }
    g[0] = steered(e, ids, N, GEN_N, NULL, 0, plain);
    g[1] = steered(e, ids, N, GEN_N, &v, 20, up);
    g[2] = steered(e, ids, N, GEN_N, &v, 0, zero);
    g[3] = steered(e, ids, N, GEN_N, NULL, 0, NULL);
    for (int i = 0; i < N * H; i++) {
        float x = ((float *)plain[0].to.v.p)[i], y = ((float *)up[0].to.v.p)[i];
        float add = 20 * ((float *)v.v.p)[i % H];

        assert_true(fabsf(y - (x + add)) <= 1e-6f * (60 + fabsf(x)));
        moved |= fabsf(((float *)plain[1].to.v.p)[i] + add - ((float *)up[1].to.v.p)[i]) >
                 1e-3f;
    }
    assert_true(moved); /* the next layer worked on what was added */
    assert_memory_equal(plain[1].to.v.p, zero[1].to.v.p, N * H * sizeof(float));
    same_tokens(g[0], g[2]);
    same_tokens(g[0], g[3]); /* nothing steered is in the prefix cache */
    assert_int_equal(g[2]->end.usage.n_cached, 0);
    assert_int_equal(g[3]->end.usage.n_cached, 64); /* what was captured plainly is */
    assert_true(g[0]->n == g[1]->n &&
                memcmp(g[0]->id, g[1]->id, sizeof(int32_t) * GEN_N) != 0);
    for (int i = 0; i < 4; i++)
        got_free(g[i]);
    for (int i = 0; i < 2; i++)
        mc_tensor_drop(&plain[i].to), mc_tensor_drop(&up[i].to),
            mc_tensor_drop(&zero[i].to);
    mc_tensor_drop(&v);
    mc_account_close(a);
    assert_idle(e);
    mc_engine_close(e);
}

static void taps_leave_the_others_of_a_batch_alone(void **state)
{
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){.max_seqs = 12}, NULL);
    struct mc_account *a = account_of(e);
    struct mc_tensor v = tensor(a, 0, H);
    struct got *alone[STREAMS], *beside[STREAMS], *g = got_new();
    struct mc_steer s = {.layer = 0, .scale = 100, .add = v};
    struct mc_request r;
    struct mc_handle h;
    struct mc_err err = {0};
    int32_t ids[8];

    (void)state;
    ((float *)v.v.p)[5] = 1;
    run_all(e, true, alone);
    assert_idle(e);
    some_ids(ids, 8, 99);
    r = ask_for(ids, 8, 200, g);
    r.steer = &s;
    r.n_steer = 1;
    assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    mc_tensor_drop(&v); /* the sequence holds it */
    run_all(e, true, beside);
    mc_engine_cancel(e, h, "enough");
    got_wait(g, -1);
    got_free(g);
    for (int i = 0; i < STREAMS; i++) {
        same_tokens(alone[i], beside[i]);
        got_free(alone[i]), got_free(beside[i]);
    }
    mc_account_close(a);
    assert_idle(e);
    run_all(e, true, alone); /* a step later nothing is held any more */
    for (int i = 0; i < STREAMS; i++)
        got_free(alone[i]);
    assert_true(used(e) == 0);
    mc_engine_close(e);
}

static void refused(struct mc_engine *e, const struct mc_capture *c, int32_t n_c,
                    const struct mc_steer *s, int32_t n_s, const char *why)
{
    int32_t ids[3] = {1, 2, 3};
    struct got *g = got_new();
    struct mc_request r = ask_for(ids, 3, 1, g);
    struct mc_handle h;
    struct mc_err err = {0};

    r.capture = c, r.n_capture = n_c;
    r.steer = s, r.n_steer = n_s;
    assert_int_equal(mc_engine_submit(e, &r, &h, &err), MC_EARG);
    if (!strstr(err.text, why))
        fail_msg("\"%s\" does not say \"%s\"", err.text, why);
    assert_string_equal(err.param, n_c ? "capture" : "steer");
    got_free(g);
}

static void taps_refuse_what_does_not_fit(void **state)
{
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){0}, NULL);
    struct mc_account *a = account_of(e);
    struct mc_tensor rows = tensor(a, 3, H), narrow = tensor(a, 3, H - 1), turned, line;
    struct mc_capture c[9];
    struct mc_steer s[9];
    struct mc_err err = {0};

    (void)state;
    assert_ok(mc_tensor_transpose(&rows, &turned, &err), err);
    assert_ok(mc_tensor_index(&rows, 0, &line, &err), err);
    for (int i = 0; i < 9; i++) {
        c[i] = (struct mc_capture){1, rows};
        s[i] = (struct mc_steer){1, 1, line};
    }
    refused(e, c, 9, NULL, 0, "at most 8");
    refused(e, NULL, 0, s, 9, "at most 8");
    refused(e, &(struct mc_capture){N_LAYER + 1, rows}, 1, NULL, 0, "outside 0..4");
    refused(e, &(struct mc_capture){-3, rows}, 1, NULL, 0, "outside 0..4");
    refused(e, NULL, 0, &(struct mc_steer){-1, 1, line}, 1, "outside 0..4");
    refused(e, &(struct mc_capture){1, narrow}, 1, NULL, 0,
            "f32 [3, 255] is not f32 [rows, 256]");
    refused(e, &(struct mc_capture){1, line}, 1, NULL, 0, "is not f32 [rows, 256]");
    refused(e, &(struct mc_capture){MC_TAP_LOGITS, rows}, 1, NULL, 0, "[rows, 2048]");
    refused(e, &(struct mc_capture){1, turned}, 1, NULL, 0, "is not");
    refused(e, NULL, 0, &(struct mc_steer){1, 1, rows}, 1, "is not f32 [256]");
    refused(e, NULL, 0, &(struct mc_steer){1, 1, {0}}, 1, "another device");
    mc_tensor_drop(&rows), mc_tensor_drop(&narrow), mc_tensor_drop(&turned);
    mc_tensor_drop(&line);
    mc_account_close(a);
    assert_true(used(e) == 0);
    mc_engine_close(e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(taps_captured_rows_are_the_goldens),
    cmocka_unit_test(taps_logits_are_those_of_the_tokens),
    cmocka_unit_test(taps_survive_a_preemption),
    cmocka_unit_test(taps_steering_adds_to_every_row_of_its_layer),
    cmocka_unit_test(taps_leave_the_others_of_a_batch_alone),
    cmocka_unit_test(taps_refuse_what_does_not_fit),
};

MC_TEST_MAIN(tests)
