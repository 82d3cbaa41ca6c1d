/* server.h - what the parts of a running server share: one struct of pointers.
 *
 * Filled by core/cli/serve.c while it starts (or by a test), constant once `ready`, save
 * for the atomics. OWNS nothing. THREAD: any, as each part allows. */
#ifndef MC_SERVE_SERVER_H
#define MC_SERVE_SERVER_H

#include <stdatomic.h>
#include <stdbool.h>

#include <jansson.h>

#include "core/mc.h"
#include "core/serve/http.h"
#include "core/serve/keys.h"
#include "core/serve/metrics.h"
#include "core/serve/pump.h"
#include "core/serve/shared.h"
#include "core/serve/tokpool.h"

/* Policy generations, as the verbs and mc.policy ask for them; filled by lua/. Any
 * thread; they may take seconds. Results are new references; a text says what happened.
 */
struct mc_policy_admin {
    int (*reload)(void *self, json_t **out, struct mc_err *err);
    int (*rollback)(void *self, json_t **out, struct mc_err *err);
    int (*list)(void *self, json_t **out, struct mc_err *err);
    /* path: a directory, one file, or a name in the policies' own (NULL). */
    int (*check)(void *self, const char *path, json_t **out, struct mc_err *err);
    /* from, to: "live", "kept", "disk" or a number; NULL, NULL: what a reload would
     * change. */
    int (*diff)(void *self, const char *from, const char *to, json_t **out,
                struct mc_err *err);
    /* A candidate plans beside the live one, never applied: begins with a path as check
     * takes it, ends with "off", NULL tells what it did so far. */
    int (*shadow)(void *self, const char *path, json_t **out, struct mc_err *err);
};

/* REPL sessions, each a VM and a thread of its own; filled by lua/. */
struct mc_repl;
struct mc_repl_client {
    /* Both on the session's thread. out: what was printed, UTF-8. done: once an eval;
     * result is a new reference: {text} to show, or {incomplete: true} when the chunk
     * goes on. */
    void (*out)(void *ctx, const char *s, size_t n);
    void (*done)(void *ctx, json_t *result, const struct mc_err *err);
    void *ctx;
};
/* What is done with a chunk's values. RAW: strings as they are, JSON: a line each; both
 * are for scripts, and there an unfinished chunk is an error. */
enum mc_repl_how { MC_REPL_SHOWN, MC_REPL_RAW, MC_REPL_JSON };
enum { MC_REPL_LINES = 1 << 20 };
struct mc_repl_ops {
    int (*open)(void *self, const struct mc_repl_client *c, struct mc_repl **out,
                struct mc_err *err);
    /* Runs a chunk or an expression; returns at once. One at a time. line: 0, or where
     * the text begins in an input that is read line by line, which may be unfinished. */
    void (*eval)(struct mc_repl *r, const char *text, size_t n, enum mc_repl_how how,
                 int line);
    void (*cancel)(struct mc_repl *r); /* interrupts what runs; any thread */
    /* An array of the names that could follow; waits. */
    int (*complete)(struct mc_repl *r, const char *text, json_t **out,
                    struct mc_err *err);
    void (*close)(struct mc_repl *r); /* interrupts; done is not called any more */
};

/* A model: an engine of its own, and what speaks its tokens. */
struct mc_served {
    char id[128]; /* that clients use */
    struct mc_engine *engine; /* NULL while it loads */
    struct mc_pump *pump;
    struct mc_tokpool *tokpool;
};

enum { MC_SERVED_MAX = 16 };

struct mc_server {
    struct mc_served model[MC_SERVED_MAX]; /* the first is whom who names none gets */
    int n_model;
    struct mc_http *http;
    struct mc_metrics *metrics;
    struct mc_shared *shared;
    struct mc_keys *keys; /* NULL: nobody is asked for one */
    struct mc_keys *admin_keys; /* of --admin-listen, or NULL */
    const struct mc_policy_admin *policies; /* NULL: none */
    void *policies_self;
    const struct mc_repl_ops *repl; /* set before `ready` */
    void *repl_self;
    json_t *config; /* every setting by key */
    double started;  /* Unix seconds */
    atomic_bool ready, draining;
    /* Asks the process to drain and end within so many seconds; any thread. */
    void (*drain)(void *self, double seconds);
    /* Changes a live setting. */
    int (*set)(void *self, const char *key, const char *value, struct mc_err *err);
    void *self;
};

/* The model with this id; of NULL and "default" the first; else NULL. */
const struct mc_served *mc_served_find(const struct mc_server *s, const char *id);

/* A sequence's name for people and verbs: "3.1", of one of several models "NAME/3.1". */
enum { MC_SEQ_ID = 160 };
void mc_seq_id(const struct mc_server *s, const struct mc_served *m, struct mc_handle h,
               char id[MC_SEQ_ID]);

#endif
