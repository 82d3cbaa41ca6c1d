/* proxies.c - the list of trusted proxies. OWNS it. THREAD: any once open. */
#include "core/serve/proxies.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

enum { NETS_MAX = 64, NAME = 64 };

struct mc_proxies {
    int n;
    struct {
        struct in6_addr ip;
        int bits;
    } net[NETS_MAX];
};

/* ---- addresses --------------------------------------------------------------------- */

static struct in6_addr mapped(struct in_addr v4)
{
    struct in6_addr ip = {{{0}}};

    ip.s6_addr[10] = ip.s6_addr[11] = 0xFF;
    memcpy(ip.s6_addr + 12, &v4, 4);
    return ip;
}

struct in6_addr mc_ip_of(const struct sockaddr *a)
{
    struct in6_addr none = {{{0}}};

    if (a && a->sa_family == AF_INET)
        return mapped(((const struct sockaddr_in *)(const void *)a)->sin_addr);
    if (a && a->sa_family == AF_INET6)
        return ((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    return none;
}

void mc_ip_text(const struct in6_addr *ip, char out[MC_IP_TEXT])
{
    if (IN6_IS_ADDR_V4MAPPED(ip))
        inet_ntop(AF_INET, ip->s6_addr + 12, out, MC_IP_TEXT);
    else
        inet_ntop(AF_INET6, ip, out, MC_IP_TEXT);
}

/* "1.2.3.4", "1.2.3.4:5", "::1", "[::1]", "[::1]:5". */
bool mc_ip_parse(const char *text, size_t n, struct in6_addr *out)
{
    char copy[NAME], *end, *colon;
    struct in_addr v4;

    if (n == 0 || n >= sizeof copy)
        return false;
    memcpy(copy, text, n);
    copy[n] = 0;
    end = strchr(copy, ']');
    if (copy[0] == '[' && end && (!end[1] || end[1] == ':')) {
        *end = 0;
        return inet_pton(AF_INET6, copy + 1, out) == 1;
    }
    colon = strchr(copy, ':');
    if (strchr(copy, '.') && colon && !strchr(colon + 1, ':'))
        *colon = 0;
    if (inet_pton(AF_INET, copy, &v4) == 1) {
        *out = mapped(v4);
        return true;
    }
    return inet_pton(AF_INET6, copy, out) == 1;
}

static bool same_net(const struct in6_addr *a, const struct in6_addr *b, int bits)
{
    int whole = bits / 8, rest = bits % 8;

    if (memcmp(a, b, (size_t)whole) != 0)
        return false;
    return rest == 0 || ((a->s6_addr[whole] ^ b->s6_addr[whole]) >> (8 - rest)) == 0;
}

static bool trusted(const struct mc_proxies *p, const struct in6_addr *ip)
{
    for (int i = 0; p && i < p->n; i++)
        if (same_net(ip, &p->net[i].ip, p->net[i].bits))
            return true;
    return false;
}

/* ---- the list ---------------------------------------------------------------------- */

static int add_net(struct mc_proxies *p, const char *text, struct mc_err *err)
{
    const char *slash = strchr(text, '/');
    size_t n = slash ? (size_t)(slash - text) : strlen(text);
    struct in6_addr ip;
    char *end = NULL;
    long bits, most;

    if (!mc_ip_parse(text, n, &ip))
        return mc_fail_param(err, MC_EARG, "trusted_proxies",
                             "'%.60s' is no address or network", text);
    most = IN6_IS_ADDR_V4MAPPED(&ip) ? 32 : 128;
    bits = slash ? strtol(slash + 1, &end, 10) : most;
    if (slash && (end == slash + 1 || *end || bits < 0 || bits > most))
        return mc_fail_param(err, MC_EARG, "trusted_proxies",
                             "'%.60s': a network ends with "
                             "/0..%ld",
                             text, most);
    if (p->n == NETS_MAX)
        return mc_fail_param(err, MC_ELIMIT, "trusted_proxies", "more than %d networks",
                             NETS_MAX);
    p->net[p->n].ip = ip;
    p->net[p->n++].bits = (int)(128 - most + bits);
    return 0;
}

int mc_proxies_open(const char *list, struct mc_proxies **out, struct mc_err *err)
{
    struct mc_proxies *p = calloc(1, sizeof *p);
    char *copy = strdup(list), *save = NULL, *one;
    int rc = p && copy ? 0 : mc_fail(err, MC_ENOMEM, "no memory for the trusted proxies");

    for (one = rc < 0 ? NULL : strtok_r(copy, ", ", &save); one && rc == 0;
         one = strtok_r(NULL, ", ", &save))
        rc = add_net(p, one, err);
    free(copy);
    if (rc < 0) {
        mc_err_while(err, "reading --trusted-proxies");
        mc_proxies_close(p);
        p = NULL;
    }
    *out = p;
    return rc;
}

void mc_proxies_close(struct mc_proxies *p)
{
    free(p);
}

bool mc_proxies_follow(const struct mc_proxies *p, const char *line, struct in6_addr *ip)
{
    const char *end = line + strlen(line), *start;
    struct in6_addr next;

    while (trusted(p, ip)) {
        while (end > line && strchr(" \t,", end[-1]))
            end--;
        if (end == line)
            return true; /* the line before may go on */
        for (start = end; start > line && !strchr(" \t,", start[-1]); start--)
            ;
        if (!mc_ip_parse(start, (size_t)(end - start), &next))
            return false; /* "unknown": the proxy is all that is known */
        *ip = next;
        end = start;
    }
    return false;
}
