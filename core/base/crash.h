/* crash.h - the report of a fatal signal: build, signal, what ran.
 *
 * On SIGSEGV, SIGBUS, SIGILL, SIGFPE or SIGABRT a report goes to stderr and into a file,
 * then the process dies of the signal as it would have, and leaves its core. OWNS the
 * handlers of those signals; under a sanitizer, which has its own, it installs none.
 * THREAD: install and part at start-up, before or after others run; a part's function
 * runs in the handler, on whichever thread died: it may read what others write, and calls
 * nothing but mc_crash_put (no lock, no memory, no stdio). */
#ifndef MC_BASE_CRASH_H
#define MC_BASE_CRASH_H

#include <stdbool.h>
#include <stdint.h>

/* The file is crash-PID in dir, made when it is needed: $STATE_DIRECTORY (a service's),
 * else mascon in the XDG state directory. version is kept. */
void mc_crash_install(const char *version);
/* Gives the calling thread a stack on which the handler runs, until it ends: without one a
 * stack that overflows leaves no report. mc_thread_run does; once more does nothing. */
void mc_crash_stack(void);
/* Adds a part of the report; at most 8, in their order. ctx stays valid until `drop`. */
void mc_crash_part(void (*tell)(void *ctx), void *ctx);
void mc_crash_drop(void *ctx);

/* Appends text, and a number after it. */
void mc_crash_put(const char *text);
void mc_crash_number(const char *text, uint64_t n);

/* The linker's id of this program, in hex; "unknown" when it has none. */
const char *mc_build_id(void);

#endif
