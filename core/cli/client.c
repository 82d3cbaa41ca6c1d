/* client.c - requests over the Unix socket, or TCP with a key, one at a time. OWNS the
 * connection. THREAD: one. */
#include "core/cli/client.h"

#include <errno.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/cli/term.h"
#include "core/serve/rpc.h"
#include "core/serve/wire.h"

struct mc_client {
    int fd;
    json_int_t id; /* of the last request */
    void (*out)(void *ctx, const char *s, size_t n);
    void *ctx;
    volatile sig_atomic_t *interrupt;
    size_t n;
    char buf[MC_WIRE_MAX];
};

static int connect_unix(struct mc_client *c, const char *path, struct mc_err *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int rc = mc_rpc_default_path(path, addr.sun_path, sizeof addr.sun_path, err);

    if (rc < 0)
        return rc;
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&addr, sizeof addr) < 0)
        return mc_fail(err, MC_EIO, "no server answers on %s: %s", addr.sun_path,
                       strerror(errno));
    return 0;
}

/* at: "HOST:PORT", "[::1]:9000". */
static int connect_tcp(struct mc_client *c, const char *at, struct mc_err *err)
{
    const struct addrinfo hint = {.ai_socktype = SOCK_STREAM};
    const char *key = getenv("MASCON_ADMIN_KEY"), *colon = strrchr(at, ':');
    bool bracket = *at == '[';
    struct addrinfo *all = NULL;
    char host[256];
    int no = EADDRNOTAVAIL;

    if (!colon || colon - at >= (int)sizeof host)
        return mc_fail_param(err, MC_EARG, "socket",
                             "--socket: tcp:%.60s is no tcp:HOST:PORT", at);
    if (!key || !*key)
        return mc_fail(err, MC_EAUTH,
                       "$MASCON_ADMIN_KEY is not set: tcp:%.60s wants a key of its "
                       "--admin-key-file",
                       at);
    snprintf(host, sizeof host, "%.*s", (int)(colon - at) - 2 * bracket, at + bracket);
    if (getaddrinfo(host, colon + 1, &hint, &all) != 0)
        return mc_fail(err, MC_EIO, "no address for tcp:%.100s", at);
    for (struct addrinfo *a = all; a && no != 0; a = a->ai_next) {
        if (c->fd >= 0)
            close(c->fd);
        c->fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        no = c->fd >= 0 && connect(c->fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    }
    freeaddrinfo(all);
    if (no != 0)
        return mc_fail(err, MC_EIO, "no server answers on tcp:%.100s: %s", at,
                       strerror(no));
    return mc_client_call(c, "auth", json_pack("[s]", key), NULL, err);
}

int mc_client_open(const char *path, struct mc_client **out, struct mc_err *err)
{
    struct mc_client *c = calloc(1, sizeof *c);
    int rc;

    if (!c)
        return mc_fail(err, MC_ENOMEM, "no memory for a connection");
    c->fd = -1;
    rc = path && strncmp(path, "tcp:", 4) == 0 ? connect_tcp(c, path + 4, err)
                                               : connect_unix(c, path, err);
    if (rc < 0)
        mc_client_close(c);
    else
        *out = c;
    return rc;
}

void mc_client_close(struct mc_client *c)
{
    if (!c)
        return;
    if (c->fd >= 0)
        close(c->fd);
    free(c);
}

void mc_client_watch(struct mc_client *c, void (*out)(void *ctx, const char *s, size_t n),
                     void *ctx, volatile sig_atomic_t *interrupt)
{
    c->out = out;
    c->ctx = ctx;
    c->interrupt = interrupt;
}

/* Takes the reference. */
static int send_value(struct mc_client *c, json_t *v, struct mc_err *err)
{
    size_t n = 0, at = 0;
    char *data = mc_wire_write(v, &n);
    ssize_t sent = 1;

    json_decref(v);
    if (!data)
        return mc_fail(err, MC_EINTERNAL, "a request can't be written");
    while (at < n && (sent > 0 || errno == EINTR)) {
        sent = send(c->fd, data + at, n - at, MSG_NOSIGNAL);
        at += sent > 0 ? (size_t)sent : 0;
    }
    free(data);
    return at == n ? 0 : mc_fail(err, MC_EIO, "the server is gone");
}

/* Waits for bytes; a signal meanwhile interrupts what runs at the other end. */
static int receive(struct mc_client *c, struct mc_err *err)
{
    ssize_t got;

    while (!mc_term_wait(c->fd, c->interrupt)) {
        if (send_value(c, json_pack("[i, s, []]", 2, "repl.cancel"), err) < 0)
            return MC_EIO;
    }
    if (c->n == sizeof c->buf)
        return mc_fail(err, MC_EBIG, "an answer is over %zu bytes", sizeof c->buf);
    got = recv(c->fd, c->buf + c->n, sizeof c->buf - c->n, 0);
    if (got <= 0)
        return mc_fail(err, MC_EIO, "the server is gone");
    c->n += (size_t)got;
    return 0;
}

/* The next message; a new reference. */
static int next(struct mc_client *c, json_t **out, struct mc_err *err)
{
    size_t len;
    int rc;

    for (;;) {
        rc = mc_wire_scan(c->buf, c->n, MC_WIRE_MAX, &len, err);
        if (rc < 0)
            return rc;
        if (rc == 0 && receive(c, err) < 0)
            return MC_EIO;
        if (rc == 0)
            continue;
        rc = mc_wire_read(c->buf, len, false, out, err);
        c->n -= len;
        memmove(c->buf, c->buf + len, c->n);
        return rc;
    }
}

static int error_of(const json_t *e, struct mc_err *err)
{
    const char *code = json_string_value(json_object_get(e, "code"));
    const char *text = json_string_value(json_object_get(e, "message"));
    int i;

    for (i = -1; i > -MC_E_END_; i--)
        if (code && strcmp(mc_code_api(i), code) == 0)
            break;
    return mc_fail(err, i > -MC_E_END_ ? i : MC_EINTERNAL, "%s",
                   text ? text : "no reason given");
}

int mc_client_call(struct mc_client *c, const char *method, json_t *params,
                   json_t **result, struct mc_err *err)
{
    json_t *m, *e;
    int rc = send_value(c, json_pack("[i, I, s, o]", 0, ++c->id, method, params), err);

    while (rc == 0) {
        rc = next(c, &m, err);
        if (rc < 0)
            break;
        if (json_integer_value(json_array_get(m, 0)) == 2) {
            const json_t *text = json_array_get(json_array_get(m, 2), 0);

            if (c->out && json_is_string(text))
                c->out(c->ctx, json_string_value(text), json_string_length(text));
            json_decref(m);
            continue;
        }
        e = json_array_get(m, 2);
        if (!json_is_null(e))
            rc = error_of(e, err);
        else if (result)
            *result = json_incref(json_array_get(m, 3));
        json_decref(m);
        break;
    }
    return rc;
}
