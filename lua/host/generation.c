/* generation.c - reading a policy directory safely and once.
 *
 * Owns the texts of a generation. THREAD: the reader's, then immutable.
 * Always true: a name is looked up on disk at most once (what was absent stays absent
 * only by the seal: a sealed generation answers from memory); text is NUL-terminated. */
#define _GNU_SOURCE
#include "lua/host/generation.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xxhash.h>

#include "lua/host/embed.h"

/* Someone besides root and the server's user could have written it. */
static int check_owner(const struct stat *st, const char *what, struct mc_err *err)
{
    if (st->st_uid != 0 && st->st_uid != geteuid())
        return mc_fail(err, MC_EFORBID,
                       "%s is owned by user %u, neither root nor this user", what,
                       (unsigned)st->st_uid);
    if (st->st_mode & S_IWOTH)
        return mc_fail(err, MC_EFORBID, "%s is world-writable", what);
    return 0;
}

static int open_dir(const char *dir, bool anybodys, struct mc_generation **out,
                    struct mc_err *err)
{
    struct mc_generation *g = calloc(1, sizeof *g);
    struct stat st;
    int rc;

    *out = NULL;
    if (!g)
        return mc_fail(err, MC_ENOMEM, "no memory for a policy generation");
    atomic_init(&g->refs, 1);
    g->dirfd = -1;
    if (dir && dir[0]) {
        if (strlen(dir) >= sizeof g->dir) {
            rc = mc_fail(err, MC_EARG, "policy directory's path is over %zu bytes",
                         sizeof g->dir - 1);
            goto fail;
        }
        strcpy(g->dir, dir);
        g->dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (g->dirfd < 0 || fstat(g->dirfd, &st)) {
            rc = mc_fail(err, MC_EIO, "policy directory %s: %s", dir, strerror(errno));
            goto fail;
        }
        rc = anybodys ? 0 : check_owner(&st, dir, err);
        if (rc < 0)
            goto fail;
    }
    *out = g;
    return 0;
fail:
    mc_generation_unref(g);
    return rc;
}

int mc_generation_open(const char *dir, struct mc_generation **out, struct mc_err *err)
{
    return open_dir(dir, false, out, err);
}

struct mc_generation *mc_generation_ref(struct mc_generation *g)
{
    atomic_fetch_add(&g->refs, 1);
    return g;
}

void mc_generation_unref(struct mc_generation *g)
{
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1)
        return;
    for (int i = 0; i < g->n_source; i++)
        if (!g->source[i].builtin)
            free((void *)g->source[i].text);
    if (g->dirfd >= 0)
        close(g->dirfd);
    free(g);
}

/* A file below the directory, without leaving it by links: *text is the caller's, NULL
 * when there is no such file. */
static int read_file(int dirfd, const char *file, char **text, size_t *n,
                     struct mc_err *err)
{
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    int fd = (int)syscall(SYS_openat2, dirfd, file, &how, sizeof how);
    struct stat st;
    size_t have = 0;
    int rc;

    *text = NULL;
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0 && errno == EXDEV)
        return mc_fail(err, MC_EFORBID, "%s leads out of the policy directory", file);
    if (fd < 0 || fstat(fd, &st)) {
        rc = mc_fail(err, MC_EIO, "%s: %s", file, strerror(errno));
        goto done;
    }
    rc = check_owner(&st, file, err);
    if (rc < 0)
        goto done;
    if (!S_ISREG(st.st_mode) || st.st_size > MC_SOURCE_MAX) {
        rc = mc_fail(err, MC_EARG, "%s is not a regular file of at most %d bytes", file,
                     MC_SOURCE_MAX);
        goto done;
    }
    *text = malloc((size_t)st.st_size + 1);
    if (!*text) {
        rc = mc_fail(err, MC_ENOMEM, "no memory for %s", file);
        goto done;
    }
    while (have < (size_t)st.st_size) {
        ssize_t got = read(fd, *text + have, (size_t)st.st_size - have);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break; /* it shrank: what is there is what it says */
        have += (size_t)got;
    }
    (*text)[have] = 0;
    *n = have;
done:
    if (fd >= 0)
        close(fd);
    return rc;
}

static const struct mc_embed *find_builtin(const char *name)
{
    char path[MC_SOURCE_NAME + 16];

    snprintf(path, sizeof path, "policies/%s.lua", name);
    for (const struct mc_embed *e = mc_embedded; e->path; e++)
        if (strcmp(e->path, path) == 0)
            return e;
    return NULL;
}

/* What a file requires by a name that stands in it is read with it, so that a change there
 * makes another generation and the edge VMs find it once nothing is read any more. */
static int read_required(struct mc_generation *g, const char *text, struct mc_err *err)
{
    const char *at = text;
    int rc = 0;

    while (rc == 0 && (at = strstr(at, "require"))) {
        char name[MC_SOURCE_NAME];
        const struct mc_source *s;
        size_t n;

        at += strlen("require");
        at += strspn(at, " \t(");
        if (*at != '"' && *at != '\'')
            continue;
        n = strspn(at + 1,
                   "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.");
        if (n == 0 || n >= sizeof name || at[n + 1] != *at)
            continue;
        for (size_t i = 0; i <= n; i++)
            name[i] = at[1 + i] == '.' ? '/' : at[1 + i];
        name[n] = 0;
        rc = mc_generation_source(g, name, &s, err);
    }
    return rc;
}

int mc_generation_source(struct mc_generation *g, const char *name,
                         const struct mc_source **out, struct mc_err *err)
{
    bool only_builtin = strncmp(name, "builtin/", 8) == 0;
    const struct mc_embed *e = NULL;
    struct mc_source *s;
    int rc;

    *out = NULL;
    for (int i = 0; i < g->n_source; i++)
        if (strcmp(g->source[i].name, name) == 0) {
            *out = &g->source[i];
            return 0;
        }
    if (g->sealed)
        return 0;
    if (g->n_source == MC_N_SOURCE)
        return mc_fail(err, MC_ELIMIT, "a generation has at most %d files", MC_N_SOURCE);
    s = &g->source[g->n_source];
    if (snprintf(s->name, sizeof s->name, "%s", name) >= (int)sizeof s->name)
        return mc_fail(err, MC_EARG, "policy name '%s' is too long", name);
    snprintf(s->file, sizeof s->file, "%s.lua", name);
    s->text = NULL;
    if (g->dirfd >= 0 && !only_builtin) {
        rc = read_file(g->dirfd, s->file, (char **)&s->text, &s->n, err);
        if (rc < 0)
            return rc;
    }
    if (!s->text && strcmp(name, "init") != 0)
        e = find_builtin(only_builtin ? name + 8 : name);
    if (e) {
        if (!only_builtin)
            snprintf(s->file, sizeof s->file, "builtin/%s.lua", name);
        s->text = e->text;
        s->n = e->n;
    }
    s->builtin = e != NULL;
    if (!s->text)
        return 0;
    g->n_source++;
    g->hash = XXH3_64bits_withSeed(s->name, strlen(s->name), g->hash);
    g->hash = XXH3_64bits_withSeed(s->text, s->n, g->hash);
    *out = s;
    return e ? 0 : read_required(g, s->text, err);
}

int mc_generation_choose(struct mc_generation *g, const char *kind, const char *name,
                         struct mc_err *err)
{
    for (int i = 0; i < g->n_choice; i++)
        if (strcmp(g->choice[i].kind, kind) == 0 && strcmp(g->choice[i].name, name) == 0)
            return 0;
    if (g->sealed || g->n_choice == MC_N_SOURCE)
        return mc_fail(err, MC_ELIMIT,
                       "init.lua names more than %d files, or others than "
                       "when it was first run",
                       MC_N_SOURCE);
    snprintf(g->choice[g->n_choice].kind, sizeof g->choice->kind, "%s", kind);
    snprintf(g->choice[g->n_choice].name, sizeof g->choice->name, "%s", name);
    g->n_choice++;
    return 0;
}

const char *mc_generation_choice(const struct mc_generation *g, const char *kind, int i)
{
    for (int k = 0; k < g->n_choice; k++)
        if (strcmp(g->choice[k].kind, kind) == 0 && i-- == 0)
            return g->choice[k].name;
    return NULL;
}

void mc_generation_seal(struct mc_generation *g)
{
    g->sealed = true;
    if (g->dirfd >= 0)
        close(g->dirfd);
    g->dirfd = -1;
}

/* ---- one file ---------------------------------------------------------------------- */

/* The kind that a text says it is, by its first `kind = "..."`; the VM checks it. */
static const char *kind_in(const char *text)
{
    static const char *const kinds[] = {"scheduler", "sampler", "cache", "router", "routes",
                                        NULL};
    const char *at = text;

    while ((at = strstr(at, "kind"))) {
        at += strlen("kind");
        at += strspn(at, " \t");
        if (*at != '=')
            continue;
        at += 1 + strspn(at + 1, " \t");
        for (int i = 0; kinds[i] && (*at == '"' || *at == '\''); i++)
            if (strncmp(at + 1, kinds[i], strlen(kinds[i])) == 0 &&
                at[1 + strlen(kinds[i])] == *at)
                return kinds[i];
    }
    return NULL;
}

/* "a/routes/x.lua" -> "a/", "routes/x". */
static int split_path(const char *path, char *dir, size_t n_dir, char *name,
                      size_t n_name, struct mc_err *err)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    bool route = base - path >= 7 && strncmp(base - 7, "routes/", 7) == 0 &&
                 (base - 7 == path || base[-8] == '/');
    int up = (int)(base - path) - (route ? 7 : 0), stem = (int)strlen(base) - 4;

    if (stem < 1 || strcmp(base + stem, ".lua") != 0)
        return mc_fail_param(err, MC_EARG, "path", "%s is no directory and no .lua file",
                             path);
    if (snprintf(dir, n_dir, "%.*s", up, up ? path : ".") >= (int)n_dir ||
        snprintf(name, n_name, "%s%.*s", route ? "routes/" : "", stem, base) >=
            (int)n_name)
        return mc_fail_param(err, MC_EARG, "path", "%s: too long a path", path);
    if (up == 0)
        strcpy(dir, ".");
    return 0;
}

static int choose_file(struct mc_generation *g, const char *name, struct mc_err *err)
{
    const struct mc_source *s;
    const char *kind;
    int rc = mc_generation_source(g, name, &s, err);

    if (rc < 0)
        return rc;
    kind = s ? kind_in(s->text) : NULL;
    if (!kind)
        return mc_fail(err, MC_EPOLICY, "%s.lua: it returns no table with kind = "
                       "\"scheduler\", \"sampler\", \"cache\", \"router\" or \"routes\"", name);
    snprintf(g->only.kind, sizeof g->only.kind, "%s", kind);
    snprintf(g->only.name, sizeof g->only.name, "%s", name);
    return 0;
}

int mc_generation_open_path(const char *path, struct mc_generation **out,
                            struct mc_err *err)
{
    char dir[PATH_MAX], name[MC_SOURCE_NAME];
    struct stat st;
    int rc;

    *out = NULL;
    if (!strchr(path, '/') && find_builtin(path) && strcmp(path, "init") != 0) {
        rc = open_dir("", true, out, err);
        if (rc == 0)
            rc = choose_file(*out, path, err); /* it says its kind */
        return rc;
    }
    if (stat(path, &st))
        return mc_fail_param(err, MC_ENOENT, "path",
                             "%s: %s; say a policy's name, or the path "
                             "of its file or directory",
                             path, strerror(errno));
    if (S_ISDIR(st.st_mode)) {
        snprintf(dir, sizeof dir, "%s/init.lua", path);
        return access(dir, R_OK)
                   ? mc_fail_param(err, MC_ENOENT, "path", "%s: %s", dir, strerror(errno))
                   : open_dir(path, false, out, err);
    }
    rc = split_path(path, dir, sizeof dir, name, sizeof name, err);
    if (rc == 0)
        rc = open_dir(dir, true, out, err);
    if (rc == 0 && strcmp(name, "init") != 0)
        rc = choose_file(*out, name, err);
    if (rc < 0) {
        mc_generation_unref(*out);
        *out = NULL;
    }
    return rc;
}
