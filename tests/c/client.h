/* client.h - a small HTTP client on real sockets, for tests of the server.
 *
 * Blocking, with a deadline; it sends exactly the bytes it is given and shows exactly those
 * it got. */
#ifndef MC_TEST_CLIENT_H
#define MC_TEST_CLIENT_H

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct answer {
    int status;
    char *head, *body; /* head: to the blank line, with NUL; body: without chunk framing */
    size_t n;
    bool chunked, whole; /* whole: the length or the last chunk was seen */
    bool closed;         /* the server closed after it */
    char *mem;
};

static double now_s(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static int dial(uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* False when the server stopped taking bytes. */
static bool say(int fd, const void *data, size_t n)
{
    const char *s = data;

    while (n > 0) {
        ssize_t k = send(fd, s, n, MSG_NOSIGNAL);

        if (k < 0)
            return false;
        s += k;
        n -= (size_t)k;
    }
    return true;
}

static __attribute__((unused)) bool says(int fd, const char *s)
{
    return say(fd, s, strlen(s));
}

/* Bytes read, 0 at the end, -1 when nothing came by the deadline, -2 after a reset. */
static ssize_t hear(int fd, char *buf, size_t cap, double until)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    double left = until - now_s();
    ssize_t n;

    if (poll(&p, 1, left > 0 ? (int)(left * 1e3) + 1 : 0) <= 0)
        return -1;
    n = recv(fd, buf, cap, 0);
    return n < 0 ? -2 : n;
}

/* The next piece of the answer is appended to what is there. */
static bool more(int fd, struct answer *a, size_t *have, double until)
{
    ssize_t n;

    a->mem = realloc(a->mem, *have + 65536 + 1);
    n = hear(fd, a->mem + *have, 65536, until);
    if (n <= 0) {
        a->closed = n == 0 || n == -2;
        return false;
    }
    *have += (size_t)n;
    a->mem[*have] = 0;
    return true;
}

/* Takes the chunk framing off in place; true when the last chunk was there. */
static bool dechunk(char *s, size_t n, size_t *out_n)
{
    char *end = s + n, *to = s;

    *out_n = 0;
    while (s < end) {
        char *line = memmem(s, (size_t)(end - s), "\r\n", 2);
        size_t k;

        if (!line)
            break;
        k = strtoul(s, NULL, 16);
        s = line + 2;
        if (k == 0)
            return true;
        if (k > (size_t)(end - s))
            k = (size_t)(end - s);
        memmove(to, s, k);
        to += k;
        *out_n += k;
        s += k + 2;
    }
    return false;
}

/* One answer (n_extra: bytes of the next that came with it, should be 0). */
static struct answer listen_for(int fd, double seconds)
{
    double until = now_s() + seconds;
    struct answer a = {0};
    size_t have = 0, want = 0;
    char *blank = NULL, *length;

    while (!blank && more(fd, &a, &have, until)) {
        blank = memmem(a.mem, have, "\r\n\r\n", 4);
        if (blank && strncmp(a.mem, "HTTP/1.1 100", 12) == 0) {
            size_t skip = (size_t)(blank + 4 - a.mem);

            memmove(a.mem, blank + 4, have - skip + 1);
            have -= skip;
            blank = memmem(a.mem, have, "\r\n\r\n", 4);
        }
    }
    if (!blank)
        return a;
    a.status = atoi(a.mem + 9);
    for (;;) {
        size_t head = (size_t)(blank - a.mem) + 4;
        char keep = a.mem[head - 2];

        a.mem[head - 2] = 0;
        length = strcasestr(a.mem, "\r\nContent-Length: ");
        want = length ? strtoul(length + 18, NULL, 10) : 0;
        a.chunked = strcasestr(a.mem, "\r\nTransfer-Encoding: chunked") != NULL;
        a.mem[head - 2] = keep;
        if (a.chunked ? have >= head + 5 && memcmp(a.mem + have - 5, "0\r\n\r\n", 5) == 0
                      : have >= head + want) {
            a.whole = true;
            break;
        }
        if (!more(fd, &a, &have, until))
            break;
        blank = memmem(a.mem, have, "\r\n\r\n", 4);
    }
    blank = memmem(a.mem, have, "\r\n\r\n", 4);
    blank[2] = 0;
    a.head = a.mem;
    a.body = blank + 4;
    a.n = have - (size_t)(a.body - a.mem);
    if (a.chunked)
        a.whole = dechunk(a.body, a.n, &a.n);
    a.body[a.n] = 0;
    return a;
}

static void forget(struct answer *a)
{
    free(a->mem);
    *a = (struct answer){0};
}

/* True when the server closes within the time. */
static __attribute__((unused)) bool hangs_up(int fd, double seconds)
{
    double until = now_s() + seconds;
    char junk[4096];
    ssize_t n;

    while ((n = hear(fd, junk, sizeof junk, until)) > 0)
        ;
    return n != -1;
}

/* Closes with a reset instead of a FIN. */
static __attribute__((unused)) void slam(int fd)
{
    struct linger l = {.l_onoff = 1, .l_linger = 0};

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    close(fd);
}

static __attribute__((unused)) struct answer ask(uint16_t port, const char *request)
{
    int fd = dial(port);
    struct answer a = {0};

    if (fd < 0 || !says(fd, request))
        return a;
    a = listen_for(fd, 10);
    close(fd);
    return a;
}

/* A header field's value, or NULL; borrowed until the next call. */
static __attribute__((unused)) const char *field(const struct answer *a, const char *name)
{
    static char value[512];
    char key[80];
    const char *s;

    snprintf(key, sizeof key, "\r\n%s: ", name);
    s = a->head ? strcasestr(a->head, key) : NULL;
    if (!s)
        return NULL;
    s += strlen(key);
    snprintf(value, sizeof value, "%.*s", (int)strcspn(s, "\r\n"), s);
    return value;
}

#endif
