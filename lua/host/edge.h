/* edge.h - edge threads: HTTP requests become tasks of the edge VMs; and the task VM, in
 * which what mc.every was given runs.
 *
 * OWNS the threads and their VMs. A request runs in the VM that was newest when it began;
 * a VM that is no longer the newest goes with its last request. THREAD: open, install and
 * close one; ops any. */
#ifndef MC_LUA_EDGE_H
#define MC_LUA_EDGE_H

#include <jansson.h>

#include "core/serve/server.h"
#include "lua/host/generation.h"
#include "lua/host/task.h"

struct mc_edge;
struct mc_http_stream;

/* An HTTP request that an edge thread handles: a task, and what outlives it (the client's
 * connection, a stream that the pump writes). */
struct mc_edge_req {
    struct mc_task task;
    struct mc_edge *edge;
    struct mc_req *req;
    struct mc_bell begin, gone;
    json_t *body;             /* being given to Lua: freed though the VM be lost */
    struct mc_http_stream *stream; /* not NULL while the pump writes */
    struct mc_timer timer;    /* the route's time is over */
    int slot;                 /* of the route's concurrency, 0: none */
    uint32_t tenant;
    struct mc_err denied;     /* code set: its API key was refused */
    bool lives;               /* the task has not ended */
    bool begun, sse;          /* Lua began an answer that grows; an event stream */
    bool left;                /* the client is gone */
};

int mc_edge_open(struct mc_server *s, int threads, struct mc_edge **out,
                 struct mc_err *err);
/* Whether a generation's files load in an edge VM: a VM is built and dropped. */
int mc_edge_check(struct mc_edge *e, struct mc_generation *g, struct mc_err *err);
/* Builds a VM for each thread from a generation's files and switches to them for new
 * requests; on failure nothing changes. By whoever builds generations, one at a time: the
 * files' top levels run on the calling thread. Keeps a reference. */
int mc_edge_install(struct mc_edge *e, struct mc_generation *g, struct mc_err *err);
/* Ends the tasks that have no stream with MC_EDRAIN and refuses new requests; returns when
 * that is done. */
void mc_edge_stop(struct mc_edge *e);
/* After the HTTP server and the pump were closed. */
void mc_edge_close(struct mc_edge *e);

extern const struct mc_edge_ops mc_edge_ops; /* self is the struct mc_edge */

/* The route's limits, as its handler begins: how many of it may run at once on all threads
 * (0: any number), how long it may take (0: for ever). MC_ELIMIT. On the loop's thread. */
int mc_edge_enter(struct mc_edge_req *r, const char *route, int at_once, double seconds,
                  struct mc_err *err);

/* The request is over: the response is complete or nobody waits for it. For the edge and
 * for streams. */
void mc_edge_req_end(struct mc_edge_req *r);

#endif
