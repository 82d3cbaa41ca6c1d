/* burst.c - the budget of edge and REPL VMs.
 *
 * OWNS nothing but a thread-local record of the burst that runs. THREAD: the VM's.
 * Always true: between bursts the hook counts HOOK_EVERY instructions and, with no burst
 * recorded, does nothing. */
#include "lua/host/burst.h"

#include <lauxlib.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/base/log.h"
#include "lua/host/arena.h"
#include "lua/host/gate.h"
#include "lua/host/limit.h"

enum { HOOK_EVERY = 10000 }; /* VM instructions: about 0.1 ms of interpreted code */

static __thread const struct mc_burst *burst;
static __thread int64_t burst_start;
static __thread bool burst_short;      /* of memory, and not collected since */
static __thread int burst_over;        /* 0, or the code that the hook raises for */
static __thread char burst_place[320]; /* where it was first raised: a pcall may hide that */

static int64_t cpu_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000ll + t.tv_nsec / 1000;
}

static void hook(lua_State *L, lua_Debug *ar);

/* The innermost line of a script: what it called of ours may be where the count ran out. */
static void find_line(lua_State *L, lua_Debug *ar)
{
    lua_Debug up;
    int level;

    lua_getinfo(L, "Sl", ar);
    for (level = 0; lua_getstack(L, level, &up); level++) {
        lua_getinfo(L, "Sl", &up);
        if (up.currentline > 0 && strncmp(up.source, "@lua/", 5) != 0) {
            *ar = up;
            return;
        }
    }
}

/* What a burst has left free once more, or its end. */
static void collect(lua_State *L, lua_Debug *ar)
{
    struct mc_vm *vm = mc_vm_of(L);

    burst_short = false;
    lua_sethook(L, hook, LUA_MASKCOUNT, HOOK_EVERY);
    lua_gc(L, LUA_GCCOLLECT, 0);
    if (mc_arena_used(vm->arena) < mc_arena_cap(vm->arena) / 4 * 3)
        return;
    burst_over = MC_ENOMEM;
    lua_sethook(L, hook, LUA_MASKCOUNT, 1);
    find_line(L, ar);
    snprintf(burst_place, sizeof burst_place, "%s:%d: not enough memory in this Lua VM",
             ar->short_src, ar->currentline);
}

void mc_burst_short(struct mc_vm *vm)
{
    if (!burst || burst_over || burst_short)
        return;
    burst_short = true;
    lua_sethook(vm->L, hook, LUA_MASKCOUNT, 1);
}

static void hook(lua_State *L, lua_Debug *ar)
{
    if (!burst)
        return;
    if (burst_short && !burst_over) {
        collect(L, ar);
        if (!burst_over)
            return;
    }
    if (!burst_over) {
        if (burst->interrupt &&
            atomic_load_explicit(burst->interrupt, memory_order_relaxed))
            burst_over = MC_ECANCEL;
        else if (burst->hard_us && cpu_us() - burst_start > burst->hard_us)
            burst_over = MC_EBUDGET;
        else
            return;
        lua_sethook(L, hook, LUA_MASKCOUNT, 1);
        find_line(L, ar);
        if (burst_over == MC_ECANCEL)
            snprintf(burst_place, sizeof burst_place, "%s:%d: interrupted", ar->short_src,
                     ar->currentline);
        else
            snprintf(burst_place, sizeof burst_place,
                     "%s:%d: ran for more than %d ms without waiting", ar->short_src,
                     ar->currentline, (int)(burst->hard_us / 1000));
    }
    luaL_error(L, "%s", burst_place);
}

/* Error value at co's top to text; the trace is of co. May raise: under mc_vm_protect. */
static int explain(lua_State *L)
{
    lua_State *co = lua_touserdata(L, 1);
    struct mc_vm *vm = mc_vm_of(L);

    lua_settop(L, 0);
    lua_pushcfunction(L, mc_gate_handler);
    lua_pushvalue(co, -1);
    lua_xmove(co, L, 1);
    lua_call(L, 1, 0);
    luaL_traceback(L, co, NULL, 0);
    snprintf(vm->trace, sizeof vm->trace, "%s", lua_tostring(L, -1));
    return 0;
}

static int failed(struct mc_vm *vm, lua_State *co, int rc, struct mc_err *err)
{
    if (rc == LUA_ERRMEM)
        return mc_fail(err, MC_ENOMEM, "not enough memory in this Lua VM");
    if (mc_vm_protect(vm, explain, co, err) < 0 && !vm->text[0])
        return err->code;
    if (burst_over)
        return mc_fail(err, burst_over, "%s", burst_place);
    return mc_fail(err, MC_EPOLICY, "%s",
                   vm->text[0] ? vm->text : "error in error handling");
}

int mc_burst_resume(struct mc_vm *vm, lua_State *co, int n_arg, const struct mc_burst *b,
                    struct mc_err *err)
{
    struct mc_limit *l = b->lose_us ? mc_limit_get(err) : NULL;
    int64_t spent;
    int rc, why, code = 0;

    if (b->lose_us && !l)
        return MC_EINTERNAL;
    vm->text[0] = 0;
    vm->trace[0] = 0;
    burst = b;
    burst_over = 0;
    burst_short = false;
    burst_start = cpu_us();
    why = l ? sigsetjmp(*mc_limit_env(l), 0) : 0;
    if (why) {
        mc_limit_disarm(l);
        burst = NULL;
        vm->lost = true;
        if (why == MC_LIMIT_MEMORY)
            return mc_fail(err, MC_ENOMEM,
                           "not enough memory in this Lua VM: it is given up");
        return mc_fail(err, MC_EBUDGET, "a library function ran for more than %d ms",
                       (int)(b->lose_us / 1000));
    }
    lua_sethook(vm->L, hook, LUA_MASKCOUNT, HOOK_EVERY);
    if (l)
        mc_limit_arm(l, vm->L, b->lose_us);
    rc = lua_resume(co, n_arg);
    if (rc != 0 && rc != LUA_YIELD)
        code = failed(vm, co, rc, err); /* in the burst: an error's __tostring is a script */
    if (l)
        mc_limit_disarm(l);
    burst = NULL;
    spent = cpu_us() - burst_start;
    if (b->soft_us && spent > b->soft_us)
        mc_info("lua", "a handler ran for %d ms without waiting", (int)(spent / 1000));
    return rc == LUA_YIELD ? 1 : code;
}
