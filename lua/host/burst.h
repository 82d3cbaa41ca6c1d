/* burst.h - runs a coroutine until it waits or ends, within a budget.
 *
 * For edge and REPL VMs, which run in the interpreter. Three lines of defence: a count
 * hook that raises once the budget is spent, and at every instruction from then on, so
 * that no pcall holds it; the same when somebody interrupts; and, for a C library function
 * that runs no hook, the limit of limit.h, which leaves the VM and loses it.
 * THREAD: the VM's; `interrupt` may be set by any. */
#ifndef MC_LUA_BURST_H
#define MC_LUA_BURST_H

#include <stdatomic.h>
#include <stdint.h>

#include "lua/host/vm.h"

struct mc_burst {
    int64_t soft_us; /* CPU time; longer is logged; 0: never */
    int64_t hard_us; /* CPU time; 0: no budget */
    int64_t lose_us; /* CPU time after which the VM is given up; 0: never */
    atomic_bool *interrupt; /* may be NULL; cleared by whoever set it */
};

/* Resumes co with the n_arg values on its stack. Returns
 *   1  it yielded; 0  it returned; the values are on co's stack
 *   MC_EPOLICY, MC_ENOMEM, MC_EBUDGET (over hard_us), MC_ECANCEL (interrupted): err->text
 *   says where, vm->trace how it got there; co's top is the error value
 *   MC_EBUDGET, MC_ENOMEM with vm->lost: given up. */
int mc_burst_resume(struct mc_vm *vm, lua_State *co, int n_arg, const struct mc_burst *b,
                    struct mc_err *err);

/* The allocator's word that the VM of this thread's burst has little left: at the next
 * instruction it collects, and ends the burst with MC_ENOMEM when that does not help. To let
 * an allocation fail is not safe: LuaJIT's fast functions (tostring of a number) leave the
 * stack's top stale, and the error's text is written over whatever is there. */
void mc_burst_short(struct mc_vm *vm);

#endif
