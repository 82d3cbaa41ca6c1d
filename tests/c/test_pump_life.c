/* test_pump_life.c - clients that leave, read slowly or wait, and the pump's end. */
#define _GNU_SOURCE
#include "tests/c/test.h"

#include "tests/c/pump_rig.h"

static bool all_ended(double seconds)
{
    double until = now_s() + seconds;

    while (fake_live(rig.engine) > 0 && now_s() < until)
        usleep(500);
    return fake_live(rig.engine) == 0;
}

static void leave(bool stream, bool reset)
{
    enum { N = 50 };
    int fd[N], first = atomic_load(&rig.engine->n_seq), done = atomic_load(&rig.n_done);
    double t, worst = 0;

    rig.o.stream = stream;
    for (int i = 0; i < N; i++) {
        char buf[512];

        fd[i] = dial(rig.port);
        says(fd[i], "GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
        if (stream)
            assert_true(hear(fd[i], buf, sizeof buf, now_s() + 5) > 0);
    }
    while (atomic_load(&rig.engine->n_seq) < first + N)
        usleep(500);
    t = now_s();
    for (int i = 0; i < N; i++) {
        if (reset)
            slam(fd[i]);
        else
            close(fd[i]);
    }
    assert_true(all_ended(1));
    for (int i = first; i < first + N; i++) {
        double late = rig.engine->seq[i].t_cancel - t;

        worst = late > worst ? late : worst;
        assert_true(atomic_load(&rig.engine->seq[i].cancelled));
    }
    while (atomic_load(&rig.n_done) < done + N && now_s() - t < 1)
        usleep(500);
    assert_int_equal(atomic_load(&rig.n_done), done + N);
    print_message("# %s, %s: %d cancelled within %.1f ms\n",
                  stream ? "streaming" : "waiting", reset ? "RST" : "FIN", N,
                  worst * 1e3);
}

static void pump_cancels_when_clients_leave(void **state)
{
    (void)state;
    rig.n = 1;
    rig.engine->loop = true;
    fake_text(rig.engine, "a|b|c");
    fake_run(rig.engine, 2000);
    for (int i = 0; i < 4; i++)
        leave(i & 1, i & 2);
    assert_int_equal(mc_http_open_requests(rig.http), 0);
}

static void pump_slow_reader_gets_everything(void **state)
{
    int fd = dial(rig.port), small = 65536;
    char big[FAKE_PIECE];
    struct answer a;

    (void)state;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    memset(big, 'x', sizeof big);
    fake_piece(rig.engine, big, sizeof big);
    rig.engine->loop = true;
    rig.limit = 20000; /* 12 MB: more than the sockets and the response hold */
    fake_run(rig.engine, 0);
    says(fd, "GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
    while (atomic_load(&rig.engine->n_seq) == 0 || fake_live(rig.engine) > 0)
        usleep(1000);
    usleep(100000);
    a = listen_for(fd, 30);
    assert_true(a.whole);
    assert_true(a.n > (size_t)rig.limit * FAKE_PIECE);
    assert_string_equal(a.body + a.n - 14, "data: [DONE]\n\n");
    forget(&a);
    close(fd);
}

static void pump_pings_while_nothing_comes(void **state)
{
    int fd = dial(rig.port);
    char buf[1024];
    size_t n = 0;

    (void)state;
    rig.o.ping_s = 0.2;
    fake_text(rig.engine, "a");
    says(fd, "GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
    do { /* header and ping may come apart */
        ssize_t k = hear(fd, buf + n, sizeof buf - 1 - n, now_s() + 10);

        assert_true(k > 0);
        n += (size_t)k;
        buf[n] = 0;
    } while (!strstr(buf, "\r\n\r\n8\r\n: ping\n\n\r\n"));
    assert_int_equal(strncmp(buf, "HTTP/1.1 200", 12), 0);
    close(fd);
}

static void pump_close_ends_jobs_as_draining(void **state)
{
    int fd[2];
    char buf[512];
    struct answer a;
    struct mc_err err;

    (void)state;
    rig.engine->loop = true;
    fake_text(rig.engine, "a");
    fake_run(rig.engine, 2000);
    for (int i = 0; i < 2; i++) {
        rig.o.stream = i == 0;
        fd[i] = dial(rig.port);
        says(fd[i], "GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
        while (atomic_load(&rig.engine->n_seq) == i)
            usleep(500);
        usleep(20000);
    }
    assert_true(hear(fd[0], buf, sizeof buf, now_s() + 5) > 0);
    mc_pump_close(rig.pump);
    assert_int_equal(atomic_load(&rig.n_done), 2);
    a = listen_for(fd[1], 5);
    assert_int_equal(a.status, 503);
    forget(&a);
    assert_true(all_ended(1));
    for (int i = 0; i < 2; i++)
        close(fd[i]);
    assert_ok(mc_pump_open(mc_engine_tok(rig.engine), &rig.pump, &err), err);
}

static void pump_many_streams_at_full_speed(void **state)
{
    enum { N = 64, TOKENS = 100 };
    int fd[N];
    double t = now_s();

    (void)state;
    rig.n = 2;
    rig.limit = TOKENS;
    rig.engine->loop = true;
    fake_text(rig.engine, "a");
    fake_run(rig.engine, 0);
    for (int i = 0; i < N; i++) {
        fd[i] = dial(rig.port);
        says(fd[i], "GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
    }
    for (int i = 0; i < N; i++) {
        struct answer a = listen_for(fd[i], 30);
        int seen[2] = {0}, n_end = 0;

        assert_true(a.whole);
        for (const char *p = a.body; (p = strstr(p, "{\"index\":")) != NULL; p++) {
            seen[p[9] - '0'] += strstr(p, "\"text\":\"a\"") == p + 11;
            n_end += strncmp(p + 11, "\"text\":\"\",", 10) == 0;
        }
        assert_int_equal(seen[0], TOKENS);
        assert_int_equal(seen[1], TOKENS);
        assert_int_equal(n_end, 2);
        assert_string_equal(a.body + a.n - 14, "data: [DONE]\n\n");
        forget(&a);
        close(fd[i]);
    }
    print_message("# %d streams of 2 x %d tokens in %.0f ms\n", N, TOKENS,
                  (now_s() - t) * 1e3);
}

static const struct CMUnitTest tests[] = {
    rig_test(pump_cancels_when_clients_leave),
    rig_test(pump_slow_reader_gets_everything),
    rig_test(pump_pings_while_nothing_comes),
    rig_test(pump_close_ends_jobs_as_draining),
    rig_test(pump_many_streams_at_full_speed),
};
MC_TEST_MAIN(tests)
