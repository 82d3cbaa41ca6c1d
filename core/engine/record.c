/* record.c - the recorder: a ring that the engine fills, a thread that empties it to disk.
 *
 * Owns the ring, the file and the thread. THREAD: `in`, `lost` are the engine's, `out` the
 * writer's. Always true: in - out is at most the ring's size, and what lies between is
 * whole events; a frame on disk holds whole events. */
#include "core/engine/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#include "core/base/log.h"
#include "core/base/thread.h"

enum { RING = 16 << 20, FRAME = 1 << 20, TICK_MS = 20, TICKS = 50, LEVEL = 3 };

struct mc_recorder {
    int fd;
    bool tokens;
    double t0;
    uint64_t max_bytes, written;
    pthread_t thread;
    bool started;
    atomic_bool stop, full;
    _Atomic uint64_t in, out;
    uint32_t lost; /* since the last event that found room */
    char *ring, *plain, *packed;
    size_t n_packed;
};

/* ---- the engine's side ------------------------------------------------------------- */

static void copy_in(struct mc_recorder *r, uint64_t at, const void *p, size_t n)
{
    size_t from = (size_t)(at % RING), first = n < RING - from ? n : RING - from;

    memcpy(r->ring + from, p, first);
    memcpy(r->ring, (const char *)p + first, n - first);
}

void mc_recorder_put(struct mc_recorder *r, enum mc_rec_kind kind, const void *a,
                     size_t n_a, const void *b, size_t n_b)
{
    static const char zero[8];
    size_t pad = (8 - (n_a + n_b) % 8) % 8, body = n_a + n_b + pad;
    struct mc_rec head = {.kind = kind, .bytes = (uint32_t)body};
    uint64_t in, used;

    if (!r || atomic_load_explicit(&r->full, memory_order_relaxed))
        return;
    in = atomic_load_explicit(&r->in, memory_order_relaxed);
    used = in - atomic_load_explicit(&r->out, memory_order_acquire);
    if (sizeof head + body > RING - used || sizeof head + body > FRAME) {
        r->lost++;
        return;
    }
    head.lost = r->lost;
    r->lost = 0;
    copy_in(r, in, &head, sizeof head);
    copy_in(r, in + sizeof head, a, n_a);
    copy_in(r, in + sizeof head + n_a, b ? b : zero, n_b);
    copy_in(r, in + sizeof head + n_a + n_b, zero, pad);
    atomic_store_explicit(&r->in, in + sizeof head + body, memory_order_release);
}

double mc_recorder_time(const struct mc_recorder *r, double t)
{
    return t > 0 ? t - r->t0 : 0;
}

bool mc_recorder_tokens(const struct mc_recorder *r)
{
    return r->tokens;
}

/* ---- the writer -------------------------------------------------------------------- */

static int write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t did = write(fd, p, n);

        if (did < 0 && errno == EINTR)
            continue;
        if (did < 0)
            return MC_EIO;
        p += did;
        n -= (size_t)did;
    }
    return 0;
}

static void end_it(struct mc_recorder *r, const char *why)
{
    atomic_store(&r->full, true);
    mc_warn("record", "recording ended at %llu bytes: %s", (unsigned long long)r->written,
            why);
}

static void write_frame(struct mc_recorder *r, const char *p, size_t n)
{
    size_t got = ZSTD_compress(r->packed, r->n_packed, p, n, LEVEL);

    if (ZSTD_isError(got)) {
        end_it(r, ZSTD_getErrorName(got));
    } else if (write_all(r->fd, r->packed, got) < 0) {
        end_it(r, strerror(errno));
    } else {
        r->written += got;
    }
}

/* Whole events of the ring into one frame; true when there were any. */
static bool drain(struct mc_recorder *r)
{
    uint64_t out = atomic_load_explicit(&r->out, memory_order_relaxed);
    uint64_t in = atomic_load_explicit(&r->in, memory_order_acquire);
    const struct mc_rec end = {.kind = MC_REC_FULL};
    size_t n = 0;

    while (out < in) {
        struct mc_rec head;
        size_t whole;

        for (size_t i = 0; i < sizeof head; i++)
            ((char *)&head)[i] = r->ring[(out + i) % RING];
        whole = sizeof head + head.bytes;
        if (n + whole > FRAME)
            break;
        for (size_t done = 0; done < whole;) {
            size_t from = (size_t)((out + done) % RING);
            size_t part = whole - done < RING - from ? whole - done : RING - from;

            memcpy(r->plain + n + done, r->ring + from, part);
            done += part;
        }
        n += whole;
        out += whole;
    }
    atomic_store_explicit(&r->out, out, memory_order_release);
    if (n == 0 || atomic_load(&r->full))
        return n > 0;
    if (r->written + ZSTD_compressBound(n) + 64 > r->max_bytes) {
        write_frame(r, (const char *)&end, sizeof end);
        end_it(r, "the file has its size (--record-size)");
    } else {
        write_frame(r, r->plain, n);
    }
    return true;
}

/* A frame a second, sooner when much came; the head at once. */
static void *run(void *arg)
{
    struct mc_recorder *r = arg;
    const struct timespec nap = {.tv_nsec = TICK_MS * 1000000l};
    bool stop = false;

    for (int tick = 1; !stop; tick++) {
        uint64_t waits = atomic_load(&r->in) - atomic_load(&r->out);

        stop = atomic_load(&r->stop);
        if (stop || tick % TICKS == 0 || waits > FRAME / 2 ||
            (waits > 0 && r->written == 8))
            while (drain(r))
                ;
        else
            nanosleep(&nap, NULL);
    }
    return NULL;
}

/* ---- opening ----------------------------------------------------------------------- */

int mc_recorder_open(const struct mc_recorder_opts *o, struct mc_recorder **out,
                     struct mc_err *err)
{
    struct mc_recorder *r = calloc(1, sizeof *r);
    struct stat st;
    int rc;

    if (!r)
        return mc_fail(err, MC_ENOMEM, "no memory to record");
    r->fd = open(o->path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (r->fd < 0 || fstat(r->fd, &st) < 0) {
        rc = mc_fail_param(err, MC_EIO, "record", "--record %s: %s", o->path,
                           strerror(errno));
        goto fail;
    }
    if (S_ISREG(st.st_mode) && st.st_size > 0) {
        rc = mc_fail_param(err, MC_EEXIST, "record", "--record %s: it is there already",
                           o->path);
        goto fail;
    }
    r->tokens = o->tokens;
    r->max_bytes = o->max_bytes;
    r->t0 = mc_now();
    r->n_packed = ZSTD_compressBound(FRAME);
    r->ring = malloc(RING);
    r->plain = malloc(FRAME);
    r->packed = malloc(r->n_packed);
    if (!r->ring || !r->plain || !r->packed) {
        rc = mc_fail(err, MC_ENOMEM, "no memory to record");
        goto fail;
    }
    if (write_all(r->fd, "MASCREC2", 8) < 0) {
        rc = mc_fail_param(err, MC_EIO, "record", "--record %s: %s", o->path,
                           strerror(errno));
        goto fail;
    }
    r->written = 8;
    if (mc_thread_run(&r->thread, run, r) != 0) {
        rc = mc_fail(err, MC_EINTERNAL, "no thread to record");
        goto fail;
    }
    r->started = true;
    *out = r;
    return 0;
fail:
    mc_recorder_close(r);
    return rc;
}

void mc_recorder_close(struct mc_recorder *r)
{
    if (!r)
        return;
    atomic_store(&r->stop, true);
    if (r->started)
        pthread_join(r->thread, NULL);
    if (r->fd >= 0)
        close(r->fd);
    free(r->ring), free(r->plain), free(r->packed);
    free(r);
}
