/* bench.h - what the kernel benchmarks share: the backend, the clock, the roof, matrices of
 * every disk format.
 *
 * Every figure is the best of several rounds, since the machine is shared; compare only
 * figures of one run. --clock cpu takes the threads' own time, which a crowded machine spoils
 * less. */
#ifndef MC_BENCH_H
#define MC_BENCH_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"

enum { WALK = 96 << 20, ROUNDS = 7 };

static struct mc_backend *be;
static struct mc_stream *stream;
static int n_threads;
static double roof; /* GB/s over WALK bytes on n_threads */

static bool cpu_time;

static double clock_of(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void)
{
    if (cpu_time) /* the stream's threads, nearly: this one waits */
        return clock_of(CLOCK_PROCESS_CPUTIME_ID) /
               n_threads;
    return clock_of(CLOCK_MONOTONIC);
}

static void die(const char *what, const char *why)
{
    fprintf(stderr, "bench: %s: %s\n", what, why);
    exit(1);
}

static void *memory(size_t bytes)
{
    void *p = be->alloc(be, bytes ? bytes : 1);

    if (!p)
        die("memory", "none left");
    return p;
}

static void finish(void)
{
    if (be->wait(stream, be->mark(stream)) < 0)
        die("stream", "an operation failed");
}

/* ---- roof -------------------------------------------------------------------------- */

static const uint8_t *walk;
static size_t walk_bytes;
static volatile uint64_t sink;

/* As wide as the machine can, or the loop and not the memory is measured. */
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static uint64_t read_all(const uint64_t *p, size_t n)
{
    typedef uint64_t line __attribute__((vector_size(64)));
    line x[4] = {0};
    size_t i;
    int j;

    for (i = 0; i + 32 <= n; i += 32)
        for (j = 0; j < 4; j++)
            x[j] ^= *(const line *)(p + i + 8 * j);
    x[0] ^= x[1] ^ x[2] ^ x[3];
    return x[0][0] ^ x[0][1] ^ x[0][2] ^ x[0][3] ^ x[0][4] ^ x[0][5] ^ x[0][6] ^ x[0][7];
}

static void *reader(void *arg)
{
    sink = read_all((const uint64_t *)(walk + (size_t)(intptr_t)arg * walk_bytes),
                    walk_bytes / 8);
    return NULL;
}

static double read_speed(size_t bytes, int threads)
{
    uint8_t *p = memory(bytes);
    pthread_t t[64];
    double best = 1e9, t0;
    int r, i;

    memset(p, 1, bytes);
    walk = p;
    walk_bytes = bytes / (size_t)threads / 256 * 256;
    for (r = 0; r < ROUNDS; r++) {
        t0 = now();
        for (i = 0; i < threads; i++)
            pthread_create(&t[i], NULL, reader, (void *)(intptr_t)i);
        for (i = 0; i < threads; i++)
            pthread_join(t[i], NULL);
        t0 = now() - t0;
        best = t0 < best ? t0 : best;
    }
    be->release(be, p, bytes);
    return (double)bytes / best * 1e-9;
}

/* ---- matrices ---------------------------------------------------------------------- */

static const struct fmt {
    const char *name;
    uint16_t fmt;
    int32_t unit, bytes; /* columns and bytes of a block */
    int32_t group;
} fmts[] = {
    {"q4_1", MC_D_Q4_1, 32, 20, 0},      {"q4_0", MC_D_Q4_0, 32, 18, 0},
    {"q8_0", MC_D_Q8_0, 32, 34, 0},      {"q5_1", MC_D_Q5_1, 32, 24, 0},
    {"q4_k", MC_D_Q4_K, 256, 144, 0},    {"q6_k", MC_D_Q6_K, 256, 210, 0},
    {"int4-128", MC_D_INT4, 2, 1, 64},   {"nvfp4", MC_D_NVFP4, 2, 1, 16},
    {"e4m3", MC_D_E4M3, 1, 1, 0},        {"bf16", MC_D_BF16, 1, 2, 0},
    {"f16", MC_D_F16, 1, 2, 0},          {"f32", MC_D_F32, 1, 4, 0},
};

/* One byte everywhere is a plain small number in every format; speed does not depend on
 * values. */
static struct mc_w packed(const struct fmt *f, int32_t n, int32_t k)
{
    size_t bytes = (size_t)n * (size_t)(k / f->unit) * (size_t)f->bytes;
    struct mc_pack_p p = {.disk = {.fmt = f->fmt, .n = n, .k = k, .group = f->group,
                                   .block_n = 128, .block_k = 128, .global = 1,
                                   .scale_dt = f->fmt == MC_D_NVFP4  ? MC_E4M3
                                               : f->fmt == MC_D_INT4 ? MC_BF16
                                                                     : MC_F32}};
    const char *why = "";
    struct mc_need need;
    uint8_t *q = malloc(bytes), *s = malloc(bytes + 4096);

    memset(q, 0x11, bytes);
    memset(s, 0x11, bytes + 4096);
    p.disk.q = q;
    p.disk.scale = s;
    p.w = (struct mc_w){.layout = be->run_of(be, f->fmt), .dt = MC_F32, .n = n, .k = k};
    if (be->op[MC_OP_pack]->need(&p, &need, &why) != 0)
        die(f->name, why);
    p.w.q = memory(need.q);
    p.w.scale = memory(need.scale);
    p.w.bytes = need.q + need.scale;
    mc_k_pack(be, stream, &p);
    finish();
    free(q), free(s);
    return p.w;
}

/* ---- the command line -------------------------------------------------------------- */

/* Opens the backend, measures the roof; returns --only's word. */
static const char *bench_open(int argc, char **argv)
{
    struct mc_backend_opts o = {.ref_act = -1};
    const char *only = "", *why = "";
    int i;

    for (i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--cpu") == 0)
            o.cpu = argv[i + 1];
        else if (strcmp(argv[i], "--threads") == 0)
            o.threads = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--only") == 0)
            only = argv[i + 1];
        else if (strcmp(argv[i], "--clock") == 0)
            cpu_time = strcmp(argv[i + 1], "cpu") == 0;
        else
            die(argv[i], "no such flag");
    }
    be = mc_cpu_open(&o, &why);
    if (!be || be->stream_new(be, &stream) < 0)
        die("cpu", why);
    n_threads = o.threads > 0 ? o.threads : 2;
    printf("# %s; 1 row: weight bytes read, share of the 96 MiB roof; n: GFLOP/s\n",
           be->what);
    roof = read_speed(WALK, n_threads);
    return only;
}

static void bench_close(void)
{
    be->stream_free(stream);
    be->close(be);
}

#endif
