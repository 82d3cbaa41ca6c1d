/* loop.h - one thread that runs what other threads ring for, and timers.
 *
 * Everything that Lua waits for (tokens, ids, a finished stream, a new request) is a bell:
 * any thread rings it, the loop's thread then calls its fire(). No Lua here.
 *
 * OWNS its thread and queue. A bell belongs to whoever embeds it, in memory that outlives
 * every ring, and is taken out with mc_bell_still before that memory goes.
 * THREAD: mc_bell_ring, mc_loop_load: any; timers and mc_bell_still: the loop's;
 * open and close: one. */
#ifndef MC_LUA_LOOP_H
#define MC_LUA_LOOP_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/err.h"

struct mc_loop;

struct mc_bell {
    struct mc_bell *next;
    struct mc_loop *loop;
    void (*fire)(struct mc_bell *b); /* on the loop's thread, without locks */
    bool queued;                     /* under the loop's lock */
};

struct mc_timer {
    double at; /* CLOCK_MONOTONIC seconds */
    void (*fire)(struct mc_timer *t);
    size_t place; /* in the heap, from 1; 0: not set */
};

/* before and after run on the thread, around its life; either may be NULL. */
int mc_loop_open(const char *name, int (*before)(void *ctx, struct mc_err *err),
                 void (*after)(void *ctx), void *ctx, struct mc_loop **out,
                 struct mc_err *err);
/* Fires what was rung, then ends the thread; rings are ignored from now on. */
void mc_loop_stop(struct mc_loop *l);
void mc_loop_close(struct mc_loop *l);

void mc_bell_init(struct mc_bell *b, struct mc_loop *l, void (*fire)(struct mc_bell *b));
void mc_bell_ring(struct mc_bell *b);
void mc_bell_still(struct mc_bell *b); /* nobody rings it any more */

void mc_timer_set(struct mc_loop *l, struct mc_timer *t, double at); /* or moves it */
void mc_timer_unset(struct mc_loop *l, struct mc_timer *t);

/* Whether the thread has something to do now: for choosing among loops. */
bool mc_loop_busy(struct mc_loop *l);

#endif
