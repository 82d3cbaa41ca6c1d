/* rpc.c - the sockets, their connections, and dispatch to verbs and sessions.
 *
 * OWNS the listening socket and the connections. THREAD: a connection's own thread reads
 * and runs verbs; its session's thread writes output and results too: `out` guards the fd
 * for writing. `lock` guards the list of connections. Neither is held while the other is
 * taken.
 * Always true: a connection's session is closed before the connection's memory goes; who came
 * by TCP has shown a key before anything else is heard. */
#define _GNU_SOURCE
#include "core/serve/rpc.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/base/log.h"
#include "core/base/thread.h"
#include "core/serve/admin.h"
#include "core/serve/listen.h"
#include "core/serve/wire.h"

enum { SEND_TIMEOUT_S = 10, KEY_TIMEOUT_S = 10, NO_FD_MS = 100 };

struct conn {
    struct mc_rpc *rpc;
    int fd;
    bool used, joinable; /* under rpc->lock */
    bool known;          /* it may command */
    double since;
    pthread_t thread;
    pthread_mutex_t out;
    bool broken; /* under out: a write failed */
    struct mc_repl *repl;
    json_t *eval_id; /* of the repl.eval that runs: a copy, since counts of references
                      * order nothing between threads */
};

struct mc_rpc {
    struct mc_server *server;
    struct mc_keys *keys;    /* of TCP, else NULL */
    struct sockaddr_un addr; /* of the other, else "" */
    int fd, stop;
    pthread_t thread;
    pthread_mutex_t lock;
    struct conn conns[MC_RPC_CONNS];
};

/* ---- messages ---------------------------------------------------------------------- */

static void send_all(struct conn *c, const char *data, size_t n)
{
    ssize_t sent;

    pthread_mutex_lock(&c->out);
    while (n > 0 && !c->broken) {
        sent = send(c->fd, data, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0) {
            c->broken = true;
            shutdown(c->fd, SHUT_RDWR); /* the reader ends the connection */
            break;
        }
        data += sent;
        n -= (size_t)sent;
    }
    pthread_mutex_unlock(&c->out);
}

/* Takes the reference. */
static void send_value(struct conn *c, json_t *v)
{
    size_t n = 0;
    char *data = mc_wire_write(v, &n);

    if (data)
        send_all(c, data, n);
    free(data);
    json_decref(v);
}

static json_t *error_of(const struct mc_err *err)
{
    json_t *o = json_pack("{s:s, s:i, s:s}", "code", mc_code_api(err->code), "status",
                          mc_code_http(err->code), "message",
                          *err->text ? err->text : mc_code_text(err->code));

    if (o && *err->param)
        json_object_set_new(o, "param", json_string(err->param));
    return o;
}

/* id is borrowed, result taken (NULL: nil). */
static void respond(struct conn *c, json_t *id, const struct mc_err *err, json_t *result)
{
    send_value(c, json_pack("[i, O, o, o]", 1, id, err ? error_of(err) : json_null(),
                            result ? result : json_null()));
}

/* ---- sessions ---------------------------------------------------------------------- */

static void on_out(void *ctx, const char *s, size_t n)
{
    json_t *text = json_stringn(s, n);

    if (!text)
        text = json_string("(output that is not UTF-8)");
    send_value(ctx, json_pack("[i, s, [o]]", 2, "repl.out", text));
}

/* The session's thread; the reader starts no other eval before this. */
static void on_done(void *ctx, json_t *result, const struct mc_err *err)
{
    struct conn *c = ctx;
    json_t *id;

    pthread_mutex_lock(&c->out);
    id = c->eval_id;
    c->eval_id = NULL;
    pthread_mutex_unlock(&c->out);
    respond(c, id, err, result);
    json_decref(id);
}

static int need_session(struct conn *c, struct mc_err *err)
{
    const struct mc_repl_client client = {on_out, on_done, c};
    struct mc_server *s = c->rpc->server;

    if (c->repl)
        return 0;
    if (!atomic_load(&s->ready))
        return mc_fail(err, MC_ELOADING, "the model is still loading");
    return s->repl->open(s->repl_self, &client, &c->repl, err);
}

static int eval(struct conn *c, json_t *id, const json_t *params, struct mc_err *err)
{
    const json_t *text = json_array_get(params, 0);
    const json_t *as = json_array_get(params, 1);
    json_int_t line = json_integer_value(json_array_get(params, 2));
    enum mc_repl_how how = json_is_string(as) ? MC_REPL_JSON
                           : json_is_true(as) ? MC_REPL_RAW
                                              : MC_REPL_SHOWN;
    bool busy;
    int rc;

    if (!json_is_string(text))
        return mc_fail_param(err, MC_EARG, "text", "repl.eval takes a text");
    if (line < 0 || line > MC_REPL_LINES)
        return mc_fail_param(err, MC_EARG, "line", "line must be 0 to %d", MC_REPL_LINES);
    rc = need_session(c, err);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&c->out);
    busy = c->eval_id != NULL;
    if (!busy)
        c->eval_id = json_deep_copy(id);
    pthread_mutex_unlock(&c->out);
    if (busy)
        return mc_fail(err, MC_EAGAIN, "this session is still running something");
    c->rpc->server->repl->eval(c->repl, json_string_value(text), json_string_length(text),
                               how, (int)line);
    return 0;
}

/* ---- dispatch ---------------------------------------------------------------------- */

static void request(struct conn *c, json_t *id, const char *method, const json_t *params)
{
    struct mc_server *s = c->rpc->server;
    json_t *out = NULL;
    struct mc_err err = {0};
    int rc;

    if (strcmp(method, "repl.eval") == 0) {
        rc = eval(c, id, params, &err);
        if (rc == 0)
            return; /* on_done answers */
    } else if (strcmp(method, "repl.complete") == 0) {
        const char *text = json_string_value(json_array_get(params, 0));

        rc = need_session(c, &err);
        if (rc == 0)
            rc = s->repl->complete(c->repl, text ? text : "", &out, &err);
    } else {
        rc = mc_verb_run(s, method, params, &out, &err);
    }
    respond(c, id, rc < 0 ? &err : NULL, out);
}

/* The first message of a client that came by TCP: auth [key]. */
static int let_in(struct conn *c, json_t *id, const char *method, const json_t *params,
                  struct mc_err *err)
{
    const struct timeval forever = {0, 0};
    const char *key = json_string_value(json_array_get(params, 0));
    uint32_t who = 0;
    int rc;

    if (strcmp(method, "auth") != 0)
        return mc_fail(err, MC_EAUTH, "the first request must be auth [KEY]");
    rc = mc_keys_check(c->rpc->keys, NULL, key, &who, err);
    if (rc < 0)
        return rc;
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof forever);
    c->known = true;
    mc_info("rpc", "an admin key of '%s' let it in", mc_keys_tenant(c->rpc->keys, who));
    respond(c, id, NULL, json_true());
    return 0;
}

static int dispatch(struct conn *c, json_t *m, struct mc_err *err)
{
    json_int_t kind = json_integer_value(json_array_get(m, 0));
    size_t n = json_array_size(m);
    const char *method = json_string_value(json_array_get(m, n - 2));
    json_t *params = json_array_get(m, n - 1);

    if (!json_is_integer(json_array_get(m, 0)) || !method || !json_is_array(params) ||
        !((kind == 0 && n == 4 && json_is_integer(json_array_get(m, 1))) ||
          (kind == 2 && n == 3)))
        return mc_fail(err, MC_EFORMAT, "not a request: [0, id, method, params]");
    if (!c->known)
        return let_in(c, json_array_get(m, 1), kind == 0 ? method : "", params, err);
    if (kind == 0)
        request(c, json_array_get(m, 1), method, params);
    else if (strcmp(method, "repl.cancel") == 0 && c->repl)
        c->rpc->server->repl->cancel(c->repl);
    return 0;
}

/* Handles the whole messages at the front of buf; returns how many bytes those were. */
static ssize_t consume(struct conn *c, const char *buf, size_t n, struct mc_err *err)
{
    size_t at = 0, len;
    json_t *m;
    int rc;

    for (;;) {
        rc = mc_wire_scan(buf + at, n - at, MC_WIRE_MAX, &len, err);
        if (rc == 0)
            return (ssize_t)at;
        if (rc > 0)
            rc = mc_wire_read(buf + at, len, false, &m, err);
        if (rc < 0)
            return rc;
        rc = dispatch(c, m, err);
        json_decref(m);
        if (rc < 0)
            return rc;
        at += len;
    }
}

static void read_all(struct conn *c)
{
    char *buf = malloc(MC_WIRE_MAX);
    json_t *nobody = json_null();
    struct mc_err err;
    size_t n = 0;
    ssize_t got, done = 0;

    while (buf && done >= 0) {
        got = recv(c->fd, buf + n, MC_WIRE_MAX - n, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0 || (!c->known && mc_now() - c->since > KEY_TIMEOUT_S))
            break;
        n += (size_t)got;
        done = consume(c, buf, n, &err);
        if (done > 0) {
            n -= (size_t)done;
            memmove(buf, buf + done, n);
        }
    }
    if (done < 0) {
        mc_warn("rpc", "a client's message is refused: %s", err.text);
        respond(c, nobody, &err, NULL);
    }
    free(buf);
}

/* ---- connections ------------------------------------------------------------------- */

static void *conn_main(void *arg)
{
    struct conn *c = arg;
    struct mc_rpc *r = c->rpc;

    read_all(c);
    if (c->repl)
        r->server->repl->close(c->repl);
    c->repl = NULL;
    json_decref(c->eval_id);
    c->eval_id = NULL;
    pthread_mutex_lock(&r->lock);
    close(c->fd);
    c->fd = -1;
    c->used = false;
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* Who is at the other end, in words; by TCP it has so long to show a key. */
static void meet(const struct mc_rpc *r, int fd, char *who, size_t cap)
{
    const struct timeval send = {SEND_TIMEOUT_S, 0}, key = {KEY_TIMEOUT_S, 0};
    struct sockaddr_storage at;
    struct ucred cred = {0};
    socklen_t len = sizeof cred, at_len = sizeof at;
    char host[64] = "?", port[8] = "?";

    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &send, sizeof send);
    if (!r->keys) {
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len);
        snprintf(who, cap, "pid=%d uid=%u gid=%u", (int)cred.pid, cred.uid, cred.gid);
        return;
    }
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &key, sizeof key);
    if (getpeername(fd, (struct sockaddr *)&at, &at_len) == 0)
        getnameinfo((struct sockaddr *)&at, at_len, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(who, cap, "host=%s port=%s", host, port);
}

/* False when there is no descriptor for it. */
static bool accept_one(struct mc_rpc *r)
{
    struct conn *c = NULL;
    int fd = accept4(r->fd, NULL, NULL, SOCK_CLOEXEC), i;
    char who[96];

    if (fd < 0)
        return errno != EMFILE && errno != ENFILE;
    meet(r, fd, who, sizeof who);
    pthread_mutex_lock(&r->lock);
    for (i = 0; i < MC_RPC_CONNS && !c; i++)
        if (!r->conns[i].used)
            c = &r->conns[i];
    if (c)
        c->used = true;
    pthread_mutex_unlock(&r->lock);
    mc_info("rpc", "connection %s%s", who, c ? "" : " refused: too many");
    if (!c) {
        close(fd);
        return true;
    }
    if (c->joinable)
        pthread_join(c->thread, NULL); /* it has cleared `used`: it is at its end */
    c->fd = fd;
    c->broken = false;
    c->known = !r->keys;
    c->since = mc_now();
    c->joinable = mc_thread_run(&c->thread, conn_main, c) == 0;
    if (!c->joinable) {
        close(fd);
        c->used = false;
    }
    return true;
}

static void *accept_main(void *arg)
{
    struct mc_rpc *r = arg;
    struct pollfd fds[2] = {{.fd = r->fd, .events = POLLIN},
                            {.fd = r->stop, .events = POLLIN}};

    while (!fds[1].revents) {
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            break;
        if (fds[0].revents && !accept_one(r))
            poll(&fds[1], 1, NO_FD_MS); /* it stays readable: no busy loop */
    }
    return NULL;
}

/* ---- the socket -------------------------------------------------------------------- */

int mc_rpc_default_path(const char *given, char *path, size_t cap, struct mc_err *err)
{
    const char *dir = getenv("XDG_RUNTIME_DIR");
    int n;

    if (given && *given)
        n = snprintf(path, cap, "%s", given);
    else if (dir && *dir)
        n = snprintf(path, cap, "%s/mascon.sock", dir);
    else
        n = snprintf(path, cap, "/run/mascon/mascon.sock");
    if (n < 0 || (size_t)n >= cap)
        return mc_fail_param(err, MC_EARG, "socket",
                             "the socket's path is over %zu bytes", cap - 1);
    return 0;
}

/* A socket file that nobody listens on is removed; a live one names its server. Of
 * another user's it can't be told: bind says that it is in the way. */
static int clear_stale(struct mc_rpc *r, struct mc_err *err)
{
    struct ucred cred = {0};
    socklen_t len = sizeof cred;
    struct stat st;
    bool stale;
    int fd, rc;

    if (lstat(r->addr.sun_path, &st) < 0)
        return 0;
    if (!S_ISSOCK(st.st_mode))
        return mc_fail_param(err, MC_EEXIST, "socket", "%s is there and is no socket",
                             r->addr.sun_path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    rc = connect(fd, (struct sockaddr *)&r->addr, sizeof r->addr);
    if (rc == 0)
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len);
    stale = rc < 0 && errno == ECONNREFUSED;
    close(fd);
    if (rc == 0)
        return mc_fail_param(
            err, MC_EEXIST, "socket",
            "a server (pid %d) listens on %s already: choose another with "
            "--socket",
            (int)cred.pid, r->addr.sun_path);
    if (stale)
        unlink(r->addr.sun_path);
    return 0;
}

static int bind_socket(struct mc_rpc *r, struct mc_err *err)
{
    mode_t old;
    int rc = clear_stale(r, err);

    if (rc < 0)
        return rc;
    r->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    old = umask(0177);
    rc = r->fd < 0 ? -1 : bind(r->fd, (struct sockaddr *)&r->addr, sizeof r->addr);
    umask(old);
    if (rc < 0 || listen(r->fd, MC_RPC_CONNS) < 0)
        return mc_fail_param(err, MC_EIO, "socket", "the socket %s: %s", r->addr.sun_path,
                             strerror(errno));
    return 0;
}

static void free_rpc(struct mc_rpc *r)
{
    int i;

    if (r->fd >= 0)
        close(r->fd);
    if (r->stop >= 0)
        close(r->stop);
    for (i = 0; i < MC_RPC_CONNS; i++)
        pthread_mutex_destroy(&r->conns[i].out);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

static struct mc_rpc *new_rpc(struct mc_server *s, struct mc_err *err)
{
    struct mc_rpc *r = calloc(1, sizeof *r);

    if (!r) {
        mc_fail(err, MC_ENOMEM, "no memory for the socket");
        return NULL;
    }
    r->server = s;
    r->addr.sun_family = AF_UNIX;
    r->fd = -1;
    r->stop = eventfd(0, EFD_CLOEXEC);
    pthread_mutex_init(&r->lock, NULL);
    for (int i = 0; i < MC_RPC_CONNS; i++) {
        r->conns[i].rpc = r;
        pthread_mutex_init(&r->conns[i].out, NULL);
    }
    return r;
}

int mc_rpc_open_tcp(struct mc_server *s, const char *host, uint16_t port,
                    struct mc_keys *keys, struct mc_rpc **out, struct mc_err *err)
{
    struct mc_rpc *r = new_rpc(s, err);
    int rc = r ? mc_listen(host, port, &r->fd, &port, err) : MC_ENOMEM;

    *out = NULL;
    if (rc == 0) {
        r->keys = keys;
        if (mc_thread_run(&r->thread, accept_main, r))
            rc = mc_fail(err, MC_ENOMEM, "no thread for --admin-listen");
    }
    if (rc < 0) {
        if (r)
            free_rpc(r);
        return mc_err_while(err, "opening --admin-listen");
    }
    mc_info("rpc", "admin listening host=%s port=%u", host, port);
    *out = r;
    return 0;
}

int mc_rpc_open(struct mc_server *s, const char *path, struct mc_rpc **out,
                struct mc_err *err)
{
    struct mc_rpc *r = new_rpc(s, err);
    bool asked = path && *path;
    int rc;

    *out = NULL;
    if (!r)
        return MC_ENOMEM;
    rc = mc_rpc_default_path(path, r->addr.sun_path, sizeof r->addr.sun_path, err);
    if (rc == 0 && !asked && !getenv("XDG_RUNTIME_DIR"))
        mkdir("/run/mascon", 0755);
    if (rc == 0)
        rc = bind_socket(r, err);
    if (rc == MC_EIO && !asked) {
        mc_warn("rpc", "no verbs and no REPL: %s; --socket PATH chooses another place",
                err->text);
        free_rpc(r);
        return 0;
    }
    if (rc == 0 && mc_thread_run(&r->thread, accept_main, r)) {
        unlink(r->addr.sun_path);
        rc = mc_fail(err, MC_ENOMEM, "no thread for the socket");
    }
    if (rc < 0) {
        free_rpc(r);
        return rc;
    }
    *out = r;
    return 0;
}

const char *mc_rpc_path(const struct mc_rpc *r)
{
    return r ? r->addr.sun_path : "";
}

void mc_rpc_unlink(struct mc_rpc *r)
{
    if (r)
        unlink(r->addr.sun_path);
}

void mc_rpc_close(struct mc_rpc *r)
{
    uint64_t one = 1;
    int i;

    if (!r)
        return;
    if (*r->addr.sun_path)
        unlink(r->addr.sun_path);
    if (write(r->stop, &one, sizeof one) != sizeof one)
        mc_warn("rpc", "the socket's thread can't be stopped: %s", strerror(errno));
    pthread_join(r->thread, NULL);
    pthread_mutex_lock(&r->lock);
    for (i = 0; i < MC_RPC_CONNS; i++)
        if (r->conns[i].used)
            shutdown(r->conns[i].fd, SHUT_RD); /* an answer under way still goes out */
    pthread_mutex_unlock(&r->lock);
    for (i = 0; i < MC_RPC_CONNS; i++)
        if (r->conns[i].joinable)
            pthread_join(r->conns[i].thread, NULL);
    free_rpc(r);
}
