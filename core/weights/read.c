/* read.c - bytes of a tensor read from their file, not by page faults.
 *
 * Owns nothing. THREAD: any, several at once: descriptors are read by position.
 * A pass of pread over a file that was never read costs half the time of faulting it in,
 * and a tenth where the pages can be used again; so a checkpoint that is large beside the
 * machine's memory is not left in the page cache. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "core/weights/ckpt_int.h"

/* The map that the n bytes at p lie in, or NULL. */
static const struct mc_map *map_of(const struct mc_ckpt *c, const void *p, size_t n)
{
    uintptr_t at = (uintptr_t)p;

    for (int32_t i = 0; i < c->n_map; i++) {
        uintptr_t base = (uintptr_t)c->map[i].p;

        if (at >= base && n <= c->map[i].n && at - base <= c->map[i].n - n)
            return &c->map[i];
    }
    return NULL;
}

bool mc_ckpt_is_file(const struct mc_ckpt *c, const void *p, size_t n)
{
    return map_of(c, p, n) != NULL;
}

int mc_ckpt_read(const struct mc_ckpt *c, const void *p, size_t n, void *out,
                 struct mc_err *err)
{
    const struct mc_map *m = map_of(c, p, n);
    size_t done = 0;

    if (!m || m->fd < 0) {
        memcpy(out, p, n);
        return 0;
    }
    while (done < n) {
        off_t at = (off_t)((uintptr_t)p - (uintptr_t)m->p + done);
        ssize_t got = pread(m->fd, (char *)out + done, n - done, at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return mc_fail(err, MC_EIO, "%s was cut short while it was read, or the disk "
                           "failed: %s", m->name, got < 0 ? strerror(errno) : "its end");
        done += (size_t)got;
    }
    return 0;
}

void mc_ckpt_forget(const struct mc_ckpt *c, const void *p, size_t n)
{
    const struct mc_map *m = map_of(c, p, n);
    double all = 0,
           have = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);

    for (int32_t i = 0; i < c->n_map; i++)
        all += (double)c->map[i].n;
    if (m && m->fd >= 0 && all > have / 2)
        posix_fadvise(m->fd, (off_t)((uintptr_t)p - (uintptr_t)m->p), (off_t)n,
                      POSIX_FADV_DONTNEED);
}
