/* test_http_stream.c - streams and hang-ups on real sockets, with a double of the edge. */
#define _GNU_SOURCE
#include "tests/c/test.h"

#include "tests/c/fake_edge.h"

/* ---- hang-ups ---------------------------------------------------------------------- */

/* 50 clients leave at once, with FIN or RST, before an answer or in a stream. */
static void leave(bool reset, bool stream)
{
    enum { N = 50 };
    struct edge *e = start((struct mc_http_opts){0});
    int fd[N];
    double t;

    for (int i = 0; i < N; i++) {
        fd[i] = dial(e->port);
        says(fd[i], "POST /held HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
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

        while ((k = hear(fd[i], buf + n, sizeof buf - 1 - n, now_s() + 5)) > 0) {
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

/* ---- streams ----------------------------------------------------------------------- */

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
    says(fd, "POST /held HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
    r = held(e, 0);
    t = now_s();
    assert_int_equal(mc_res_begin(r, 200, "text/event-stream; charset=utf-8"), 0);
    n = hear(fd, buf, sizeof buf - 1, t + 5); /* the header does not wait for data */
    assert_true(n > 0);
    buf[n] = 0;
    assert_non_null(
        strcasestr(buf, "\r\nContent-Type: text/event-stream; charset=utf-8\r\n"));
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
    print_message("# gap: median %.3f ms, worst %.3f ms\n", gap[N / 2] * 1e3,
                  gap[N - 1] * 1e3);
    assert_true(gap[N / 2] < 0.005);     /* Nagle or a cork stall by 40 or 200 ms, and each; */
    assert_true(gap[N * 9 / 10] < 0.010); /* a late one in ten may be the machine's */
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
    says(fd, "HEAD /held HTTP/1.1\r\nHost: x\r\n\r\n");
    mc_res_begin(held(e, 0), 200, "text/event-stream");
    assert_true(comes_to(&e->n_gone, 1, 2)); /* nobody will read what would come */
    mc_req_done(held(e, 0));
    close(fd);
    stop(e);
}

/* ---- many -------------------------------------------------------------------------- */

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
    for (int waits = 0; waits < 2; waits++) { /* for an answer, and for more of it */
        for (int i = 0; i < STREAMS && waits == 1; i++)
            mc_res_begin(held(e, i), 200, "text/event-stream");
        usleep(20000);
        cpu = cpu_s();
        usleep(300000);
        print_message("# waiting for 0.3 s takes %.1f ms of CPU\n",
                      (cpu_s() - cpu) * 1e3);
        assert_true(cpu_s() - cpu < 0.03); /* nobody spins */
    }
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

static const struct CMUnitTest tests[] = {
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
};
MC_TEST_MAIN(tests)
