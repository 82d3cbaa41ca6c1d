/* service.h - this process as a service: what it tells its manager (systemd), and a
 * watchdog that the engines' loops feed. OWNS nothing of them. THREAD: main. */
#ifndef MC_CLI_SERVICE_H
#define MC_CLI_SERVICE_H

#include "core/serve/server.h"

struct mc_service {
    double every, fed; /* seconds between two looks, 0: no watchdog; time of the last */
    uint64_t turns[MC_SERVED_MAX]; /* of each engine, then */
};

void mc_service_begin(struct mc_service *s);
/* model: the id that clients use. */
void mc_service_ready(struct mc_service *s, const char *model, uint16_t port);
void mc_service_stopping(void);
/* Often: tells the manager that all is well when each engine's loop went round since the
 * last time, and wakes them so that idle ones do. An engine that hangs is not vouched
 * for. */
void mc_service_tick(struct mc_service *s, const struct mc_server *m);

#endif
