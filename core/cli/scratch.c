/* scratch.c - see scratch.h. OWNS nothing. THREAD: any. */
#define _GNU_SOURCE
#include "core/cli/scratch.h"

#include <errno.h>
#include <ftw.h>
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

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

void mc_scratch_remove(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
