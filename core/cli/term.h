/* term.h - text that is not ours on a terminal. THREAD: any. */
#ifndef MC_CLI_TERM_H
#define MC_CLI_TERM_H

#include <stdbool.h>
#include <stddef.h>

/* Writes UTF-8 to stdout; on a terminal control characters are shown, never obeyed: the
 * text may be a model's. */
void mc_term_put(const char *s, size_t n, bool terminal);

#endif
