/* scratch.h - directories that a benchmark fills and removes.
 *
 * OWNS nothing: a directory is the caller's until it is removed. THREAD: any. */
#ifndef MC_CLI_SCRATCH_H
#define MC_CLI_SCRATCH_H

#include "core/base/err.h"

/* A new directory under TMPDIR or /tmp; and the end of one with all that is in it. */
enum { MC_SCRATCH_PATH = 256 };
int mc_scratch_new(char path[MC_SCRATCH_PATH], struct mc_err *err);
void mc_scratch_remove(const char *path);

#endif
