/* gate.h - the one gate by which C calls Lua: protected, traced, limited.
 *
 * THREAD: the VM's. A call may be left by a jump when it runs over its budget: nothing of
 * the caller's may be half done in a way that Lua code below could see. */
#ifndef MC_LUA_GATE_H
#define MC_LUA_GATE_H

#include <stdint.h>

#include "lua/host/vm.h"

/* CPU time of the calling thread, in microseconds. */
enum {
#ifdef MC_SANITIZE
    MC_GATE_HOOK_US = 500000,
#else
    MC_GATE_HOOK_US = 50000, /* a step hook: decode of others never stalls over 250 ms */
#endif
    MC_GATE_LOAD_US = 5000000, /* a file's top level, init, tests: on the builder */
};

/* Like lua_pcall: the function and n_arg arguments are on the stack of vm->L; n_result
 * values replace them. Needs no memory before the call. After a failure the stack is as
 * it was without function and arguments.
 *   MC_EPOLICY  an error: err->text is its text, "file:line: ..." when it had a place;
 *               vm->trace the traceback
 *   MC_ENOMEM   the VM's memory is used up: close it soon; vm->lost is set if it compiles
 *   MC_EBUDGET  it ran over its budget; vm->lost is set */
int mc_gate_call(struct mc_vm *vm, int n_arg, int n_result, int64_t budget_us,
                 struct mc_err *err);

/* The message handler at the bottom of every VM's stack: any error value to vm->text. */
int mc_gate_handler(lua_State *L);

#endif
