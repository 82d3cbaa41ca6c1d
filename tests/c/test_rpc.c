/* test_rpc.c - the Unix socket: frames, verbs, sessions, who may have the socket. */
#include "tests/c/test.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "core/base/log.h"
#include "core/cli/client.h"
#include "core/serve/rpc.h"
#include "core/serve/wire.h"
#include "tests/c/tmpdir.h"

/* ---- a server without an engine, and a session that echoes ------------------------- */

struct mc_repl {
    struct mc_repl_client client;
    pthread_t thread;
    bool running, cancelled;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    char text[64];
};

static int opened, closed;

static int repl_open(void *self, const struct mc_repl_client *c, struct mc_repl **out,
                     struct mc_err *err)
{
    struct mc_repl *r = calloc(1, sizeof *r);

    (void)self, (void)err;
    r->client = *c;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->cond, NULL);
    opened++;
    *out = r;
    return 0;
}

/* "wait" waits for the cancel; everything else is printed and returned. */
static void *repl_main(void *arg)
{
    struct mc_repl *r = arg;
    struct mc_err err;

    if (strcmp(r->text, "wait") == 0) {
        pthread_mutex_lock(&r->lock);
        while (!r->cancelled)
            pthread_cond_wait(&r->cond, &r->lock);
        pthread_mutex_unlock(&r->lock);
        mc_fail(&err, MC_ECANCEL, "interrupted");
        r->client.done(r->client.ctx, NULL, &err);
        return NULL;
    }
    r->client.out(r->client.ctx, "printed\n", 8);
    r->client.done(r->client.ctx, json_pack("{s:s}", "text", r->text), NULL);
    return NULL;
}

static void repl_eval(struct mc_repl *r, const char *text, size_t n, enum mc_repl_how how,
                      int line)
{
    (void)how, (void)line;
    if (r->running)
        pthread_join(r->thread, NULL);
    snprintf(r->text, sizeof r->text, "%.*s", (int)n, text);
    r->cancelled = false;
    r->running = true;
    assert_int_equal(pthread_create(&r->thread, NULL, repl_main, r), 0);
}

static void repl_cancel(struct mc_repl *r)
{
    pthread_mutex_lock(&r->lock);
    r->cancelled = true;
    pthread_cond_signal(&r->cond);
    pthread_mutex_unlock(&r->lock);
}

static int repl_complete(struct mc_repl *r, const char *text, json_t **out,
                         struct mc_err *err)
{
    (void)r, (void)err;
    *out = json_pack("[s]", text);
    return 0;
}

static void repl_close(struct mc_repl *r)
{
    repl_cancel(r);
    if (r->running)
        pthread_join(r->thread, NULL);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->cond);
    free(r);
    closed++;
}

static const struct mc_repl_ops repl_ops = {repl_open, repl_eval, repl_cancel, repl_complete,
                                            repl_close};

struct fixture {
    char *dir;
    char path[256];
    struct mc_server server;
    struct mc_rpc *rpc;
};

static void set_up(struct fixture *f)
{
    struct mc_err err = {0};

    memset(f, 0, sizeof *f);
    mc_log_set("rpc", MC_LOG_OFF);
    f->dir = tmp_new();
    snprintf(f->path, sizeof f->path, "%s/sock", f->dir);
    f->server.repl = &repl_ops;
    f->server.config = json_pack("{s:i}", "port", 8000);
    snprintf(f->server.model[0].id, sizeof f->server.model[0].id, "tiny");
    f->server.n_model = 1;
    atomic_store(&f->server.ready, true);
    assert_ok(mc_rpc_open(&f->server, f->path, &f->rpc, &err), err);
    assert_non_null(f->rpc);
}

static void tear_down(struct fixture *f)
{
    mc_rpc_close(f->rpc);
    json_decref(f->server.config);
    tmp_free(f->dir);
}

static struct mc_client *dial(const struct fixture *f)
{
    struct mc_client *c = NULL;
    struct mc_err err = {0};

    assert_ok(mc_client_open(f->path, &c, &err), err);
    return c;
}

/* Raw bytes in, whatever comes back until the server closes or stays silent for 2 s. */
static size_t raw(const struct fixture *f, const void *data, size_t n, char *out,
                  size_t cap)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct timeval tv = {2, 0};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    size_t got = 0;
    ssize_t k = 1;

    snprintf(a.sun_path, sizeof a.sun_path, "%.100s", f->path);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    assert_int_equal(send(fd, data, n, MSG_NOSIGNAL), (ssize_t)n);
    while (k > 0 && got < cap) {
        k = recv(fd, out + got, cap - got, 0);
        got += k > 0 ? (size_t)k : 0;
    }
    close(fd);
    return got;
}

/* ---- frames ------------------------------------------------------------------------ */

static void wire_scan_refuses_counts_beyond_the_bytes(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
    } bad[] = {
        {"\xdd\xff\xff\xff\xff", 5}, /* an array of 4 billion */
        {"\xdf\xff\xff\xff\xff", 5}, /* a map */
        {"\xdb\xff\xff\xff\xff", 5}, /* a string */
        {"\xc6\xff\xff\xff\xff", 5}, /* a binary */
        {"\xc1", 1},                 /* no type */
        {"\xd4\x01\x00", 3},         /* an extension */
        {"\xc7\x01\x01\x00", 4},
        {"\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x01", 18},
    };
    size_t i, len;
    struct mc_err err;

    (void)state;
    for (i = 0; i < sizeof bad / sizeof *bad; i++)
        if (mc_wire_scan(bad[i].bytes, bad[i].n, MC_WIRE_MAX, &len, &err) >= 0)
            fail_msg("frame %zu is taken", i);
}

static void wire_scan_asks_for_more_until_it_is_whole(void **state)
{
    json_t *v = json_pack("[i, i, s, [s, f, b, n, {s:[]}, I]]", 0, 70000, "status",
                          "text", 1.5, 1, "key", (json_int_t)-1234567890123);
    size_t n, i, len = 0;
    char *data = mc_wire_write(v, &n);
    json_t *back = NULL;
    struct mc_err err = {0};

    (void)state;
    for (i = 0; i < n; i++)
        assert_int_equal(mc_wire_scan(data, i, MC_WIRE_MAX, &len, &err), 0);
    assert_int_equal(mc_wire_scan(data, n, MC_WIRE_MAX, &len, &err), 1);
    assert_int_equal(len, n);
    assert_ok(mc_wire_read(data, n, false, &back, &err), err);
    assert_true(json_equal(v, back));
    json_decref(v);
    json_decref(back);
    free(data);
}

static void wire_refuses_what_json_cannot_hold(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
    } bad[] = {
        {"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", 9}, /* beyond int64 */
        {"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", 9}, /* NaN */
        {"\x81\x01\x02", 3},                         /* a key that is a number */
        {"\x82\xa1\x61\x01\xa1\x61\x02", 7},         /* the same key twice */
        {"\xa2\xff\xfe", 3},                         /* no UTF-8 */
        {"\xc4\x01\x00", 3},                         /* a binary */
        {"\x01\x02", 2},                             /* more than one value */
        {"\x92\x01", 2},                             /* too short */
        {"", 0},
    };
    struct mc_err err = {0};
    json_t *v = NULL;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof bad / sizeof *bad; i++)
        if (mc_wire_read(bad[i].bytes, bad[i].n, false, &v, &err) >= 0)
            fail_msg("value %zu is taken", i);
    assert_ok(mc_wire_read("\xc4\x01\xff", 3, true, &v, &err), err);
    assert_int_equal(json_string_length(v), 1);
    json_decref(v);
}

/* ---- the server -------------------------------------------------------------------- */

static void rpc_answers_verbs(void **state)
{
    struct fixture f;
    struct mc_client *c;
    json_t *out = NULL;
    struct mc_err err = {0};

    (void)state;
    set_up(&f);
    c = dial(&f);
    assert_ok(mc_client_call(c, "status", json_array(), &out, &err), err);
    assert_string_equal(json_string_value(json_object_get(out, "model")), "tiny");
    json_decref(out);
    assert_ok(mc_client_call(c, "config", json_array(), &out, &err), err);
    assert_int_equal(json_integer_value(json_object_get(out, "port")), 8000);
    json_decref(out);
    assert_int_equal(mc_client_call(c, "nonsense", json_array(), &out, &err), MC_ENOENT);
    assert_non_null(strstr(err.text, "'nonsense'"));
    assert_int_equal(mc_client_call(c, "cancel", json_pack("[s]", "1.1"), &out, &err),
                     MC_ENOENT);
    assert_int_equal(mc_client_call(c, "log", json_pack("[s]", "loud"), &out, &err),
                     MC_EARG);
    mc_client_close(c);
    tear_down(&f);
}

static void rpc_socket_is_private_and_goes_with_the_server(void **state)
{
    struct fixture f;
    struct stat st;

    (void)state;
    set_up(&f);
    assert_int_equal(stat(f.path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    mc_rpc_close(f.rpc);
    f.rpc = NULL;
    assert_int_equal(stat(f.path, &st), -1);
    tear_down(&f);
}

static void rpc_live_socket_refuses_a_second_server(void **state)
{
    struct fixture f;
    struct mc_rpc *second = NULL;
    struct mc_err err = {0};
    char pid[32];

    (void)state;
    set_up(&f);
    assert_int_equal(mc_rpc_open(&f.server, f.path, &second, &err), MC_EEXIST);
    snprintf(pid, sizeof pid, "pid %d", (int)getpid());
    assert_non_null(strstr(err.text, pid));
    mc_client_close(dial(&f)); /* the first still answers */
    tear_down(&f);
}

static void rpc_stale_socket_is_replaced(void **state)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char *dir = tmp_new();
    struct mc_server server = {0};
    struct mc_rpc *rpc = NULL;
    struct mc_err err = {0};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    (void)state;
    snprintf(a.sun_path, sizeof a.sun_path, "%.80s/sock", dir);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    close(fd);
    assert_ok(mc_rpc_open(&server, a.sun_path, &rpc, &err), err);
    mc_rpc_close(rpc);
    tmp_text(dir, "file", "not a socket");
    assert_int_equal(mc_rpc_open(&server, tmp_path(dir, "file"), &rpc, &err), MC_EEXIST);
    assert_int_equal(access(tmp_path(dir, "file"), F_OK), 0);
    fd = socket(AF_UNIX, SOCK_DGRAM, 0); /* alive, but of a kind that can't be asked */
    snprintf(a.sun_path, sizeof a.sun_path, "%.80s/alive", dir);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(mc_rpc_open(&server, a.sun_path, &rpc, &err), MC_EIO);
    assert_int_equal(access(a.sun_path, F_OK), 0);
    close(fd);
    tmp_free(dir);
}

static void rpc_hostile_frames_end_their_connection_only(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
    } bad[] = {
        {"\xdd\xff\xff\xff\xff", 5}, {"\x01", 1},     {"\x94\x00\x01\x02\x03", 5},
        {"\xc1\xc1\xc1", 3},         {"\x90", 1},     {"\x80", 1},
        {"\x94\x00\xa1x\xa1y\x90", 7},                /* an id that is no number */
    };
    struct fixture f;
    char out[4096];
    size_t i;

    (void)state;
    set_up(&f);
    for (i = 0; i < sizeof bad / sizeof *bad; i++)
        if (raw(&f, bad[i].bytes, bad[i].n, out, sizeof out) == 0)
            fail_msg("frame %zu got no error", i);
    mc_client_close(dial(&f));
    tear_down(&f);
}

static void rpc_takes_frames_byte_by_byte_and_several_at_once(void **state)
{
    static const char two[] = "\x94\x00\x01\xa6status\x90\x94\x00\x02\xa6status\x90";
    struct fixture f;
    char out[8192];
    size_t n, len = 0, at;
    struct mc_err err;

    (void)state;
    set_up(&f);
    n = raw(&f, two, sizeof two - 1, out, sizeof out);
    assert_int_equal(mc_wire_scan(out, n, MC_WIRE_MAX, &at, &err), 1);
    assert_int_equal(mc_wire_scan(out + at, n - at, MC_WIRE_MAX, &len, &err), 1);
    assert_int_equal(at + len, n);
    tear_down(&f);
}

/* ---- sessions ---------------------------------------------------------------------- */

static char printed[64];

static void on_print(void *ctx, const char *s, size_t n)
{
    (void)ctx;
    snprintf(printed, sizeof printed, "%.*s", (int)n, s);
}

static void *cancel_soon(void *arg)
{
    pthread_t *target = arg;

    usleep(100000);
    pthread_kill(*target, SIGUSR1);
    return NULL;
}

static volatile sig_atomic_t interrupt;

static void on_signal(int sig)
{
    (void)sig;
    interrupt = 1;
}

static void rpc_session_prints_returns_and_is_cancelled(void **state)
{
    struct sigaction sa = {.sa_handler = on_signal};
    struct fixture f;
    struct mc_client *c;
    pthread_t self = pthread_self(), t;
    json_t *out = NULL;
    struct mc_err err = {0};

    (void)state;
    sigaction(SIGUSR1, &sa, NULL);
    opened = closed = 0;
    set_up(&f);
    c = dial(&f);
    mc_client_watch(c, on_print, NULL, &interrupt);
    assert_ok(mc_client_call(c, "repl.eval", json_pack("[s, b]", "x", 0), &out, &err),
              err);
    assert_string_equal(json_string_value(json_object_get(out, "text")), "x");
    assert_string_equal(printed, "printed\n");
    json_decref(out);
    pthread_create(&t, NULL, cancel_soon, &self);
    assert_int_equal(mc_client_call(c, "repl.eval", json_pack("[s]", "wait"), &out, &err),
                     MC_ECANCEL);
    pthread_join(t, NULL);
    assert_ok(mc_client_call(c, "repl.complete", json_pack("[s]", "mc."), &out, &err),
              err);
    json_decref(out);
    mc_client_close(c);
    tear_down(&f);
    assert_int_equal(opened, 1);
    assert_int_equal(closed, 1);
}

static void rpc_a_client_that_leaves_mid_eval_ends_its_session(void **state)
{
    struct fixture f;
    char out[64];

    (void)state;
    opened = closed = 0;
    set_up(&f);
    raw(&f, "\x94\x00\x01\xa9repl.eval\x91\xa4wait", 19, out, 0);
    tear_down(&f);
    assert_int_equal(opened, closed);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(wire_scan_refuses_counts_beyond_the_bytes),
    cmocka_unit_test(wire_scan_asks_for_more_until_it_is_whole),
    cmocka_unit_test(wire_refuses_what_json_cannot_hold),
    cmocka_unit_test(rpc_answers_verbs),
    cmocka_unit_test(rpc_socket_is_private_and_goes_with_the_server),
    cmocka_unit_test(rpc_live_socket_refuses_a_second_server),
    cmocka_unit_test(rpc_stale_socket_is_replaced),
    cmocka_unit_test(rpc_hostile_frames_end_their_connection_only),
    cmocka_unit_test(rpc_takes_frames_byte_by_byte_and_several_at_once),
    cmocka_unit_test(rpc_session_prints_returns_and_is_cancelled),
    cmocka_unit_test(rpc_a_client_that_leaves_mid_eval_ends_its_session),
};

MC_TEST_MAIN(tests)
