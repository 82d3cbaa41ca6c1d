/* task.c - tasks and the scopes of what they own. THREAD: the loop's.
 *
 * Always true: a task that does not run waits for a slot, its timer or its start bell; a
 * handle is in exactly one list; Lua runs only in resume, which is called by the loop and
 * never from within a burst (a wake rings). */
#include "lua/host/task.h"

#include <stddef.h>

#include <lauxlib.h>
#include <string.h>

#include "core/base/log.h"
#include "core/tensor/tensor.h"

static const char TVM_KEY; /* registry: the task VM */
const char mc_wait_token;  /* yielded, as a light userdata, by lua/mc/wait.lua */

/* ---- handles ----------------------------------------------------------------------- */

static void link_owned(struct mc_owned **list, struct mc_owned *o)
{
    o->next = *list;
    o->at = list;
    if (o->next)
        o->next->at = &o->next;
    *list = o;
}

static void unlink_owned(struct mc_owned *o)
{
    *o->at = o->next;
    if (o->next)
        o->next->at = o->at;
    o->at = NULL;
}

bool mc_own_room(const struct mc_tvm *v)
{
    return v->n_owned < MC_OWNED_MAX;
}

void mc_own(struct mc_tvm *v, struct mc_scope *s, struct mc_owned *o)
{
    o->tvm = v;
    v->n_owned++;
    link_owned(s ? &s->first : &v->orphans, o);
}

void mc_orphan(struct mc_owned *o)
{
    unlink_owned(o);
    link_owned(&o->tvm->orphans, o);
}

void mc_disown(struct mc_owned *o)
{
    unlink_owned(o);
    o->tvm->n_owned--;
    o->end(o);
    o->free(o);
}

void mc_scope_end(struct mc_scope *s)
{
    struct mc_owned *o;

    while ((o = s->first)) {
        mc_orphan(o);
        o->end(o);
    }
}

void mc_scope_move(struct mc_scope *to, struct mc_scope *from)
{
    struct mc_owned *o;

    while ((o = from->first)) {
        unlink_owned(o);
        link_owned(&to->first, o);
    }
}

void mc_scope_interrupt(struct mc_scope *s, const struct mc_task *t)
{
    struct mc_owned *o, *next;

    for (o = s->first; o; o = next) {
        next = o->next;
        if (o->waiter == t)
            o->end(o);
    }
}

/* ---- the VM ------------------------------------------------------------------------ */

static int set_tvm(lua_State *L)
{
    struct mc_tvm *v = lua_touserdata(L, 1);

    lua_pushlightuserdata(L, (void *)&TVM_KEY);
    lua_pushlightuserdata(L, v);
    lua_rawset(L, LUA_REGISTRYINDEX);
    return 0;
}

struct mc_tvm *mc_tvm_of(lua_State *L)
{
    struct mc_tvm *v;

    lua_pushlightuserdata(L, (void *)&TVM_KEY);
    lua_rawget(L, LUA_REGISTRYINDEX);
    v = lua_touserdata(L, -1);
    lua_pop(L, 1);
    return v;
}

int mc_tvm_init(struct mc_tvm *v, struct mc_vm *vm, struct mc_loop *loop,
                struct mc_server *server, const struct mc_burst *burst)
{
    memset(v, 0, sizeof *v);
    v->vm = vm;
    v->loop = loop;
    v->server = server;
    v->burst = *burst;
    return mc_vm_protect(vm, set_tvm, v, NULL);
}

void mc_tvm_fini(struct mc_tvm *v)
{
    struct mc_owned *o;

    v->idle = NULL;
    while (v->first)
        mc_task_kill(v->first);
    if (v->vm && !v->vm->lost) {
        mc_vm_close(v->vm); /* runs the finalizers: mc_disown */
        v->vm = NULL;
    }
    while ((o = v->orphans))
        mc_disown(o);
    mc_vm_close(v->vm);
    v->vm = NULL;
    mc_account_close(v->account);
    v->account = NULL;
}

/* ---- tasks ------------------------------------------------------------------------- */

static void stop_waiting(struct mc_task *t)
{
    if (t->waits)
        *t->waits = NULL;
    t->waits = NULL;
    mc_timer_unset(t->tvm->loop, &t->timer);
}

/* Drops the coroutine; after it ran out of memory collects what it held. */
struct dropped {
    int ref, context;
    bool full;
};

static int drop_coroutine(lua_State *L)
{
    const struct dropped *d = lua_touserdata(L, 1);

    luaL_unref(L, LUA_REGISTRYINDEX, d->ref);
    luaL_unref(L, LUA_REGISTRYINDEX, d->context ? d->context : LUA_NOREF);
    if (d->full)
        lua_gc(L, LUA_GCCOLLECT, 0);
    return 0;
}

/* rc as for ended, which may free t; idle may free v. */
static void end(struct mc_task *t, int rc, const struct mc_err *err)
{
    struct mc_tvm *v = t->tvm;
    struct dropped d = {t->ref, t->context, rc == MC_ENOMEM};

    stop_waiting(t);
    mc_bell_still(&t->start);
    mc_scope_end(&t->scope);
    *t->at = t->next;
    if (t->next)
        t->next->at = t->at;
    v->n_task--;
    v->n_front -= !t->background;
    mc_task_wake(&t->joiner);
    t->ended(t, rc, err);
    if (v->vm->lost)
        return;
    mc_vm_protect(v->vm, drop_coroutine, &d, NULL);
    if (v->n_front == 0 && v->idle)
        v->idle(v);
}

static void lose(struct mc_tvm *v, const struct mc_err *err)
{
    mc_error("lua", "a task VM is given up: %s", err->text);
    while (v->first)
        end(v->first, MC_EBUDGET, err);
    if (v->lost)
        v->lost(v);
}

static bool is_wait(lua_State *co)
{
    return lua_gettop(co) >= 1 && lua_touserdata(co, -1) == (void *)&mc_wait_token;
}

/* The first time with the arguments below the function's place, then with nothing. */
static void resume(struct mc_task *t)
{
    struct mc_tvm *v = t->tvm;
    struct mc_err err = {0};
    int rc;

    stop_waiting(t);
    v->now = t;
    rc = mc_burst_resume(v->vm, t->co, t->n_arg, &v->burst, &err);
    v->now = NULL;
    t->n_arg = 0;
    if (v->vm->lost) {
        lose(v, &err);
        return;
    }
    if (rc == 1 && t->finish)
        rc = mc_fail(&err, MC_ECANCEL, "finished");
    else if (rc == 1 && !is_wait(t->co))
        rc = mc_fail(&err, MC_EPOLICY, "yield outside a coroutine of the script's own");
    if (rc == 1)
        lua_settop(t->co, 0);
    else
        end(t, rc, &err);
}

static void on_start(struct mc_bell *b)
{
    resume((struct mc_task *)((char *)b - offsetof(struct mc_task, start)));
}

static void on_timer(struct mc_timer *timer)
{
    resume((struct mc_task *)((char *)timer - offsetof(struct mc_task, timer)));
}

void mc_task_init(struct mc_task *t, struct mc_tvm *v, lua_State *L, int n_arg)
{
    lua_State *co = lua_newthread(L);

    t->ref = luaL_ref(L, LUA_REGISTRYINDEX);
    lua_xmove(L, co, n_arg + 1);
    t->tvm = v;
    t->co = co;
    t->n_arg = n_arg;
    t->timer = (struct mc_timer){.fire = on_timer};
    mc_bell_init(&t->start, v->loop, on_start);
    t->next = v->first;
    t->at = &v->first;
    if (t->next)
        t->next->at = &t->next;
    v->first = t;
    v->n_task++;
    v->n_front += !t->background;
    mc_bell_ring(&t->start);
}

void mc_task_context(lua_State *L, bool make)
{
    struct mc_task *t = mc_tvm_of(L)->now;

    if (!t) {
        lua_pushnil(L);
        return;
    }
    if (!t->context && make) {
        lua_newtable(L);
        t->context = luaL_ref(L, LUA_REGISTRYINDEX);
    }
    if (t->context)
        lua_rawgeti(L, LUA_REGISTRYINDEX, t->context);
    else
        lua_pushnil(L);
}

struct mc_task *mc_task_need(lua_State *L)
{
    struct mc_task *t = mc_tvm_of(L)->now;

    if (!t)
        luaL_error(L,
                   "what waits is for requests, tasks and sessions: not for a file's top "
                   "level, init or tests");
    return t;
}

void mc_task_kill(struct mc_task *t)
{
    struct mc_err err;

    mc_fail(&err, MC_ECANCEL, "cancelled");
    end(t, MC_ECANCEL, &err);
}

bool mc_task_wait(struct mc_tvm *v, struct mc_task **slot)
{
    if (*slot && *slot != v->now)
        return false;
    stop_waiting(v->now);
    *slot = v->now;
    v->now->waits = slot;
    return true;
}

void mc_task_unwait(struct mc_tvm *v)
{
    stop_waiting(v->now);
}

void mc_task_sleep(struct mc_tvm *v, double at)
{
    stop_waiting(v->now);
    mc_timer_set(v->loop, &v->now->timer, at);
}

void mc_task_wake(struct mc_task **slot)
{
    struct mc_task *t = *slot;

    if (!t)
        return;
    stop_waiting(t);
    mc_bell_ring(&t->start);
}
