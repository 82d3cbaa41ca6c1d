/* notify.h - what a service manager (systemd) and this process tell each other.
 *
 * Two small documented protocols, without its library: lines sent to $NOTIFY_SOCKET
 * (sd_notify(3)), and listening sockets handed over as descriptors (sd_listen_fds(3)).
 * OWNS nothing. THREAD: main. */
#ifndef MC_BASE_NOTIFY_H
#define MC_BASE_NOTIFY_H

/* "READY=1", "WATCHDOG=1", "STOPPING=1", "STATUS=..." and so on, lines of a datagram.
 * Does nothing when nobody asked for it. */
void mc_notify(const char *lines);
/* Seconds within which a WATCHDOG=1 is expected; 0: not at all. */
double mc_notify_watchdog(void);
/* A listening TCP socket that the process was given, or -1. */
int mc_notify_socket(void);

#endif
