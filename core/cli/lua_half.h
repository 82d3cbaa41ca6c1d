/* lua_half.h - what the program asks of its Lua half, as functions.
 *
 * core/ includes no Lua: main.c fills this from lua/host and hands it to the subcommands.
 * THREAD: as each says. */
#ifndef MC_CLI_LUA_HALF_H
#define MC_CLI_LUA_HALF_H

#include <jansson.h>

#include "core/engine/policy.h"
#include "core/serve/server.h"

struct mc_render;
struct mc_lone;
struct mc_lua; /* the Lua half of one server: generations, step VM, edge VMs, sessions */

struct mc_lua_opts {
    const char *policies; /* directory; NULL: the built-in set */
    bool watch;           /* reload when files change */
    int edge_vms;
};

struct mc_lua_half {
    /* Runs a settings file (no API, no I/O, 1 s at most) that returns a table; any thread.
     * A new reference. */
    int (*table)(const char *path, json_t **out, struct mc_err *err);
    /* Tries policies (a directory or one file) without a server: what was tried, or file, line
     * and reason. */
    int (*check)(const char *path, const char *views, json_t **out, struct mc_err *err);
    /* Runs their tests: an array of {file, name, ok, error}. views, here and there: a
     * recording whose views are used, or NULL. */
    int (*test)(const char *path, const char *views, json_t **out, struct mc_err *err);
    /* A scheduler's VM by itself, for simulations; see lua/host/lone.h. */
    int (*lone)(const char *path, struct mc_lone **out, struct mc_policy *policy,
                struct mc_err *err);
    void (*lone_close)(struct mc_lone *s);
    /* What scripts cost, number by number; see lua/host/bench.h. */
    int (*bench)(void (*add)(void *ctx, const char *name, double value, const char *unit,
                             const char *mark), void *ctx, struct mc_err *err);
    /* The i-th file that a policy directory starts with; its name there, NULL past the last.
     * Constant. */
    const char *(*starter)(int i, const char **text, size_t *n);
    /* As table, for a recipe: built in by name, else a file. */
    int (*recipe)(const char *name, json_t **out, struct mc_err *err);
    /* A chat template in a VM of its own, for commands that serve nothing; see
     * lua/host/render.h. One thread at a time. */
    int (*render_open)(const char *text, size_t n, const char *bos, const char *eos,
                       double now, struct mc_render **out, struct mc_err *err);
    int (*render_run)(struct mc_render *r, const json_t *input, bool asis,
                      json_t **pieces, struct mc_err *err);
    void (*render_close)(struct mc_render *r);
    /* Loads the policies and builds the VMs; sets s->policies. The engines of s are open and
     * not started; s outlives the result. */
    int (*open)(struct mc_server *s, const struct mc_lua_opts *o, struct mc_lua **out,
                struct mc_err *err);
    /* What the i-th model's engine asks; valid until close. */
    struct mc_policy (*policy)(struct mc_lua *l, int i);
    const struct mc_edge_ops *edge; /* its self is the struct mc_lua */
    /* Ends the handlers that stream nothing; nothing new begins. Before the pump closes. */
    void (*stop)(struct mc_lua *l);
    /* After the HTTP server, the engines and the pumps have stopped. */
    void (*close)(struct mc_lua *l);
};

#endif
