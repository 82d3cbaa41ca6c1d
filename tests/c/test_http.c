/* test_http.c - the HTTP server on real sockets, with a double of the edge. */
#define _GNU_SOURCE
#include "tests/c/test.h"

#include "tests/c/fake_edge.h"

static void http_answers_and_keeps_the_connection(void **state)
{
    struct edge *e = start((struct mc_http_opts){0});
    int fd = dial(e->port);
    char text[256];

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct answer a;

        snprintf(text, sizeof text, "POST /echo HTTP/1.1\r\nHost: x\r\n"
                                    "Content-Length: 5\r\n\r\nhello");
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
                                      "0123456789012345678901234567890123456789"
                                      "012345678901234567890123"};
    char text[512], first[80];
    struct answer a;

    (void)state;
    a = ask(e->port, "GET /health HTTP/1.1\r\nHost: x\r\n"
                     "X-Request-Id: abc-1.2_3:4\r\n\r\n");
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
        snprintf(text, sizeof text, "GET /health HTTP/1.1\r\nHost: x\r\n"
                                    "X-Request-Id: %s\r\n\r\n", bad[i]);
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
    assert_string_equal(field(&a, "Content-Type"),
                        "text/plain; version=0.0.4; charset=utf-8");
    forget(&a);
    a = ask(e->port, "POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx");
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
    says(fd, "HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n");
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

/* ---- bodies ------------------------------------------------------------------------ */

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
    snprintf(head, sizeof head, "POST /echo HTTP/1.1\r\nHost: x\r\n"
                                "Content-Length: %d\r\n\r\n", N);
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
    says(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
             "3\r\nabc\r\nA;ext=1\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n");
    a = listen_for(fd, 5);
    assert_string_equal(a.body, "abc0123456789");
    forget(&a);
    says(fd, "POST /echo HTTP/1.1\r\nHost: x\r\n"
             "Content-Length: 2\r\nExpect: 100-continue\r\n\r\n");
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
    says(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nfirst"
             "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nsecond");
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
    says(fd, "POST /echo HTTP/1.1\r\nHost: x\r\n"
             "Content-Length: 1000000000000000000\r\n\r\nabc");
    a = listen_for(fd, 1);
    assert_int_equal(a.status, 413);
    assert_non_null(strstr(a.body, "100000"));
    assert_non_null(field(&a, "x-request-id"));
    assert_string_equal(field(&a, "Connection"), "close");
    forget(&a);
    assert_true(hangs_up(fd, 1));
    close(fd);
    fd = dial(e->port); /* to a client that sends it all, whatever comes, before it reads */
    snprintf(head, sizeof head, "POST /echo HTTP/1.1\r\nHost: x\r\n"
                                "Content-Length: %d\r\n\r\n", 400 * MAX);
    says(fd, head);
    for (int i = 0; i < 100; i++)
        assert_true(say(fd, body, 4 * MAX));
    a = listen_for(fd, 1);
    assert_int_equal(a.status, 413);
    forget(&a);
    close(fd);
    fd = dial(e->port); /* chunked: no length to refuse by */
    says(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    snprintf(head, sizeof head, "%x\r\n", 4 * MAX);
    says(fd, head);
    say(fd, body, 4 * MAX);
    a = listen_for(fd, 1);
    assert_int_equal(a.status, 413);
    forget(&a);
    close(fd);
    fd = dial(e->port); /* the limit itself is fine */
    snprintf(head, sizeof head, "POST /echo HTTP/1.1\r\nHost: x\r\n"
                                "Content-Length: %d\r\n\r\n", MAX);
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

/* ---- slow clients ------------------------------------------------------------------ */

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
        says(head[i], "GET / HTTP/1.1\r\nHost: x\r\nHo");
        body[i] = dial(e->port);
        says(body[i], "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc");
    }
    idle = dial(e->port);
    says(idle, GET("/health"));
    drip = dial(e->port);
    says(drip, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n");
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

/* ---- opening and closing ----------------------------------------------------------- */

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
        says(fd[i], i == 9 ? "POST /held HTTP/1.1\r\nHost: x\r\n"
                             "Content-Length: 9\r\n\r\nhalf" : GET("/held"));
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
    cmocka_unit_test(http_slow_clients_are_shut_out),
    cmocka_unit_test(http_connections_of_one_address_are_limited),
    cmocka_unit_test(http_port_in_use_names_flags_and_owner),
    cmocka_unit_test(http_close_ends_open_requests),
};
MC_TEST_MAIN(tests)
