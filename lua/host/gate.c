/* gate.c - lua_pcall with a limit, and error values of any kind made text.
 *
 * Owns nothing. THREAD: the VM's.
 * Always true: an error's text is copied out of the VM before anything else is tried with
 * it, so what goes wrong while tracing costs the trace and not the text. */
#include "lua/host/gate.h"

#include <lauxlib.h>
#include <stdio.h>
#include <string.h>

#include "lua/host/arena.h"
#include "lua/host/limit.h"

/* One line, no control bytes: it goes to logs and clients. */
static void copy_line(char *dst, size_t cap, const char *src, size_t n)
{
    size_t i = 0;

    for (; i < n && i + 1 < cap; i++)
        dst[i] = (unsigned char)src[i] < 0x20 || src[i] == 0x7F ? ' ' : src[i];
    dst[i] = 0;
}

/* Pushes the text of the error value at 1: a string's own, a table's message field (the
 * error objects of mc.*) or __tostring; nil when it has none of these. */
static void push_text(lua_State *L)
{
    if (lua_type(L, 1) == LUA_TSTRING || lua_type(L, 1) == LUA_TNUMBER) {
        lua_pushvalue(L, 1);
        lua_tostring(L, -1);
        return;
    }
    if (lua_istable(L, 1)) {
        lua_pushliteral(L, "message");
        lua_rawget(L, 1);
        if (lua_type(L, -1) == LUA_TSTRING)
            return;
        lua_pop(L, 1);
    }
    if (luaL_getmetafield(L, 1, "__tostring")) {
        lua_pushvalue(L, 1);
        if (lua_pcall(L, 1, 1, 0) == 0 && lua_type(L, -1) == LUA_TSTRING)
            return;
        lua_pop(L, 1);
    }
    lua_pushnil(L);
}

int mc_gate_handler(lua_State *L)
{
    struct mc_vm *vm = mc_vm_of(L);
    const char *s;
    size_t n;

    lua_settop(L, 1);
    push_text(L);
    s = lua_tolstring(L, -1, &n);
    if (s)
        copy_line(vm->text, sizeof vm->text, s, n);
    else
        snprintf(vm->text, sizeof vm->text, "(error object is a %s value)",
                 luaL_typename(L, 1));
    luaL_traceback(L, L, NULL, 1);
    s = lua_tolstring(L, -1, &n);
    snprintf(vm->trace, sizeof vm->trace, "%s", s);
    return 1;
}

static int no_memory(const struct mc_vm *vm, struct mc_err *err)
{
    return mc_fail(err, MC_ENOMEM, "not enough memory: the VM's %zu MB are used up",
                   mc_arena_cap(vm->arena) >> 20);
}

int mc_gate_call(struct mc_vm *vm, int n_arg, int n_result, int64_t budget_us,
                 struct mc_err *err)
{
    struct mc_limit *l = mc_limit_get(err);
    int rc, why;

    if (!l) {
        lua_pop(vm->L, n_arg + 1);
        return MC_EINTERNAL;
    }
    vm->text[0] = 0;
    vm->trace[0] = 0;
#ifdef MC_SANITIZE
    lua_gc(vm->L, LUA_GCCOLLECT, 0); /* what is not held by a reference goes early */
#endif
    why = sigsetjmp(*mc_limit_env(l), 0);
    if (why) {
        mc_limit_disarm(l);
        vm->lost = why == MC_LIMIT_TIME ? MC_EBUDGET : MC_ENOMEM;
        if (why == MC_LIMIT_TIME)
            return mc_fail(err, MC_EBUDGET, "ran over its %d ms",
                           (int)(budget_us / 1000));
        return no_memory(vm, err);
    }
    mc_limit_arm(l, vm->L, budget_us);
    rc = lua_pcall(vm->L, n_arg, n_result, MC_VM_STACK_TOP);
    mc_limit_disarm(l);
    if (rc == 0)
        return 0;
    lua_pop(vm->L, 1);
    if (rc == LUA_ERRMEM)
        return no_memory(vm, err);
    return mc_fail(err, MC_EPOLICY, "%s",
                   vm->text[0] ? vm->text : "error in error handling");
}
