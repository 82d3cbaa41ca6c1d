/* dir.c - opens and maps the files of a checkpoint directory without leaving it.
 *
 * Owns nothing; descriptors and maps are the caller's. THREAD: any.
 *
 * File names come out of the checkpoint (model.safetensors.index.json), so they are hostile:
 *  1. A name is plain: no slash, not "." or "..", no control byte, at most 255 bytes.
 *  2. It is opened relative to the directory's descriptor, without following a link,
 *     without waiting (a FIFO would), and must be a regular file.
 *  3. Two kinds of link are followed, by one step: to a plain name beside it, and a hub
 *     cache's own, models--X/snapshots/REV/NAME -> ../../blobs/HASH. For the latter the
 *     directory must really be an entry of ../../snapshots, and blobs must be no link. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/weights/ckpt_int.h"

#define BLOBS "../../blobs"

enum { OPEN_FLAGS = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY };

bool mc_name_plain(const char *name)
{
    size_t n = strlen(name);

    if (n == 0 || n > 255 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return false;
    for (size_t i = 0; i < n; i++)
        if (name[i] == '/' || (unsigned char)name[i] < 0x20 || name[i] == 0x7F)
            return false;
    return true;
}

/* Is the directory an entry of its own ../../snapshots? */
static bool in_hub_cache(int dir)
{
    struct stat up, snapshots;

    return fstatat(dir, "..", &up, 0) == 0 &&
           fstatat(dir, "../../snapshots", &snapshots, AT_SYMLINK_NOFOLLOW) == 0 &&
           S_ISDIR(snapshots.st_mode) && up.st_dev == snapshots.st_dev &&
           up.st_ino == snapshots.st_ino;
}

/* name is a link: its target's descriptor, or -1 with errno. */
static int open_link(int dir, const char *name)
{
    char to[512];
    ssize_t n = readlinkat(dir, name, to, sizeof to - 1);
    size_t skip = sizeof BLOBS; /* with the slash, which stands in the NUL's place */
    int blobs, fd, e;

    if (n < 0)
        return -1;
    to[n] = 0;
    if (mc_name_plain(to))
        return openat(dir, to, OPEN_FLAGS);
    if (strncmp(to, BLOBS "/", skip) != 0 || !mc_name_plain(to + skip) ||
        !in_hub_cache(dir)) {
        errno = ELOOP;
        return -1;
    }
    blobs = openat(dir, BLOBS, OPEN_FLAGS | O_DIRECTORY);
    if (blobs < 0)
        return -1;
    fd = openat(blobs, to + skip, OPEN_FLAGS);
    e = errno;
    close(blobs);
    errno = e;
    return fd;
}

bool mc_dir_has(int dir, const char *name)
{
    struct stat st;

    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

int mc_dir_open(int dir, const char *name, int64_t *size, struct mc_err *err)
{
    struct stat st;
    int fd;

    if (!mc_name_plain(name))
        return mc_fail(err, MC_EFORMAT, "file name '%s' is not a plain name", name);
    fd = openat(dir, name, OPEN_FLAGS);
    if (fd < 0 && errno == ELOOP)
        fd = open_link(dir, name);
    if (fd < 0 && errno == ENOENT)
        return mc_fail(err, MC_ENOENT, "no file %s", name);
    if (fd < 0 && errno == ELOOP)
        return mc_fail(err, MC_EFORBID,
                       "a link out of the directory (other than a hub cache's "
                       "to ../../blobs): %s",
                       name);
    if (fd < 0)
        return mc_fail(err, MC_EIO, "%s: %s", name, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return mc_fail(err, MC_EFORMAT, "%s is not a regular file", name);
    }
    *size = st.st_size;
    return fd;
}

int mc_map_fd(int fd, int64_t size, const char *name, struct mc_map *out,
              struct mc_err *err)
{
    void *p;

    memset(out, 0, sizeof *out);
    out->fd = -1;
    out->name = strdup(name);
    if (!out->name)
        return mc_fail(err, MC_ENOMEM, "no memory to open %s", name);
    if (size == 0)
        return mc_fail(err, MC_EFORMAT, "%s is empty", name);
    p = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return mc_fail(err, MC_EIO, "cannot map %s: %s", name, strerror(errno));
    out->p = p;
    out->n = (size_t)size;
    out->guard = mc_guard_new(p, out->n);
    return out->guard ? 0 : mc_fail(err, MC_ENOMEM, "no memory to open %s", name);
}

void mc_map_close(struct mc_map *m)
{
    mc_guard_drop(m->guard);
    if (m->p)
        munmap((void *)m->p, m->n);
    if (m->fd >= 0)
        close(m->fd);
    free(m->name);
    memset(m, 0, sizeof *m);
    m->fd = -1;
}
