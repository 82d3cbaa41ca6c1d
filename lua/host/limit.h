/* limit.h - limits on Lua code that cannot be caught: leave by a jump.
 *
 * A runaway script is left by siglongjmp from a timer's signal, so that no pcall, error
 * handler or loop in compiled code can hold it. Memory is limited by the same jump in VMs
 * that compile: this LuaJIT crashes now and then when an allocation fails on a trace
 * (LuaJIT issues 52 and 1247), so it never sees one fail. The VM is broken afterwards
 * and must be given up whole (mc_vm_close). THREAD: each thread has its own limit; one is
 * armed at a time. Used by gate.c and by C functions that Lua calls (hold, release).
 *
 * When the jump is allowed. All of these must be true, else the signal looks again 100 us
 * later:
 *   1. a gate is armed on this thread;
 *   2. no C function of ours that has effects outside the VM is running (mc_limit_hold);
 *   3. the interrupted instruction lies in libluajit's text or in no loaded object (then
 *      it is code that LuaJIT compiled).
 * Rule 3 is what makes it sound: LuaJIT throws through libgcc, whose frame look-up holds a
 * process-wide mutex, and os.date takes libc's; a jump out of those would leave the mutex
 * locked for every thread. It also covers our leaf functions and the allocator.
 *
 * TSan holds signals back while uninstrumented code runs: in its builds a second thread
 * sets a hook that jumps, and VMs run without the JIT (MC_LIMIT_BY_HOOK). A loop inside one
 * C library function (string.match) is then not stopped. */
#ifndef MC_LUA_LIMIT_H
#define MC_LUA_LIMIT_H

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/base/err.h"

#if defined(__SANITIZE_THREAD__)
#define MC_LIMIT_BY_HOOK 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MC_LIMIT_BY_HOOK 1
#endif
#endif

struct lua_State;
struct mc_limit;

/* This thread's limit, made at the first call and freed with the thread; NULL with err set
 * when the system refuses the timers or libluajit is not a shared object. */
struct mc_limit *mc_limit_get(struct mc_err *err);

enum { MC_LIMIT_TIME = 1, MC_LIMIT_MEMORY = 2 };

/* The caller does `why = sigsetjmp(*mc_limit_env(l), 0)` in the frame that stays until
 * disarm: 0, or what it was left for. us: CPU time of this thread (wall time under TSan). */
sigjmp_buf *mc_limit_env(struct mc_limit *l);
void mc_limit_arm(struct mc_limit *l, struct lua_State *L, int64_t us);
void mc_limit_disarm(struct mc_limit *l);

/* Leaves from inside the allocator. Returns when no limit is armed on this thread. */
void mc_limit_leave(int why);

/* Around effects outside the VM in a C function called from Lua: never held while anything
 * may raise. Not counted: pairs don't nest. */
void mc_limit_hold(void);
void mc_limit_release(void);

#endif
