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

/* Policy generations, as the verbs and mc.policy ask for them; filled by lua/. Any thread;
 * they may take seconds. Results are new references; a text says what happened. */
struct mc_policy_admin {
    int (*reload)(void *self, json_t **out, struct mc_err *err);
    int (*rollback)(void *self, json_t **out, struct mc_err *err);
    int (*list)(void *self, json_t **out, struct mc_err *err);
    /* path: a directory, one file, or a name in the policies' own (NULL). */
    int (*check)(void *self, const char *path, json_t **out, struct mc_err *err);
    /* from, to: "live", "kept", "disk" or a number; NULL, NULL: what a reload would change. */
    int (*diff)(void *self, const char *from, const char *to, json_t **out,
                struct mc_err *err);
    /* A candidate plans beside the live one, never applied: begins with a path as check takes
     * it, ends with "off", NULL tells what it did so far. */
    int (*shadow)(void *self, const char *path, json_t **out, struct mc_err *err);
};

/* REPL sessions, each a VM and a thread of its own; filled by lua/. */
struct mc_repl;
struct mc_repl_client {
    /* Both on the session's thread. out: what was printed, UTF-8. done: once an eval; result
     * is a new reference: {text} to show, or {incomplete: true} when the chunk goes on. */
    void (*out)(void *ctx, const char *s, size_t n);
    void (*done)(void *ctx, json_t *result, const struct mc_err *err);
    void *ctx;
};
struct mc_repl_ops {
    int (*open)(void *self, const struct mc_repl_client *c, struct mc_repl **out,
                struct mc_err *err);
    /* Runs a chunk or an expression; returns at once. One at a time. raw: a string result is
     * shown as it is, and an unfinished chunk is an error. */
    void (*eval)(struct mc_repl *r, const char *text, size_t n, bool raw);
    void (*cancel)(struct mc_repl *r); /* interrupts what runs; any thread */
    /* An array of the names that could follow; waits. */
    int (*complete)(struct mc_repl *r, const char *text, json_t **out, struct mc_err *err);
    void (*close)(struct mc_repl *r); /* interrupts; done is not called any more */
};

struct mc_server {
    struct mc_engine *engine;
    struct mc_pump *pump;
    struct mc_http *http;
    struct mc_metrics *metrics;
    struct mc_tokpool *tokpool;
    struct mc_shared *shared;
    const struct mc_keys *keys; /* NULL: nobody is asked for one */
    const struct mc_policy_admin *policies; /* NULL: none */
    void *policies_self;
    const struct mc_repl_ops *repl; /* set before `ready` */
    void *repl_self;
    json_t *config; /* every setting by key */
    char model[128]; /* the id that clients use */
    double started;  /* Unix seconds */
    atomic_bool ready, draining;
    /* Asks the process to drain and end within so many seconds; any thread. */
    void (*drain)(void *self, double seconds);
    /* Changes a live setting. */
    int (*set)(void *self, const char *key, const char *value, struct mc_err *err);
    void *self;
};

#endif
