/* test_http.c - the HTTP server on real sockets, with a double of the edge. */
#define _GNU_SOURCE
#include "tests/c/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>

#include "core/serve/http.h"
#include "tests/c/client.h"

enum { N_HELD = 4096 };

/* The edge's double: "/echo" is answered at once with what was sent, all else is held for
 * the test to answer. */
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
static struct mc_req *held(struct edge *e, int i)
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

static bool comes_to(atomic_int *n, int want, double seconds)
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
#define POST(path, body) \
    "POST " path " HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body

static void http_answers_and_keeps_the_connection(void **state)
{
    struct edge *e = start((struct mc_http_opts){0});
    int fd = dial(e->port);
    char text[256];

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct answer a;

        snprintf(text, sizeof text, POST("/echo", "hello"));
        says(fd, text);
        a = listen_for(fd, 5);
        assert_int_equal(a.status, 200);
        assert_string_equal(a.body, "hello");
        assert_string_equal(field(&a, "Content-Type"), "text/plain");
        assert_null(field(&a, "Connection"));
        assert_null(field(&a, "Access-Control-Allow-Origin"));
        forget(&a);
    }
    close(fd);
    assert_int_equal(mc_http_open_requests(e->http), 0);
    stop(e);
}

static void count_pair(void *ctx, const char *key, const char *value)
{
    (void)key;
    *(size_t *)ctx += strlen(value);
}

static void http_gives_the_edge_what_was_sent(void **state)
{
    struct edge *e = start((struct mc_http_opts){0});
    int fd = dial(e->port);
    struct mc_req *r;
    struct answer a;
    size_t n;

    (void)state;
    says(fd, "PATCH http://host:8/v1/models/a%2Fb%20c?x=1+2&y=%C3%A9&z&x=3 HTTP/1.1\r\n"
             "Host: h\r\nX-Thing: one\r\nx-thing:two  \r\nContent-Length: 3\r\n\r\nabc");
    r = held(e, 0);
    assert_string_equal(mc_req_method(r), "PATCH");
    assert_string_equal(mc_req_path(r), "/v1/models/a/b c");
    assert_string_equal(mc_req_query(r, "x"), "1 2");
    assert_string_equal(mc_req_query(r, "y"), "\xC3\xA9");
    assert_string_equal(mc_req_query(r, "z"), "");
    assert_null(mc_req_query(r, "w"));
    assert_string_equal(mc_req_header(r, "x-THING"), "one");
    assert_null(mc_req_header(r, "x-other"));
    assert_string_equal(mc_req_body(r, &n), "abc");
    assert_int_equal(n, 3);
    n = 0;
    mc_req_each_query(r, count_pair, &n);
    assert_int_equal(n, 3 + 2 + 0 + 1);
    n = 0;
    mc_req_each_header(r, count_pair, &n);
    assert_true(n >= 1 + 3 + 3 + 1);
    mc_req_set_user(r, e);
    assert_ptr_equal(mc_req_user(r), e);
    assert_false(mc_res_started(r));
    assert_int_equal(mc_res_header(r, "X-Mine", "v"), 0);
    assert_int_equal(mc_res_header(r, "X-Mine", "w"), 0);
    assert_int_equal(mc_res_header(r, "X-Bad", "v\r\nSet-Cookie: x"), MC_EARG);
    assert_int_equal(mc_res_header(r, "Content-Length", "1"), MC_EARG);
    assert_int_equal(mc_res_send(r, 201, "application/json", "{}", 2), 0);
    assert_int_equal(mc_res_send(r, 201, "application/json", "{}", 2), MC_EEXIST);
    assert_true(mc_res_started(r));
    mc_req_done(r);
    a = listen_for(fd, 5);
    assert_int_equal(a.status, 201);
    assert_string_equal(a.body, "{}");
    assert_string_equal(field(&a, "X-Mine"), "w");
    forget(&a);
    close(fd);
    stop(e);
}

static void http_request_ids_are_echoed_when_sane(void **state)
{
    struct edge *e = start((struct mc_http_opts){0});
    static const char *const bad[] = {"a b", "<x>", "\xC3\xA9", "\"",
                                      "0123456789012345678901234567890123456789012345678901234567890123"};
    char text[512], first[80];
    struct answer a;

    (void)state;
    a = ask(e->port, "GET /health HTTP/1.1\r\nX-Request-Id: abc-1.2_3:4\r\n\r\n");
    assert_string_equal(field(&a, "x-request-id"), "abc-1.2_3:4");
    forget(&a);
    a = ask(e->port, GET("/health"));
    snprintf(first, sizeof first, "%s", field(&a, "x-request-id"));
    assert_int_equal(strncmp(first, "req-", 4), 0);
    forget(&a);
    a = ask(e->port, GET("/health"));
    assert_string_not_equal(field(&a, "x-request-id"), first);
    forget(&a);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(text, sizeof text, "GET /health HTTP/1.1\r\nX-Request-Id: %s\r\n\r\n", bad[i]);
        a = ask(e->port, text);
        assert_int_equal(strncmp(field(&a, "x-request-id"), "req-", 4), 0);
        forget(&a);
    }
    stop(e);
}

static void http_probes_and_metrics_are_answered_in_c(void **state)
{
    struct edge *e = start((struct mc_http_opts){0});
    struct answer a;

    (void)state;
    a = ask(e->port, GET("/health"));
    assert_int_equal(a.status, 200);
    assert_string_equal(a.body, "{\"status\":\"ok\"}");
    forget(&a);
    a = ask(e->port, GET("/ready"));
    assert_int_equal(a.status, 200);
    forget(&a);
    a = ask(e->port, GET("/metrics"));
    assert_int_equal(a.status, 200);
    assert_int_equal(a.n, 100000);
    assert_string_equal(field(&a, "Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
    forget(&a);
    a = ask(e->port, "POST /health HTTP/1.1\r\nContent-Length: 1\r\n\r\nx");
    assert_int_equal(a.status, 405);
    assert_string_equal(field(&a, "Allow"), "GET, HEAD");
    forget(&a);
    health_code = 1;
    a = ask(e->port, GET("/health"));
    assert_int_equal(a.status, 200);
    assert_string_equal(a.body, "{\"status\":\"degraded\"}");
    forget(&a);
    health_code = MC_ERANK;
    a = ask(e->port, GET("/health"));
    assert_int_equal(a.status, 503);
    assert_string_equal(a.body, "{\"status\":\"failed\"}");
    forget(&a);
    a = ask(e->port, GET("/ready"));
    assert_int_equal(a.status, 503);
    assert_string_equal(field(&a, "retry-after"), "1");
    forget(&a);
    assert_int_equal(atomic_load(&e->n_request), 0);
    stop(e);
}

static void http_head_has_no_body(void **state)
{
    struct edge *e = start((struct mc_http_opts){0});
    int fd = dial(e->port);
    char buf[2048];
    ssize_t n;

    (void)state;
    says(fd, "HEAD /health HTTP/1.1\r\n\r\n");
    n = hear(fd, buf, sizeof buf - 1, now_s() + 5);
    assert_true(n > 4);
    buf[n] = 0;
    assert_int_equal(strncmp(buf, "HTTP/1.1 200", 12), 0);
    assert_string_equal(buf + n - 4, "\r\n\r\n");
    close(fd);
    stop(e);
}

static void http_errors_have_the_openai_shape(void **state)
{
    struct edge *e = start((struct mc_http_opts){0});
    struct answer a;

    (void)state;
    e->refuse = MC_EMODEL;
    a = ask(e->port, GET("/v1/x"));
    assert_int_equal(a.status, 404);
    assert_string_equal(a.body, "{\"error\":{\"message\":\"not \\\"today\\\"\",\"type\":"
                                "\"invalid_request_error\",\"param\":\"model\",\"code\":"
                                "\"model_not_found\"}}");
    assert_string_equal(field(&a, "Content-Type"), "application/json");
    assert_null(field(&a, "retry-after"));
    forget(&a);
    e->refuse = MC_ELIMIT;
    a = ask(e->port, GET("/v1/x"));
    assert_int_equal(a.status, 429);
    assert_string_equal(field(&a, "retry-after"), "1");
    assert_string_equal(field(&a, "retry-after-ms"), "1000");
    forget(&a);
    e->refuse = MC_EAUTH;
    a = ask(e->port, GET("/v1/x"));
    assert_int_equal(a.status, 401);
    assert_string_equal(field(&a, "www-authenticate"), "Bearer");
    forget(&a);
    assert_int_equal(mc_http_open_requests(e->http), 0);
    stop(e);
}

static void http_without_an_edge_or_draining_is_503(void **state)
{
    struct edge *e = start((struct mc_http_opts){0});
    struct answer a;
    int fd;

    (void)state;
    mc_http_set_edge(e->http, NULL, NULL);
    a = ask(e->port, GET("/v1/x"));
    assert_int_equal(a.status, 503);
    assert_non_null(strstr(a.body, "\"loading\""));
    assert_string_equal(field(&a, "retry-after"), "1");
    forget(&a);
    mc_http_set_edge(e->http, &ops, e);
    fd = dial(e->port);
    says(fd, GET("/held"));
    held(e, 0);
    mc_http_drain(e->http);
    a = ask(e->port, GET("/v1/x"));
    assert_int_equal(a.status, 503);
    assert_non_null(strstr(a.body, "\"draining\""));
    assert_string_equal(field(&a, "Connection"), "close");
    forget(&a);
    a = ask(e->port, GET("/health"));
    assert_int_equal(a.status, 200);
    forget(&a);
    a = ask(e->port, GET("/ready"));
    assert_int_equal(a.status, 503);
    forget(&a);
    mc_res_send(held(e, 0), 200, "text/plain", "late", 4); /* what was open goes on */
    mc_req_done(held(e, 0));
    a = listen_for(fd, 5);
    assert_string_equal(a.body, "late");
    forget(&a);
    close(fd);
    stop(e);
}

/* ---- bodies ---------------------------------------------------------------------------- */

static void http_body_in_single_bytes_is_the_same_request(void **state)
{
    enum { N = 1 << 20 };
    struct edge *e = start((struct mc_http_opts){0});
    char *body = malloc(N + 1), head[128];
    int fd = dial(e->port);
    struct answer a;
    double t;

    (void)state;
    memset(body, 'x', N);
    memcpy(body + 100, "\xE6\xBC\xA2", 3);
    memcpy(body + 2047, "\xE6\xBC\xA2", 3); /* across the border of the single bytes */
    snprintf(head, sizeof head, "POST /echo HTTP/1.1\r\nContent-Length: %d\r\n\r\n", N);
    says(fd, head);
    for (int i = 0; i < 2048; i++)
        say(fd, body + i, 1);
    for (int i = 2048; i < N; i += 1440)
        say(fd, body + i, (size_t)(N - i < 1440 ? N - i : 1440));
    a = listen_for(fd, 20);
    assert_int_equal(a.n, N);
    assert_memory_equal(a.body, body, N);
    assert_int_equal(atomic_load(&e->n_request), 1);
    forget(&a);
    t = now_s(); /* and a large one at once */
    says(fd, head);
    say(fd, body, N);
    a = listen_for(fd, 20);
    assert_int_equal(a.n, N);
    assert_true(now_s() - t < 5);
    forget(&a);
    close(fd);
    free(body);
    stop(e);
}

static void http_chunked_bodies_and_continue(void **state)
{
    struct edge *e = start((struct mc_http_opts){0});
    int fd = dial(e->port);
    char buf[256];
    struct answer a;
    ssize_t n;

    (void)state;
    says(fd, "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
             "3\r\nabc\r\nA;ext=1\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n");
    a = listen_for(fd, 5);
    assert_string_equal(a.body, "abc0123456789");
    forget(&a);
    says(fd, "POST /echo HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    n = hear(fd, buf, sizeof buf - 1, now_s() + 5);
    assert_true(n > 0 && strncmp(buf, "HTTP/1.1 100", 12) == 0);
    says(fd, "ok");
    a = listen_for(fd, 5);
    assert_string_equal(a.body, "ok");
    forget(&a);
    close(fd);
    stop(e);
}

static void http_pipelined_requests_are_answered_in_order(void **state)
{
    struct edge *e = start((struct mc_http_opts){0});
    int fd = dial(e->port);
    char buf[4096];
    size_t n = 0;
    double until = now_s() + 5;
    ssize_t k;

    (void)state;
    says(fd, "POST /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\nfirst"
             "POST /echo HTTP/1.1\r\nContent-Length: 6\r\n\r\nsecond");
    do {
        k = hear(fd, buf + n, sizeof buf - 1 - n, until);
        n += k > 0 ? (size_t)k : 0;
        buf[n] = 0;
    } while (k > 0 && !strstr(buf, "second"));
    assert_non_null(strstr(buf, "first"));
    assert_true(strstr(buf, "second") > strstr(buf, "first"));
    close(fd);
    stop(e);
}

static void http_too_large_a_body_is_413(void **state)
{
    enum { MAX = 100000 };
    struct edge *e = start((struct mc_http_opts){.max_body = MAX});
    char head[160], *body = calloc(1, 4 * MAX);
    struct answer a;
    int fd;

    (void)state;
    fd = dial(e->port); /* at once, without the body */
    says(fd, "POST /echo HTTP/1.1\r\nContent-Length: 1000000000000000000\r\n\r\nabc");
    a = listen_for(fd, 1);
    assert_int_equal(a.status, 413);
    assert_non_null(strstr(a.body, "100000"));
    assert_non_null(field(&a, "x-request-id"));
    assert_string_equal(field(&a, "Connection"), "close");
    forget(&a);
    assert_true(hangs_up(fd, 1));
    close(fd);
    fd = dial(e->port); /* to a client that sends it all before it reads */
    snprintf(head, sizeof head, "POST /echo HTTP/1.1\r\nContent-Length: %d\r\n\r\n", 4 * MAX);
    says(fd, head);
    assert_true(say(fd, body, 4 * MAX));
    usleep(100000);
    a = listen_for(fd, 1);
    assert_int_equal(a.status, 413);
    forget(&a);
    close(fd);
    fd = dial(e->port); /* chunked: no length to refuse by */
    says(fd, "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
    snprintf(head, sizeof head, "%x\r\n", 4 * MAX);
    says(fd, head);
    say(fd, body, 4 * MAX);
    a = listen_for(fd, 1);
    assert_int_equal(a.status, 413);
    forget(&a);
    close(fd);
    fd = dial(e->port); /* the limit itself is fine */
    snprintf(head, sizeof head, "POST /echo HTTP/1.1\r\nContent-Length: %d\r\n\r\n", MAX);
    says(fd, head);
    say(fd, body, MAX);
    a = listen_for(fd, 5);
    assert_int_equal(a.status, 200);
    assert_int_equal(a.n, MAX);
    forget(&a);
    close(fd);
    assert_int_equal(atomic_load(&e->n_request), 1);
    free(body);
    stop(e);
}

/* ---- what two parsers may read differently --------------------------------------------- */

static void http_refuses_unclear_requests_and_closes(void **state)
{
#define SMUGGLED "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    static const struct {
        const char *text;
        int status;
    } row[] = {
        {"POST /echo HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400},
        {"POST /echo HTTP/1.1\r\nContent-Length: 0\r\ncontent-length: 36\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nContent-Length: 3, 3\r\n\r\nabc", 400},
        {"POST /echo HTTP/1.1\r\nContent-Length: +3\r\n\r\nabc", 400},
        {"POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\nabc", 400},
        {"POST /echo HTTP/1.1\r\nContent-Length: 0x3\r\n\r\nabc", 400},
        {"POST /echo HTTP/1.1\r\nContent-Length: 3 3\r\n\r\nabc", 400},
        {"POST /echo HTTP/1.1\r\nContent-Length:\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nContent-Length : 3\r\n\r\nabc", 400},
        {"POST /echo HTTP/1.1\r\nContent-Length\t: 3\r\n\r\nabc", 400},
        {"POST /echo HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
         "0\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"
         "\r\n0\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"
         "\r\n0\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nTransfer-Encoding: \x0b""chunked\r\n\r\n0\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400},
        {"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\n Content-Length: 3\r\n\r\nabc", 400},
        {"POST /echo HTTP/1.1\r\nX: a\r\n Content-Length: 3\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nContent-Lengt:            36\r\n h\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nTransfer-Encodin:            chunked\r\n g\r\n\r\n0\r\n\r\n", 400},
        {"GET /echo HTTP/1.1\r\nX: a\rb\r\n\r\n", 400},
        {"GET /echo HTTP/1.1\r\nX y: a\r\n\r\n", 400},
        {"GET /echo HTTP/1.1\r\nnocolon\r\n\r\n", 400},
        {"GET /a%00b HTTP/1.1\r\n\r\n", 400},
        {"GET /a%zz HTTP/1.1\r\n\r\n", 400},
        {"GET /a%4 HTTP/1.1\r\n\r\n", 400},
        {"GET /a%ff HTTP/1.1\r\n\r\n", 400},
        {"GET /a?b=%ff HTTP/1.1\r\n\r\n", 400},
        {"GET /a b HTTP/1.1\r\n\r\n", 400},
        {"GET relative HTTP/1.1\r\n\r\n", 400},
        {"G@T / HTTP/1.1\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", 415},
        {"POST /echo HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\nabc", 413},
    };
    struct edge *e = start((struct mc_http_opts){0});

    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        int fd = dial(e->port);
        struct answer a;

        says(fd, row[i].text);
        says(fd, SMUGGLED);
        a = listen_for(fd, 5);
        if (a.status != row[i].status)
            fail_msg("%d, want %d, for %s", a.status, row[i].status, row[i].text);
        if (!a.closed && !hangs_up(fd, 2))
            fail_msg("left open: %s", row[i].text);
        assert_null(a.head ? strstr(a.body, "/work") : NULL);
        forget(&a);
        close(fd);
        if (atomic_load(&e->n_request) != 0)
            fail_msg("let through: %s", row[i].text);
    }
    stop(e);
}

/* ---- slow clients ---------------------------------------------------------------------- */

static void http_slow_clients_are_shut_out(void **state)
{
    enum { N = 100 };
    struct edge *e = start((struct mc_http_opts){
        .header_timeout_s = 1, .body_timeout_s = 1, .idle_timeout_s = 2});
    int head[N], body[N], idle, drip;
    struct answer a;
    double t = now_s();
    char c;

    (void)state;
    for (int i = 0; i < N; i++) {
        head[i] = dial(e->port);
        says(head[i], "GET / HTTP/1.1\r\nHo");
        body[i] = dial(e->port);
        says(body[i], "POST /echo HTTP/1.1\r\nContent-Length: 100\r\n\r\nabc");
    }
    idle = dial(e->port);
    says(idle, GET("/health"));
    drip = dial(e->port);
    says(drip, "POST /echo HTTP/1.1\r\nContent-Length: 1000\r\n\r\n");
    t = now_s();
    a = ask(e->port, GET("/health"));
    assert_int_equal(a.status, 200);
    assert_true(now_s() - t < 1);
    forget(&a);
    while (now_s() - t < 2.5 && recv(drip, &c, 1, MSG_DONTWAIT) < 0) { /* a byte now and then */
        say(drip, "x", 1);
        usleep(100000);
    }
    assert_true(now_s() - t < 2.5);
    for (int i = 0; i < N; i++) {
        assert_true(hangs_up(head[i], 1));
        close(head[i]);
        a = listen_for(body[i], 1);
        assert_int_equal(a.status, 408);
        assert_non_null(field(&a, "x-request-id"));
        forget(&a);
        assert_true(hangs_up(body[i], 1));
        close(body[i]);
    }
    assert_true(now_s() - t < 4);
    a = listen_for(idle, 1);
    assert_int_equal(a.status, 200);
    forget(&a);
    assert_true(hangs_up(idle, 4));
    close(idle);
    close(drip);
    assert_int_equal(atomic_load(&e->n_request), 0);
    stop(e);
}

static void http_connections_of_one_address_are_limited(void **state)
{
    struct edge *e = start((struct mc_http_opts){.max_conns_ip = 3});
    int fd[3], over;
    struct answer a;

    (void)state;
    for (int i = 0; i < 3; i++) {
        fd[i] = dial(e->port);
        says(fd[i], GET("/health"));
        a = listen_for(fd[i], 5);
        assert_int_equal(a.status, 200);
        forget(&a);
    }
    over = dial(e->port);
    assert_true(over < 0 || hangs_up(over, 2));
    close(over);
    close(fd[0]);
    usleep(100000);
    a = ask(e->port, GET("/health"));
    assert_int_equal(a.status, 200);
    forget(&a);
    close(fd[1]);
    close(fd[2]);
    stop(e);
}

/* ---- hang-ups -------------------------------------------------------------------------- */

/* 50 clients leave at once, with FIN or RST, before an answer or in a stream. */
static void leave(bool reset, bool stream)
{
    enum { N = 50 };
    struct edge *e = start((struct mc_http_opts){0});
    int fd[N];
    double t;

    for (int i = 0; i < N; i++) {
        fd[i] = dial(e->port);
        says(fd[i], "POST /held HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}");
        held(e, i);
    }
    for (int i = 0; i < N && stream; i++) {
        assert_int_equal(mc_res_begin(held(e, i), 200, "text/event-stream"), 0);
        for (int k = 0; k < 3; k++)
            assert_int_equal(mc_res_write(held(e, i), "data: x\n\n", 9), 0);
    }
    for (int i = 0; i < N && stream; i++) {
        char buf[2048];
        size_t n = 0;
        ssize_t k;

        while (n < sizeof buf - 1 && (k = hear(fd[i], buf + n, sizeof buf - 1 - n, now_s() + 5)) > 0) {
            n += (size_t)k;
            buf[n] = 0;
            if (strstr(buf, "\r\n\r\n") && strstr(strstr(buf, "\r\n\r\n"), "data: x"))
                break;
        }
    }
    assert_int_equal(atomic_load(&e->n_gone), 0);
    t = now_s();
    for (int i = 0; i < N; i++) {
        if (reset)
            slam(fd[i]);
        else
            close(fd[i]);
    }
    assert_true(comes_to(&e->n_gone, N, 1));
    assert_true(e->t_gone - t < 1);
    print_message("# %s, %s: %d gone after %.1f ms\n", reset ? "RST" : "FIN",
                  stream ? "streaming" : "waiting", N, (e->t_gone - t) * 1e3);
    for (int i = 0; i < N; i++) {
        assert_true(mc_req_is_gone(held(e, i)));
        assert_int_equal(stream ? mc_res_write(held(e, i), "x", 1)
                                : mc_res_send(held(e, i), 200, "text/plain", "x", 1),
                         MC_ECANCEL);
        assert_string_equal(mc_req_path(held(e, i)), "/held"); /* ours until done */
        mc_req_done(held(e, i));
    }
    usleep(20000);
    assert_int_equal(atomic_load(&e->n_gone), N); /* once each */
    assert_int_equal(mc_http_open_requests(e->http), 0);
    stop(e);
}

static void http_hang_ups_are_seen_at_once(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        leave(i & 1, i & 2);
}

static void http_edge_may_finish_in_gone(void **state)
{
    struct edge *e = start((struct mc_http_opts){0});
    int fd = dial(e->port);

    (void)state;
    e->done_when_gone = true;
    says(fd, GET("/held"));
    held(e, 0);
    close(fd);
    assert_true(comes_to(&e->n_gone, 1, 1));
    usleep(20000);
    assert_int_equal(mc_http_open_requests(e->http), 0);
    stop(e);
}

/* Clients come and go while the edge answers: no double gone, no use after free. */
static void http_hang_ups_race_with_answers(void **state)
{
    struct edge *e = start((struct mc_http_opts){0});

    (void)state;
    for (int i = 0; i < 300; i++) {
        int fd = dial(e->port);
        struct mc_req *r;

        says(fd, GET("/held"));
        r = held(e, i);
        if (i % 3 == 0)
            close(fd);
        if (i % 2) {
            mc_res_begin(r, 200, "text/event-stream");
            mc_res_write(r, "data: 1\n\n", 9);
            if (i % 3 == 1)
                close(fd);
            mc_res_write(r, "data: 2\n\n", 9);
            mc_res_end(r);
        } else {
            mc_res_send(r, 200, "text/plain", "x", 1);
        }
        mc_req_done(r);
        if (i % 3 == 2 || (i % 3 == 1 && i % 2 == 0))
            close(fd);
    }
    assert_true(atomic_load(&e->n_gone) <= 300);
    assert_int_equal(mc_http_open_requests(e->http), 0);
    stop(e);
}

static void http_half_closed_probe_still_gets_its_answer(void **state)
{
    struct edge *e = start((struct mc_http_opts){0});

    (void)state;
    for (int i = 0; i < 20; i++) {
        int fd = dial(e->port);
        struct answer a;

        says(fd, GET("/health"));
        shutdown(fd, SHUT_WR);
        a = listen_for(fd, 2);
        assert_int_equal(a.status, 200);
        forget(&a);
        close(fd);
    }
    stop(e);
}

/* ---- streams --------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void http_stream_bytes_leave_at_once(void **state)
{
    enum { N = 50 };
    struct edge *e = start((struct mc_http_opts){0});
    int fd = dial(e->port);
    double gap[N], t;
    char buf[4096];
    struct mc_req *r;
    struct answer a;
    ssize_t n;

    (void)state;
    says(fd, "POST /held HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}");
    r = held(e, 0);
    t = now_s();
    assert_int_equal(mc_res_begin(r, 200, "text/event-stream; charset=utf-8"), 0);
    n = hear(fd, buf, sizeof buf - 1, t + 5); /* the header does not wait for data */
    assert_true(n > 0);
    buf[n] = 0;
    assert_non_null(strcasestr(buf, "\r\nContent-Type: text/event-stream; charset=utf-8\r\n"));
    assert_non_null(strcasestr(buf, "\r\nCache-Control: no-cache\r\n"));
    assert_non_null(strcasestr(buf, "\r\nX-Accel-Buffering: no\r\n"));
    assert_non_null(strcasestr(buf, "\r\nTransfer-Encoding: chunked\r\n"));
    assert_non_null(strcasestr(buf, "\r\nx-request-id: "));
    print_message("# header after %.1f ms\n", (now_s() - t) * 1e3);
    for (int i = 0; i < N; i++) {
        t = now_s();
        mc_res_write(r, "data: token\n\n", 13);
        n = hear(fd, buf, sizeof buf - 1, t + 5);
        gap[i] = now_s() - t;
        assert_true(n > 0);
        buf[n] = 0;
        assert_string_equal(buf, "D\r\ndata: token\n\n\r\n");
        usleep(5000);
    }
    t = now_s();
    mc_res_write(r, "data: [DONE]\n\n", 14);
    mc_res_end(r);
    mc_req_done(r);
    for (size_t have = 0; !memmem(buf, have, "0\r\n\r\n", 5); have += (size_t)n) {
        n = hear(fd, buf + have, sizeof buf - have, t + 5);
        assert_true(n > 0);
    }
    print_message("# last chunk after %.2f ms\n", (now_s() - t) * 1e3);
    assert_true(now_s() - t < 0.05);
    qsort(gap, N, sizeof gap[0], by_value);
    print_message("# gap: median %.3f ms, worst %.3f ms\n", gap[N / 2] * 1e3, gap[N - 1] * 1e3);
    assert_true(gap[N / 2] < 0.005);
    assert_true(gap[N - 2] < 0.010 * (getenv("MC_SLOW") ? 10 : 1));
    says(fd, GET("/health"));
    a = listen_for(fd, 5);
    assert_int_equal(a.status, 200);
    forget(&a);
    close(fd);
    stop(e);
}

static void http_stream_to_a_slow_reader_waits_and_arrives(void **state)
{
    struct edge *e = start((struct mc_http_opts){0});
    int fd = dial(e->port), small = 65536;
    static char block[65536];
    size_t sent = 0;
    struct mc_req *r;
    struct answer a;
    int rc;

    (void)state;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    memset(block, 'b', sizeof block);
    says(fd, GET("/held"));
    r = held(e, 0);
    mc_res_begin(r, 200, "application/octet-stream");
    while ((rc = mc_res_write(r, block, sizeof block)) == 0) {
        sent += sizeof block;
        assert_true(sent < 64u << 20);
        usleep(1000);
    }
    assert_int_equal(rc, MC_EAGAIN);
    mc_res_end(r);
    mc_req_done(r);
    a = listen_for(fd, 20);
    assert_true(a.whole);
    assert_int_equal(a.n, sent);
    forget(&a);
    close(fd);
    stop(e);
}

static void http_client_that_never_reads_is_shut_out(void **state)
{
    struct edge *e = start((struct mc_http_opts){
        .header_timeout_s = 1, .body_timeout_s = 1, .idle_timeout_s = 1});
    int fd = dial(e->port);
    static char block[65536];
    struct mc_req *r;

    (void)state;
    says(fd, GET("/held"));
    r = held(e, 0);
    mc_res_begin(r, 200, "application/octet-stream");
    while (mc_res_write(r, block, sizeof block) == 0)
        usleep(1000);
    assert_true(comes_to(&e->n_gone, 1, 5));
    mc_req_done(r);
    close(fd);
    stop(e);
}

static void http_unfinished_answers_do_not_look_finished(void **state)
{
    struct edge *e = start((struct mc_http_opts){0});
    int fd = dial(e->port);
    struct answer a;

    (void)state;
    says(fd, GET("/held")); /* no answer at all */
    mc_req_done(held(e, 0));
    a = listen_for(fd, 5);
    assert_int_equal(a.status, 500);
    assert_non_null(strstr(a.body, "without an answer"));
    forget(&a);
    says(fd, GET("/held")); /* a stream without its end */
    mc_res_begin(held(e, 1), 200, "text/event-stream");
    mc_res_write(held(e, 1), "data: 1\n\n", 9);
    usleep(20000);
    mc_req_done(held(e, 1));
    a = listen_for(fd, 5);
    assert_int_equal(a.status, 200);
    assert_false(a.whole);
    assert_true(a.closed);
    forget(&a);
    close(fd);
    stop(e);
}

static void http_head_of_a_stream_ends_it(void **state)
{
    struct edge *e = start((struct mc_http_opts){0});
    int fd = dial(e->port);

    (void)state;
    says(fd, "HEAD /held HTTP/1.1\r\n\r\n");
    mc_res_begin(held(e, 0), 200, "text/event-stream");
    assert_true(comes_to(&e->n_gone, 1, 2)); /* nobody will read what would come */
    mc_req_done(held(e, 0));
    close(fd);
    stop(e);
}

/* ---- many ------------------------------------------------------------------------------ */

static double cpu_s(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void http_a_thousand_idle_and_64_streams(void **state)
{
    enum { IDLE = 1000, STREAMS = 64, EVENTS = 20 };
    struct edge *e = start((struct mc_http_opts){0});
    static int idle[IDLE], fd[STREAMS];
    struct answer a;
    double t, cpu;

    (void)state;
    if (mc_http_raise_nofile() < 2 * (IDLE + STREAMS) + 100) {
        print_message("RLIMIT_NOFILE's hard limit is too low\n");
        stop(e);
        skip();
    }
    for (int i = 0; i < IDLE; i++) {
        idle[i] = dial(e->port);
        assert_true(idle[i] >= 0);
    }
    for (int i = 0; i < STREAMS; i++) {
        fd[i] = dial(e->port);
        says(fd[i], GET("/held"));
        held(e, i);
    }
    cpu = cpu_s();
    usleep(300000);
    print_message("# waiting for 0.3 s takes %.1f ms of CPU\n", (cpu_s() - cpu) * 1e3);
    assert_true(cpu_s() - cpu < 0.15); /* nobody spins */
    for (int i = 0; i < STREAMS; i++)
        mc_res_begin(held(e, i), 200, "text/event-stream");
    t = now_s();
    for (int k = 0; k < EVENTS; k++) {
        for (int i = 0; i < STREAMS; i++)
            assert_int_equal(mc_res_write(held(e, i), "data: token\n\n", 13), 0);
        usleep(2000);
    }
    for (int i = 0; i < STREAMS; i++) {
        mc_res_end(held(e, i));
        mc_req_done(held(e, i));
    }
    for (int i = 0; i < STREAMS; i++) {
        a = listen_for(fd[i], 10);
        assert_true(a.whole);
        assert_int_equal(a.n, 13 * EVENTS);
        forget(&a);
        close(fd[i]);
    }
    print_message("# %d events on %d streams in %.1f ms\n", EVENTS, STREAMS,
                  (now_s() - t) * 1e3);
    for (int i = 0; i < IDLE; i++) { /* those that were idle can still ask */
        if (i % 100 == 0) {
            says(idle[i], GET("/health"));
            a = listen_for(idle[i], 5);
            assert_int_equal(a.status, 200);
            forget(&a);
        }
        close(idle[i]);
    }
    assert_int_equal(atomic_load(&e->n_gone), 0);
    stop(e);
}

/* ---- opening and closing --------------------------------------------------------------- */

static void http_port_in_use_names_flags_and_owner(void **state)
{
    struct edge *e = start((struct mc_http_opts){0});
    struct mc_http_opts o = {.port = e->port};
    struct mc_http *second;
    struct mc_err err;
    char want[64];

    (void)state;
    assert_int_equal(mc_http_open(&o, &second, &err), MC_EEXIST);
    assert_non_null(strstr(err.text, "--port"));
    assert_non_null(strstr(err.text, "--listen"));
    snprintf(want, sizeof want, "(pid %d, ", (int)getpid());
    assert_non_null(strstr(err.text, want));
    o.host = "no such host";
    assert_int_equal(mc_http_open(&o, &second, &err), MC_EARG);
    stop(e);
}

static void http_close_ends_open_requests(void **state)
{
    struct edge *e = start((struct mc_http_opts){0});
    int fd[10];

    (void)state;
    for (int i = 0; i < 10; i++) {
        fd[i] = dial(e->port);
        says(fd[i], i == 9 ? "POST /held HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf" : GET("/held"));
        if (i < 9)
            held(e, i);
        if (i % 2 && i < 9)
            mc_res_begin(held(e, i), 200, "text/event-stream");
    }
    usleep(20000);
    mc_http_close(e->http);
    assert_int_equal(atomic_load(&e->n_gone), 9);
    for (int i = 0; i < 10; i++) {
        assert_true(hangs_up(fd[i], 1));
        close(fd[i]);
    }
    for (int i = 0; i < 9; i++) { /* the edge still has them */
        assert_string_equal(mc_req_path(held(e, i)), "/held");
        mc_req_done(held(e, i));
    }
    mc_http_close(NULL);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(http_answers_and_keeps_the_connection),
    cmocka_unit_test(http_gives_the_edge_what_was_sent),
    cmocka_unit_test(http_request_ids_are_echoed_when_sane),
    cmocka_unit_test(http_probes_and_metrics_are_answered_in_c),
    cmocka_unit_test(http_head_has_no_body),
    cmocka_unit_test(http_errors_have_the_openai_shape),
    cmocka_unit_test(http_without_an_edge_or_draining_is_503),
    cmocka_unit_test(http_body_in_single_bytes_is_the_same_request),
    cmocka_unit_test(http_chunked_bodies_and_continue),
    cmocka_unit_test(http_pipelined_requests_are_answered_in_order),
    cmocka_unit_test(http_too_large_a_body_is_413),
    cmocka_unit_test(http_refuses_unclear_requests_and_closes),
    cmocka_unit_test(http_slow_clients_are_shut_out),
    cmocka_unit_test(http_connections_of_one_address_are_limited),
    cmocka_unit_test(http_hang_ups_are_seen_at_once),
    cmocka_unit_test(http_edge_may_finish_in_gone),
    cmocka_unit_test(http_hang_ups_race_with_answers),
    cmocka_unit_test(http_half_closed_probe_still_gets_its_answer),
    cmocka_unit_test(http_stream_bytes_leave_at_once),
    cmocka_unit_test(http_stream_to_a_slow_reader_waits_and_arrives),
    cmocka_unit_test(http_client_that_never_reads_is_shut_out),
    cmocka_unit_test(http_unfinished_answers_do_not_look_finished),
    cmocka_unit_test(http_head_of_a_stream_ends_it),
    cmocka_unit_test(http_a_thousand_idle_and_64_streams),
    cmocka_unit_test(http_port_in_use_names_flags_and_owner),
    cmocka_unit_test(http_close_ends_open_requests),
};
MC_TEST_MAIN(tests)
