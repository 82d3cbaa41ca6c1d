/* proxies.h - whose word about a client's address is taken: the proxies before us.
 *
 * A request from one of them came from the last address in its X-Forwarded-For that is
 * not one of them; what stands before that, anyone may have written. OWNS its list,
 * constant after open. THREAD: any. */
#ifndef MC_SERVE_PROXIES_H
#define MC_SERVE_PROXIES_H

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "core/base/err.h"

struct mc_proxies;

enum { MC_IP_TEXT = INET6_ADDRSTRLEN };

/* "127.0.0.1,10.0.0.0/8,::1"; a bare address is one host. */
int mc_proxies_open(const char *list, struct mc_proxies **out, struct mc_err *err);
void mc_proxies_close(struct mc_proxies *p);

/* An IPv4 address is kept as ::ffff:a.b.c.d. */
struct in6_addr mc_ip_of(const struct sockaddr *a);
void mc_ip_text(const struct in6_addr *ip, char out[MC_IP_TEXT]);
bool mc_ip_parse(const char *text, size_t n,
                 struct in6_addr *out); /* a port behind it is fine */

/* Follows one X-Forwarded-For line from its end: *ip, the socket's address at first,
 * becomes who that proxy says it speaks for, as long as *ip is a proxy. False when the
 * walk has ended; lines are given last first. p NULL: nobody is trusted. */
bool mc_proxies_follow(const struct mc_proxies *p, const char *line, struct in6_addr *ip);

#endif
