/* ckpt.c - an open checkpoint: its files, its tensors by name, its JSON files.
 *
 * Owns the maps, the tensor list and its names, the parsed JSON and the directory's
 * descriptor. THREAD: open and close one; then immutable, read by any.
 * Always true after open: every tensor lies inside its map, no two have one name, and with
 * an index each name it lists is in the shard it says. */
#define _GNU_SOURCE /* scandirat */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/weights/ckpt_int.h"

enum {
    LIST_MAX = 8,     /* GGUFs of a directory that an error names */
    FILES_KEPT = 256, /* descriptors: a process may have 1024 */
};

bool mc_ckpt_name_ok(const char *name, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (name[i] < ' ' || name[i] > '~')
            return false;
    return n > 0 && n <= 255;
}

int mc_ckpt_add(struct mc_ckpt *c, const struct mc_stored *s, const char *name, size_t n,
                const char *hf, int32_t map, struct mc_err *err)
{
    struct mc_tensor_ref *t, *grown;
    char *own, *own_hf;

    if (c->n == c->cap) {
        int32_t cap = c->cap > INT32_MAX / 2 ? INT32_MAX : c->cap ? 2 * c->cap : 64;

        grown = c->n < cap ? realloc(c->tensor, (size_t)cap * sizeof *grown) : NULL;
        if (!grown)
            return mc_fail(err, MC_ENOMEM, "no memory for %d tensors", cap);
        c->tensor = grown;
        c->cap = cap;
    }
    own = strndup(name, n);
    own_hf = hf && own ? strdup(hf) : own;
    if (!own_hf) {
        free(own);
        return mc_fail(err, MC_ENOMEM, "no memory for a tensor's name");
    }
    t = &c->tensor[c->n++];
    t->s = *s;
    t->s.name = own;
    t->hf = own_hf;
    t->map = map;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct mc_name_ref *)a)->name,
                  ((const struct mc_name_ref *)b)->name);
}

int mc_ckpt_sort(struct mc_ckpt *c, struct mc_err *err)
{
    c->by_name = calloc((size_t)c->n + 1, sizeof *c->by_name);
    if (!c->by_name)
        return mc_fail(err, MC_ENOMEM, "no memory for %d names", c->n);
    for (int32_t i = 0; i < c->n; i++)
        c->by_name[i] = (struct mc_name_ref){c->tensor[i].hf, i};
    qsort(c->by_name, (size_t)c->n, sizeof *c->by_name, by_name);
    for (int32_t i = 1; i < c->n; i++) {
        const struct mc_name_ref *a = &c->by_name[i - 1], *b = a + 1;

        if (strcmp(a->name, b->name) == 0)
            return mc_fail(err, MC_EFORMAT, "duplicate tensor '%.80s' in %s and %s",
                           a->name, c->map[c->tensor[a->i].map].name,
                           c->map[c->tensor[b->i].map].name);
    }
    return 0;
}

const struct mc_tensor_ref *mc_ckpt_ref(const struct mc_ckpt *c, const char *name)
{
    struct mc_name_ref key = {name, 0}, *hit;

    hit = bsearch(&key, c->by_name, (size_t)c->n, sizeof key, by_name);
    return hit ? &c->tensor[hit->i] : NULL;
}

const struct mc_stored *mc_ckpt_find(const struct mc_ckpt *c, const char *name)
{
    const struct mc_tensor_ref *t = mc_ckpt_ref(c, name);

    return t ? &t->s : NULL;
}

int32_t mc_ckpt_n(const struct mc_ckpt *c)
{
    return c->n;
}

const struct mc_stored *mc_ckpt_at(const struct mc_ckpt *c, int32_t i)
{
    return i >= 0 && i < c->n ? &c->tensor[i].s : NULL;
}

const char *mc_ckpt_hf_name(const struct mc_ckpt *c, int32_t i)
{
    return i >= 0 && i < c->n ? c->tensor[i].hf : NULL;
}

void mc_ckpt_drop(const struct mc_ckpt *c, const void *p, size_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)p + page - 1) / page * page;
    uintptr_t to = ((uintptr_t)p + n) / page * page;

    for (int32_t i = 0; i < c->n_map; i++) {
        uintptr_t base = (uintptr_t)c->map[i].p;

        /* Only where it lies in a map of ours: on other memory this would lose data. */
        if (from >= base && to <= base + c->map[i].n && from < to)
            madvise((void *)from, to - from, MADV_DONTNEED);
    }
}

int mc_ckpt_intact(const struct mc_ckpt *c, struct mc_err *err)
{
    for (int32_t i = 0; i < c->n_map; i++)
        if (c->map[i].guard && mc_guard_broken(c->map[i].guard))
            return mc_fail(err, MC_EIO, "%s was cut short while it was read, or the disk "
                           "failed", c->map[i].name);
    return 0;
}

enum mc_ckpt_kind mc_ckpt_kind(const struct mc_ckpt *c)
{
    return c->kind;
}

const char *mc_ckpt_path(const struct mc_ckpt *c)
{
    return c->path;
}

json_t *mc_ckpt_config(const struct mc_ckpt *c)
{
    return c->config;
}

json_t *mc_ckpt_generation_config(const struct mc_ckpt *c)
{
    return c->generation;
}

json_t *mc_ckpt_tokenizer_config(const struct mc_ckpt *c)
{
    return c->tokenizer;
}

const struct mc_gguf *mc_ckpt_gguf(const struct mc_ckpt *c)
{
    return c->gguf;
}

int mc_ckpt_map(struct mc_ckpt *c, int fd, int64_t size, const char *name,
                struct mc_err *err)
{
    struct mc_map *grown = realloc(c->map, ((size_t)c->n_map + 1) * sizeof *grown);
    int rc = MC_ENOMEM;

    if (grown) {
        c->map = grown;
        rc = mc_map_fd(fd, size, name, &c->map[c->n_map++], err);
    } else {
        mc_fail(err, rc, "no memory to open %s", name);
    }
    if (rc == 0 && c->n_map <= FILES_KEPT)
        c->map[c->n_map - 1].fd = fd;
    else
        close(fd);
    return rc;
}

/* Takes the descriptor. */
static int open_gguf(struct mc_ckpt *c, int fd, int64_t size, const char *name,
                     struct mc_err *err)
{
    int rc;

    c->kind = MC_CKPT_GGUF;
    rc = mc_ckpt_map(c, fd, size, name, err);
    if (rc == 0)
        rc = mc_gguf_read(c, 0, err);
    if (rc == 0)
        rc = mc_ckpt_sort(c, err);
    return rc;
}

/* The names of the directory's GGUFs that sort first: how many there are, the first of
 * them in *first (malloced), and up to LIST_MAX in list. */
static int list_ggufs(int dir, char **first, char *list, size_t cap, struct mc_err *err)
{
    struct dirent **entry;
    int n = scandirat(dir, ".", &entry, NULL, alphasort), found = 0;
    size_t at = 0;

    if (n < 0)
        return mc_fail(err, MC_EIO, "cannot list the directory: %s", strerror(errno));
    list[0] = 0;
    for (int i = 0; i < n; i++) {
        const char *name = entry[i]->d_name;
        size_t len = strlen(name);

        if (len > 5 && strcmp(name + len - 5, ".gguf") == 0 && mc_name_plain(name)) {
            if (found == 0)
                *first = strdup(name);
            if (found < LIST_MAX && at < cap)
                at += (size_t)snprintf(list + at, cap - at, "%s%s", found ? ", " : "",
                                       name);
            found++;
        }
        free(entry[i]);
    }
    free(entry);
    return found;
}

static int open_dir(struct mc_ckpt *c, struct mc_err *err)
{
    char list[160], *first = NULL;
    int64_t size = 0;
    int n, fd, rc;

    if (mc_dir_has(c->dir, MC_HF_SINGLE) || mc_dir_has(c->dir, MC_HF_INDEX))
        return mc_hf_open(c, err);
    n = list_ggufs(c->dir, &first, list, sizeof list, err);
    if (n < 0)
        return n;
    if (n == 0)
        return mc_fail(err, MC_ENOENT,
                       "it holds no " MC_HF_SINGLE ", no index of shards and "
                       "no .gguf%s",
                       mc_dir_has(c->dir, "config.json") ? " (only a config.json)" : "");
    if (n > 1) {
        rc = mc_fail(err, MC_EARG, "it holds %d GGUFs, name one: %s%s", n, list,
                     n > LIST_MAX || strlen(list) == sizeof list - 1 ? " ..." : "");
        goto done;
    }
    fd = first ? mc_dir_open(c->dir, first, &size, err) : MC_ENOMEM;
    rc = fd < 0 ? fd : open_gguf(c, fd, size, first, err);
    close(c->dir);
    c->dir = -1;
done:
    free(first);
    return rc;
}

static int open_path(struct mc_ckpt *c, const char *path, struct mc_err *err)
{
    const char *slash = strrchr(path, '/');
    struct stat st;
    int fd;

    /* Not waiting: the path may be a FIFO. */
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return mc_fail(err, errno == ENOENT ? MC_ENOENT : MC_EIO, "%s", strerror(errno));
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
        c->dir = fd;
        return open_dir(c, err);
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return mc_fail(err, MC_EFORMAT, "neither a file nor a directory");
    }
    return open_gguf(c, fd, st.st_size, slash ? slash + 1 : path, err);
}

/* At most the last 80 bytes, from the beginning of a character: room for the reason. */
static const char *tail(const char *path)
{
    size_t n = strlen(path);

    path += n > 80 ? n - 80 : 0;
    while (((unsigned char)*path & 0xC0) == 0x80)
        path++;
    return path;
}

static int open_tensors(struct mc_ckpt *c, const char *path, struct mc_err *err)
{
    struct stat st;
    int rc, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        if (fd >= 0)
            close(fd);
        return mc_fail(err, MC_EIO, "not a file that can be read");
    }
    rc = mc_ckpt_map(c, fd, st.st_size, path, err);
    if (rc == 0)
        rc = mc_safetensors_read(c, 0, err);
    if (rc == 0)
        rc = mc_ckpt_sort(c, err);
    return rc;
}

static int open_config(struct mc_ckpt *c, const char *path, struct mc_err *err)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");

    if (!dir)
        return mc_fail(err, MC_ENOMEM, "no memory for a path");
    c->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(dir);
    if (c->dir < 0)
        return mc_fail(err, errno == ENOENT ? MC_ENOENT : MC_EIO, "%s", strerror(errno));
    return mc_hf_open_config(c, slash ? slash + 1 : path, err);
}

static int open_as(int (*how)(struct mc_ckpt *, const char *, struct mc_err *),
                   const char *path, struct mc_ckpt **out, struct mc_err *err)
{
    struct mc_ckpt *c = calloc(1, sizeof *c);
    int rc = MC_ENOMEM;

    *out = NULL;
    if (!c)
        return mc_fail(err, MC_ENOMEM, "no memory to open %s", path);
    c->dir = -1;
    c->path = strdup(path);
    if (c->path)
        rc = how(c, path, err);
    if (mc_ckpt_intact(c, err) < 0)
        rc = MC_EIO;
    if (rc < 0) {
        mc_err_while(err, "opening %s", tail(path));
        mc_ckpt_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

int mc_ckpt_open(const char *path, struct mc_ckpt **out, struct mc_err *err)
{
    return open_as(open_path, path, out, err);
}

int mc_ckpt_open_tensors(const char *path, struct mc_ckpt **out, struct mc_err *err)
{
    return open_as(open_tensors, path, out, err);
}

int mc_ckpt_open_config(const char *path, struct mc_ckpt **out, struct mc_err *err)
{
    return open_as(open_config, path, out, err);
}

void mc_ckpt_close(struct mc_ckpt *c)
{
    if (!c)
        return;
    for (int32_t i = 0; i < c->n; i++) {
        if (c->tensor[i].hf != c->tensor[i].s.name)
            free(c->tensor[i].hf);
        free((char *)c->tensor[i].s.name);
    }
    free(c->tensor);
    free(c->by_name);
    for (int32_t i = 0; i < c->n_map; i++)
        mc_map_close(&c->map[i]);
    free(c->map);
    json_decref(c->config);
    json_decref(c->generation);
    json_decref(c->tokenizer);
    mc_gguf_free(c->gguf);
    if (c->dir >= 0)
        close(c->dir);
    free(c->path);
    free(c);
}
