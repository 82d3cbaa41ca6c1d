/* look.h - two verbs that show what goes on: why, top. They are rows of admin.c's table.
 *
 * OWNS nothing. THREAD: any. */
#ifndef MC_SERVE_LOOK_H
#define MC_SERVE_LOOK_H

#include "core/serve/server.h"

/* why ID -> [{id, request, end?, events: [{t, what, n?, generation, skipped?, why?}]}],
 * times in seconds from arrival; skipped: steps that it could have run in and did not,
 * from this event to the next, why: {text: steps}. */
int mc_look_why(struct mc_server *s, const json_t *args, json_t **out,
                struct mc_err *err);
/* top -> {t, state, model, generation, steps, ...totals, pages: {}, lanes: [], seqs: []}
 */
int mc_look_top(struct mc_server *s, const json_t *args, json_t **out,
                struct mc_err *err);

#endif
