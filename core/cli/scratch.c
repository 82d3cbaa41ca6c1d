/* scratch.c - see scratch.h. OWNS nothing. THREAD: any. */
#include "core/cli/scratch.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int mc_scratch_new(char path[MC_SCRATCH_PATH], struct mc_err *err)
{
    const char *base = getenv("TMPDIR");

    snprintf(path, MC_SCRATCH_PATH, "%.200s/mascon-XXXXXX",
             base && *base ? base : "/tmp");
    return mkdtemp(path) ? 0 : mc_fail(err, MC_EIO, "%s: %s", path, strerror(errno));
}

void mc_scratch_remove(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *e;

    while (d) {
        e = readdir(d);
        if (!e)
            break;
        unlinkat(dirfd(d), e->d_name, 0); /* . and .. are no files */
    }
    if (d)
        closedir(d);
    rmdir(path);
}
