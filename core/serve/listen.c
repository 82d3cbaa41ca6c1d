/* listen.c - the listening socket, and who else has the port.
 *
 * Owns nothing. THREAD: start-up. Options set on a listening socket are inherited by what
 * it accepts: no Nagle delay for streams, and keep-alive probes, which find a client
 * whose machine vanished without a word while its request waits. */
#include "core/serve/listen.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 1024, TCP_LISTENING = 0x0A };

/* Inode of the socket that listens on port, 0 when none is seen. */
static unsigned long listener_inode(const char *table, uint16_t port)
{
    FILE *f = fopen(table, "re");
    unsigned long inode, found = 0;
    char line[512];
    unsigned at, state;

    while (f && !found && fgets(line, sizeof line, f))
        if (sscanf(line,
                   "%*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*s %*s %lu",
                   &at, &state, &inode) == 3 &&
            at == port && state == TCP_LISTENING)
            found = inode;
    if (f)
        fclose(f);
    return found;
}

/* True when one of the process's open files is the socket; other users' are not shown. */
static bool holds_socket(const char *pid, unsigned long inode)
{
    char dir[64], path[320], link[64], want[64];
    struct dirent *e;
    bool found = false;
    DIR *d;

    snprintf(dir, sizeof dir, "/proc/%.20s/fd", pid);
    snprintf(want, sizeof want, "socket:[%lu]", inode);
    d = opendir(dir);
    while (d && !found && (e = readdir(d)) != NULL) {
        ssize_t n;

        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        n = readlink(path, link, sizeof link - 1);
        link[n > 0 ? n : 0] = 0;
        found = strcmp(link, want) == 0;
    }
    if (d)
        closedir(d);
    return found;
}

/* " (pid 123, nginx)", or nothing when that can't be seen. */
static void describe_owner(uint16_t port, char *out, size_t cap)
{
    unsigned long inode = listener_inode("/proc/net/tcp", port);
    char path[64], comm[32] = "?";
    struct dirent *e;
    DIR *d = NULL;
    FILE *f;

    out[0] = 0;
    if (inode == 0)
        inode = listener_inode("/proc/net/tcp6", port);
    if (inode != 0)
        d = opendir("/proc");
    while (d && out[0] == 0 && (e = readdir(d)) != NULL) {
        if (e->d_name[0] < '0' || e->d_name[0] > '9' || !holds_socket(e->d_name, inode))
            continue;
        snprintf(path, sizeof path, "/proc/%.20s/comm", e->d_name);
        f = fopen(path, "re");
        if (f && fgets(comm, sizeof comm, f))
            comm[strcspn(comm, "\n")] = 0;
        if (f)
            fclose(f);
        snprintf(out, cap, " (pid %.20s, %s)", e->d_name, comm);
    }
    if (d)
        closedir(d);
}

static int bind_fail(int no, const char *host, uint16_t port, struct mc_err *err)
{
    char owner[80];

    if (no == EADDRINUSE) {
        describe_owner(port, owner, sizeof owner);
        return mc_fail_param(
            err, MC_EEXIST, "port",
            "port %u of %s is in use%s: choose another with --port or --listen", port,
            host, owner);
    }
    if (no == EACCES)
        return mc_fail_param(err, MC_EFORBID, "port",
                             "no right to listen on port %u of %s", port, host);
    return mc_fail_param(err, MC_EIO, "listen",
                         "--listen: no listening on %s port %u: %s", host, port,
                         strerror(no));
}

static void set_options(int s)
{
    static const int on = 1, idle_s = 60, gap_s = 15, n_probe = 4;

    setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(s, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(s, IPPROTO_TCP, TCP_KEEPINTVL, &gap_s, sizeof gap_s);
    setsockopt(s, IPPROTO_TCP, TCP_KEEPCNT, &n_probe, sizeof n_probe);
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static int bind_to(const struct addrinfo *a, int *fd)
{
    static const int on = 1;
    int s = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (s < 0)
        return errno;
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    set_options(s);
    if (bind(s, a->ai_addr, a->ai_addrlen) < 0 || listen(s, BACKLOG) < 0) {
        int no = errno;

        close(s);
        return no;
    }
    *fd = s;
    return 0;
}

static int port_of(int fd, const char *host, uint16_t *bound, struct mc_err *err)
{
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    char name[8];

    if (getsockname(fd, (struct sockaddr *)&at, &n) < 0 ||
        getnameinfo((struct sockaddr *)&at, n, NULL, 0, name, sizeof name,
                    NI_NUMERICSERV) != 0)
        return mc_fail_param(err, MC_EIO, "listen", "no name for the socket of %s", host);
    *bound = (uint16_t)atoi(name);
    return 0;
}

int mc_listen_given(int fd, uint16_t *bound, struct mc_err *err)
{
    set_options(fd);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    return port_of(fd, "the service manager", bound, err);
}

int mc_listen(const char *host, uint16_t port, int *fd, uint16_t *bound,
              struct mc_err *err)
{
    struct addrinfo hint = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV,
                            .ai_socktype = SOCK_STREAM};
    struct addrinfo *all = NULL;
    char service[8];
    int rc, no = EADDRNOTAVAIL;

    snprintf(service, sizeof service, "%u", port);
    rc = getaddrinfo(host, service, &hint, &all);
    if (rc != 0)
        return mc_fail_param(err, MC_EARG, "listen", "--listen: no address for '%s': %s",
                             host, gai_strerror(rc));
    for (struct addrinfo *a = all; a && no != 0; a = a->ai_next)
        no = bind_to(a, fd);
    freeaddrinfo(all);
    if (no != 0)
        return bind_fail(no, host, port, err);
    rc = port_of(*fd, host, bound, err);
    if (rc < 0)
        close(*fd);
    return rc;
}
