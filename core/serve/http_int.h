/* http_int.h - what the HTTP server's files share: http.c, conn.c, req.c, res.c,
 * listen.c.
 *
 * Who holds a request (refs): the connection, until libmicrohttpd says that the request
 * is over; the edge, from a successful `request` until mc_req_done; a queued response;
 * and for a moment whoever calls `gone`.
 *
 * Lock order: req->call, then req->lock, then libmicrohttpd's own. watch->lock is taken
 * last and alone. Callbacks of the edge run under req->call only, which is recursive: an
 * edge may answer and finish in its callbacks. */
#ifndef MC_SERVE_HTTP_INT_H
#define MC_SERVE_HTTP_INT_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "core/serve/http.h"
#include "core/serve/http_parse.h"
#include "core/serve/json_out.h"
#include "core/serve/proxies.h"

/* ---- connections (conn.c) ---------------------------------------------------------- */

enum mc_conn_phase { MC_CONN_HEADER, MC_CONN_BODY, MC_CONN_BUSY, MC_CONN_IDLE };

struct mc_conn; /* one TCP connection, from accept to close */
struct mc_watch; /* all of them: hang-ups, timeouts, slow good-byes */

int mc_watch_open(struct mc_watch **out, struct mc_err *err);
void mc_watch_close(struct mc_watch *w);

/* HTTP thread. The socket is open until mc_conn_close returns. */
struct mc_conn *mc_conn_open(struct mc_watch *w, int fd);
void mc_conn_close(struct mc_conn *c);

/* What the connection is at, and for how long it may be (0: for ever). Past that its
 * client is told 408 (in a body) and shut out. */
void mc_conn_phase(struct mc_conn *c, enum mc_conn_phase phase, double seconds);
/* The request that is coming in or being served, NULL: none. Its mc_req_gone is called
 * when the client hangs up. */
void mc_conn_req(struct mc_conn *c, struct mc_req *r);
bool mc_conn_hung_up(struct mc_conn *c);
/* Sends an answer around libmicrohttpd, which can't take one while a body is coming in,
 * and leaves the connection to be closed without a reset: the client may still be
 * writing. */
void mc_conn_refuse(struct mc_conn *c, const char *id, const struct mc_err *e);
/* Calls fn for every such request, each with a reference held. */
void mc_watch_each(struct mc_watch *w, void (*fn)(struct mc_req *r));

/* ---- requests (req.c) -------------------------------------------------------------- */

enum mc_req_phase { MC_REQ_HEADER, MC_REQ_BODY, MC_REQ_SERVED };

struct mc_req {
    struct mc_http *http; /* a reference */
    atomic_int refs;

    /* HTTP thread until the request is served, then constant. */
    enum mc_req_phase phase;
    struct mc_conn *conn;
    char *uri; /* raw, as received */
    char method[32], id[64];
    char ip
        [MC_IP_TEXT]; /* the client's, as far as the proxies before us can be believed */
    char tenant[64];     /* for the access log */
    struct mc_target target;
    char *mem; /* what header points into */
    struct mc_pair *header;
    int n_header;
    struct mc_buf body;
    uint64_t n_declared; /* Content-Length, or 0 */
    double t_body;       /* when the body began */
    double t_served;

    pthread_mutex_t call; /* recursive; held during edge callbacks and done */
    const struct mc_edge_ops *ops;
    void *ops_self;
    bool owned; /* by the edge */

    pthread_mutex_t lock; /* all below */
    struct MHD_Connection *mhd; /* NULL once libmicrohttpd is done with the request */
    bool suspended;
    bool gone; /* nothing more can reach the client */
    bool started, ended, broken; /* of the response; broken: cut it off */
    int status;
    uint64_t n_sent; /* bytes of the body */
    struct MHD_Response *resp; /* to be queued */
    struct mc_pair *res_header;
    int n_res_header;
    struct mc_buf
        out; /* stream bytes that libmicrohttpd has not read, from out_from on */
    size_t out_from;

    void *user;
};

struct mc_req *mc_req_new(struct mc_http *h, const char *uri);
void mc_req_ref(struct mc_req *r);
void mc_req_unref(struct mc_req *r);
/* After the header: copies what was received and checks it. */
int mc_req_header_in(struct mc_req *r, struct MHD_Connection *c, const char *method,
                     const char *version, size_t max_body, struct mc_err *err);
int mc_req_body_in(struct mc_req *r, const char *data, size_t n, size_t max_body,
                   struct mc_err *err);
/* The client is gone: tells the edge if it has the request, once, and lets the connection
 * end. What is answered at once goes out all the same: a client may close its half early.
 */
void mc_req_gone(struct mc_req *r);

/* ---- responses (res.c) ------------------------------------------------------------- */

/* HTTP thread, request served: queues what there is to queue, or suspends the connection.
 */
enum MHD_Result mc_res_step(struct mc_req *r, struct MHD_Connection *c);
/* Resumes the connection if it waits; lock held. */
void mc_res_wake(struct mc_req *r);

/* ---- other origins (cors.c) -------------------------------------------------------- */

bool mc_cors_preflight(struct mc_req *r); /* true: answered */
void mc_cors_headers(const struct mc_req *r, struct MHD_Response *resp);

/* ---- the server (http.c) ----------------------------------------------------------- */

struct mc_http {
    struct mc_http_opts o;
    atomic_int refs; /* the owner, and each request */
    struct MHD_Daemon *daemon; /* NULL: with a given socket, not accepting yet */
    int quiet; /* a given socket that is not accepted from any more, else -1 */
    struct mc_watch *watch;
    uint16_t port;
    const struct mc_edge_ops *_Atomic edge; /* edge_self is written before it */
    void *edge_self;
    atomic_bool draining, closing;
    atomic_int n_open;
    unsigned long id_base; /* random; with n_req it makes request ids */
    atomic_ulong n_req;
    size_t metrics_guess; /* HTTP thread */
};

void mc_http_unref(struct mc_http *h);
double mc_http_now(void); /* CLOCK_MONOTONIC seconds */

#endif
