/* bench_gpu.c - make bench-gpu: what the kernels reach on a card, against its roof; and a
 * decode step of layers with Kimi K2.6's and GLM-5.2's shapes as one of 8 ranks has them.
 *
 *     bench_gpu [--json FILE]
 *
 * An operation is recorded a few times over into a graph, which is replayed; the best of
 * five is reported: microseconds, bytes a second (the least that it must move) and their
 * share of the roof (4.8 TB/s, an H200's; ROOF=... in GB/s for another). Weights are
 * random and larger than the L2 cache. Over the emulator shapes shrink, and figures mean
 * nothing: it shows that the program is right. Nothing here passes or fails but by
 * errors. OWNS: what it takes, until it ends. THREAD: one. */
#include "tests/gpu/bench.h"

/* ---- kernels one by one ------------------------------------------------------------ */

static void bench_linear(void)
{
    static const int32_t rows[] = {1, 16, 64};
    int32_t n = tiny ? 64 : 16384, k = tiny ? 256 : 7168;
    char name[80];

    for (int f = BF16; f <= NVFP4; f++) {
        struct mc_w w = matrix((enum fmt)f, n, k);

        for (int i = 0; i < 3; i++) {
            int32_t t = rows[i];
            struct list l = {.bytes = (double)w.bytes + 2.0 * t * (k + n)};

            ADD(&l, linear,
                {.n_live = put(&t, 4),
                 .cap = t,
                 .n_w = 1,
                 .act = act_of(t, k),
                 .w = {w},
                 .y = {dev((size_t)t * (size_t)n * 2)},
                 .pitch = {n},
                 .y_dt = MC_BF16});
            snprintf(name, sizeof name, "linear %s [%d,%d] %d rows", fmt_name[f], n, k,
                     t);
            report(name, &l);
        }
        b->release(b, w.q, 0);
        b->release(b, w.scale, 0);
    }
}

static void add_attn(struct list *l, const struct step *st, int32_t layer, int32_t h,
                     const void *q, const int32_t *idx, int32_t topk)
{
    int32_t seen = idx ? topk : st->ctx, parts = (seen + MC_SPLIT - 1) / MC_SPLIT;
    size_t n = (size_t)st->n * (size_t)parts * (size_t)h;
    float *o = dev(n * (size_t)st->kv.c * 4), *ml = dev(n * 8);
    double each = (double)mc_mla_token_bytes(st->kv.layout, st->kv.c, st->kv.r);

    ADD(l, mla_attn,
        {.rows = st->rows,
         .kv = st->kv,
         .slots = st->slots,
         .layer = layer,
         .h = h,
         .n_part = parts,
         .cap_decode = st->n,
         .scale = 0.07f,
         .q = q,
         .idx = idx,
         .topk = topk,
         .o = o,
         .ml = ml});
    l->bytes += st->n * (seen * each + 2.0 * h * (st->kv.c + st->kv.r)) +
                4.0 * (double)n * (st->kv.c + 2);
}

static void bench_attention(void)
{
    static const uint16_t layouts[] = {MC_KV_BF16, MC_KV_FP8_PLAIN, MC_KV_FP8_656};
    static const char *const names[] = {"bf16", "fp8-plain", "fp8-656"};
    int32_t c = tiny ? 128 : 512, r = tiny ? 32 : 64, ctx = tiny ? 300 : 8192;
    int32_t rows[] = {tiny ? 2 : 64, 1};
    char name[80];

    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 2; j++) {
            struct step st = step_of(rows[j], ctx, layouts[i], c, r, 1, 0);
            struct list l = {.n = 0};

            add_attn(&l, &st, 0, 8, bf16_rows(rows[j], 8 * (c + r)), NULL, 0);
            snprintf(name, sizeof name, "mla_attn %s 8 heads %d x %d", names[i], rows[j],
                     ctx);
            report(name, &l);
            b->release(b, st.kv.base, 0);
        }
}

static void bench_index(void)
{
    int32_t c = tiny ? 128 : 512, r = tiny ? 32 : 64, topk = tiny ? 64 : 2048;
    int32_t rows[] = {tiny ? 2 : 64, 1},
            ctxs[] = {tiny ? 500 : 8192, tiny ? 600 : 131072};
    char name[80];

    for (int j = 0; j < 2; j++) {
        struct step st = step_of(rows[j], ctxs[j], MC_KV_FP8_656, c, r, 1, 1);
        int32_t *idx = dev((size_t)(rows[j] * topk) * 4);
        struct list l = {.bytes = 132.0 * rows[j] * ctxs[j]};

        ADD_SCRATCH(&l, dsa_topk,
                    {.rows = st.rows,
                     .kv = st.kv,
                     .slots = st.slots,
                     .hi = 32,
                     .topk = topk,
                     .context = ctxs[j],
                     .qi = dev((size_t)(rows[j] * 32 * 128)),
                     .gates = dev((size_t)(rows[j] * 32) * 4),
                     .idx = idx});
        snprintf(name, sizeof name, "dsa_topk %d of %d x %d", topk, rows[j], ctxs[j]);
        report(name, &l);
        add_attn(&l, &st, 0, 8, bf16_rows(rows[j], 8 * (c + r)), idx, topk);
        snprintf(name, sizeof name, "mla_attn chosen %d of %d x %d", topk, rows[j],
                 ctxs[j]);
        report(name, &l);
        b->release(b, st.kv.base, 0);
    }
}

/* ---- a layer of a rank of 8 -------------------------------------------------------- */

struct shape {
    const char *name;
    int32_t hidden, q_lora, nope, v, experts, inner;
    enum fmt dense, expert;
};

static const struct shape shapes[] = {
    {"Kimi K2.6", 7168, 1536, 128, 128, 384, 256, BF16, I4_32},
    {"GLM-5.2 fp8", 6144, 2048, 192, 256, 256, 256, E4M3, E4M3},
    {"GLM-5.2 int4 experts", 6144, 2048, 192, 256, 256, 256, E4M3, I4_128},
};
static const struct shape shape_tiny = {"tiny", 256, 96, 32, 32, 8, 64, BF16, I4_32};

struct layer {
    struct mc_w q_a, kv_a, q_b, o, router, gate, up, down;
    struct mc_ws uk, uv, e_gate, e_up, e_down;
};

static struct layer layer_of(const struct shape *m, int32_t c, int32_t r)
{
    int32_t h = m->hidden;

    return (struct layer){.q_a = matrix(m->dense, m->q_lora, h),
                          .kv_a = matrix(m->dense, c + r, h),
                          .q_b = matrix(m->dense, 8 * (m->nope + r), m->q_lora),
                          .o = matrix(m->dense, h, 8 * m->v),
                          .router = matrix(BF16, m->experts, h),
                          .gate = matrix(m->dense, m->inner, h),
                          .up = matrix(m->dense, m->inner, h),
                          .down = matrix(m->dense, h, m->inner),
                          .uk = stack_of(BF16, c, m->nope, 8),
                          .uv = stack_of(BF16, m->v, c, 8),
                          .e_gate = stack_of(m->expert, m->inner, h, m->experts),
                          .e_up = stack_of(m->expert, m->inner, h, m->experts),
                          .e_down = stack_of(m->expert, h, m->inner, m->experts)};
}

static void add_linear(struct list *l, const struct step *st, struct mc_act a,
                       const struct mc_w *w, void *y, const struct mc_w *w2, void *y2)
{
    ADD(l, linear,
        {.n_live = st->rows.live,
         .cap = st->n,
         .n_w = w2 ? 2 : 1,
         .act = a,
         .w = {*w, w2 ? *w2 : *w},
         .y = {y, y2},
         .pitch = {w->n, w2 ? w2->n : 0},
         .y_dt = MC_BF16});
    l->bytes += (double)w->bytes + (w2 ? (double)w2->bytes : 0);
}

/* One layer of dense attention, then experts; 8 of them a row, chosen by a random router.
 */
static void add_layer(struct list *l, const struct shape *m, const struct layer *y,
                      const struct step *st, int32_t at)
{
    int32_t t = st->n, c = st->kv.c, r = st->kv.r, h = m->hidden,
            k = m->experts < 8 ? 2 : 8;
    size_t rows = (size_t)t;
    float *norm = dev((size_t)h * 4), *inv = dev((size_t)r * 4);
    void *x = bf16_rows(t, h), *res = bf16_rows(t, h), *normed = bf16_rows(t, h);
    void *q_a = dev(rows * (size_t)m->q_lora * 2),
         *kv_a = dev(rows * (size_t)(c + r) * 2);
    void *q = dev(rows * 8 * (size_t)(m->nope + r) * 2), *ab = bf16_rows(t, 8 * (c + r));
    void *lat = dev(rows * 8 * (size_t)c * 2), *shared = dev(rows * (size_t)h * 2);
    struct mc_act in = act_of(t, h), la = act_of(t, m->q_lora),
                  at_o = act_of(t, 8 * m->v), mid = act_of(t, m->inner),
                  emid = act_of(t * k, m->inner);
    int32_t *ids = dev(rows * 32), *order = dev(rows * 32), *off = dev(4 * 1025);
    float *weights = dev(rows * 32);
    double hit = m->experts, miss = 1;
    const struct mc_mla_attn_p *a;

    add_linear(l, st, in, &y->q_a, q_a, &y->kv_a, kv_a);
    ADD(l, mla_prep, {.rows = st->rows, .kv = st->kv, .slots = st->slots, .layer = at,
                      .q_lora = m->q_lora, .q_a = q_a, .kv_a = kv_a, .q_norm = norm,
                      .kv_norm = norm, .eps = 1e-5f, .rope = {inv, 1, (int16_t)r, 0, 1},
                      .act = la});
    add_linear(l, st, la, &y->q_b, q, NULL, NULL);
    ADD(l, mla_q,
        {.rows = st->rows,
         .h = 8,
         .nope = m->nope,
         .c = c,
         .q = q,
         .w_uk = y->uk,
         .rope = {inv, 1, (int16_t)r, (int16_t)m->nope, 1},
         .out = ab});
    add_attn(l, st, at, 8, ab, NULL, 0);
    a = l->v[l->n - 1].p;
    ADD(l, attn_merge, {.rows = st->rows, .h = 8, .d = c, .n_part = a->n_part,
                        .cap_decode = t, .o = a->o, .ml = a->ml, .out = lat});
    ADD(l, mla_out, {.rows = st->rows, .h = 8, .c = c, .v = m->v, .o_lat = lat,
                     .w_uv = y->uv, .act = at_o});
    l->bytes += 8.0 * (double)(y->uk.w.bytes + y->uv.w.bytes);
    add_linear(l, st, at_o, &y->o, x, NULL, NULL);
    ADD(l, join, {.rows = st->rows, .x = x, .res = res, .w = norm, .eps = 1e-5f, .h = h,
                  .first = true, .act = in, .norm_out = normed});
    ADD_SCRATCH(l, route,
                {.n_live = st->rows.live,
                 .cap = t,
                 .x = bf16_rows(t, h),
                 .w = y->router,
                 .top_k = k,
                 .norm = true,
                 .factor = 2.5f,
                 .ids = ids,
                 .weights = weights,
                 .offset = off,
                 .order = order});
    ADD_SCRATCH(l, glu, {.n_live = st->rows.live, .cap = t, .act = in, .gate = y->gate,
                         .up = y->up, .out = mid});
    add_linear(l, st, mid, &y->down, shared, NULL, NULL);
    ADD_SCRATCH(l, moe,
                {.n_live = st->rows.live,
                 .cap = t,
                 .top_k = k,
                 .act = in,
                 .ids = ids,
                 .offset = off,
                 .order = order,
                 .weights = weights,
                 .gate = y->e_gate,
                 .up = y->e_up,
                 .down = y->e_down,
                 .mid = emid,
                 .add = shared,
                 .y = x});
    for (int32_t i = 0; i < t; i++) /* expected, of independent choices */
        miss *= 1 - (double)k / m->experts;
    hit *= 1 - miss;
    l->bytes += (double)(y->router.bytes + y->gate.bytes + y->up.bytes) +
                hit * (double)(y->e_gate.w.bytes + y->e_up.w.bytes + y->e_down.w.bytes);
    ADD(l, join, {.rows = st->rows, .x = x, .res = res, .w = norm, .eps = 1e-5f, .h = h,
                  .act = in});
}

static void bench_step(const struct shape *m)
{
    static const struct {
        int32_t rows;
        uint16_t kv;
        const char *name;
    } cases[] = {{1, MC_KV_FP8_656, "fp8-656"}, {16, MC_KV_FP8_656, "fp8-656"},
                 {64, MC_KV_FP8_656, "fp8-656"}, {64, MC_KV_BF16, "bf16"}};
    int32_t layers = tiny ? 1 : 4, c = tiny ? 128 : 512, r = tiny ? 32 : 64;
    int32_t ctx = tiny ? 100 : 8192;
    struct layer y[2] = {layer_of(m, c, r), layer_of(m, c, r)};
    char name[100], more[60];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct step st = step_of(cases[i].rows, ctx, cases[i].kv, c, r, layers, 0);
        struct list *l = calloc(1, sizeof *l);
        double graph, eager;

        for (int32_t j = 0; j < layers; j++)
            add_layer(l, m, &y[j % 2], &st, j);
        eager = time_of(l, false);
        graph = time_of(l, true);
        snprintf(name, sizeof name, "%s, %d layers, kv %s, %d x %d", m->name, layers,
                 cases[i].name, cases[i].rows, ctx);
        snprintf(more, sizeof more, "%.1f us a layer, eager %.1f", graph / layers,
                 eager / layers);
        say(name, graph, l->bytes, more);
        b->release(b, st.kv.base, 0);
        for (int j = 0; j < l->n; j++)
            free(l->v[j].p);
        free(l);
    }
    for (int i = 0; i < 2; i++) {
        const struct mc_ws *e[] = {&y[i].e_gate, &y[i].e_up, &y[i].e_down};

        for (int j = 0; j < 3; j++) {
            b->release(b, e[j]->w.q, 0);
            b->release(b, e[j]->w.scale, 0);
        }
    }
}

int main(int argc, char **argv)
{
    struct mc_backend_opts o = {.ref_act = -1};
    const char *why = "";

    setvbuf(stdout, NULL, _IOLBF, 0);
    b = mc_cuda_open(&o, &why);
    if (!b || b->stream_new(b, &s) != 0)
        die("cuda", why);
    tiny = strncmp(b->what, "emulated", 8) == 0;
    roof = getenv("ROOF") ? atof(getenv("ROOF")) : roof;
    if (argc == 3 && strcmp(argv[1], "--json") == 0)
        json = fopen(argv[2], "w");
    if (json)
        fprintf(json, "{\"device\":\"%s\",\"roof_gb_s\":%.0f,\"rows\":[\n", b->what,
                roof);
    printf("%s, roof %.0f GB/s%s\n", b->what, roof,
           tiny ? ": small shapes, figures mean nothing" : "");
    scratch_bytes = (size_t)(tiny ? 16 : 512) << 20;
    scratch = dev(scratch_bytes);
    bench_linear();
    bench_attention();
    bench_index();
    if (tiny)
        bench_step(&shape_tiny);
    for (size_t i = 0; i < 3 && !tiny; i++)
        bench_step(&shapes[i]);
    if (json) {
        fprintf(json, "\n]}\n");
        fclose(json);
    }
    b->stream_free(s);
    b->close(b);
    return 0;
}
