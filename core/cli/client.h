/* client.h - this program as a client of a running server's socket, Unix or TCP.
 *
 * OWNS the connection. THREAD: one; a signal handler may set *interrupt. */
#ifndef MC_CLI_CLIENT_H
#define MC_CLI_CLIENT_H

#include <signal.h>
#include <stdbool.h>

#include <jansson.h>

#include "core/base/err.h"

struct mc_client;

/* socket "": the default place; tcp:HOST:PORT: a server's --admin-listen, with the key in
 * $MASCON_ADMIN_KEY. */
int mc_client_open(const char *socket, struct mc_client **out, struct mc_err *err);
void mc_client_close(struct mc_client *c);

/* What a session prints while a call waits; and a flag that a signal handler sets to have
 * what runs there interrupted. Both may be NULL. */
void mc_client_watch(struct mc_client *c, void (*out)(void *ctx, const char *s, size_t n),
                     void *ctx, volatile sig_atomic_t *interrupt);

/* Takes params. *result (or NULL) is a new reference; an error keeps the server's code and text. */
int mc_client_call(struct mc_client *c, const char *method, json_t *params,
                   json_t **result, struct mc_err *err);

#endif
