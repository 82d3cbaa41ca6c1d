/* vm.h - one Lua VM: a state in an arena of its own, with a script environment.
 *
 * OWNS the lua_State and its arena. THREAD: one at a time; a VM may be made on one thread
 * and used on another. Only gate.c runs Lua code in it.
 *
 * Two worlds live in a VM. Trusted modules (lua/mc, embedded in the binary) see the real
 * globals, ffi and debug among them, and `require "mc.x"`. Scripts see the allow-list of
 * env.c and nothing else. The stack's first slot holds the gate's message handler. */
#ifndef MC_LUA_VM_H
#define MC_LUA_VM_H

#include <lua.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/base/err.h"
#include "lua/host/env.h"

enum { MC_VM_MEM = 64 << 20, MC_VM_STACK_TOP = 1 };

struct mc_vm {
    lua_State *L;
    struct mc_arena *arena;
    enum mc_env_mode mode;
    bool jit;
    int lost;          /* the code of why it was left by a jump, else 0: nothing may run in
                          it any more, only mc_vm_close */
    char text[240];    /* the last error's text and where it came from, made by the */
    char trace[1024];  /* message handler; "" when it was not reached */
    char at[80];       /* with mc_vm_follow: file:line of the last line begun */
};

/* mem: bytes, 0 for MC_VM_MEM. jit: it will compile, from mc_vm_compile on (never where
 * the limit works by a hook). */
struct mc_vm *mc_vm_new(enum mc_env_mode mode, size_t mem, bool jit, struct mc_err *err);
/* Closes the state, or drops it with its arena when it is lost. NULL is accepted. What
 * LuaJIT compiled stays mapped after a drop: libgcc's unwind tables point into it. */
void mc_vm_close(struct mc_vm *vm);
struct mc_vm *mc_vm_of(lua_State *L);

/* Runs fn(L) protected, outside any budget: for the host's own set-up, which may run out
 * of memory. fn starts with an empty stack and arg as a light userdata; what it leaves is
 * gone. */
int mc_vm_protect(struct mc_vm *vm, lua_CFunction fn, void *arg, struct mc_err *err);

/* For functions under mc_vm_protect; they raise. */
void mc_vm_push_module(lua_State *L, const char *name); /* "mc.step"; runs it once */
/* Makes the value at the top, which is popped, what `require name` gives. */
void mc_vm_set_module(lua_State *L, const char *name);
struct mc_generation;
void mc_vm_push_tested(lua_State *L, struct mc_generation *g); /* (file, name, error); nil */
struct mc_choice;
void mc_vm_push_choice(lua_State *L, const struct mc_choice *c); /* {kind, name}, or nil */
/* Compiles a script and gives it the environment at index env. name: "sched.lua". Text
 * only: a binary chunk is refused. */
void mc_vm_push_script(lua_State *L, const char *name, const char *text, size_t n,
                       int env);

/* Turns the compiler on, if the VM was made with one: after the host's own set-up, which is
 * left by errors and not by jumps. */
void mc_vm_compile(struct mc_vm *vm);

/* Notes every line that begins in vm->at: to find where a script ran away. JIT must be
 * off. */
void mc_vm_follow(struct mc_vm *vm);

#endif
