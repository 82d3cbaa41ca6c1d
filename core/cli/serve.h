/* serve.h - how a MODEL argument is read. THREAD: any. */
#ifndef MC_CLI_SERVE_H
#define MC_CLI_SERVE_H

#include <stddef.h>

/* MODEL is a path or NAME=PATH: *path points into it; name becomes `given` (--name) when that
 * is not empty, else NAME, else the path's basename. */
void mc_model_name(const char *arg, const char *given, char *name, size_t cap,
                   const char **path);

#endif
