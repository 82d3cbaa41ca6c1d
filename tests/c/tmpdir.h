/* tmpdir.h - a directory of a test's own, and files in it.
 *
 * tmp_new makes one under TMPDIR or /tmp; tmp_free removes it with all that is in it. */
#ifndef MC_TEST_TMPDIR_H
#define MC_TEST_TMPDIR_H

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static inline char *tmp_new(void)
{
    const char *base = getenv("TMPDIR");
    char path[512];

    snprintf(path, sizeof path, "%s/mascon-test-XXXXXX", base && *base ? base : "/tmp");
    assert_non_null(mkdtemp(path));
    return strdup(path);
}

/* dir/name, in one of four buffers that are used in turn. */
static inline const char *tmp_path(const char *dir, const char *name)
{
    static char path[4][1024];
    static unsigned turn;
    char *p = path[turn++ % 4];

    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static inline void tmp_write(const char *dir, const char *name, const void *data,
                             size_t n)
{
    FILE *f = fopen(tmp_path(dir, name), "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void tmp_text(const char *dir, const char *name, const char *text)
{
    tmp_write(dir, name, text, strlen(text));
}

static inline void tmp_remove(const char *path)
{
    char inner[1024];
    struct dirent *e;
    DIR *d;

    if (unlink(path) == 0)
        return;
    d = opendir(path);
    while (d) {
        e = readdir(d);
        if (!e)
            break;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if ((size_t)snprintf(inner, sizeof inner, "%s/%s", path, e->d_name) <
            sizeof inner)
            tmp_remove(inner);
    }
    if (d)
        closedir(d);
    rmdir(path);
}

static inline void tmp_free(char *dir)
{
    tmp_remove(dir);
    free(dir);
}

#endif
