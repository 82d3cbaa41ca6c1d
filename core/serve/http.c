/* http.c - the HTTP server: libmicrohttpd's callbacks, and the three routes in C.
 *
 * Owns the daemon with its one thread and the watcher (conn.c). THREAD: on_* run on the
 * daemon's thread; open, drain and close on the owner's.
 *
 * A request's life: on_uri makes it, on_request collects header and body, serve hands it
 * to the edge, mc_res_step suspends the connection until there is an answer, on_completed
 * is the last that libmicrohttpd knows of it. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "core/base/crash.h"
#include "core/base/log.h"
#include "core/base/thread.h"
#include "core/serve/http_int.h"
#include "core/serve/listen.h"

enum {
    MAX_BODY = 32 << 20,
    MAX_CONNS = 8192,
    MAX_CONNS_IP = 4096,
    HEADER_S = 30,
    BODY_S = 30,
    IDLE_S = 75,
    BODY_RATE = 1024, /* bytes a second, on average, after BODY_S of grace */
};

double mc_http_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

void mc_http_unref(struct mc_http *h)
{
    if (atomic_fetch_sub(&h->refs, 1) == 1)
        free(h);
}

/* ---- routes in C ------------------------------------------------------------------- */

static void send_health(struct mc_http *h, struct mc_req *r)
{
    int rc = h->o.health ? h->o.health(h->o.self) : 0;
    const char *word = rc == 0 ? "ok" : rc > 0 ? "degraded" : "failed";
    char body[64];
    int n = snprintf(body, sizeof body, "{\"status\":\"%s\"}", word);

    mc_res_send(r, rc < 0 ? 503 : 200, "application/json", body, (size_t)n);
}

static void send_ready(struct mc_http *h, struct mc_req *r)
{
    static const char body[] = "{\"status\":\"ready\"}";
    struct mc_err e = {0};
    int rc = 0;

    if (atomic_load(&h->draining))
        rc = mc_fail(&e, MC_EDRAIN, "the server is shutting down");
    else if (h->o.ready)
        rc = h->o.ready(h->o.self, &e);
    if (rc < 0)
        mc_res_error(r, &e);
    else
        mc_res_send(r, 200, "application/json", body, sizeof body - 1);
}

static void send_metrics(struct mc_http *h, struct mc_req *r)
{
    struct mc_err e;
    size_t cap, n = h->metrics_guess;
    char *buf = NULL;

    do {
        cap = n + n / 4;
        free(buf);
        buf = malloc(cap);
        n = buf ? h->o.metrics(h->o.self, buf, cap) : 0;
    } while (n > cap);
    if (!buf) {
        mc_fail(&e, MC_ENOMEM, "no memory for metrics");
        mc_res_error(r, &e);
        return;
    }
    h->metrics_guess = n > h->metrics_guess ? n : h->metrics_guess;
    mc_res_send(r, 200, "text/plain; version=0.0.4; charset=utf-8", buf, n);
    free(buf);
}

/* True when the path is one of ours. */
static bool serve_here(struct mc_http *h, struct mc_req *r)
{
    const char *path = r->target.path;
    void (*send)(struct mc_http *, struct mc_req *) = NULL;
    struct mc_err e;

    if (strcmp(path, "/health") == 0)
        send = send_health;
    else if (strcmp(path, "/ready") == 0)
        send = send_ready;
    else if (strcmp(path, "/metrics") == 0 && h->o.metrics)
        send = send_metrics;
    if (!send)
        return false;
    if (strcmp(r->method, "GET") == 0 || strcmp(r->method, "HEAD") == 0) {
        send(h, r);
        return true;
    }
    mc_fail(&e, MC_EMETHOD, "%s takes GET and HEAD", path);
    mc_res_header(r, "allow", "GET, HEAD");
    mc_res_error(r, &e);
    return true;
}

/* ---- the edge ---------------------------------------------------------------------- */

/* The call lock keeps `gone` out until the edge has the request; a hang-up before that is
 * seen here. */
static void hand_over(struct mc_http *h, struct mc_req *r, const struct mc_edge_ops *ops)
{
    struct mc_err e = {0};
    int rc;

    pthread_mutex_lock(&r->call);
    if (mc_conn_hung_up(r->conn)) {
        pthread_mutex_lock(&r->lock);
        r->gone = true;
        pthread_mutex_unlock(&r->lock);
        pthread_mutex_unlock(&r->call);
        return;
    }
    r->ops = ops;
    r->ops_self = h->edge_self;
    r->owned = true;
    mc_req_ref(r);
    atomic_fetch_add(&h->n_open, 1);
    rc = ops->request(h->edge_self, r, &e);
    if (rc < 0) {
        r->owned = false;
        mc_res_error(r, &e);
        atomic_fetch_sub(&h->n_open, 1);
        mc_req_unref(r);
    }
    pthread_mutex_unlock(&r->call);
}

static void serve(struct mc_http *h, struct mc_req *r)
{
    const struct mc_edge_ops *ops = atomic_load_explicit(&h->edge, memory_order_acquire);
    struct mc_err e;

    r->phase = MC_REQ_SERVED;
    r->t_served = mc_http_now();
    mc_conn_phase(r->conn, MC_CONN_BUSY, 0);
    if (mc_cors_preflight(r) || serve_here(h, r))
        return;
    if (ops && (h->o.given > 0 || !atomic_load(&h->draining))) {
        hand_over(h, r, ops);
        return;
    }
    if (ops)
        mc_fail(&e, MC_EDRAIN, "the server is shutting down");
    else
        mc_fail(&e, MC_ELOADING, "the server is starting");
    mc_res_error(r, &e);
}

/* ---- libmicrohttpd's callbacks ----------------------------------------------------- */

static struct mc_conn *conn_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    return i ? i->socket_context : NULL;
}

/* The query is ours to parse. libmicrohttpd's own records of it would fill the
 * connection's memory at some 500 arguments, and then nothing is answered: it is shown
 * none. It parses uri in place after this. */
static void hide_query(const char *uri)
{
    char *query = strchr((char *)(uintptr_t)uri, '?');

    if (query && query[1])
        query[1] = 0;
}

static void *on_uri(void *ctx, const char *uri, struct MHD_Connection *c)
{
    struct mc_http *h = ctx;
    struct mc_conn *conn = conn_of(c);
    struct mc_req *r = conn ? mc_req_new(h, uri) : NULL;

    if (uri)
        hide_query(uri);
    if (!r)
        return NULL;
    r->conn = conn;
    r->mhd = c;
    mc_conn_phase(conn, MC_CONN_HEADER, h->o.header_timeout_s);
    return r;
}

/* How long the body may take from here. */
static void pace_body(struct mc_http *h, struct mc_req *r)
{
    double grace = h->o.body_timeout_s;
    double late = mc_http_now() - r->t_body - (double)r->body.n / BODY_RATE;
    double left = late > 0 ? grace - late : grace;

    mc_conn_phase(r->conn, MC_CONN_BODY, left > 0 ? left : 1e-3);
}

static enum MHD_Result refuse(struct mc_req *r, const struct mc_err *e)
{
    r->status = mc_code_http(e->code);
    mc_conn_refuse(r->conn, r->id, e);
    return MHD_NO; /* closes the connection */
}

static enum MHD_Result on_request(void *ctx, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version,
                                  const char *data, size_t *n, void **con)
{
    struct mc_http *h = ctx;
    struct mc_req *r = *con;
    struct mc_err e;
    int rc = 0;

    (void)url;
    if (!r)
        return MHD_NO;
    switch (r->phase) {
    case MC_REQ_HEADER:
        mc_conn_req(r->conn, r);
        rc = mc_req_header_in(r, c, method, version, h->o.max_body, &e);
        r->phase = MC_REQ_BODY;
        r->t_body = mc_http_now();
        pace_body(h, r);
        break;
    case MC_REQ_BODY:
        if (*n > 0) {
            rc = mc_req_body_in(r, data, *n, h->o.max_body, &e);
            pace_body(h, r);
            *n = 0;
            break;
        }
        serve(h, r);
        return mc_res_step(r, c);
    case MC_REQ_SERVED:
        return mc_res_step(r, c);
    }
    return rc < 0 ? refuse(r, &e) : MHD_YES;
}

/* The path as it came, without its query, which may be private. */
static void log_access(const struct mc_req *r, bool whole)
{
    double ms = r->t_served > 0 ? 1e3 * (mc_http_now() - r->t_served) : 0;
    bool asked = r->http->o.access_log;

    mc_log_at(asked ? MC_LOG_INFO : MC_LOG_DEBUG, asked ? "access" : "http",
              "ip=%s method=%s path=%.*s id=%s status=%d bytes=%llu ms=%.1f%s%s%s", r->ip,
              r->method, (int)strcspn(r->uri, "?"), r->uri, r->id, r->status,
              (unsigned long long)r->n_sent, ms, *r->tenant ? " tenant=" : "", r->tenant,
              whole ? "" : " cut");
}

static void on_completed(void *ctx, struct MHD_Connection *c, void **con,
                         enum MHD_RequestTerminationCode how)
{
    struct mc_http *h = ctx;
    struct mc_req *r = *con;
    struct MHD_Response *resp;
    bool whole;

    (void)c;
    if (!r)
        return;
    *con = NULL;
    mc_conn_req(r->conn, NULL);
    mc_conn_phase(r->conn, MC_CONN_IDLE, h->o.idle_timeout_s);
    pthread_mutex_lock(&r->lock);
    r->suspended = false;
    r->mhd = NULL;
    resp = r->resp;
    r->resp = NULL;
    whole = r->ended && how == MHD_REQUEST_TERMINATED_COMPLETED_OK;
    pthread_mutex_unlock(&r->lock);
    if (resp)
        MHD_destroy_response(resp);
    if (!whole)
        mc_req_gone(r);
    log_access(r, whole);
    mc_req_unref(r);
}

static void on_connection(void *ctx, struct MHD_Connection *c, void **conn,
                          enum MHD_ConnectionNotificationCode what)
{
    struct mc_http *h = ctx;
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);

    mc_crash_stack(); /* libmicrohttpd made this thread */
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        mc_conn_close(*conn);
        *conn = NULL;
        return;
    }
    *conn = i ? mc_conn_open(h->watch, i->connect_fd) : NULL;
    if (*conn)
        mc_conn_phase(*conn, MC_CONN_HEADER, h->o.header_timeout_s);
}

static void on_log(void *ctx, const char *fmt, va_list ap)
{
    char line[256];

    (void)ctx;
    vsnprintf(line, sizeof line, fmt, ap);
    line[strcspn(line, "\n")] = 0;
    mc_debug("http", "libmicrohttpd: %s", line);
}

/* Names are decoded and checked in req.c, where a broken one is refused. */
static size_t no_unescape(void *ctx, struct MHD_Connection *c, char *s)
{
    (void)ctx;
    (void)c;
    return strlen(s);
}

/* ---- open and close ---------------------------------------------------------------- */

long mc_http_raise_nofile(void)
{
    struct rlimit lim;

    if (getrlimit(RLIMIT_NOFILE, &lim) < 0)
        return -1;
    lim.rlim_cur = lim.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &lim) < 0)
        mc_warn("http", "RLIMIT_NOFILE not raised: %s", strerror(errno));
    getrlimit(RLIMIT_NOFILE, &lim);
    return (long)lim.rlim_cur;
}

static int or_else(int v, int otherwise)
{
    return v > 0 ? v : otherwise;
}

static void defaults(struct mc_http_opts *o)
{
    o->host = o->host ? o->host : "127.0.0.1";
    o->max_body = o->max_body ? o->max_body : MAX_BODY;
    o->max_conns = or_else(o->max_conns, MAX_CONNS);
    o->max_conns_ip = or_else(o->max_conns_ip, MAX_CONNS_IP);
    o->header_timeout_s = or_else(o->header_timeout_s, HEADER_S);
    o->body_timeout_s = or_else(o->body_timeout_s, BODY_S);
    o->idle_timeout_s = or_else(o->idle_timeout_s, IDLE_S);
}

/* The library's own timeout is for a client that does not read its answer; it must not
 * come before ours. */
static unsigned stall_s(const struct mc_http_opts *o)
{
    int s = o->idle_timeout_s;

    s = s > o->header_timeout_s ? s : o->header_timeout_s;
    return (unsigned)(s > o->body_timeout_s ? s : o->body_timeout_s) + 1;
}

static int start_daemon(struct mc_http *h, int fd, struct mc_err *err)
{
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_EPOLL |
                     MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;

    h->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, h, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)h->o.max_conns, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
        (unsigned)h->o.max_conns_ip, MHD_OPTION_CONNECTION_TIMEOUT, stall_s(&h->o),
        MHD_OPTION_URI_LOG_CALLBACK, on_uri, h, MHD_OPTION_UNESCAPE_CALLBACK, no_unescape,
        NULL, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, h, MHD_OPTION_END);
    if (h->daemon)
        return 0;
    return mc_fail(err, MC_EIO, "libmicrohttpd %s did not start: %s", MHD_get_version(),
                   strerror(errno));
}

/* Both threads start with signals blocked: they are the main thread's business. */
static int start_threads(struct mc_http *h, int fd, struct mc_err *err)
{
    sigset_t old;
    int rc;

    mc_thread_mask(&old);
    rc = mc_watch_open(&h->watch, err);
    if (rc == 0)
        rc = start_daemon(h, fd, err);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

int mc_http_open(const struct mc_http_opts *o, struct mc_http **out, struct mc_err *err)
{
    struct mc_http *h = calloc(1, sizeof *h);
    int fd = -1, rc;

    if (!h)
        return mc_fail(err, MC_ENOMEM, "no memory for the HTTP server");
    h->o = *o;
    defaults(&h->o);
    atomic_init(&h->refs, 1);
    h->metrics_guess = 16384;
    if (getrandom(&h->id_base, sizeof h->id_base, 0) < 0)
        h->id_base = (unsigned long)time(NULL);
    h->id_base &= 0xffffffff;
    mc_http_set_edge(h, o->edge, o->edge_self);
    h->quiet = -1;
    if (h->o.given > 0) {
        rc = mc_listen_given(h->o.given, &h->port, err);
    } else {
        rc = mc_listen(h->o.host, h->o.port, &fd, &h->port, err);
        if (rc == 0)
            rc = start_threads(h, fd, err);
    }
    if (rc < 0)
        goto fail;
    h->o.host = NULL; /* the caller's memory */
    *out = h;
    return 0;
fail:
    mc_watch_close(h->watch);
    if (fd >= 0)
        close(fd);
    mc_http_unref(h);
    return rc;
}

void mc_http_set_edge(struct mc_http *h, const struct mc_edge_ops *ops, void *self)
{
    h->edge_self = self;
    atomic_store_explicit(&h->edge, ops, memory_order_release);
}

int mc_http_accept(struct mc_http *h, struct mc_err *err)
{
    return h->daemon ? 0 : start_threads(h, h->o.given, err);
}

uint16_t mc_http_port(const struct mc_http *h)
{
    return h->port;
}

void mc_http_drain(struct mc_http *h)
{
    atomic_store(&h->draining, true);
    if (h->o.given > 0 && h->daemon && h->quiet < 0)
        h->quiet = MHD_quiesce_daemon(h->daemon);
}

int mc_http_open_requests(const struct mc_http *h)
{
    return atomic_load(&h->n_open);
}

/* libmicrohttpd must not be stopped while a connection is suspended: `closing` keeps new
 * ones from it, and those that are get their end. */
void mc_http_close(struct mc_http *h)
{
    if (!h)
        return;
    atomic_store(&h->closing, true);
    if (h->daemon) {
        mc_watch_each(h->watch, mc_req_gone);
        MHD_stop_daemon(h->daemon);
    }
    if (h->quiet >= 0)
        close(h->quiet);
    mc_watch_close(h->watch);
    mc_http_unref(h);
}
