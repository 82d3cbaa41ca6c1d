/* http.h - HTTP connections as requests and responses; libmicrohttpd stays behind it.
 *
 * The server's threads move bytes only. A whole, checked request (method, path, headers,
 * body within its limit) is handed to mc_edge_ops.request, which answers at any later
 * time from any thread through mc_res_*. Meanwhile the connection is suspended and its
 * socket watched, so that a client that hangs up is noticed at once (edge ops `gone`).
 * /health, /ready and /metrics are answered in C, whatever the edge does.
 * OWNS a request until both the client and the edge are done with it: the edge calls
 * mc_req_done exactly once. */
#ifndef MC_SERVE_HTTP_H
#define MC_SERVE_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/err.h"

struct mc_http;
struct mc_req;
struct mc_proxies;

struct mc_edge_ops {
    /* HTTP thread; must not block. The edge owns one reference until mc_req_done. A
     * negative return answers with that error. */
    int (*request)(void *self, struct mc_req *r, struct mc_err *err);
    /* The client is gone: what it asked for can be dropped. At most once, after `request`
     * returned and before done (which may be called in it). Any thread; must not block.
     */
    void (*gone)(void *self, struct mc_req *r);
};

struct mc_http_opts {
    const char *host; /* name or address, NULL: 127.0.0.1 */
    uint16_t port;    /* 0: any, see mc_http_port */
    /* > 0: a socket that listens already, and goes on when this server ends. Nothing is
     * accepted from it before mc_http_accept nor while draining, and draining refuses
     * nobody who was accepted: who comes in between waits in the socket for the next
     * server. */
    int given;
    size_t max_body;  /* bytes, more is 413; 0: 32 MiB */
    int max_conns, max_conns_ip; /* 0: 8192 and 4096 */
    /* Whole header; between two reads of a body, which also has to keep up 1 KiB/s;
     * between requests, and a client that does not read. 0: 30, 30 and 75. */
    int header_timeout_s, body_timeout_s, idle_timeout_s;
    const char
        *cors; /* origins whose pages may read answers, "*": all; NULL or "": none */
    const struct mc_proxies
        *proxies;    /* whose X-Forwarded-For is believed; NULL: nobody's */
    bool access_log; /* a line of unit "access" for each request */
    const struct mc_edge_ops *edge; /* may be set later: until then 503 loading */
    void *edge_self;
    /* Writes the body of /metrics; returns bytes, or more than cap when it does not fit.
     */
    size_t (*metrics)(void *self, char *buf, size_t cap);
    /* 0 ok, 1 degraded, an MC_E code when failed; for /health. */
    int (*health)(void *self);
    /* 0 when ready, else the code and text for the 503. */
    int (*ready)(void *self, struct mc_err *err);
    void *self; /* cors and proxies are borrowed until close */
};

/* Raises RLIMIT_NOFILE's soft limit to the hard one; returns the limit. Call it once at
 * start, before mc_http_open. */
long mc_http_raise_nofile(void);

/* A port in use is MC_EEXIST, and the text names who holds it when that can be seen. */
int mc_http_open(const struct mc_http_opts *o, struct mc_http **out, struct mc_err *err);
void mc_http_set_edge(struct mc_http *h, const struct mc_edge_ops *ops, void *self);
/* With a given socket: begins. Once the edge is set. */
int mc_http_accept(struct mc_http *h, struct mc_err *err);
uint16_t mc_http_port(const struct mc_http *h);
/* From now on requests are answered 503 "draining" in C; open ones go on, and probes and
 * metrics still answer. */
void mc_http_drain(struct mc_http *h);
int mc_http_open_requests(const struct mc_http *h); /* that the edge has not finished */
/* Ends every connection; `gone` is called for requests that are still open. They stay
 * valid until their mc_req_done. */
void mc_http_close(struct mc_http *h);

/* ---- a request: any thread; strings are borrowed until mc_req_done ----------------- */

const char *mc_req_method(const struct mc_req *r);
const char *mc_req_path(const struct mc_req *r); /* decoded, no query */
const char *mc_req_query(const struct mc_req *r, const char *key);  /* NULL: absent */
const char *mc_req_header(const struct mc_req *r, const char *key); /* case-insensitive */
const char *mc_req_body(const struct mc_req *r, size_t *n);
const char *mc_req_id(const struct mc_req *r); /* x-request-id, the client's or ours */
const char *mc_req_ip(const struct mc_req *r); /* the client's address */
/* Whose key it came with, for the access log; by the edge, in `request`. */
void mc_req_set_tenant(struct mc_req *r, const char *name);
bool mc_req_is_gone(const struct mc_req *r);
void mc_req_each_query(const struct mc_req *r,
                       void (*fn)(void *, const char *, const char *), void *ctx);
void mc_req_each_header(const struct mc_req *r,
                        void (*fn)(void *, const char *, const char *), void *ctx);
/* A slot for the edge's own pointer. */
void *mc_req_user(const struct mc_req *r);
void mc_req_set_user(struct mc_req *r, void *user);
void mc_req_done(struct mc_req *r);

/* ---- the response: one of send, error, or begin + write* + end --------------------- */

/* Every response carries x-request-id; text/event-stream also what keeps caches and
 * proxies from holding it. A second response is MC_EEXIST, one to a client that is gone
 * MC_ECANCEL. Header: again replaces; MC_EARG for line breaks and for content-length,
 * transfer-encoding and connection, MC_ELIMIT after 32. */
int mc_res_header(struct mc_req *r, const char *key,
                  const char *value); /* before the body */
int mc_res_send(struct mc_req *r, int status, const char *type, const void *body,
                size_t n);
/* The error in the OpenAI shape {"error":{message,type,param,code}} with its status and,
 * for 429 and 503, retry-after. */
int mc_res_error(struct mc_req *r, const struct mc_err *err);
int mc_res_begin(struct mc_req *r, int status, const char *type);
/* Appends; MC_ECANCEL when the client is gone, MC_EAGAIN (and nothing is taken) when over
 * 1 MiB waits unread. */
int mc_res_write(struct mc_req *r, const void *data, size_t n);
/* A stream that mc_req_done finds without its end is cut off, so as not to look whole. */
int mc_res_end(struct mc_req *r);
bool mc_res_started(const struct mc_req *r); /* send, error or begin was called */

#endif
