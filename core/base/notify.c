/* notify.c - see notify.h. OWNS nothing. THREAD: main. */
#define _GNU_SOURCE
#include "core/base/notify.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { FIRST_FD = 3 };

void mc_notify(const char *lines)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t n = path ? strlen(path) : 0;
    int fd;

    if (n < 2 || n >= sizeof to.sun_path || (path[0] != '/' && path[0] != '@'))
        return;
    memcpy(to.sun_path, path, n);
    if (path[0] == '@') /* an abstract name */
        to.sun_path[0] = 0;
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    sendto(fd, lines, strlen(lines), MSG_NOSIGNAL, (struct sockaddr *)&to,
           (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
    close(fd);
}

/* A variable that is meant for this process: its twin holds the pid, if there is one. */
static const char *for_us(const char *name, const char *pid_name)
{
    const char *pid = getenv(pid_name);

    return pid && strtol(pid, NULL, 10) != getpid() ? NULL : getenv(name);
}

double mc_notify_watchdog(void)
{
    const char *us = for_us("WATCHDOG_USEC", "WATCHDOG_PID");

    return us ? strtod(us, NULL) / 1e6 : 0;
}

static int is_tcp_listener(int fd)
{
    struct sockaddr_storage at;
    socklen_t n = sizeof at, len = sizeof(int);
    int listens = 0;

    return getsockname(fd, (struct sockaddr *)&at, &n) == 0 &&
           (at.ss_family == AF_INET || at.ss_family == AF_INET6) &&
           getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) == 0 && listens;
}

int mc_notify_socket(void)
{
    const char *n = getenv("LISTEN_PID") ? for_us("LISTEN_FDS", "LISTEN_PID") : NULL;
    long count = n ? strtol(n, NULL, 10) : 0;

    for (int fd = FIRST_FD; fd < FIRST_FD + count && count <= 64; fd++)
        if (is_tcp_listener(fd)) {
            fcntl(fd, F_SETFD, FD_CLOEXEC);
            return fd;
        }
    return -1;
}
