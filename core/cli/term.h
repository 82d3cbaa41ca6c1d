/* term.h - text that is not ours on a terminal; waiting for input or Ctrl-C.
 * THREAD: main. */
#ifndef MC_CLI_TERM_H
#define MC_CLI_TERM_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

/* Writes UTF-8 to stdout; on a terminal control characters are shown, never obeyed: the
 * text may be a model's. */
void mc_term_put(const char *s, size_t n, bool terminal);

/* Waits until fd can be read: 1, or 0 when SIGINT came since *interrupt was last cleared;
 * it is cleared then. The signal's handler sets *interrupt, which may be NULL. */
int mc_term_wait(int fd, volatile sig_atomic_t *interrupt);

#endif
