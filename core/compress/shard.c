/* shard.c - writes one shard: header, copies, and matrices encoded piece by piece.
 *
 * Owns the threads and the open file for the length of the call. THREAD: the caller's and
 * its workers; a worker takes the next piece (128 rows of a matrix, or 32 MiB of a copy)
 * by an atomic counter and writes it where the layout says, so that nothing depends on
 * who takes what. Losses are kept piece by piece and summed in order. Always true: the
 * file has its name only when it is whole and on the disk. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/thread.h"
#include "core/compress/compress_int.h"

enum { COPY_BYTES = 32 << 20, MAX_JOBS = 256 };

struct piece {
    int32_t out;  /* its first output; an item's others follow */
    int32_t rows; /* 0: a copy */
    uint64_t at;  /* first row, or byte of a copy */
    struct mc_loss loss;
};

struct work {
    const struct mc_plan_of *pl;
    const struct mc_shard *s;
    int fd;
    struct piece *piece;
    int64_t n_piece, cap;
    atomic_llong next, done;
    atomic_ullong bytes; /* written so far */
    atomic_int failed;
    pthread_mutex_t lock; /* of err */
    struct mc_err *err;
    void (*each)(struct work *w, struct piece *p);
};

static void stop(struct work *w, const struct mc_err *e)
{
    pthread_mutex_lock(&w->lock);
    if (!atomic_load(&w->failed) && w->err)
        *w->err = *e;
    atomic_store(&w->failed, e->code);
    pthread_mutex_unlock(&w->lock);
}

static int put(struct work *w, uint64_t offset, const void *data, size_t n,
               struct mc_err *err)
{
    const char *p = data;
    uint64_t at = 8 + w->s->n_header + offset;

    while (n > 0) {
        ssize_t got = pwrite(w->fd, p, n, (off_t)at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return mc_fail(err, MC_EIO, "writing %s: %s", w->s->file,
                           got < 0 ? strerror(errno) : "nothing was written");
        p += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return 0;
}

/* ---- pieces ------------------------------------------------------------------------ */

static int add_piece(struct work *w, struct piece p)
{
    if (w->n_piece == w->cap) {
        int64_t cap = w->cap ? 2 * w->cap : 1024;
        struct piece *grown = realloc(w->piece, (size_t)cap * sizeof *grown);

        if (!grown)
            return MC_ENOMEM;
        w->piece = grown;
        w->cap = cap;
    }
    w->piece[w->n_piece++] = p;
    return 0;
}

/* Cuts outputs [first, first + n) in pieces. */
static int cut(struct work *w, int32_t first, int32_t n)
{
    const struct mc_plan_of *pl = w->pl;
    int rc = 0;

    for (int32_t i = first; i < first + n && rc == 0; i++) {
        const struct mc_out_tensor *o = &pl->out[i];

        if (o->part == MC_PART_COPY)
            for (uint64_t at = 0; at < o->bytes && rc == 0; at += COPY_BYTES)
                rc = add_piece(w, (struct piece){.out = i, .at = at});
        else if (o->part == MC_PART_Q)
            for (int32_t r = 0; r < pl->item[o->item].disk.n && rc == 0;
                 r += MC_PRESS_ROWS)
                rc = add_piece(w, (struct piece){
                                      .out = i, .at = (uint64_t)r,
                                      .rows = pl->item[o->item].disk.n - r < MC_PRESS_ROWS
                                                  ? pl->item[o->item].disk.n - r
                                                  : MC_PRESS_ROWS});
    }
    return rc;
}

/* Pieces that a matrix is cut in. */
static int64_t pieces_of(const struct mc_item *it)
{
    return (it->disk.n + MC_PRESS_ROWS - 1) / MC_PRESS_ROWS;
}

/* The matrix as it can be read row by row. One that lies in another order is turned as a
 * whole when its first piece is taken, and given back with its last: pieces are taken in
 * order, so that there are never more of them than workers. */
static int take_disk(struct work *w, struct mc_item *it, struct mc_disk *d,
                     struct mc_err *err)
{
    int rc = 0;

    *d = it->disk;
    if (!it->other_order)
        return 0;
    pthread_mutex_lock(&w->lock);
    if (!it->own) {
        rc = mc_ckpt_matrix_own(w->pl->p->src, it->module, &it->disk, &it->own, err);
        it->n_left = pieces_of(it);
    }
    *d = it->disk;
    pthread_mutex_unlock(&w->lock);
    return rc;
}

static void give_disk(struct work *w, struct mc_item *it)
{
    if (!it->other_order)
        return;
    pthread_mutex_lock(&w->lock);
    if (--it->n_left == 0) {
        free(it->own);
        it->own = NULL;
    }
    pthread_mutex_unlock(&w->lock);
}

/* The source's row that becomes row r of the result. */
static int32_t row_of(const struct mc_item *it, int32_t r)
{
    int32_t half = it->pairs / 2, i;

    if (!it->pairs)
        return r;
    i = r % it->pairs;
    return r - i + 2 * (i % half) + i / half;
}

/* What was read leaves memory again. */
static void drop_rows(const struct mc_plan_of *pl, const struct mc_disk *d,
                      const struct piece *p)
{
    if (d->fmt != MC_D_INT4 || !d->zero)
        mc_ckpt_drop(pl->p->src,
                     (const char *)d->q + mc_disk_bytes(d->fmt, (int64_t)p->at, d->k),
                     mc_disk_bytes(d->fmt, p->rows, d->k));
}

/* Rows of a matrix, decoded; NULL with an error. */
static float *rows_of(struct work *w, struct mc_item *it, const struct piece *p,
                      struct mc_err *err)
{
    float *x = malloc((size_t)p->rows * (size_t)it->disk.k * sizeof *x);
    struct mc_disk d;

    if (!x) {
        mc_fail(err, MC_ENOMEM, "no memory for rows of %.120s", it->module);
        return NULL;
    }
    if (take_disk(w, it, &d, err) < 0) {
        free(x);
        return NULL;
    }
    for (int32_t r = 0; r < p->rows; r++)
        mc_disk_row(&d, row_of(it, (int32_t)p->at + r), 0, d.k, x + (int64_t)r * d.k);
    give_disk(w, it);
    if (!it->other_order)
        drop_rows(w->pl, &d, p);
    return x;
}

/* Bytes a row of an output has. */
static uint64_t pitch(const struct mc_out_tensor *o)
{
    return o->bytes / (uint64_t)o->dim[0];
}

static int put_rows(struct work *w, struct piece *p, const float *x, struct mc_err *err)
{
    const struct mc_out_tensor *q = &w->pl->out[p->out], *s = q + 1;
    const struct mc_item *it = &w->pl->item[q->item];
    const struct mc_press *job = w->pl->p;
    bool scaled = it->n_out > 1;
    uint64_t s_row = it->to.fmt == MC_D_E4M3 ? p->at / MC_PRESS_ROWS : p->at;
    uint64_t s_rows = it->to.fmt == MC_D_E4M3 ? 1 : (uint64_t)p->rows;
    size_t q_bytes = (size_t)((uint64_t)p->rows * pitch(q));
    size_t s_bytes = scaled ? (size_t)(s_rows * pitch(s)) : 0;
    char *buf = malloc(q_bytes + s_bytes);
    struct mc_encode e = {.fmt = it->to.fmt, .k = it->disk.k, .group = it->to.group,
                          .global = it->global, .q = buf, .scale = buf + q_bytes};
    int rc;

    if (!buf)
        return mc_fail(err, MC_ENOMEM, "no memory for a piece of %.120s", it->module);
    if (job->importance)
        e.importance = job->importance(job->ctx, it->module, it->disk.k);
    rc = mc_encode_rows(&e, p->rows, x, &p->loss);
    if (rc < 0)
        rc = mc_fail(err, rc == MC_K_ENOMEM ? MC_ENOMEM : MC_EFORMAT,
                     "%.120s holds a NaN or an infinity in rows %lld to %lld", it->module,
                     (long long)p->at, (long long)p->at + p->rows - 1);
    if (rc == 0)
        rc = put(w, q->offset + p->at * pitch(q), buf, q_bytes, err);
    if (rc == 0 && scaled)
        rc = put(w, s->offset + s_row * pitch(s), buf + q_bytes, s_bytes, err);
    atomic_fetch_add(&w->bytes, q_bytes + s_bytes);
    free(buf);
    return rc;
}

/* Rows that are kept, each in its place. */
static int put_as_is(struct work *w, const struct piece *p, struct mc_err *err)
{
    const struct mc_out_tensor *o = &w->pl->out[p->out];
    const struct mc_item *it = &w->pl->item[o->item];
    size_t n = (size_t)pitch(o);
    char *buf = malloc((size_t)p->rows * n);
    int rc;

    if (!buf)
        return mc_fail(err, MC_ENOMEM, "no memory for rows of %.120s", it->module);
    for (int32_t r = 0; r < p->rows; r++)
        memcpy(buf + (size_t)r * n,
               (const char *)it->disk.q + (size_t)row_of(it, (int32_t)p->at + r) * n, n);
    rc = put(w, o->offset + p->at * n, buf, (size_t)p->rows * n, err);
    drop_rows(w->pl, &it->disk, p);
    atomic_fetch_add(&w->bytes, (size_t)p->rows * n);
    free(buf);
    return rc;
}

static int put_copy(struct work *w, const struct piece *p, struct mc_err *err)
{
    const struct mc_out_tensor *o = &w->pl->out[p->out];
    uint64_t n = o->bytes - p->at < COPY_BYTES ? o->bytes - p->at : COPY_BYTES;
    int rc = put(w, o->offset + p->at, (const char *)o->from + p->at, (size_t)n, err);

    mc_ckpt_drop(w->pl->p->src, (const char *)o->from + p->at, (size_t)n);
    atomic_fetch_add(&w->bytes, n);
    return rc;
}

static int encode_piece(struct work *w, struct piece *p, struct mc_err *err)
{
    struct mc_item *it = (struct mc_item *)&w->pl->item[w->pl->out[p->out].item];
    float *x = rows_of(w, it, p, err);
    int rc = x ? put_rows(w, p, x, err) : err->code;

    free(x);
    return rc;
}

static void write_piece(struct work *w, struct piece *p)
{
    const struct mc_out_tensor *o = &w->pl->out[p->out];
    struct mc_err err = {0};
    int rc = p->rows == 0                    ? put_copy(w, p, &err)
             : w->pl->item[o->item].to.keep ? put_as_is(w, p, &err)
                                             : encode_piece(w, p, &err);

    if (rc < 0)
        stop(w, &err);
}

/* ---- nvfp4's factors --------------------------------------------------------------- */

/* The largest magnitude of a piece of an nvfp4 item, in loss.ref2 for the while. */
static void measure_piece(struct work *w, struct piece *p)
{
    struct mc_item *it =
        p->rows ? (struct mc_item *)&w->pl->item[w->pl->out[p->out].item] : NULL;
    struct mc_err err = {0};
    float *x, top = 0;

    if (!it || it->to.keep || it->to.fmt != MC_D_NVFP4)
        return;
    x = rows_of(w, it, p, &err);
    if (!x)
        stop(w, &err);
    for (int64_t i = 0; x && i < (int64_t)p->rows * it->disk.k; i++)
        top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    free(x);
    p->loss.ref2 = top;
}

/* Projections that servers multiply as one matrix must have one factor: the name with the
 * differing word cut out says which belong together. */
static void fused_name(const char *module, char *out, size_t cap)
{
    static const char *const words[] = {".gate_proj", ".up_proj", ".q_proj", ".k_proj",
                                        ".v_proj"};

    snprintf(out, cap, "%s", module);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        char *at = strstr(out, words[i]);

        if (at && at[strlen(words[i])] == 0)
            snprintf(at, 8, i < 2 ? ".gu" : ".qkv");
    }
}

/* Neighbours in the layout: a fused set's members are at most a layer's matrices apart.
 */
static float fused_top(const struct mc_plan_of *pl, const float *top, int32_t i)
{
    enum { REACH = 16 };
    char mine[256], other[256];
    float best = top[i];

    fused_name(pl->item[i].module, mine, sizeof mine);
    for (int32_t j = i > REACH ? i - REACH : 0; j < pl->n_item && j <= i + REACH; j++) {
        fused_name(pl->item[j].module, other, sizeof other);
        if (strcmp(mine, other) == 0 && top[j] > best)
            best = top[j];
    }
    return best;
}

/* ---- running ----------------------------------------------------------------------- */

static void *worker(void *arg)
{
    struct work *w = arg;

    for (;;) {
        long long i = atomic_fetch_add(&w->next, 1);

        if (i >= w->n_piece || atomic_load(&w->failed))
            break;
        w->each(w, &w->piece[i]);
        atomic_fetch_add(&w->done, 1);
    }
    return NULL;
}

/* Calls each for every piece; the caller's thread reports. */
static int run_all(struct work *w, void (*each)(struct work *, struct piece *),
                   void (*tick)(struct work *))
{
    pthread_t t[MAX_JOBS];
    int n = w->pl->p->jobs, made = 0;

    w->each = each;
    atomic_store(&w->next, 0);
    atomic_store(&w->done, 0);
    while (made < n && made < MAX_JOBS && mc_thread_run(&t[made], worker, w) == 0)
        made++;
    if (made == 0)
        worker(w);
    while (made > 0 && atomic_load(&w->done) < w->n_piece && !atomic_load(&w->failed)) {
        usleep(50000);
        tick(w);
    }
    while (made > 0)
        pthread_join(t[--made], NULL);
    return atomic_load(&w->failed);
}

static void tick(struct work *w)
{
    const struct mc_plan_of *pl = w->pl;
    const struct mc_press *p = pl->p;
    uint64_t before = 0;

    for (int32_t i = 0; i < pl->n_shard && &pl->shard[i] != w->s; i++)
        before += pl->shard[i].bytes;
    if (p->progress)
        p->progress(p->ctx, before + atomic_load(&w->bytes), pl->bytes,
                    (int)(w->s - pl->shard) + 1, pl->n_shard);
}

static void no_tick(struct work *w)
{
    (void)w;
}

static bool any_nvfp4(const struct mc_plan_of *pl)
{
    for (int32_t i = 0; i < pl->n_item; i++)
        if (!pl->item[i].to.keep && pl->item[i].to.fmt == MC_D_NVFP4)
            return true;
    return false;
}

static int measure(struct work *w, struct mc_err *err)
{
    struct mc_plan_of *pl = (struct mc_plan_of *)w->pl;
    float *top = calloc((size_t)pl->n_item, sizeof *top);
    int rc = top ? cut(w, 0, pl->n_out) : MC_ENOMEM;

    if (rc < 0)
        mc_fail(err, rc, "no memory to measure %d matrices", pl->n_item);
    if (rc == 0)
        rc = run_all(w, measure_piece, no_tick);
    for (int64_t i = 0; i < w->n_piece && rc == 0; i++) {
        const struct piece *p = &w->piece[i];
        float *t = p->rows ? &top[pl->out[p->out].item] : NULL;

        if (t && (float)p->loss.ref2 > *t)
            *t = (float)p->loss.ref2;
    }
    for (int32_t i = 0; i < pl->n_item && rc == 0; i++)
        pl->item[i].global = mc_encode_global(fused_top(pl, top, i));
    free(top);
    return rc;
}

int mc_shard_measure(struct mc_plan_of *plan, struct mc_err *err)
{
    struct work w = {.pl = plan, .err = err, .fd = -1};
    int rc;

    if (!any_nvfp4(plan))
        return 0;
    pthread_mutex_init(&w.lock, NULL);
    rc = measure(&w, err);
    pthread_mutex_destroy(&w.lock);
    free(w.piece);
    return rc;
}

static int put_small(struct work *w, struct mc_err *err)
{
    int rc = 0;

    for (int32_t i = w->s->first; i < w->s->first + w->s->n_out && rc == 0; i++) {
        const struct mc_out_tensor *o = &w->pl->out[i];
        const struct mc_item *it = o->item >= 0 ? &w->pl->item[o->item] : NULL;

        if (o->part == MC_PART_SHAPE) {
            int64_t shape[2] = {it->disk.n, it->disk.k};

            rc = put(w, o->offset, shape, sizeof shape, err);
        } else if (o->part == MC_PART_GLOBAL) {
            float divisor = 1 / it->global;

            rc = put(w, o->offset, &divisor, sizeof divisor, err);
        }
    }
    return rc;
}

static void sum_losses(struct work *w)
{
    struct mc_plan_of *pl = (struct mc_plan_of *)w->pl;

    for (int64_t i = 0; i < w->n_piece; i++) {
        const struct piece *p = &w->piece[i];
        struct mc_loss *l;

        if (!p->rows)
            continue;
        l = &pl->item[pl->out[p->out].item].loss;
        l->ref2 += p->loss.ref2;
        l->err2 += p->loss.err2;
        l->dot += p->loss.dot;
        l->got2 += p->loss.got2;
    }
}

static int fill(struct work *w, struct mc_err *err)
{
    uint64_t n = w->s->n_header;
    int rc;

    if (ftruncate(w->fd, (off_t)(8 + n + w->s->bytes)) != 0 ||
        pwrite(w->fd, &n, 8, 0) != 8 || pwrite(w->fd, w->s->header, n, 8) != (ssize_t)n)
        return mc_fail(err, MC_EIO, "writing %s: %s", w->s->file, strerror(errno));
    rc = put_small(w, err);
    if (rc == 0)
        rc = run_all(w, write_piece, tick);
    if (rc == 0)
        sum_losses(w);
    return rc;
}

int mc_shard_write(const struct mc_plan_of *plan, int32_t shard, int dir,
                   struct mc_err *err)
{
    struct work w = {.pl = plan, .s = &plan->shard[shard], .err = err};
    char part[80];
    int rc;

    snprintf(part, sizeof part, "%s.part", w.s->file);
    w.fd = openat(dir, part, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (w.fd < 0)
        return mc_fail(err, MC_EIO, "%s: %s", part, strerror(errno));
    pthread_mutex_init(&w.lock, NULL);
    rc = cut(&w, w.s->first, w.s->n_out);
    rc = rc < 0 ? mc_fail(err, rc, "no memory for %s", w.s->file) : fill(&w, err);
    if (rc == 0 && (fsync(w.fd) != 0 || renameat(dir, part, dir, w.s->file) != 0))
        rc = mc_fail(err, MC_EIO, "%s: %s", w.s->file, strerror(errno));
    close(w.fd);
    pthread_mutex_destroy(&w.lock);
    free(w.piece);
    return rc;
}

bool mc_shard_done(const struct mc_shard *s, int dir)
{
    int fd = openat(dir, s->file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    char *have = malloc(s->n_header);
    uint64_t n = 0;
    struct stat st;
    bool ok = have && fd >= 0 && fstat(fd, &st) == 0 &&
              (uint64_t)st.st_size == 8 + s->n_header + s->bytes &&
              pread(fd, &n, 8, 0) == 8 && n == s->n_header &&
              pread(fd, have, s->n_header, 8) == (ssize_t)s->n_header &&
              memcmp(have, s->header, s->n_header) == 0;

    if (fd >= 0)
        close(fd);
    free(have);
    return ok;
}
