/* fiber.h - stacks that are switched by hand: what a CUDA thread runs on.
 *
 * A fiber runs entry(arg) on its own guarded stack; entry never returns. The sanitizers
 * are told of every switch. OWNS: a fiber its stack. THREAD: a fiber stays on the thread
 * that first ran it; the home fiber is that thread's own stack. */
#ifndef MC_EMU_FIBER_H
#define MC_EMU_FIBER_H

#include <stdbool.h>
#include <stddef.h>

struct fiber {
    void *sp;            /* where it was left */
    char *stack;         /* NULL: the home fiber */
    size_t bytes;
    void (*entry)(void *arg);
    void *arg;
    void *asan, *tsan;   /* what the sanitizers keep of it */
    const void *home_at; /* the home stack, as ASan has it */
    size_t home_bytes;
};

bool fiber_new(struct fiber *f, void (*entry)(void *arg), void *arg);
void fiber_free(struct fiber *f);
void fiber_home(struct fiber *f); /* makes f the running thread's own stack */
/* Begins again at entry when next switched to: for fibers that were abandoned. */
void fiber_reset(struct fiber *f);
/* Leaves `from`, which runs, and continues `to`. */
void fiber_switch(struct fiber *from, struct fiber *to);
bool fiber_has(const struct fiber *f, const void *p); /* p lies on its stack */

#endif
