/* conn.c - the watcher: hang-ups, timeouts and slow good-byes of HTTP connections.
 *
 * libmicrohttpd does not look at a suspended connection, has no limit on a header's or a
 * body's whole time, and closes with a reset when it has answered before reading the
 * body, so that the answer is lost. A thread of our own sees to all three: every
 * connection's socket is in its epoll set (hang-ups), a scan every TICK_MS finds what is
 * over its time, and a refused client's socket is kept (dup) and read until it has hung
 * up itself.
 *
 * Owns its thread, the list of connections and the sockets it lingers on. THREAD:
 * connections are opened and closed on the HTTP thread; `lock` guards all fields.
 *
 * Always true: a listed connection's fd is open, as mc_conn_close takes it off before
 * libmicrohttpd closes it; a connection's memory is freed by the watcher between two
 * waits, so that an event in hand never points to freed memory. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/log.h"
#include "core/base/thread.h"
#include "core/serve/http_int.h"

enum { TICK_MS = 250, N_EVENT = 64, LINGER_MAX = 256, LINGER_S = 5 };

struct mc_conn {
    struct mc_watch *w;
    struct mc_conn *prev, *next; /* in w->live; next alone in w->dead */
    int fd;
    enum mc_conn_phase phase;
    double deadline; /* 0: none */
    struct mc_req *req;
    bool hup, refused, lingers, dead;
};

struct mc_watch {
    pthread_t thread;
    pthread_mutex_t lock;
    struct mc_conn *live, *dead;
    int n_live, n_linger;
    int epfd, wake;
    bool stop;
};

static void nudge(struct mc_watch *w)
{
    uint64_t one = 1;

    if (write(w->wake, &one, sizeof one) < 0)
        return; /* the counter is full: it is awake */
}

/* Lock held. */
static void unlist(struct mc_conn *c)
{
    struct mc_watch *w = c->w;

    if (c->prev)
        c->prev->next = c->next;
    else
        w->live = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->dead = true;
    c->next = w->dead;
    w->dead = c;
    w->n_live--;
}

struct mc_conn *mc_conn_open(struct mc_watch *w, int fd)
{
    struct mc_conn *c = calloc(1, sizeof *c);
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = c};

    if (!c)
        return NULL;
    c->w = w;
    c->fd = fd;
    if (epoll_ctl(w->epfd, EPOLL_CTL_ADD, fd, &ev) < 0) {
        free(c);
        return NULL;
    }
    pthread_mutex_lock(&w->lock);
    c->next = w->live;
    if (c->next)
        c->next->prev = c;
    w->live = c;
    if (w->n_live++ == 0)
        nudge(w); /* from no tick to ticks */
    pthread_mutex_unlock(&w->lock);
    return c;
}

/* Keeps a refused client's socket, so that our answer is not overtaken by the reset that
 * closing it with unread bytes would send. Lock held. */
static bool linger(struct mc_conn *c)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
    int fd;

    if (!c->refused || c->hup || c->w->n_linger >= LINGER_MAX)
        return false;
    fd = dup(c->fd);
    if (fd < 0)
        return false;
    if (epoll_ctl(c->w->epfd, EPOLL_CTL_ADD, fd, &ev) < 0) {
        close(fd);
        return false;
    }
    c->fd = fd;
    c->lingers = true;
    c->deadline = mc_http_now() + LINGER_S;
    c->w->n_linger++;
    return true;
}

/* Lock held. Closing alone would not end the watch: the library may have its own
 * descriptor of the same socket open yet. */
static void let_go(struct mc_conn *c)
{
    epoll_ctl(c->w->epfd, EPOLL_CTL_DEL, c->fd, NULL);
    close(c->fd);
    c->w->n_linger--;
    unlist(c);
}

void mc_conn_close(struct mc_conn *c)
{
    struct mc_watch *w;

    if (!c)
        return;
    w = c->w;
    pthread_mutex_lock(&w->lock);
    epoll_ctl(w->epfd, EPOLL_CTL_DEL, c->fd, NULL);
    if (!linger(c))
        unlist(c);
    pthread_mutex_unlock(&w->lock);
}

void mc_conn_phase(struct mc_conn *c, enum mc_conn_phase phase, double seconds)
{
    pthread_mutex_lock(&c->w->lock);
    c->phase = phase;
    c->deadline = seconds > 0 ? mc_http_now() + seconds : 0;
    pthread_mutex_unlock(&c->w->lock);
}

void mc_conn_req(struct mc_conn *c, struct mc_req *r)
{
    pthread_mutex_lock(&c->w->lock);
    c->req = r;
    pthread_mutex_unlock(&c->w->lock);
}

bool mc_conn_hung_up(struct mc_conn *c)
{
    bool hup;

    pthread_mutex_lock(&c->w->lock);
    hup = c->hup;
    pthread_mutex_unlock(&c->w->lock);
    return hup;
}

/* ---- answers around libmicrohttpd -------------------------------------------------- */

/* The socket's send buffer is empty here, but perhaps for "100 Continue". */
static void send_answer(int fd, const char *id, const struct mc_err *e)
{
    struct mc_buf head = {0}, body = {0};
    int status = mc_code_http(e->code);

    mc_json_error(&body, e);
    mc_buf_fmt(&head, "HTTP/1.1 %d %s\r\nConnection: close\r\n", status,
               MHD_get_reason_phrase_for((unsigned)status));
    mc_buf_fmt(&head, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
               body.n);
    mc_buf_fmt(&head, "x-request-id: %s\r\n\r\n", id);
    mc_buf_put(&head, body.p, body.n);
    if (!head.failed && !body.failed &&
        send(fd, head.p, head.n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        mc_debug("http", "refusal not sent: %s", strerror(errno));
    mc_buf_free(&head);
    mc_buf_free(&body);
}

void mc_conn_refuse(struct mc_conn *c, const char *id, const struct mc_err *e)
{
    pthread_mutex_lock(&c->w->lock);
    c->refused = true;
    send_answer(c->fd, id, e);
    pthread_mutex_unlock(&c->w->lock);
}

/* ---- the thread -------------------------------------------------------------------- */

/* Reads what a refused client still sends; at its end, or after an error, lets go. */
static void drain(struct mc_conn *c)
{
    char junk[16384];
    ssize_t n = 1;

    for (int i = 0; i < 32 && n > 0; i++) /* then the others have their turn */
        n = recv(c->fd, junk, sizeof junk, MSG_DONTWAIT);
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
        return;
    let_go(c);
}

static void on_event(struct mc_watch *w, struct mc_conn *c)
{
    struct mc_req *r = NULL;

    pthread_mutex_lock(&w->lock);
    if (c->dead) {
        /* closed since this event was fetched */
    } else if (c->lingers) {
        drain(c);
    } else {
        c->hup = true;
        r = c->req;
        if (r)
            mc_req_ref(r);
    }
    pthread_mutex_unlock(&w->lock);
    if (!r)
        return;
    mc_req_gone(r);
    mc_req_unref(r);
}

/* Lock held. libmicrohttpd sees the shut socket as its client's end. */
static void expire(struct mc_conn *c)
{
    struct mc_err e;

    c->deadline = 0;
    if (c->lingers) {
        let_go(c);
        return;
    }
    if (c->phase == MC_CONN_BODY && c->req) {
        mc_fail(&e, MC_ETIMEOUT, "the request's body came too slowly");
        send_answer(c->fd, c->req->id, &e);
    }
    shutdown(c->fd, SHUT_RDWR);
}

static void scan(struct mc_watch *w)
{
    double now = mc_http_now();

    pthread_mutex_lock(&w->lock);
    for (struct mc_conn *c = w->live, *next; c; c = next) {
        next = c->next;
        if (c->deadline > 0 && now > c->deadline)
            expire(c);
        else if (c->hup && !c->lingers && c->phase != MC_CONN_BUSY)
            shutdown(c->fd, SHUT_RD); /* wakes who has read all but the end */
    }
    pthread_mutex_unlock(&w->lock);
}

static bool bury_dead(struct mc_watch *w, int *timeout_ms)
{
    struct mc_conn *dead;
    bool stop;

    pthread_mutex_lock(&w->lock);
    dead = w->dead;
    w->dead = NULL;
    stop = w->stop;
    *timeout_ms = w->n_live > 0 ? TICK_MS : -1;
    pthread_mutex_unlock(&w->lock);
    for (struct mc_conn *next; dead; dead = next) {
        next = dead->next;
        free(dead);
    }
    return stop;
}

static void *watch_main(void *arg)
{
    struct mc_watch *w = arg;
    struct epoll_event ev[N_EVENT];
    double next_scan = 0;
    int timeout_ms;

    while (!bury_dead(w, &timeout_ms)) {
        int n = epoll_wait(w->epfd, ev, N_EVENT, timeout_ms);

        for (int i = 0; i < n; i++) {
            uint64_t count;

            if (ev[i].data.ptr)
                on_event(w, ev[i].data.ptr);
            else if (read(w->wake, &count, sizeof count) < 0)
                continue;
        }
        if (mc_http_now() >= next_scan) {
            scan(w);
            next_scan = mc_http_now() + TICK_MS / 1e3;
        }
    }
    return NULL;
}

void mc_watch_each(struct mc_watch *w, void (*fn)(struct mc_req *r))
{
    struct mc_req **all;
    int n = 0;

    pthread_mutex_lock(&w->lock);
    all = calloc((size_t)w->n_live + 1, sizeof *all);
    for (struct mc_conn *c = w->live; c && all; c = c->next) {
        if (!c->req)
            continue;
        mc_req_ref(c->req);
        all[n++] = c->req;
    }
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < n; i++) {
        fn(all[i]);
        mc_req_unref(all[i]);
    }
    free(all);
}

int mc_watch_open(struct mc_watch **out, struct mc_err *err)
{
    struct mc_watch *w = calloc(1, sizeof *w);
    struct epoll_event ev = {.events = EPOLLIN};
    int rc;

    if (!w)
        return mc_fail(err, MC_ENOMEM, "no memory for the connection watcher");
    pthread_mutex_init(&w->lock, NULL);
    w->epfd = epoll_create1(EPOLL_CLOEXEC);
    w->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (w->epfd < 0 || w->wake < 0 ||
        epoll_ctl(w->epfd, EPOLL_CTL_ADD, w->wake, &ev) < 0) {
        rc = mc_fail(err, MC_EIO, "epoll: %s", strerror(errno));
        goto fail;
    }
    rc = mc_thread_run(&w->thread, watch_main, w);
    if (rc != 0) {
        rc = mc_fail(err, MC_EIO, "connection watcher's thread: %s", strerror(rc));
        goto fail;
    }
    *out = w;
    return 0;
fail:
    close(w->epfd);
    close(w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
    return rc;
}

void mc_watch_close(struct mc_watch *w)
{
    int timeout_ms;

    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_mutex_unlock(&w->lock);
    nudge(w);
    pthread_join(w->thread, NULL);
    while (w->live) /* only those it lingers on */
        let_go(w->live);
    bury_dead(w, &timeout_ms);
    close(w->epfd);
    close(w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
