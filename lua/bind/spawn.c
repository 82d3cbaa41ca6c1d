/* spawn.c - host.task: waiting, spawned tasks, what a task keeps for its length.
 *
 * OWNS a record for each spawned task, freed when the task has ended and no script holds
 * it. THREAD: the loop's. */
#include "lua/bind/spawn.h"

#include <stdlib.h>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "lua/bind/bind.h"
#include "lua/host/task.h"

static const char TASK[] = "mc.task";

struct spawned {
    struct mc_owned own; /* first; an orphan from the start: it ends with nobody */
    struct mc_task task;
    struct mc_err err; /* code set: how it failed */
    bool ended, freed;
};

static void end_nothing(struct mc_owned *o)
{
    (void)o;
}

static void free_spawned(struct mc_owned *o)
{
    struct spawned *s = (struct spawned *)o;

    s->freed = true;
    if (s->ended)
        free(s);
}

static void on_ended(struct mc_task *t, int rc, const struct mc_err *err)
{
    struct spawned *s = t->user;

    s->ended = true;
    if (rc < 0)
        s->err = *err;
    if (rc < 0 && rc != MC_ECANCEL)
        mc_warn("lua", "a spawned task failed: %s\n%s", err->text, t->tvm->vm->trace);
    mc_task_wake(&s->own.waiter);
    if (s->freed)
        free(s);
}

static int gc(lua_State *L)
{
    struct spawned **at = lua_touserdata(L, 1);

    if (*at)
        mc_disown(&(*at)->own);
    *at = NULL;
    return 0;
}

/* spawn(fn) -> task */
static int l_spawn(lua_State *L)
{
    struct mc_tvm *v = mc_tvm_of(L);
    struct spawned **at, *s;

    luaL_checktype(L, 1, LUA_TFUNCTION);
    mc_bind_room(L);
    lua_settop(L, 1);
    at = lua_newuserdata(L, sizeof *at);
    *at = NULL;
    luaL_getmetatable(L, TASK);
    lua_setmetatable(L, -2);
    s = calloc(1, sizeof *s);
    if (!s)
        return luaL_error(L, "not enough memory");
    s->own.end = end_nothing;
    s->own.free = free_spawned;
    s->ended = true; /* until it is made: the collector may come first */
    s->task.ended = on_ended;
    s->task.user = s;
    s->task.background = true;
    mc_own(v, NULL, &s->own);
    *at = s;
    if (v->now) {
        mc_task_context(L, true);
        s->task.context = luaL_ref(L, LUA_REGISTRYINDEX);
    }
    lua_pushvalue(L, 1);
    mc_task_init(&s->task, v, L, 0);
    s->ended = false;
    return 1;
}

static struct spawned *check(lua_State *L)
{
    return *(struct spawned **)luaL_checkudata(L, 1, TASK);
}

/* ended(task) -> true; true, error; false: not yet, and the running task will be woken */
static int l_ended(lua_State *L)
{
    struct spawned *s = check(L);

    lua_pushboolean(L, s->ended);
    if (!s->ended && !mc_task_wait(mc_tvm_of(L), &s->own.waiter))
        return luaL_error(L, "another task waits for this one");
    if (!s->err.code)
        return 1;
    mc_bind_push_err(L, &s->err);
    return 2;
}

static int l_cancel(lua_State *L)
{
    struct spawned *s = check(L);

    if (&s->task == mc_tvm_of(L)->now)
        return luaL_error(L, "a task can't cancel itself: return");
    if (!s->ended)
        mc_task_kill(&s->task);
    return 0;
}

/* sleep(seconds): the running task is woken then, if it waits */
static int l_sleep(lua_State *L)
{
    double s = luaL_checknumber(L, 1);

    luaL_argcheck(L, s >= 0 && s < 1e9, 1, "seconds");
    mc_task_need(L);
    mc_task_sleep(mc_tvm_of(L), mc_now() + s);
    return 0;
}

/* keep(): what this task has made belongs to the session from now on */
static int l_keep(lua_State *L)
{
    struct mc_tvm *v = mc_tvm_of(L);

    if (v->session)
        mc_scope_move(v->session, &v->now->scope);
    return 0;
}

/* context() -> the running task's table; nil while files load */
static int l_context(lua_State *L)
{
    mc_task_context(L, true);
    return 1;
}

void mc_bind_task(lua_State *L)
{
    static const luaL_Reg none[] = {{NULL, NULL}};
    static const luaL_Reg fns[] = {
        {"sleep", l_sleep}, {"keep", l_keep},     {"context", l_context},
        {"spawn", l_spawn}, {"ended", l_ended},   {"cancel", l_cancel},
        {NULL, NULL},
    };

    mc_bind_type(L, TASK, none, gc);
    mc_bind_table(L, fns);
    lua_pushlightuserdata(L, (void *)&mc_wait_token);
    lua_setfield(L, -2, "token");
    luaL_getmetatable(L, TASK); /* lua/mc/edge.lua puts the methods there */
    lua_setfield(L, -2, "meta");
}
