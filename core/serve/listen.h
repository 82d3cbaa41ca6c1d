/* listen.h - sockets that listen. OWNS nothing. THREAD: start-up. */
#ifndef MC_SERVE_LISTEN_H
#define MC_SERVE_LISTEN_H

#include <stdint.h>

#include "core/base/err.h"

/* host "": all addresses; port 0: any free one, told by *bound. The fd is the caller's. */
int mc_listen(const char *host, uint16_t port, int *fd, uint16_t *bound,
              struct mc_err *err);
/* The same for a socket that listens already; it becomes this process's to close. */
int mc_listen_given(int fd, uint16_t *bound, struct mc_err *err);

#endif
