/* test_ops_ragged.c - attn_ragged: every CPU body against the oracle, which expands the same
 * stored latents; the expanded form against the absorbed one; rows against themselves.
 *
 * Tolerance of the first: an expanded value is a sum of c products, off by c half-ulps of
 * their magnitudes, and a score one of nope + r of those; as in test_ops_attn.c a probability
 * is off by its score's error. Magnitudes here: latents about 1, weights 0.1, so keys about
 * sqrt(c)/10 = 1, scores about 6 at most. The absorbed form is as far off again. */
#include "tests/c/test.h"

#include "kernels/host/kv.h"
#include "tests/c/ops.h"

enum { C = 128, R = 32, SLOTS = 3, PITCH = 16, PAGES = SLOTS * PITCH };

struct rig {
    int32_t h, nope, v;
    struct mc_kv kv;
    struct mc_slot slots[SLOTS];
    int32_t table[SLOTS * PITCH];
    float *kv_b; /* [h*(nope+v)][C] */
    float *q;    /* [800][h][nope+R], not rotated */
    float inv[R / 2];
};

static struct rig *rig_new(struct kern *k, int32_t h, int32_t nope, int32_t v,
                           uint16_t layout, uint64_t *seed)
{
    struct rig *g = calloc(1, sizeof *g);
    float norm[C], *x = malloc(900 * (C + R) * 4);
    int32_t i, n = h * (nope + v) * C;
    struct kern_rows r = {0};

    *g = (struct rig){.h = h, .nope = nope, .v = v,
                      .kv = {.table = g->table, .pitch = PITCH, .n_page = PAGES,
                             .n_slot = SLOTS, .c = C, .r = R, .n_layer = 1, .n_shard = 1,
                             .layout = layout}};
    g->kv.layer_stride = g->kv.page_stride = MC_PAGE * mc_mla_token_bytes(layout, C, R);
    g->kv.base = malloc((size_t)(PAGES * g->kv.page_stride));
    memset(g->kv.base, 0xff, (size_t)(PAGES * g->kv.page_stride));
    for (i = 0; i < PAGES; i++)
        g->table[i] = i * 5 % PAGES;
    for (i = 0; i < R / 2; i++)
        g->inv[i] = powf(1000, -(float)i / R);
    for (i = 0; i < C; i++)
        norm[i] = 1;
    g->kv_b = malloc((size_t)n * 4);
    for (i = 0; i < n; i++)
        g->kv_b[i] = 0.1f * kern_randn(seed);
    g->q = malloc((size_t)(800 * h * (nope + R)) * 4);
    for (i = 0; i < 800 * h * (nope + R); i++)
        g->q[i] = kern_randn(seed);
    for (i = 0; i < 900 * (C + R); i++)
        x[i] = kern_randn(seed);
    kern_seq(&r, 0, 0, 700, false);
    kern_seq(&r, 1, 0, 200, false);
    kern_run(k, mla_prep,
             {.rows = kern_view(&r),
              .kv = g->kv,
              .slots = g->slots,
              .kv_a = x,
              .kv_norm = norm,
              .eps = 1e-6f,
              .rope = {g->inv, 1, R, 0, MC_ROPE_NEIGHBOURS}});
    free(x);
    return g;
}

static void rig_free(struct rig *g)
{
    free(g->kv.base), free(g->kv_b), free(g->q), free(g);
}

/* Both forms as a pass runs them, chunks of at least long_rows expanded; act [rows][h*v]. */
static void run(struct kern *k, const struct rig *g, const struct kern_rows *r,
                const float *q0, int32_t long_rows, int32_t first, float *act)
{
    int32_t d = g->nope + R, rows = r->live[MC_LIVE_ROWS], cap_dec = 4, n_part = 3, i, j;
    size_t parts = (size_t)(cap_dec * n_part + KERN_T) * (size_t)g->h;
    float *q = malloc((size_t)(rows * g->h * d) * 4), *ml = malloc(parts * 8);
    float *lat = malloc((size_t)(rows * g->h * (C + R)) * 4), *o = malloc(parts * C * 4);
    float *uk = malloc((size_t)(g->h * C * g->nope) * 4);
    float *uv = malloc((size_t)(g->h * C * g->v) * 4);
    struct mc_disk b = {.fmt = MC_D_F32, .n = g->h * (g->nope + g->v), .k = C, .q = g->kv_b};
    struct mc_disk duk = {.fmt = MC_D_F32, .n = g->h * C, .k = g->nope, .q = uk};
    struct mc_disk duv = {.fmt = MC_D_F32, .n = g->h * g->v, .k = C, .q = uv};
    struct mc_act a = {.x = act, .k = g->h * g->v, .layout = MC_A_F32};
    struct mc_w kv_b = ops_pack(k, &b);
    struct mc_ws w[2] = {{.n = g->h}, {.n = g->h}};

    memcpy(q, q0, (size_t)(rows * g->h * d) * 4);
    for (i = 0; i < g->h; i++) {
        const float *head = g->kv_b + i * (g->nope + g->v) * C;

        for (j = 0; j < g->nope * C; j++)
            uk[(i * C + j % C) * g->nope + j / C] = head[j];
        memcpy(uv + i * g->v * C, head + g->nope * C, (size_t)(g->v * C) * 4);
    }
    for (i = 0; i < 2; i++) { /* a stack is one matrix, cut by heads */
        const struct mc_disk *whole = i ? &duv : &duk;
        int32_t n = i ? g->v : C;
        size_t one = 0;

        for (j = 0; j < g->h; j++) {
            struct mc_w m = ops_pack_slice(k, whole, j * n, n, 0, whole->k);

            if (j == 0) {
                w[i].w = m;
                one = (size_t)m.bytes;
                w[i].q_step = (int64_t)one;
                w[i].w.q = malloc(one * (size_t)g->h);
            }
            memcpy((uint8_t *)w[i].w.q + one * (size_t)j, m.q, one);
            if (j > 0)
                ops_w_free(&m);
            else
                free(m.q);
        }
    }
    kern_run(k, mla_q, {.rows = kern_view(r), .h = g->h, .nope = g->nope, .c = C,
                        .long_rows = long_rows, .q = q, .w_uk = w[0], .out = lat,
                        .rope = {g->inv, 1, R, (int16_t)g->nope, MC_ROPE_NEIGHBOURS}});
    kern_run(k, mla_attn,
             {.rows = kern_view(r),
              .kv = g->kv,
              .slots = g->slots,
              .h = g->h,
              .n_part = n_part,
              .cap_decode = cap_dec,
              .scale = 0.1f,
              .q = lat,
              .first = first,
              .long_rows = long_rows,
              .o = o,
              .ml = ml});
    kern_run(k, attn_merge, {.rows = kern_view(r), .h = g->h, .d = C, .n_part = n_part,
                             .cap_decode = cap_dec, .o = o, .ml = ml, .out = lat});
    kern_run(k, mla_out, {.rows = kern_view(r), .h = g->h, .c = C, .v = g->v,
                          .long_rows = long_rows, .o_lat = lat, .w_uv = w[1], .act = a});
    kern_run(k, attn_ragged,
             {.rows = kern_view(r),
              .kv = g->kv,
              .slots = g->slots,
              .h = g->h,
              .nope = g->nope,
              .v = g->v,
              .first = first,
              .long_rows = long_rows,
              .scale = 0.1f,
              .q = q,
              .kv_b = kv_b,
              .act = a});
    free(q), free(ml), free(lat), free(o), free(uk), free(uv);
    ops_w_free(&kv_b), ops_w_free(&w[0].w), ops_w_free(&w[1].w);
}

static void near(const char *what, const float *got, const float *want, int32_t n,
                 double tol)
{
    int32_t i;

    for (i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= tol))
            fail_msg("%s: act[%d] is %.9g, want %.9g", what, i, got[i], want[i]);
}

/* A decode row, a short chunk, a long one deep in its context; then all of them absorbed. */
static void ops_ragged_agrees_with_the_oracle_and_the_absorbed_form(void **state)
{
    static const int32_t shape[][3] = {{3, 32, 32}, {2, 48, 64}, {2, 128, 128}};
    static const uint16_t layouts[] = {MC_KV_F32, MC_KV_BF16, MC_KV_FP8_656};
    struct kern cpu, ref = kern_ref(2, -1);
    uint64_t seed = 109;
    int32_t i, j;

    (void)state;
    for (i = 0; i < 3; i++)
        for (j = 0; j < 3; j++) {
            struct rig *g = rig_new(&ref, shape[i][0], shape[i][1], shape[i][2],
                                    layouts[j], &seed);
            struct kern_rows r = {0};
            int32_t n, first = i % 2;
            double tol = ((2 * C + 2 * (g->nope + R) + 8) * 6.0 + 700) * 4 * OPS_U;
            float *want, *got, *absorbed;

            kern_seq(&r, 1, 199, 1, true);
            kern_seq(&r, 1, 150, 20, false);
            kern_seq(&r, 0, 613, 87, false);
            n = r.live[MC_LIVE_ROWS] * g->h * g->v;
            want = malloc((size_t)n * 4), got = malloc((size_t)n * 4);
            absorbed = malloc((size_t)n * 4);
            run(&ref, g, &r, g->q, 50, first, want);
            run(&ref, g, &r, g->q, 0, first, absorbed);
            near("absorbed ref", absorbed, want, n, tol);
            ops_each_body (cpu, 2) {
                run(&cpu, g, &r, g->q, 50, first, got);
                near(cpu.b->what, got, want, n, tol);
                run(&cpu, g, &r, g->q, 0, first, absorbed);
                near("absorbed", absorbed, want, n, tol);
            }
            free(want), free(got), free(absorbed);
            rig_free(g);
        }
    kern_close(&ref);
}

/* 700 rows as one long chunk (two blocks), as chunks of other sizes, beside others. */
static void ops_ragged_rows_do_not_depend_on_chunks(void **state)
{
    static const int32_t chunk[] = {700, 64, 333};
    struct kern cpu, ref = kern_ref(1, -1);
    uint64_t seed = 113;
    struct rig *g = rig_new(&ref, 2, 32, 32, MC_KV_BF16, &seed);
    int32_t cols = g->h * g->v, qd = g->h * (g->nope + R), c, t, n, threads;
    float *first = malloc((size_t)(700 * cols) * 4),
          *got = malloc((size_t)(800 * cols) * 4);

    (void)state;
    for (threads = 1; threads <= 3; threads += 2)
        ops_each_body (cpu, threads)
            for (c = 0; c < 3; c++) {
                for (t = 0; t < 700; t += n) {
                    struct kern_rows r = {0};

                    n = 700 - t < chunk[c] ? 700 - t : chunk[c];
                    kern_seq(&r, 0, t, n, false);
                    if (c == 2 && n < 300)
                        kern_seq(&r, 1, 20, 60, false); /* behind it; its rows go past */
                    run(&cpu, g, &r, g->q + t * qd, 1, 0, got + t * cols);
                }
                if (c == 0)
                    memcpy(first, got, (size_t)(700 * cols) * 4);
                assert_memory_equal(first, got, (size_t)(700 * cols) * 4);
            }
    free(first), free(got);
    rig_free(g);
    kern_close(&ref);
}

/* Nothing of a bad sequence is read: zeros; other rows' columns are not written. */
static void ops_ragged_leaves_other_rows_alone(void **state)
{
    struct kern cpu, ref = kern_ref(1, -1);
    uint64_t seed = 127;
    struct rig *g = rig_new(&ref, 2, 32, 32, MC_KV_F32, &seed);
    struct kern_rows r = {0};
    float act[44 * 64];
    struct mc_disk b = {.fmt = MC_D_F32, .n = 128, .k = C, .q = g->kv_b};
    int32_t i;

    (void)state;
    kern_seq(&r, 0, 699, 1, true);
    kern_seq(&r, 0, 100, 3, false);
    kern_seq(&r, 1, 100, 40, false);
    g->slots[1].bad = MC_BAD_PAGE;
    ops_each_body (cpu, 1) {
        struct mc_w kv_b = ops_pack(&cpu, &b);

        for (i = 0; i < 44 * 64; i++)
            act[i] = 7;
        kern_run(&cpu, attn_ragged,
                 {.rows = kern_view(&r),
                  .kv = g->kv,
                  .slots = g->slots,
                  .h = 2,
                  .nope = 32,
                  .v = 32,
                  .long_rows = 40,
                  .scale = 0.1f,
                  .q = g->q,
                  .kv_b = kv_b,
                  .act = {.x = act, .k = 64, .layout = MC_A_F32}});
        for (i = 0; i < 44 * 64; i++)
            assert_true(act[i] == (i < 4 * 64 ? 7 : 0));
        ops_w_free(&kv_b);
    }
    rig_free(g);
    kern_close(&ref);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(ops_ragged_agrees_with_the_oracle_and_the_absorbed_form),
    cmocka_unit_test(ops_ragged_rows_do_not_depend_on_chunks),
    cmocka_unit_test(ops_ragged_leaves_other_rows_alone),
};

MC_TEST_MAIN(tests)
