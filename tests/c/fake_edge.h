/* fake_edge.h - an HTTP server with a double of the edge behind it.
 *
 * "/echo" is answered at once with what was sent; all other requests are held for the test
 * to answer. */
#ifndef MC_FAKE_EDGE_H
#define MC_FAKE_EDGE_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/serve/http.h"
#include "tests/c/client.h"

enum { N_HELD = 4096 };

struct edge {
    pthread_mutex_t lock;
    struct mc_req *held[N_HELD];
    int n_held, refuse;
    atomic_int n_request, n_gone;
    double t_gone; /* of the last */
    bool done_when_gone;
    struct mc_http *http;
    uint16_t port;
};

static int on_request(void *self, struct mc_req *r, struct mc_err *err)
{
    struct edge *e = self;
    const char *body;
    size_t n;

    atomic_fetch_add(&e->n_request, 1);
    if (e->refuse)
        return mc_fail_param(err, e->refuse, "model", "not \"today\"");
    if (strcmp(mc_req_path(r), "/echo") == 0) {
        body = mc_req_body(r, &n);
        mc_res_send(r, 200, "text/plain", body, n);
        mc_req_done(r);
        return 0;
    }
    pthread_mutex_lock(&e->lock);
    e->held[e->n_held++] = r;
    pthread_mutex_unlock(&e->lock);
    return 0;
}

static void on_gone(void *self, struct mc_req *r)
{
    struct edge *e = self;

    pthread_mutex_lock(&e->lock);
    e->t_gone = now_s();
    atomic_fetch_add(&e->n_gone, 1);
    pthread_mutex_unlock(&e->lock);
    if (e->done_when_gone)
        mc_req_done(r);
}

static const struct mc_edge_ops ops = {on_request, on_gone};

static size_t metrics_text(void *self, char *buf, size_t cap)
{
    size_t n = 100000; /* more than the first guess */

    (void)self;
    memset(buf, '#', cap < n ? cap : n);
    return n;
}

static int health_code;

static int health(void *self)
{
    (void)self;
    return health_code;
}

static int not_ready(void *self, struct mc_err *err)
{
    (void)self;
    return health_code ? mc_fail(err, MC_ELOADING, "the model is still loading") : 0;
}

static struct edge *start(struct mc_http_opts o)
{
    struct edge *e = calloc(1, sizeof *e);
    struct mc_err err;

    pthread_mutex_init(&e->lock, NULL);
    o.edge = &ops;
    o.edge_self = e;
    o.metrics = metrics_text;
    o.health = health;
    o.ready = not_ready;
    health_code = 0;
    assert_ok(mc_http_open(&o, &e->http, &err), err);
    e->port = mc_http_port(e->http);
    return e;
}

/* Waits for the i-th held request. */
static __attribute__((unused)) struct mc_req *held(struct edge *e, int i)
{
    double until = now_s() + 10;
    struct mc_req *r = NULL;

    while (!r && now_s() < until) {
        pthread_mutex_lock(&e->lock);
        r = i < e->n_held ? e->held[i] : NULL;
        pthread_mutex_unlock(&e->lock);
        usleep(r ? 0 : 500);
    }
    assert_non_null(r);
    return r;
}

static __attribute__((unused)) bool comes_to(atomic_int *n, int want, double seconds)
{
    double until = now_s() + seconds;

    while (atomic_load(n) != want && now_s() < until)
        usleep(500);
    return atomic_load(n) == want;
}

static void stop(struct edge *e)
{
    mc_http_close(e->http);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\n\r\n"

#endif
