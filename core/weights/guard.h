/* guard.h - a mapped file that shrinks, or that the disk can't give, is an error and no
 * crash.
 *
 * Reading a page that its file no longer has raises SIGBUS on the thread that reads. Over
 * a guarded range the handler puts zeros from that page to the range's end, and notes
 * it: the reader goes on and finds no sense or a wrong sum, and who opened the file asks
 * mc_guard_broken before it trusts what was read. THREAD: any; threads must not block
 * SIGBUS (mc_thread_run and mc_thread_start leave it open). */
#ifndef MC_WEIGHTS_GUARD_H
#define MC_WEIGHTS_GUARD_H

#include <stdbool.h>
#include <stddef.h>

struct mc_guard;

/* Guards the n mapped bytes at p; NULL for want of memory. Drop it before the munmap. */
struct mc_guard *mc_guard_new(const void *p, size_t n);
void mc_guard_drop(struct mc_guard *g);
/* A page of it could not be read. */
bool mc_guard_broken(const struct mc_guard *g);

#endif
