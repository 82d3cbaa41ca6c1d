/* task.h - tasks: coroutines that wait, and what they own while they live.
 *
 * A task VM is a VM whose Lua code may wait. Waiting is one thing: trusted Lua
 * (lua/mc/wait.lua) yields a token up to the host after a binding said "not yet" and left
 * the bell that will ring; when it rings the task goes on and asks again. So bindings never
 * yield and wake-ups may be spurious.
 *
 * A scope (a request, a spawned task, a REPL session) owns handles of things outside the
 * VM (sequences): they end with it, whatever the collector does. A handle is C memory; the
 * script's userdata points to it and finds it closed afterwards.
 *
 * OWNS the coroutines, handles and, when told so, the VM. THREAD: the loop's that the task
 * VM belongs to, save where it says "any". */
#ifndef MC_LUA_TASK_H
#define MC_LUA_TASK_H

#include "lua/host/burst.h"
#include "lua/host/loop.h"
#include "lua/host/vm.h"

struct mc_server;
struct mc_account;
struct mc_tvm;
struct mc_task;

struct mc_scope {
    struct mc_owned *first;
};

/* First member of a handle. */
struct mc_owned {
    struct mc_owned *next, **at;          /* in its scope's list, or the VM's of orphans */
    struct mc_tvm *tvm;
    struct mc_task *waiter;               /* the task that waits for it */
    void (*end)(struct mc_owned *o);      /* lets go of what it holds; may be called twice */
    void (*free)(struct mc_owned *o);     /* after end, when no userdata is left */
};

enum { MC_OWNED_MAX = 4096 }; /* handles of a VM: each may hold much outside it */

bool mc_own_room(const struct mc_tvm *v);
void mc_own(struct mc_tvm *v, struct mc_scope *s, struct mc_owned *o); /* NULL: an orphan */
/* The userdata is gone: ends and frees. */
void mc_disown(struct mc_owned *o);
/* The scope's end will not touch it any more (seq:detach). */
void mc_orphan(struct mc_owned *o);
void mc_scope_end(struct mc_scope *s); /* ends all; they become orphans */
void mc_scope_move(struct mc_scope *to, struct mc_scope *from);
/* Ends those that this task waits for: it is being interrupted. */
void mc_scope_interrupt(struct mc_scope *s, const struct mc_task *t);

extern const char mc_wait_token; /* its address is what a wait yields */

/* A task VM: a VM, the loop it runs on, its tasks. */
struct mc_tvm {
    struct mc_vm *vm;
    struct mc_loop *loop;
    struct mc_server *server; /* what mc.* reaches; constant */
    struct mc_burst burst;
    struct mc_task *now;      /* the one that runs */
    struct mc_task *first;
    int n_task, n_owned;
    int n_front; /* tasks that are not in the background */
    struct mc_owned *orphans;
    /* The VM was given up, after its tasks were ended: only mc_tvm_fini may follow. */
    void (*lost)(struct mc_tvm *v);
    /* A task ended and left none but background ones. */
    void (*idle)(struct mc_tvm *v);
    void *user;
    struct mc_scope *session; /* of a REPL; NULL elsewhere */
    struct mc_account *account; /* of its tensors; NULL before the first */
    /* Where print and io.write of a REPL session go; NULL: nowhere. */
    void (*out)(struct mc_tvm *v, const char *s, size_t n);
};

struct mc_task {
    struct mc_task *next, **at;
    struct mc_tvm *tvm;
    struct mc_scope scope; /* new handles join it */
    lua_State *co;
    int ref;
    int n_arg;              /* for the first resume */
    int context;            /* registry: a table, see mc_task_context; 0: none */
    bool background;        /* does not keep its VM alive */
    bool finish;            /* set by a binding: the next wait is its end, and no error */
    struct mc_task **waits; /* the field of what it waits for that names this task */
    struct mc_timer timer;
    struct mc_bell start;   /* rung to make it run */
    struct mc_task *joiner; /* waits for its end */
    /* Once, last: rc 0 or an error. Results and error values are on co's stack, unless the
     * VM is lost or the task was killed (MC_ECANCEL). */
    void (*ended)(struct mc_task *t, int rc, const struct mc_err *err);
    void *user;
};

int mc_tvm_init(struct mc_tvm *v, struct mc_vm *vm, struct mc_loop *loop,
                struct mc_server *server, const struct mc_burst *burst);
void mc_tvm_fini(struct mc_tvm *v); /* kills tasks, frees handles, closes the VM */
struct mc_tvm *mc_tvm_of(lua_State *L);

/* Makes a task of the function and n_arg arguments on L's top (popped); the caller has set
 * ended and user. May raise, before t is linked: under mc_vm_protect or in a binding. It
 * runs soon. */
void mc_task_init(struct mc_task *t, struct mc_tvm *v, lua_State *L, int n_arg);
/* Pushes the running task's own table, made when make is set, else maybe nil, as it is while a
 * file loads: what the host's
 * Lua keeps for the length of a request. Children spawned later share it. */
void mc_task_context(lua_State *L, bool make);
/* The running task; raises while files load, when there is none. */
struct mc_task *mc_task_need(lua_State *L);
void mc_task_kill(struct mc_task *t); /* ended with MC_ECANCEL; not the one that runs */

/* For bindings that say "not yet": the running task will wait until *slot's owner wakes it;
 * false: another task waits there already. Or until a time. */
bool mc_task_wait(struct mc_tvm *v, struct mc_task **slot);
void mc_task_unwait(struct mc_tvm *v); /* it was there after all */
void mc_task_sleep(struct mc_tvm *v, double at);
/* NULL inside is fine. Whoever holds a slot wakes it before the slot's memory goes. */
void mc_task_wake(struct mc_task **slot);

#endif
