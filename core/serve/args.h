/* args.h - the arguments of verbs: JSON from the socket, words from the command line.
 *
 * OWNS nothing. THREAD: any. Each names the argument in its error. */
#ifndef MC_SERVE_ARGS_H
#define MC_SERVE_ARGS_H

#include <jansson.h>

#include "core/serve/server.h"

/* Argument i as text; NULL when it is absent or none. */
const char *mc_arg_text(const json_t *args, size_t i);
/* A number from 0 to most, or the text of one; *out stays when it is absent. */
int mc_arg_number(const json_t *args, size_t i, const char *name, double most,
                  double *out, struct mc_err *err);
/* The model that argument i names, the first when it is absent; it is loaded. */
int mc_arg_model(const struct mc_server *s, const json_t *args, size_t i,
                 const struct mc_served **out, struct mc_err *err);

#endif
