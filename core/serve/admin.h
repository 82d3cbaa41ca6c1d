/* admin.h - verbs: what an operator asks of a running server.
 *
 * One table: the socket's methods (rpc.c), the CLI's words and Lua's functions
 * (mc.engine, mc.policy, ...) are its rows. OWNS nothing. THREAD: any; some verbs take
 * seconds. */
#ifndef MC_SERVE_ADMIN_H
#define MC_SERVE_ADMIN_H

#include <jansson.h>

#include "core/serve/server.h"

enum {
    MC_VERB_WORD = 1, /* a word of the command line too */
    MC_VERB_REPL = 2, /* its Lua function is for sessions only */
};

struct mc_verb {
    const char *name;
    const char *args; /* names of the positional arguments: "id [why]" */
    const char *help;
    const char *lua; /* its function under mc: "engine.drain"; NULL: none */
    unsigned flags;
    int (*run)(struct mc_server *s, const json_t *args, json_t **out, struct mc_err *err);
};
extern const struct mc_verb mc_verbs[]; /* ends with a NULL name */

/* args: a JSON array. *out: a new reference. An unknown verb is MC_ENOENT. */
int mc_verb_run(struct mc_server *s, const char *name, const json_t *args, json_t **out,
                struct mc_err *err);

#endif
