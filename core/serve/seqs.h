/* seqs.h - the verbs seqs and cancel: live sequences.
 *
 * Rows of admin.c's table. OWNS nothing. THREAD: any. */
#ifndef MC_SERVE_SEQS_H
#define MC_SERVE_SEQS_H

#include "core/serve/server.h"

/* seqs -> [{id, request, state, ...}] */
int mc_seqs_list(struct mc_server *s, const json_t *args, json_t **out,
                 struct mc_err *err);
/* cancel ID [WHY] -> number of sequences that end; ID names one, or all of a request */
int mc_seqs_cancel(struct mc_server *s, const json_t *args, json_t **out,
                   struct mc_err *err);

#endif
