/* fence.c - host.tensor's fence and passed: what is queued, awaited by a task.
 *
 * OWNS the fences. THREAD: the loop's, save on_passed (the pool's). Always true: a fence
 * that is armed outlives its firing: it is disarmed before its memory goes. */
#include "lua/bind/fence.h"

#include <stdlib.h>

#include "core/tensor/tensor.h"
#include "lua/bind/bind.h"
#include "lua/bind/tensor.h"
#include "lua/host/task.h"

static const char FENCE[] = "mc.fence";

struct fence {
    struct mc_owned own;
    struct mc_tensors *ts;
    struct mc_fence f;
    struct mc_bell bell;
};

static void on_bell(struct mc_bell *b)
{
    struct fence *f = (struct fence *)((char *)b - offsetof(struct fence, bell));

    mc_task_wake(&f->own.waiter);
}

static void on_passed(void *ctx)
{
    mc_bell_ring(&((struct fence *)ctx)->bell);
}

static void end_fence(struct mc_owned *o)
{
    struct fence *f = (struct fence *)o;

    mc_fence_disarm(f->ts, &f->f);
    mc_bell_still(&f->bell);
    mc_task_wake(&f->own.waiter);
}

/* fence() -> for passed: all that is queued now. Or nil and an error */
static int l_fence(lua_State *L)
{
    struct mc_account *a = mc_tensor_account_of(L);
    struct mc_tvm *v = mc_tvm_of(L);
    struct fence *f;

    if (!a)
        return 2;
    f = mc_bind_own(L, FENCE, sizeof *f, end_fence);
    f->ts = mc_account_pool(a);
    mc_bell_init(&f->bell, v->loop, on_bell);
    mc_fence_arm(f->ts, &f->f, on_passed, f);
    return 1;
}

/* passed(fence) -> true; false: not yet, and the running task will be woken; nil and the
 * error that stopped the queue */
static int l_passed(lua_State *L)
{
    struct fence *f = *(struct fence **)luaL_checkudata(L, 1, FENCE);
    struct mc_err err;
    int rc = f ? mc_tensors_failed(f->ts) : 0;

    if (!f) {
        lua_pushboolean(L, 1);
        return 1;
    }
    if (rc < 0) {
        mc_fail(&err, rc, "tensors' work failed: %s", mc_code_text(rc));
        return mc_bind_fail(L, &err);
    }
    if (!mc_task_wait(mc_tvm_of(L), &f->own.waiter))
        return luaL_error(L, "another task waits for this");
    lua_pushboolean(L, mc_fence_passed(f->ts, &f->f));
    if (lua_toboolean(L, -1)) {
        mc_task_unwait(mc_tvm_of(L));
        mc_bind_disown(L);
    }
    return 1;
}

void mc_bind_fence(lua_State *L)
{
    static const luaL_Reg none[] = {{NULL, NULL}};

    mc_bind_type(L, FENCE, none, mc_bind_disown);
    lua_pushcfunction(L, l_fence);
    lua_setfield(L, -2, "fence");
    lua_pushcfunction(L, l_passed);
    lua_setfield(L, -2, "passed");
}
