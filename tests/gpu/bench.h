/* bench.h - what bench_gpu.c measures with: device memory, lists of operations and their
 * time, random weights, the rows of a decode step. For one program of one file. Memory is
 * kept until the program ends, or released by hand where it is large. THREAD: one. */
#ifndef MC_BENCH_GPU_H
#define MC_BENCH_GPU_H

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

static inline void die(const char *what, const char *why)
{
    printf("bench-gpu: %s: %s\n", what, why);
    exit(1);
}

static inline void *dev(size_t bytes)
{
    void *p = b->alloc(b, bytes);

    if (!p)
        die("memory", "the device has no more");
    return p;
}

static inline void *put(const void *from, size_t bytes)
{
    void *p = dev(bytes);

    if (b->upload(b, p, from, bytes) != 0)
        die("upload", "failed");
    return p;
}

static inline uint32_t rnd(void)
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

static inline void add(struct list *l, enum mc_op_id id, const void *p, size_t bytes,
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

static inline double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static inline void enqueue(const struct list *l, int times)
{
    for (int i = 0; i < times; i++)
        for (int j = 0; j < l->n; j++)
            if (l->v[j].op->run(s, l->v[j].p) != 0)
                die(l->v[j].op->name, "did not start");
}

static inline void finish(void)
{
    if (b->wait(s, b->mark(s)) != 0)
        die("a kernel", "failed");
}

/* Microseconds of the list, by graph or call by call. */
static inline double time_of(const struct list *l, bool by_graph)
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

static inline void say(const char *name, double us, double bytes, const char *more)
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

static inline void report(const char *name, struct list *l)
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
static inline struct mc_disk disk_of(enum fmt f, int32_t n, int32_t k)
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
static inline struct mc_ws stack_of(enum fmt f, int32_t n, int32_t k, int32_t count)
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

static inline struct mc_w matrix(enum fmt f, int32_t n, int32_t k)
{
    return stack_of(f, n, k, 1).w;
}

static inline void *bf16_rows(int32_t rows, int32_t k)
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

static inline struct mc_act act_of(int32_t rows, int32_t k)
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

static inline struct step step_of(int32_t n, int32_t ctx, uint16_t layout, int32_t c,
                                  int32_t r, int32_t layers, int32_t n_index)
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

#endif
