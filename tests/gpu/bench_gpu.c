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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/host/cast.h"
#include "kernels/kernels.h"

enum { MAX_OPS = 200, MAX_ROWS = 64 };

static struct mc_backend *b;
static struct mc_stream *s;
static bool tiny; /* emulated */
static double roof = 4800;
static FILE *json;
static int n_json;
static uint64_t seed = 1;

static void die(const char *what, const char *why)
{
    printf("bench-gpu: %s: %s\n", what, why);
    exit(1);
}

static void *dev(size_t bytes)
{
    void *p = b->alloc(b, bytes);

    if (!p)
        die("memory", "the device has no more");
    return p;
}

static void *put(const void *from, size_t bytes)
{
    void *p = dev(bytes);

    if (b->upload(b, p, from, bytes) != 0)
        die("upload", "failed");
    return p;
}

static uint32_t rnd(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 32);
}

/* ---- operations in a row ----------------------------------------------------------- */

struct list {
    struct {
        const struct mc_op *op;
        void *p;
    } v[MAX_OPS];
    int n;
    double bytes; /* the least that they move */
};

/* Scratch for all, taken for the largest need. */
static void *scratch;
static size_t scratch_bytes;

static void add(struct list *l, enum mc_op_id id, const void *p, size_t bytes,
                size_t scratch_at)
{
    const struct mc_op *op = b->op[id];
    struct mc_need need;
    const char *why = "refused";

    if (!op || l->n == MAX_OPS)
        die("an operation", "missing, or too many");
    if (op->need(p, &need, &why) != 0)
        die(op->name, why);
    l->v[l->n].op = op;
    l->v[l->n].p = malloc(bytes);
    memcpy(l->v[l->n].p, p, bytes);
    if (need.scratch > scratch_bytes)
        die(op->name, "more scratch than was taken");
    if (scratch_at)
        memcpy((char *)l->v[l->n].p + scratch_at, &scratch, sizeof scratch);
    l->n++;
}
#define ADD(l, name, ...)                                    \
    add(l, MC_OP_##name, &(struct mc_##name##_p)__VA_ARGS__, \
        sizeof(struct mc_##name##_p), 0)
#define ADD_SCRATCH(l, name, ...)                            \
    add(l, MC_OP_##name, &(struct mc_##name##_p)__VA_ARGS__, \
        sizeof(struct mc_##name##_p), offsetof(struct mc_##name##_p, scratch))

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void enqueue(const struct list *l, int times)
{
    for (int i = 0; i < times; i++)
        for (int j = 0; j < l->n; j++)
            if (l->v[j].op->run(s, l->v[j].p) != 0)
                die(l->v[j].op->name, "did not start");
}

static void finish(void)
{
    if (b->wait(s, b->mark(s)) != 0)
        die("a kernel", "failed");
}

/* Microseconds of the list, by graph or call by call. */
static double time_of(const struct list *l, bool by_graph)
{
    int times = tiny ? 1 : 10;
    struct mc_graph *g = NULL;
    double best = 1e30;

    enqueue(l, 1);
    finish();
    if (by_graph) {
        if (b->graph_begin(s) != 0)
            die("a graph", "can't begin");
        enqueue(l, times);
        if (b->graph_end(s, &g) != 0)
            die("a graph", "can't end");
    }
    for (int i = 0; i < (tiny ? 1 : 5); i++) {
        double t0 = now();

        if (g)
            b->graph_run(s, g);
        else
            enqueue(l, times);
        finish();
        t0 = (now() - t0) / times;
        best = t0 < best ? t0 : best;
    }
    b->graph_free(g);
    return best;
}

static void say(const char *name, double us, double bytes, const char *more)
{
    double gbs = bytes / us * 1e-3;

    printf("%-44s %10.1f us %9.1f MB %8.0f GB/s %5.1f %% %s\n", name, us, bytes * 1e-6,
           gbs, 100 * gbs / roof, more);
    fflush(stdout);
    if (json)
        fprintf(json, "%s{\"name\":\"%s\",\"us\":%.3f,\"bytes\":%.0f,\"gb_s\":%.1f,"
                      "\"of_roof\":%.4f}",
                n_json++ ? ",\n" : "", name, us, bytes, gbs, gbs / roof);
}

static void report(const char *name, struct list *l)
{
    say(name, time_of(l, true), l->bytes, "");
    for (int i = 0; i < l->n; i++)
        free(l->v[i].p);
    l->n = 0;
    l->bytes = 0;
}

/* ---- weights ----------------------------------------------------------------------- */

enum fmt { BF16, E4M3, I4_32, I4_128, NVFP4 };
static const char *const fmt_name[] = {"bf16", "e4m3 128x128", "int4 g32", "int4 g128",
                                       "nvfp4"};

/* Random codes and scales of sane size; freed by nobody: a few. */
static struct mc_disk disk_of(enum fmt f, int32_t n, int32_t k)
{
    static const uint16_t fmts[] = {MC_D_BF16, MC_D_E4M3, MC_D_INT4, MC_D_INT4,
                                    MC_D_NVFP4};
    int32_t group = f == I4_32 ? 32 : f == I4_128 ? 128 : 16;
    size_t codes = (size_t)n * (size_t)k, q = f == BF16   ? 2 * codes
                                              : f == E4M3 ? codes
                                                          : codes / 2;
    size_t scales = f == E4M3 ? (size_t)((n + 127) / 128 * ((k + 127) / 128))
                              : codes / (size_t)group;
    struct mc_disk d = {.fmt = fmts[f], .n = n, .k = k, .global = 0.01f, .group = group,
                        .block_n = 128, .block_k = 128};
    uint8_t *c = malloc(q), *sc = malloc(4 * scales + 4);

    for (size_t i = 0; i < codes && f == BF16; i++) {
        uint16_t v = mc_bf16_of_f32(((float)(rnd() >> 8) * 0x1p-24f - 0.5f) * 0.05f);

        memcpy(c + 2 * i, &v, 2);
    }
    for (size_t i = 0; i < q && f != BF16; i++)
        c[i] = (uint8_t)(f == E4M3 ? rnd() % 0x70 | (rnd() & 0x80) : rnd());
    for (size_t i = 0; i < scales; i++) {
        float x = 0.001f;
        uint16_t h = mc_bf16_of_f32(x);

        if (f == E4M3)
            memcpy(sc + 4 * i, &x, 4);
        else if (f == NVFP4)
            sc[i] = (uint8_t)(0x20 + rnd() % 0x20);
        else
            memcpy(sc + 2 * i, &h, 2);
    }
    d.q = c;
    d.scale = f == BF16 ? NULL : sc;
    d.scale_dt = f == E4M3 ? MC_F32 : f == NVFP4 ? MC_E4M3 : MC_BF16;
    if (f == BF16 || f == E4M3)
        d.group = 0;
    return d;
}

/* `count` matrices of the same numbers, at places of their own. */
static struct mc_ws stack_of(enum fmt f, int32_t n, int32_t k, int32_t count)
{
    struct mc_disk d = disk_of(f, n, k);
    struct mc_pack_p p = {
        .disk = d, .w = {.layout = b->run_of(b, d.fmt), .dt = MC_BF16, .n = n, .k = k}};
    struct mc_need need;
    const char *why = "";
    struct mc_ws w = {.n = count};

    if (b->op[MC_OP_pack]->need(&p, &need, &why) != 0)
        die("pack", why);
    w.q_step = (int64_t)(need.q + 255) / 256 * 256;
    w.scale_step = (int64_t)(need.scale + 255) / 256 * 256;
    p.w.bytes = need.q + need.scale + need.zero;
    w.w = p.w;
    w.w.q = dev((size_t)w.q_step * (size_t)count);
    w.w.scale = dev((size_t)w.scale_step * (size_t)count);
    for (int32_t i = 0; i < count; i++) {
        p.w = mc_ws_at(&w, i);
        if (b->op[MC_OP_pack]->run(s, &p) != 0)
            die("pack", "failed");
    }
    finish();
    free((void *)(uintptr_t)d.q);
    free((void *)(uintptr_t)d.scale);
    return w;
}

static struct mc_w matrix(enum fmt f, int32_t n, int32_t k)
{
    return stack_of(f, n, k, 1).w;
}

static void *bf16_rows(int32_t rows, int32_t k)
{
    size_t n = (size_t)rows * (size_t)k;
    uint16_t *x = malloc(n * 2);
    void *p;

    for (size_t i = 0; i < n; i++)
        x[i] = mc_bf16_of_f32((float)(rnd() >> 8) * 0x1p-23f - 1);
    p = put(x, n * 2);
    free(x);
    return p;
}

static struct mc_act act_of(int32_t rows, int32_t k)
{
    return (struct mc_act){.x = bf16_rows(rows, k), .k = k, .layout = MC_A_BF16};
}

/* ---- rows of a decode step --------------------------------------------------------- */

struct step {
    struct mc_rows rows;
    struct mc_kv kv;
    struct mc_slot *slots;
    int32_t n, ctx;
};

static struct step step_of(int32_t n, int32_t ctx, uint16_t layout, int32_t c, int32_t r,
                           int32_t layers, int32_t n_index)
{
    int32_t live[4] = {n, n, n, n}, at[MAX_ROWS + 1], pos[MAX_ROWS], len[MAX_ROWS];
    int32_t pitch = (ctx + MC_PAGE - 1) / MC_PAGE, pages = pitch * n;
    int32_t *table = malloc((size_t)pages * 4);
    struct step st = {.n = n, .ctx = ctx};
    struct mc_kv *kv = &st.kv;

    for (int32_t i = 0; i <= n; i++)
        at[i] = i;
    for (int32_t i = 0; i < n; i++) {
        pos[i] = ctx - 1;
        len[i] = ctx;
    }
    for (int32_t i = 0; i < pages; i++) /* scattered, each once */
        table[i] = (int32_t)((int64_t)i * 7919 % pages);
    st.rows = (struct mc_rows){.cap = n,
                               .cap_seq = n,
                               .cap_out = n,
                               .live = put(live, sizeof live),
                               .tok = put(at, 4 * (size_t)n),
                               .pos = put(pos, 4 * (size_t)n),
                               .row_seq = put(at, 4 * (size_t)n),
                               .q0 = put(at, 4 * (size_t)n + 4),
                               .kv_len = put(len, 4 * (size_t)n),
                               .slot = put(at, 4 * (size_t)n),
                               .out_row = put(at, 4 * (size_t)n)};
    *kv = (struct mc_kv){.table = put(table, (size_t)pages * 4), .pitch = pitch,
                         .n_page = pages, .n_slot = n, .n_layer = layers, .n_shard = 1,
                         .layout = layout, .c = c, .r = r};
    kv->layer_stride = MC_PAGE * mc_mla_token_bytes(layout, c, r);
    kv->index_off = kv->layer_stride * layers;
    kv->page_stride = kv->index_off;
    if (n_index > 0) {
        kv->index_d = 128;
        kv->n_index = n_index;
        kv->index_stride = mc_index_bytes(layout, 128);
        kv->page_stride += kv->index_stride * n_index;
    }
    kv->base = dev((size_t)kv->page_stride *
                   (size_t)pages); /* zeros: speed is the same */
    st.slots = dev((size_t)n * sizeof *st.slots);
    free(table);
    return st;
}

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
