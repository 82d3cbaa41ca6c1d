/* vm.c - making and ending a VM; trusted modules; compiling scripts.
 *
 * Owns what a struct mc_vm holds. THREAD: the VM's.
 * Always true: every call that may raise is under mc_vm_protect or the gate, so the panic
 * handler is never reached; the allocator's user data is the mc_vm. */
#include "lua/host/vm.h"

#include <lauxlib.h>
#include <luajit.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "lua/host/arena.h"
#include "lua/host/embed.h"
#include "lua/host/burst.h"
#include "lua/host/gate.h"
#include "lua/host/generation.h"
#include "lua/host/limit.h"

/* Registry keys: name -> value of each trusted module; the gate's message handler. */
static char modules_key, handler_key;

static void *vm_alloc(void *ud, void *p, size_t old, size_t n)
{
    struct mc_vm *vm = ud;
    void *q = mc_arena_realloc(vm->arena, p, n);
    bool bursts = vm->mode != MC_ENV_STEP;
    size_t cap = mc_arena_cap(vm->arena);

    if (bursts && n > old && mc_arena_used(vm->arena) > cap - cap / 8)
        mc_burst_short(vm);
    /* compiled code can't be left by an error, nor can fast functions (burst.h), which take
     * little: what takes much is a C function, and has its error */
    if (!q && n > 0 && (vm->jit || (bursts && n < cap / 64)))
        mc_limit_leave(MC_LIMIT_MEMORY);
    return q;
}

struct mc_vm *mc_vm_of(lua_State *L)
{
    void *ud;

    lua_getallocf(L, &ud);
    return ud;
}

static int panic(lua_State *L)
{
    const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "?";

    mc_error("lua", "error outside the gate: %s", text);
    abort();
}

static const struct mc_embed *find_embedded(const char *path)
{
    for (const struct mc_embed *e = mc_embedded; e->path; e++)
        if (strcmp(e->path, path) == 0)
            return e;
    return NULL;
}

static int require(lua_State *L)
{
    mc_vm_push_module(L, luaL_checkstring(L, 1));
    return 1;
}

void mc_vm_push_module(lua_State *L, const char *name)
{
    const struct mc_embed *e;
    char path[64];

    lua_pushlightuserdata(L, &modules_key);
    lua_rawget(L, LUA_REGISTRYINDEX);
    lua_getfield(L, -1, name);
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        snprintf(path, sizeof path, "lua/%s.lua", name);
        for (char *p = path + 4; *p && strcmp(p, ".lua"); p++)
            if (*p == '.')
                *p = '/';
        e = find_embedded(path);
        if (!e)
            luaL_error(L, "no module '%s' in this program", name);
        lua_pushfstring(L, "@%s", path);
        if (luaL_loadbuffer(L, e->text, e->n, lua_tostring(L, -1)))
            lua_error(L);
        lua_remove(L, -2);
        lua_call(L, 0, 1);
        lua_pushvalue(L, -1);
        lua_setfield(L, -3, name);
    }
    lua_remove(L, -2);
}

void mc_vm_set_module(lua_State *L, const char *name)
{
    lua_pushlightuserdata(L, &modules_key);
    lua_rawget(L, LUA_REGISTRYINDEX);
    lua_insert(L, -2);
    lua_setfield(L, -2, name);
    lua_pop(L, 1);
}

static int l_tested(lua_State *L)
{
    struct mc_generation *g = lua_touserdata(L, lua_upvalueindex(1));
    const char *file = luaL_checkstring(L, 1), *name = luaL_checkstring(L, 2);
    const char *error = luaL_optstring(L, 3, NULL);

    mc_limit_hold();
    g->tested(g->tested_ctx, file, name, error);
    mc_limit_release();
    return 0;
}

void mc_vm_push_tested(lua_State *L, struct mc_generation *g)
{
    if (!g->tested) {
        lua_pushnil(L);
        return;
    }
    lua_pushlightuserdata(L, g);
    lua_pushcclosure(L, l_tested, 1);
}

void mc_vm_push_choice(lua_State *L, const struct mc_choice *c)
{
    if (!*c->kind) {
        lua_pushnil(L);
        return;
    }
    lua_createtable(L, 0, 2);
    lua_pushstring(L, c->kind);
    lua_setfield(L, -2, "kind");
    lua_pushstring(L, c->name);
    lua_setfield(L, -2, "name");
}

void mc_vm_push_script(lua_State *L, const char *name, const char *text, size_t n,
                       int env)
{
    if (n > 0 && text[0] == LUA_SIGNATURE[0])
        luaL_error(L, "%s: binary chunk refused", name);
    lua_pushvalue(L, env);
    lua_pushfstring(L, "@%s", name);
    if (luaL_loadbuffer(L, text, n, lua_tostring(L, -1)))
        lua_error(L);
    lua_insert(L, -3);
    lua_pop(L, 1);
    lua_setfenv(L, -2);
}

int mc_vm_protect(struct mc_vm *vm, lua_CFunction fn, void *arg, struct mc_err *err)
{
    int rc = lua_cpcall(vm->L, fn, arg);

    if (rc == 0)
        return 0;
    if (rc == LUA_ERRMEM)
        mc_fail(err, MC_ENOMEM, "a Lua VM's %zu MB are used up",
                mc_arena_cap(vm->arena) >> 20);
    else
        mc_fail(err, MC_EPOLICY, "%s",
                lua_type(vm->L, -1) == LUA_TSTRING ? lua_tostring(vm->L, -1) : "error");
    lua_pop(vm->L, 1);
    return rc == LUA_ERRMEM ? MC_ENOMEM : MC_EPOLICY;
}

static int open_state(lua_State *L)
{
    if (mc_vm_of(L)->jit) {
        lua_pushcfunction(L, luaopen_jit);
        lua_call(L, 0, 0);
        luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);
    }
    mc_env_open(L);
    if (mc_vm_of(L)->jit)
        mc_env_plain_next(L);
    lua_pushlightuserdata(L, &modules_key);
    lua_newtable(L);
    lua_rawset(L, LUA_REGISTRYINDEX);
    lua_pushcfunction(L, require);
    lua_setglobal(L, "require");
    lua_pushlightuserdata(L, &handler_key);
    lua_pushcfunction(L, mc_gate_handler);
    lua_rawset(L, LUA_REGISTRYINDEX);
    return 0;
}

/* The handler's place at the bottom of the stack; takes no memory. */
static void push_handler(lua_State *L)
{
    lua_pushlightuserdata(L, &handler_key);
    lua_rawget(L, LUA_REGISTRYINDEX);
}

struct mc_vm *mc_vm_new(enum mc_env_mode mode, size_t mem, bool jit, struct mc_err *err)
{
    struct mc_vm *vm = calloc(1, sizeof *vm);

    if (!vm)
        goto nomem;
#ifdef MC_LIMIT_BY_HOOK
    jit = false;
#endif
    vm->mode = mode;
    vm->jit = jit;
    vm->arena = mc_arena_new(mem ? mem : MC_VM_MEM);
    if (!vm->arena)
        goto nomem;
    vm->L = lua_newstate(vm_alloc, vm);
    if (!vm->L)
        goto nomem;
    lua_atpanic(vm->L, panic);
    if (mc_vm_protect(vm, open_state, NULL, err) < 0)
        goto fail;
    push_handler(vm->L);
    return vm;
nomem:
    mc_fail(err, MC_ENOMEM, "no memory for a Lua VM");
fail:
    mc_vm_close(vm);
    return NULL;
}

void mc_vm_close(struct mc_vm *vm)
{
    if (!vm)
        return;
    if (vm->L && !vm->lost)
        lua_close(vm->L);
    mc_arena_release(vm->arena);
    free(vm);
}

void mc_vm_compile(struct mc_vm *vm)
{
    if (vm->jit)
        luaJIT_setmode(vm->L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_ON);
}

static void on_line(lua_State *L, lua_Debug *ar)
{
    struct mc_vm *vm = mc_vm_of(L);

    if (lua_getinfo(L, "S", ar) && strncmp(ar->source, "@lua/", 5) != 0)
        snprintf(vm->at, sizeof vm->at, "%s:%d", ar->short_src, ar->currentline);
}

void mc_vm_follow(struct mc_vm *vm)
{
    lua_sethook(vm->L, on_line, LUA_MASKLINE, 0);
}
