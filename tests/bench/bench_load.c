/* bench_load.c - how fast is a checkpoint read by ranks whose memory throws it away?
 *
 *   build/bench_load DIR|FILE.gguf [RANKS, 1]
 *
 * The real loader, every check of it and every cut, into a backend that copies each slice
 * to staging, as an upload would, and drops it. tests/http/sparse_kimi.py writes a
 * checkpoint of 594 GB for it that takes no room. Prints bytes, seconds, GB/s and the
 * most memory that was resident. OWNS all until it ends. THREAD: main, and one a rank. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "core/base/clock.h"
#include "core/model/model.h"
#include "core/model/strangers.h"
#include "core/weights/weights.h"

enum { STAGE = 64 << 20, MAX_RANKS = 8 };

struct discard {
    struct mc_backend be;
    uint8_t *stage;
    uint64_t bytes; /* that went through it */
};

struct mc_stream {
    struct discard *d;
};

struct rank {
    struct discard d;
    struct mc_slice slice;
    struct mc_model model;
    const struct mc_ckpt *c;
    const struct mc_config *cfg;
    struct mc_err err;
    pthread_t thread;
    int rc;
};

/* ---- a backend that keeps nothing -------------------------------------------------- */

static void stage(struct discard *d, const uint8_t *p, uint64_t n)
{
    for (uint64_t at = 0; at < n; at += STAGE)
        memcpy(d->stage, p + at, n - at < STAGE ? n - at : STAGE);
    d->bytes += n;
}

/* Entries of a tensor beside the codes: a row's begin at row / rows, cols / wide a row.
 */
static void stage_beside(struct discard *d, const struct mc_pack_p *p, const void *data,
                         uint64_t bytes, int32_t rows, int32_t wide)
{
    int64_t a = p->row0 / rows, b = (p->row0 + p->w.n + rows - 1) / rows;
    uint64_t row = ((uint64_t)p->disk.k + (uint64_t)wide - 1) / (uint64_t)wide * bytes;

    if (data)
        stage(d, (const uint8_t *)data + (uint64_t)a * row, (uint64_t)(b - a) * row);
}

static int pack_need(const void *params, struct mc_need *need, const char **why)
{
    (void)params, (void)why;
    *need = (struct mc_need){.q = 64};
    return 0;
}

static int pack_run(struct mc_stream *s, const void *params)
{
    const struct mc_pack_p *p = params;
    const struct mc_disk *k = &p->disk;
    uint64_t row = mc_disk_bytes(k->fmt, 1, k->k),
             at = row * (uint64_t)p->k0 / (uint64_t)k->k;
    uint64_t n = row * (uint64_t)p->w.k / (uint64_t)k->k;
    const uint8_t *q = (const uint8_t *)k->q + row * (uint64_t)p->row0;

    if (n == row)
        stage(s->d, q, row * (uint64_t)p->w.n);
    else
        for (int32_t r = 0; r < p->w.n; r++)
            stage(s->d, q + row * (uint64_t)r + at, n);
    if (k->fmt == MC_D_INT4)
        stage_beside(s->d, p, k->scale, k->scale_dt == MC_F32 ? 4 : 2, 1, k->group);
    if (k->fmt == MC_D_E4M3)
        stage_beside(s->d, p, k->scale, k->scale_dt == MC_F32 ? 4 : 2, k->block_n,
                     k->block_k);
    if (k->fmt == MC_D_NVFP4)
        stage_beside(s->d, p, k->scale, 1, 1, k->group);
    return 0;
}

static const struct mc_op pack_op = {"pack", sizeof(struct mc_pack_p), pack_need, NULL,
                                     pack_run};

static uint16_t run_of(const struct mc_backend *b, uint16_t fmt)
{
    (void)b, (void)fmt;
    return MC_W_BF16;
}

static uint16_t act_of(const struct mc_backend *b, uint16_t layout)
{
    (void)b, (void)layout;
    return MC_A_BF16;
}

/* A place to point to is all that anybody gets. */
static void *take(struct mc_backend *b, size_t bytes)
{
    (void)bytes;
    return ((struct discard *)b)->stage;
}

static void give(struct mc_backend *b, void *p, size_t bytes)
{
    (void)b, (void)p, (void)bytes;
}

static int upload(struct mc_backend *b, void *to, const void *from, size_t bytes)
{
    (void)to, (void)from;
    ((struct discard *)b)->bytes += bytes;
    return 0;
}

static int stream_new(struct mc_backend *b, struct mc_stream **out)
{
    *out = malloc(sizeof **out);
    if (!*out)
        return MC_K_ENOMEM;
    (*out)->d = (struct discard *)b;
    return 0;
}

static void stream_free(struct mc_stream *s)
{
    free(s);
}

static uint64_t mark(struct mc_stream *s)
{
    (void)s;
    return 0;
}

static int wait_for(struct mc_stream *s, uint64_t ticket)
{
    (void)s, (void)ticket;
    return 0;
}

static void open_discard(struct discard *d)
{
    d->be = (struct mc_backend){.name = "discard",
                                .row_dt = MC_BF16,
                                .run_of = run_of,
                                .act_of = act_of,
                                .alloc = take,
                                .release = give,
                                .host_alloc = take,
                                .host_release = give,
                                .upload = upload,
                                .stream_new = stream_new,
                                .stream_free = stream_free,
                                .mark = mark,
                                .wait = wait_for};
    d->be.op[MC_OP_pack] = &pack_op;
    d->stage = malloc(STAGE);
    if (!d->stage)
        exit(1);
}

/* ---- ranks ------------------------------------------------------------------------- */

static void *load(void *arg)
{
    struct rank *r = arg;

    open_discard(&r->d);
    r->rc = mc_model_open(&r->d.be, r->c, r->cfg, r->slice, r->cfg->vocab, &r->model,
                          &r->err);
    return NULL;
}

int main(int argc, char **argv)
{
    static struct rank rank[MAX_RANKS];
    static struct mc_config cfg;
    int n = argc > 2 ? atoi(argv[2]) : 1;
    struct mc_ckpt *c = NULL;
    struct mc_err err = {0};
    double t0 = mc_now(), t1, bytes = 0;
    struct rusage u;
    int rc = argc < 2 || n < 1 || n > MAX_RANKS ? MC_EARG
                                                : mc_ckpt_open(argv[1], &c, &err);

    if (rc == 0)
        rc = mc_config_load(c, &cfg, &err);
    t1 = mc_now();
    for (int i = 0; i < n && rc == 0; i++) {
        rank[i] = (struct rank){.slice = {i, n}, .c = c, .cfg = &cfg};
        if (pthread_create(&rank[i].thread, NULL, load, &rank[i]) != 0)
            exit(1);
    }
    for (int i = 0; i < n && rc == 0; i++) {
        pthread_join(rank[i].thread, NULL);
        if (rank[i].rc < 0) {
            rc = rank[i].rc;
            err = rank[i].err;
        }
        bytes += (double)rank[i].d.bytes;
    }
    if (rc < 0) {
        fprintf(stderr, "bench_load DIR [RANKS]: %s\n", err.text);
        return 1;
    }
    getrusage(RUSAGE_SELF, &u);
    printf("headers %.2f s; %d ranks took %.1f GB in %.1f s, %.2f GB/s; %ld MiB resident "
           "at most\n",
           t1 - t0, n, bytes / 1e9, mc_now() - t1, bytes / 1e9 / (mc_now() - t1),
           u.ru_maxrss >> 10);
    return 0;
}
