/* test_http_unclear.c - requests that two parsers may read differently; odd headers. */
#define _GNU_SOURCE
#include "tests/c/test.h"

#include "tests/c/fake_edge.h"

static void http_refuses_unclear_requests_and_closes(void **state)
{
#define SMUGGLED "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    static const struct {
        const char *text;
        int status;
    } row[] = {
        {"POST /echo HTTP/1.1\r\nHost: x\r\n"
         "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\n"
         "Content-Length: 0\r\ncontent-length: 36\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\nabc", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\nabc", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 0x3\r\n\r\nabc", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3 3\r\n\r\nabc", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length : 3\r\n\r\nabc", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length\t: 3\r\n\r\nabc", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\n"
         "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
         "0\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\n"
         "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"
         "\r\n0\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\n"
         "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"
         "\r\n0\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\n"
         "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\n"
         "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\n"
         "Transfer-Encoding: \x0b""chunked\r\n\r\n0\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\n"
         "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400},
        {"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\n Content-Length: 3\r\nHost: x\r\n\r\nabc", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nX: a\r\n Content-Length: 3\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\n"
         "Content-Lengt:            36\r\n h\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\n"
         "Transfer-Encodin:            chunked\r\n g\r\n\r\n0\r\n\r\n", 400},
        {"GET /echo HTTP/1.1\r\nHost: x\r\nX: a\rb\r\n\r\n", 400},
        {"GET /echo HTTP/1.1\r\nHost: x\r\nX y: a\r\n\r\n", 400},
        {"GET /echo HTTP/1.1\r\nHost: x\r\nnocolon\r\n\r\n", 400},
        {"GET /a%00b HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET /a%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET /a%4 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET /a%ff HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET /a?b=%ff HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET relative HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"G@T / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\n"
         "Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", 415},
        {"POST /echo HTTP/1.1\r\nHost: x\r\n"
         "Content-Length: 99999999999999999999\r\n\r\nabc", 413},
        {"GET /echo HTTP/1.1\r\nX: a\r\n\r\n", 400},
        {"GET /echo HTTP/1.1\r\n\r\n", 400},
        {"GET /echo HTTP/1.1\r\nHost: x\r\nHOST: y\r\n\r\n", 400},
        {"GET /echo HTTP/1.1\r\n: x\r\nHost: x\r\n\r\n", 400},
        {"GET /echo HTTP/1.1\r\nHost: x\r\n: x\r\n\r\n", 400},
        {"GET /echo HTTP/1.1\r\nHost: x\r\n:\r\n\r\n", 400},
        {"GET /echo HTTP/1.1\r\nHost: x\r\n:x\r\nContent-Length: 36\r\n\r\n", 400},
        {"GET /echo HTTP/1.1\r\nHost: x\n:x\n\n", 400},
        {"GET /echo HTTP/1.1\r\nHost: x\n:\n\n", 400},
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

static void http_a_folded_line_is_refused_by_name(void **state)
{
    static const char *const text[] = {
        "GET /echo HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: x\r\nX: a\r\n\tb\r\nY: c\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: x\r\nX: a\r\n Content-Length: 3\r\n\r\n"};
    struct edge *e = start((struct mc_http_opts){0});

    (void)state;
    for (size_t i = 0; i < sizeof text / sizeof text[0]; i++) {
        struct answer a = ask(e->port, text[i]);

        if (a.status != 400 || !strstr(a.body, "a folded line"))
            fail_msg("%d for %s: %s", a.status, text[i], a.n ? a.body : "");
        forget(&a);
    }
    assert_int_equal(atomic_load(&e->n_request), 0);
    stop(e);
}

static void http_a_header_that_ends_in_bare_line_feeds_is_read(void **state)
{
    struct edge *e = start((struct mc_http_opts){0});
    struct answer a = ask(e->port, "GET /health HTTP/1.1\nHost: x\n\n");

    (void)state;
    assert_int_equal(a.status, 200);
    forget(&a);
    a = ask(e->port, "GET /health HTTP/1.0\r\n\r\n");
    assert_int_equal(a.status, 200);
    forget(&a);
    stop(e);
}

/* Of more than some 500 libmicrohttpd itself answers nothing at all. */
static void http_many_query_arguments_are_refused_by_number(void **state)
{
    static const int count[] = {1, 256, 257, 600, 5000};
    struct edge *e = start((struct mc_http_opts){0});
    char text[16384];

    (void)state;
    for (size_t i = 0; i < sizeof count / sizeof count[0]; i++) {
        size_t n = (size_t)snprintf(text, sizeof text, "GET /health?");
        struct answer a;

        for (int k = 0; k < count[i]; k++)
            n += (size_t)snprintf(text + n, sizeof text - n, k ? "&a" : "a");
        snprintf(text + n, sizeof text - n, " HTTP/1.1\r\nHost: x\r\n\r\n");
        a = ask(e->port, text);
        assert_int_equal(a.status, count[i] > 256 ? 400 : 200);
        assert_true(count[i] <= 256 || strstr(a.body, "query arguments"));
        forget(&a);
    }
    stop(e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(http_refuses_unclear_requests_and_closes),
    cmocka_unit_test(http_a_folded_line_is_refused_by_name),
    cmocka_unit_test(http_a_header_that_ends_in_bare_line_feeds_is_read),
    cmocka_unit_test(http_many_query_arguments_are_refused_by_number),
};

MC_TEST_MAIN(tests)
