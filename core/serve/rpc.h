/* rpc.h - msgpack-RPC over the Unix socket, and TCP with a key: verbs, and REPL sessions.
 *
 *   request       [0, id, method, params]     response  [1, id, error or nil, result]
 *   notification  [2, method, params]         error     {code, status, message, param}
 *
 * Methods are the verbs of admin.h, and for a connection's session repl.eval [text, raw,
 * line] (raw: true, or "json"; line: where the text begins in an input that is read line
 * by line), repl.complete [text], with notifications repl.cancel [] to the server and
 * repl.out [text] from it. A session is made by its first repl.eval and ends with the
 * connection. OWNS the socket (mode 0600), a thread that accepts and one a connection.
 * THREAD: open and close one. */
#ifndef MC_SERVE_RPC_H
#define MC_SERVE_RPC_H

#include "core/serve/server.h"

struct mc_rpc;

enum { MC_RPC_CONNS = 32 };

/* path "": $XDG_RUNTIME_DIR/mascon.sock, else /run/mascon/mascon.sock; when that
 * directory cannot be used, *out is NULL and a warning is logged. MC_EEXIST: a server
 * listens there already; a stale socket is replaced. */
int mc_rpc_open(struct mc_server *s, const char *path, struct mc_rpc **out,
                struct mc_err *err);
/* The same by TCP: a connection's first request is auth [KEY], within ten seconds; a wrong key
 * or anything else ends it. Connections are counted apart from the Unix socket's, so that who
 * has no key keeps nobody out. Nothing is encrypted. keys outlive it. */
int mc_rpc_open_tcp(struct mc_server *s, const char *host, uint16_t port,
                    struct mc_keys *keys, struct mc_rpc **out, struct mc_err *err);
const char *mc_rpc_path(const struct mc_rpc *r); /* "" for NULL */
/* Removes the socket's name: for a process that ends without closing. */
void mc_rpc_unlink(struct mc_rpc *r);
void mc_rpc_close(struct mc_rpc *r);

/* Fills path with the default; 0, or MC_EARG when it is too long for a socket. */
int mc_rpc_default_path(const char *given, char *path, size_t cap, struct mc_err *err);

#endif
