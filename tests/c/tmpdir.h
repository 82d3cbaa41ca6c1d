/* tmpdir.h - a directory of a test's own, and files in it.
 *
 * tmp_new makes one under TMPDIR or /tmp; tmp_free removes it with all that is in it. */
#ifndef MC_TEST_TMPDIR_H
#define MC_TEST_TMPDIR_H

#include <fcntl.h>
#include <ftw.h>
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

static inline void tmp_write(const char *dir, const char *name, const void *data, size_t n)
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

static inline int tmp_remove_one(const char *path, const struct stat *st, int flag,
                                 struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static inline void tmp_free(char *dir)
{
    nftw(dir, tmp_remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(dir);
}

#endif
